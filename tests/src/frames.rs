//! The calls in a stream of HTTP/2.

/// Finds the frames of HTTP/2 in a stream of bytes that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Bytes of the connection's preface that have passed.
    preface: usize,
    head: Vec<u8>,
    /// Bytes of the current frame that are still to come.
    rest: usize,
}

impl Frames {
    const PREFACE: usize = 24;
    const HEAD: usize = 9;
    const HEADERS: u8 = 1;

    /// How many frames that begin a call have begun in these bytes.
    pub(crate) fn calls(&mut self, mut bytes: &[u8]) -> usize {
        let mut found = 0;
        while let Some((&first, others)) = bytes.split_first() {
            if self.preface < Self::PREFACE {
                self.preface += 1;
                bytes = others;
            } else if self.rest > 0 {
                let skip = self.rest.min(bytes.len());
                self.rest -= skip;
                bytes = &bytes[skip..];
            } else {
                self.head.push(first);
                bytes = others;
                if let [a, b, c, kind, ..] = self.head[..]
                    && self.head.len() == Self::HEAD
                {
                    self.rest = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    found += usize::from(kind == Self::HEADERS);
                    self.head.clear();
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_however_their_bytes_are_cut() {
        let frame = |kind: u8, payload: usize| {
            let length = u8::try_from(payload).unwrap();
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
            frame.resize(frame.len() + payload, Frames::HEADERS);
            frame
        };
        let mut bytes = vec![1; Frames::PREFACE];
        for kind in [4, Frames::HEADERS, 0, 8, Frames::HEADERS, 3] {
            bytes.extend(frame(kind, usize::from(kind) * 20));
        }
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let found: usize = bytes.chunks(size).map(|some| frames.calls(some)).sum();
            assert_eq!(found, 2, "in pieces of {size}");
        }
    }
}

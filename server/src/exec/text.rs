//! Bytes that a program wrote, as text that is safe to show.

use std::collections::VecDeque;

/// The end of `bytes` as text of at most `limit` bytes, and whether that is less than all of
/// them. `whole` says that `bytes` begin where the output began; else the first may belong to a
/// character that was cut.
pub(super) fn tail(bytes: &[u8], whole: bool, limit: usize) -> (String, bool) {
    let start = if whole {
        0
    } else {
        // A character has at most three bytes after its first.
        bytes
            .iter()
            .take(3)
            .position(|byte| byte & 0b1100_0000 != 0b1000_0000)
            .unwrap_or(bytes.len().min(3))
    };
    let text = String::from_utf8_lossy(&bytes[start..]);
    let mut kept = VecDeque::new();
    let mut room = limit;
    let mut cut = false;
    let mut characters = text.chars().rev().peekable();
    while let Some(character) = characters.next() {
        let shown = harmless(character);
        if shown.len_utf8() > room {
            cut = true;
            break;
        }
        room -= shown.len_utf8();
        kept.push_front(shown);
        // The end of a line as some systems write it.
        if character == '\n' && characters.peek() == Some(&'\r') {
            characters.next();
        }
    }
    (kept.into_iter().collect(), cut)
}

/// Output ends up on terminals and pages of people who did not write it. Whatever moves a cursor,
/// changes colours or reorders text is shown, not obeyed.
fn harmless(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        // Without a line feed it would let a program write over what it has written.
        '\r' => '\n',
        // The pictures of the control characters stand in the same order as they do.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        let text = "grüß Gott\n\t日报 🎉\n";
        assert_eq!(tail(text.as_bytes(), true, 100), (text.to_owned(), false));
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let text = "日报日报";
        for limit in 0..=12 {
            let (kept, cut) = tail(text.as_bytes(), true, limit);
            assert!(text.ends_with(&kept) && kept.len() <= limit && kept.len() + 3 > limit);
            assert_eq!(cut, limit < 12);
        }
        for cut_off in 1..=3 {
            let (kept, _) = tail(&text.as_bytes()[cut_off..], false, 100);
            assert_eq!(kept, "报日报");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        let (kept, _) = tail(b"\x1b[2J\0\x07\x7f\xc2\x9b1m", true, 100);
        assert_eq!(kept, "␛[2J␀␇␡\u{fffd}1m");
        let (kept, _) = tail("a\u{202e}b".as_bytes(), true, 100);
        assert_eq!(kept, "a\u{fffd}b");
    }

    #[test]
    fn every_end_of_line_becomes_one_line_feed() {
        let (kept, cut) = tail(b"10%\r20%\r\ndone\r\n", true, 100);
        assert_eq!((kept.as_str(), cut), ("10%\n20%\ndone\n", false));
    }

    #[test]
    fn bytes_that_are_no_text_become_marks_and_keep_the_limit() {
        let (kept, cut) = tail(&[0xff; 2_048], true, 2_048);
        assert!(cut && kept.len() <= 2_048 && kept.chars().all(|c| c == '\u{fffd}'));
    }
}

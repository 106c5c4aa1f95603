//! One number for all that was observed: two histories that differ anywhere have different ones
//! (but for one pair in 2^64).

use std::fmt;
use std::hash::{Hash, Hasher};

use punctual::backend::Event;

use super::tap::Logged;
use super::world::Observed;

/// Eight bytes a step: a history is some megabytes, and each of thousands of seeds has one.
#[derive(Clone, Debug)]
struct Words(u64);

impl Words {
    fn word(&mut self, word: u64) {
        // Multiplication carries differences up, the shift brings them down again; both can be
        // undone, so no step forgets what the earlier ones left.
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.word(word.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)));
        }
        // The length stands in the last word, so that no end looks like padding.
        let rest = words.remainder().iter().rev();
        let last = rest.fold(0, |all, b| all << 8 | u64::from(*b));
        self.word(last | (bytes.len() as u64) << 56);
    }

    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }

    fn write_i64(&mut self, word: i64) {
        self.word(word.cast_unsigned());
    }

    fn write_usize(&mut self, word: usize) {
        self.word(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.write(text.as_bytes());
        Ok(())
    }
}

/// Of everything in it but the fingerprint itself.
#[must_use]
pub fn fingerprint(observed: &Observed) -> u64 {
    let Observed {
        plan,
        by_watch,
        log,
        effects,
        told,
        asked,
        lives,
        counts,
        fingerprint: _,
        polls,
        claim_conflicts,
        fenced_writes,
    } = observed;
    let mut words = Words(plan.seed);
    for logged in log {
        revision(&mut words, logged);
    }
    by_watch.hash(&mut words);
    effects.hash(&mut words);
    told.hash(&mut words);
    counts.hash(&mut words);
    polls.hash(&mut words);
    claim_conflicts.hash(&mut words);
    fenced_writes.hash(&mut words);
    // Few, and of types that only know how to be shown. Writing into numbers cannot fail.
    let _ = fmt::write(&mut words, format_args!("{plan:?}{asked:?}{lives:?}"));
    words.finish()
}

fn revision(words: &mut Words, logged: &Logged) {
    let Logged {
        revision,
        at_ms,
        writer,
        events,
    } = logged;
    (revision, at_ms, writer, events.len()).hash(words);
    for event in events {
        match event {
            Event::Put(entry) => {
                (0_u64, &entry.key, &entry.value).hash(words);
                (entry.created, entry.modified, entry.lease).hash(words);
            }
            Event::Delete { key, revision } => (1_u64, key, revision).hash(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use punctual::backend::{LeaseId, Revision};

    use super::*;
    use crate::sim::operator::Told;
    use crate::sim::scenario;
    use crate::sim::world::simulate;

    type Change = Box<dyn Fn(&mut Observed)>;

    /// Each change of one detail, anywhere, is another fingerprint.
    #[test]
    fn every_detail_counts() {
        let plan = scenario::plan("default", 2).unwrap();
        let mut observed = simulate(&plan);
        assert_eq!(fingerprint(&observed), observed.fingerprint);
        let middle = observed.log.len() / 2;
        let put = (middle..observed.log.len())
            .find(|at| matches!(observed.log[*at].events[0], Event::Put(_)))
            .unwrap();
        let entry_changes: [fn(&mut punctual::backend::Entry); 6] = [
            |entry| entry.key.push(0),
            |entry| entry.value[0] ^= 1,
            |entry| {
                entry.value.pop();
            },
            |entry| entry.created.0 += 1,
            |entry| entry.modified.0 += 1,
            |entry| entry.lease = Some(LeaseId(u64::MAX)),
        ];
        let mut all = vec![observed.fingerprint];
        for change in entry_changes {
            let before = observed.log[put].events[0].clone();
            if let Event::Put(entry) = &mut observed.log[put].events[0] {
                change(entry);
            }
            all.push(fingerprint(&observed));
            observed.log[put].events[0] = before;
        }
        let mut changes: Vec<Change> = vec![
            Box::new(move |o| o.log[middle].at_ms += 1),
            Box::new(move |o| o.log[middle].revision = Revision(0)),
            Box::new(move |o| o.log[middle].writer = Some(77)),
            Box::new(move |o| {
                o.log.remove(middle);
            }),
            Box::new(move |o| o.log.swap(middle, middle + 1)),
            Box::new(|o| o.effects[3].start_ms += 1),
            Box::new(|o| o.effects[3].completed ^= true),
            Box::new(|o| o.effects[3].job.push('x')),
            Box::new(|o| o.effects.swap(1, 2)),
            Box::new(|o| o.asked[0].start_ms += 1),
            Box::new(|o| o.asked[0].answer = Some((0, 0, Told::Done(None)))),
            Box::new(|o| o.polls += 1),
            Box::new(|o| *o.counts.entry("crash").or_default() += 1),
            Box::new(|o| o.plan.relist_ms += 1),
        ];
        changes.push(Box::new(|o| {
            o.lives.values_mut().for_each(|life| life.from_ms += 1);
        }));
        let count = all.len() + changes.len();
        // Each of them on top of those before.
        for change in changes {
            change(&mut observed);
            all.push(fingerprint(&observed));
        }
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), count);
    }

    #[test]
    fn no_end_looks_like_padding() {
        let of = |texts: &[&[u8]]| {
            let mut words = Words(0);
            texts.iter().for_each(|text| words.write(text));
            words.finish()
        };
        let all = [
            of(&[b"abc"]),
            of(&[b"abc\0"]),
            of(&[b"ab", b"c"]),
            of(&[b"abc", b""]),
            of(&[b"abcdefgh"]),
            of(&[b"abcdefgh\0"]),
            of(&[b""]),
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }
}

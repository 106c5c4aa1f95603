//! Telling people what they asked to hear: the outbox under `note/`.
//!
//! A note stands until its receiver has taken it, so each event arrives at least once, whoever leads
//! and whenever a node dies. What can go wrong: a receiver is slow or away. So each one has a task and
//! a patience of its own, and a bound: what is older than a day, or one of too many, is given up
//! with an error in the log.
//!
//! That a run is late is found out here, too. Its note stands until the attempt has ended, sent or
//! not: it is what keeps this event from being told twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::backend::{BackendResult, Entry, Event, Requirement, Revision, Txn};
use crate::env::{SharedEnv, TaskHandle, timeout};
use crate::job::finish::Attempt;
use crate::job::notes::{NoteKey, NoteRecord, is_late, late, parts_are_late};
use crate::job::record::{decode, encode};
use crate::job::spec::{NotifyEvent, receiver_of};
use crate::keys::{AttemptKey, Keys, partition_of};
use crate::notify::{Delivery, Message, NotTaken, Notifier};
use crate::recipe::view::ViewEvent;

use super::LeaderContext;
use super::authority::Authority;
use super::keeper::definition_of;
use super::parts::parts_alive;

/// How long a receiver may take to answer.
pub const SEND_TIMEOUT_MS: u64 = 5_000;
/// A note that is so old is given up.
pub const GIVE_UP_MS: i64 = 86_400_000;
/// So many may wait for one receiver; the oldest of more are given up.
pub const MAX_WAITING: usize = 1_000;
/// So many may wait for all receivers together.
pub const MAX_WAITING_ALL: usize = 20_000;
/// Wait before a second try; twice as long before each further one.
const FIRST_WAIT_MS: u64 = 1_000;
const LONGEST_WAIT_MS: u64 = 600_000;
/// So many are sent by one task, one after the other, as long as that takes no longer than one may.
const NOTES_A_TASK: usize = 16;
/// Receivers that are talked to at once.
const MAX_TASKS: usize = 32;
/// Steps that are taken in one request.
const STEPS_A_REQUEST: usize = 16;
/// A run whose definition cannot be read is looked at again after so long.
const UNREADABLE_MS: u64 = 30_000;

/// Wait after so many tries in vain, in milliseconds.
#[must_use]
pub fn wait_ms(tries: u32) -> u64 {
    let doubled = FIRST_WAIT_MS.checked_shl(tries.saturating_sub(1).min(32));
    doubled.unwrap_or(LONGEST_WAIT_MS).min(LONGEST_WAIT_MS)
}

/// A note as it was read, and how it goes.
#[derive(Clone, Debug)]
struct Note {
    record: NoteRecord,
    modified: Revision,
    receiver: String,
    tries: u32,
    /// By the monotonic clock.
    next_ms: u64,
    /// Sent, or given up; this is still to be written down.
    over: bool,
}

/// How it goes with a receiver.
#[derive(Debug, Default)]
struct Receiver {
    /// In a row.
    failures: u32,
    /// By the monotonic clock.
    next_ms: u64,
    /// Counts all tasks: when it had its last one.
    turn: u64,
    task: Option<TaskHandle>,
}

/// What a task has done: each note, its revision, and why it was not taken.
type Answer = (String, Vec<(NoteKey, Revision, Result<(), NotTaken>)>);

/// What is still to be told.
#[derive(Debug)]
pub struct Notes {
    notes: BTreeMap<NoteKey, Note>,
    receivers: BTreeMap<String, Receiver>,
    answers: mpsc::Receiver<Answer>,
    answer: mpsc::Sender<Answer>,
    /// Late runs whose definition cannot be read: looked at again then, by the monotonic clock.
    later: BTreeMap<AttemptKey, u64>,
    /// Tasks so far.
    turns: u64,
}

impl Default for Notes {
    fn default() -> Self {
        let (answer, answers) = mpsc::channel(MAX_TASKS);
        Self {
            notes: BTreeMap::new(),
            receivers: BTreeMap::new(),
            answers,
            answer,
            later: BTreeMap::new(),
            turns: 0,
        }
    }
}

impl Notes {
    /// Takes in what the view tells.
    pub fn take(&mut self, context: &LeaderContext, event: ViewEvent) {
        let keys = &context.keys;
        match event {
            ViewEvent::Listed(entries, _) => {
                let known = std::mem::take(&mut self.notes);
                for entry in &entries {
                    self.insert(keys, entry, &known);
                }
            }
            ViewEvent::Changed(changes) => {
                for event in changes.events {
                    match event {
                        Event::Put(entry) => self.insert(keys, &entry, &BTreeMap::new()),
                        Event::Delete { key, .. } => {
                            if let Some(key) = keys.parse_note(&key) {
                                self.notes.remove(&key);
                            }
                        }
                    }
                }
            }
        }
    }

    fn insert(&mut self, keys: &Keys, entry: &Entry, known: &BTreeMap<NoteKey, Note>) {
        let Some(key) = keys.parse_note(&entry.key) else {
            return;
        };
        let record: NoteRecord = match decode(&entry.value) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(run = key.run, event = key.event, %error, "what is to be told of this run is set aside");
                return;
            }
        };
        let same = known.get(&key).filter(|n| n.modified == entry.modified);
        let note = same.cloned().unwrap_or_else(|| Note {
            receiver: receiver_of(&record.webhook),
            modified: entry.modified,
            tries: 0,
            next_ms: 0,
            over: false,
            record,
        });
        self.notes.insert(key, note);
    }

    /// Sends what is due, writes down what was sent, and notices what is late. `runs`: the attempts
    /// that have not ended, as far as is known here; the transactions make sure.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, the rest is done at the next tick.
    pub async fn tick(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
        runs: &BTreeMap<AttemptKey, Attempt>,
    ) -> BackendResult<()> {
        let env = context.store.env();
        let notifier = context.notifier.as_deref();
        self.hear(notifier, env.monotonic_ms());
        self.give_up(notifier, context.clock.now_ms());
        let mut txns = self.settled(context, runs);
        txns.extend(self.late(context, runs).await?);
        for txns in txns.chunks(STEPS_A_REQUEST) {
            if !authority.commit_each(txns).await? {
                return Ok(());
            }
        }
        // The view brings what was written.
        if let Some(notifier) = &context.notifier {
            self.send(env, notifier);
        }
        Ok(())
    }

    /// Takes in what the tasks have done.
    fn hear(&mut self, notifier: Option<&dyn Notifier>, now_ms: u64) {
        while let Ok((receiver, results)) = self.answers.try_recv() {
            let to = self.receivers.entry(receiver.clone()).or_default();
            to.task = None;
            for (key, modified, result) in results {
                let delivery = match &result {
                    Ok(()) => Delivery::Sent,
                    Err(_) => Delivery::Failed,
                };
                if let Some(notifier) = notifier {
                    notifier.count(delivery);
                }
                if let Err(why) = &result {
                    if matches!(why, NotTaken::Away(_)) {
                        to.failures = to.failures.saturating_add(1);
                        to.next_ms = now_ms.saturating_add(wait_ms(to.failures));
                    }
                    let (run, event) = (&key.run, &key.event);
                    tracing::warn!(
                        run,
                        event,
                        receiver,
                        %why,
                        "could not be told; it is tried again"
                    );
                } else {
                    to.failures = 0;
                    to.next_ms = 0;
                }
                let note = self.notes.get_mut(&key).filter(|n| n.modified == modified);
                let Some(note) = note else { continue };
                note.tries = note.tries.saturating_add(1);
                note.next_ms = now_ms.saturating_add(wait_ms(note.tries));
                note.over = result.is_ok();
            }
        }
    }

    /// Ends what has waited for too long, and the oldest of too many.
    fn give_up(&mut self, notifier: Option<&dyn Notifier>, now_ms: i64) {
        let waiting = self.notes.iter().filter(|(_, note)| note.waits());
        let waiting =
            waiting.map(|(key, note)| (note.receiver.as_str(), note.record.since_ms, key));
        let over: Vec<NoteKey> = overdue(waiting, now_ms).into_iter().cloned().collect();
        for key in over {
            let Some(note) = self.notes.get_mut(&key) else {
                continue;
            };
            note.over = true;
            let (run, event, receiver) = (&key.run, &key.event, &note.receiver);
            let tries = note.tries;
            tracing::error!(run, event, receiver, tries, "was not told, and is given up");
            if let Some(notifier) = notifier {
                notifier.count(Delivery::GivenUp);
            }
        }
    }

    /// Writes down what is over.
    fn settled(&self, context: &LeaderContext, runs: &BTreeMap<AttemptKey, Attempt>) -> Vec<Txn> {
        let keys = &context.keys;
        let mut txns = Vec::new();
        for (key, note) in &self.notes {
            if !note.over && !note.record.over {
                continue;
            }
            let note_key = keys.note(key);
            let txn = Txn::new().require(Requirement::Modified(note_key.clone(), note.modified));
            if note.record.event != NotifyEvent::Late {
                txns.push(txn.delete(note_key));
                continue;
            }
            let attempt = attempt_of(context, key, &note.record);
            if !runs.contains_key(&attempt) {
                let ended = Requirement::Absent(keys.run(&attempt));
                txns.push(txn.require(ended).delete(note_key));
            } else if !note.record.over {
                let record = NoteRecord {
                    over: true,
                    ..note.record.clone()
                };
                txns.push(txn.put(note_key, encode(&record)));
            }
        }
        txns
    }

    /// Notes for what has become late since the last look.
    async fn late(
        &mut self,
        context: &LeaderContext,
        runs: &BTreeMap<AttemptKey, Attempt>,
    ) -> BackendResult<Vec<Txn>> {
        let now_ms = context.clock.now_ms();
        let at_ms = context.store.env().monotonic_ms();
        self.later
            .retain(|key, again_ms| *again_ms > at_ms && runs.contains_key(key));
        let parts_late = |key, attempt: &Attempt| {
            let alive = || parts_alive(runs, key).map(|(_, part)| &part.record);
            attempt.record.parts.is_some() && parts_are_late(&attempt.record, alive(), now_ms)
        };
        // Parts are not told: their run is.
        let whole = runs
            .iter()
            .filter(|(_, attempt)| attempt.record.shard.is_none());
        let new: Vec<&Attempt> = whole
            .filter(|(key, attempt)| is_late(&attempt.record, now_ms) || parts_late(key, attempt))
            .filter(|(key, _)| !self.later.contains_key(*key) && !self.is_noted(key))
            .map(|(_, attempt)| attempt)
            .collect();
        let mut txns = Vec::new();
        for attempt in new {
            if !is_late(&attempt.record, now_ms)
                && !parts_late_surely(context, attempt, now_ms).await?
            {
                continue;
            }
            let definition = definition_of(context, attempt).await?;
            let Some(definition) = definition else {
                tracing::error!(
                    run = attempt.key.run,
                    "late, and its definition cannot be read: nobody is told"
                );
                self.later
                    .insert(attempt.key.clone(), at_ms + UNREADABLE_MS);
                continue;
            };
            tracing::warn!(run = attempt.key.run, "late");
            let run = context.keys.run(&attempt.key);
            let mut txn = Txn::new().require(Requirement::Modified(run, attempt.modified));
            let since_ms = context.clock.record_ms();
            let spec = &definition.spec;
            for write in late(&context.keys, &attempt.key, &attempt.record, spec, since_ms) {
                txn = txn
                    .require(Requirement::Absent(write.key().to_vec()))
                    .op(write);
            }
            txns.push(txn);
        }
        Ok(txns)
    }

    fn is_noted(&self, attempt: &AttemptKey) -> bool {
        let first = NoteKey {
            run: attempt.run.clone(),
            attempt: attempt.attempt,
            event: NotifyEvent::Late.as_str().to_owned(),
            index: 0,
        };
        let next = self.notes.range(first.clone()..).next();
        next.is_some_and(|(key, _)| {
            (&key.run, key.attempt, &key.event) == (&first.run, first.attempt, &first.event)
        })
    }

    /// Hands to each receiver that is ready what is due for it.
    fn send(&mut self, env: &SharedEnv, notifier: &Arc<dyn Notifier>) {
        let now_ms = env.monotonic_ms();
        let waiting: BTreeSet<&str> = self
            .notes
            .values()
            .filter(|note| note.waits())
            .map(|note| note.receiver.as_str())
            .collect();
        self.receivers
            .retain(|name, to| to.task.is_some() || waiting.contains(name.as_str()));
        let mut tasks = self.receivers.values().filter(|r| r.task.is_some()).count();
        let mut due: BTreeMap<String, Vec<(u32, i64, NoteKey)>> = BTreeMap::new();
        for (key, note) in &self.notes {
            let to = self.receivers.get(&note.receiver);
            let ready = to.is_none_or(|to| to.task.is_none() && to.next_ms <= now_ms);
            if ready && note.waits() && note.next_ms <= now_ms {
                let all = due.entry(note.receiver.clone()).or_default();
                all.push((note.tries, note.record.since_ms, key.clone()));
            }
        }
        // Who has waited longest for a turn comes first: those that are slow must not have all tasks.
        let turn_of = |name: &str| self.receivers.get(name).map_or(0, |to| to.turn);
        let mut due: Vec<_> = due.into_iter().collect();
        due.sort_by_key(|(receiver, _)| turn_of(receiver));
        for (receiver, mut all) in due {
            if tasks >= MAX_TASKS {
                return;
            }
            tasks += 1;
            // What was refused most often comes last: it may be the note's fault.
            all.sort_unstable();
            all.truncate(NOTES_A_TASK);
            let notes = all.into_iter().filter_map(|(_, _, key)| {
                let note = self.notes.get(&key)?;
                Some((key, note.modified, Message::of(&note.record)))
            });
            let task = deliver(
                env.clone(),
                notifier.clone(),
                receiver.clone(),
                notes.collect(),
                self.answer.clone(),
            );
            let task = env.spawn("notify", Box::pin(task));
            self.turns += 1;
            let to = self.receivers.entry(receiver).or_default();
            to.turn = self.turns;
            to.task = Some(task);
        }
    }
}

impl Note {
    fn waits(&self) -> bool {
        !self.over && !self.record.over
    }
}

/// Of all that waits (for whom, since when, what), what is given up: what is too old, and the oldest of
/// too many, for one receiver and for all.
fn overdue<'a, T: Ord>(
    waiting: impl Iterator<Item = (&'a str, i64, &'a T)>,
    now_ms: i64,
) -> Vec<&'a T> {
    let mut newest_first: Vec<(i64, &T, &str)> = waiting
        .map(|(receiver, since_ms, what)| (since_ms, what, receiver))
        .collect();
    newest_first.sort_unstable_by(|a, b| b.cmp(a));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kept = 0;
    let mut over = Vec::new();
    for (since_ms, what, receiver) in newest_first {
        let count = counts.entry(receiver).or_default();
        let old = since_ms.saturating_add(GIVE_UP_MS) < now_ms;
        if old || *count >= MAX_WAITING || kept >= MAX_WAITING_ALL {
            over.push(what);
        } else {
            *count += 1;
            kept += 1;
        }
    }
    over
}

/// The attempt that a note is about.
fn attempt_of(context: &LeaderContext, key: &NoteKey, note: &NoteRecord) -> AttemptKey {
    AttemptKey {
        partition: partition_of(&note.run.job, context.meta.partitions),
        job: note.run.job.clone(),
        run: key.run.clone(),
        attempt: key.attempt,
    }
}

/// The same of what stands in the store: whether a part has started is not asked of a view, which may
/// be old.
async fn parts_late_surely(
    context: &LeaderContext,
    parent: &Attempt,
    now_ms: i64,
) -> BackendResult<bool> {
    let (keys, key) = (&context.keys, &parent.key);
    let span = keys.parts_of(key.partition, &key.job, &key.run);
    let (entries, _) = context.store.list(&span, None).await?;
    let alive: Vec<Attempt> = entries
        .iter()
        .filter_map(|entry| Attempt::read(keys, entry))
        .collect();
    let alive = alive.iter().map(|part| &part.record);
    Ok(parts_are_late(&parent.record, alive, now_ms))
}

/// Sends notes to one receiver until one is not taken, or it has taken long enough.
async fn deliver(
    env: SharedEnv,
    notifier: Arc<dyn Notifier>,
    receiver: String,
    notes: Vec<(NoteKey, Revision, Message)>,
    answer: mpsc::Sender<Answer>,
) {
    let began_ms = env.monotonic_ms();
    let mut results = Vec::new();
    for (key, modified, message) in notes {
        let limit = Duration::from_millis(SEND_TIMEOUT_MS);
        let sent = timeout(&*env, limit, notifier.send(&message)).await;
        let result = sent.unwrap_or_else(|| {
            Err(format!("no answer within {} s", SEND_TIMEOUT_MS / 1_000).into())
        });
        let away = matches!(result, Err(NotTaken::Away(_)));
        results.push((key, modified, result));
        if away || env.monotonic_ms().saturating_sub(began_ms) >= SEND_TIMEOUT_MS {
            break;
        }
    }
    // Without a leader that listens, the next one sends them once more.
    let _ = answer.send((receiver, results)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_old_and_the_oldest_of_too_many_are_given_up() {
        let over = |notes: &[(&str, i64, u32)], now_ms| -> Vec<u32> {
            let notes = notes.iter().map(|(to, since_ms, n)| (*to, *since_ms, n));
            let mut over: Vec<u32> = overdue(notes, now_ms).into_iter().copied().collect();
            over.sort_unstable();
            over
        };
        let few = [("a", 0, 1), ("a", 1, 2), ("b", 0, 3)];
        assert!(over(&few, GIVE_UP_MS).is_empty());
        assert_eq!(over(&few, GIVE_UP_MS + 1), [1, 3]);
        let mut many: Vec<(&str, i64, u32)> = (0..1_003_u32)
            .map(|n| ("a", i64::from(n % 7 * 1_000 + n), n))
            .collect();
        many.push(("b", 0, 5_000));
        assert_eq!(over(&many, 0), [0, 7, 14], "the oldest of one receiver");
        let names: Vec<String> = (0..21).map(|n| format!("r{n:02}")).collect();
        let all: Vec<(&str, i64, u32)> = (0..20_002_u32)
            .map(|n| (names[n as usize % 21].as_str(), i64::from(n), n))
            .collect();
        assert_eq!(over(&all, 0), [0, 1], "the oldest of all");
    }

    #[test]
    fn the_waits_double_up_to_ten_minutes() {
        let waits = [1, 2, 3, 4, 10, 11, 33, 34, u32::MAX].map(wait_ms);
        let (m, max) = (1_000, LONGEST_WAIT_MS);
        assert_eq!(waits, [m, 2 * m, 4 * m, 8 * m, 512 * m, max, max, max, max]);
        // A day is long enough for many tries.
        let tries = (1..200)
            .scan(0, |sum, n| {
                *sum += wait_ms(n);
                Some(*sum)
            })
            .take_while(|sum| *sum < GIVE_UP_MS.unsigned_abs())
            .count();
        assert!(tries > 140, "{tries}");
    }
}

//! Follows what a store is asked and what it answers, and keeps every state that explains it.
//!
//! # How
//! A request takes effect once, at some moment between its call and its answer. A write whose
//! outcome is unknown takes effect at some moment after its call, or never. A lease ends once its
//! time is over, or later. So there is not one state but a set of them ([`Possible`]); an answer
//! throws out those that would have given another one, and when none is left, the store and the
//! model differ.
//!
//! # How it stays small
//! Nothing takes effect in a state before an answer demands it. That loses nothing: an answer that
//! changes nothing may as well come before whatever it does not mention, and one that changes
//! something names the revision that it made.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Changes, Event, LeaseId, Page, Revision, Span,
    TxnOutcome,
};
use punctual::model::{Answer, Model, Operation};

use crate::leases::{Leases, leases_of};
use crate::met::{Met, changes_keys};
use crate::possible::{Id, Possible};

/// More states than this mean that the test asks too little, not that the store is wrong.
const MOST: usize = 5_000;
/// So many of the last events are told when something is wrong.
const TOLD: usize = 40;

/// Nothing explains what the store said. The words to say so.
#[derive(Debug)]
pub(crate) struct Violation(pub(crate) String);

/// What a check comes to.
pub(crate) type Checked<T = ()> = Result<T, Violation>;

/// How an answer fits a state.
enum Fit {
    /// It does not, but might once more has taken effect.
    Not,
    /// It never will.
    Never,
    /// It does, and leaves the state as it was.
    Inert(Possible),
    /// It does, and this is the state afterwards.
    Changed(Possible),
}

#[derive(Debug)]
pub(crate) struct Checker {
    possible: Vec<Possible>,
    /// All that was ever asked and may still matter.
    operations: BTreeMap<Id, (Operation, Instant)>,
    in_flight: BTreeSet<Id>,
    leases: Leases,
    next: Id,
    told: VecDeque<String>,
    met: Met,
}

impl Checker {
    /// For a store that nobody has written to.
    pub(crate) fn new() -> Self {
        Self {
            possible: vec![Possible::fresh()],
            operations: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            leases: Leases::default(),
            next: 1,
            told: VecDeque::new(),
            met: Met::default(),
        }
    }

    /// A state that the store may well be in.
    pub(crate) fn guess(&self) -> Arc<Model> {
        Arc::clone(self.possible[0].model())
    }

    /// The leases that were granted.
    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// A request is about to be sent.
    pub(crate) fn begin(&mut self, who: &str, operation: &Operation) -> Id {
        let id = self.next;
        self.next += 1;
        self.tell(format!("{who} asks {id}: {operation:?}"));
        // A grant concerns nobody before its answer tells its number.
        if !matches!(operation, Operation::Grant { .. }) {
            for possible in &mut self.possible {
                possible.todo.insert(id);
            }
        }
        self.operations
            .insert(id, (operation.clone(), Instant::now()));
        self.in_flight.insert(id);
        id
    }

    /// Whether an answer fits every state as it is. If not, what stands now helps to find those in
    /// which it does.
    pub(crate) fn is_plain(&self, id: Id, answer: &BackendResult<Answer>) -> bool {
        let operation = &self.operations[&id].0;
        let open = matches!(
            answer,
            Err(BackendError::Unavailable(_) | BackendError::Unknown(_))
        );
        if open || matches!(operation, Operation::Grant { .. }) {
            return true;
        }
        if matches!(operation, Operation::Revoke(_)) {
            return false; // It may have made a revision, and does not say which.
        }
        let answer = self.leases.for_the_model(answer.clone());
        self.possible.iter().all(|possible| {
            matches!(
                fit(possible, id, operation, &answer),
                Fit::Inert(_) | Fit::Changed(_)
            )
        })
    }

    /// Its answer has come, or it is known that none will. `seen`: what was read afterwards,
    /// before anything else was asked: see [`Possible::contradicts`].
    pub(crate) fn end(
        &mut self,
        id: Id,
        answer: BackendResult<Answer>,
        seen: Vec<Page>,
    ) -> Checked {
        let seen = self.leases.pages_for_the_model(seen);
        let (operation, begun) = self.operations[&id].clone();
        let answer = match operation {
            Operation::Grant { .. } => answer,
            _ => self.leases.for_the_model(answer),
        };
        self.tell(format!("{id} is answered: {answer:?}"));
        self.met.note(&operation, &answer);
        self.in_flight.remove(&id);
        let reads = matches!(operation, Operation::Range { .. });
        let before = self.possible.clone();
        match &answer {
            Err(BackendError::Unavailable(_)) => {
                self.possible.retain(|p| !p.done.contains_key(&id));
                self.forget(id);
            }
            Err(BackendError::Unknown(_)) if !reads => {
                for possible in &mut self.possible {
                    let made = possible.done.remove(&id).is_some();
                    possible.unknown_made += u64::from(made);
                }
                if !changes_keys(&operation) {
                    self.forget(id);
                }
            }
            Err(BackendError::Unknown(_) | BackendError::Broken(_)) => self.possible.clear(),
            Ok(Answer::Lease(lease)) if let Operation::Grant { ttl_ms } = operation => {
                if self.leases.grant(ttl_ms, *lease, begun) {
                    let ttl_ms = lease.ttl_ms;
                    for possible in &mut self.possible {
                        *possible = possible.after(&Operation::Grant { ttl_ms }).0;
                    }
                } else {
                    self.possible.clear();
                }
            }
            answer => {
                let ceiling = revision_of(answer);
                let concerned = leases_of(&operation);
                let settles = matches!(operation, Operation::Compact { .. });
                self.explore(ceiling, &concerned, settles, &seen, |possible| {
                    fit(possible, id, &operation, answer)
                })?;
                if let (Operation::KeepAlive(lease), Ok(_)) = (&operation, answer) {
                    self.leases.prolonged(*lease, begun);
                }
            }
        }
        self.see(&seen)?;
        self.settle(&before, || format!("{answer:?} to {id}: {operation:?}"))
    }

    /// A watch of `span` that stands at `next` has reported this.
    pub(crate) fn changes(
        &mut self,
        who: &str,
        span: &Span,
        next: Revision,
        mut changes: Changes,
        seen: Vec<Page>,
    ) -> Checked {
        let seen = self.leases.pages_for_the_model(seen);
        for event in &mut changes.events {
            if let Event::Put(entry) = event {
                self.leases.translate(entry);
            }
        }
        self.tell(format!("{who} watches {span:?} from {next}: {changes:?}"));
        self.met.changes_watched += 1;
        let before = self.possible.clone();
        let ceiling = Some(changes.revision);
        self.explore(ceiling, &[], false, &seen, |possible| {
            match possible.next_of(span, next) {
                Some(expected) if expected == changes => Fit::Inert(possible.clone()),
                Some(_) => Fit::Never,
                None if possible.revision() >= changes.revision => Fit::Never,
                None => Fit::Not,
            }
        })?;
        self.see(&seen)?;
        self.settle(&before, || {
            format!("a watch of {span:?} at {next}: {changes:?}")
        })
    }

    /// A watch of `span` was refused or has ended at `next`, because history is gone.
    ///
    /// etcd may have lost the deletes of the very revision that it was compacted to, so a watch
    /// that would begin there may be refused as well.
    pub(crate) fn refused(
        &mut self,
        who: &str,
        next: Revision,
        oldest: Revision,
        seen: Vec<Page>,
    ) -> Checked {
        let seen = self.leases.pages_for_the_model(seen);
        self.tell(format!("{who} cannot watch from {next}: oldest {oldest}"));
        self.met.watches_refused += 1;
        let before = self.possible.clone();
        self.explore(None, &[], false, &seen, |possible| {
            if next > oldest || oldest <= Revision(1) {
                Fit::Never
            } else if possible.compacted >= oldest {
                Fit::Inert(possible.clone())
            } else {
                Fit::Not
            }
        })?;
        self.see(&seen)?;
        self.settle(&before, || {
            format!("a watch at {next} refused, oldest {oldest}")
        })
    }

    /// What was met, with what every state that is left agrees on.
    pub(crate) fn met(&self) -> Met {
        let least = |count: fn(&Possible) -> u64| self.possible.iter().map(count).min();
        Met {
            unknown_made: least(|p| p.unknown_made).unwrap_or(0),
            leases_ended: least(|p| p.leases_ended).unwrap_or(0),
            ..self.met
        }
    }

    /// The oldest revision at which the store may stand.
    pub(crate) fn least_revision(&self) -> Revision {
        let all = self.possible.iter().map(Possible::revision);
        all.min().unwrap_or_default()
    }

    /// Whether a watch must report something more, whatever the state is.
    pub(crate) fn owes(&self, span: &Span, next: Revision) -> bool {
        self.possible
            .iter()
            .all(|possible| possible.next_of(span, next).is_some())
    }

    /// Something that happened and needs no check, for the report.
    pub(crate) fn tell(&mut self, event: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(event);
    }

    /// The words for a violation.
    pub(crate) fn violation(&self, what: &str) -> Violation {
        let told: Vec<&str> = self.told.iter().map(String::as_str).collect();
        Violation(format!("{what}\nwhat came before:\n{}", told.join("\n")))
    }

    /// Keeps the states in which the whole store may be as it was seen.
    fn see(&mut self, seen: &[Page]) -> Checked {
        let Some(newest) = seen.last() else {
            return Ok(());
        };
        self.tell(format!("what stands: {newest:?}"));
        self.explore(Some(newest.revision), &[], false, seen, |possible| {
            if possible.revision() == newest.revision {
                Fit::Inert(possible.clone()) // That it is equal was looked at.
            } else {
                Fit::Not
            }
        })
    }

    /// Keeps what fits in each state, after whatever must have taken effect before it.
    /// `ceiling`: no state beyond it can fit. `concerned`: the leases that it is about. `settles`:
    /// once it fits, only the answers of requests in flight depend on its place.
    fn explore(
        &mut self,
        ceiling: Option<Revision>,
        concerned: &[LeaseId],
        settles: bool,
        seen: &[Page],
        fit: impl Fn(&Possible) -> Fit,
    ) -> Checked {
        let newest = seen.last().map(|page| page.revision);
        let ceiling = match (ceiling, newest) {
            (Some(ceiling), Some(newest)) => Some(ceiling.min(newest)),
            (ceiling, newest) => ceiling.or(newest),
        };
        let before = self.possible.clone();
        let mut open = std::mem::take(&mut self.possible);
        let mut met: HashMap<u64, Vec<Possible>> = HashMap::new();
        let mut looked_at = 0;
        let mut found: Vec<Possible> = Vec::new();
        while let Some(possible) = open.pop() {
            let alike = met.entry(possible.hash()).or_default();
            if possible.contradicts(seen) || alike.iter().any(|other| other.same(&possible)) {
                continue;
            }
            alike.push(possible.clone());
            looked_at += 1;
            if looked_at > MOST {
                let states: Vec<String> = before.iter().map(shown).collect();
                return Err(self.violation(&format!(
                    "too many states to look at, from {}:\n{}",
                    states.len(),
                    states.join("\n")
                )));
            }
            let inert_only = match fit(&possible) {
                Fit::Never => continue,
                Fit::Inert(next) => {
                    found.push(next);
                    continue;
                }
                Fit::Changed(next) => {
                    found.push(next);
                    settles
                }
                Fit::Not => false,
            };
            for (next, changed) in self.steps(&possible, concerned) {
                let beyond = ceiling.is_some_and(|ceiling| next.revision() > ceiling);
                let skipped = inert_only && changed;
                if !beyond && !skipped {
                    open.push(next);
                }
            }
        }
        self.possible = found;
        Ok(())
    }

    /// What may take effect next in a state.
    fn steps(&self, possible: &Possible, concerned: &[LeaseId]) -> Vec<(Possible, bool)> {
        let mut steps = Vec::new();
        let mut leases: BTreeSet<LeaseId> = concerned.iter().copied().collect();
        let mut unknown: Vec<&Operation> = Vec::new();
        for id in &possible.todo {
            let operation = &self.operations[id].0;
            let in_flight = self.in_flight.contains(id);
            if in_flight {
                leases.extend(leases_of(operation));
            } else if unknown.contains(&operation) {
                continue; // Which of two equal ones it was makes no difference.
            } else {
                unknown.push(operation);
            }
            let (mut next, answer, changed) = possible.after(operation);
            if in_flight || changed {
                next.todo.remove(id);
                if in_flight {
                    next.done.insert(*id, answer);
                } else {
                    next.unknown_made += 1;
                }
                steps.push((next, changed));
            }
        }
        for lease in self.leases.all() {
            let matters = leases.contains(&lease) || possible.has_keys(lease);
            if matters && possible.alive(lease) && self.leases.may_have_ended(lease) {
                let (mut next, _, changed) = possible.after(&Operation::Revoke(lease));
                next.leases_ended += 1;
                steps.push((next, changed));
            }
        }
        steps
    }

    /// Throws out what is said twice, and fails when nothing is left.
    fn settle(&mut self, before: &[Possible], what: impl Fn() -> String) -> Checked {
        if self.possible.is_empty() {
            let states: Vec<String> = before.iter().take(3).map(shown).collect();
            return Err(self.violation(&format!(
                "no state explains {}\nof {} possible ones, as:\n{}",
                what(),
                before.len(),
                states.join("\n")
            )));
        }
        let possible = std::mem::take(&mut self.possible);
        let may_end = |lease| self.leases.may_have_ended(lease);
        let mut kept: HashMap<u64, Vec<Possible>> = HashMap::new();
        for mut possible in possible {
            let spent =
                |id: &Id| !self.in_flight.contains(id) && possible.is_spent(&self.operations[id].0);
            let spent: Vec<Id> = possible.todo.iter().copied().filter(spent).collect();
            for id in spent {
                possible.todo.remove(&id);
            }
            let alike = kept.entry(possible.hash()).or_default();
            if !alike.iter().any(|o| o.can_become(&possible, may_end)) {
                alike.retain(|other| !possible.can_become(other, may_end));
                alike.push(possible);
            }
        }
        let mut kept: Vec<Possible> = kept.into_values().flatten().collect();
        // Not the order of a hash table: the first one is what clients go by.
        kept.sort_by_key(|possible| (possible.revision(), possible.hash()));
        self.possible = kept;
        self.met.most_states = self.met.most_states.max(self.possible.len());
        if self.possible.len() > MOST {
            return Err(self.violation("too many states are possible"));
        }
        Ok(())
    }

    fn forget(&mut self, id: Id) {
        for possible in &mut self.possible {
            possible.todo.remove(&id);
        }
    }
}

fn fit(possible: &Possible, id: Id, operation: &Operation, answer: &BackendResult<Answer>) -> Fit {
    if let Some(made) = possible.done.get(&id) {
        if !alike(made, answer) {
            return Fit::Never;
        }
        let mut next = possible.clone();
        next.done.remove(&id);
        return Fit::Inert(next);
    }
    let (mut next, made, changed) = possible.after(operation);
    if !alike(&made, answer) {
        return if is_past(possible, answer) {
            Fit::Never
        } else {
            Fit::Not
        };
    }
    next.todo.remove(&id);
    if changed {
        Fit::Changed(next)
    } else {
        Fit::Inert(next)
    }
}

/// Equal, but for the words of a refusal.
fn alike(one: &BackendResult<Answer>, other: &BackendResult<Answer>) -> bool {
    match (one, other) {
        (Err(BackendError::Rejected(_)), Err(BackendError::Rejected(_))) => true,
        _ => one == other,
    }
}

/// The revision at which an answer was given, if it says so.
fn revision_of(answer: &BackendResult<Answer>) -> Option<Revision> {
    match answer {
        Ok(
            Answer::Txn(TxnOutcome::Applied { revision, .. })
            | Answer::Batch(BatchOutcome::Judged { revision, .. }),
        ) => Some(*revision),
        _ => None,
    }
}

/// Whether an answer that does not fit this state tells of a revision that has passed in it.
fn is_past(possible: &Possible, answer: &BackendResult<Answer>) -> bool {
    match answer {
        Ok(Answer::Page(page)) => page.revision <= possible.revision(),
        Ok(
            Answer::Txn(TxnOutcome::Conflict { seen })
            | Answer::Batch(BatchOutcome::GuardFailed { seen }),
        ) => seen
            .iter()
            .flatten()
            .any(|entry| entry.modified <= possible.revision() && !possible.stands(entry)),
        _ => false,
    }
}

fn shown(possible: &Possible) -> String {
    let leases: Vec<u64> = possible.model().leases().map(|l| l.0).collect();
    let entries: Vec<_> = possible.model().entries(&Span::prefix("")).collect();
    format!(
        "revision {} ({:x}), compacted to {}, leases {leases:?}, todo {:?}, done {:?}, {entries:?}",
        possible.revision(),
        possible.hash(),
        possible.compacted,
        possible.todo,
        possible.done
    )
}

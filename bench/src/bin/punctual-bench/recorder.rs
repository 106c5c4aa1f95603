//! Hears everything that happens in a namespace, from its first revision on, from whichever member
//! of the store says it first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use punctual::backend::{CoordinationBackend, Event, Revision, Span};
use punctual::control::RunKind;
use punctual::env::SharedEnv;
use punctual::job::record::{LeaderRecord, RunRecord, decode};
use punctual::job::run::RunState;
use punctual::keys::Keys;

/// What has been heard so far.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Everything until this revision.
    revision: Revision,
    /// Per job: instants in Unix milliseconds, and how many decisions each has.
    pub(crate) decisions: BTreeMap<String, BTreeMap<i64, u32>>,
    /// The newest instant decided, and when (by the recorder's clock) that was heard.
    pub(crate) newest: Option<(i64, i64)>,
    /// When each instant was first heard of as decided.
    pub(crate) first: BTreeMap<i64, i64>,
    /// Who leads, if somebody does.
    pub(crate) leader: Option<String>,
}

/// Listens beside everything else.
pub(crate) struct Recorder {
    heard: Arc<Mutex<Heard>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Recorder {
    /// From the first revision of a namespace that does not exist yet. Each of `members` tells
    /// everything in order, so the first to tell a revision has told all before it.
    pub(crate) fn start(
        members: Vec<Arc<dyn CoordinationBackend>>,
        env: &SharedEnv,
        namespace: &str,
        from: Revision,
    ) -> Self {
        let heard = Arc::new(Mutex::new(Heard {
            revision: Revision(from.0.saturating_sub(1)),
            ..Heard::default()
        }));
        let listen = |member| {
            let (keys, out, env) = (Keys::new(namespace), heard.clone(), env.clone());
            let span = Span::prefix(format!("/{namespace}/"));
            tokio::spawn(async move { listen(member, &env, &keys, &span, from, &out).await })
        };
        let tasks = members.into_iter().map(listen).collect();
        Self { heard, tasks }
    }

    /// What was heard, under a lock.
    pub(crate) fn heard<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn listen(
    member: Arc<dyn CoordinationBackend>,
    env: &SharedEnv,
    keys: &Keys,
    span: &Span,
    from: Revision,
    out: &Mutex<Heard>,
) {
    let mut next = from;
    loop {
        if let Ok(mut watch) = member.watch(span, next).await {
            while let Ok(changes) = watch.next().await {
                let now_ms = env.wall_ms();
                next = Revision(changes.revision.0 + 1);
                let mut heard = out.lock().unwrap_or_else(PoisonError::into_inner);
                if heard.revision < changes.revision {
                    heard.revision = changes.revision;
                    for event in &changes.events {
                        note(&mut heard, keys, event, now_ms);
                    }
                }
            }
        }
        // The member is away for a moment: nothing is lost, the watch resumes where it was.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn note(heard: &mut Heard, keys: &Keys, event: &Event, now_ms: i64) {
    if event.key() == keys.leader() {
        heard.leader = match event {
            Event::Put(entry) => decode::<LeaderRecord>(&entry.value)
                .ok()
                .map(|record| record.owner.node),
            Event::Delete { .. } => None,
        };
    }
    let Event::Put(entry) = event else { return };
    if entry.created != entry.modified || keys.parse_attempt(&entry.key).is_none() {
        return;
    }
    let Ok(record) = decode::<RunRecord>(&entry.value) else {
        return;
    };
    let decision = match record.state {
        RunState::Pending => record.attempt == 1,
        state => state == RunState::Skipped,
    };
    if record.kind != RunKind::Scheduled || !decision {
        return;
    }
    let instants = heard.decisions.entry(record.job).or_default();
    *instants.entry(record.scheduled_ms).or_default() += 1;
    heard.first.entry(record.scheduled_ms).or_insert(now_ms);
    if heard
        .newest
        .is_none_or(|(newest, _)| newest < record.scheduled_ms)
    {
        heard.newest = Some((record.scheduled_ms, now_ms));
    }
}

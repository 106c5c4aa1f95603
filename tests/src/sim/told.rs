//! Who is told of runs in a simulation: receivers that refuse, answer late or not at all, and take what
//! they do not answer. Drawn from a branch of its own.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, NotifyEvent, NotifySpec};
use punctual::keys::fnv1a;
use punctual::notify::{Message, NotTaken, Notifier};

use super::executor::{Executor, Proc};
use super::rng::Rng;
use super::schedule::Op;

/// A message that a receiver took, whether or not the sender heard of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    /// Who sent it.
    pub proc: Proc,
    /// When it came.
    pub at_ms: u64,
    /// Names the event.
    pub id: String,
    /// What happened.
    pub event: NotifyEvent,
    /// Who was told.
    pub webhook: String,
    /// The run, as the body names it.
    pub run: String,
    /// Its attempt.
    pub attempt: u64,
    /// Of the whole body.
    pub body: u64,
}

/// All that was taken, in order.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Told>>>);

impl Inbox {
    /// Takes what is in it.
    #[must_use]
    pub fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A node's way to the receivers.
pub struct Receivers {
    /// Time.
    pub executor: Executor,
    /// Who sends.
    pub proc: Proc,
    /// Where what they took is written down.
    pub inbox: Inbox,
    /// Their moods.
    pub rng: Mutex<Rng>,
    /// From then on they take everything at once: half of the time to the healing, so that the
    /// longest wait is over by then.
    pub calm_from_ms: u64,
}

/// What a receiver does with a message.
enum Mood {
    Takes,
    TakesSlowly(u64),
    TakesAndIsSilent,
    Refuses,
    IsSilent,
}

impl Receivers {
    fn mood(&self) -> Mood {
        if self.executor.now_ms() >= self.calm_from_ms {
            return Mood::Takes;
        }
        let mut rng = self.rng.lock().unwrap();
        match rng.range(0, 10) {
            0..5 => Mood::Takes,
            5 => Mood::TakesSlowly(rng.range(100, 6_000)),
            6 => Mood::TakesAndIsSilent,
            7 => Mood::IsSilent,
            _ => Mood::Refuses,
        }
    }

    fn take(&self, message: &Message) {
        let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(body["id"], message.id);
        self.inbox.0.lock().unwrap().push(Told {
            proc: self.proc,
            at_ms: self.executor.now_ms(),
            id: message.id.clone(),
            event: message.event,
            webhook: message.webhook.clone(),
            run: body["run"]["run_id"].as_str().unwrap().to_owned(),
            attempt: body["run"]["attempt"].as_u64().unwrap(),
            body: fnv1a(&message.body),
        });
    }
}

#[async_trait]
impl Notifier for Receivers {
    async fn send(&self, message: &Message) -> Result<(), NotTaken> {
        let mood = self.mood();
        match mood {
            Mood::Takes => self.take(message),
            Mood::TakesSlowly(ms) => {
                self.executor.sleep_until(self.executor.now_ms() + ms).await;
                self.take(message);
            }
            Mood::TakesAndIsSilent => {
                self.take(message);
                std::future::pending::<()>().await;
            }
            Mood::IsSilent => std::future::pending::<()>().await,
            Mood::Refuses => return Err(NotTaken::Away("500".into())),
        }
        Ok(())
    }
}

/// Gives some of the jobs receivers.
pub fn widen(rng: &mut Rng, ops: &mut [(u64, usize, Op)]) {
    for (_, _, op) in ops.iter_mut() {
        match op {
            Op::Put(spec) => tell(rng, spec),
            Op::Apply(specs) => specs.iter_mut().for_each(|spec| tell(rng, spec)),
            _ => {}
        }
    }
}

fn tell(rng: &mut Rng, spec: &mut JobSpec) {
    if !rng.permille(350) {
        return;
    }
    let late_after = Some(Millis::from_secs(rng.range(1, 12)));
    for receiver in 0..rng.range(1, 3) {
        let on: Vec<NotifyEvent> = NotifyEvent::ALL
            .into_iter()
            .filter(|_| rng.permille(700))
            .collect();
        if on.is_empty() {
            continue;
        }
        spec.notify.push(NotifySpec {
            webhook: format!("https://{receiver}.example.org/{}", spec.id),
            late_after: late_after.filter(|_| on.contains(&NotifyEvent::Late)),
            on,
        });
    }
}

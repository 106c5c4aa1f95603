//! A single-threaded executor with virtual time.
//!
//! Which of the ready tasks goes next is drawn from the seed; time moves only when no task is
//! ready, straight to the next timer. The ready tasks are a *set* ordered by number, not a queue,
//! so the order in which a channel wakes its waiters (some channels draw that at random) has no
//! influence: the same seed gives the same history.
//!
//! A task belongs to a *process*. A process can be paused (its tasks stand still while time goes
//! on, as under SIGSTOP) and killed (its tasks are dropped, as by a crash).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use punctual::env::BoxFuture;

use super::rng::Rng;

/// A life of a node, or the world.
pub type Proc = u32;

/// What belongs to no node: the store, the network, the operators' own machines.
pub const WORLD: Proc = 0;

/// So many polls without a step of time are a busy loop.
const MAX_POLLS_AN_INSTANT: u64 = 2_000_000;

/// A handle on the executor.
#[derive(Clone)]
pub struct Executor {
    /// Read far more often than anything else, so beside the lock. Moved by `run_until` alone.
    now_ms: Arc<AtomicU64>,
    state: Arc<Mutex<State>>,
    ready: Arc<Mutex<Ready>>,
}

#[derive(Default)]
struct Ready {
    tasks: Numbers,
    parked: BTreeMap<Proc, Numbers>,
}

/// A set of tasks, few at a time, in the order of their numbers.
#[derive(Default)]
struct Numbers(Vec<u64>);

impl Numbers {
    fn insert(&mut self, id: u64) {
        if let Err(place) = self.0.binary_search(&id) {
            self.0.insert(place, id);
        }
    }
}

struct State {
    next: u64,
    rng: Rng,
    tasks: BTreeMap<u64, Task>,
    timers: BTreeMap<(u64, u64), Waker>,
    polls: u64,
}

struct Task {
    proc: Proc,
    waker: Waker,
    /// `None` while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

struct TaskWaker {
    id: u64,
    proc: Proc,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = lock(&self.ready);
        match ready.parked.get_mut(&self.proc) {
            Some(parked) => parked.insert(self.id),
            None => ready.tasks.insert(self.id),
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// At time 0, with nothing to do.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self {
            now_ms: Arc::default(),
            state: Arc::new(Mutex::new(State {
                next: 1,
                rng,
                tasks: BTreeMap::new(),
                timers: BTreeMap::new(),
                polls: 0,
            })),
            ready: Arc::default(),
        }
    }

    /// Virtual milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    /// How many times a task was polled.
    #[must_use]
    pub fn polls(&self) -> u64 {
        lock(&self.state).polls
    }

    /// Starts a task; its number.
    pub fn spawn(&self, proc: Proc, future: BoxFuture<'static, ()>) -> u64 {
        let mut state = lock(&self.state);
        let id = state.next;
        state.next += 1;
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            proc,
            ready: self.ready.clone(),
        }));
        state.tasks.insert(
            id,
            Task {
                proc,
                waker: waker.clone(),
                future: Some(future),
            },
        );
        drop(state);
        waker.wake();
        id
    }

    /// Drops a task, if it is still there.
    pub fn abort(&self, id: u64) {
        let task = lock(&self.state).tasks.remove(&id);
        // What it holds may call back: not under our lock.
        drop(task);
    }

    /// Drops all tasks of a process.
    pub fn kill(&self, proc: Proc) {
        loop {
            let mut state = lock(&self.state);
            let ids: Vec<u64> = state
                .tasks
                .iter()
                .filter(|(_, task)| task.proc == proc)
                .map(|(id, _)| *id)
                .collect();
            let dead: Vec<Task> = ids.iter().filter_map(|id| state.tasks.remove(id)).collect();
            drop(state);
            // What is dropped may start a last task: once more, until there is none.
            if dead.is_empty() {
                break;
            }
        }
        lock(&self.ready).parked.remove(&proc);
    }

    /// Drops everything: tasks hold the executor, and would keep it and the whole world alive.
    pub fn clear(&self) {
        loop {
            let mut state = lock(&self.state);
            let tasks = std::mem::take(&mut state.tasks);
            let timers = std::mem::take(&mut state.timers);
            drop(state);
            if tasks.is_empty() && timers.is_empty() {
                return;
            }
        }
    }

    /// Lets the tasks of a process stand still.
    pub fn pause(&self, proc: Proc) {
        let state = lock(&self.state);
        let mut ready = lock(&self.ready);
        let (parked, going): (Vec<u64>, Vec<u64>) = std::mem::take(&mut ready.tasks.0)
            .into_iter()
            .partition(|id| state.tasks.get(id).is_some_and(|task| task.proc == proc));
        ready.tasks = Numbers(going);
        let already = ready.parked.entry(proc).or_default();
        parked.into_iter().for_each(|id| already.insert(id));
    }

    /// Lets them go on.
    pub fn resume(&self, proc: Proc) {
        let mut ready = lock(&self.ready);
        if let Some(parked) = ready.parked.remove(&proc) {
            parked.0.into_iter().for_each(|id| ready.tasks.insert(id));
        }
    }

    /// Completes at this virtual time, never before the next millisecond.
    pub fn sleep_until(&self, at_ms: u64) -> Sleep {
        Sleep {
            executor: self.clone(),
            at_ms: at_ms.max(self.now_ms() + 1),
            timer: None,
        }
    }

    /// Runs everything that happens up to and at `until_ms`.
    pub fn run_until(&self, until_ms: u64) {
        let mut polls = 0_u64;
        loop {
            while let Some(id) = self.choose() {
                self.poll(id);
                polls += 1;
                assert!(
                    polls < MAX_POLLS_AN_INSTANT,
                    "busy loop: time stands still at {} ms",
                    self.now_ms()
                );
            }
            polls = 0;
            if !self.advance(until_ms) {
                return;
            }
        }
    }

    fn choose(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let mut ready = lock(&self.ready);
        loop {
            if ready.tasks.0.is_empty() {
                return None;
            }
            let index = state.rng.index(ready.tasks.0.len());
            let id = ready.tasks.0.remove(index);
            if state.tasks.contains_key(&id) {
                return Some(id);
            }
        }
    }

    fn poll(&self, id: u64) {
        let mut state = lock(&self.state);
        state.polls += 1;
        let Some(task) = state.tasks.get_mut(&id) else {
            return;
        };
        let waker = task.waker.clone();
        let Some(mut future) = task.future.take() else {
            return;
        };
        drop(state);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = lock(&self.state);
        match done {
            Poll::Ready(()) => {
                let task = state.tasks.remove(&id);
                drop(state);
                drop((task, future));
            }
            Poll::Pending => match state.tasks.get_mut(&id) {
                Some(task) => task.future = Some(future),
                // Aborted while it was polled.
                None => {
                    drop(state);
                    drop(future);
                }
            },
        }
    }

    /// To the next timer; false when there is none up to `until_ms`.
    fn advance(&self, until_ms: u64) -> bool {
        let mut state = lock(&self.state);
        let now_ms = self.now_ms();
        let next = state.timers.keys().next().map(|(at, _)| *at);
        let Some(at) = next.filter(|at| *at <= until_ms) else {
            self.now_ms.store(now_ms.max(until_ms), Ordering::Relaxed);
            return false;
        };
        let now_ms = now_ms.max(at);
        self.now_ms.store(now_ms, Ordering::Relaxed);
        while let Some(timer) = state.timers.first_entry() {
            if timer.key().0 > now_ms {
                break;
            }
            // Our wakers only note the task as ready: they may be called under the lock.
            timer.remove().wake();
        }
        true
    }
}

/// Completes at its time.
pub struct Sleep {
    executor: Executor,
    at_ms: u64,
    /// Under which number its timer stands, and whom that wakes.
    timer: Option<(u64, Waker)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.executor.now_ms() >= self.at_ms {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if matches!(&self.timer, Some((_, known)) if known.will_wake(waker)) {
            return Poll::Pending;
        }
        let mut state = lock(&self.executor.state);
        let number = match &self.timer {
            Some((number, _)) => *number,
            None => {
                state.next += 1;
                state.next
            }
        };
        let old = state.timers.insert((self.at_ms, number), waker.clone());
        drop(state);
        drop(old);
        self.timer = Some((number, waker.clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((number, _)) = &self.timer {
            let timer = (self.at_ms, *number);
            let waker = lock(&self.executor.state).timers.remove(&timer);
            drop(waker);
        }
    }
}

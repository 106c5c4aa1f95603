//! A single-threaded executor with virtual time.
//!
//! Which of the ready tasks goes next is drawn from the seed; time moves only when no task is
//! ready, straight to the next timer. The ready tasks are a *set* ordered by number, not a queue,
//! so the order in which a channel wakes its waiters (some channels draw that at random) has no
//! influence: the same seed gives the same history.
//!
//! A task belongs to a *process*. A process can be paused (its tasks stand still while time goes
//! on, as under SIGSTOP) and killed (its tasks are dropped, as by a crash).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
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
    state: Arc<Mutex<State>>,
    ready: Arc<Mutex<Ready>>,
}

#[derive(Default)]
struct Ready {
    tasks: BTreeSet<u64>,
    parked: BTreeMap<Proc, BTreeSet<u64>>,
}

struct State {
    now_ms: u64,
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
            state: Arc::new(Mutex::new(State {
                now_ms: 0,
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
        lock(&self.state).now_ms
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
        let (parked, going): (BTreeSet<u64>, BTreeSet<u64>) = ready
            .tasks
            .iter()
            .partition(|id| state.tasks.get(id).is_some_and(|task| task.proc == proc));
        ready.tasks = going;
        ready.parked.entry(proc).or_default().extend(parked);
    }

    /// Lets them go on.
    pub fn resume(&self, proc: Proc) {
        let mut ready = lock(&self.ready);
        if let Some(parked) = ready.parked.remove(&proc) {
            ready.tasks.extend(parked);
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
            if ready.tasks.is_empty() {
                return None;
            }
            let index = state.rng.index(ready.tasks.len());
            let id = *ready.tasks.iter().nth(index)?;
            ready.tasks.remove(&id);
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
        let next = state.timers.keys().next().map(|(at, _)| *at);
        let Some(at) = next.filter(|at| *at <= until_ms) else {
            state.now_ms = state.now_ms.max(until_ms);
            return false;
        };
        state.now_ms = state.now_ms.max(at);
        let later = state.timers.split_off(&(at + 1, 0));
        let due = std::mem::replace(&mut state.timers, later);
        drop(state);
        due.into_values().for_each(Waker::wake);
        true
    }
}

/// Completes at its time.
pub struct Sleep {
    executor: Executor,
    at_ms: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = self.executor.clone();
        let mut state = lock(&executor.state);
        if state.now_ms >= self.at_ms {
            return Poll::Ready(());
        }
        let timer = self.timer.unwrap_or_else(|| {
            state.next += 1;
            (self.at_ms, state.next)
        });
        state.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let waker = lock(&self.executor.state).timers.remove(&timer);
            drop(waker);
        }
    }
}

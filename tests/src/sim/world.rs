//! A simulation: nodes, store, wire, operators; and the hand that breaks them.

mod hand;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual::backend::{BackendError, Txn};
use punctual::cancel::{CancelToken, Canceller};
use punctual::clock::FireClock;
use punctual::control::Control;
use punctual::env::{BoxFuture, SharedEnv};
use punctual::handler::Executors;
use punctual::job::run::Owner;
use punctual::keys::Keys;
use punctual::model::Retention;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;

use super::clock::{NodeClock, SimEnv};
use super::executor::{Executor, Proc, WORLD};
use super::faults::Link;
use super::fingerprint::fingerprint;
use super::late_writes::LateWrites;
use super::ledger::{Effect, Ledger, Work};
use super::naive::{self, NaiveNode};
use super::operator::{Asked, Desk};
use super::rng::Rng;
use super::schedule::{Fault, Op, Plan};
use super::spool::MemorySpool;
use super::tap::{Logged, Tap};
use super::told::{Inbox, Receivers, Told};
use super::wire::{Counts, Wire};
use super::wire_watch::SeenHeads;
use super::workload::HANDLER;

/// The namespace of every simulation.
pub const NAMESPACE: &str = "sim";

/// A life of a node.
#[derive(Clone, Debug)]
pub struct Life {
    /// Which node.
    pub node: usize,
    /// As the product names it.
    pub owner: Owner,
    /// From when to when (of its process).
    pub from_ms: u64,
    /// `None`: it lives at the end.
    pub until_ms: Option<u64>,
    /// When it stood still.
    pub paused: Vec<(u64, u64)>,
    /// Whether `Node::run` came back although nobody had asked.
    pub gave_up: Option<String>,
}

/// Everything that was observed.
#[derive(Debug)]
pub struct Observed {
    /// What was run.
    pub plan: Plan,
    /// The log was heard by a watch on a real store: who wrote is not known, and times are those
    /// at which it was heard.
    pub by_watch: bool,
    /// The store's log.
    pub log: Vec<Logged>,
    /// What the code did.
    pub effects: Vec<Effect>,
    /// What receivers of events took.
    pub told: Vec<Told>,
    /// What operators did.
    pub asked: Vec<Asked>,
    /// The lives of the nodes, by process.
    pub lives: BTreeMap<Proc, Life>,
    /// Faults that happened, by kind.
    pub counts: BTreeMap<&'static str, u64>,
    /// Of all of the above.
    pub fingerprint: u64,
    /// Polls of the executor.
    pub polls: u64,
    /// Claims of runs that somebody else had claimed already.
    pub claim_conflicts: u64,
    /// Leaders' writes that were refused because they lead no more.
    pub fenced_writes: u64,
}

/// Lives until it is told to leave.
type LifeOfNode = BoxFuture<'static, Result<(), BackendError>>;

struct Slot {
    clock: Arc<NodeClock>,
    link: Arc<Link>,
    proc: Option<Proc>,
    stop: Option<Canceller>,
    leaving: bool,
    control: Arc<Control>,
    spool: Arc<MemorySpool>,
    lives: u64,
}

/// A node that is about to live.
struct Born {
    owner: Owner,
    /// The clock that its operators believe.
    believed: Arc<FireClock>,
    life: LifeOfNode,
}

enum Event {
    Start(usize),
    Fault(Fault),
    Op(usize, Op),
    Resume(Proc),
    /// With a clock so far off.
    StartWrong(usize, i64),
    /// A record that somebody spoilt.
    PutBack(Vec<u8>, Vec<u8>),
    Heal,
}

struct World<'a> {
    plan: &'a Plan,
    root: Rng,
    executor: Executor,
    store: MemoryBackend,
    tap: Tap,
    counts: Counts,
    claim_conflicts: Arc<AtomicU64>,
    fenced_writes: Arc<AtomicU64>,
    late: LateWrites,
    ledger: Ledger,
    inbox: Inbox,
    desk: Desk,
    slots: Vec<Slot>,
    lives: Arc<Mutex<BTreeMap<Proc, Life>>>,
    next_proc: Proc,
    /// By time, then by order of arrival.
    agenda: BTreeMap<(u64, u64), Event>,
    arrivals: u64,
}

/// Runs a plan.
#[must_use]
pub fn simulate(plan: &Plan) -> Observed {
    let root = Rng::new(plan.seed);
    let executor = Executor::new(root.branch("executor", 0));
    let store_clock = NodeClock::exact(plan.epoch_ms);
    let store_env = SimEnv::shared(
        executor.clone(),
        WORLD,
        store_clock,
        root.branch("store", 0),
    );
    let everything = Retention {
        revisions: usize::MAX,
        bytes: usize::MAX,
    };
    let store = MemoryBackend::with_retention(store_env, everything);
    let mut world = World {
        plan,
        root,
        tap: Tap::new(executor.clone(), &store),
        executor,
        store,
        counts: Counts::default(),
        claim_conflicts: Arc::default(),
        fenced_writes: Arc::default(),
        late: LateWrites::default(),
        ledger: Ledger::default(),
        inbox: Inbox::default(),
        desk: Desk::default(),
        slots: Vec::new(),
        lives: Arc::default(),
        next_proc: WORLD + 1,
        agenda: BTreeMap::new(),
        arrivals: 0,
    };
    world.prepare();
    world.go();
    world.observed()
}

impl World<'_> {
    fn at(&mut self, ms: u64, event: Event) {
        self.arrivals += 1;
        self.agenda.insert((ms, self.arrivals), event);
    }

    fn prepare(&mut self) {
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let clock = Arc::new(NodeClock {
                epoch_ms: self.plan.epoch_ms,
                mono_base_ms: node.mono_base_ms,
                drift_ppm: node.drift_ppm,
                offset_ms: AtomicI64::new(node.offset_ms),
            });
            let windows = self
                .plan
                .faults
                .iter()
                .filter_map(|(_, fault)| match fault {
                    Fault::Link { node, window } if *node == index => Some(*window),
                    _ => None,
                });
            let link = Arc::new(Link {
                windows: windows.collect(),
            });
            // A node that has never been there changes nothing.
            let env = self.env(WORLD, &clock, &self.root);
            let believed = Arc::new(FireClock::unconfirmed(env, 2_000));
            let control = self.control(index, WORLD, &clock, &link, 0, believed);
            self.slots.push(Slot {
                clock,
                link,
                proc: None,
                stop: None,
                leaving: false,
                control,
                spool: Arc::default(),
                lives: 0,
            });
            self.at(node.start_ms, Event::Start(index));
        }
        for (at, fault) in &self.plan.faults {
            self.at(*at, Event::Fault(fault.clone()));
        }
        for (at, node, op) in &self.plan.ops {
            self.at(*at, Event::Op(*node, op.clone()));
        }
        self.at(self.plan.heal_ms, Event::Heal);
    }

    fn go(&mut self) {
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            if at > self.plan.end_ms {
                break;
            }
            self.executor.run_until(at);
            self.handle(event);
        }
        self.executor.run_until(self.plan.end_ms);
        self.drain_tap();
    }

    fn drain_tap(&self) {
        let _ = self.store.revision();
        self.tap.drain(None);
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(index) => {
                if self.slots[index].proc.is_none() {
                    self.set_clock_at_boot(index);
                }
                self.start(index);
            }
            Event::StartWrong(index, ms) => {
                if self.slots[index].proc.is_none() {
                    self.set_clock(index, ms);
                    self.start(index);
                }
            }
            Event::Fault(fault) => self.fault(&fault),
            Event::Op(index, op) => self.op(index, op),
            Event::Resume(proc) => self.resume(proc),
            Event::PutBack(key, value) => self.write(Txn::new().put(key, value)),
            Event::Heal => self.heal(),
        }
    }

    fn wire(&self, proc: Proc, link: &Arc<Link>, branch: &Rng) -> Arc<Wire> {
        Arc::new(Wire {
            executor: self.executor.clone(),
            store: self.store.clone(),
            tap: self.tap.clone(),
            proc,
            link: link.clone(),
            rng: Mutex::new(branch.branch("wire", 0)),
            counts: self.counts.clone(),
            claim_conflicts: self.claim_conflicts.clone(),
            fenced_writes: self.fenced_writes.clone(),
            ablation: self.plan.ablation,
            seen: SeenHeads::default(),
            late: self.late.clone(),
        })
    }

    fn control(
        &self,
        index: usize,
        proc: Proc,
        clock: &Arc<NodeClock>,
        link: &Arc<Link>,
        life: u64,
        believed: Arc<FireClock>,
    ) -> Arc<Control> {
        let branch = self
            .root
            .branch("control", index as u64)
            .branch("life", life);
        let env = self.env(proc, clock, &branch);
        let wire = self.wire(proc, link, &branch);
        Arc::new(Control::with_clock(wire, env, NAMESPACE, believed))
    }

    fn env(&self, proc: Proc, clock: &Arc<NodeClock>, branch: &Rng) -> SharedEnv {
        let rng = branch.branch("env", 0);
        SimEnv::shared(self.executor.clone(), proc, clock.clone(), rng)
    }

    fn start(&mut self, index: usize) {
        if self.slots[index].proc.is_some() {
            return;
        }
        let proc = self.next_proc;
        self.next_proc += 1;
        let slot = &self.slots[index];
        let (clock, link, life) = (slot.clock.clone(), slot.link.clone(), slot.lives + 1);
        let branch = self.root.branch("node", index as u64).branch("life", life);
        let env = self.env(proc, &clock, &branch);
        let work = Arc::new(Work {
            executor: self.executor.clone(),
            proc,
            ledger: self.ledger.clone(),
        });
        let wire = self.wire(proc, &link, &branch);
        let (stop, token) = Canceller::new();
        let Born {
            owner,
            believed,
            life: life_task,
        } = if self.plan.naive {
            self.naive_node(index, wire, env, work, token.clone())
        } else {
            self.node(index, wire, env, work, token.clone())
        };
        let life_of = Life {
            node: index,
            owner,
            from_ms: self.executor.now_ms(),
            until_ms: None,
            paused: Vec::new(),
            gave_up: None,
        };
        self.lives.lock().unwrap().insert(proc, life_of);
        let (lives, asked, executor) = (self.lives.clone(), token, self.executor.clone());
        self.executor.spawn(
            proc,
            Box::pin(async move {
                let answer = life_task.await;
                let mut lives = lives.lock().unwrap();
                let Some(life) = lives.get_mut(&proc) else {
                    return;
                };
                life.until_ms = Some(executor.now_ms());
                if !asked.is_cancelled() || answer.is_err() {
                    life.gave_up = Some(format!("{answer:?}"));
                }
            }),
        );
        let control = self.control(index, proc, &clock, &link, life, believed);
        let slot = &mut self.slots[index];
        slot.proc = Some(proc);
        slot.stop = Some(stop);
        slot.leaving = false;
        slot.lives = life;
        slot.control = control;
    }

    fn node(
        &self,
        index: usize,
        wire: Arc<Wire>,
        env: SharedEnv,
        work: Arc<Work>,
        stop: CancelToken,
    ) -> Born {
        let receivers = Receivers {
            executor: self.executor.clone(),
            proc: work.proc,
            inbox: self.inbox.clone(),
            rng: Mutex::new(self.root.branch("receivers", u64::from(work.proc))),
            calm_from_ms: self.plan.heal_ms / 2,
        };
        let mut executors = Executors::default();
        if self.plan.nodes[index].has_handler {
            executors.handlers.insert(HANDLER.into(), work);
        }
        let config = NodeConfig {
            node_id: format!("n{index}"),
            namespace: NAMESPACE.into(),
            slots: self.plan.nodes[index].slots,
            relist_ms: self.plan.relist_ms,
            overdue_takeover_ms: self.plan.overdue_takeover_ms,
            ..NodeConfig::default()
        };
        let config = self.plan.times.config(index, config);
        let config = self.plan.ablation.config(config);
        let node = Node::new(wire, env, executors, config)
            .expect("a valid configuration")
            .with_spool(self.slots[index].spool.clone())
            .with_notifier(Arc::new(receivers));
        Born {
            owner: node.owner().clone(),
            believed: node.clock(),
            life: Box::pin(node.run(stop)),
        }
    }

    fn naive_node(
        &self,
        index: usize,
        wire: Arc<Wire>,
        env: SharedEnv,
        work: Arc<Work>,
        stop: CancelToken,
    ) -> Born {
        let believed = Arc::new(FireClock::new(env.clone(), 2_000));
        let owner = Owner {
            node: format!("n{index}"),
            incarnation: format!("{:016x}", env.random_u64()),
        };
        let node = NaiveNode {
            wire,
            env,
            work,
            owner: owner.clone(),
            keys: Keys::new(NAMESPACE),
        };
        let life = async move {
            node.run(stop).await;
            Ok(())
        };
        Born {
            owner,
            believed,
            life: Box::pin(life),
        }
    }

    /// A machine that starts asks a time server first: alone, or among others in trouble, nobody could
    /// tell that it is wrong. For those that do not, see [`super::boots`].
    fn set_clock_at_boot(&self, index: usize) {
        let offset = &self.slots[index].clock.offset_ms;
        let planned = self.plan.nodes[index].offset_ms;
        if (offset.load(Ordering::SeqCst) - planned).abs() > 2_000 {
            self.set_clock(index, 0);
        }
    }

    fn offset_ms(&self, index: usize) -> i64 {
        self.slots[index].clock.offset_ms.load(Ordering::SeqCst)
    }

    /// Sets a clock so far ahead of where it was at the start.
    fn set_clock(&self, index: usize, ms: i64) {
        let offset = self.plan.nodes[index].offset_ms + ms;
        let clock = &self.slots[index].clock;
        clock.offset_ms.store(offset, Ordering::SeqCst);
    }

    /// The process is gone, whatever it was doing.
    fn kill(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.stop = None;
        let Some(proc) = slot.proc.take() else { return };
        self.executor.kill(proc);
        let now = self.executor.now_ms();
        if let Some(life) = self.lives.lock().unwrap().get_mut(&proc) {
            life.until_ms.get_or_insert(now);
            hand::close_pause(life, now);
        }
    }

    fn op(&mut self, index: usize, op: Op) {
        if self.plan.naive {
            let now_ms = self.plan.epoch_ms + self.executor.now_ms().cast_signed();
            naive::operate(&self.store, &op, now_ms);
            self.drain_tap();
            return;
        }
        let slot = &self.slots[index];
        let task = self.desk.clone().ask(
            self.executor.clone(),
            self.store.clone(),
            slot.control.clone(),
            op,
            self.plan.epoch_ms,
        );
        self.executor
            .spawn(slot.proc.unwrap_or(WORLD), Box::pin(task));
    }

    /// Everything works again, and all nodes are there.
    fn heal(&mut self) {
        for index in 0..self.slots.len() {
            if let Some(proc) = self.slots[index].proc {
                self.resume(proc);
                let leaving = self.slots[index].leaving;
                let over = self.lives.lock().unwrap()[&proc].until_ms.is_some();
                if leaving || over {
                    self.kill(index);
                }
            }
            self.set_clock(index, 0);
            self.start(index);
        }
    }

    fn observed(self) -> Observed {
        let mut observed = Observed {
            plan: self.plan.clone(),
            by_watch: false,
            log: self.tap.take(),
            effects: self.ledger.take(),
            told: self.inbox.take(),
            asked: self.desk.take(),
            lives: std::mem::take(&mut self.lives.lock().unwrap()),
            counts: std::mem::take(&mut self.counts.lock().unwrap()),
            fingerprint: 0,
            polls: self.executor.polls(),
            claim_conflicts: self.claim_conflicts.load(Ordering::SeqCst),
            fenced_writes: self.fenced_writes.load(Ordering::SeqCst),
        };
        self.executor.clear();
        observed.fingerprint = fingerprint(&observed);
        observed
    }
}

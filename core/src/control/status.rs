//! The cluster at a glance.

use crate::job::record::{ClockRecord, LeaderRecord, NodeRecord, RunRecord, decode};
use crate::job::run::{Owner, RunState};
use crate::leader::partition::{Damage, Partition};
use crate::plan::first_undecided;
use crate::time::rfc3339_ms;

use super::Control;
use super::types::{ControlError, DamagedPartition, NodeObject, StatusObject};

/// An instant is overdue when it is not decided so long after its time.
const OVERDUE_MS: i64 = 1_000;
const COUNT_LIMIT: u64 = 10_000;

struct Backlog {
    jobs: u64,
    undecided_instants: u64,
    cursor_lag_ms: u64,
    damaged_partitions: Vec<DamagedPartition>,
}

impl Control {
    /// Leader, nodes, counts. Reads every job: for people and their dashboards, not for loops.
    ///
    /// # Errors
    /// [`ControlError::Store`].
    pub async fn status(&self, store: String) -> Result<StatusObject, ControlError> {
        let meta = self.meta().await?;
        let leader_entry = self.store.get(&self.keys.leader()).await?;
        let term = leader_entry.as_ref().map(|entry| entry.created.0);
        let leader: Option<Owner> = leader_entry
            .and_then(|entry| decode::<LeaderRecord>(&entry.value).ok())
            .map(|record| record.owner);
        let nodes = self.nodes(leader.as_ref()).await?;

        let (runs, _) = self.store.list(&self.keys.runs(), None).await?;
        let mut counts = [0_u64; 3];
        for record in runs
            .iter()
            .filter_map(|e| decode::<RunRecord>(&e.value).ok())
        {
            match record.state {
                RunState::Pending => counts[0] += 1,
                RunState::Locked => counts[1] += 1,
                RunState::Running => counts[2] += 1,
                _ => {}
            }
        }
        let Backlog {
            jobs,
            undecided_instants,
            cursor_lag_ms,
            damaged_partitions,
        } = self.backlog(meta.partitions).await?;
        Ok(StatusObject {
            store,
            cluster_id: meta.cluster_id,
            tzdb: meta.tzdb,
            leader: leader.map(|owner| owner.node),
            term,
            nodes,
            jobs,
            pending: counts[0],
            locked: counts[1],
            running: counts[2],
            undecided_instants,
            cursor_lag_ms,
            damaged_partitions,
        })
    }

    /// The live nodes.
    ///
    /// # Errors
    /// [`ControlError::Store`].
    pub async fn live_nodes(&self) -> Result<Vec<NodeObject>, ControlError> {
        let leader = self.store.get(&self.keys.leader()).await?;
        let leader = leader
            .and_then(|entry| decode::<LeaderRecord>(&entry.value).ok())
            .map(|record| record.owner);
        self.nodes(leader.as_ref()).await
    }

    async fn nodes(&self, leader: Option<&Owner>) -> Result<Vec<NodeObject>, ControlError> {
        let (entries, _) = self.store.list(&self.keys.nodes(), None).await?;
        let drained = self.drained().await?;
        let (clocks, _) = self.store.list(&self.keys.clocks(), None).await?;
        let clock = |owner: &Owner| {
            let key = self.keys.clock(&owner.node);
            let entry = clocks.iter().find(|entry| entry.key == key)?;
            let record: ClockRecord = decode(&entry.value).ok()?;
            Some(record).filter(|record| record.incarnation == owner.incarnation)
        };
        Ok(entries
            .iter()
            .filter_map(|entry| {
                let (node, incarnation) = self.keys.parse_node(&entry.key)?;
                let record: NodeRecord = decode(&entry.value).ok()?;
                let owner = Owner { node, incarnation };
                let clock = clock(&owner);
                Some(NodeObject {
                    leader: leader == Some(&owner),
                    drained: drained.contains(&owner.node),
                    node: owner.node,
                    incarnation: owner.incarnation,
                    tzdb: record.tzdb,
                    slots: record.slots,
                    queues: record.queues,
                    handlers: record.handlers,
                    commands: record.commands,
                    http: record.http,
                    since: rfc3339_ms(record.since_ms),
                    address: record.address,
                    clock_ahead_ms: clock.as_ref().and_then(|clock| clock.ahead_ms),
                    clock_held: clock.and_then(|clock| clock.held),
                })
            })
            .collect())
    }

    /// Jobs, overdue instants, the age of the oldest of them, and what cannot be read.
    async fn backlog(&self, partitions: u16) -> Result<Backlog, ControlError> {
        let overdue = self.now_ms() - OVERDUE_MS;
        let (mut jobs, mut count, mut oldest) = (0, 0, None::<i64>);
        let mut damaged_partitions = Vec::new();
        for number in 0..partitions {
            let partition = match Partition::load(&self.store, &self.keys, number).await? {
                Ok(partition) => partition,
                Err(Damage { what, .. }) => {
                    damaged_partitions.push(DamagedPartition {
                        partition: number,
                        what,
                    });
                    continue;
                }
            };
            jobs += partition.jobs.len() as u64;
            for job in partition.jobs.values() {
                let mut position = partition.cursor.position.clone();
                while count < COUNT_LIMIT
                    && let Some(at) = first_undecided(job, &position).filter(|at| *at <= overdue)
                {
                    count += 1;
                    oldest = Some(oldest.map_or(at, |oldest| oldest.min(at)));
                    position = crate::job::record::Position::end_of(at);
                }
            }
        }
        let lag = oldest.map_or(0, |oldest| self.now_ms() - oldest);
        Ok(Backlog {
            jobs,
            undecided_instants: count,
            cursor_lag_ms: u64::try_from(lag).unwrap_or(0),
            damaged_partitions,
        })
    }
}

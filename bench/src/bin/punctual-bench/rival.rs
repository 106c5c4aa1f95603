//! What the product is compared with, on the same etcd: the articles' design, and the store itself.
//!
//! *Baseline*: for each fire one transaction that creates the run if it is absent; for each run two
//! plain puts more (RUNNING, then the end); 64 at a time, each a request of its own.
//!
//! *Ceiling*: plain puts under one fence, as many a request and of as many bytes as the product
//! wrote, and as many requests in flight as it had: what is left for a scheduler to lose.

use std::time::Instant;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

/// Requests in flight of the baseline.
pub(crate) const AT_ONCE: usize = 64;
/// Puts in one nested transaction of the ceiling; etcd takes 128.
const PUTS_A_TXN: usize = 100;

/// One connection to etcd.
pub(crate) struct Rival {
    client: Client,
    prefix: String,
    round: usize,
}

impl Rival {
    /// Writes below `prefix`.
    pub(crate) async fn connect(etcd: &str, prefix: &str) -> Result<Self, String> {
        let endpoints: Vec<&str> = etcd.split(',').collect();
        let client = Client::connect(endpoints, None).await.map_err(text)?;
        Ok(Self {
            client,
            prefix: prefix.to_owned(),
            round: 0,
        })
    }

    fn next_round(&mut self) -> String {
        self.round += 1;
        format!("{}/{}", self.prefix, self.round)
    }

    /// Runs a second: create if absent, and, if `whole`, the two puts that follow.
    pub(crate) async fn baseline(
        &mut self,
        runs: usize,
        bytes: usize,
        whole: bool,
    ) -> Result<f64, String> {
        let place = self.next_round();
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for worker in 0..AT_ONCE {
            let (client, place) = (self.client.clone(), place.clone());
            tasks.push(tokio::spawn(async move {
                let value = vec![b'x'; bytes];
                for run in (worker..runs).step_by(AT_ONCE) {
                    let key = format!("{place}/run/{run:08}");
                    let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
                    let put = TxnOp::put(key.as_str(), value.clone(), None);
                    let txn = Txn::new().when([absent]).and_then([put]);
                    let mut kv = client.kv_client();
                    let answer = kv.txn(txn).await.map_err(text)?;
                    if !answer.succeeded() {
                        return Err("a run of the baseline was there already".to_owned());
                    }
                    if whole {
                        for _ in 0..2 {
                            let put = kv.put(key.as_str(), value.clone(), None).await;
                            put.map_err(text)?;
                        }
                    }
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await.map_err(text)??;
        }
        Ok(rate(runs, begun))
    }

    /// Puts a second.
    pub(crate) async fn ceiling(&mut self, shape: Shape) -> Result<f64, String> {
        let place = self.next_round();
        let fence = format!("{place}/fence");
        let mut kv = self.client.kv_client();
        kv.put(fence.as_str(), "", None).await.map_err(text)?;
        let begun = Instant::now();
        let mut tasks = Vec::new();
        for worker in 0..shape.in_flight {
            let (mut kv, place, fence) = (self.client.kv_client(), place.clone(), fence.clone());
            tasks.push(tokio::spawn(async move {
                let value = vec![b'x'; shape.bytes];
                let firsts = (0..shape.puts).step_by(shape.a_request.max(1));
                for first in firsts.skip(worker).step_by(shape.in_flight) {
                    let end = (first + shape.a_request).min(shape.puts);
                    let numbers: Vec<usize> = (first..end).collect();
                    let parts: Vec<TxnOp> = numbers
                        .chunks(PUTS_A_TXN)
                        .map(|numbers| {
                            let key = |n: &usize| format!("{place}/run/{n:08}");
                            let put = |n| TxnOp::put(key(n), value.clone(), None);
                            let puts: Vec<TxnOp> = numbers.iter().map(put).collect();
                            TxnOp::txn(Txn::new().and_then(puts))
                        })
                        .collect();
                    let held = Compare::create_revision(fence.as_str(), CompareOp::Greater, 0);
                    let answer = kv.txn(Txn::new().when([held]).and_then(parts)).await;
                    if !answer.map_err(text)?.succeeded() {
                        return Err("the fence of the ceiling is gone".to_owned());
                    }
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await.map_err(text)??;
        }
        Ok(rate(shape.puts, begun))
    }
}

/// How the product wrote: the ceiling does the same without a scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) puts: usize,
    pub(crate) a_request: usize,
    pub(crate) bytes: usize,
    pub(crate) in_flight: usize,
}

impl Shape {
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn writes_a_run(&self, runs: usize) -> f64 {
        self.puts as f64 / runs.max(1) as f64
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn rate(count: usize, begun: Instant) -> f64 {
    count as f64 / begun.elapsed().as_secs_f64()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

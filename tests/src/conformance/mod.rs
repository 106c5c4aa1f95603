//! One table of cases that every store passes.
//!
//! Expected values are written by hand, not computed by the model: the model is held to them as
//! well. Cases state nothing that only a store of one's own can keep (such as revisions that
//! follow each other without a gap), so that the same table runs against an etcd with other
//! tenants. About half of the cases are about watch, where stores differ most.
//!
//! A case gets two handles on one empty store, `a` and `b`, and one on another store,
//! `elsewhere`, that must neither see nor be seen.

mod batch;
mod kit;
mod lease;
mod limits;
mod range;
mod txn;
mod watch;
mod watch_history;
mod watch_life;

use std::future::Future;
use std::sync::Arc;

use punctual::backend::{BackendResult, CoordinationBackend, Revision};
use punctual::env::{BoxFuture, SharedEnv};

/// A handle on a store.
pub type Store = Arc<dyn CoordinationBackend>;

/// Forgets the history of the store of `a` and `b` before a revision.
pub type Compact = Box<dyn Fn(Revision) -> BoxFuture<'static, BackendResult<()>> + Send + Sync>;

/// What a case works on.
pub struct Fixture {
    /// A handle on an empty store.
    pub a: Store,
    /// Another handle on the same store, as another node would hold it.
    pub b: Store,
    /// A handle on an unrelated store.
    pub elsewhere: Store,
    /// The clock that the stores live by, and that cases wait on.
    pub env: SharedEnv,
    /// How to compact.
    pub compact: Compact,
    /// Whatever must outlive the case: directories, servers.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is about.
    pub area: &'static str,
    /// What it claims.
    pub name: &'static str,
    /// Whether it compacts: then the whole store must be its own.
    pub compacts: bool,
    /// Runs it; panics when the claim does not hold.
    pub run: fn(Fixture) -> BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}::{}", self.area, self.name)
    }
}

/// All cases.
#[must_use]
pub fn table() -> Vec<Case> {
    [
        range::cases(),
        txn::cases(),
        batch::cases(),
        limits::cases(),
        lease::cases(),
        watch::cases(),
        watch_history::cases(),
        watch_life::cases(),
    ]
    .concat()
}

fn boxed(case: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
    Box::pin(case)
}

/// The rows of one area: functions of this module, those that compact after `compacting`.
macro_rules! cases {
    ($area:literal: $($name:ident),* ; compacting $($compacting:ident),* $(,)?) => {
        pub(super) fn cases() -> Vec<super::Case> {
            vec![
                $(super::Case {
                    area: $area,
                    name: stringify!($name),
                    compacts: false,
                    run: |fixture| super::boxed($name(fixture)),
                },)*
                $(super::Case {
                    area: $area,
                    name: stringify!($compacting),
                    compacts: true,
                    run: |fixture| super::boxed($compacting(fixture)),
                },)*
            ]
        }
    };
}
use cases;

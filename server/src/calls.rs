//! The calls of this node: counted, and refused before they are made where that can be told.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use punctual::handler::{Execution, HttpExecutor, RunContext};
use punctual::job::spec::{HttpSpec, JobSpec};
use punctual_server::exec::http::HttpCalls;

use crate::metrics::Metrics;

/// Calls URLs for runs.
pub(crate) struct NodeCalls {
    calls: HttpCalls,
    metrics: Arc<Metrics>,
}

impl NodeCalls {
    pub(crate) fn new(calls: HttpCalls, metrics: Arc<Metrics>) -> Self {
        Self { calls, metrics }
    }

    /// Why the node would not make the job's call.
    pub(crate) fn refusal(&self, spec: &JobSpec) -> Option<String> {
        self.calls.refusal(spec.run.http.as_ref()?)
    }
}

#[async_trait]
impl HttpExecutor for NodeCalls {
    async fn execute(&self, ctx: RunContext, call: HttpSpec) -> Execution {
        let (job, began) = (ctx.job_id.clone(), Instant::now());
        let ended = self.calls.execute(ctx, call).await;
        self.metrics
            .executed(&job, ended.failure.is_none(), began.elapsed());
        ended
    }
}

//! Stand-in until the engine is merged.
#![allow(missing_docs, clippy::unused_async)]
pub mod types;

use std::sync::Arc;

use crate::backend::CoordinationBackend;
use crate::env::SharedEnv;
use crate::job::spec::JobSpec;
pub use types::*;

#[derive(Clone, Copy, Debug)]
pub enum IfMatch {
    Absent,
    Revision(u64),
}

#[derive(Clone)]
pub struct Control;

fn busy<T>() -> Result<T, ControlError> {
    Err(ControlError::Busy("stand-in".into()))
}

impl Control {
    pub fn new(_: Arc<dyn CoordinationBackend>, _: SharedEnv, _: &str) -> Self {
        Self
    }
    pub async fn put_job(
        &self,
        _spec: JobSpec,
        _if_match: Option<IfMatch>,
    ) -> Result<(PutOutcome, JobObject), ControlError> {
        busy()
    }
    pub async fn plan_apply(&self, _: &[JobSpec], _: bool) -> Result<ApplyReport, ControlError> {
        busy()
    }
    pub async fn apply(
        &self,
        _: Vec<JobSpec>,
        _: bool,
        _: &(dyn Fn(usize, usize) + Send + Sync),
    ) -> Result<ApplyReport, ControlError> {
        busy()
    }
    pub async fn job(&self, _: &str) -> Result<JobObject, ControlError> {
        busy()
    }
    pub async fn jobs(
        &self,
        _: Option<&str>,
        _: usize,
    ) -> Result<PageOf<JobObject>, ControlError> {
        busy()
    }
    pub async fn delete_job(&self, _: &str, _: Option<u64>) -> Result<(), ControlError> {
        busy()
    }
    pub async fn pause_job(&self, _: &str, _: Option<String>) -> Result<JobObject, ControlError> {
        busy()
    }
    pub async fn resume_job(&self, _: &str) -> Result<JobObject, ControlError> {
        busy()
    }
    pub async fn trigger(
        &self,
        _: &str,
        _: Option<serde_json::Value>,
        _: &str,
    ) -> Result<RunObject, ControlError> {
        busy()
    }
    pub async fn runs(
        &self,
        _: &RunFilter,
        _: Option<&str>,
        _: usize,
    ) -> Result<PageOf<RunObject>, ControlError> {
        busy()
    }
    pub async fn run(&self, _: &str) -> Result<Vec<RunObject>, ControlError> {
        busy()
    }
    pub async fn cancel_run(&self, _: &str) -> Result<RunObject, ControlError> {
        busy()
    }
    pub async fn status(&self, _: String) -> Result<StatusObject, ControlError> {
        busy()
    }
}

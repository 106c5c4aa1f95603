//! One bad job rejects the whole apply, whatever it is that shows that it is bad.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use punctual::backend::CoordinationBackend;
use punctual::bootstrap::bootstrap;
use punctual::control::{Control, ControlError};
use punctual::env::TokioEnv;
use punctual::job::spec::JobSpec;
use punctual::keys::{Keys, partition_of};
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;

const NAMESPACE: &str = "all-or-nothing";
const PARTITIONS: u16 = 16;

async fn apply(control: &Control, specs: Vec<JobSpec>) -> Result<(), ControlError> {
    control.apply(specs, false, &|_, _| {}).await.map(drop)
}

// A job may have had so many values of `at` and no more, which only its record tells. It stands in the
// last partition, which is written last.
#[tokio::test]
async fn what_only_the_store_shows_is_found_before_the_first_write() {
    let env = TokioEnv::shared();
    let backend: Arc<dyn CoordinationBackend> = Arc::new(MemoryBackend::new(env.clone()));
    let store = Store::new(backend.clone(), env.clone(), 2_000);
    let meta = bootstrap(&store, &Keys::new(NAMESPACE)).await.unwrap();
    assert_eq!(meta.partitions, PARTITIONS);
    let control = Control::new(backend, env, NAMESPACE);

    let mut ids = (0..).map(|n| format!("once-{n}"));
    let last = ids.find(|id| partition_of(id, PARTITIONS) == PARTITIONS - 1);
    let id = last.unwrap();
    let once = |day: usize| {
        let mut once = JobSpec::handler(id.as_str(), "h");
        once.schedule.at = Some(format!(
            "2090-{:02}-{:02}T00:00:00Z",
            1 + day / 28,
            1 + day % 28
        ));
        once
    };
    for day in 0..64 {
        apply(&control, vec![once(day)]).await.unwrap();
    }
    let new = |n: usize| JobSpec::handler(format!("new-{n}"), "h").cron("0 5 * * *");
    let mut all: Vec<JobSpec> = (0..30).map(new).collect();
    all.push(once(64));
    let refused = apply(&control, all).await.unwrap_err();
    assert!(matches!(refused, ControlError::Invalid(_)), "{refused}");
    let absent = control.job("new-0").await.unwrap_err();
    assert!(matches!(absent, ControlError::NotFound(_)), "{absent}");
}

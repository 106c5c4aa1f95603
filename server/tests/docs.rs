//! Every job file that the documentation shows is a valid one. (Those of `docs/jobs.md` are run by
//! `cli/examples.rs`; the one about handlers is run here, since `serve` has none.)
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, RunFilter};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, HandlerError, RunContext};
use punctual::job::run::RunState;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;
use punctual_server::jobfile::{Format, JobFile, Source};

#[test]
fn the_job_files_of_the_documentation_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for page in ["README.md", "docs/jobs.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let yaml = block.split("```").next().unwrap();
            let file = dir.path().join(format!("{checked}.yaml"));
            std::fs::write(&file, yaml).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
                .arg("check")
                .arg(&file)
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{page}:\n{yaml}\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            checked += 1;
        }
    }
    assert!(checked >= 4, "only {checked} blocks: were they renamed?");
}

/// The example of `docs/jobs.md` about handlers, in a program that embeds a node.
#[tokio::test]
async fn the_example_of_handlers() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/jobs.md");
    let page = std::fs::read_to_string(page).unwrap();
    let below = page.split("## Handlers\n").nth(1).unwrap();
    let block = below.split("```yaml\n").nth(1).unwrap();
    let source = Source {
        name: "jobs.md".into(),
        format: Format::Yaml,
        text: block.split("```").next().unwrap().into(),
    };
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let config = NodeConfig::default();
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let greeted = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&greeted);
    let mut executors = Executors::default();
    executors.handlers.insert(
        "greet".into(),
        Arc::new(move |run: RunContext| {
            seen.lock().unwrap().push(run.payload["to"].clone());
            async { Ok::<(), HandlerError>(()) }
        }),
    );
    let node = Node::new(Arc::new(backend), env, executors, config).unwrap();
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    let patience = Instant::now() + Duration::from_secs(30);
    while control.status(String::new()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let file = JobFile::parse(&[source], 0);
    assert!(file.findings.is_empty(), "{:?}", file.findings);
    control.apply(file.jobs, false, &|_, _| {}).await.unwrap();
    let succeeded = RunFilter {
        job: Some("greetings".into()),
        states: vec![RunState::Success],
    };
    loop {
        let runs = control.runs(&succeeded, None, 10).await.unwrap();
        if runs.items.len() >= 2 {
            break;
        }
        assert!(Instant::now() < patience, "it did not run");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.stop(StopCause::Cancelled);
    life.await.unwrap().unwrap();
    let greeted = greeted.lock().unwrap();
    assert!(greeted.len() >= 2 && greeted.iter().all(|to| to == "world"));
}

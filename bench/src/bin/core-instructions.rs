//! Instructions of the pure steps that a run is made of, counted by valgrind's callgrind:
//! `cargo run --release -p punctual-bench --bin core-instructions`.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool talks on its streams"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use punctual::backend::{Requirement, Revision, Txn, TxnOutcome};
use punctual::control::types::RunKind;
use punctual::job::finish::{Attempt, claim};
use punctual::job::record::{CursorRecord, JobRecord, RunRecord, Segment, decode, encode};
use punctual::job::run::Owner;
use punctual::job::spec::JobSpec;
use punctual::job::{Definition, Job};
use punctual::keys::{AttemptKey, Keys};
use punctual::leader::fire::pending;
use punctual::model::{Model, Retention};
use punctual::plan::{DueIndex, first_undecided, plan};
use punctual_bench::AFTER_MS;
use punctual_bench::callgrind::instructions;

/// What is counted, and what one repetition of it is.
const STEPS: [(&str, &str); 6] = [
    (
        "plan",
        "a batch of 100 decisions, of 1,000 jobs that are due",
    ),
    (
        "transition",
        "the claim of a run: checked, and written as a transaction",
    ),
    ("encode", "a run's record to bytes"),
    ("decode", "the same back"),
    (
        "model put",
        "the pure store: a guarded put of a run's record, of 1,000",
    ),
    (
        "next",
        "the index of due jobs: one taken out and put back, of 1,000",
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [step, times] = &arguments[..] {
        return repeat(step, times.parse()?);
    }
    println!("| step | what | instructions |");
    println!("|---|---|---|");
    for (step, what) in STEPS {
        println!("| {step} | {what} | {} |", instructions(&[step])?);
    }
    Ok(())
}

fn repeat(step: &str, times: u64) -> Result<(), Box<dyn Error>> {
    let keys = Keys::new("bench");
    let attempt = attempt()?;
    let bytes = encode(&attempt.record);
    let owner = Owner {
        node: "n1".into(),
        incarnation: "0123456789abcdef".into(),
    };
    let (jobs, mut due) = jobs(1_000)?;
    let cursor = CursorRecord::starting_at(AFTER_MS);
    let mut model = Model::new(Retention::default());
    for n in 0..1_000 {
        let step = model.commit(&Txn::new().put(format!("/run/{n:04}"), bytes.clone()));
        applied(&step.answer?)?;
    }
    for n in 0..times {
        match step {
            "plan" => {
                let now_ms = AFTER_MS + 60_000;
                black_box(plan(&jobs, &due, black_box(&cursor), now_ms, 100));
            }
            "transition" => {
                black_box(claim(&keys, black_box(&attempt), &owner, 0, AFTER_MS)?);
            }
            "encode" => {
                black_box(encode(black_box(&attempt.record)));
            }
            "decode" => {
                black_box(decode::<RunRecord>(black_box(&bytes))?);
            }
            "model put" => {
                let key = format!("/run/{:04}", n % 1_000).into_bytes();
                let txn = Txn::new()
                    .require(Requirement::Modified(key.clone(), Revision(n + 2)))
                    .put(key, bytes.clone());
                applied(&black_box(model.commit(&txn).answer?))?;
            }
            "next" => {
                let id: Arc<str> = format!("job-{:04}", n % 1_000).into();
                due.set(&id, Some(AFTER_MS + 60_000));
            }
            _ => return Err(format!("no step is called {step}").into()),
        }
    }
    Ok(())
}

fn applied(outcome: &TxnOutcome) -> Result<(), String> {
    match outcome.applied() {
        Some(_) => Ok(()),
        None => Err("what is counted is a conflict".into()),
    }
}

type Jobs = BTreeMap<Arc<str>, Job>;

fn jobs(count: usize) -> Result<(Jobs, DueIndex), Box<dyn Error>> {
    let (mut jobs, mut due) = (Jobs::new(), DueIndex::default());
    for n in 0..count {
        let job = job(&format!("job-{n:04}"))?;
        let cursor = CursorRecord::starting_at(AFTER_MS);
        due.set(&job.id, first_undecided(&job, &cursor.position));
        jobs.insert(job.id.clone(), job);
    }
    Ok((jobs, due))
}

fn job(id: &str) -> Result<Job, Box<dyn Error>> {
    let spec = JobSpec::handler(id, "nothing").cron("* * * * *");
    let definition = Definition::decode(&encode(&spec), 0)?;
    Ok(Job {
        id: id.into(),
        uid: Revision(1),
        modified: Revision(1),
        record: JobRecord {
            version: 1,
            generation: 1,
            created_ms: 0,
            updated_ms: 0,
            segments: vec![Segment {
                from_ms: 0,
                generation: 1,
                paused: false,
            }],
            paused: None,
            paused_all: None,
            at_seen_ms: Vec::new(),
        },
        definitions: [(1, Arc::new(definition))].into_iter().collect(),
    })
}

fn attempt() -> Result<Attempt, Box<dyn Error>> {
    let job = job("job-0000")?;
    let definition = job.definition().ok_or("a job without a definition")?;
    let record = RunRecord {
        run: "job-0000@20260301T000100Z".into(),
        ..pending(&job, definition, 1, RunKind::Scheduled, AFTER_MS, AFTER_MS)
    };
    Ok(Attempt {
        key: AttemptKey {
            partition: 0,
            job: job.id.to_string(),
            run: record.run.clone(),
            attempt: 1,
        },
        record,
        modified: Revision(7),
    })
}

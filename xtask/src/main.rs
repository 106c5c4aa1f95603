//! The project's own commands: `cargo xtask test` checks everything and changes nothing,
//! `cargo xtask fix` formats and applies what clippy can mend, `cargo xtask kill9` kills a node ten
//! times in two minutes and counts what it did, `cargo xtask etcd-install` gets the etcd that the
//! tests need (`test` does so by itself where it can), `cargo xtask etcd --members 3` runs a cluster
//! until Ctrl-C, `cargo xtask soak --minutes 10` runs three nodes on three members of etcd under
//! random faults, and judges what they did; with `--slow-ms 300` on a store that is slow and does
//! nothing else.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its streams"
)]

mod etcd;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A named step: arguments of cargo, and extra environment.
type Step = (
    &'static str,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
);

const TEST: &[Step] = &[
    ("format", &["fmt", "--all", "--check"], &[]),
    (
        "lints",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    ),
    // Tests bring features of their own: what people build must do without these.
    (
        "the product alone",
        &["check", "--locked", "--package", "punctual-server"],
        &[],
    ),
    ("tests", &["test", "--workspace", "--locked"], &[]),
    (
        "simulation: 2,000 seeds, 500 of them once more",
        &[
            "run",
            "--release",
            "--locked",
            "--package",
            "punctual-tests",
            "--bin",
            "sim",
            "--",
            "--seeds",
            "2000",
            "--replay",
            "500",
            "-o",
            "json",
        ],
        &[],
    ),
    (
        "docs",
        &["doc", "--workspace", "--no-deps", "--locked"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    ),
];

const FIX: &[Step] = &[
    (
        "clippy --fix",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--fix",
            "--allow-dirty",
            "--allow-staged",
        ],
        &[],
    ),
    ("format", &["fmt", "--all"], &[]),
];

const KILL9: &[Step] = &[(
    "kill -9, ten times in two minutes",
    &[
        "test",
        "--locked",
        "--release",
        "--package",
        "punctual-server",
        "--test",
        "kill9",
        "--",
        "--nocapture",
    ],
    &[
        ("PUNCTUAL_KILL9_KILLS", "10"),
        ("PUNCTUAL_KILL9_SECONDS", "120"),
    ],
)];

const SOAK: &[Step] = &[(
    "build",
    &[
        "build",
        "--release",
        "--locked",
        "--bins",
        "--package",
        "punctual-server",
        "--package",
        "punctual-tests",
    ],
    &[],
)];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["test"] => match etcd::ensure() {
            Ok(()) => run(TEST),
            Err(why) => fail(&why),
        },
        ["etcd-install"] => etcd::ensure().map_or_else(|why| fail(&why), |()| ExitCode::SUCCESS),
        ["etcd"] => etcd::cluster(1).map_or_else(|why| fail(&why), |()| ExitCode::SUCCESS),
        ["etcd", "--members", count] => match count.parse() {
            Ok(count @ 1..=9) => {
                etcd::cluster(count).map_or_else(|why| fail(&why), |()| ExitCode::SUCCESS)
            }
            _ => fail("--members takes a number from 1 to 9"),
        },
        ["soak", ref options @ ..] => soak(options),
        ["fix"] => run(FIX),
        ["kill9"] => run(KILL9),
        _ => {
            eprintln!(
                "usage: cargo xtask test | fix | kill9 | etcd-install | etcd [--members N] | soak [--minutes N] [--seed N] [--slow-ms N]"
            );
            ExitCode::from(2)
        }
    }
}

/// Builds the program and what breaks it, and lets the latter at the former.
fn soak(options: &[&str]) -> ExitCode {
    if let Err(why) = etcd::ensure() {
        return fail(&why);
    }
    let built = run(SOAK);
    if built != ExitCode::SUCCESS {
        return built;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target"),
        PathBuf::from,
    );
    let status = Command::new(target.join("release/soak"))
        .arg("--punctual")
        .arg(target.join("release/punctual"))
        .args(options)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => fail(&format!("soak: {status}")),
        Err(error) => fail(&format!("cannot run soak: {error}")),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("== {why}");
    ExitCode::FAILURE
}

fn run(steps: &[Step]) -> ExitCode {
    let started = Instant::now();
    for (name, arguments, environment) in steps {
        println!("== {name}: cargo {}", arguments.join(" "));
        let step = Instant::now();
        let status = Command::new("cargo")
            .args(*arguments)
            .envs(environment.iter().copied())
            .status();
        match status {
            Ok(status) if status.success() => {
                println!("== {name}: ok in {} s", step.elapsed().as_secs());
            }
            Ok(status) => {
                eprintln!("== {name}: failed ({status})");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("== {name}: cannot run cargo: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "== all {} steps ok in {} s",
        steps.len(),
        started.elapsed().as_secs()
    );
    ExitCode::SUCCESS
}

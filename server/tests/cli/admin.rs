//! What a person does about a cluster: look what is wrong, and start anew from a backup.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use punctual_tests::etcd::Etcd;
use rustix::process::Signal;
use serde_json::Value;

use crate::{Place, Running, wait_for};

const JOBS: &str = "jobs:\n  - id: quick\n    run: { command: [\"true\"] }\n  - id: long\n    run: { command: [sleep, \"60\"] }\n";

fn node(place: &Place, store: &str, log: &str) -> Running {
    let running = Running::start(
        place,
        log,
        &[
            "serve",
            "--store",
            store,
            "--data-dir",
            "a",
            "--node-id",
            "a",
            "--listen",
            "127.0.0.1:0",
            "--jobs",
            "jobs.yaml",
            "--session-ttl",
            "2s",
        ],
    );
    wait_for("the jobs", || {
        let jobs = place.run(&["job", "ls", "--data-dir", "a", "-o", "name"]);
        (jobs.code == Some(0) && jobs.out.lines().count() == 2).then_some(())
    });
    running
}

fn trigger(place: &Place) -> u64 {
    let run = place
        .run(&[
            "job",
            "trigger",
            "quick",
            "--wait",
            "--data-dir",
            "a",
            "-o",
            "json",
        ])
        .json();
    run["fencing_token"].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_new_epoch_begins_when_no_node_runs_and_tokens_go_on_growing() {
    let etcd = Etcd::start();
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let store = format!("etcd://127.0.0.1:{}/prod", etcd.port());
    let recover = |more: &[&str]| {
        let recover = ["admin", "recover", "--after-restore", "--store", &store];
        place.run(&[&recover, more].concat())
    };
    recover(&[]).fails(4, "there is no namespace");
    place
        .run(&["admin", "recover", "--store", &store])
        .fails(2, "--after-restore");
    place
        .run(&["admin", "recover", "--after-restore"])
        .fails(2, "store import");

    let mut running = node(&place, &store, "log");
    let before = trigger(&place);
    assert!(before < 1 << 56);
    let run = place.run(&["job", "trigger", "long", "--data-dir", "a", "-o", "name"]);
    let run = run.ok().trim().to_owned();
    wait_for("the long run", || {
        let shown = place.run(&["run", "show", &run, "--data-dir", "a", "-o", "json"]);
        (shown.json()["state"] == "RUNNING").then_some(())
    });
    recover(&["--timeout", "1s"]).fails(4, "nodes run on this store: a");
    running.signal(Signal::KILL);
    running.wait();
    let recovered = recover(&["-o", "json"]);
    assert!(
        recovered.err.contains("these nodes are registered: a"),
        "{recovered:?}"
    );
    let recovered = recovered.json();
    assert_eq!(recovered["epoch"], 1);
    assert_eq!(recovered["running"], serde_json::json!([run]));
    assert!(recover(&[]).ok().contains(&run), "for people, and again");

    let _again = node(&place, &store, "log2");
    let after = trigger(&place);
    assert!(after >= 2 << 56, "{before} {after}");
}

#[test]
fn the_doctor_finds_nothing_in_a_sound_cluster_and_what_is_wrong_in_another() {
    let etcd = Etcd::start();
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let store = format!("etcd://127.0.0.1:{}/prod", etcd.port());
    let _node = node(&place, &store, "log");
    let doctor = |more: &[&str]| place.run(&[&["doctor", "--data-dir", "a"], more].concat());
    let found = wait_for("a sound cluster", || {
        let found = doctor(&["-o", "json"]);
        (found.code == Some(0)).then_some(found)
    });
    let found: Value = serde_json::from_str(&found.out).unwrap();
    let names: Vec<&str> = found["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "store",
            "release",
            "space",
            "alarms",
            "leader",
            "jobs",
            "instants",
            "nodes",
            "time zones",
            "clock",
            "job files",
            "data directory",
            "clocks"
        ]
    );

    let set = |mode| fs::set_permissions(place.path("a"), fs::Permissions::from_mode(mode));
    set(0o755).unwrap();
    let found = doctor(&[]);
    assert!(found.out.contains("chmod -R go= a"), "{found:?}");
    found.fails(1, "1 problem");
    set(0o700).unwrap();
    doctor(&[]).ok();

    let accept = |more: &[&str]| {
        place.run(&[&["admin", "clock", "accept", "--data-dir", "a"], more].concat())
    };
    for more in [&[][..], &["--node", "a"][..]] {
        let said = accept(more).ok();
        assert!(said.contains("nothing to accept"), "{said}");
    }
    accept(&["--node", "nobody"]).fails(3, "no node `nobody`");

    place.run(&["node", "drain", "a", "--data-dir", "a"]).ok();
    let found = doctor(&[]);
    assert!(found.out.contains("all nodes are drained"), "{found:?}");
    assert_eq!(found.code, Some(1), "{found:?}");

    drop(etcd);
    let found = doctor(&[]);
    assert!(found.out.contains("PROBLEM"), "{found:?}");
    assert!(found.out.contains("has a majority"), "{found:?}");
    assert_eq!(found.code, Some(1), "{found:?}");
}

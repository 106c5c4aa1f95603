//! An etcd that dies, stands still, changes its leader or is not there, and wires that are cut.

use std::time::{Duration, Instant};

use punctual_tests::cluster::{Cluster, jobs};
use punctual_tests::proxy::{Way, Wire};

use crate::{Story, binary, wait};

#[test]
fn etcd_dies_stands_still_and_comes_back() {
    let story = Story::begin("etcd dies, stands still and comes back");
    let mut cluster = Cluster::new(binary(), 3, jobs::few(), 3);

    story.step("a node starts before etcd does");
    cluster.nodes[0].start();
    cluster.wait_for("the node to say that it waits", |cluster| {
        let log = cluster.nodes[0].log();
        log.contains("the store does not answer; waiting for it")
            .then_some(())
    });
    assert!(cluster.nodes[0].runs());
    cluster.etcd.start_all();
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    cluster.wait_for_all();
    cluster.apply(true);
    cluster.wait_for_fires(3);

    story.step("kill -9 of etcd's leader");
    let member = cluster.etcd.leader();
    cluster.etcd.kill(member);
    cluster.wait_for_fires(5);
    cluster.etcd.start_one(member);

    story.step("L01: etcd's leader stands still for 5 s under load");
    let member = cluster.etcd.leader();
    cluster.etcd.pause(member, true);
    wait(5.0);
    cluster.etcd.pause(member, false);
    cluster.wait_for_fires(5);

    story.step("L04: etcd's leader changes three times");
    for _ in 0..3 {
        cluster.etcd.move_leader().unwrap();
        cluster.wait_for_fires(2);
    }

    story.step("etcd is dead for 10 s");
    let before: Vec<usize> = cluster.nodes.iter().map(|node| node.log().len()).collect();
    cluster.etcd.kill_all();
    let dead = Instant::now();
    cluster.wait_for("the nodes to say so", |cluster| {
        let refused = |node: &punctual_tests::cluster::node::NodeProcess| {
            node.ask(&["status"]).status.code() == Some(6)
        };
        cluster.nodes.iter().all(refused).then_some(())
    });
    wait((10.0 - dead.elapsed().as_secs_f64()).max(0.0));
    for node in &mut cluster.nodes {
        node.note_if_gone();
        assert!(node.runs(), "a store that is away ends no node");
    }
    cluster.etcd.start_all();
    cluster.wait_for_fires(10);
    story.step("the log told of it in a few lines");
    for (node, before) in before.into_iter().enumerate() {
        let said = |cluster: &mut Cluster| cluster.nodes[node].log()[before..].to_owned();
        cluster.wait_for("the node to say that the store is back", |cluster| {
            said(cluster).contains("the store is back").then_some(())
        });
        let log = said(&mut cluster);
        let times = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert_eq!(
            times("the store does not answer; waiting for it"),
            1,
            "{log}"
        );
        assert_eq!(times("the store is back"), 1, "{log}");
        let grave = |line: &&str| line.contains(" WARN ") || line.contains("ERROR");
        // What became of runs is told run by run.
        let runs = |line: &&str| line.contains("punctual::worker") || line.contains("run failed");
        let lines = log
            .lines()
            .filter(|line| grave(line) && !runs(line))
            .count();
        assert!(
            lines <= 12,
            "{lines} lines about 10 s without a store:\n{log}"
        );
    }

    let (_, report) = story.end(cluster);
    assert!(report.decided.max_ms >= 5_000, "nothing was late: {report}");
}

#[test]
fn wires_are_cut() {
    let story = Story::begin("wires are cut");
    let mut cluster = Cluster::start(binary(), 3, jobs::few(), 4);
    cluster.wait_for_fires(3);

    for (what, wire) in [
        ("requests of", Wire::REQUESTS_HELD),
        ("answers to", Wire::ANSWERS_HELD),
        ("requests of and answers to", Wire::HELD),
    ] {
        story.step(&format!("{what} the leader are held"));
        let (leader, term) = cluster.leader();
        cluster.nodes[leader].wire(wire);
        cluster.leader_since(term);
        cluster.wait_for_fires(3);
        cluster.nodes[leader].wire(Wire::default());
        cluster.wait_for_all();
    }

    story.step("P01: answers to a node that claims and reports are lost, again and again");
    let standby = cluster.standby();
    for _ in 0..4 {
        cluster.nodes[standby].wire(Wire::ANSWERS_LOST);
        wait(1.0);
        cluster.nodes[standby].wire(Wire::default());
        wait(1.0);
    }
    let (leader, _) = cluster.leader();
    for _ in 0..4 {
        cluster.nodes[leader].wire(Wire::ANSWERS_LOST);
        wait(0.7);
        cluster.nodes[leader].wire(Wire::default());
        wait(0.7);
    }

    story.step("every wire is slow");
    let slow = Way::Slow(Duration::from_millis(150));
    for node in &cluster.nodes {
        node.wire(Wire {
            requests: slow,
            answers: slow,
        });
    }
    cluster.wait_for_fires(10);
    for node in &cluster.nodes {
        node.wire(Wire::default());
    }

    story.step("W06: all connections are killed ten times while jobs change");
    for turn in 0..10 {
        for node in &cluster.nodes {
            node.kill_connections();
        }
        // An edit of every job, and back.
        cluster.apply(turn % 2 == 1);
        wait(0.2);
    }
    cluster.wait_for_fires(3);

    story.step("S07: a black hole between all nodes and etcd, for 10 s");
    let (_, term) = cluster.leader();
    for node in &cluster.nodes {
        node.wire(Wire::HELD);
    }
    let cut = Instant::now();
    for node in &cluster.nodes {
        let asked = Instant::now();
        let refused = node.ask(&["status"]);
        assert_eq!(refused.status.code(), Some(6), "{refused:?}");
        assert!(
            asked.elapsed() < Duration::from_secs(10),
            "{:?}",
            asked.elapsed()
        );
    }
    wait((10.0 - cut.elapsed().as_secs_f64()).max(0.0));
    for node in &cluster.nodes {
        node.wire(Wire::default());
    }
    cluster.leader_since(term);
    cluster.wait_for_fires(5);

    w06_all_nodes_agree(&mut cluster);
    story.end(cluster);
}

/// W06: after all that, every node knows the same jobs, those of the last change.
fn w06_all_nodes_agree(cluster: &mut Cluster) {
    cluster.apply(true);
    for node in 0..cluster.nodes.len() {
        let differences = cluster.differences(node);
        assert_eq!(differences.status.code(), Some(0), "{differences:?}");
    }
}

//! Nodes that die, stand still, leave, and lose what is theirs in the store.

use std::time::{Duration, Instant};

use punctual::keys::Keys;
use punctual_tests::cluster::{Cluster, jobs};
use punctual_tests::sim::world::NAMESPACE;

use crate::{Story, binary, wait};

#[test]
fn nodes_die_stand_still_and_leave() {
    let story = Story::begin("nodes die, stand still and leave");
    let mut cluster = Cluster::start(binary(), 3, jobs::few(), 1);
    cluster.wait_for_fires(5);

    story.step("kill -9 of a node with running work that does not lead");
    let (leader, _) = cluster.leader();
    let worker = cluster.busy(leader);
    cluster.nodes[worker].kill();
    wait(1.0);
    cluster.nodes[worker].start();

    story.step("kill -9 of the leader");
    let (leader, term) = cluster.leader();
    cluster.nodes[leader].kill();
    let (_, second) = cluster.leader_since(term);
    cluster.wait_for_fires(3);
    cluster.nodes[leader].start();
    cluster.wait_for_all();

    story.step("the leader stands still for longer than its time to live");
    let (leader, term) = cluster.leader();
    assert!(term >= second);
    cluster.nodes[leader].pause();
    let (_, third) = cluster.leader_since(term);
    cluster.wait_for_fires(3);
    cluster.nodes[leader].go_on();
    cluster.wait_for_all();
    assert!(third > term);

    story.step("each node is told to leave and starts again, the leader among them");
    for node in 0..cluster.nodes.len() {
        let (leader, term) = cluster.leader();
        let asked = Instant::now();
        let status = cluster.nodes[node].leave(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{}", cluster.last_words());
        if node == leader {
            cluster.leader_since(term);
            println!(
                "          left, and another leads, {:?} after SIGTERM",
                asked.elapsed()
            );
        }
        cluster.nodes[node].start();
        cluster.wait_for_all();
    }

    let (_, report) = story.end(cluster);
    assert!(report.terms >= 4, "{report}");
    let lost = report.ends.get("failed: worker_lost");
    assert!(lost.is_some_and(|lost| *lost > 0), "{report}");
}

#[test]
fn nodes_lose_their_keys_and_leases() {
    let story = Story::begin("nodes lose their keys and leases");
    let mut cluster = Cluster::start(binary(), 3, jobs::few(), 2);
    cluster.wait_for_fires(3);

    story.step("E04: the leader's key is deleted by hand");
    e04_a_deleted_leader_key_ends_the_term(&mut cluster);
    story.step("L02: a node's key is deleted while its lease is kept alive");
    l02_a_deleted_session_key_ends_the_session(&mut cluster);
    story.step("E01: a standby stands still until its lease is gone");
    e01_a_standby_that_lost_its_lease_comes_back_with_a_new_one(&mut cluster);
    story.step("E02: a standby's lease is revoked, and then the leader dies");
    e02_a_candidate_without_a_lease_does_not_lead(&mut cluster);

    story.end(cluster);
}

/// E04: the old leader steps down, somebody leads again, and the new term is higher. (That nothing
/// was decided in between is checked with the history.)
fn e04_a_deleted_leader_key_ends_the_term(cluster: &mut Cluster) {
    let (leader, term) = cluster.leader();
    cluster.tap.delete(&Keys::new(NAMESPACE).leader());
    let deleted = Instant::now();
    let said = format!("no longer leading term={term} ");
    cluster.wait_for("the leader to step down", |cluster| {
        cluster.nodes[leader].log().contains(&said).then_some(())
    });
    println!("          it stepped down after {:?}", deleted.elapsed());
    let (_, next) = cluster.leader_since(term);
    assert!(next > term);
    cluster.wait_for_fires(3);
}

/// L02: a keep-alive that goes on answering does not hide that the key is gone.
fn l02_a_deleted_session_key_ends_the_session(cluster: &mut Cluster) {
    let (leader, _) = cluster.leader();
    let busy = cluster.busy(leader);
    let name = cluster.nodes[busy].name.clone();
    let mut sessions = cluster.tap.sessions().into_iter();
    let (owner, entry) = sessions.find(|(owner, _)| owner.node == name).unwrap();
    cluster.tap.delete(&entry.key);
    let deleted = Instant::now();
    cluster.wait_for("another session of the same node", |cluster| {
        let mut sessions = cluster.tap.sessions().into_iter();
        let again = sessions.find(|(session, _)| *session == owner);
        again
            .is_some_and(|(_, e)| e.created > entry.created)
            .then_some(())
    });
    println!(
        "          it registered again after {:?}",
        deleted.elapsed()
    );
}

/// E01: it does not go on waiting for a lead that its lease could not hold.
fn e01_a_standby_that_lost_its_lease_comes_back_with_a_new_one(cluster: &mut Cluster) {
    let standby = cluster.standby();
    let name = cluster.nodes[standby].name.clone();
    let session = |cluster: &mut Cluster| {
        let mut sessions = cluster.tap.sessions().into_iter();
        sessions.find(|(owner, _)| owner.node == name)
    };
    let (owner, before) = session(cluster).unwrap();
    cluster.nodes[standby].pause();
    cluster.wait_for("the end of its lease", |cluster| {
        session(cluster).is_none().then_some(())
    });
    cluster.nodes[standby].go_on();
    let (again, after) = cluster.wait_for("its session", session);
    assert_eq!(again, owner, "the same life of the node");
    assert!(after.created > before.created && after.lease != before.lease);
    assert!(after.lease.is_some());
}

/// E02: when the leader dies, the one node that leads then does so by a key that has a lease.
fn e02_a_candidate_without_a_lease_does_not_lead(cluster: &mut Cluster) {
    let (leader, term) = cluster.leader();
    let standby = cluster.standby();
    let name = cluster.nodes[standby].name.clone();
    let mut sessions = cluster.tap.sessions().into_iter();
    let (_, entry) = sessions.find(|(owner, _)| owner.node == name).unwrap();
    cluster.tap.revoke(entry.lease.unwrap());
    cluster.nodes[leader].kill();
    let (_, next) = cluster.leader_since(term);
    let key = Keys::new(NAMESPACE).leader();
    let held = cluster.tap.standing().remove(&key).unwrap();
    assert_eq!(held.created, next);
    assert!(held.lease.is_some(), "the lead is leased");
    cluster.wait_for_fires(3);
    cluster.nodes[leader].start();
    cluster.wait_for_all();
}

//! Leases. A lease lives at least its time; how much longer is the store's affair, so cases wait
//! for its end and never measure it.

use punctual::backend::limits::MIN_LEASE_TTL_MS;
use punctual::backend::{LeaseId, Txn, Write};

use super::kit::{
    absent, after, apply, assert_lost, choose, chosen, conflict, get, leased, long_lease, put,
    short_lease, shown,
};
use super::{Fixture, cases};

cases!("lease":
    a_grant_is_never_shorter_than_asked_for,
    each_grant_is_another_lease,
    a_key_shows_its_lease,
    it_lives_its_time,
    its_end_deletes_all_its_keys_in_one_revision,
    keep_alive_prolongs_it,
    keep_alive_answers_what_counts,
    revoke_deletes_its_keys_at_once,
    what_has_ended_is_lost,
    what_was_never_granted_is_lost,
    a_put_without_lease_detaches,
    a_put_under_another_lease_moves,
    a_deleted_key_made_anew_is_free,
    a_dead_lease_fails_the_whole_request,
    a_conflict_comes_before_a_dead_lease,
    a_branch_not_taken_may_name_a_dead_lease,
    all_handles_share_it;
    compacting
);

async fn a_grant_is_never_shorter_than_asked_for(f: Fixture) {
    assert_eq!(MIN_LEASE_TTL_MS, 2_000);
    for (asked, least) in [(0, 2_000), (1, 2_000), (2_000, 2_000), (4_500, 4_500)] {
        let ttl_ms = f.a.grant(asked).await.unwrap().ttl_ms;
        // Stores that count in seconds round up.
        assert!(
            (least..least + 1_000).contains(&ttl_ms),
            "{asked}: {ttl_ms}"
        );
    }
}

async fn each_grant_is_another_lease(f: Fixture) {
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(long_lease(&*f.a).await);
        f.b.revoke(ids[ids.len() - 1]).await.unwrap();
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}

async fn a_key_shows_its_lease(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    apply(
        &*f.a,
        Txn::new().op(leased("k", "v", lease)).put("free", "v"),
    )
    .await;
    assert_eq!(get(&*f.b, "k").await.unwrap().lease, Some(lease));
    assert_eq!(get(&*f.b, "free").await.unwrap().lease, None);
}

async fn it_lives_its_time(f: Fixture) {
    let lease = f.a.grant(3_000).await.unwrap();
    let start_ms = f.env.monotonic_ms();
    apply(&*f.a, Txn::new().op(leased("k", "v", lease.id))).await;
    while f.env.monotonic_ms() - start_ms < 2_500 {
        let before = f.env.monotonic_ms() - start_ms;
        assert!(get(&*f.b, "k").await.is_some(), "gone before {before} ms");
        f.pass(100).await;
    }
}

async fn its_end_deletes_all_its_keys_in_one_revision(f: Fixture) {
    let lease = short_lease(&*f.a).await;
    for key in ["c", "a", "b"] {
        apply(&*f.a, Txn::new().op(leased(key, "v", lease))).await;
    }
    let last = put(&*f.a, "free", "v").await;
    let mut watch = f.watch("", after(last)).await;
    assert_eq!(f.next_events(&mut watch).await, ["-a", "-b", "-c"]);
    assert_eq!(shown(&*f.b, "", None).await, ["free=v"]);
    assert_lost(f.a.keep_alive(lease).await);
}

async fn keep_alive_prolongs_it(f: Fixture) {
    let lease = short_lease(&*f.a).await;
    apply(&*f.a, Txn::new().op(leased("k", "v", lease))).await;
    for _ in 0..8 {
        f.pass(500).await;
        f.b.keep_alive(lease).await.unwrap();
    }
    assert!(get(&*f.a, "k").await.is_some(), "twice its time has passed");
    let mut watch = f.watch("", f.upcoming().await).await;
    assert_eq!(f.next_events(&mut watch).await, ["-k"]);
}

async fn keep_alive_answers_what_counts(f: Fixture) {
    let lease = f.a.grant(5_000).await.unwrap();
    f.pass(1_100).await;
    let answer = f.b.keep_alive(lease.id).await.unwrap();
    assert_eq!(answer, lease, "the full time again");
}

async fn revoke_deletes_its_keys_at_once(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    let txn = Txn::new()
        .op(leased("b", "v", lease))
        .op(leased("a", "v", lease))
        .put("free", "v");
    let made = apply(&*f.a, txn).await;
    f.b.revoke(lease).await.unwrap();
    assert_eq!(shown(&*f.a, "", None).await, ["free=v"]);
    let mut watch = f.watch("", after(made)).await;
    assert_eq!(f.next_events(&mut watch).await, ["-a", "-b"]);
}

async fn what_has_ended_is_lost(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    f.a.revoke(lease).await.unwrap();
    assert_lost(f.a.revoke(lease).await);
    assert_lost(f.b.keep_alive(lease).await);
    let txn = Txn::new().op(leased("k", "v", lease));
    assert_lost(f.b.commit(&txn).await);
}

async fn what_was_never_granted_is_lost(f: Fixture) {
    let unknown = LeaseId(0x7000_0000_0000_1234);
    assert_lost(f.a.revoke(unknown).await);
    assert_lost(f.a.keep_alive(unknown).await);
    assert_lost(f.a.commit(&Txn::new().op(leased("k", "v", unknown))).await);
}

async fn a_put_without_lease_detaches(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    apply(&*f.a, Txn::new().op(leased("k", "1", lease))).await;
    put(&*f.a, "k", "2").await;
    assert_eq!(get(&*f.a, "k").await.unwrap().lease, None);
    f.a.revoke(lease).await.unwrap();
    assert_eq!(shown(&*f.a, "", None).await, ["k=2"]);
}

async fn a_put_under_another_lease_moves(f: Fixture) {
    let one = long_lease(&*f.a).await;
    let two = long_lease(&*f.a).await;
    apply(&*f.a, Txn::new().op(leased("k", "1", one))).await;
    apply(&*f.a, Txn::new().op(leased("k", "2", two))).await;
    f.a.revoke(one).await.unwrap();
    assert_eq!(shown(&*f.a, "", None).await, ["k=2"]);
    f.a.revoke(two).await.unwrap();
    assert_eq!(get(&*f.a, "k").await, None);
}

async fn a_deleted_key_made_anew_is_free(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    apply(&*f.a, Txn::new().op(leased("k", "1", lease))).await;
    apply(&*f.a, Txn::new().delete("k")).await;
    put(&*f.a, "k", "2").await;
    f.a.revoke(lease).await.unwrap();
    assert_eq!(shown(&*f.a, "", None).await, ["k=2"]);
}

async fn a_dead_lease_fails_the_whole_request(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    f.a.revoke(lease).await.unwrap();
    put(&*f.a, "old", "v").await;
    let txn = Txn::new()
        .put("a", "v")
        .op(leased("k", "v", lease))
        .delete("old");
    assert_lost(f.a.commit(&txn).await);
    let inside = Txn::new().put("a", "v").op(choose(
        absent("none"),
        leased("k", "v", lease),
        Write::put("else", "v"),
    ));
    assert_lost(f.a.commit(&inside).await);
    assert_eq!(shown(&*f.a, "", None).await, ["old=v"]);
}

async fn a_conflict_comes_before_a_dead_lease(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    f.a.revoke(lease).await.unwrap();
    put(&*f.a, "k", "1").await;
    let txn = Txn::new().require(absent("k")).op(leased("k", "2", lease));
    assert_eq!(conflict(&*f.a, txn).await, ["k=1"]);
}

async fn a_branch_not_taken_may_name_a_dead_lease(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    f.a.revoke(lease).await.unwrap();
    let txn = Txn::new().op(choose(
        absent("none"),
        Write::put("then", "v"),
        leased("else", "v", lease),
    ));
    assert_eq!(chosen(&*f.a, txn).await, [true]);
    assert_eq!(shown(&*f.a, "", None).await, ["then=v"]);
}

async fn all_handles_share_it(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    apply(&*f.b, Txn::new().op(leased("k", "v", lease))).await;
    drop(f.a);
    f.b.keep_alive(lease).await.unwrap();
    assert_eq!(shown(&*f.b, "", None).await, ["k=v"]);
    f.b.revoke(lease).await.unwrap();
    assert_eq!(get(&*f.b, "k").await, None);
}

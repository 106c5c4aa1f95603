//! What a watch reports while things happen.

use futures_util::future::join;
use punctual::backend::{BatchOutcome, Event, Revision, Span, Txn, Write};

use super::kit::{
    absent, after, apply, assert_rejected, choose, conflict, delete, events, judged, leased,
    long_lease, modified, put, short_lease,
};
use super::{Fixture, cases};

cases!("watch":
    a_put_is_reported_with_its_whole_entry,
    a_delete_is_reported_with_its_revision,
    put_delete_and_put_are_three_changes,
    the_same_value_again_is_a_change,
    a_transaction_is_reported_whole_and_in_key_order,
    a_batch_is_reported_whole,
    the_branch_taken_is_reported,
    a_revision_shows_only_what_lies_in_the_span,
    neighbours_of_the_span_are_not_reported,
    a_watch_of_one_key_ignores_longer_ones,
    a_watch_of_everything_sees_everything,
    a_watch_of_nothing_stays_quiet,
    elsewhere_is_not_reported,
    deleting_what_is_not_there_is_silent,
    conflicts_and_rejections_are_silent,
    an_empty_transaction_is_silent,
    grants_and_keep_alives_are_silent,
    the_end_of_a_lease_is_reported_without_traffic,
    a_revoke_is_reported_as_one_change,
    a_detached_key_outlives_the_lease_in_the_watch_too,
    one_handle_hears_what_the_other_writes,
    two_watchers_hear_the_same,
    watchers_of_different_spans_hear_their_own,
    a_dropped_watch_disturbs_nobody,
    a_dropped_call_loses_nothing,
    it_waits_while_nothing_happens,
    revisions_only_grow_while_many_write,
    a_watch_outlives_the_handle_it_came_from;
    compacting
);

async fn a_put_is_reported_with_its_whole_entry(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    let mut watch = f.watch("", f.upcoming().await).await;
    let first = put(&*f.a, "k", "1").await;
    let second = apply(&*f.a, Txn::new().op(leased("k", "2", lease))).await;
    let changes = f.next(&mut watch).await;
    match &changes.events[..] {
        [Event::Put(entry)] => {
            assert_eq!((entry.created, entry.modified), (first, first));
            assert_eq!((&entry.value[..], entry.lease), (&b"1"[..], None));
        }
        other => panic!("{other:?}"),
    }
    let changes = f.next(&mut watch).await;
    match &changes.events[..] {
        [Event::Put(entry)] => {
            assert_eq!((entry.created, entry.modified), (first, second));
            assert_eq!((&entry.value[..], entry.lease), (&b"2"[..], Some(lease)));
        }
        other => panic!("{other:?}"),
    }
}

async fn a_delete_is_reported_with_its_revision(f: Fixture) {
    put(&*f.a, "k", "1").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    let revision = delete(&*f.a, "k").await;
    let changes = f.next(&mut watch).await;
    assert_eq!(changes.revision, revision);
    let key = b"k".to_vec();
    assert_eq!(changes.events, [Event::Delete { key, revision }]);
}

async fn put_delete_and_put_are_three_changes(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    put(&*f.a, "k", "1").await;
    delete(&*f.a, "k").await;
    put(&*f.a, "k", "2").await;
    for expected in ["k=1", "-k", "k=2"] {
        assert_eq!(f.next_events(&mut watch).await, [expected]);
    }
}

async fn the_same_value_again_is_a_change(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    let revisions = [put(&*f.a, "k", "1").await, put(&*f.a, "k", "1").await];
    for revision in revisions {
        assert_eq!(f.next(&mut watch).await.revision, revision);
    }
}

async fn a_transaction_is_reported_whole_and_in_key_order(f: Fixture) {
    put(&*f.a, "d", "0").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    let txn = Txn::new()
        .put("c", "1")
        .delete("d")
        .put("a", "1")
        .put("b", "1");
    let revision = apply(&*f.a, txn).await;
    let changes = f.next(&mut watch).await;
    assert_eq!(changes.revision, revision);
    assert_eq!(events(&changes), ["a=1", "b=1", "c=1", "-d"]);
    f.quiet(&mut watch).await;
}

async fn a_batch_is_reported_whole(f: Fixture) {
    put(&*f.a, "taken", "v").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    let create = |key: &str| Txn::new().require(absent(key)).put(key, "new");
    let txns = [create("b"), create("taken"), create("c").put("a", "2")];
    let (revision, _) = judged(&*f.a, &[], &txns).await;
    let changes = f.next(&mut watch).await;
    assert_eq!(changes.revision, revision);
    assert_eq!(events(&changes), ["a=2", "b=new", "c=new"]);
    f.quiet(&mut watch).await;
}

async fn the_branch_taken_is_reported(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    for _ in 0..2 {
        let then = Write::put("run", "v");
        let txn = Txn::new().op(choose(absent("run"), then, Write::put("skip", "v")));
        apply(&*f.a, txn).await;
    }
    assert_eq!(f.next_events(&mut watch).await, ["run=v"]);
    assert_eq!(f.next_events(&mut watch).await, ["skip=v"]);
}

async fn a_revision_shows_only_what_lies_in_the_span(f: Fixture) {
    let mut watch = f.watch("job/", f.upcoming().await).await;
    let txn = Txn::new()
        .put("cursor", "1")
        .put("job/b", "1")
        .put("run/x", "1");
    apply(&*f.a, txn.put("job/a", "1")).await;
    assert_eq!(f.next_events(&mut watch).await, ["job/a=1", "job/b=1"]);
}

async fn neighbours_of_the_span_are_not_reported(f: Fixture) {
    let mut watch = f.watch("job/", f.upcoming().await).await;
    for key in ["job", "job.", "job0", "jo", "job//x"] {
        put(&*f.a, key, "v").await;
    }
    delete(&*f.a, "job0").await;
    assert_eq!(f.next_events(&mut watch).await, ["job//x=v"]);
    f.quiet(&mut watch).await;
}

async fn a_watch_of_one_key_ignores_longer_ones(f: Fixture) {
    let from = f.upcoming().await;
    let mut watch = f.a.watch(&Span::key("k"), from).await.unwrap();
    for key in ["k\0", "kk", "k/", "j", "k"] {
        put(&*f.a, key, "v").await;
    }
    assert_eq!(f.next_events(&mut watch).await, ["k=v"]);
    f.quiet(&mut watch).await;
}

async fn a_watch_of_everything_sees_everything(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    for key in [vec![0], b"middle".to_vec(), vec![0xff, 0xff]] {
        let revision = put(&*f.a, key.clone(), "v").await;
        let changes = f.next(&mut watch).await;
        assert_eq!(
            (changes.revision, changes.events[0].key()),
            (revision, &key[..])
        );
    }
}

async fn a_watch_of_nothing_stays_quiet(f: Fixture) {
    let span = Span {
        start: b"k".to_vec(),
        end: Some(b"a".to_vec()),
    };
    let mut watch = f.a.watch(&span, f.upcoming().await).await.unwrap();
    for key in ["a", "b", "k", "z"] {
        put(&*f.a, key, "v").await;
    }
    f.quiet(&mut watch).await;
}

async fn elsewhere_is_not_reported(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    for i in 0..5 {
        put(&*f.elsewhere, "k", i.to_string()).await;
    }
    f.quiet(&mut watch).await;
    put(&*f.a, "k", "ours").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=ours"]);
}

async fn deleting_what_is_not_there_is_silent(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    delete(&*f.a, "nothing").await;
    apply(&*f.a, Txn::new().delete("nothing").put("k", "1")).await;
    delete(&*f.a, "nothing").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=1"]);
    f.quiet(&mut watch).await;
}

async fn conflicts_and_rejections_are_silent(f: Fixture) {
    put(&*f.a, "k", "1").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    let txn = Txn::new().require(absent("k")).put("k", "2").put("x", "2");
    conflict(&*f.a, txn.clone()).await;
    judged(&*f.a, &[], &[txn]).await;
    let guard = [absent("k")];
    let failed = f.a.commit_batch(&guard, &[Txn::new().put("y", "2")]).await;
    assert!(matches!(failed, Ok(BatchOutcome::GuardFailed { .. })));
    let twice = Txn::new().put("z", "1").put("z", "2");
    assert_rejected(f.a.commit(&twice).await);
    f.quiet(&mut watch).await;
}

async fn an_empty_transaction_is_silent(f: Fixture) {
    let at = put(&*f.a, "k", "1").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    apply(&*f.a, Txn::new()).await;
    let check = Txn::new().require(modified("k", at));
    apply(&*f.a, check).await;
    judged(&*f.a, &[], &[]).await;
    f.quiet(&mut watch).await;
}

async fn grants_and_keep_alives_are_silent(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    let lease = long_lease(&*f.a).await;
    f.a.keep_alive(lease).await.unwrap();
    f.a.revoke(lease).await.unwrap();
    f.quiet(&mut watch).await;
}

async fn the_end_of_a_lease_is_reported_without_traffic(f: Fixture) {
    let lease = short_lease(&*f.a).await;
    let txn = Txn::new()
        .op(leased("node/b", "v", lease))
        .op(leased("node/a", "v", lease))
        .op(leased("other", "v", lease));
    let made = apply(&*f.a, txn).await;
    let mut watch = f.watch("node/", after(made)).await;
    // Nobody calls the store from here on.
    assert_eq!(f.next_events(&mut watch).await, ["-node/a", "-node/b"]);
    f.quiet(&mut watch).await;
}

async fn a_revoke_is_reported_as_one_change(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    for key in ["b", "c", "a"] {
        apply(&*f.a, Txn::new().op(leased(key, "v", lease))).await;
    }
    let mut watch = f.watch("", f.upcoming().await).await;
    f.b.revoke(lease).await.unwrap();
    assert_eq!(f.next_events(&mut watch).await, ["-a", "-b", "-c"]);
    f.quiet(&mut watch).await;
}

async fn a_detached_key_outlives_the_lease_in_the_watch_too(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    let txn = Txn::new()
        .op(leased("a", "v", lease))
        .op(leased("b", "v", lease));
    apply(&*f.a, txn).await;
    let mut watch = f.watch("", f.upcoming().await).await;
    put(&*f.a, "a", "free").await;
    f.a.revoke(lease).await.unwrap();
    assert_eq!(f.next_events(&mut watch).await, ["a=free"]);
    assert_eq!(f.next_events(&mut watch).await, ["-b"]);
}

async fn one_handle_hears_what_the_other_writes(f: Fixture) {
    let from = f.upcoming().await;
    let mut on_b = f.b.watch(&Span::prefix(""), from).await.unwrap();
    let mut on_a = f.watch("", from).await;
    put(&*f.a, "k", "by a").await;
    put(&*f.b, "k", "by b").await;
    for watch in [&mut on_a, &mut on_b] {
        assert_eq!(f.next_events(watch).await, ["k=by a"]);
        assert_eq!(f.next_events(watch).await, ["k=by b"]);
    }
}

async fn two_watchers_hear_the_same(f: Fixture) {
    let from = f.upcoming().await;
    let (mut one, mut two) = (f.watch("", from).await, f.watch("", from).await);
    for i in 0..30 {
        let txn = Txn::new().put("k", i.to_string());
        apply(&*f.a, txn.put(format!("x{}", i % 3), "v")).await;
    }
    for _ in 0..30 {
        assert_eq!(f.next(&mut one).await, f.next(&mut two).await);
    }
}

async fn watchers_of_different_spans_hear_their_own(f: Fixture) {
    let from = f.upcoming().await;
    let (mut jobs, mut runs) = (f.watch("job/", from).await, f.watch("run/", from).await);
    let revision = apply(&*f.a, Txn::new().put("run/1", "v").put("job/1", "v")).await;
    put(&*f.a, "run/2", "v").await;
    put(&*f.a, "job/2", "v").await;
    let (job, run) = (f.next(&mut jobs).await, f.next(&mut runs).await);
    assert_eq!((job.revision, run.revision), (revision, revision));
    assert_eq!(
        (events(&job), events(&run)),
        (vec!["job/1=v".into()], vec!["run/1=v".into()])
    );
    assert_eq!(f.next_events(&mut jobs).await, ["job/2=v"]);
    assert_eq!(f.next_events(&mut runs).await, ["run/2=v"]);
}

async fn a_dropped_watch_disturbs_nobody(f: Fixture) {
    let from = f.upcoming().await;
    let mut kept = f.watch("", from).await;
    for i in 0..20 {
        let mut dropped = f.watch("", from).await;
        put(&*f.a, "k", i.to_string()).await;
        if i % 2 == 0 {
            assert_eq!(f.next_events(&mut dropped).await, ["k=0"]);
        }
        drop(dropped);
        assert_eq!(f.next_events(&mut kept).await, [format!("k={i}")]);
    }
}

async fn a_dropped_call_loses_nothing(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    for i in 0..10 {
        let wait = std::time::Duration::from_millis(5);
        let early = punctual::env::timeout(&*f.env, wait, watch.next()).await;
        assert!(early.is_none(), "{early:?}");
        put(&*f.b, "k", format!("{i}a")).await;
        put(&*f.b, "k", format!("{i}b")).await;
        // A call that is dropped when the change may be on its way already.
        let wait = std::time::Duration::ZERO;
        match punctual::env::timeout(&*f.env, wait, watch.next()).await {
            Some(changes) => assert_eq!(events(&changes.unwrap()), [format!("k={i}a")]),
            None => assert_eq!(f.next_events(&mut watch).await, [format!("k={i}a")]),
        }
        assert_eq!(f.next_events(&mut watch).await, [format!("k={i}b")]);
    }
}

async fn it_waits_while_nothing_happens(f: Fixture) {
    put(&*f.a, "k", "old").await;
    let mut watch = f.watch("", f.upcoming().await).await;
    f.quiet(&mut watch).await;
    let (events, ()) = join(f.next_events(&mut watch), async {
        f.pass(50).await;
        put(&*f.a, "k", "new").await;
    })
    .await;
    assert_eq!(events, ["k=new"]);
}

async fn revisions_only_grow_while_many_write(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    let write = |who: usize| {
        let store = if who.is_multiple_of(2) {
            f.a.clone()
        } else {
            f.b.clone()
        };
        async move {
            for i in 0..15 {
                put(&*store, format!("k{who}"), i.to_string()).await;
            }
        }
    };
    futures_util::future::join_all((0..6).map(write)).await;
    let mut last = Revision(0);
    let mut next = [0; 6];
    for _ in 0..6 * 15 {
        let changes = f.next(&mut watch).await;
        assert!(changes.revision > last);
        last = changes.revision;
        let event = &events(&changes)[0];
        let who: usize = event[1..2].parse().unwrap();
        assert_eq!(*event, format!("k{who}={}", next[who]), "a writer's order");
        next[who] += 1;
    }
    f.quiet(&mut watch).await;
}

async fn a_watch_outlives_the_handle_it_came_from(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    let Fixture { a, b, env, .. } = f;
    drop(a);
    put(&*b, "k", "v").await;
    let patience = std::time::Duration::from_secs(15);
    let changes = punctual::env::timeout(&*env, patience, watch.next()).await;
    assert_eq!(events(&changes.unwrap().unwrap()), ["k=v"]);
}

//! Watches beside each other, one after the other, and over the lives of keys and leases.

use futures_util::future::{Either, join, join_all};
use punctual::backend::{BackendError, Event, Span, Txn, Write};
use punctual::env::race;

use super::kit::{
    after, apply, delete, events, judged, leased, long_lease, modified, put, short_lease,
};
use super::{Fixture, cases};

cases!("watch":
    a_key_made_anew_shows_its_new_beginning,
    any_bytes_are_reported,
    many_deletes_of_one_transaction_are_one_change,
    the_widest_batch_is_one_change,
    a_moved_key_shows_its_new_lease,
    two_leases_that_end_are_two_changes,
    keep_alive_postpones_the_end,
    the_end_of_a_lease_is_heard_on_every_handle,
    a_leased_key_deleted_before_is_not_deleted_again,
    a_claim_is_heard_once,
    fifty_watchers_hear_one_write,
    watches_of_many_starts_join_the_same_stream,
    opening_while_others_write_leaves_no_gap,
    a_watch_resumed_behind_its_last_change_repeats_nothing,
    two_watches_read_by_whichever_is_first_lose_nothing,
    overlapping_spans_agree,
    elsewhere_has_watches_of_its_own;
    compacting
    an_unread_watch_is_complete_or_refused,
    a_refused_watch_disturbs_no_other,
    compacting_again_moves_the_start,
    compacting_to_the_present_refuses_only_the_past,
);

async fn a_key_made_anew_shows_its_new_beginning(f: Fixture) {
    let from = f.upcoming().await;
    let mut watch = f.a.watch(&Span::key("k"), from).await.unwrap();
    put(&*f.a, "k", "1").await;
    delete(&*f.a, "k").await;
    let born = put(&*f.a, "k", "2").await;
    f.next(&mut watch).await;
    f.next(&mut watch).await;
    match &f.next(&mut watch).await.events[..] {
        [Event::Put(entry)] => assert_eq!((entry.created, entry.modified), (born, born)),
        other => panic!("{other:?}"),
    }
}

async fn any_bytes_are_reported(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    for key in [vec![0], vec![0, 0xff], vec![0xff, 0xff], b"\n".to_vec()] {
        put(&*f.a, key.clone(), key.repeat(2)).await;
        match &f.next(&mut watch).await.events[..] {
            [Event::Put(entry)] => {
                assert_eq!((&entry.key, &entry.value), (&key, &key.repeat(2)));
            }
            other => panic!("{other:?}"),
        }
        let revision = apply(&*f.a, Txn::new().delete(key.clone())).await;
        let deleted = Event::Delete { key, revision };
        assert_eq!(f.next(&mut watch).await.events, [deleted]);
    }
}

async fn many_deletes_of_one_transaction_are_one_change(f: Fixture) {
    let keys = || (0..60).map(|i| format!("k{i:02}"));
    apply(&*f.a, keys().fold(Txn::new(), |txn, key| txn.put(key, "v"))).await;
    let mut watch = f.watch("", f.upcoming().await).await;
    apply(&*f.a, keys().rev().fold(Txn::new(), Txn::delete)).await;
    let expected: Vec<String> = keys().map(|key| format!("-{key}")).collect();
    assert_eq!(f.next_events(&mut watch).await, expected);
}

async fn the_widest_batch_is_one_change(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    let txn = |i: usize| (0..10).fold(Txn::new(), |txn, j| txn.put(format!("{i:03}/{j}"), "v"));
    let txns: Vec<Txn> = (0..118).map(txn).collect();
    let (revision, _) = judged(&*f.a, &[], &txns).await;
    let changes = f.next(&mut watch).await;
    assert_eq!((changes.revision, changes.events.len()), (revision, 1_180));
    assert!(
        changes
            .events
            .is_sorted_by_key(|event| event.key().to_vec())
    );
    f.quiet(&mut watch).await;
}

async fn a_moved_key_shows_its_new_lease(f: Fixture) {
    let (one, two) = (long_lease(&*f.a).await, long_lease(&*f.a).await);
    let mut watch = f.watch("", f.upcoming().await).await;
    for lease in [Some(one), Some(two), None] {
        let write = match lease {
            Some(lease) => leased("k", "v", lease),
            None => Write::put("k", "v"),
        };
        apply(&*f.a, Txn::new().op(write)).await;
        match &f.next(&mut watch).await.events[..] {
            [Event::Put(entry)] => assert_eq!(entry.lease, lease),
            other => panic!("{other:?}"),
        }
    }
    f.a.revoke(one).await.unwrap();
    f.a.revoke(two).await.unwrap();
    f.quiet(&mut watch).await;
}

async fn two_leases_that_end_are_two_changes(f: Fixture) {
    let (one, two) = (short_lease(&*f.a).await, short_lease(&*f.a).await);
    let txn = Txn::new()
        .op(leased("one/a", "v", one))
        .op(leased("one/b", "v", one))
        .op(leased("two/a", "v", two))
        .op(leased("two/b", "v", two));
    let made = apply(&*f.a, txn).await;
    let mut watch = f.watch("", after(made)).await;
    let mut both = [
        f.next_events(&mut watch).await,
        f.next_events(&mut watch).await,
    ];
    both.sort();
    assert_eq!(both, [["-one/a", "-one/b"], ["-two/a", "-two/b"]]);
}

async fn keep_alive_postpones_the_end(f: Fixture) {
    let (kept, left) = (short_lease(&*f.a).await, short_lease(&*f.a).await);
    let txn = Txn::new()
        .op(leased("kept", "v", kept))
        .op(leased("left", "v", left));
    let made = apply(&*f.a, txn).await;
    let mut watch = f.watch("", after(made)).await;
    f.pass(1_500).await;
    f.a.keep_alive(kept).await.unwrap();
    assert_eq!(f.next_events(&mut watch).await, ["-left"]);
    f.a.keep_alive(kept).await.unwrap();
    f.quiet(&mut watch).await;
    assert_eq!(f.next_events(&mut watch).await, ["-kept"]);
}

async fn the_end_of_a_lease_is_heard_on_every_handle(f: Fixture) {
    let lease = short_lease(&*f.a).await;
    let made = apply(&*f.a, Txn::new().op(leased("k", "v", lease))).await;
    let span = Span::prefix("");
    let mut on_a = f.a.watch(&span, after(made)).await.unwrap();
    let mut on_b = f.b.watch(&span, after(made)).await.unwrap();
    let (by_a, by_b) = (f.next(&mut on_a).await, f.next(&mut on_b).await);
    assert_eq!(by_a, by_b);
    assert_eq!(events(&by_a), ["-k"]);
}

async fn a_leased_key_deleted_before_is_not_deleted_again(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    let txn = Txn::new()
        .op(leased("a", "v", lease))
        .op(leased("b", "v", lease));
    apply(&*f.a, txn).await;
    let mut watch = f.watch("", f.upcoming().await).await;
    delete(&*f.a, "a").await;
    f.a.revoke(lease).await.unwrap();
    assert_eq!(f.next_events(&mut watch).await, ["-a"]);
    assert_eq!(f.next_events(&mut watch).await, ["-b"]);
    f.quiet(&mut watch).await;
}

async fn a_claim_is_heard_once(f: Fixture) {
    let made = put(&*f.a, "run", "PENDING").await;
    let mut watch = f.watch("run", after(made)).await;
    let claim = |who: &str| Txn::new().require(modified("run", made)).put("run", who);
    let (one, two) = (claim("by a"), claim("by b"));
    let (one, two) = join(f.a.commit(&one), f.b.commit(&two)).await;
    let (one, two) = (one.unwrap().applied(), two.unwrap().applied());
    assert!(one.is_some() != two.is_some());
    let expected = if one.is_some() {
        "run=by a"
    } else {
        "run=by b"
    };
    assert_eq!(f.next_events(&mut watch).await, [expected]);
    f.quiet(&mut watch).await;
}

async fn fifty_watchers_hear_one_write(f: Fixture) {
    let from = f.upcoming().await;
    let mut watches = Vec::new();
    for _ in 0..50 {
        watches.push(f.watch("", from).await);
    }
    let hear = join_all(watches.iter_mut().map(|watch| f.next_events(watch)));
    let write = async {
        f.pass(20).await;
        put(&*f.b, "k", "v").await
    };
    let (heard, _) = join(hear, write).await;
    assert_eq!(heard, vec![vec!["k=v".to_owned()]; 50]);
}

async fn watches_of_many_starts_join_the_same_stream(f: Fixture) {
    let mut starts = Vec::new();
    for i in 0..10 {
        starts.push(put(&*f.a, "k", i.to_string()).await);
    }
    let mut watches = Vec::new();
    for start in &starts {
        watches.push(f.watch("", *start).await);
    }
    let last = put(&*f.a, "k", "last").await;
    for (i, watch) in watches.iter_mut().enumerate() {
        for value in i..10 {
            assert_eq!(f.next_events(watch).await, [format!("k={value}")]);
        }
        assert_eq!(f.next(watch).await.revision, last);
    }
}

async fn opening_while_others_write_leaves_no_gap(f: Fixture) {
    let first = put(&*f.a, "k", "0").await;
    let write = async {
        for i in 1..120 {
            put(&*f.b, "k", i.to_string()).await;
        }
    };
    let read = async {
        for _ in 0..12 {
            f.pass(1).await;
            let from = f.now().await.max(first);
            let mut watch = f.watch("k", from).await;
            let start = f.next_events(&mut watch).await.remove(0);
            let start: usize = start[2..].parse().unwrap();
            for value in start + 1..120 {
                assert_eq!(f.next_events(&mut watch).await, [format!("k={value}")]);
            }
        }
    };
    join(write, read).await;
}

async fn a_watch_resumed_behind_its_last_change_repeats_nothing(f: Fixture) {
    let mut from = f.upcoming().await;
    for i in 0..40 {
        let txn = Txn::new().put("a", i.to_string()).put("b", i.to_string());
        apply(&*f.a, txn).await;
    }
    let mut expected = 0;
    while expected < 40 {
        let mut watch = f.watch("", from).await;
        for _ in 0..=expected % 3 {
            if expected == 40 {
                break;
            }
            let changes = f.next(&mut watch).await;
            assert_eq!(
                events(&changes),
                [format!("a={expected}"), format!("b={expected}")]
            );
            expected += 1;
            from = after(changes.revision);
        }
    }
    let mut watch = f.watch("", from).await;
    f.quiet(&mut watch).await;
}

async fn two_watches_read_by_whichever_is_first_lose_nothing(f: Fixture) {
    let from = f.upcoming().await;
    let (mut jobs, mut runs) = (f.watch("job", from).await, f.watch("run", from).await);
    let write = async {
        for i in 0..60 {
            let key = if i % 3 == 0 { "job" } else { "run" };
            put(&*f.b, key, i.to_string()).await;
        }
    };
    let read = async {
        let (mut heard_jobs, mut heard_runs) = (Vec::new(), Vec::new());
        while heard_jobs.len() + heard_runs.len() < 60 {
            match race(f.next_events(&mut jobs), f.next_events(&mut runs)).await {
                Either::Left(job) => heard_jobs.extend(job),
                Either::Right(run) => heard_runs.extend(run),
            }
        }
        (heard_jobs, heard_runs)
    };
    let ((), (heard_jobs, heard_runs)) = join(write, read).await;
    let expected = |key: &str, of: fn(&i32) -> bool| -> Vec<String> {
        (0..60).filter(of).map(|i| format!("{key}={i}")).collect()
    };
    assert_eq!(heard_jobs, expected("job", |i| i % 3 == 0));
    assert_eq!(heard_runs, expected("run", |i| i % 3 != 0));
}

async fn overlapping_spans_agree(f: Fixture) {
    let from = f.upcoming().await;
    let mut all = f.watch("", from).await;
    let mut some = f.watch("job/0", from).await;
    for i in 0..30 {
        let txn = Txn::new()
            .put(format!("job/{:02}", i % 20), i.to_string())
            .put("cursor", i.to_string());
        apply(&*f.a, txn).await;
    }
    for i in 0..30 {
        let key = format!("job/{:02}={i}", i % 20);
        let changes = f.next(&mut all).await;
        assert_eq!(events(&changes), [format!("cursor={i}"), key.clone()]);
        if i % 20 < 10 {
            let part = f.next(&mut some).await;
            assert_eq!(
                (part.revision, events(&part)),
                (changes.revision, vec![key])
            );
        }
    }
}

async fn elsewhere_has_watches_of_its_own(f: Fixture) {
    let page = super::kit::read(&*f.elsewhere, "", None).await.unwrap();
    let span = Span::prefix("");
    let mut theirs = f
        .elsewhere
        .watch(&span, after(page.revision))
        .await
        .unwrap();
    let mut ours = f.watch("", f.upcoming().await).await;
    put(&*f.a, "k", "ours").await;
    f.quiet(&mut theirs).await;
    put(&*f.elsewhere, "k", "theirs").await;
    assert_eq!(f.next_events(&mut theirs).await, ["k=theirs"]);
    assert_eq!(f.next_events(&mut ours).await, ["k=ours"]);
    f.quiet(&mut ours).await;
}

async fn an_unread_watch_is_complete_or_refused(f: Fixture) {
    let from = f.upcoming().await;
    let mut watch = f.watch("", from).await;
    let mut last = from;
    for i in 0..20 {
        last = put(&*f.a, "k", i.to_string()).await;
    }
    (f.compact)(last).await.unwrap();
    // What it fetched before it may report; where it stops, it must say so.
    for i in 0..20 {
        match watch.next().await {
            Ok(changes) => assert_eq!(events(&changes), [format!("k={i}")]),
            Err(BackendError::Compacted { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

async fn a_refused_watch_disturbs_no_other(f: Fixture) {
    let first = put(&*f.a, "k", "1").await;
    let second = put(&*f.a, "k", "2").await;
    let mut good = f.watch("", after(second)).await;
    (f.compact)(second).await.unwrap();
    for i in 3..8 {
        let ended = f.end(f.a.watch(&Span::prefix(""), first).await).await;
        assert!(matches!(ended, BackendError::Compacted { .. }));
        put(&*f.a, "k", i.to_string()).await;
        assert_eq!(f.next_events(&mut good).await, [format!("k={i}")]);
    }
}

async fn compacting_again_moves_the_start(f: Fixture) {
    let one = put(&*f.a, "k", "1").await;
    let two = put(&*f.a, "k", "2").await;
    let three = put(&*f.a, "k", "3").await;
    put(&*f.a, "k", "4").await;
    (f.compact)(one).await.unwrap();
    let mut watch = f.watch("", two).await;
    assert_eq!(f.next_events(&mut watch).await, ["k=2"]);
    (f.compact)(three).await.unwrap();
    let ended = f.end(f.a.watch(&Span::prefix(""), two).await).await;
    assert!(matches!(ended, BackendError::Compacted { oldest } if oldest >= three));
    let mut watch = f.watch("", after(three)).await;
    assert_eq!(f.next_events(&mut watch).await, ["k=4"]);
}

async fn compacting_to_the_present_refuses_only_the_past(f: Fixture) {
    let first = put(&*f.a, "k", "1").await;
    let last = put(&*f.a, "k", "2").await;
    (f.compact)(last).await.unwrap();
    let mut watch = f.watch("", after(last)).await;
    f.quiet(&mut watch).await;
    put(&*f.b, "k", "3").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=3"]);
    let ended = f.end(f.b.watch(&Span::prefix(""), first).await).await;
    assert!(matches!(ended, BackendError::Compacted { .. }));
}

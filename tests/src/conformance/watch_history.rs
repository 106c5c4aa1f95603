//! Where a watch starts, what it replays, and where it must refuse.

use futures_util::future::join;
use punctual::backend::{BackendError, BackendExt as _, Revision, Span, Txn, Write};

use super::kit::{
    absent, after, apply, choose, delete, events, judged, leased, long_lease, put, short_lease,
    shown,
};
use super::{Fixture, cases};

cases!("watch":
    it_starts_at_its_revision_inclusive,
    it_starts_after_its_revision_when_that_touched_other_keys,
    it_may_start_in_the_future,
    it_replays_history_in_order,
    it_replays_deletes_and_ends_of_leases,
    it_replays_a_revision_whole,
    it_replays_values_as_they_were,
    it_goes_on_seamlessly_from_history_to_present,
    it_replays_hundreds_of_revisions,
    it_replays_large_values,
    a_slow_reader_misses_nothing,
    list_then_watch_misses_nothing,
    the_same_history_can_be_read_again_and_again,
    it_replays_the_branches_taken,
    it_replays_batches_whole,
    it_replays_the_end_of_a_lease_where_it_happened;
    compacting
    a_compacted_start_is_refused,
    a_refused_watch_stays_refused,
    resumes_after_compaction,
    starts_behind_the_revision_compacted_to,
    a_watch_that_has_seen_all_survives_compaction,
    a_watch_of_the_future_survives_compaction,
    a_refusal_names_where_reading_is_possible,
);

async fn it_starts_at_its_revision_inclusive(f: Fixture) {
    put(&*f.a, "k", "before").await;
    let from = put(&*f.a, "k", "at").await;
    put(&*f.a, "k", "after").await;
    let mut watch = f.watch("", from).await;
    assert_eq!(f.next_events(&mut watch).await, ["k=at"]);
    assert_eq!(f.next_events(&mut watch).await, ["k=after"]);
}

async fn it_starts_after_its_revision_when_that_touched_other_keys(f: Fixture) {
    put(&*f.a, "k", "before").await;
    let from = put(&*f.a, "other", "v").await;
    put(&*f.a, "k", "after").await;
    let mut watch = f.watch("k", from).await;
    assert_eq!(f.next_events(&mut watch).await, ["k=after"]);
}

async fn it_may_start_in_the_future(f: Fixture) {
    let from = Revision(f.now().await.0 + 5);
    let mut watch = f.watch("", from).await;
    let mut expected = Vec::new();
    for i in 0..10 {
        let revision = put(&*f.a, "k", i.to_string()).await;
        if revision >= from {
            expected.push((revision, vec![format!("k={i}")]));
        }
    }
    assert!(expected.len() >= 6);
    for (revision, shown) in expected {
        let changes = f.next(&mut watch).await;
        assert_eq!((changes.revision, events(&changes)), (revision, shown));
    }
}

async fn it_replays_history_in_order(f: Fixture) {
    let from = f.upcoming().await;
    let mut made = Vec::new();
    for i in 0..20 {
        made.push(put(&*f.a, format!("k{}", i % 3), i.to_string()).await);
    }
    let mut watch = f.b.watch(&Span::prefix("k"), from).await.unwrap();
    for (i, revision) in made.into_iter().enumerate() {
        let changes = f.next(&mut watch).await;
        assert_eq!(changes.revision, revision);
        assert_eq!(events(&changes), [format!("k{}={i}", i % 3)]);
    }
    f.quiet(&mut watch).await;
}

async fn it_replays_deletes_and_ends_of_leases(f: Fixture) {
    let from = f.upcoming().await;
    let lease = long_lease(&*f.a).await;
    let txn = Txn::new()
        .op(leased("b", "v", lease))
        .op(leased("a", "v", lease));
    apply(&*f.a, txn.put("c", "v")).await;
    delete(&*f.a, "c").await;
    f.a.revoke(lease).await.unwrap();
    let mut watch = f.watch("", from).await;
    assert_eq!(f.next_events(&mut watch).await, ["a=v", "b=v", "c=v"]);
    assert_eq!(f.next_events(&mut watch).await, ["-c"]);
    assert_eq!(f.next_events(&mut watch).await, ["-a", "-b"]);
}

async fn it_replays_a_revision_whole(f: Fixture) {
    let txn = (0..100).fold(Txn::new(), |txn, i| txn.put(format!("k{i:02}"), "v"));
    let from = apply(&*f.a, txn).await;
    let mut watch = f.watch("", from).await;
    let changes = f.next(&mut watch).await;
    assert_eq!((changes.revision, changes.events.len()), (from, 100));
    f.quiet(&mut watch).await;
}

async fn it_replays_values_as_they_were(f: Fixture) {
    let from = put(&*f.a, "k", "1").await;
    put(&*f.a, "k", "2").await;
    delete(&*f.a, "k").await;
    let mut watch = f.watch("", from).await;
    for expected in ["k=1", "k=2", "-k"] {
        assert_eq!(f.next_events(&mut watch).await, [expected]);
    }
}

async fn it_goes_on_seamlessly_from_history_to_present(f: Fixture) {
    let from = put(&*f.a, "k", "0").await;
    let mut watch = f.watch("", from).await;
    let write = async {
        for i in 1..100 {
            put(&*f.b, "k", i.to_string()).await;
        }
    };
    let read = async {
        for i in 0..100 {
            assert_eq!(f.next_events(&mut watch).await, [format!("k={i}")]);
        }
    };
    join(write, read).await;
    f.quiet(&mut watch).await;
}

async fn it_replays_hundreds_of_revisions(f: Fixture) {
    let from = f.upcoming().await;
    for i in 0..600 {
        put(&*f.a, "k", i.to_string()).await;
    }
    let mut watch = f.watch("", from).await;
    for i in 0..600 {
        assert_eq!(f.next_events(&mut watch).await, [format!("k={i}")]);
    }
}

async fn it_replays_large_values(f: Fixture) {
    let from = f.upcoming().await;
    for i in 0..8u8 {
        put(&*f.a, "k", vec![i; 700_000]).await;
    }
    let mut watch = f.watch("", from).await;
    for i in 0..8u8 {
        let changes = f.next(&mut watch).await;
        match &changes.events[..] {
            [punctual::backend::Event::Put(entry)] => {
                assert!(entry.value.len() == 700_000 && entry.value.iter().all(|b| *b == i));
            }
            other => panic!("{} events", other.len()),
        }
    }
}

async fn a_slow_reader_misses_nothing(f: Fixture) {
    let mut watch = f.watch("", f.upcoming().await).await;
    put(&*f.a, "k", "0").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=0"]);
    for i in 1..300 {
        put(&*f.a, "k", i.to_string()).await;
    }
    f.pass(200).await;
    for i in 1..300 {
        assert_eq!(f.next_events(&mut watch).await, [format!("k={i}")]);
    }
}

async fn list_then_watch_misses_nothing(f: Fixture) {
    let write = async {
        for i in 0..200 {
            let txn = match i % 4 {
                3 => Txn::new().delete(format!("k{}", (i / 4) % 7)),
                _ => Txn::new().put(format!("k{}", i % 7), i.to_string()),
            };
            apply(&*f.b, txn).await;
        }
        put(&*f.b, "end", "").await
    };
    let view = async {
        f.pass(5).await;
        let (entries, revision) = f.a.list(&Span::prefix("")).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut view: std::collections::BTreeMap<String, String> = entries
            .iter()
            .map(|entry| (text(&entry.key), text(&entry.value)))
            .collect();
        let mut watch = f.watch("", after(revision)).await;
        while !view.contains_key("end") {
            for event in f.next_events(&mut watch).await {
                match event.split_once('=') {
                    Some((key, value)) => drop(view.insert(key.into(), value.into())),
                    None => drop(view.remove(&event[1..])),
                }
            }
        }
        view
    };
    let (_, view) = join(write, view).await;
    let view: Vec<String> = view.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(view, shown(&*f.a, "", None).await);
}

async fn the_same_history_can_be_read_again_and_again(f: Fixture) {
    let from = put(&*f.a, "k", "1").await;
    put(&*f.a, "k", "2").await;
    for _ in 0..5 {
        let mut watch = f.watch("", from).await;
        assert_eq!(f.next_events(&mut watch).await, ["k=1"]);
        assert_eq!(f.next_events(&mut watch).await, ["k=2"]);
    }
}

async fn it_replays_the_branches_taken(f: Fixture) {
    let from = f.upcoming().await;
    for _ in 0..2 {
        let txn = Txn::new()
            .op(choose(
                absent("run"),
                Write::put("run", "v"),
                Write::put("skip", "v"),
            ))
            .op(choose(
                absent("no"),
                Write::delete("no2"),
                Write::delete("no3"),
            ));
        apply(&*f.a, txn).await;
    }
    let mut watch = f.watch("", from).await;
    assert_eq!(f.next_events(&mut watch).await, ["run=v"]);
    assert_eq!(f.next_events(&mut watch).await, ["skip=v"]);
    f.quiet(&mut watch).await;
}

async fn it_replays_batches_whole(f: Fixture) {
    let from = f.upcoming().await;
    let create = |key: &str| Txn::new().require(absent(key)).put(key, "v");
    judged(&*f.a, &[], &[create("b"), create("a")]).await;
    judged(&*f.a, &[], &[create("a"), create("c"), create("b")]).await;
    let mut watch = f.watch("", from).await;
    assert_eq!(f.next_events(&mut watch).await, ["a=v", "b=v"]);
    assert_eq!(f.next_events(&mut watch).await, ["c=v"]);
    f.quiet(&mut watch).await;
}

async fn it_replays_the_end_of_a_lease_where_it_happened(f: Fixture) {
    let from = f.upcoming().await;
    let lease = short_lease(&*f.a).await;
    apply(&*f.a, Txn::new().op(leased("leased", "v", lease))).await;
    put(&*f.a, "k", "before").await;
    let mut live = f.watch("leased", f.upcoming().await).await;
    assert_eq!(f.next_events(&mut live).await, ["-leased"]);
    put(&*f.a, "k", "after").await;
    let mut watch = f.watch("", from).await;
    for expected in ["leased=v", "k=before", "-leased", "k=after"] {
        assert_eq!(f.next_events(&mut watch).await, [expected]);
    }
}

/// Three puts of `k`, compacted to the third; answers their revisions.
async fn compacted(f: &Fixture) -> [Revision; 3] {
    let revisions = [
        put(&*f.a, "k", "1").await,
        put(&*f.a, "k", "2").await,
        put(&*f.a, "k", "3").await,
    ];
    (f.compact)(revisions[2]).await.unwrap();
    revisions
}

async fn a_compacted_start_is_refused(f: Fixture) {
    let [first, second, _] = compacted(&f).await;
    for gone in [first, second] {
        for span in [Span::prefix(""), Span::key("untouched")] {
            match f.end(f.a.watch(&span, gone).await).await {
                BackendError::Compacted { oldest } => assert!(oldest > gone),
                other => panic!("{other}"),
            }
        }
    }
}

async fn a_refused_watch_stays_refused(f: Fixture) {
    let [first, ..] = compacted(&f).await;
    let Ok(mut watch) = f.a.watch(&Span::prefix(""), first).await else {
        return; // Refused where it was opened: there is nothing to call.
    };
    let refused = watch.next().await.unwrap_err();
    put(&*f.a, "k", "4").await;
    assert_eq!(watch.next().await.unwrap_err(), refused);
}

async fn resumes_after_compaction(f: Fixture) {
    let [first, ..] = compacted(&f).await;
    let ended = f.end(f.b.watch(&Span::prefix(""), first).await).await;
    assert!(matches!(ended, BackendError::Compacted { .. }));
    // The cure: list, and watch from behind the list.
    let (entries, revision) = f.b.list(&Span::prefix("")).await.unwrap();
    assert_eq!(entries.len(), 1);
    let mut watch = f.b.watch(&Span::prefix(""), after(revision)).await.unwrap();
    f.quiet(&mut watch).await;
    put(&*f.a, "k", "4").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=4"]);
}

async fn starts_behind_the_revision_compacted_to(f: Fixture) {
    let [.., third] = compacted(&f).await;
    delete(&*f.a, "k").await;
    put(&*f.a, "k", "5").await;
    let mut watch = f.watch("", after(third)).await;
    assert_eq!(f.next_events(&mut watch).await, ["-k"]);
    assert_eq!(f.next_events(&mut watch).await, ["k=5"]);
}

async fn a_watch_that_has_seen_all_survives_compaction(f: Fixture) {
    let from = put(&*f.a, "k", "1").await;
    let mut watch = f.watch("", from).await;
    let second = put(&*f.a, "k", "2").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=1"]);
    assert_eq!(f.next_events(&mut watch).await, ["k=2"]);
    f.quiet(&mut watch).await;
    (f.compact)(second).await.unwrap();
    f.quiet(&mut watch).await;
    put(&*f.a, "k", "3").await;
    assert_eq!(f.next_events(&mut watch).await, ["k=3"]);
}

async fn a_watch_of_the_future_survives_compaction(f: Fixture) {
    let from = Revision(f.now().await.0 + 4);
    let mut watch = f.watch("", from).await;
    for i in 0..2 {
        let revision = put(&*f.a, "k", i.to_string()).await;
        (f.compact)(revision).await.unwrap();
    }
    let mut last = Revision(0);
    while last < from {
        last = put(&*f.a, "k", "now").await;
    }
    assert_eq!(f.next_events(&mut watch).await, ["k=now"]);
}

async fn a_refusal_names_where_reading_is_possible(f: Fixture) {
    let [first, ..] = compacted(&f).await;
    put(&*f.a, "k", "4").await;
    let ended = f.end(f.a.watch(&Span::prefix(""), first).await).await;
    let BackendError::Compacted { oldest } = ended else {
        panic!("{ended}");
    };
    // Reading there, and watching from behind it, is a complete view.
    assert_eq!(shown(&*f.a, "", Some(oldest)).await, ["k=3"]);
    let mut watch = f.watch("", after(oldest)).await;
    assert_eq!(f.next_events(&mut watch).await, ["k=4"]);
}

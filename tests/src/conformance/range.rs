//! Reading.

use punctual::backend::{BackendError, Page, PageLimit, Revision, Span, Txn};

use super::kit::{after, apply, assert_rejected, delete, put, read, shown};
use super::{Fixture, Store, cases};

cases!("range":
    a_fresh_store_holds_nothing,
    entries_come_in_byte_order,
    one_key_is_not_its_neighbours,
    a_span_may_run_to_the_end_of_the_keyspace,
    a_span_that_ends_before_it_starts_is_empty,
    an_entry_tells_when_it_was_created_and_modified,
    a_page_holds_so_many_entries,
    a_page_holds_so_many_bytes,
    a_page_holds_at_least_one_entry,
    an_older_revision_is_read_as_it_was,
    pages_of_one_revision_ignore_later_writes,
    the_future_is_rejected,
    one_handle_sees_what_the_other_wrote,
    elsewhere_is_another_world;
    compacting
    a_compacted_revision_is_refused,
    the_revision_compacted_to_can_be_read,
    compaction_leaves_the_present_alone,
);

async fn a_fresh_store_holds_nothing(f: Fixture) {
    let page = read(&*f.a, "", None).await.unwrap();
    assert_eq!(page.entries, []);
    assert!(!page.more);
    assert!(page.revision >= Revision(1));
}

async fn entries_come_in_byte_order(f: Fixture) {
    let txn = ["b", "a/1", "a", "é", "ab", "A"]
        .iter()
        .fold(Txn::new(), |txn, key| txn.put(*key, ""));
    apply(&*f.a, txn).await;
    let expected = ["A=", "a=", "a/1=", "ab=", "b=", "é="];
    assert_eq!(shown(&*f.a, "", None).await, expected);
}

async fn one_key_is_not_its_neighbours(f: Fixture) {
    apply(
        &*f.a,
        Txn::new()
            .put("a", "own")
            .put("a\0", "next")
            .put("aa", "longer")
            .put("A", "before"),
    )
    .await;
    let page = f.a.range(&Span::key("a"), PageLimit::default(), None).await;
    let page = page.unwrap();
    assert_eq!(page.entries.len(), 1);
    assert_eq!(page.entries[0].value, b"own");
}

async fn a_span_may_run_to_the_end_of_the_keyspace(f: Fixture) {
    for key in [
        vec![0x01],
        b"b".to_vec(),
        b"c".to_vec(),
        vec![0xff, 0xff, 0xff],
    ] {
        put(&*f.a, key, "v").await;
    }
    let span = Span {
        start: b"b".to_vec(),
        end: None,
    };
    let page = f.a.range(&span, PageLimit::default(), None).await.unwrap();
    let keys: Vec<&[u8]> = page.entries.iter().map(|e| e.key.as_slice()).collect();
    assert_eq!(keys, [&b"b"[..], b"c", &[0xff, 0xff, 0xff]]);
}

async fn a_span_that_ends_before_it_starts_is_empty(f: Fixture) {
    put(&*f.a, "b", "v").await;
    for end in ["a", "b"] {
        let span = Span {
            start: b"b".to_vec(),
            end: Some(end.into()),
        };
        let page = f.a.range(&span, PageLimit::default(), None).await.unwrap();
        assert_eq!(page.entries, []);
        assert!(!page.more);
    }
}

async fn an_entry_tells_when_it_was_created_and_modified(f: Fixture) {
    let first = put(&*f.a, "k", "1").await;
    let second = put(&*f.a, "k", "2").await;
    delete(&*f.a, "k").await;
    let third = put(&*f.a, "k", "3").await;
    assert!(first < second && second < third);
    let stood = |at| {
        let store = f.a.clone();
        async move {
            let page = read(&*store, "k", Some(at)).await;
            let entry = page.unwrap().entries.remove(0);
            (entry.created, entry.modified, entry.lease)
        }
    };
    assert_eq!(stood(first).await, (first, first, None));
    assert_eq!(stood(second).await, (first, second, None));
    assert_eq!(stood(third).await, (third, third, None));
}

/// Values of `size` bytes under `k0` to `k9`.
async fn ten(store: &Store, size: usize) -> Revision {
    let txn = (0..10).fold(Txn::new(), |txn, i| {
        txn.put(format!("k{i}"), vec![b'v'; size])
    });
    apply(&**store, txn).await
}

fn keys(page: &Page) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    page.entries.iter().map(|entry| text(&entry.key)).collect()
}

async fn a_page_holds_so_many_entries(f: Fixture) {
    ten(&f.a, 1).await;
    let limit = PageLimit {
        entries: 4,
        ..PageLimit::default()
    };
    let mut span = Span::prefix("k");
    for (expected, more) in [
        (&["k0", "k1", "k2", "k3"][..], true),
        (&["k4", "k5", "k6", "k7"], true),
        (&["k8", "k9"], false),
    ] {
        let page = f.a.range(&span, limit, None).await.unwrap();
        assert_eq!(keys(&page), expected);
        assert_eq!(page.more, more);
        span = span.after(&page.entries.last().unwrap().key);
    }
    let exact = PageLimit {
        entries: 10,
        ..limit
    };
    let page = f.a.range(&Span::prefix("k"), exact, None).await.unwrap();
    assert_eq!((page.entries.len(), page.more), (10, false));
}

async fn a_page_holds_so_many_bytes(f: Fixture) {
    ten(&f.a, 98).await;
    let limit = |bytes| PageLimit {
        bytes,
        ..PageLimit::default()
    };
    for (bytes, entries) in [(300, 3), (299, 2), (301, 3), (1_000, 10)] {
        let page = f.a.range(&Span::prefix("k"), limit(bytes), None).await;
        let page = page.unwrap();
        assert_eq!(page.entries.len(), entries, "of 100 bytes each in {bytes}");
        assert_eq!(page.more, entries < 10);
    }
}

async fn a_page_holds_at_least_one_entry(f: Fixture) {
    ten(&f.a, 1_000).await;
    for (entries, bytes) in [(1_000, 0), (0, 1 << 20), (0, 0), (1_000, 999)] {
        let limit = PageLimit { entries, bytes };
        let page = f.a.range(&Span::prefix("k"), limit, None).await.unwrap();
        assert_eq!(keys(&page), ["k0"]);
        assert!(page.more);
    }
}

async fn an_older_revision_is_read_as_it_was(f: Fixture) {
    let before = f.now().await;
    let one = apply(&*f.a, Txn::new().put("b", "1").put("c", "1")).await;
    let two = apply(&*f.a, Txn::new().delete("b").put("a", "2")).await;
    let three = apply(&*f.a, Txn::new().put("b", "3").put("c", "3")).await;
    let none: [&str; 0] = [];
    assert_eq!(shown(&*f.a, "", Some(before)).await, none);
    assert_eq!(shown(&*f.a, "", Some(one)).await, ["b=1", "c=1"]);
    assert_eq!(shown(&*f.a, "", Some(two)).await, ["a=2", "c=1"]);
    assert_eq!(shown(&*f.b, "", Some(three)).await, ["a=2", "b=3", "c=3"]);
    assert_eq!(shown(&*f.b, "b", Some(two)).await, none);
}

async fn pages_of_one_revision_ignore_later_writes(f: Fixture) {
    ten(&f.a, 1).await;
    let limit = PageLimit {
        entries: 5,
        ..PageLimit::default()
    };
    let span = Span::prefix("k");
    let first = f.a.range(&span, limit, None).await.unwrap();
    apply(
        &*f.b,
        Txn::new().delete("k1").delete("k7").put("k5x", "new"),
    )
    .await;
    let rest = span.after(&first.entries[4].key);
    let second = f.a.range(&rest, limit, Some(first.revision)).await.unwrap();
    assert_eq!(second.revision, first.revision);
    assert_eq!(keys(&second), ["k5", "k6", "k7", "k8", "k9"]);
    assert!(!second.more);
}

async fn the_future_is_rejected(f: Fixture) {
    let future = Revision(f.now().await.0 + 1_000_000);
    assert_rejected(read(&*f.a, "", Some(future)).await);
}

async fn one_handle_sees_what_the_other_wrote(f: Fixture) {
    for i in 0..20 {
        let (one, other) = if i % 2 == 0 {
            (&f.a, &f.b)
        } else {
            (&f.b, &f.a)
        };
        let revision = put(&**one, "k", i.to_string()).await;
        assert_eq!(shown(&**other, "k", None).await, [format!("k={i}")]);
        assert_eq!(
            shown(&**other, "k", Some(revision)).await,
            [format!("k={i}")]
        );
    }
}

async fn elsewhere_is_another_world(f: Fixture) {
    put(&*f.elsewhere, "k", "theirs").await;
    let none: [&str; 0] = [];
    assert_eq!(shown(&*f.a, "", None).await, none);
    put(&*f.a, "k", "ours").await;
    assert_eq!(shown(&*f.b, "", None).await, ["k=ours"]);
    assert_eq!(shown(&*f.elsewhere, "", None).await, ["k=theirs"]);
}

async fn a_compacted_revision_is_refused(f: Fixture) {
    let first = put(&*f.a, "k", "1").await;
    let second = put(&*f.a, "k", "2").await;
    put(&*f.a, "k", "3").await;
    (f.compact)(second).await.unwrap();
    for gone in [first, Revision(0)] {
        match read(&*f.b, "", Some(gone)).await {
            Err(BackendError::Compacted { oldest }) => assert!(oldest > gone),
            other => panic!("revision {gone} should be compacted: {other:?}"),
        }
    }
}

async fn the_revision_compacted_to_can_be_read(f: Fixture) {
    let txn = Txn::new()
        .put("deleted", "1")
        .put("kept", "1")
        .put("then", "1");
    apply(&*f.a, txn).await;
    delete(&*f.a, "deleted").await;
    let to = put(&*f.a, "k", "2").await;
    let later = apply(&*f.a, Txn::new().put("k", "3").delete("then")).await;
    (f.compact)(to).await.unwrap();
    assert_eq!(
        shown(&*f.a, "", Some(to)).await,
        ["k=2", "kept=1", "then=1"]
    );
    assert_eq!(shown(&*f.a, "", Some(later)).await, ["k=3", "kept=1"]);
}

async fn compaction_leaves_the_present_alone(f: Fixture) {
    let first = put(&*f.a, "k", "1").await;
    let second = put(&*f.a, "k", "2").await;
    (f.compact)(second).await.unwrap();
    let page = f.a.range(&Span::key("k"), PageLimit::default(), None).await;
    let entry = page.unwrap().entries.remove(0);
    assert_eq!((entry.created, entry.modified), (first, second));
    assert!(f.now().await >= second);
    assert!(put(&*f.b, "k", "3").await >= after(second));
}

//! What only an embedded store has: a life beyond the process, a directory, a way out of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;
use std::time::Duration;

use punctual::backend::{
    BackendError, BackendExt as _, BackendInfo as _, CoordinationBackend as _, Event, LeaseId,
    Revision, Span, Txn,
};
use punctual::env::{SharedEnv, TokioEnv, timeout};
use punctual_sled::{
    DumpError, Exported, Imported, OpenError, Options, SledBackend, export, import,
};
use support::{all, commit, leased, open};

fn keys(entries: &[punctual::backend::Entry]) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    entries.iter().map(|entry| text(&entry.key)).collect()
}

#[tokio::test]
async fn a_reopened_store_goes_on_where_it_stopped() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("db");
    let store = open(&directory).unwrap();
    let cluster = store.cluster_id();
    commit(&store, Txn::new().put("a", "1")).await;
    commit(&store, Txn::new().put("a", "2").put("b", vec![0, 255])).await;
    commit(&store, Txn::new().put("c", "3")).await;
    commit(&store, Txn::new().delete("c")).await;
    let before = all(&store).await;
    assert_eq!(before.1, Revision(5));
    store.close();

    let store = open(&directory).unwrap();
    assert_eq!(store.cluster_id(), cluster);
    assert_eq!(all(&store).await, before);
    let past = store
        .range(&Span::key("a"), Default::default(), Some(Revision(4)))
        .await;
    assert_eq!(
        past,
        Err(BackendError::Compacted {
            oldest: Revision(5)
        })
    );
    let watch = store.watch(&Span::prefix(""), Revision(5)).await;
    assert_eq!(
        watch.err(),
        Some(BackendError::Compacted {
            oldest: Revision(6)
        }),
        "what revision 5 changed is not known any more"
    );
    let mut watch = store.watch(&Span::prefix(""), Revision(6)).await.unwrap();
    assert_eq!(commit(&store, Txn::new().put("d", "4")).await, Revision(6));
    assert_eq!(watch.next().await.unwrap().revision, Revision(6));
}

#[tokio::test]
async fn the_leases_of_a_dead_process_end_in_one_revision_and_no_number_is_used_again() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path()).unwrap();
    let one = store.grant(60_000).await.unwrap().id;
    let two = store.grant(60_000).await.unwrap().id;
    commit(&store, leased("b", one).put("free", "v")).await;
    commit(&store, leased("a", two)).await;
    store.close();

    let store = open(place.path()).unwrap();
    let (entries, revision) = all(&store).await;
    assert_eq!(keys(&entries), ["free"]);
    assert_eq!(revision, Revision(4));
    let mut watch = store.watch(&Span::prefix(""), revision).await.unwrap();
    let deleted = |key: &str| Event::Delete {
        key: key.into(),
        revision,
    };
    assert_eq!(
        watch.next().await.unwrap().events,
        [deleted("a"), deleted("b")]
    );
    assert_eq!(store.keep_alive(one).await, Err(BackendError::LeaseLost));
    assert_eq!(store.grant(0).await.unwrap().id, LeaseId(two.0 + 1));
    store.close();
    assert_eq!(
        all(&open(place.path()).unwrap()).await.1,
        Revision(4),
        "nothing was left to delete"
    );
}

#[tokio::test]
async fn dropping_the_last_handle_frees_the_directory_and_an_open_watch_does_not_hold_it() {
    let place = tempfile::tempdir().unwrap();
    let env: SharedEnv = TokioEnv::shared();
    for round in 0..5 {
        let store = open(place.path()).unwrap();
        let other = store.clone();
        let mut watch = store.watch(&Span::prefix(""), Revision(99)).await.unwrap();
        drop(store);
        assert!(matches!(
            open(place.path()),
            Err(OpenError::InUse { directory }) if directory == place.path()
        ));
        commit(&other, Txn::new().put(format!("k{round}"), "v")).await;
        drop(other);
        let over = timeout(&*env, Duration::from_secs(5), watch.next()).await;
        assert!(matches!(over, Some(Err(BackendError::Unavailable(_)))));
    }
    let entries = all(&open(place.path()).unwrap()).await.0;
    assert_eq!(entries.len(), 5);
}

#[tokio::test]
async fn a_closed_store_is_unavailable_on_every_handle() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path()).unwrap();
    let other = store.clone();
    store.close();
    store.close();
    let answer = other.commit(&Txn::new().put("a", "1")).await;
    assert!(matches!(answer, Err(BackendError::Unavailable(_))));
    assert!(matches!(
        other.get(b"a").await,
        Err(BackendError::Unavailable(_))
    ));
}

#[tokio::test]
async fn requests_that_wait_share_a_flush_and_each_gets_its_own_answer() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path()).unwrap();
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { commit(&store, Txn::new().put(format!("k{i}"), "v")).await })
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        revisions.push(task.await.unwrap().0);
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (2..202).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_watch_whose_call_is_dropped_again_and_again_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    let env: SharedEnv = TokioEnv::shared();
    let store = open(place.path()).unwrap();
    let mut watch = store.watch(&Span::prefix(""), Revision(2)).await.unwrap();
    for number in 0..50u64 {
        let dropped = timeout(&*env, Duration::from_millis(1), watch.next()).await;
        assert!(dropped.is_none());
        let revision = commit(&store, Txn::new().put("k", number.to_string())).await;
        assert_eq!(watch.next().await.unwrap().revision, revision);
    }
}

#[tokio::test]
async fn a_database_of_a_newer_release_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    open(place.path()).unwrap().close();
    // What a newer release would write: version 2, and a checksum over version, key and body.
    let length = 6u32.to_le_bytes();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in [&[2u8][..], &length, b"future"] {
        for byte in part
            .iter()
            .copied()
            .chain((part.len() as u64).to_le_bytes())
        {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    let mut body = vec![0xf1, b'p', b'n', 0xb7, 2];
    body.extend(hash.to_le_bytes());
    body.extend(length);
    body.extend(b"future");
    write_raw(place.path(), b"m", body);
    let error = open(place.path()).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("upgrade this server"), "{error}");
}

fn write_raw(directory: &Path, key: &[u8], value: Vec<u8>) {
    let config = sled::Config::new()
        .path(directory.join("gen-0000000001"))
        .flush_every_ms(None);
    let db = config.open().unwrap();
    db.insert(key, value).unwrap();
    db.flush().unwrap();
}

#[tokio::test]
async fn a_record_that_changed_behind_our_back_is_damage_and_its_last_good_version_is_found() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("db");
    let store = open(&directory).unwrap();
    for key in ["a", "b", "c"] {
        commit(&store, Txn::new().put(key, key)).await;
    }
    store.close();
    write_raw(&directory, b"eb", b"\x01nonsense of some length".to_vec());
    let error = open(&directory).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(
        said.contains(&*directory.join("gen-0000000001/db").to_string_lossy()),
        "{said}"
    );
    assert!(said.contains("export") && said.contains("import"), "{said}");

    let mut lines = Vec::new();
    let exported = export(&directory, &mut lines).unwrap();
    assert_eq!(
        exported,
        Exported {
            entries: 3,
            missing: 0,
            complete: true
        }
    );
    let fresh = place.path().join("fresh");
    import(&fresh, &mut lines.as_slice()).unwrap();
    let (entries, revision) = all(&open(&fresh).unwrap()).await;
    assert_eq!(keys(&entries), ["a", "b", "c"]);
    assert_eq!(entries[1].value, b"b");
    assert_eq!(revision, Revision(4));
}

#[tokio::test]
async fn export_and_import_keep_everything_but_leased_entries() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    let store = open(&from).unwrap();
    let cluster = store.cluster_id();
    let lease = store.grant(60_000).await.unwrap().id;
    commit(&store, Txn::new().put("a", "\u{1f550} \"quoted\"\n")).await;
    commit(&store, Txn::new().put(vec![b'b', 0xff], vec![0, 0xfe, 7])).await;
    commit(&store, Txn::new().put("a", "newer")).await;
    let (mut entries, _) = all(&store).await;
    commit(&store, leased("z", lease)).await;
    let mut lines = Vec::new();
    assert!(matches!(
        export(&from, &mut lines),
        Err(DumpError::Open(OpenError::InUse { .. }))
    ));
    store.close();
    assert!(lines.is_empty());

    let exported = export(&from, &mut lines).unwrap();
    assert_eq!((exported.entries, exported.complete), (4 - 1, true));
    assert_eq!(String::from_utf8(lines.clone()).unwrap().lines().count(), 4);
    let imported = import(&to, &mut lines.as_slice()).unwrap();
    assert_eq!(
        imported,
        Imported {
            entries: 2,
            leased: 1
        }
    );
    let store = open(&to).unwrap();
    assert_eq!(store.cluster_id(), cluster);
    let found = all(&store).await;
    entries.sort_by(|one, two| one.key.cmp(&two.key));
    assert_eq!(found, (entries, Revision(5)));
    assert_eq!(store.grant(0).await.unwrap().id, LeaseId(lease.0 + 1));
    store.close();
    assert!(matches!(
        import(&to, &mut lines.as_slice()),
        Err(DumpError::NotEmpty(_))
    ));
    let nothing = place.path().join("nothing");
    assert!(matches!(
        export(&nothing, &mut Vec::new()),
        Err(DumpError::Nothing(_))
    ));
    assert!(!nothing.exists());
}

#[test]
fn an_import_refuses_what_no_export_writes_and_leaves_no_store_behind() {
    let place = tempfile::tempdir().unwrap();
    let head = r#"{"punctual":1,"cluster":"00000000000000ff","revision":9,"next_lease":1}"#;
    let entry = |key: &str, created: u64, modified: u64| {
        format!(r#"{{"key":"{key}","created":{created},"modified":{modified},"value":""}}"#)
    };
    let cases = [
        (String::new(), 1, "empty"),
        ("what?".into(), 1, "expected value"),
        (head.replace(":1,", ":2,"), 1, "format 2"),
        (format!("{head}\n{}", entry("a", 3, 10)), 2, "revisions"),
        (format!("{head}\n{}", entry("a", 0, 2)), 2, "revisions"),
        (format!("{head}\n{}", entry("", 2, 2)), 2, "ascending"),
        (
            format!("{head}\n{}\n{}", entry("b", 2, 2), entry("a", 2, 2)),
            3,
            "ascending",
        ),
        (
            format!("{head}\n{{\"key\":\"a\",\"created\":2,\"modified\":2}}"),
            2,
            "value",
        ),
    ];
    for (index, (lines, expected, words)) in cases.into_iter().enumerate() {
        let directory = place.path().join(index.to_string());
        let error = import(&directory, &mut lines.as_bytes()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains(words), "{lines}: {said}");
        match error {
            DumpError::Line { line, .. } => assert_eq!(line, expected, "{lines}"),
            other => panic!("{lines}: {other:?}"),
        }
        let unfinished = open(&directory).unwrap_err();
        assert!(matches!(unfinished, OpenError::Damaged { .. }), "{lines}");
    }
}

/// P06: records are written and deleted for ever.
#[tokio::test]
async fn churn_on_a_bounded_live_set_fills_the_disk_to_a_plateau() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("db");
    let options = Options {
        rewrite_above_bytes: 1 << 20,
        ..Options::default()
    };
    let store = SledBackend::open(&directory, TokioEnv::shared(), options).unwrap();
    let mut sizes = Vec::new();
    for round in 0..10u64 {
        for number in round * 300..(round + 1) * 300 {
            let mut txn = Txn::new();
            for part in 0..4u64 {
                txn = txn.put(format!("done/{part}/{number:06}"), vec![b'x'; 900]);
                if number >= 100 {
                    txn = txn.delete(format!("done/{part}/{:06}", number - 100));
                }
            }
            commit(&store, txn.put("cursor", number.to_string())).await;
        }
        sizes.push(store.usage().await.unwrap().used_bytes >> 10);
    }
    let before = all(&store).await;
    store.close();
    // 10.8 MB were written, 0.36 MB of them live. A generation takes 2 MiB at least, two of them
    // are there while one is written.
    sizes.sort_unstable();
    assert!(sizes[9] < 8 << 10, "KiB after each round: {sizes:?}");
    assert!(sizes[5] < 4 << 10, "KiB after each round: {sizes:?}");
    let current = std::fs::read_to_string(directory.join("current")).unwrap();
    assert!(current.trim_end() > "gen-0000000003", "{current}");
    let left = std::fs::read_dir(&directory).unwrap().count();
    assert_eq!(left, 4, "lock, witness, current and one generation");
    assert_eq!(before.0.len(), 401);
    assert_eq!(all(&open(&directory).unwrap()).await, before);
}

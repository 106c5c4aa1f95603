//! Keys are read back as written, and reach into no other kind.

use super::*;

#[test]
fn keys_are_read_back_as_written() {
    let keys = Keys::new("prod");
    let at = AttemptKey {
        partition: 7,
        job: "a.b-c_d".into(),
        run: "a.b-c_d@20260812T000500Z".into(),
        attempt: 12,
    };
    assert_eq!(keys.parse_attempt(&keys.run(&at)), Some(at.clone()));
    assert_eq!(keys.parse_attempt(&keys.done(&at)), Some(at.clone()));
    assert_eq!(
        keys.parse_job(&keys.job(7, "x")),
        Some((7, Some("x".into())))
    );
    assert_eq!(keys.parse_job(&keys.changes(7)), Some((7, None)));
    assert_eq!(
        keys.parse_def(&keys.def(7, "x", 42)),
        Some(("x".into(), 42))
    );
    assert_eq!(keys.parse_cursor(&keys.cursor(15)), Some(15));
    assert_eq!(keys.parse_gone(&keys.gone(3, "x")), Some((3, "x".into())));
    assert_eq!(keys.parse_cancel(&keys.cancel("x@1")), Some("x@1".into()));
    assert_eq!(
        keys.parse_slot(&keys.slot(3, "x", 12)),
        Some((3, "x".into(), 12))
    );
    assert_eq!(
        keys.parse_progress(&keys.progress(3, "x", "x@1")),
        Some((3, "x".into(), "x@1".into()))
    );
    assert_eq!(
        keys.parse_node(&keys.node("n", "i")),
        Some(("n".into(), "i".into()))
    );
    assert_eq!(keys.parse_drain(&keys.drain("n")), Some("n".into()));
    assert_eq!(
        keys.parse_follower(&keys.follower("a", "b")),
        Some(("a".into(), "b".into()))
    );
    assert!(!keys.followers_of("a").contains(&keys.follower("a.b", "c")));
    assert_eq!(keys.parse_todo(&keys.todo("x@1")), Some("x@1".into()));
    let note = NoteKey {
        run: "x@1".into(),
        attempt: 12,
        event: "late".into(),
        index: 3,
    };
    assert_eq!(keys.parse_note(&keys.note(&note)), Some(note.clone()));
    assert!(keys.notes().contains(&keys.note(&note)));
    assert_eq!(keys.parse_note(&keys.trouble("x")), None);
    assert_eq!(keys.parse_delay(&keys.delay("x")), Some("x".into()));
    assert!(keys.lives_of("n").contains(&keys.node("n", "i")));
    assert!(!keys.lives_of("n").contains(&keys.node("n2", "i")));
    assert_eq!(keys.parse_clock(&keys.clock("n")), Some("n".into()));
    assert_eq!(job_of_run(&at.run), Some("a.b-c_d"));
    let of_change = "a.b-c_d~a-000000000000002a@20260812T000500Z";
    assert_eq!(job_of_run(of_change), Some("a.b-c_d"));
    let backfilled = "a.b-c_d~b-0123456789abcdef01234567@20260812T000500Z";
    assert_eq!(job_of_run(backfilled), Some("a.b-c_d"));
    let idem = keys.idem(backfilled);
    assert_eq!(keys.parse_idem(&idem), Some(backfilled.into()));
    let span = keys.idems_of("a.b-c_d~b-0123456789abcdef01234567");
    assert!(span.contains(&idem));
    assert_eq!(job_of_run("nothing"), None);
}

#[test]
fn no_other_spelling_of_a_key_is_read() {
    let keys = Keys::new("prod");
    let key = |rest: &str| format!("/prod/{rest}").into_bytes();
    for text in [
        "4", "04", "0004", "+004", "+04", "-04", " 04", "004 ", "4.0", "", "٠٠٤", "99999999",
        "65536", "004/", "004/x",
    ] {
        assert_eq!(keys.parse_cursor(&key(&format!("cursor/{text}"))), None);
    }
    for text in ["4", "0004", "+04", "04/x", "004/", "004//x", "004/x/y"] {
        assert_eq!(keys.parse_job(&key(&format!("job/{text}"))), None);
    }
    for text in ["4/x", "0004/x", "004", "004/", "004/x/y"] {
        assert_eq!(keys.parse_gone(&key(&format!("gone/{text}"))), None);
    }
    for text in [
        "4/x/r",
        "0004/x/r",
        "004/x",
        "004/x/",
        "004//r",
        "004/x/r/1",
    ] {
        assert_eq!(keys.parse_progress(&key(&format!("progress/{text}"))), None);
    }
    for text in [
        "4/x/0000000042",
        "004/x/42",
        "004/x/00000000042",
        "004/x/0000000042/y",
        "004//0000000042",
    ] {
        assert_eq!(keys.parse_def(&key(&format!("def/{text}"))), None);
    }
    for text in [
        "4/x/x@1/0001",
        "004/x/x@1/1",
        "004/x/x@1/00001",
        "004/x/x@1/+001",
        "004/x/x@1/0001/",
        "004//x@1/0001",
        "004/x//0001",
    ] {
        for kind in ["run", "done", "late"] {
            assert_eq!(keys.parse_attempt(&key(&format!("{kind}/{text}"))), None);
        }
    }
    for (text, parsed) in [
        ("drain/", keys.parse_drain(&key("drain/"))),
        ("drain/a/b", keys.parse_drain(&key("drain/a/b"))),
        ("clock/a/b", keys.parse_clock(&key("clock/a/b"))),
        ("cancel/a/b", keys.parse_cancel(&key("cancel/a/b"))),
    ] {
        assert_eq!(parsed, None, "{text}");
    }
    for text in ["n", "n/", "/i", "n/i/j"] {
        assert_eq!(keys.parse_node(&key(&format!("node/{text}"))), None);
    }
    // Behind the padding numbers go on.
    let at = AttemptKey {
        partition: 12_345,
        job: "x".into(),
        run: "x@1".into(),
        attempt: 123_456,
    };
    assert_eq!(keys.parse_attempt(&keys.run(&at)), Some(at));
    assert_eq!(keys.parse_cursor(&keys.cursor(12_345)), Some(12_345));
}

#[test]
fn spans_hold_their_own_keys_and_no_others() {
    let keys = Keys::new("prod");
    assert!(keys.jobs_of(7).contains(&keys.changes(7)));
    assert!(keys.jobs_of(7).contains(&keys.job(7, "x")));
    assert!(!keys.jobs_of(7).contains(&keys.job(8, "x")));
    let at = |job: &str| AttemptKey {
        partition: 7,
        job: job.into(),
        run: format!("{job}@20260812T000500Z"),
        attempt: 1,
    };
    assert!(keys.runs_of(7, "x").contains(&keys.run(&at("x"))));
    assert!(!keys.runs_of(7, "x").contains(&keys.run(&at("x.y"))));
    assert!(!keys.runs_of(7, "x").contains(&keys.done(&at("x"))));
    let above = keys.slots_from(7, "x", 2);
    assert!(!above.contains(&keys.slot(7, "x", 1)));
    assert!(above.contains(&keys.slot(7, "x", 2)) && above.contains(&keys.slot(7, "x", 999)));
    assert!(!above.contains(&keys.slot(7, "x.y", 5)));
}

#[test]
fn the_partition_of_a_job_never_changes() {
    // FNV-1a of "a" is af63dc4c8601ec8c (the authors' test vectors).
    assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    assert_eq!(partition_of("a", 16), 0xc);
    assert_eq!(partition_of("a", 1), 0);
}

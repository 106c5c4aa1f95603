use super::*;
use crate::backend::{Event, Op};

fn keep(revisions: usize) -> Retention {
    Retention {
        revisions,
        ..Retention::default()
    }
}

fn put(model: &mut Model, key: &str, value: &str) -> Revision {
    commit(model, &Txn::new().put(key, value))
}

fn commit(model: &mut Model, txn: &Txn) -> Revision {
    model.commit(txn).answer.unwrap().applied().unwrap()
}

fn leased(key: &str, lease: LeaseId) -> Txn {
    Txn::new().op(Write::Put {
        key: key.into(),
        value: b"v".to_vec(),
        lease: Some(lease),
    })
}

fn shown(model: &Model, at: Option<u64>) -> Vec<String> {
    let page = model
        .range(&Span::prefix(""), PageLimit::default(), at.map(Revision))
        .unwrap();
    page.entries
        .iter()
        .map(|e| {
            format!(
                "{}={}",
                String::from_utf8_lossy(&e.key),
                String::from_utf8_lossy(&e.value)
            )
        })
        .collect()
}

#[test]
fn each_request_that_changes_something_makes_one_revision() {
    let mut model = Model::default();
    assert_eq!(model.revision(), Revision(1));
    assert_eq!(put(&mut model, "a", "1"), Revision(2));
    assert_eq!(put(&mut model, "a", "1"), Revision(3), "the same value too");
    let many = Txn::new().put("b", "1").put("c", "1").delete("a");
    assert_eq!(commit(&mut model, &many), Revision(4));
    let absent = Txn::new().delete("nothing");
    assert_eq!(commit(&mut model, &absent), Revision(4));
    assert_eq!(commit(&mut model, &Txn::new()), Revision(4));
}

#[test]
fn an_entry_remembers_since_when_it_exists() {
    let mut model = Model::default();
    put(&mut model, "a", "1");
    put(&mut model, "a", "2");
    let entry = model.entries(&Span::key("a")).next().unwrap().clone();
    assert_eq!((entry.created, entry.modified), (Revision(2), Revision(3)));
    commit(&mut model, &Txn::new().delete("a"));
    put(&mut model, "a", "3");
    let entry = model.entries(&Span::key("a")).next().unwrap().clone();
    assert_eq!((entry.created, entry.modified), (Revision(5), Revision(5)));
}

#[test]
fn the_past_stays_readable_as_it_was() {
    let mut model = Model::default();
    put(&mut model, "b", "1");
    put(&mut model, "a", "1");
    commit(&mut model, &Txn::new().delete("b").put("c", "1"));
    put(&mut model, "b", "2");
    assert_eq!(shown(&model, Some(1)), [] as [&str; 0]);
    assert_eq!(shown(&model, Some(2)), ["b=1"]);
    assert_eq!(shown(&model, Some(3)), ["a=1", "b=1"]);
    assert_eq!(shown(&model, Some(4)), ["a=1", "c=1"]);
    assert_eq!(shown(&model, Some(5)), ["a=1", "b=2", "c=1"]);
    assert_eq!(shown(&model, None), ["a=1", "b=2", "c=1"]);
}

#[test]
fn compaction_forgets_what_stood_before_and_nothing_else() {
    let mut model = Model::default();
    for i in 0..5 {
        put(&mut model, "a", &i.to_string());
    }
    model.compact(Revision(4)).unwrap();
    let gone = BackendError::Compacted {
        oldest: Revision(4),
    };
    let all = Span::prefix("");
    assert_eq!(
        model.range(&all, PageLimit::default(), Some(Revision(3))),
        Err(gone.clone())
    );
    assert_eq!(shown(&model, Some(4)), ["a=2"]);
    assert_eq!(shown(&model, Some(5)), ["a=3"]);
    assert_eq!(model.history(&all, Revision(3)), Err(gone));
    assert_eq!(model.history(&all, Revision(4)).unwrap().len(), 3);
    assert_eq!(
        model.compact(Revision(2)),
        Ok(()),
        "an older one: nothing to do"
    );
    assert!(matches!(
        model.compact(Revision(7)),
        Err(BackendError::Rejected(_))
    ));
    model.compact(Revision(6)).unwrap();
    assert_eq!(shown(&model, None), ["a=4"]);
    assert_eq!(model.space.at(&all, Revision(6)).count(), 1);
}

#[test]
fn the_history_keeps_the_last_revisions_only() {
    let mut model = Model::new(keep(3));
    for i in 0..10 {
        put(&mut model, "a", &i.to_string());
    }
    // Revisions 9, 10 and 11 are kept.
    assert_eq!(shown(&model, Some(9)), ["a=7"]);
    let all = Span::prefix("");
    let compacted = BackendError::Compacted {
        oldest: Revision(9),
    };
    assert_eq!(model.history(&all, Revision(8)), Err(compacted.clone()));
    assert_eq!(
        model.range(&all, PageLimit::default(), Some(Revision(8))),
        Err(compacted)
    );
    assert_eq!(model.history(&all, Revision(9)).unwrap().len(), 3);
}

#[test]
fn the_history_is_bounded_in_bytes_too_but_keeps_the_newest_revision() {
    let mut model = Model::new(Retention {
        revisions: 100,
        bytes: 2_500,
    });
    for _ in 0..10 {
        commit(&mut model, &Txn::new().put("a", vec![0; 1_000]));
    }
    assert_eq!(
        model
            .history(&Span::prefix(""), Revision(10))
            .unwrap()
            .len(),
        2
    );
    assert!(model.history(&Span::prefix(""), Revision(9)).is_err());
    assert_eq!(model.bytes(), 3 * 1_001);
    commit(&mut model, &Txn::new().put("a", vec![0; 5_000]));
    assert_eq!(
        model
            .history(&Span::prefix(""), Revision(12))
            .unwrap()
            .len(),
        1
    );
    assert!(model.history(&Span::prefix(""), Revision(11)).is_err());
}

#[test]
fn the_end_of_a_lease_deletes_its_keys_in_one_revision_and_in_key_order() {
    let mut model = Model::default();
    let _ = model.advance(1_000);
    let lease = model.grant(3_000).answer.unwrap();
    for key in ["c", "a", "b"] {
        commit(&mut model, &leased(key, lease.id));
    }
    assert_eq!(model.next_deadline_ms(), Some(4_000));
    assert!(model.advance(3_999).revised.is_empty());
    let step = model.advance(4_000);
    assert_eq!(step.revised.len(), 1);
    let keys: Vec<&[u8]> = step.revised[0].changes.iter().map(Change::key).collect();
    assert_eq!(keys, [b"a", b"b", b"c"]);
    assert_eq!(model.revision(), Revision(5));
    assert_eq!(
        model.keep_alive(lease.id).answer,
        Err(BackendError::LeaseLost)
    );
    assert_eq!(model.next_deadline_ms(), None);
}

#[test]
fn several_leases_end_in_the_order_of_their_deadlines_each_in_its_own_revision() {
    let mut model = Model::default();
    let slow = model.grant(9_000).answer.unwrap();
    let fast = model.grant(2_000).answer.unwrap();
    let bare = model.grant(5_000).answer.unwrap();
    commit(&mut model, &leased("slow", slow.id));
    commit(&mut model, &leased("fast", fast.id));
    let step = model.advance(10_000);
    let ended: Vec<(u64, &[u8])> = step
        .revised
        .iter()
        .map(|r| (r.revision.0, r.changes[0].key()))
        .collect();
    assert_eq!(ended, [(4, &b"fast"[..]), (5, b"slow")]);
    assert_eq!(model.revoke(bare.id).answer, Err(BackendError::LeaseLost));
}

#[test]
fn a_time_that_goes_back_prolongs_nothing() {
    let mut model = Model::default();
    let _ = model.advance(10_000);
    let _ = model.advance(0);
    let lease = model.grant(2_000).answer.unwrap();
    assert_eq!(model.next_deadline_ms(), Some(12_000));
    let _ = model.advance(11_000);
    assert_eq!(model.keep_alive(lease.id).answer.unwrap().ttl_ms, 2_000);
    assert_eq!(model.next_deadline_ms(), Some(13_000));
}

#[test]
fn a_put_moves_or_detaches_the_key() {
    let mut model = Model::default();
    let one = model.grant(2_000).answer.unwrap();
    let two = model.grant(2_000).answer.unwrap();
    commit(&mut model, &leased("moved", one.id));
    commit(&mut model, &leased("moved", two.id));
    commit(&mut model, &leased("freed", one.id));
    put(&mut model, "freed", "v");
    assert!(model.revoke(one.id).revised.is_empty());
    assert_eq!(shown(&model, None), ["freed=v", "moved=v"]);
    assert_eq!(model.revoke(two.id).revised.len(), 1);
    assert_eq!(shown(&model, None), ["freed=v"]);
}

#[test]
fn a_dead_lease_fails_the_whole_request_but_only_where_it_would_be_used() {
    let mut model = Model::default();
    let dead = LeaseId(77);
    let txn = leased("a", dead).put("b", "v");
    assert_eq!(model.commit(&txn).answer, Err(BackendError::LeaseLost));
    assert!(model.is_empty());
    let conflicting = txn.require(Requirement::Created("x".into(), Revision(1)));
    assert_eq!(
        model.commit(&conflicting).answer,
        Ok(TxnOutcome::Conflict { seen: vec![None] })
    );
    let untaken = Txn::new().op(Op::Choose {
        require: vec![Requirement::Absent("a".into())],
        then: vec![Write::put("a", "v")],
        otherwise: vec![Write::Put {
            key: "a".into(),
            value: vec![],
            lease: Some(dead),
        }],
    });
    assert_eq!(commit(&mut model, &untaken), Revision(2));
    assert_eq!(model.commit(&untaken).answer, Err(BackendError::LeaseLost));
}

#[test]
fn a_restored_store_ends_all_leases_and_repeats_no_number() {
    let entry = |key: &str, lease: Option<u64>| Entry {
        key: key.into(),
        value: b"v".to_vec(),
        created: Revision(4),
        modified: Revision(9),
        lease: lease.map(LeaseId),
    };
    let step = Model::restore(
        Restored {
            entries: vec![entry("a", None), entry("b", Some(2)), entry("c", Some(5))],
            revision: Revision(11),
            next_lease: 6,
        },
        Retention::default(),
    );
    let mut model = step.answer.unwrap();
    assert_eq!(step.revised.len(), 1);
    assert_eq!(step.revised[0].revision, Revision(12));
    assert_eq!(shown(&model, None), ["a=v"]);
    assert_eq!(model.grant(0).answer.unwrap().id, LeaseId(6));
    assert_eq!(
        model.history(&Span::prefix(""), Revision(11)),
        Err(BackendError::Compacted {
            oldest: Revision(12)
        })
    );
    let replay = model.history(&Span::prefix(""), Revision(12)).unwrap();
    let deleted = |key: &str| Event::Delete {
        key: key.into(),
        revision: Revision(12),
    };
    assert_eq!(replay[0].events, [deleted("b"), deleted("c")]);
}

#[test]
fn a_restored_store_without_leases_keeps_its_revision() {
    let restored = Restored {
        entries: vec![],
        revision: Revision(11),
        next_lease: 1,
    };
    let model = Model::restore(restored, Retention::default())
        .answer
        .unwrap();
    assert_eq!(model.revision(), Revision(11));
    assert_eq!(shown(&model, Some(11)), [] as [&str; 0]);
    // What revision 11 itself changed is not known any more.
    assert!(model.history(&Span::prefix(""), Revision(11)).is_err());
    assert_eq!(model.history(&Span::prefix(""), Revision(12)), Ok(vec![]));
}

#[test]
fn a_watch_that_has_seen_all_stands_behind_the_newest_revision() {
    let mut model = Model::default();
    let all = Span::prefix("");
    let next = |model: &Model, from: u64| model.seek(&all, Revision(from)).unwrap().next;
    assert_eq!(next(&model, 1), Revision(2), "revision 1 changed nothing");
    put(&mut model, "a", "1");
    assert_eq!(model.seek(&Span::key("b"), Revision(1)).unwrap().next.0, 3);
    assert_eq!(next(&model, 9), Revision(9), "the future is waited for");
}

#[test]
fn a_restored_store_that_was_never_written_is_a_fresh_one() {
    let restored = Restored {
        entries: vec![],
        revision: Revision(1),
        next_lease: 1,
    };
    let model = Model::restore(restored, Retention::default())
        .answer
        .unwrap();
    assert_eq!(model.history(&Span::prefix(""), Revision(1)), Ok(vec![]));
}

#[test]
fn a_hundred_thousand_keys_are_no_burden() {
    let mut model = Model::default();
    for i in 0..1_000 {
        let txn = (0..100).fold(Txn::new(), |txn, j| txn.put(format!("k{i:04}/{j:02}"), "v"));
        commit(&mut model, &txn);
    }
    assert_eq!(model.len(), 100_000);
    let page = model
        .range(
            &Span::prefix("k0500/"),
            PageLimit {
                entries: 3,
                bytes: 1_000,
            },
            None,
        )
        .unwrap();
    assert_eq!(page.entries[2].key, b"k0500/02");
    assert!(page.more);
}

#[test]
fn a_request_applied_as_a_value_answers_the_same() {
    let mut one = Model::default();
    let mut two = one.clone();
    let txn = Txn::new().put("a", "1");
    let direct = one.commit(&txn);
    let applied = two.apply(&Operation::Commit(txn));
    assert_eq!(applied.revised, direct.revised);
    assert_eq!(applied.answer, direct.answer.map(Answer::Txn));
}

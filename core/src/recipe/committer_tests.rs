use proptest::prelude::*;

use super::*;
use crate::backend::{Op, Requirement, Revision};

fn pending(txn: Txn) -> Pending {
    let (answer, _) = oneshot::channel();
    Pending { txn, answer }
}

/// All groups that a queue is sent in.
fn groups(txns: Vec<Txn>) -> Vec<Vec<Txn>> {
    let mut waiting: VecDeque<Pending> = txns.into_iter().map(pending).collect();
    let mut groups = Vec::new();
    while !waiting.is_empty() {
        let group = take_group(&mut waiting);
        groups.push(group.into_iter().map(|pending| pending.txn).collect());
    }
    groups
}

fn step(run: usize) -> Txn {
    let key = format!("run/{run}");
    Txn::new()
        .require(Requirement::Modified(key.clone().into(), Revision(1)))
        .put(key, "next")
}

#[test]
fn independent_steps_share_a_request_up_to_its_width() {
    let sizes: Vec<usize> = groups((0..300).map(step).collect())
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(sizes, [127, 127, 46]);
}

#[test]
fn two_steps_of_one_key_go_one_after_the_other() {
    let split = groups(vec![step(1), step(1), step(2)]);
    assert_eq!(split, [vec![step(1), step(2)], vec![step(1)]]);
}

#[test]
fn what_one_writes_and_another_requires_stays_apart() {
    let all = Requirement::Empty(Span::prefix("run/"));
    let looks = Txn::new().require(all).put("seq", "1");
    assert_eq!(groups(vec![looks.clone(), step(1)]).len(), 2);
    assert_eq!(groups(vec![step(1), looks]).len(), 2);
}

#[test]
fn a_leased_put_and_a_giant_go_alone() {
    let leased = Txn::new().op(Write::Put {
        key: "node".into(),
        value: vec![],
        lease: Some(crate::backend::LeaseId(7)),
    });
    let giant = Txn::new().put("giant", vec![0; MAX_REQUEST_BYTES + 1]);
    let split = groups(vec![leased.clone(), step(1), giant.clone(), step(2)]);
    assert_eq!(split, [vec![leased], vec![step(1), step(2)], vec![giant]]);
}

fn any_key() -> impl Strategy<Value = Key> {
    (0..12_u8).prop_map(|n| format!("k/{n:02}").into_bytes())
}

fn any_requirement() -> impl Strategy<Value = Requirement> {
    prop_oneof![
        any_key().prop_map(Requirement::Absent),
        (any_key(), 1..9_u64).prop_map(|(key, at)| Requirement::Modified(key, Revision(at))),
        Just(Requirement::Empty(Span::prefix("k/0"))),
    ]
}

fn any_write() -> impl Strategy<Value = Write> {
    (any_key(), any::<bool>()).prop_map(|(key, put)| {
        if put {
            Write::put(key, "v")
        } else {
            Write::delete(key)
        }
    })
}

/// Transactions that a store accepts when they come alone.
fn any_txn() -> impl Strategy<Value = Txn> {
    let choice =
        (any_requirement(), any_write(), any_write()).prop_map(|(when, then, not)| Op::Choose {
            require: vec![when],
            then: vec![then],
            otherwise: vec![not],
        });
    let op = prop_oneof![4 => any_write().prop_map(Op::Write), 1 => choice];
    (
        prop::collection::vec(any_requirement(), 0..3),
        prop::collection::vec(op, 1..3),
    )
        .prop_map(|(require, ops)| Txn { require, ops })
        .prop_filter("accepted alone", |txn| limits::check_txn(txn).is_ok())
}

proptest! {
    /// Every group is a request that stores accept, nothing is lost, and nobody starves.
    #[test]
    fn groups_are_independent_and_complete(txns in prop::collection::vec(any_txn(), 1..40)) {
        let groups = groups(txns.clone());
        for group in &groups {
            prop_assert!(group.len() == 1 || limits::check_batch(&[], group).is_ok());
        }
        let mut sent: Vec<Txn> = groups.concat();
        prop_assert_eq!(sent.len(), txns.len());
        for txn in &txns {
            let place = sent.iter().position(|other| other == txn);
            prop_assert!(place.is_some());
            sent.remove(place.unwrap());
        }
        prop_assert_eq!(&groups[0][0], &txns[0], "the oldest is never passed over");
    }
}

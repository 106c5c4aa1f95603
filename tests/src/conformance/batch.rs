//! Many transactions in one request.

use punctual::backend::{BatchOutcome, Requirement, Revision, Span, Txn, TxnOutcome, Write};

use super::kit::{
    absent, assert_rejected, choose, created, empty, get, judged, leased, long_lease, modified,
    put, shown, shown_seen,
};
use super::{Fixture, cases};

cases!("batch":
    each_transaction_applies_or_conflicts_alone,
    all_writes_stand_at_one_revision,
    requirements_see_the_state_before_the_request,
    siblings_that_require_one_span_empty_all_apply,
    choices_inside_are_judged_on_the_state_before,
    a_guard_that_fails_applies_nothing,
    a_guard_that_holds_lets_all_through,
    a_consumed_guard_in_each_transaction_applies_once,
    without_transactions_it_only_asks_the_guard,
    where_all_conflict_nothing_changes,
    dependent_transactions_are_rejected,
    a_guard_on_what_is_written_is_rejected,
    a_key_written_twice_is_rejected,
    a_leased_put_is_rejected;
    compacting
);

fn create(key: &str) -> Txn {
    Txn::new().require(absent(key)).put(key, "new")
}

fn applied(outcome: &TxnOutcome) -> bool {
    outcome.applied().is_some()
}

async fn each_transaction_applies_or_conflicts_alone(f: Fixture) {
    put(&*f.a, "b", "old").await;
    let txns = [create("a"), create("b"), create("c")];
    let (_, outcomes) = judged(&*f.a, &[], &txns).await;
    let which: Vec<bool> = outcomes.iter().map(applied).collect();
    assert_eq!(which, [true, false, true]);
    match &outcomes[1] {
        TxnOutcome::Conflict { seen } => assert_eq!(shown_seen(seen), ["b=old"]),
        other => panic!("{other:?}"),
    }
    assert_eq!(shown(&*f.b, "", None).await, ["a=new", "b=old", "c=new"]);
}

async fn all_writes_stand_at_one_revision(f: Fixture) {
    let txns: Vec<Txn> = (0..30).map(|i| create(&format!("k{i:02}"))).collect();
    let (revision, outcomes) = judged(&*f.a, &[], &txns).await;
    assert_eq!(outcomes.len(), 30);
    for (i, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.applied(), Some(revision));
        let entry = get(&*f.b, &format!("k{i:02}")).await.unwrap();
        assert_eq!((entry.created, entry.modified), (revision, revision));
    }
}

async fn requirements_see_the_state_before_the_request(f: Fixture) {
    let at = put(&*f.a, "shared", "1").await;
    // All of them require what none of them changes.
    let txns: Vec<Txn> = (0..5)
        .map(|i| {
            Txn::new()
                .require(modified("shared", at))
                .put(format!("k{i}"), "v")
        })
        .collect();
    let (_, outcomes) = judged(&*f.a, &[], &txns).await;
    assert!(outcomes.iter().all(applied));
}

async fn siblings_that_require_one_span_empty_all_apply(f: Fixture) {
    let start = |i: u32| {
        Txn::new()
            .require(empty("running/"))
            .put(format!("pending/{i}"), "v")
    };
    let (_, outcomes) = judged(&*f.a, &[], &[start(1), start(2)]).await;
    assert!(outcomes.iter().all(applied));
    assert_eq!(shown(&*f.a, "", None).await, ["pending/1=v", "pending/2=v"]);
    put(&*f.a, "running/1", "v").await;
    let (_, outcomes) = judged(&*f.a, &[], &[start(3), start(4)]).await;
    assert!(!outcomes.iter().any(applied));
}

async fn choices_inside_are_judged_on_the_state_before(f: Fixture) {
    put(&*f.a, "busy/b", "v").await;
    let fire = |job: &str| {
        let run = Write::put(format!("run/{job}"), "v");
        let skip = Write::put(format!("skip/{job}"), "v");
        Txn::new().op(choose(empty(&format!("busy/{job}")), run, skip))
    };
    let (revision, outcomes) = judged(&*f.a, &[], &[fire("a"), fire("b"), fire("c")]).await;
    let chosen = |taken| TxnOutcome::Applied {
        revision,
        chosen: vec![taken],
    };
    assert_eq!(outcomes, [chosen(true), chosen(false), chosen(true)]);
    let expected = ["busy/b=v", "run/a=v", "run/c=v", "skip/b=v"];
    assert_eq!(shown(&*f.a, "", None).await, expected);
}

async fn a_guard_that_fails_applies_nothing(f: Fixture) {
    let term = put(&*f.a, "leader", "one").await;
    put(&*f.a, "leader", "two").await;
    let guard = [
        created("leader", term),
        modified("leader", term),
        absent("x"),
    ];
    match f.b.commit_batch(&guard, &[create("a"), create("b")]).await {
        Ok(BatchOutcome::GuardFailed { seen }) => {
            assert_eq!(shown_seen(&seen), ["leader=two", "leader=two", "nothing"]);
        }
        other => panic!("the guard should fail: {other:?}"),
    }
    assert_eq!(shown(&*f.a, "", None).await, ["leader=two"]);
}

async fn a_guard_that_holds_lets_all_through(f: Fixture) {
    let term = put(&*f.a, "leader", "one").await;
    let guard = [created("leader", term), empty("fence/")];
    let (_, outcomes) = judged(&*f.b, &guard, &[create("a"), create("b")]).await;
    assert!(outcomes.iter().all(applied));
}

async fn a_consumed_guard_in_each_transaction_applies_once(f: Fixture) {
    let one = put(&*f.a, "run/1", "PENDING").await;
    let two = put(&*f.a, "run/2", "PENDING").await;
    let claim = |key: &str, at: Revision| Txn::new().require(modified(key, at)).put(key, "LOCKED");
    let txns = [claim("run/1", one), claim("run/2", two)];
    let (first, outcomes) = judged(&*f.a, &[], &txns).await;
    assert!(outcomes.iter().all(applied));
    let (_, outcomes) = judged(&*f.b, &[], &txns).await;
    assert!(!outcomes.iter().any(applied));
    assert_eq!(get(&*f.a, "run/1").await.unwrap().modified, first);
}

async fn without_transactions_it_only_asks_the_guard(f: Fixture) {
    let (_, outcomes) = judged(&*f.a, &[absent("k")], &[]).await;
    assert_eq!(outcomes, []);
    put(&*f.a, "k", "v").await;
    let failed = f.a.commit_batch(&[absent("k")], &[]).await;
    assert!(matches!(failed, Ok(BatchOutcome::GuardFailed { .. })));
}

async fn where_all_conflict_nothing_changes(f: Fixture) {
    let at = put(&*f.a, "a", "old").await;
    put(&*f.a, "b", "old").await;
    let (revision, outcomes) = judged(&*f.a, &[], &[create("a"), create("b")]).await;
    assert!(!outcomes.iter().any(applied));
    assert!(revision > at);
    assert_eq!(shown(&*f.a, "", None).await, ["a=old", "b=old"]);
    assert_eq!(get(&*f.a, "a").await.unwrap().modified, at);
}

async fn dependent_transactions_are_rejected(f: Fixture) {
    let at = put(&*f.a, "k", "1").await;
    for requirement in [
        absent("k"),
        created("k", at),
        modified("k", at),
        Requirement::Empty(Span::prefix("k")),
    ] {
        let reader = Txn::new().require(requirement.clone()).put("x", "v");
        let writer = Txn::new().put("k", "2");
        assert_rejected(f.a.commit_batch(&[], &[reader, writer.clone()]).await);
        let inside = Txn::new().op(choose(
            requirement,
            Write::put("x", "v"),
            Write::put("y", "v"),
        ));
        assert_rejected(f.a.commit_batch(&[], &[writer, inside]).await);
    }
    assert_eq!(shown(&*f.a, "", None).await, ["k=1"]);
}

async fn a_guard_on_what_is_written_is_rejected(f: Fixture) {
    let at = put(&*f.a, "k", "1").await;
    let txn = Txn::new().put("k", "2");
    assert_rejected(f.a.commit_batch(&[modified("k", at)], &[txn]).await);
    assert_eq!(shown(&*f.a, "", None).await, ["k=1"]);
}

async fn a_key_written_twice_is_rejected(f: Fixture) {
    let put_k = Txn::new().put("k", "1").put("x", "1");
    let delete_k = Txn::new().delete("k");
    assert_rejected(f.a.commit_batch(&[], &[put_k.clone(), put_k.clone()]).await);
    assert_rejected(f.a.commit_batch(&[], &[put_k, delete_k]).await);
    let none: [&str; 0] = [];
    assert_eq!(shown(&*f.a, "", None).await, none);
}

async fn a_leased_put_is_rejected(f: Fixture) {
    let lease = long_lease(&*f.a).await;
    let txn = Txn::new().op(leased("k", "v", lease));
    assert_rejected(f.a.commit_batch(&[], &[create("x"), txn]).await);
    let none: [&str; 0] = [];
    assert_eq!(shown(&*f.a, "", None).await, none);
}

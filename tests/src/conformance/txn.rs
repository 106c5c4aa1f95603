//! Single transactions.

use futures_util::future::join;
use punctual::backend::{Op, Span, Txn, TxnOutcome, Write};

use super::kit::{
    absent, apply, choose, chosen, conflict, created, delete, empty, get, modified, put, shown,
};
use super::{Fixture, cases};

cases!("txn":
    all_writes_stand_at_its_revision,
    nothing_to_do_applies,
    deleting_what_is_not_there_applies,
    absent_decides,
    created_tells_a_key_from_its_successor,
    modified_tells_each_put_from_the_next,
    requirements_on_absent_keys_conflict,
    empty_decides_over_a_whole_span,
    a_conflict_shows_what_stands_where_each_requirement_looked,
    a_conflict_writes_nothing,
    a_consumed_guard_applies_once,
    of_two_that_race_one_wins,
    a_choice_takes_then_when_all_holds,
    a_choice_takes_otherwise_when_something_does_not_hold,
    choices_are_judged_on_the_state_before,
    choices_of_a_conflicting_transaction_do_nothing,
    a_choice_without_a_condition_takes_then,
    any_bytes_are_kept;
    compacting
);

async fn all_writes_stand_at_its_revision(f: Fixture) {
    put(&*f.a, "old", "1").await;
    let txn = Txn::new().put("a", "1").put("b", "2").delete("old");
    let revision = apply(&*f.a, txn).await;
    for key in ["a", "b"] {
        let entry = get(&*f.b, key).await.unwrap();
        assert_eq!((entry.created, entry.modified), (revision, revision));
    }
    assert_eq!(get(&*f.b, "old").await, None);
}

async fn nothing_to_do_applies(f: Fixture) {
    let before = put(&*f.a, "k", "1").await;
    assert!(apply(&*f.a, Txn::new()).await >= before);
    let only_checks = Txn::new().require(modified("k", before));
    assert!(apply(&*f.a, only_checks).await >= before);
    assert_eq!(get(&*f.a, "k").await.unwrap().modified, before);
}

async fn deleting_what_is_not_there_applies(f: Fixture) {
    delete(&*f.a, "nothing").await;
    let put_and_not = Txn::new().delete("nothing").put("k", "1");
    apply(&*f.a, put_and_not).await;
    assert_eq!(shown(&*f.a, "", None).await, ["k=1"]);
    delete(&*f.a, "k").await;
    delete(&*f.a, "k").await;
    assert_eq!(get(&*f.a, "k").await, None);
}

async fn absent_decides(f: Fixture) {
    let create = |value: &str| Txn::new().require(absent("k")).put("k", value);
    apply(&*f.a, create("first")).await;
    assert_eq!(conflict(&*f.b, create("second")).await, ["k=first"]);
    delete(&*f.a, "k").await;
    apply(&*f.b, create("third")).await;
    assert_eq!(shown(&*f.a, "", None).await, ["k=third"]);
}

async fn created_tells_a_key_from_its_successor(f: Fixture) {
    let born = put(&*f.a, "k", "1").await;
    put(&*f.a, "k", "2").await;
    let guarded = |value: &str| Txn::new().require(created("k", born)).put("x", value);
    apply(&*f.b, guarded("while it lives")).await;
    delete(&*f.a, "k").await;
    assert_eq!(conflict(&*f.b, guarded("dead")).await, ["nothing"]);
    put(&*f.a, "k", "3").await;
    assert_eq!(conflict(&*f.b, guarded("another")).await, ["k=3"]);
    assert_eq!(shown(&*f.a, "x", None).await, ["x=while it lives"]);
}

async fn modified_tells_each_put_from_the_next(f: Fixture) {
    let first = put(&*f.a, "k", "same").await;
    let second = put(&*f.a, "k", "same").await;
    let guarded = |at| Txn::new().require(modified("k", at)).put("x", "v");
    assert_eq!(conflict(&*f.b, guarded(first)).await, ["k=same"]);
    apply(&*f.b, guarded(second)).await;
    // A put of another key does not modify this one.
    apply(&*f.b, guarded(second)).await;
}

async fn requirements_on_absent_keys_conflict(f: Fixture) {
    let at = put(&*f.a, "other", "v").await;
    for requirement in [created("k", at), modified("k", at)] {
        let txn = Txn::new().require(requirement).put("x", "v");
        assert_eq!(conflict(&*f.a, txn).await, ["nothing"]);
    }
}

async fn empty_decides_over_a_whole_span(f: Fixture) {
    put(&*f.a, "job/b/1", "v").await;
    put(&*f.a, "job/b/2", "v").await;
    put(&*f.a, "job0", "behind the span").await;
    let first = |span: &str| Txn::new().require(empty(span)).put("x", "v");
    assert_eq!(conflict(&*f.a, first("job/")).await, ["job/b/1=v"]);
    assert_eq!(conflict(&*f.a, first("job/b/2")).await, ["job/b/2=v"]);
    apply(&*f.a, first("job/a/")).await;
    apply(&*f.a, first("job/b/3")).await;
    apply(&*f.a, Txn::new().delete("job/b/1").delete("job/b/2")).await;
    apply(&*f.a, first("job/")).await;
}

async fn a_conflict_shows_what_stands_where_each_requirement_looked(f: Fixture) {
    let a = put(&*f.a, "a", "1").await;
    let b = put(&*f.a, "b", "2").await;
    let txn = Txn::new()
        .require(modified("b", b))
        .require(absent("none"))
        .require(absent("a"))
        .require(empty("none/"))
        .require(empty("a"))
        .require(created("a", a));
    let seen = conflict(&*f.b, txn.put("x", "v")).await;
    assert_eq!(seen, ["b=2", "nothing", "a=1", "nothing", "a=1", "a=1"]);
}

async fn a_conflict_writes_nothing(f: Fixture) {
    let at = put(&*f.a, "k", "1").await;
    let txn = Txn::new()
        .require(modified("k", at))
        .require(absent("k"))
        .put("x", "v")
        .delete("k");
    conflict(&*f.a, txn).await;
    assert_eq!(shown(&*f.a, "", None).await, ["k=1"]);
    assert_eq!(get(&*f.a, "k").await.unwrap().modified, at);
}

async fn a_consumed_guard_applies_once(f: Fixture) {
    let seq = put(&*f.a, "seq", "0").await;
    let txn = Txn::new()
        .require(modified("seq", seq))
        .put("seq", "1")
        .put("run/1", "v");
    apply(&*f.a, txn.clone()).await;
    delete(&*f.a, "run/1").await;
    assert_eq!(conflict(&*f.b, txn).await, ["seq=1"]);
    assert_eq!(get(&*f.a, "run/1").await, None);
}

async fn of_two_that_race_one_wins(f: Fixture) {
    for round in 0..20 {
        let key = format!("race/{round}");
        let claim = |who: &str| Txn::new().require(absent(&key)).put(key.clone(), who);
        let (one, two) = (claim("a"), claim("b"));
        let (one, two) = join(f.a.commit(&one), f.b.commit(&two)).await;
        let winner = match (one.unwrap().applied(), two.unwrap().applied()) {
            (Some(_), None) => "a",
            (None, Some(_)) => "b",
            both => panic!("exactly one should win: {both:?}"),
        };
        assert_eq!(get(&*f.a, &key).await.unwrap().value, winner.as_bytes());
    }
}

async fn a_choice_takes_then_when_all_holds(f: Fixture) {
    let txn = Txn::new()
        .op(Op::Choose {
            require: vec![absent("none"), empty("run/")],
            then: vec![Write::put("run/1", "v"), Write::put("cursor", "1")],
            otherwise: vec![Write::put("skip/1", "v")],
        })
        .put("always", "v");
    assert_eq!(chosen(&*f.a, txn).await, [true]);
    let expected = ["always=v", "cursor=1", "run/1=v"];
    assert_eq!(shown(&*f.a, "", None).await, expected);
}

async fn a_choice_takes_otherwise_when_something_does_not_hold(f: Fixture) {
    put(&*f.a, "run/0", "v").await;
    let txn = Txn::new().op(Op::Choose {
        require: vec![absent("none"), empty("run/")],
        then: vec![Write::put("run/1", "v")],
        otherwise: vec![Write::put("skip/1", "v"), Write::delete("run/0")],
    });
    assert_eq!(chosen(&*f.a, txn).await, [false]);
    assert_eq!(shown(&*f.a, "", None).await, ["skip/1=v"]);
}

async fn choices_are_judged_on_the_state_before(f: Fixture) {
    let one = choose(
        empty("one/"),
        Write::put("one/x", "v"),
        Write::put("one/y", "v"),
    );
    let two = choose(
        absent("two"),
        Write::put("two", "then"),
        Write::put("two", "else"),
    );
    let txn = Txn::new().op(one).put("between", "v").op(two);
    assert_eq!(chosen(&*f.a, txn.clone()).await, [true, true]);
    assert_eq!(chosen(&*f.a, txn).await, [false, false]);
    let expected = ["between=v", "one/x=v", "one/y=v", "two=else"];
    assert_eq!(shown(&*f.a, "", None).await, expected);
}

async fn choices_of_a_conflicting_transaction_do_nothing(f: Fixture) {
    put(&*f.a, "k", "1").await;
    let txn = Txn::new()
        .require(absent("k"))
        .op(choose(
            absent("x"),
            Write::put("x", "1"),
            Write::put("y", "1"),
        ))
        .op(choose(
            absent("k"),
            Write::put("p", "1"),
            Write::put("q", "1"),
        ));
    assert_eq!(conflict(&*f.a, txn).await, ["k=1"]);
    assert_eq!(shown(&*f.a, "", None).await, ["k=1"]);
}

async fn a_choice_without_a_condition_takes_then(f: Fixture) {
    let txn = Txn::new().op(Op::Choose {
        require: vec![],
        then: vec![Write::put("then", "")],
        otherwise: vec![Write::put("else", "")],
    });
    assert_eq!(chosen(&*f.a, txn).await, [true]);
    assert_eq!(shown(&*f.a, "", None).await, ["then="]);
}

async fn any_bytes_are_kept(f: Fixture) {
    let odd: Vec<Vec<u8>> = vec![
        vec![0],
        vec![0, 0],
        vec![0xff],
        vec![0xff, 0],
        b"a\nb".to_vec(),
    ];
    for key in &odd {
        put(&*f.a, key.clone(), key.repeat(3)).await;
    }
    put(&*f.a, "empty", "").await;
    for key in &odd {
        let span = Span::key(key.clone());
        let page = f.b.range(&span, Default::default(), None).await.unwrap();
        assert_eq!(page.entries.len(), 1, "{key:?}");
        assert_eq!(page.entries[0].value, key.repeat(3));
    }
    assert_eq!(get(&*f.b, "empty").await.unwrap().value, b"");
    let seen = f.a.commit(&Txn::new().require(absent("empty"))).await;
    assert!(matches!(seen, Ok(TxnOutcome::Conflict { seen }) if seen[0].is_some()));
}

//! The size and shape of a request.

use punctual::backend::limits::{MAX_REQUEST_BYTES, MAX_WIDTH};
use punctual::backend::{Op, Requirement, Revision, Txn, Write};

use super::kit::{absent, apply, assert_rejected, get, judged, put, shown};
use super::{Fixture, cases};

cases!("limits":
    a_transaction_is_128_wide_and_no_wider,
    requirements_are_as_limited_as_writes,
    a_choice_adds_its_width_to_that_around_it,
    a_batch_adds_its_width_to_its_widest_transaction,
    a_request_holds_a_mebibyte_and_no_more,
    required_keys_count_twice,
    a_key_written_twice_is_rejected,
    a_choice_on_what_is_written_beside_it_is_rejected,
    an_empty_key_is_rejected,
    revision_zero_is_rejected,
    a_rejected_request_changes_nothing;
    compacting
);

fn puts(count: usize) -> Txn {
    (0..count).fold(Txn::new(), |txn, i| txn.put(format!("k{i:03}"), "v"))
}

fn choice(width: usize) -> Op {
    Op::Choose {
        require: vec![absent("none")],
        then: (0..width)
            .map(|i| Write::put(format!("c{i:03}"), "v"))
            .collect(),
        otherwise: vec![],
    }
}

async fn a_transaction_is_128_wide_and_no_wider(f: Fixture) {
    assert_eq!(MAX_WIDTH, 128);
    apply(&*f.a, puts(128)).await;
    assert_eq!(shown(&*f.b, "", None).await.len(), 128);
    assert_rejected(f.a.commit(&puts(129)).await);
}

async fn requirements_are_as_limited_as_writes(f: Fixture) {
    let many = |count| {
        (0..count).fold(Txn::new().put("x", "v"), |txn, i| {
            txn.require(absent(&format!("none{i}")))
        })
    };
    apply(&*f.a, many(128)).await;
    assert_rejected(f.a.commit(&many(129)).await);
    // They do not add up: 128 of each pass.
    let both = (0..127).fold(many(128), |txn, i| txn.put(format!("k{i}"), "v"));
    apply(&*f.a, both).await;
}

async fn a_choice_adds_its_width_to_that_around_it(f: Fixture) {
    apply(&*f.a, puts(63).op(choice(64))).await;
    assert_eq!(shown(&*f.a, "c", None).await.len(), 64);
    assert_rejected(f.a.commit(&puts(64).op(choice(64))).await);
}

async fn a_batch_adds_its_width_to_its_widest_transaction(f: Fixture) {
    let single = |i: usize| Txn::new().put(format!("s{i:03}"), "v");
    let batch = |count: usize| (0..count).map(single).collect::<Vec<Txn>>();
    let (_, outcomes) = judged(&*f.a, &[], &batch(127)).await;
    assert_eq!(outcomes.len(), 127);
    assert_rejected(f.a.commit_batch(&[], &batch(128)).await);
    let mut mixed = batch(63);
    mixed.push(puts(64));
    judged(&*f.a, &[], &mixed).await;
    mixed.push(single(900));
    assert_rejected(f.a.commit_batch(&[], &mixed).await);
}

async fn a_request_holds_a_mebibyte_and_no_more(f: Fixture) {
    assert_eq!(MAX_REQUEST_BYTES, 1_048_576);
    let sized = |bytes: usize| Txn::new().put("key", vec![b'v'; bytes - 3]);
    apply(&*f.a, sized(1_048_576)).await;
    assert_eq!(get(&*f.b, "key").await.unwrap().value.len(), 1_048_573);
    assert_rejected(f.a.commit(&sized(1_048_577)).await);
    let halves = |bytes: usize| {
        let txn = |key: &str| Txn::new().put(key, vec![b'h'; bytes - 1]);
        [txn("a"), txn("b")]
    };
    judged(&*f.a, &[], &halves(524_288)).await;
    assert_rejected(f.a.commit_batch(&[], &halves(524_289)).await);
}

async fn required_keys_count_twice(f: Fixture) {
    let many = |bytes: usize| {
        (100..228).fold(Txn::new().put("x", "v"), |txn, i| {
            txn.require(absent(&format!("{i}{}", "k".repeat(bytes - 3))))
        })
    };
    // 128 of them, compared and read back: 1,048,320 bytes and the put.
    apply(&*f.a, many(4_095)).await;
    assert_rejected(f.a.commit(&many(4_096)).await);
    let guard = many(4_096).require;
    assert_rejected(f.a.commit_batch(&guard, &[Txn::new().put("y", "v")]).await);
}

async fn a_key_written_twice_is_rejected(f: Fixture) {
    assert_rejected(f.a.commit(&Txn::new().put("k", "1").put("k", "1")).await);
    assert_rejected(f.a.commit(&Txn::new().delete("k").put("k", "1")).await);
    let inside = Op::Choose {
        require: vec![absent("none")],
        then: vec![],
        otherwise: vec![Write::put("k", "2")],
    };
    assert_rejected(f.a.commit(&Txn::new().put("k", "1").op(inside)).await);
}

async fn a_choice_on_what_is_written_beside_it_is_rejected(f: Fixture) {
    let on_k = Op::Choose {
        require: vec![absent("k")],
        then: vec![Write::put("x", "v")],
        otherwise: vec![],
    };
    assert_rejected(f.a.commit(&Txn::new().put("k", "1").op(on_k.clone())).await);
    let writes_k = Op::Choose {
        require: vec![],
        then: vec![],
        otherwise: vec![Write::delete("k")],
    };
    assert_rejected(f.a.commit(&Txn::new().op(writes_k).op(on_k)).await);
}

async fn an_empty_key_is_rejected(f: Fixture) {
    assert_rejected(f.a.commit(&Txn::new().put("", "v")).await);
    assert_rejected(f.a.commit(&Txn::new().delete("")).await);
    assert_rejected(f.a.commit(&Txn::new().require(absent(""))).await);
    assert_rejected(f.a.commit_batch(&[absent("")], &[]).await);
}

async fn revision_zero_is_rejected(f: Fixture) {
    let at_zero = [
        Requirement::Created("k".into(), Revision(0)),
        Requirement::Modified("k".into(), Revision(0)),
    ];
    for requirement in at_zero {
        let txn = Txn::new().require(requirement).put("x", "v");
        assert_rejected(f.a.commit(&txn).await);
    }
}

async fn a_rejected_request_changes_nothing(f: Fixture) {
    let before = put(&*f.a, "k000", "old").await;
    assert_rejected(f.a.commit(&puts(129)).await);
    assert_rejected(f.a.commit_batch(&[], &[puts(1), puts(1)]).await);
    assert_eq!(shown(&*f.a, "", None).await, ["k000=old"]);
    assert_eq!(get(&*f.a, "k000").await.unwrap().modified, before);
}

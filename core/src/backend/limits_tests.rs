use super::*;
use crate::backend::LeaseId;

fn puts(range: std::ops::Range<usize>) -> Txn {
    range.fold(Txn::new(), |txn, i| txn.put(format!("k{i}"), "v"))
}

fn choose(require: &[&str], then: &[&str], otherwise: &[&str]) -> Op {
    let puts = |keys: &[&str]| keys.iter().map(|k| Write::put(*k, "v")).collect();
    Op::Choose {
        require: require.iter().map(|k| absent(k)).collect(),
        then: puts(then),
        otherwise: puts(otherwise),
    }
}

fn absent(key: &str) -> Requirement {
    Requirement::Absent(key.into())
}

fn rejected(result: BackendResult<()>) -> String {
    match result {
        Err(BackendError::Rejected(why)) => why,
        other => panic!("expected a rejection, got {other:?}"),
    }
}

#[test]
fn a_level_is_as_wide_as_the_larger_of_requirements_and_writes() {
    assert_eq!(txn_width(&Txn::new()), 0);
    assert_eq!(txn_width(&puts(0..3)), 3);
    let five = (0..5).fold(puts(0..3), |txn, i| txn.require(absent(&format!("r{i}"))));
    assert_eq!(txn_width(&five), 5);
}

#[test]
fn a_choice_counts_as_one_write_and_adds_the_widest_of_its_parts() {
    let txn = puts(0..2).op(choose(&["a"], &["b", "c", "d"], &["e"]));
    assert_eq!(txn_width(&txn), 3 + 3);
    let txn = txn.op(choose(&["f", "g", "h", "i"], &["j"], &[]));
    assert_eq!(
        txn_width(&txn),
        4 + 4,
        "the widest choice counts, not their sum"
    );
}

#[test]
fn a_transaction_may_be_128_wide_and_no_wider() {
    assert_eq!(check_txn(&puts(0..128)), Ok(()));
    assert!(rejected(check_txn(&puts(0..129))).contains("129"));
    // One level of 125 puts and a choice, and two writes inside it: 126 + 2.
    assert_eq!(
        check_txn(&puts(0..125).op(choose(&["x"], &["x", "y"], &["z"]))),
        Ok(())
    );
    assert!(
        rejected(check_txn(&puts(0..126).op(choose(
            &["x"],
            &["x", "y"],
            &["z"]
        ))))
        .contains("129")
    );
}

#[test]
fn a_batch_adds_its_own_level_on_top_of_its_widest_transaction() {
    let txns: Vec<Txn> = (0..64)
        .map(|i| puts(i * 64..i * 64 + 64 * usize::from(i == 0)))
        .collect();
    assert_eq!(
        check_batch(&[], &txns),
        Ok(()),
        "64 transactions, the widest 64"
    );
    let guard: Vec<Requirement> = (0..65).map(|i| absent(&format!("g{i}"))).collect();
    assert_eq!(check_batch(&guard[..64], &txns), Ok(()));
    assert!(rejected(check_batch(&guard, &txns)).contains("129"));
}

#[test]
fn bytes_of_keys_values_and_requirements_add_up_to_a_mebibyte() {
    let exact = Txn::new()
        .require(absent("four"))
        .put("key", vec![0; MAX_REQUEST_BYTES - 11]);
    assert_eq!(txn_bytes(&exact), MAX_REQUEST_BYTES);
    assert_eq!(check_txn(&exact), Ok(()));
    let one_more = Txn::new()
        .require(absent("fours"))
        .put("key", vec![0; MAX_REQUEST_BYTES - 11]);
    assert!(rejected(check_txn(&one_more)).contains("1048578"));
    let half = |key: &str| Txn::new().put(key, vec![0; MAX_REQUEST_BYTES / 2]);
    assert!(rejected(check_batch(&[], &[half("a"), half("b")])).contains("bytes"));
}

#[test]
fn both_branches_of_a_choice_and_both_ends_of_a_span_count_as_bytes() {
    let txn = Txn::new()
        .require(Requirement::Empty(Span::prefix("abc")))
        .op(choose(&["12"], &["345"], &["6789"]));
    // Span abc..abd twice, requirement 12, puts 345=v and 6789=v.
    assert_eq!(txn_bytes(&txn), 12 + 2 + 4 + 5);
}

#[test]
fn no_key_is_written_twice() {
    assert!(rejected(check_txn(&Txn::new().put("a", "1").put("a", "2"))).contains("twice"));
    assert!(rejected(check_txn(&Txn::new().put("a", "1").delete("a"))).contains("twice"));
    assert!(rejected(check_batch(&[], &[puts(0..1), puts(0..1)])).contains("twice"));
    assert!(rejected(check_txn(&puts(0..1).op(choose(&["x"], &["k0"], &[])))).contains("twice"));
    let same_branch = Txn::new().op(choose(&["x"], &["a", "a"], &[]));
    assert!(rejected(check_txn(&same_branch)).contains("twice"));
}

#[test]
fn the_two_branches_of_a_choice_may_write_the_same_key() {
    assert_eq!(
        check_txn(&Txn::new().op(choose(&["x"], &["a"], &["a"]))),
        Ok(())
    );
    let two = Txn::new()
        .op(choose(&["x"], &["a"], &["b"]))
        .op(choose(&["x"], &["c"], &["b"]));
    assert!(rejected(check_txn(&two)).contains("twice"));
}

#[test]
fn a_transaction_may_require_what_it_writes_itself() {
    let txn = Txn::new()
        .require(Requirement::Modified("a".into(), Revision(7)))
        .put("a", "v")
        .op(choose(&["b"], &["b"], &[]));
    assert_eq!(check_txn(&txn), Ok(()));
}

#[test]
fn a_transaction_may_require_what_a_choice_inside_it_writes() {
    let txn = Txn::new()
        .require(absent("slot"))
        .op(choose(&["x"], &["slot"], &["other"]));
    assert_eq!(check_txn(&txn), Ok(()));
}

#[test]
fn a_choice_must_not_require_what_the_transaction_around_it_writes() {
    let txn = puts(0..1).op(choose(&["k0"], &["a"], &["b"]));
    assert!(rejected(check_txn(&txn)).contains("dependent"));
}

#[test]
fn a_choice_must_not_require_what_another_choice_writes() {
    let txn = Txn::new()
        .op(choose(&["x"], &["a"], &[]))
        .op(choose(&["a"], &["b"], &[]));
    assert!(rejected(check_txn(&txn)).contains("dependent"));
}

#[test]
fn transactions_of_a_batch_must_not_require_what_others_write() {
    let writer = Txn::new().put("job/a", "v");
    for requirement in [
        absent("job/a"),
        Requirement::Created("job/a".into(), Revision(3)),
        Requirement::Modified("job/a".into(), Revision(3)),
        Requirement::Empty(Span::prefix("job/")),
    ] {
        let reader = Txn::new().require(requirement.clone()).put("other", "v");
        let both = [writer.clone(), reader.clone()];
        assert!(rejected(check_batch(&[], &both)).contains("dependent"));
        assert!(rejected(check_batch(&[requirement], &both[..1])).contains("dependent"));
        assert_eq!(check_batch(&[], &both[1..]), Ok(()));
    }
    let beside = Txn::new().require(Requirement::Empty(Span::prefix("job/b")));
    assert_eq!(check_batch(&[], &[writer, beside]), Ok(()));
}

#[test]
fn a_choice_in_a_batch_must_not_write_what_another_transaction_requires() {
    let writer = Txn::new().op(choose(&["x"], &["a"], &["b"]));
    let reader = Txn::new().require(absent("b")).put("c", "v");
    assert!(rejected(check_batch(&[], &[reader, writer])).contains("dependent"));
}

#[test]
fn leases_never_go_into_a_batch() {
    let leased = Write::Put {
        key: "k".into(),
        value: vec![],
        lease: Some(LeaseId(1)),
    };
    let txn = Txn::new().op(leased.clone());
    assert_eq!(check_txn(&txn), Ok(()));
    assert!(rejected(check_batch(&[], &[txn])).contains("leased"));
    let inside = Txn::new().op(Op::Choose {
        require: vec![absent("k")],
        then: vec![leased],
        otherwise: vec![],
    });
    assert!(rejected(check_batch(&[], &[inside])).contains("leased"));
}

#[test]
fn empty_keys_and_revision_zero_are_no_names() {
    assert!(rejected(check_txn(&Txn::new().put("", "v"))).contains("empty"));
    assert!(rejected(check_txn(&Txn::new().delete(""))).contains("empty"));
    assert!(rejected(check_txn(&Txn::new().require(absent("")))).contains("empty"));
    assert!(rejected(check_batch(&[absent("")], &[])).contains("empty"));
    let zero = Requirement::Modified("k".into(), Revision(0));
    assert!(rejected(check_txn(&Txn::new().require(zero))).contains("revision 0"));
    let zero = Requirement::Created("k".into(), Revision(0));
    assert!(rejected(check_batch(&[zero], &[])).contains("revision 0"));
    let all = Requirement::Empty(Span::prefix(""));
    assert_eq!(check_txn(&Txn::new().require(all)), Ok(()));
}

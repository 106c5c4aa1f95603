//! Records as bytes.

use super::*;

#[test]
fn a_record_of_a_newer_schema_is_named_and_not_guessed_at() {
    let bytes = encode(&SeqRecord { seq: 7 });
    assert_eq!(bytes, br#"{"v":1,"r":{"seq":7}}"#);
    assert_eq!(decode::<SeqRecord>(&bytes), Ok(SeqRecord { seq: 7 }));
    let newer = br#"{"v":2,"r":{"sequence":"seven"}}"#;
    assert_eq!(
        decode::<SeqRecord>(newer).unwrap_err().to_string(),
        "cannot decode the record: it has schema 2, this version knows 1; upgrade this node"
    );
    // Also when it can be read: it may mean something else.
    let readable = br#"{"v":2,"r":{"seq":7}}"#;
    assert!(decode::<SeqRecord>(readable).is_err());
    for broken in [&b""[..], b"{}", b"\xff\xfe", b"{\"v\":1}", b"[1]"] {
        assert!(decode::<SeqRecord>(broken).is_err());
    }
}

#[test]
fn a_finished_window_is_not_open() {
    let mut cursor = CursorRecord::starting_at(1_000);
    assert!(!cursor.is_open());
    cursor.window.until_ms = 2_000;
    assert!(cursor.is_open());
    cursor.position = Position {
        at_ms: 2_000,
        job: "z".into(),
    };
    assert!(
        cursor.is_open(),
        "a job behind `z` may be due at the same instant"
    );
    cursor.position = Position::end_of(2_000);
    assert!(!cursor.is_open());
}

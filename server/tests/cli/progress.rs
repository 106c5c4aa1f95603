//! A command that says how far it has come, and goes on from there: the example of the documentation,
//! applied and run.

use serde_json::Value;

use crate::examples::{example, shown, trigger};
use crate::node::serve;
use crate::{Place, wait_for};

#[test]
fn the_example_of_a_checkpoint_goes_on_where_its_time_was_up() {
    let place = Place::new();
    place.write("jobs.yaml", example("## Progress and checkpoints"));
    let _node = serve(&place, "log");
    let run = trigger(&place, "copy-tables");

    // While it runs, it is seen how far it has come.
    let (said, tables) = wait_for("progress", || {
        let said = shown(&place, &run);
        let note = said["progress"]["note"].as_str()?;
        let tables: f64 = note.strip_suffix(" of 4 tables")?.parse().ok()?;
        (tables >= 1.0).then_some((said, tables))
    });
    assert_eq!(said["progress"]["fraction"], tables / 4.0, "{said}");
    assert_eq!(said["checkpoint"]["bytes"], 1, "{said}");
    let for_people = place.run(&["run", "show", &run]).ok();
    assert!(for_people.contains("of 4 tables), "), "{for_people}");
    let why = place.run(&["why", "copy-tables"]).ok();
    assert!(why.contains("it had come to"), "{why}");

    let ended = wait_for("the end", || {
        let ended = shown(&place, &run);
        (ended["state"] == "SUCCESS").then_some(ended)
    });
    assert_eq!(ended["progress"], Value::Null, "{ended}");
    assert_eq!(ended["checkpoint"], Value::Null, "{ended}");
    let attempts = ended["attempts"].as_array().unwrap();
    assert!(attempts.len() > 1, "{ended}");
    assert_eq!(attempts[0]["reason"], "timeout", "{ended}");
    // Each goes on where the one before was stopped, or at most one table before that.
    let tables = |attempt: &Value| -> Vec<u32> {
        let output = attempt["output_tail"].as_str().unwrap();
        let numbers = output.lines().filter_map(|l| l.strip_prefix("table "));
        numbers.map(|number| number.parse().unwrap()).collect()
    };
    let all: Vec<Vec<u32>> = attempts.iter().map(tables).collect();
    assert_eq!(all[0][0], 1, "{all:?}");
    for pair in all.windows(2) {
        let last = *pair[0].last().unwrap();
        assert!((last..=last + 1).contains(&pair[1][0]), "{all:?}");
        assert!(pair[1][0] > pair[0][0], "{all:?}");
    }
    assert_eq!(all.last().and_then(|tables| tables.last()), Some(&4));
}

#[test]
fn what_a_command_said_just_before_it_failed_is_kept_for_the_next_attempt() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        r#"
jobs:
  - id: fails-at-once
    run:
      command: ["sh", "-c", "echo got $PUNCTUAL_CHECKPOINT; echo \"{\\\"checkpoint\\\": \\\"of $PUNCTUAL_ATTEMPT\\\"}\" >&3; exit 3"]
    retry: { attempts: 3, backoff: 100ms }
"#,
    );
    let _node = serve(&place, "log");
    let run = trigger(&place, "fails-at-once");
    let ended = wait_for("the end", || {
        let ended = shown(&place, &run);
        (ended["state"] == "FAILED" && ended["attempt"] == 3).then_some(ended)
    });
    let got: Vec<&str> = (0..3)
        .map(|n| ended["attempts"][n]["output_tail"].as_str().unwrap())
        .collect();
    assert_eq!(got, ["got\n", "got of 1\n", "got of 2\n"], "{ended}");
    // To repeat it by hand is to begin anew.
    place.run(&["run", "retry", &run]).ok();
    let again = wait_for("the repetition", || {
        let again = shown(&place, &run);
        (again["state"] == "FAILED" && again["attempt"] == 4).then_some(again)
    });
    assert_eq!(again["output_tail"], "got\n", "{again}");
}

//! The example of the documentation about runs that overlap, applied and run.

use crate::Place;
use crate::examples::{becomes, example, shown, trigger};
use crate::node::serve;

/// O04 among them: the runs by hand count for the policy.
#[test]
fn the_example_of_runs_that_overlap_does_what_its_comments_say() {
    let place = Place::new();
    place.write("jobs.yaml", example("## Runs that overlap"));
    let _node = serve(&place, "log");

    let only = trigger(&place, "report");
    place
        .run(&["job", "trigger", "report"])
        .fails(4, &format!("{only} is not finished"));

    let first = trigger(&place, "import");
    becomes(&place, &first, "RUNNING");
    let waiting: Vec<String> = (0..3).map(|_| trigger(&place, "import")).collect();
    let full = place.run(&["job", "trigger", "import"]);
    assert_eq!(full.code, Some(4), "{full:?}");
    for named in waiting.iter().chain([&first]) {
        assert!(full.err.contains(named.as_str()), "{full:?}");
    }
    place.run(&["run", "cancel", &first]).ok();
    becomes(&place, &first, "FAILED");
    becomes(&place, &waiting[0], "RUNNING");
    assert_eq!(shown(&place, &waiting[2])["state"], "PENDING");

    let old = trigger(&place, "preview");
    becomes(&place, &old, "RUNNING");
    let new = trigger(&place, "preview");
    let ended = becomes(&place, &old, "FAILED");
    assert_eq!(ended["reason"], "cancelled", "{ended}");
    becomes(&place, &new, "RUNNING");

    let many: Vec<String> = (0..6).map(|_| trigger(&place, "thumbnails")).collect();
    for run in &many {
        becomes(&place, run, "SUCCESS");
    }
}

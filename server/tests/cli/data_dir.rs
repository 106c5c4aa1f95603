//! What a node finds in its data directory.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::node::serve;
use crate::{Place, wait_for};

const JOBS: &str = "jobs:\n  - id: a\n    run: { command: [\"true\"] }\n";

#[test]
fn a_start_survives_a_broken_client_file_and_removes_old_outputs() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    fs::create_dir_all(place.path("data/logs/a")).unwrap();
    for (name, days) in [("old.1.log", 31), ("new.1.log", 29)] {
        let path = place.path("data/logs/a").join(name);
        let file = fs::File::create(path).unwrap();
        let written = SystemTime::now() - Duration::from_secs(days * 86_400);
        file.set_modified(written).unwrap();
    }
    place.write("data/client.json", "{\"url\": \"http://127.0");
    let node = serve(&place, "log");
    let old = place.path("data/logs/a/old.1.log");
    wait_for("the old output to go", || (!old.exists()).then_some(()));
    assert!(place.path("data/logs/a/new.1.log").exists());
    drop(node);
    place.write("data/tokens.json", "{\"tokens\": [");
    let again = ["serve", "--store", "sled:data", "--listen", "127.0.0.1:0"];
    place.run(&again).fails(2, "delete it");
}

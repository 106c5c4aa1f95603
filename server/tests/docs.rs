//! Every job file that the documentation shows is a valid one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_job_files_of_the_documentation_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for page in ["README.md", "docs/jobs.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for block in text.split("```yaml\n").skip(1) {
            let yaml = block.split("```").next().unwrap();
            let file = dir.path().join(format!("{checked}.yaml"));
            std::fs::write(&file, yaml).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
                .arg("check")
                .arg(&file)
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{page}:\n{yaml}\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            checked += 1;
        }
    }
    assert!(checked >= 4, "only {checked} blocks: were they renamed?");
}

//! `import crontab`: what it writes, `check` reads.

use super::Place;

#[test]
fn a_crontab_becomes_a_job_file_that_check_takes() {
    let place = Place::new();
    let tab = "# Nightly\n30 2 * * * /usr/bin/backup\n@reboot /usr/bin/start\n";
    place.write("tab", tab);
    let ended = place.run(&["import", "crontab", "tab", "--tz", "Europe/Berlin"]);
    assert_eq!(ended.code, Some(1), "@reboot was left out");
    assert!(
        ended.err.contains("tab:3: left out: @reboot"),
        "{}",
        ended.err
    );
    assert!(ended.err.contains("1 job written"), "{}", ended.err);
    place.write("jobs.yaml", &ended.out);
    place.run(&["check", "jobs.yaml"]).ok();
    for part in ["id: backup", "timezone: Europe/Berlin", "name: Nightly"] {
        assert!(ended.out.contains(part), "{}", ended.out);
    }
    let input = "0 3 * * * root /usr/bin/x\n";
    let json = place.run_with_input(&["import", "crontab", "-", "-q", "-o", "json"], input);
    assert_eq!(json.err, "");
    assert_eq!(json.json()["jobs"][0]["run"]["command"][2], "/usr/bin/x");
    place.run(&["import", "crontab", "none"]).fails(2, "none");
}

//! Which of the commands' outputs a node keeps: `DATA_DIR/logs/JOB/RUN.ATTEMPT.log`.
//!
//! What can go wrong here: a disk that fills, or a file that goes while its run is still writing.
//! So what was written in the last hour stays, whatever the limits say.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How often to look.
const EVERY: Duration = Duration::from_secs(600);

/// What is kept.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// No file written to since then goes.
    fresh: Duration,
    age: Duration,
    files_of_a_job: usize,
    bytes: u64,
}

const LIMITS: Limits = Limits {
    fresh: Duration::from_secs(60 * 60),
    age: Duration::from_secs(30 * 24 * 60 * 60),
    files_of_a_job: 200,
    bytes: 1 << 30,
};

/// Removes what is too old or too much, now and from time to time. Never ends.
pub(crate) async fn keep_tidy(data_dir: &Path) {
    loop {
        let logs = data_dir.join("logs");
        // Tens of thousands of files take a while.
        let tidied =
            tokio::task::spawn_blocking(move || tidy(&logs, SystemTime::now(), LIMITS)).await;
        match tidied {
            Ok(Ok(0)) => {}
            Ok(Ok(files)) => tracing::info!(files, "old outputs of commands are removed"),
            Ok(Err(error)) => tracing::warn!(%error, "old outputs of commands stay"),
            Err(error) => tracing::error!(%error, "old outputs of commands stay"),
        }
        tokio::time::sleep(EVERY).await;
    }
}

struct Log {
    path: PathBuf,
    job: PathBuf,
    age: Duration,
    bytes: u64,
}

/// Returns how many files it removed.
fn tidy(logs: &Path, now: SystemTime, limits: Limits) -> io::Result<usize> {
    let jobs = match fs::read_dir(logs) {
        Ok(jobs) => jobs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    let mut directories = Vec::new();
    for job in jobs {
        let job = job?;
        // Not what a link leads to: only what the node itself has made.
        if job.file_type()?.is_dir() {
            if let Err(error) = find(&job.path(), now, &mut found) {
                left(&job.path(), &error);
            }
            directories.push(job.path());
        }
    }
    found.sort_by_key(|log| log.age);
    let mut of_job: BTreeMap<&Path, usize> = BTreeMap::new();
    let mut bytes = 0_u64;
    let mut removed = 0;
    for log in &found {
        let files = of_job.entry(&log.job).or_default();
        let is_fresh = log.age < limits.fresh;
        if !is_fresh && (log.age > limits.age || *files >= limits.files_of_a_job) {
            removed += usize::from(remove(&log.path));
            continue;
        }
        *files += 1;
        // Counted also if it goes: then everything older goes too.
        bytes = bytes.saturating_add(log.bytes);
        if !is_fresh && bytes > limits.bytes {
            removed += usize::from(remove(&log.path));
        }
    }
    for directory in directories {
        // One that was made just now awaits its first file. Fails unless it is empty.
        let unchanged = fs::metadata(&directory).map(|metadata| age(&metadata, now));
        if unchanged.is_ok_and(|unchanged| unchanged >= limits.fresh) {
            let _ = fs::remove_dir(directory);
        }
    }
    Ok(removed)
}

fn remove(path: &Path) -> bool {
    let removed = fs::remove_file(path);
    if let Err(error) = &removed {
        left(path, error);
    }
    removed.is_ok()
}

/// One that cannot be removed does not save the others.
fn left(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "old outputs of commands stay");
}

fn find(job: &Path, now: SystemTime, found: &mut Vec<Log>) -> io::Result<()> {
    for entry in fs::read_dir(job)? {
        let entry = entry?;
        let path = entry.path();
        let metadata = entry.metadata()?;
        if metadata.is_file() && path.extension().is_some_and(|extension| extension == "log") {
            found.push(Log {
                path,
                job: job.to_owned(),
                age: age(&metadata, now),
                bytes: metadata.len(),
            });
        }
    }
    Ok(())
}

/// Since it was last written to. A time to come, after a clock was set back, is now.
fn age(metadata: &fs::Metadata, now: SystemTime) -> Duration {
    let written = metadata.modified().unwrap_or(now);
    now.duration_since(written).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// Makes a file of 10 bytes, written so many hours ago.
    fn log(logs: &Path, name: &str, hours: u32) {
        let path = logs.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "0123456789").unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - HOUR * hours).unwrap();
    }

    fn names(logs: &Path) -> Vec<String> {
        let mut names = Vec::new();
        for job in fs::read_dir(logs).unwrap() {
            let job = job.unwrap();
            names.push(format!("{}/", job.file_name().to_str().unwrap()));
            for file in fs::read_dir(job.path()).unwrap() {
                let path = file.unwrap().path();
                let name = path.strip_prefix(logs).unwrap();
                names.push(name.to_str().unwrap().to_owned());
            }
        }
        names.sort();
        names
    }

    #[test]
    fn old_files_go_and_fresh_ones_stay_whatever_the_limits() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path();
        assert_eq!(
            tidy(&logs.join("none"), SystemTime::now(), LIMITS).unwrap(),
            0
        );
        log(logs, "old/r.1.log", 31 * 24);
        log(logs, "new/r.1.log", 29 * 24);
        log(logs, "new/r.2.log", 31 * 24);
        log(logs, "new/other.txt", 31 * 24);
        assert_eq!(tidy(logs, SystemTime::now(), LIMITS).unwrap(), 2);
        let kept = ["new/", "new/other.txt", "new/r.1.log", "old/"];
        assert_eq!(names(logs), kept);
        let later = SystemTime::now() + HOUR * 2;
        assert_eq!(tidy(logs, later, LIMITS).unwrap(), 0);
        assert_eq!(names(logs), kept[..3]);
        log(logs, "now/r.1.log", 0);
        let nothing = Limits {
            age: Duration::ZERO,
            files_of_a_job: 0,
            bytes: 0,
            ..LIMITS
        };
        assert_eq!(tidy(logs, SystemTime::now(), nothing).unwrap(), 1);
        assert_eq!(
            names(logs),
            ["new/", "new/other.txt", "now/", "now/r.1.log"]
        );
    }

    #[test]
    fn the_newest_files_of_a_job_stay_and_of_all_jobs_the_newest_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path();
        for hours in 2..6 {
            log(logs, &format!("a/r{hours}.1.log"), hours);
        }
        log(logs, "b/r9.1.log", 9);
        let few = Limits {
            files_of_a_job: 3,
            ..LIMITS
        };
        assert_eq!(tidy(logs, SystemTime::now(), few).unwrap(), 1);
        let kept = [
            "a/",
            "a/r2.1.log",
            "a/r3.1.log",
            "a/r4.1.log",
            "b/",
            "b/r9.1.log",
        ];
        assert_eq!(names(logs), kept);
        let small = Limits {
            bytes: 25,
            ..LIMITS
        };
        assert_eq!(tidy(logs, SystemTime::now(), small).unwrap(), 3 - 1);
        assert_eq!(names(logs), ["a/", "a/r2.1.log", "a/r3.1.log", "b/"]);
    }
}

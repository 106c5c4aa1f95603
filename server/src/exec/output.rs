//! What becomes of a command's output: all of it into a file on the node, its end as text.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::{self, File};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::text;

/// As much as one read takes; each running command holds this much.
const CHUNK: usize = 16 << 10;

/// Where the output of a run's attempt lies: `DATA_DIR/logs/JOB/RUN.ATTEMPT.log`. A run that
/// wrote nothing has no file. `None` for ids that could lead elsewhere; those of the scheduler
/// never do.
#[must_use]
pub fn log_path(data_dir: &Path, job_id: &str, run_id: &str, attempt: u32) -> Option<PathBuf> {
    let plain = |id: &str| {
        !id.is_empty()
            && id.len() <= 200
            && !id.starts_with('.')
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._~@-".contains(&b))
    };
    (plain(job_id) && plain(run_id)).then(|| {
        data_dir
            .join("logs")
            .join(job_id)
            .join(format!("{run_id}.{attempt}.log"))
    })
}

/// Takes a command's output. Never fails and never grows: what cannot be written is dropped, and
/// the command is not held up for it.
pub(super) struct Output {
    log: Log,
    tail: Vec<u8>,
    tail_bytes: usize,
    total_bytes: u64,
}

/// A file that comes into being with its first byte.
struct Log {
    path: PathBuf,
    limit: u64,
    room: u64,
    state: LogState,
}

enum LogState {
    Untouched,
    Open(File),
    /// Full, or broken: the rest is dropped.
    Closed,
}

impl Output {
    /// Keeps the last `tail_bytes` as text, and at most `log_bytes` in the file at `path`.
    pub(super) fn new(path: PathBuf, log_bytes: u64, tail_bytes: usize) -> Self {
        Self {
            log: Log {
                path,
                limit: log_bytes,
                room: log_bytes,
                state: LogState::Untouched,
            },
            tail: Vec::new(),
            tail_bytes,
            total_bytes: 0,
        }
    }

    /// Reads to the end. May be dropped at any time: what was read until then counts.
    pub(super) async fn drain(&mut self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk).await {
                // An error of a pipe means that nothing more will come out of it.
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    self.remember(&chunk[..n]);
                    self.log.write(&chunk[..n]).await;
                }
            }
        }
    }

    fn remember(&mut self, chunk: &[u8]) {
        self.total_bytes += chunk.len() as u64;
        // Somewhat more than asked for, so that a character cut in two at the front does not
        // take its last bytes along.
        let keep = self.tail_bytes + 4;
        self.tail.extend_from_slice(chunk);
        if self.tail.len() > keep {
            self.tail.drain(..self.tail.len() - keep);
        }
    }

    /// The end of the output as text, if there was any output, and whether that is less than
    /// everything.
    pub(super) async fn finish(mut self) -> (Option<String>, bool) {
        self.log.finish().await;
        if self.total_bytes == 0 {
            return (None, false);
        }
        let whole = self.total_bytes == self.tail.len() as u64;
        let (tail, cut) = text::tail(&self.tail, whole, self.tail_bytes);
        (Some(tail), cut || !whole)
    }
}

impl Log {
    async fn write(&mut self, chunk: &[u8]) {
        if let Err(error) = self.try_write(chunk).await {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        tracing::warn!(
            path = %self.path.display(),
            %error,
            "cannot keep a command's output; only its end is kept, with the run"
        );
        self.state = LogState::Closed;
    }

    async fn try_write(&mut self, chunk: &[u8]) -> io::Result<()> {
        if let LogState::Untouched = self.state {
            self.state = LogState::Open(create(&self.path).await?);
        }
        let LogState::Open(file) = &mut self.state else {
            return Ok(());
        };
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        let take = room.min(chunk.len());
        file.write_all(&chunk[..take]).await?;
        self.room -= take as u64;
        if take < chunk.len() {
            let limit = self.limit;
            let mark =
                format!("\n[punctual: the output after the first {limit} bytes is not kept]\n");
            file.write_all(mark.as_bytes()).await?;
            file.flush().await?;
            self.state = LogState::Closed;
        }
        Ok(())
    }

    async fn finish(&mut self) {
        if let LogState::Open(file) = &mut self.state
            && let Err(error) = file.flush().await
        {
            self.give_up(&error);
        }
    }
}

/// For the node's user only: output may hold anything. Appends, because a file that is already
/// there would be the trace of an execution that should not have been.
async fn create(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .await?;
    }
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_lead_out_of_the_directory() {
        let dir = Path::new("/data");
        assert_eq!(
            log_path(dir, "a.b-c", "a.b-c@20260812T000500Z", 3),
            Some(PathBuf::from(
                "/data/logs/a.b-c/a.b-c@20260812T000500Z.3.log"
            ))
        );
        assert!(log_path(dir, "job", "job~m-1f", 1).is_some());
        let long = "x".repeat(201);
        for bad in [
            "", ".", "..", "../x", "a/b", "/etc", "a\0", "a b", "é", ".x", &long,
        ] {
            assert_eq!(log_path(dir, bad, "run", 1), None, "{bad:?}");
            assert_eq!(log_path(dir, "job", bad, 1), None, "{bad:?}");
        }
    }

    async fn collect(
        input: &[u8],
        log_bytes: u64,
        tail_bytes: usize,
    ) -> (Vec<u8>, Option<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/job/run.1.log");
        let mut output = Output::new(path.clone(), log_bytes, tail_bytes);
        output.drain(input).await;
        let (tail, truncated) = output.finish().await;
        (std::fs::read(path).unwrap_or_default(), tail, truncated)
    }

    #[tokio::test]
    async fn short_output_is_kept_whole() {
        let (file, tail, truncated) = collect(b"one\ntwo", 100, 100).await;
        assert_eq!(file, b"one\ntwo");
        assert_eq!(tail.as_deref(), Some("one\ntwo"));
        assert!(!truncated);
    }

    #[tokio::test]
    async fn silence_leaves_neither_text_nor_file() {
        assert_eq!(collect(b"", 100, 100).await, (vec![], None, false));
    }

    #[tokio::test]
    async fn the_file_is_cut_with_a_mark_and_the_tail_is_still_the_end() {
        let input: Vec<u8> = (0..100_000_u32)
            .flat_map(|i| format!("{i}\n").into_bytes())
            .collect();
        let (file, tail, truncated) = collect(&input, 50_000, 12).await;
        assert_eq!(file[..50_000], input[..50_000]);
        let mark = std::str::from_utf8(&file[50_000..]).unwrap();
        assert_eq!(mark.matches("not kept").count(), 1);
        assert_eq!(tail.as_deref(), Some("99998\n99999\n"));
        assert!(truncated);
    }

    #[tokio::test]
    async fn exactly_the_limit_is_not_cut() {
        let (file, tail, truncated) = collect(b"12345678", 8, 8).await;
        assert_eq!(file, b"12345678");
        assert_eq!(tail.as_deref(), Some("12345678"));
        assert!(!truncated);
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_written_loses_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("logs"), "a file, not a directory").unwrap();
        let mut output = Output::new(dir.path().join("logs/job/run.1.log"), 100, 100);
        output.drain(&b"hello"[..]).await;
        assert_eq!(output.finish().await, (Some("hello".to_owned()), false));
    }
}

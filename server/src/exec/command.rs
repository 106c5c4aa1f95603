//! From a job's command to what a supervisor is told to run, and from an error of the system to
//! something that helps.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat};
use punctual::handler::{CommandLine, RunContext};
use rustix::io::Errno;

use super::wire::Spec;

/// What a command inherits from the node. Anything else, secrets above all, stays with the node.
const INHERITED: [&str; 5] = ["HOME", "LANG", "PATH", "TZ", "USER"];
/// Where to look for programs when the node itself was started without a `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a command finds the last checkpoint of the attempts before it.
const CHECKPOINT: &str = "PUNCTUAL_CHECKPOINT";
/// Linux takes no longer single argument or `NAME=value`, the closing NUL counted.
const MAX_STRING: usize = 128 << 10;

/// The spec for a run of `command`, or what is wrong with the command.
pub(super) fn spec(
    ctx: &RunContext,
    command: CommandLine,
    cwd: Option<PathBuf>,
    inherit: impl Fn(&str) -> Option<OsString>,
) -> Result<Spec, String> {
    let payload = ctx.payload.to_string();
    let payload_bytes = payload.len();
    let env = environment(ctx, command.env, payload, inherit)?;
    match command.argv.first() {
        None => return Err("the command is empty: give a program in `run.command`".to_owned()),
        Some(program) if program.is_empty() => {
            return Err("the command's program is an empty string".to_owned());
        }
        Some(_) => {}
    }
    for argument in &command.argv {
        if argument.contains('\0') {
            return Err(format!("the argument {argument:?} holds a NUL byte"));
        }
        if argument.len() >= MAX_STRING {
            return Err(format!(
                "an argument is {} bytes long; the system takes at most {}: put the data into a \
                 file",
                argument.len(),
                MAX_STRING - 1
            ));
        }
    }
    for (name, value) in &env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("{name:?} cannot be the name of a variable"));
        }
        if value.contains('\0') {
            return Err(format!("the value of the variable {name} holds a NUL byte"));
        }
        if name.len() + 1 + value.len() >= MAX_STRING {
            return Err(if name == "PUNCTUAL_PAYLOAD" {
                format!(
                    "the payload is {payload_bytes} bytes long; a command gets it in its \
                     environment, where the system takes less than {MAX_STRING}: pass a reference \
                     to the data instead"
                )
            } else {
                format!(
                    "the variable {name} is {} bytes long; the system takes less than {MAX_STRING}",
                    value.len()
                )
            });
        }
    }
    Ok(Spec {
        argv: command.argv,
        env,
        cwd,
        grace_ms: ctx.kill_grace_ms,
        trust_until_ms: None,
    })
}

/// Little is inherited, then what the job declares, then what we say of the run: a job cannot
/// give itself another identity.
fn environment(
    ctx: &RunContext,
    declared: BTreeMap<String, String>,
    payload: String,
    inherit: impl Fn(&str) -> Option<OsString>,
) -> Result<BTreeMap<String, String>, String> {
    let mut env: BTreeMap<String, String> = INHERITED
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), inherit(name)?.into_string().ok()?)))
        .collect();
    env.entry("PATH".to_owned())
        .or_insert_with(|| DEFAULT_PATH.to_owned());
    env.extend(declared);
    let scheduled_at = scheduled_at(ctx)?;
    let ours = [
        ("PUNCTUAL_JOB_ID", ctx.job_id.clone()),
        ("PUNCTUAL_RUN_ID", ctx.run_id.clone()),
        ("PUNCTUAL_SCHEDULED_AT", scheduled_at),
        ("PUNCTUAL_ATTEMPT", ctx.attempt.to_string()),
        ("PUNCTUAL_FENCING_TOKEN", ctx.fencing_token.to_string()),
        ("PUNCTUAL_TRACEPARENT", traceparent(ctx)),
        ("PUNCTUAL_PAYLOAD", payload),
    ];
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    let part = [
        ("PUNCTUAL_SHARD", ctx.shard),
        ("PUNCTUAL_SHARDS", ctx.shards),
    ];
    env.extend(
        part.into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_string()))),
    );
    // What is there is of an earlier attempt, and of nobody else.
    env.remove(CHECKPOINT);
    if let Some(checkpoint) = ctx.last_checkpoint() {
        let text = std::str::from_utf8(checkpoint)
            .map_err(|_| "the run's checkpoint is not text; nothing was run".to_owned())?;
        env.insert(CHECKPOINT.to_owned(), text.to_owned());
    }
    Ok(env)
}

/// The instant, RFC 3339 in UTC.
pub(super) fn scheduled_at(ctx: &RunContext) -> Result<String, String> {
    let at = DateTime::from_timestamp_millis(ctx.scheduled_at_ms).ok_or_else(|| {
        format!(
            "{} ms is not a time that can be written down",
            ctx.scheduled_at_ms
        )
    })?;
    Ok(at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// The entries of the environment that no other run's command has.
pub(super) fn marks(ctx: &RunContext) -> Vec<String> {
    vec![
        format!("PUNCTUAL_JOB_ID={}", ctx.job_id),
        format!("PUNCTUAL_RUN_ID={}", ctx.run_id),
        format!("PUNCTUAL_ATTEMPT={}", ctx.attempt),
        format!("PUNCTUAL_FENCING_TOKEN={}", ctx.fencing_token),
    ]
}

/// W3C trace context: the attempt is a span of the run's trace. The span's id is derived, so that
/// it is the same wherever it is computed.
pub(super) fn traceparent(ctx: &RunContext) -> String {
    let mut hasher = DefaultHasher::new();
    (&ctx.run_id, ctx.attempt, ctx.fencing_token).hash(&mut hasher);
    // All zeroes is not a valid id.
    format!("00-{}-{:016x}-01", ctx.trace_id, hasher.finish().max(1))
}

/// Says why a command could not be started, and what to do about it.
pub(super) fn explain(spec: &Spec, error: &io::Error) -> String {
    let program = spec.argv.first().map_or("", String::as_str);
    let start = format!("cannot start `{program}`");
    if let Some(cwd) = &spec.cwd
        && !cwd.is_dir()
    {
        return format!("{start}: its directory {} does not exist", cwd.display());
    }
    let path = spec.env.get("PATH").map_or("", String::as_str);
    let (found, runnable) = look_up(program, path, spec.cwd.as_deref());
    if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) && !found.is_empty() {
        return format!(
            "{start}: {} is neither a program for this system nor a script whose first line names \
             its interpreter, such as #!/bin/sh",
            found[0].display()
        );
    }
    match error.kind() {
        io::ErrorKind::NotFound if !found.is_empty() => {
            let file = found[0].display();
            match interpreter(&found[0]) {
                Some(interpreter) => format!(
                    "{start}: {file} is a script for `{interpreter}`, which does not exist: \
                     install it or mend the script's first line"
                ),
                None => format!(
                    "{start}: {file} exists, but the loader that it names does not: was it built \
                     for this system?"
                ),
            }
        }
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("{start}: there is no such file on this node")
        }
        io::ErrorKind::NotFound => format!(
            "{start}: no such program on this node in PATH ({path}): install it, write its whole \
             path, or set PATH in the job's `env`"
        ),
        io::ErrorKind::PermissionDenied if found.is_empty() => {
            format!("{start}: the node's user may not enter its directory")
        }
        io::ErrorKind::PermissionDenied if found[0].is_dir() => {
            format!(
                "{start}: {} is a directory, not a program",
                found[0].display()
            )
        }
        io::ErrorKind::PermissionDenied if !runnable => {
            let file = found[0].display();
            format!("{start}: {file} is not executable: chmod +x {file}")
        }
        io::ErrorKind::PermissionDenied => format!(
            "{start}: the node's user may not execute {}, or its file system is mounted noexec",
            found[0].display()
        ),
        io::ErrorKind::ArgumentListTooLong => format!(
            "{start}: its arguments and environment are larger than the system takes: put data \
             into files"
        ),
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => format!(
            "{start}: the node has no room for another process ({error}): raise its limits or \
             lower --slots"
        ),
        _ => format!("{start}: {error}"),
    }
}

/// The files that the program's name could mean, in order, and whether one of them is executable.
fn look_up(program: &str, path: &str, cwd: Option<&Path>) -> (Vec<PathBuf>, bool) {
    let from = |file: PathBuf| cwd.map_or(file.clone(), |cwd| cwd.join(&file));
    let candidates: Vec<PathBuf> = if program.contains('/') {
        vec![from(PathBuf::from(program))]
    } else {
        std::env::split_paths(path)
            .map(|directory| from(directory.join(program)))
            .collect()
    };
    let found: Vec<PathBuf> = candidates
        .into_iter()
        .filter(|file| file.exists())
        .collect();
    let runnable = found.iter().any(|file| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    });
    (found, runnable)
}

fn interpreter(script: &Path) -> Option<String> {
    use std::io::Read;
    // A kernel reads no more of the first line than this.
    let mut head = Vec::new();
    fs::File::open(script)
        .ok()?
        .take(256)
        .read_to_end(&mut head)
        .ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    line.split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual::cancel::Canceller;
    use punctual::handler::FencingToken;
    use punctual::progress::Reporter;

    fn context() -> RunContext {
        RunContext {
            job_id: "report".to_owned(),
            run_id: "report@20260812T000500Z".to_owned(),
            attempt: 2,
            shard: None,
            shards: None,
            scheduled_at_ms: 1_786_493_100_007,
            fencing_token: FencingToken(129),
            payload: serde_json::json!({"channel": "all"}),
            trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
            timeout_ms: 1_000,
            kill_grace_ms: 250,
            cancel: Canceller::new().1,
            fence: None,
            reporter: Reporter::detached(),
            resume_from: None,
        }
    }

    fn command(argv: &[&str], env: &[(&str, &str)]) -> CommandLine {
        CommandLine {
            name: None,
            argv: argv.iter().map(|&a| a.to_owned()).collect(),
            env: env
                .iter()
                .map(|&(n, v)| (n.to_owned(), v.to_owned()))
                .collect(),
        }
    }

    fn node(name: &str) -> Option<OsString> {
        match name {
            "PATH" => Some("/bin".into()),
            "HOME" => Some("/root".into()),
            "SECRET" => Some("s3cret".into()),
            _ => None,
        }
    }

    #[test]
    fn environment_is_what_is_listed_and_nothing_else() {
        let env = [("LANG", "C"), ("PUNCTUAL_RUN_ID", "forged")];
        let spec = spec(&context(), command(&["true"], &env), None, node);
        let env = spec.map(|s| s.env).unwrap();
        let listed: Vec<(&str, &str)> = env.iter().map(|(n, v)| (&**n, &**v)).collect();
        let span = &env["PUNCTUAL_TRACEPARENT"][36..52];
        assert!(span.bytes().all(|b| b.is_ascii_hexdigit()) && span != "0000000000000000");
        assert_eq!(
            listed,
            [
                ("HOME", "/root"),
                ("LANG", "C"),
                ("PATH", "/bin"),
                ("PUNCTUAL_ATTEMPT", "2"),
                ("PUNCTUAL_FENCING_TOKEN", "129"),
                ("PUNCTUAL_JOB_ID", "report"),
                ("PUNCTUAL_PAYLOAD", r#"{"channel":"all"}"#),
                ("PUNCTUAL_RUN_ID", "report@20260812T000500Z"),
                ("PUNCTUAL_SCHEDULED_AT", "2026-08-12T00:05:00.007Z"),
                (
                    "PUNCTUAL_TRACEPARENT",
                    &format!("00-0af7651916cd43dd8448eb211c80319c-{span}-01")
                ),
            ]
        );
    }

    #[test]
    fn a_command_gets_its_runs_checkpoint_and_no_other_one() {
        let env = [("PUNCTUAL_CHECKPOINT", "forged")];
        let of = |resume_from: Option<&[u8]>| {
            let ctx = RunContext {
                resume_from: resume_from.map(Into::into),
                ..context()
            };
            let spec = spec(&ctx, command(&["true"], &env), None, node);
            spec.map(|spec| spec.env.get("PUNCTUAL_CHECKPOINT").cloned())
        };
        assert_eq!(of(None), Ok(None));
        assert_eq!(of(Some(b"")), Ok(Some(String::new())));
        let largest = "x".repeat(punctual::progress::MAX_CHECKPOINT_BYTES);
        assert_eq!(of(Some(largest.as_bytes())), Ok(Some(largest.clone())));
        assert!(of(Some(b"\xff")).is_err_and(|why| why.contains("not text")));
        assert!(of(Some(b"a\0b")).is_err_and(|why| why.contains("NUL")));
    }

    #[test]
    fn a_node_without_path_still_finds_programs() {
        let spec = spec(&context(), command(&["true"], &[]), None, |_| None);
        assert_eq!(
            spec.map(|s| s.env["PATH"].clone()),
            Ok(DEFAULT_PATH.to_owned())
        );
    }

    #[test]
    fn what_the_system_would_refuse_is_refused_with_a_reason() {
        let long = "x".repeat(MAX_STRING);
        type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
        let cases: [Case<'_>; 8] = [
            (&[], &[], "empty"),
            (&[""], &[], "empty"),
            (&["a\0b"], &[], "NUL"),
            (&["true", &long], &[], "file"),
            (&["true"], &[("A", "x\0")], "NUL"),
            (&["true"], &[("", "x")], "name"),
            (&["true"], &[("A=B", "x")], "name"),
            (&["true"], &[("A", &long)], "variable A"),
        ];
        for (argv, env, expected) in cases {
            let refusal = spec(&context(), command(argv, env), None, node).err();
            assert!(
                refusal.as_ref().is_some_and(|why| why.contains(expected)),
                "{expected}: {refusal:?}"
            );
        }
        let mut ctx = context();
        ctx.payload = serde_json::Value::String(long);
        let refusal = spec(&ctx, command(&["true"], &[]), None, node).err();
        assert!(refusal.is_some_and(|why| why.contains("payload")));
    }
}

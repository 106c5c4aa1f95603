//! `import`: jobs of other schedulers as a job file.

use std::io::Read as _;
use std::path::Path;

use jiff::tz::TimeZone;
use punctual_server::import::{Note, Options, import};
use punctual_server::jobfile::MAX_BYTES;

use super::args::{ImportArgs, ImportCommand};
use super::check::count;
use super::failure::{Exit, Failure, Outcome};
use crate::output::{Output, say};
use crate::times::now_ms;

pub(super) fn run(output: &Output, command: ImportCommand) -> Outcome {
    let ImportCommand::Crontab(args) = command;
    crontab(output, &args)
}

fn crontab(output: &Output, args: &ImportArgs) -> Outcome {
    let name = args.file.display().to_string();
    let text = read(&args.file)?;
    let options = Options {
        system: args.system.then_some(true),
        timezone: args.tz.clone().or_else(machine_zone),
    };
    let imported = import(&name, &text, &options, now_ms());
    let file = serde_json::json!({ "jobs": imported.jobs });
    match output.is_data() {
        true => output.object(&file, "jobs", String::new)?,
        false => {
            let yaml = serde_saphyr::to_string(&file)
                .map_err(|error| Failure::new(Exit::Bug, format!("cannot write YAML: {error}")))?;
            output.line(yaml.trim_end())?;
        }
    }
    for note in &imported.notes {
        // What could not be taken over is said whether somebody wants notes or not.
        match note.refused {
            true => say(&shown(&name, note)),
            false => output.note(&shown(&name, note)),
        }
    }
    let refused = imported.notes.iter().filter(|note| note.refused).count();
    output.note(&format!(
        "{} written; `punctual check` reads them, `punctual apply` makes them",
        count(imported.jobs.len(), "job")
    ));
    match refused {
        0 => Ok(()),
        _ => Err(Failure::silent(Exit::Findings)),
    }
}

fn shown(name: &str, note: &Note) -> String {
    match note.line {
        0 => format!("note: {}", note.text),
        line => format!("{name}:{line}: {}", note.text),
    }
}

/// The zone in which cron fires on this machine.
fn machine_zone() -> Option<String> {
    TimeZone::system().iana_name().map(str::to_owned)
}

fn read(path: &Path) -> Outcome<String> {
    let mut bytes = Vec::new();
    let failed = |error| Failure::usage(format!("{}: {error}", path.display()));
    let limit = MAX_BYTES;
    if path == Path::new("-") {
        let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
        read.map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage(format!("{}: this is no text in UTF-8", path.display())))
}

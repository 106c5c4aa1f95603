//! Job files: YAML, TOML or JSON with `jobs:`, `commands:` and `calendars:`.
//!
//! What is promised: every finding of all files in one go, each with file, line and column; a
//! job that comes out is complete in itself (calendar names are replaced by their dates), so
//! that the store never depends on a file.

mod check;
mod crontab;
mod finding;
mod input;
mod json;
mod places;
mod schema;
#[cfg(test)]
mod tests;
mod toml;
mod tree;
mod words;
mod yaml;
mod yaml_repair;

use std::collections::BTreeMap;
use std::rc::Rc;

use punctual::job::spec::JobSpec;

pub use finding::Finding;
pub use input::{Format, MAX_BYTES, Source, decode, read_all};
pub use tree::shorten;

use tree::Node;

/// What job files hold.
#[derive(Debug, Default)]
pub struct JobFile {
    /// Jobs without findings, in the order of the files.
    pub jobs: Vec<JobSpec>,
    /// Declared commands: name and argv.
    pub commands: BTreeMap<String, Vec<String>>,
    /// Everything that is wrong, in the order of the files.
    pub findings: Vec<Finding>,
}

impl JobFile {
    /// Reads job files; `now_ms` anchors periods while they are checked.
    pub fn parse(sources: &[Source], now_ms: i64) -> Self {
        let mut checker = check::Checker::new(now_ms);
        for source in sources {
            let (tree, findings) = parse_tree(source);
            checker.add_file(&source.name, tree.as_deref(), findings);
        }
        checker.finish()
    }

    /// Reads a single job, as it stands under `jobs:`. `id` is taken when the text names none.
    ///
    /// # Errors
    /// Every finding.
    pub fn parse_job(source: &Source, id: &str, now_ms: i64) -> Result<JobSpec, Vec<Finding>> {
        let (tree, findings) = parse_tree(source);
        let mut checker = check::Checker::new(now_ms);
        checker.add_job(&source.name, tree.as_deref(), findings, id);
        let mut file = checker.finish();
        match file.jobs.pop() {
            Some(job) if file.findings.is_empty() => Ok(job),
            _ => Err(file.findings),
        }
    }
}

fn parse_tree(source: &Source) -> (Option<Rc<Node>>, Vec<Finding>) {
    if source.format != Format::Json
        && let Some(finding) = crontab::finding(&source.name, &source.text)
    {
        return (None, vec![finding]);
    }
    match source.format {
        Format::Yaml => yaml::parse(&source.name, &source.text),
        Format::Toml => toml::parse(&source.name, &source.text),
        Format::Json => json::parse(&source.name, &source.text),
    }
}

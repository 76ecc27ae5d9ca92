//! `check`: whether this machine can be a node. [`facts`] gathers what the machine says; each of [`checks`]
//! is a pure function of that; the report is a table for people or JSON for programs.

mod checks;
mod facts;

use serde::Serialize;

use crate::Paths;
use crate::args::CheckArgs;
use crate::tokens::{columns, printable};

pub use facts::Facts;

/// What comes of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It does not apply here, or cannot be known.
    Skipped,
    /// A node runs, but not as it could.
    Warning,
    /// A node, or something that pods need, would not work.
    Failure,
}

/// One check's outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// What was checked, for programs.
    pub name: &'static str,
    /// What came of it.
    pub level: Level,
    /// What was found.
    pub message: String,
    /// How to mend it, in a sentence; empty when there is nothing to mend.
    pub remedy: String,
}

impl Outcome {
    fn new(
        name: &'static str,
        level: Level,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { name, level, message: message.into(), remedy: remedy.into() }
    }

    fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, message, "")
    }

    fn skipped(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, Level::Skipped, message, "")
    }

    fn warning(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Level::Warning, message, remedy)
    }

    fn failure(name: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Level::Failure, message, remedy)
    }
}

/// All outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of the checks.
    pub checks: Vec<Outcome>,
}

impl Report {
    /// PURE: of these facts.
    pub fn of(facts: &Facts) -> Self {
        Self { checks: checks::all(facts) }
    }

    /// Whether anything would fail.
    pub fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.level == Level::Failure)
    }

    /// PURE: for people.
    pub fn table(&self) -> String {
        let rows = self.checks.iter().map(|check| {
            let level = match check.level {
                Level::Ok => "ok",
                Level::Skipped => "-",
                Level::Warning => "WARN",
                Level::Failure => "FAIL",
            };
            let message = match check.remedy.as_str() {
                "" => check.message.clone(),
                remedy => format!("{}: {remedy}", check.message),
            };
            [check.name.to_owned(), level.to_owned(), printable(&message)]
        });
        let count = |level| self.checks.iter().filter(|check| check.level == level).count();
        format!(
            "{}\n{} failures, {} warnings\n",
            columns(&rows.collect::<Vec<_>>()).trim_end(),
            count(Level::Failure),
            count(Level::Warning)
        )
    }

    /// PURE: for programs.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }
}

/// Checks this machine.
pub async fn run(paths: &Paths, args: &CheckArgs) -> Report {
    Report::of(&Facts::gather(paths, args).await)
}

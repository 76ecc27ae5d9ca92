//! What is wrong with an expression, as upstream shows it.

use std::fmt;

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The byte offset in the source.
    at: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl Issue {
    pub(crate) fn new(at: Option<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// Why an expression does not compile. Shown with the place in the source, as upstream's are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Issues {
    text: String,
    /// At least one, in the order of the source.
    pub list: Vec<Issue>,
}

impl Issues {
    pub(crate) fn new(source: &str, mut list: Vec<Issue>) -> Self {
        list.sort_by_key(|issue| issue.at);
        Self { text: source.to_owned(), list }
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            let Some(at) = issue.at else {
                write!(f, "ERROR: <input>:-1:0: {}", issue.message)?;
                continue;
            };
            if self.text.is_empty() {
                // there is no line to show
                write!(f, "ERROR: <input>:1:0: {}", issue.message)?;
                continue;
            }
            let before = self.text.get(..at).unwrap_or(&self.text);
            let line = before.matches('\n').count() + 1;
            let start = before.rfind('\n').map_or(0, |at| at + 1);
            let column = before.get(start..).unwrap_or_default();
            write!(f, "ERROR: <input>:{line}:{}: {}", column.chars().count() + 1, issue.message)?;
            let text = self.text.get(start..).unwrap_or_default();
            let text = text.split('\n').next().unwrap_or_default().replace('\t', " ");
            write!(f, "\n | {text}\n | ")?;
            for c in column.chars() {
                f.write_str(if c.is_ascii() { "." } else { "．" })?;
            }
            f.write_str("^")?;
        }
        Ok(())
    }
}

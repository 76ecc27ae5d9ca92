//! Versions of CSI.

use std::fmt;

/// A version such as 1.0.0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(Vec<u64>);

impl Version {
    /// Parses `1.2.3` or `v1.2.3`, ignoring any suffix.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let numbers = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers: Vec<u64> = text[..numbers]
            .trim_end_matches('.')
            .split('.')
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?;
        if numbers.len() < 2 {
            return None;
        }
        // 1.0 is 1.0.0.
        while numbers.len() > 2 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some(Self(numbers))
    }

    /// The highest supported version: any 1.x.
    pub(super) fn highest(versions: &[String]) -> Option<Self> {
        let known = versions.iter().filter_map(|version| Self::parse(version));
        known.filter(|version| version.0.first() == Some(&1)).max()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        numbers.resize(numbers.len().max(3), "0".to_owned());
        f.write_str(&numbers.join("."))
    }
}

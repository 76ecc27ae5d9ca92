//! Prometheus' text format 0.0.4, which every scraper takes:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write;

/// The `Content-Type` of a page in this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family's samples are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the daemon starts again.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many observations fell below each of a row of bounds, their sum and number.
    Histogram,
}

impl Kind {
    /// The format's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels as the format has them, escaped once, for as many samples as carry them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// No labels at all.
    pub const NONE: Self = Self(String::new());

    /// These names, which must be valid, with any values.
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(Self::NONE, |labels, (name, value)| labels.and(name, value))
    }

    /// These, and one more.
    #[must_use]
    pub fn and(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        escape(&mut self.0, value, true);
        self.0.push('"');
        self
    }
}

/// A page being written.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// An empty page.
    pub const fn new() -> Self {
        Self(String::new())
    }

    /// An empty page with room for that many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// Begins a family; all of its samples must follow before the next begins, and a name comes
    /// once on a page. A family that gets no sample leaves no trace.
    pub fn family<'a>(&'a mut self, name: &'a str, help: &'a str, kind: Kind) -> Samples<'a> {
        Samples { text: &mut self.0, name, help, kind, begun: false }
    }

    /// The page.
    pub fn finish(self) -> String {
        self.0
    }
}

/// The samples of one family.
#[derive(Debug)]
pub struct Samples<'a> {
    text: &'a mut String,
    name: &'a str,
    help: &'a str,
    kind: Kind,
    begun: bool,
}

impl Samples<'_> {
    /// One sample of now.
    pub fn add(&mut self, labels: &Labels, value: f64) {
        self.line("", labels, "", value, None);
    }

    /// One sample of a moment in the past, in milliseconds since 1970.
    pub fn add_at(&mut self, labels: &Labels, value: f64, millis: i64) {
        self.line("", labels, "", value, Some(millis));
    }

    /// One sample with more labels than those that others share with it, of now or of a moment in
    /// milliseconds since 1970.
    pub fn add_of(&mut self, labels: &Labels, more: &Labels, value: f64, millis: Option<i64>) {
        self.line("", labels, &more.0, value, millis);
    }

    /// All lines of a histogram: bounds that ascend, how many observations fell between each and
    /// the one before it (and, one more, above the last), and the sum of all observations.
    pub(crate) fn histogram(&mut self, labels: &Labels, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut seen = 0;
        let mut le = String::new();
        for (at, count) in counts.iter().enumerate() {
            seen += count;
            le.clear();
            le.push_str("le=\"");
            number(&mut le, bounds.get(at).copied().unwrap_or(f64::INFINITY));
            le.push('"');
            self.line("_bucket", labels, &le, seen as f64, None);
        }
        self.line("_sum", labels, "", sum, None);
        self.line("_count", labels, "", seen as f64, None);
    }

    fn line(&mut self, suffix: &str, labels: &Labels, more: &str, value: f64, at: Option<i64>) {
        if !self.begun {
            self.begun = true;
            self.begin();
        }
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        if !(labels.0.is_empty() && more.is_empty()) {
            self.text.push('{');
            self.text.push_str(&labels.0);
            if !(labels.0.is_empty() || more.is_empty()) {
                self.text.push(',');
            }
            self.text.push_str(more);
            self.text.push('}');
        }
        self.text.push(' ');
        number(self.text, value);
        if let Some(millis) = at {
            // writing to a string does not fail
            let _ = write!(self.text, " {millis}");
        }
        self.text.push('\n');
    }

    fn begin(&mut self) {
        let Self { text, name, help, kind, .. } = self;
        for part in ["# HELP ", name, " "] {
            text.push_str(part);
        }
        escape(text, help, false);
        for part in ["\n# TYPE ", name, " ", kind.as_str(), "\n"] {
            text.push_str(part);
        }
    }
}

/// Whole numbers, which most are, are cheaper to write as such; all below this are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn number(text: &mut String, value: f64) {
    let written = if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        Ok(())
    } else if value.fract() == 0.0 && value.abs() < EXACT {
        write!(text, "{}", value as i64)
    } else {
        write!(text, "{value}")
    };
    // writing to a string does not fail
    let _ = written;
}

/// A value of a label is quoted, a help text is not.
fn escape(text: &mut String, raw: &str, quoted: bool) {
    let special = |c: char| c == '\\' || c == '\n' || (quoted && c == '"');
    let mut rest = raw;
    while let Some(at) = rest.find(special) {
        text.push_str(&rest[..at]);
        text.push('\\');
        text.push(match rest.as_bytes()[at] {
            b'\n' => 'n',
            other => char::from(other),
        });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

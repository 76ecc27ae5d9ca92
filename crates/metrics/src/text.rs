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
        let bytes = pairs.iter().map(|(name, value)| name.len() + value.len() + ",=\"\"".len());
        let labels = Self(String::with_capacity(bytes.sum()));
        pairs.iter().fold(labels, |labels, (name, value)| labels.and(name, value))
    }

    /// These, and one more.
    #[must_use]
    pub fn and(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        pair(&mut self.0, name, value);
        self
    }
}

/// A moment as the format has it, written once for as many samples as were read then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment(String);

impl Moment {
    /// So many milliseconds since 1970.
    pub fn of_millis(millis: i64) -> Self {
        Self(format!(" {millis}"))
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

    /// Bytes that are written.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
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
    /// Whether the family has got a sample.
    pub const fn begun(&self) -> bool {
        self.begun
    }

    /// The family goes on in this text if it had begun in the one before.
    #[must_use]
    pub const fn continued(self, begun: bool) -> Self {
        Self { begun, ..self }
    }

    /// Bytes of the text so far.
    pub const fn written(&self) -> usize {
        self.text.len()
    }

    /// One sample of now.
    pub fn add(&mut self, labels: &Labels, value: f64) {
        self.line("", labels, &[], value, None);
    }

    /// One sample of a moment in the past.
    pub fn add_at(&mut self, labels: &Labels, value: f64, at: &Moment) {
        self.line("", labels, &[], value, Some(at));
    }

    /// One sample with more labels than those that others share with it, of now or of a moment in the
    /// past.
    pub fn add_of(
        &mut self,
        labels: &Labels,
        more: &[(&str, &str)],
        value: f64,
        at: Option<&Moment>,
    ) {
        self.line("", labels, more, value, at);
    }

    /// All lines of a histogram: bounds that ascend, how many observations fell between each and
    /// the one before it (and, one more, above the last), and the sum of all observations.
    pub(crate) fn histogram(&mut self, labels: &Labels, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut seen = 0;
        let mut le = String::new();
        for (at, count) in counts.iter().enumerate() {
            seen += count;
            le.clear();
            number(&mut le, bounds.get(at).copied().unwrap_or(f64::INFINITY));
            self.line("_bucket", labels, &[("le", &le)], seen as f64, None);
        }
        self.line("_sum", labels, &[], sum, None);
        self.line("_count", labels, &[], seen as f64, None);
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: &Labels,
        more: &[(&str, &str)],
        value: f64,
        at: Option<&Moment>,
    ) {
        if !self.begun {
            self.begun = true;
            self.begin();
        }
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        if !(labels.0.is_empty() && more.is_empty()) {
            self.text.push('{');
            self.text.push_str(&labels.0);
            for (at, (name, value)) in more.iter().enumerate() {
                if at > 0 || !labels.0.is_empty() {
                    self.text.push(',');
                }
                pair(self.text, name, value);
            }
            self.text.push('}');
        }
        self.text.push(' ');
        number(self.text, value);
        if let Some(Moment(at)) = at {
            self.text.push_str(at);
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
    if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if value.fract() == 0.0 && value.abs() < EXACT {
        text.push_str(itoa::Buffer::new().format(value as i64));
    } else {
        // writing to a string does not fail
        let _ = write!(text, "{value}");
    }
}

fn pair(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    escape(text, value, true);
    text.push('"');
}

/// A value of a label is quoted, a help text is not.
fn escape(text: &mut String, raw: &str, quoted: bool) {
    let special = |byte: u8| byte == b'\\' || byte == b'\n' || (quoted && byte == b'"');
    let mut rest = raw;
    while let Some(at) = rest.bytes().position(special) {
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

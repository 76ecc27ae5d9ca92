//! Prometheus' text format 0.0.4, which every scraper takes:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write;

/// The `Content-Type` of a page in this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Type of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Monotonic.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Observations in buckets, with sum and count.
    Histogram,
}

impl Kind {
    /// Name in the format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels as the format has them, escaped once, for as many samples as carry them: `{` and what follows
/// it, or nothing. The brace that ends them is left to the sample, which may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// No labels at all.
    pub const NONE: Self = Self(String::new());

    /// These names, which must be valid, with any values.
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        let bytes = pairs.iter().map(|(name, value)| name.len() + value.len() + ",=\"\"".len());
        let mut labels = Self(String::with_capacity(bytes.sum()));
        pairs.iter().for_each(|(name, value)| labels.add(name, value));
        labels
    }

    /// One more.
    pub(crate) fn add(&mut self, name: &str, value: &str) {
        pair(&mut self.0, 0, name, value);
    }

    /// None again, with room for as much as before.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A formatted timestamp, for several samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleTime(String);

impl SampleTime {
    /// So many milliseconds since 1970.
    pub fn of_millis(millis: i64) -> Self {
        Self(format!(" {millis}\n"))
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
    /// once on a page. A family without samples is not written.
    pub fn family<'a>(&'a mut self, name: &'a str, help: &'a str, kind: Kind) -> Samples<'a> {
        Samples { text: &mut self.0, name, help, kind, begun: false }
    }

    /// A family of one gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, help, Kind::Gauge).add(&Labels::NONE, value);
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

    /// One sample without a timestamp.
    pub fn add(&mut self, labels: &Labels, value: f64) {
        self.line("", labels, &[], value, None);
    }

    /// One sample with a timestamp.
    pub fn add_at(&mut self, labels: &Labels, value: f64, at: &SampleTime) {
        self.line("", labels, &[], value, Some(at));
    }

    /// One sample with more labels than those that others share with it, with or without a
    /// timestamp.
    pub fn add_of(
        &mut self,
        labels: &Labels,
        more: &[(&str, &str)],
        value: f64,
        at: Option<&SampleTime>,
    ) {
        self.line("", labels, more, value, at);
    }

    /// All lines of a histogram: how many observations fell between each bound (which are ascending,
    /// and named as the format has them) and the one before it, and the sum of all observations.
    pub(crate) fn histogram<'b>(
        &mut self,
        labels: &Labels,
        counts: impl Iterator<Item = (&'b str, u64)>,
        sum: f64,
    ) {
        let mut seen = 0_u64;
        for (bound, count) in counts {
            seen = seen.saturating_add(count);
            self.line("_bucket", labels, &[("le", bound)], seen as f64, None);
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
        at: Option<&SampleTime>,
    ) {
        if !self.begun {
            self.begun = true;
            self.begin();
        }
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let labelled = self.text.len();
        self.text.push_str(&labels.0);
        more.iter().for_each(|(name, value)| pair(self.text, labelled, name, value));
        self.text.push_str(if self.text.len() > labelled { "} " } else { " " });
        number(self.text, value);
        self.text.push_str(at.map_or("\n", |SampleTime(at)| at));
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

pub(crate) fn number(text: &mut String, value: f64) {
    #[allow(clippy::cast_possible_truncation, reason = "what is cut off is seen")]
    let whole = value as i64;
    if value.is_infinite() {
        text.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if whole as f64 == value && value.abs() < EXACT {
        text.push_str(itoa::Buffer::new().format(whole));
    } else {
        // writing to a string does not fail
        let _ = write!(text, "{value}");
    }
}

/// Labels begin at `from`, where there may be some.
fn pair(text: &mut String, from: usize, name: &str, value: &str) {
    text.push(if text.len() > from { ',' } else { '{' });
    text.push_str(name);
    text.push_str("=\"");
    escape(text, value, true);
    text.push('"');
}

/// A value of a label is quoted, a help text is not.
fn escape(text: &mut String, raw: &str, quoted: bool) {
    let quote = if quoted { b'"' } else { b'\n' };
    let mut rest = raw;
    while let Some(at) = memchr::memchr3(b'\\', b'\n', quote, rest.as_bytes()) {
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

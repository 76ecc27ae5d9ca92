//! A strict reader of the text format 0.0.4, for tests: it refuses what a lenient scraper lets
//! pass. Beyond the grammar it wants each family declared (`TYPE`) once, before its samples, and
//! its samples together; no series twice; counters that are not negative; and histograms whose
//! buckets ascend, never shrink, and end with all that `_count` has.

mod line;

use std::collections::{BTreeMap, BTreeSet};

use self::line::Line;

/// What a sample is labelled with.
pub type LabelMap = BTreeMap<String, String>;

/// Error in a page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ParseError {
    /// From 1; 0 for the page as a whole.
    pub line: usize,
    /// What and why.
    pub reason: String,
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// With the suffix, for parts of a histogram.
    pub name: String,
    /// All of its labels.
    pub labels: LabelMap,
    /// The value.
    pub value: f64,
    /// SampleTime in milliseconds, if there is one.
    pub at: Option<i64>,
}

impl Sample {
    /// Whether it has all of these labels.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|own| own == value))
    }
}

/// One family.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// `counter`, `gauge`, `histogram`, `summary` or `untyped`.
    pub kind: String,
    /// What it is about.
    pub help: String,
    /// In the order of the page.
    pub samples: Vec<Sample>,
}

/// A page that is right.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// By name.
    pub families: BTreeMap<String, Family>,
}

impl Page {
    /// All samples of that name (that of a family, or a part of a histogram) with these labels.
    pub fn samples<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = &'a Sample> {
        let all = self.families.values().flat_map(|family| &family.samples);
        all.filter(move |sample| sample.name == name && sample.has(labels))
    }

    /// The sum of those; `None` when there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.samples(name, labels).map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// The number of series on the page.
    pub fn series(&self) -> usize {
        self.families.values().map(|family| family.samples.len()).sum()
    }
}

/// Reads a page.
///
/// # Errors
/// The first thing that is wrong.
pub fn parse(text: &str) -> Result<Page, ParseError> {
    if !(text.is_empty() || text.ends_with('\n')) {
        return Err(ParseError { line: 0, reason: "the last line has no end".to_owned() });
    }
    let mut reader = Reader::default();
    for (at, raw) in text.split_terminator('\n').enumerate() {
        let read = line::read(raw).and_then(|line| reader.take(line));
        read.map_err(|reason| ParseError { line: at + 1, reason })?;
    }
    for (name, family) in &reader.page.families {
        check(name, family).map_err(|reason| ParseError { line: 0, reason })?;
    }
    Ok(reader.page)
}

#[derive(Default)]
struct Reader {
    page: Page,
    /// The family whose lines are being read.
    current: String,
    seen: BTreeSet<(String, LabelMap)>,
}

impl Reader {
    fn take(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Nothing => Ok(()),
            Line::Help(name, help) => self.declare(name, |family| &mut family.help, help),
            Line::Type(name, kind) => self.declare(name, |family| &mut family.kind, kind),
            Line::Sample(sample) => self.sample(sample),
        }
    }

    /// A `HELP` or `TYPE` line: once for a family, and before its samples.
    fn declare(
        &mut self,
        name: String,
        field: impl Fn(&mut Family) -> &mut String,
        text: String,
    ) -> Result<(), String> {
        if name != self.current && self.page.families.contains_key(&name) {
            return Err(format!("{name} is declared again, or in two places"));
        }
        self.current.clone_from(&name);
        let family = self.page.families.entry(name.clone()).or_default();
        if !family.samples.is_empty() {
            return Err(format!("{name} is declared after its samples"));
        }
        let slot = field(family);
        if !slot.is_empty() {
            return Err(format!("{name} is declared twice"));
        }
        *slot = text;
        Ok(())
    }

    fn sample(&mut self, sample: Sample) -> Result<(), String> {
        let current = self.current.clone();
        let family = self
            .page
            .families
            .get_mut(&current)
            .filter(|family| belongs(&sample.name, &current, &family.kind))
            .ok_or_else(|| format!("{} stands under no family of its own", sample.name))?;
        if !self.seen.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(format!("{} {:?} comes twice", sample.name, sample.labels));
        }
        if family.kind == "counter" && (sample.value < 0.0 || sample.value.is_nan()) {
            return Err(format!("{}: a counter cannot be {}", sample.name, sample.value));
        }
        family.samples.push(sample);
        Ok(())
    }
}

fn belongs(sample: &str, family: &str, kind: &str) -> bool {
    let suffixes: &[&str] = match kind {
        "histogram" => &["_bucket", "_sum", "_count"],
        "summary" => &["", "_sum", "_count"],
        "counter" | "gauge" | "untyped" => &[""],
        _ => &[],
    };
    sample.strip_prefix(family).is_some_and(|suffix| suffixes.contains(&suffix))
}

fn check(name: &str, family: &Family) -> Result<(), String> {
    if family.samples.is_empty() {
        return Err(format!("{name} is declared and has no samples"));
    }
    if family.kind == "histogram" {
        return histograms(name, family);
    }
    Ok(())
}

/// The parts of one series of a histogram.
#[derive(Default)]
struct Parts {
    buckets: Vec<(f64, f64)>,
    sum: bool,
    count: Option<f64>,
}

fn histograms(name: &str, family: &Family) -> Result<(), String> {
    let mut series: BTreeMap<LabelMap, Parts> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let parts = series.entry(labels).or_default();
        match (sample.name.strip_prefix(name), bound) {
            (Some("_bucket"), Some(bound)) => {
                let bound = line::number(&bound).ok_or(format!("{name}: le {bound:?}"))?;
                parts.buckets.push((bound, sample.value));
            }
            (Some("_sum"), None) => parts.sum = true,
            (Some("_count"), None) => parts.count = Some(sample.value),
            (_, bound) => return Err(format!("{}: le is {bound:?}", sample.name)),
        }
    }
    for (labels, parts) in series {
        let ascend =
            parts.buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let last = parts.buckets.last().filter(|last| last.0 == f64::INFINITY).map(|last| last.1);
        if !ascend || !parts.sum || last.is_none() || last != parts.count {
            return Err(format!("{name} {labels:?}: the histogram does not add up"));
        }
    }
    Ok(())
}

//! The page `/metrics/resource` of a node: what of it counts, read leniently. Lines that cannot be
//! read are skipped: a strange name of one container must not hide the others.

use std::collections::{BTreeMap, HashMap};

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;
/// Containers of one page; more are not a node's.
const MAX_CONTAINERS: usize = 10_000;

/// What one node or container had used at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// When, in milliseconds since 1970.
    pub at: i64,
    /// Since when, in milliseconds since 1970; 0 where that is not known.
    pub started: i64,
    /// CPU time since then, in nanoseconds.
    pub cpu: u64,
    /// The working set in bytes.
    pub memory: u64,
}

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// What a page says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Of the node.
    pub node: Option<Point>,
    /// Of the containers of each pod. Pods with a container that has used nothing yet are left out.
    pub pods: BTreeMap<PodName, BTreeMap<String, Point>>,
}

/// Values of which some may be missing yet.
#[derive(Debug, Default)]
struct Parts {
    at: Option<i64>,
    started: Option<i64>,
    cpu: Option<u64>,
    memory: Option<u64>,
}

impl Parts {
    fn point(&self) -> Option<Point> {
        let (cpu, memory) = (self.cpu.filter(|cpu| *cpu > 0)?, self.memory.filter(|it| *it > 0)?);
        Some(Point { at: self.at?, started: self.started.unwrap_or_default(), cpu, memory })
    }
}

/// Reads a page. `now`, in milliseconds since 1970, is the time of values that have none.
#[must_use]
pub fn read(text: &str, now: i64) -> Page {
    let mut node = Parts::default();
    let mut containers: HashMap<(PodName, String), Parts> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(sample) = sample(line) else { continue };
        let is_node = sample.name.starts_with("node_");
        let parts = if is_node {
            &mut node
        } else {
            let Some(key) = sample.container() else { continue };
            if containers.len() >= MAX_CONTAINERS && !containers.contains_key(&key) {
                continue;
            }
            containers.entry(key).or_default()
        };
        match sample.name {
            "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total" => {
                parts.cpu = whole(sample.value * NANOS);
                parts.at = Some(sample.at.unwrap_or(now));
            }
            "node_memory_working_set_bytes" | "container_memory_working_set_bytes" => {
                parts.memory = whole(sample.value);
                parts.at = parts.at.or(Some(sample.at.unwrap_or(now)));
            }
            "container_start_time_seconds" => {
                let millis = whole(sample.value * 1e3).and_then(|it| i64::try_from(it).ok());
                parts.started = millis;
            }
            _ => {}
        }
    }
    let mut pods: BTreeMap<PodName, BTreeMap<String, Option<Point>>> = BTreeMap::new();
    for ((pod, container), parts) in containers {
        pods.entry(pod).or_default().insert(container, parts.point());
    }
    let complete = |(pod, containers): (PodName, BTreeMap<String, Option<Point>>)| {
        let all = containers.into_iter().map(|(name, point)| Some((name, point?)));
        Some((pod, all.collect::<Option<BTreeMap<_, _>>>()?))
    };
    Page { node: node.point(), pods: pods.into_iter().filter_map(complete).collect() }
}

/// A number that is not negative, not infinite, and there.
fn whole(value: f64) -> Option<u64> {
    // a cast saturates
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Option<i64>,
}

impl Sample<'_> {
    fn label(&self, name: &str) -> Option<String> {
        let found = self.labels.iter().find(|(label, _)| *label == name)?;
        Some(found.1.clone()).filter(|value| !value.is_empty())
    }

    fn container(&self) -> Option<(PodName, String)> {
        if !self.name.starts_with("container_") {
            return None;
        }
        Some(((self.label("namespace")?, self.label("pod")?), self.label("container")?))
    }
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let mut words = rest.split_ascii_whitespace();
    let value = words.next()?.parse().ok()?;
    let at = words.next().map(str::parse).transpose().ok()?;
    Some(Sample { name, labels, value, at })
}

/// The labels, and what follows their closing brace.
#[allow(clippy::type_complexity)]
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name, value));
        rest = after.get(end.checked_add(1)?..)?;
    }
}

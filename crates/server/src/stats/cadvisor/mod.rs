//! `/metrics/cadvisor`: cAdvisor's metrics of all cgroups and the machine. The page of a full node has some megabytes, so it is written in pieces as the scraper reads.

mod cpu;
mod disk;
mod family;
mod machine;
mod memory;
mod network;
mod process;
mod runtime;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use futures::stream;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::Runtime;
use longshore_metrics::{Kind, Labels, SampleTime, Text};
use longshore_resources::stats::{Detail, Group, PodGroup, Run, Snapshot};

use self::family::{Family, Subject, Values};
use super::StatsEndpoints;

/// All metric families of cgroups, by name.
static FAMILIES: LazyLock<Vec<&'static Family>> = LazyLock::new(|| {
    let all =
        [cpu::FAMILIES, disk::FAMILIES, memory::FAMILIES, network::FAMILIES, process::FAMILIES];
    let mut all: Vec<&Family> = all.into_iter().flatten().collect();
    all.sort_unstable_by_key(|family| family.name);
    all
});

/// Minimum size of a piece: larger ones would be allocated from the kernel and returned each time.
const PIECE: usize = 56 << 10;
/// Buffer capacity of a piece, to avoid reallocation.
const PIECE_CAPACITY: usize = 64 << 10;

/// The parts of the page, in order.
#[derive(Clone, Copy)]
enum Part {
    /// `cadvisor_version_info`
    Version,
    /// A family of cgroups.
    Cgroups(&'static Family),
    /// `container_scrape_error`
    Error,
    /// Families of the machine.
    Machine,
}

fn parts() -> Vec<Part> {
    const ERROR: &str = "container_scrape_error";
    let (before, after) = FAMILIES.split_at(FAMILIES.partition_point(|family| family.name < ERROR));
    let cgroups = |families: &[&'static Family]| {
        families.iter().map(|family| Part::Cgroups(family)).collect::<Vec<_>>()
    };
    let mut parts = vec![Part::Version];
    parts.extend(cgroups(before));
    parts.push(Part::Error);
    parts.extend(cgroups(after));
    parts.push(Part::Machine);
    parts
}

/// The page as a stream.
pub(super) async fn page(endpoints: &StatsEndpoints) -> Body {
    let snapshot = endpoints.snapshot(Detail::Everything).await;
    let snapshot =
        snapshot.inspect_err(|error| tracing::warn!(%error, "failed to collect cgroup stats"));
    let image = endpoints.shared.facts.sandbox_image().await;
    let view = snapshot.ok().map(|snapshot| View::new(snapshot, image));
    let pieces = Pieces {
        view,
        endpoints: endpoints.clone(),
        parts: parts(),
        part: 0,
        progress: Progress::default(),
    };
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
}

/// The page with the metrics of the runtime in place of those of cgroups. If the runtime has none, only
/// those of the machine are there, as upstream has it.
pub(super) async fn runtime_page(endpoints: &StatsEndpoints, runtime: &Runtime) -> String {
    let mut machine = Text::new();
    machine::families(&endpoints.shared.facts, &mut machine);
    let machine = machine.finish();
    let names = machine.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut text = Text::new();
    match tokio::try_join!(runtime.list_metric_descriptors(), runtime.list_pod_sandbox_metrics()) {
        Ok((descriptors, pods)) => {
            runtime::families(descriptors, &pods, &names.collect::<HashSet<_>>(), &mut text);
        }
        Err(error) => tracing::warn!(%error, "failed to get the metrics of the runtime"),
    }
    text.finish() + &machine
}

/// Iterates over the pieces of the page.
struct Pieces {
    /// `None` if the snapshot failed.
    view: Option<View>,
    endpoints: StatsEndpoints,
    parts: Vec<Part>,
    /// The next part...
    part: usize,
    /// ...and its progress, if it is a family of cgroups.
    progress: Progress,
}

/// The progress of a family.
#[derive(Clone, Copy, Default)]
struct Progress {
    subjects: usize,
    begun: bool,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut text = Text::with_capacity(PIECE_CAPACITY);
        while text.len() < PIECE
            && let Some(part) = self.parts.get(self.part)
        {
            if let (Part::Cgroups(family), Some(view)) = (part, &self.view) {
                self.progress = view.write(family, self.progress, &mut text);
                if self.progress.subjects < view.subjects.len() {
                    continue;
                }
                self.progress = Progress::default();
            } else {
                self.write(*part, &mut text);
            }
            self.part += 1;
        }
        (!text.is_empty()).then(|| Bytes::from(text.finish()))
    }
}

impl Pieces {
    /// Writes parts that are not about cgroups.
    fn write(&self, part: Part, text: &mut Text) {
        let facts = &self.endpoints.shared.facts;
        match part {
            Part::Version => machine::version(facts, text),
            Part::Cgroups(_) => {}
            Part::Error => {
                let help = "1 if there was an error while getting container metrics, 0 otherwise";
                let failed = f64::from(u8::from(self.view.is_none()));
                text.family("container_scrape_error", help, Kind::Gauge).add(&Labels::NONE, failed);
            }
            Part::Machine => machine::families(facts, text),
        }
    }
}

/// A snapshot with the labels of its cgroups.
struct View {
    snapshot: Arc<Snapshot>,
    subjects: Vec<Labelled>,
}

struct Labelled {
    cgroup: CgroupRef,
    labels: Labels,
    /// The time of the sample.
    at: SampleTime,
    started: Option<Timestamp>,
}

/// A reference to a cgroup in a snapshot.
#[derive(Clone, Copy)]
enum CgroupRef {
    Node,
    Level(usize),
    System(usize),
    Pod(usize),
    Sandbox(usize, usize),
    Container(usize, usize),
}

impl CgroupRef {
    fn of(self, snapshot: &Snapshot) -> Option<&Group> {
        let run = |runs: fn(&PodGroup) -> &Vec<Run>, pod: usize, run: usize| {
            snapshot.pods.get(pod).and_then(|pod| runs(pod).get(run)).map(|run| &run.group)
        };
        match self {
            Self::Node => Some(&snapshot.node),
            Self::Level(index) => snapshot.levels.get(index),
            Self::System(index) => snapshot.system.get(index).map(|(_, group)| group),
            Self::Pod(index) => snapshot.pods.get(index)?.own.as_ref(),
            Self::Sandbox(pod, index) => run(|pod| &pod.sandboxes, pod, index),
            Self::Container(pod, index) => run(|pod| &pod.containers, pod, index),
        }
    }
}

/// The label values; empty if not applicable.
#[derive(Default)]
struct Names<'a> {
    container: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

impl Names<'_> {
    fn labels(&self, id: &str) -> Labels {
        Labels::new(&[
            ("container", self.container),
            ("id", id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ])
    }
}

impl View {
    fn new(snapshot: Arc<Snapshot>, sandbox_image: &str) -> Self {
        let mut subjects = Vec::with_capacity(snapshot.groups().count());
        let mut add = |cgroup: CgroupRef, names: Names<'_>, started: Option<Timestamp>| {
            let is_listed = |group: &Group| {
                let listed_cgroups = subjects.iter().map(|listed: &Labelled| listed.cgroup);
                listed_cgroups
                    .filter_map(|cgroup| cgroup.of(&snapshot))
                    .any(|one| one.path == group.path)
            };
            // A daemon's cgroup may be listed already.
            if let Some(group) = cgroup.of(&snapshot)
                && !(matches!(cgroup, CgroupRef::System(_)) && is_listed(group))
            {
                let labels = names.labels(&group.path);
                let at = SampleTime::of_millis(group.reading.at.as_millisecond());
                subjects.push(Labelled { cgroup, labels, at, started: started.or(group.created) });
            }
        };
        add(CgroupRef::Node, Names::default(), None);
        (0..snapshot.levels.len()).for_each(|at| add(CgroupRef::Level(at), Names::default(), None));
        for (at, pod) in snapshot.pods.iter().enumerate() {
            let (namespace, name) = (pod.pod.namespace.as_str(), pod.pod.name.as_str());
            let of_pod = || Names { namespace, pod: name, ..Names::default() };
            let made = pod.pod.sandboxes.last().map(|sandbox| sandbox.created_at);
            add(CgroupRef::Pod(at), of_pod(), made);
            for (index, run) in pod.sandboxes.iter().enumerate() {
                let Some(sandbox) = pod.sandbox(run) else { continue };
                let names = Names { image: sandbox_image, name: &sandbox.id, ..of_pod() };
                add(CgroupRef::Sandbox(at, index), names, Some(sandbox.created_at));
            }
            for (index, run) in pod.containers.iter().enumerate() {
                let Some(container) = pod.container(run) else { continue };
                let names = Names {
                    container: &container.name,
                    image: &container.image,
                    name: &container.id,
                    ..of_pod()
                };
                add(CgroupRef::Container(at, index), names, Some(container.created_at));
            }
        }
        (0..snapshot.system.len())
            .for_each(|at| add(CgroupRef::System(at), Names::default(), None));
        Self { snapshot, subjects }
    }

    /// Continues a family until the piece is complete, or the family is.
    fn write(&self, family: &Family, progress: Progress, text: &mut Text) -> Progress {
        let mut samples =
            text.family(family.name, family.help, family.kind).continued(progress.begun);
        let mut next = progress.subjects;
        while samples.written() < PIECE
            && let Some(labelled) = self.subjects.get(next)
        {
            next += 1;
            let Some(group) = labelled.cgroup.of(&self.snapshot) else { continue };
            let subject = Subject {
                group,
                snapshot: &self.snapshot,
                started: labelled.started,
                is_node: matches!(labelled.cgroup, CgroupRef::Node),
            };
            let at = family.timed.then_some(&labelled.at);
            let mut values = Values::new(&mut samples, &labelled.labels, at);
            (family.collect)(&subject, &mut values);
        }
        Progress { subjects: next, begun: samples.begun() }
    }
}

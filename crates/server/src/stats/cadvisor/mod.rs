//! `/metrics/cadvisor`: figures of all cgroups by the names that cAdvisor gave them, and of the
//! machine. The page of a full node has some megabytes, so it is written in pieces as the scraper
//! reads.

mod cpu;
mod disk;
mod family;
mod machine;
mod memory;
mod network;
mod process;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use futures::stream;
use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Kind, Labels, Moment, Text};
use longshore_resources::stats::{Detail, Group, PodGroup, Run, Snapshot};

use self::family::{Family, Subject, Values};
use super::StatsEndpoints;

/// All families of cgroups, by name.
static FAMILIES: LazyLock<Vec<&'static Family>> = LazyLock::new(|| {
    let all =
        [cpu::FAMILIES, disk::FAMILIES, memory::FAMILIES, network::FAMILIES, process::FAMILIES];
    let mut all: Vec<&Family> = all.into_iter().flatten().collect();
    all.sort_unstable_by_key(|family| family.name);
    all
});

/// A piece of the page has so many bytes, and a few lines more: memory for larger ones would be taken
/// from the kernel and given back each time.
const PIECE: usize = 56 << 10;
/// What a piece fits into, lest it be copied as it grows.
const ROOM: usize = 64 << 10;

/// What there is on the page, in order.
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

/// The page, as it is read.
pub(super) async fn page(figures: &StatsEndpoints) -> Body {
    let snapshot = figures.snapshot(Detail::Everything).await;
    let snapshot = snapshot.inspect_err(|error| tracing::warn!(%error, "no figures of cgroups"));
    let image = figures.shared.facts.sandbox_image().await;
    let view = snapshot.ok().map(|snapshot| View::new(snapshot, image));
    let pieces =
        Pieces { view, figures: figures.clone(), parts: parts(), part: 0, told: Told::default() };
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
}

/// The page in pieces, each written when the one before has been taken.
struct Pieces {
    /// `None` if nothing could be read.
    view: Option<View>,
    figures: StatsEndpoints,
    parts: Vec<Part>,
    /// The part that is next...
    part: usize,
    /// ...and how far it has been told, if it is a family of cgroups.
    told: Told,
}

/// How far a family has been told.
#[derive(Clone, Copy, Default)]
struct Told {
    subjects: usize,
    begun: bool,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut text = Text::with_capacity(ROOM);
        while text.len() < PIECE
            && let Some(part) = self.parts.get(self.part)
        {
            if let (Part::Cgroups(family), Some(view)) = (part, &self.view) {
                self.told = view.write(family, self.told, &mut text);
                if self.told.subjects < view.subjects.len() {
                    continue;
                }
                self.told = Told::default();
            } else {
                self.write(*part, &mut text);
            }
            self.part += 1;
        }
        (!text.is_empty()).then(|| Bytes::from(text.finish()))
    }
}

impl Pieces {
    /// What is not about cgroups.
    fn write(&self, part: Part, text: &mut Text) {
        let facts = &self.figures.shared.facts;
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

/// A snapshot, and how its cgroups are labelled.
struct View {
    snapshot: Arc<Snapshot>,
    subjects: Vec<Labelled>,
}

struct Labelled {
    place: Place,
    labels: Labels,
    /// When it was read.
    at: Moment,
    started: Option<Timestamp>,
}

/// Where in a snapshot a cgroup is.
#[derive(Clone, Copy)]
enum Place {
    Node,
    Level(usize),
    System(usize),
    Pod(usize),
    Sandbox(usize, usize),
    Container(usize, usize),
}

impl Place {
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

/// What upstream's labels are made of; what a cgroup does not have is empty.
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
        let mut add = |place: Place, names: Names<'_>, started: Option<Timestamp>| {
            let is_listed = |group: &Group| {
                let places = subjects.iter().map(|listed: &Labelled| listed.place);
                places.filter_map(|place| place.of(&snapshot)).any(|one| one.path == group.path)
            };
            // A daemon may run in a cgroup that is listed already.
            if let Some(group) = place.of(&snapshot)
                && !(matches!(place, Place::System(_)) && is_listed(group))
            {
                let labels = names.labels(&group.path);
                let at = Moment::of_millis(group.reading.at.as_millisecond());
                subjects.push(Labelled { place, labels, at, started: started.or(group.created) });
            }
        };
        add(Place::Node, Names::default(), None);
        (0..snapshot.levels.len()).for_each(|at| add(Place::Level(at), Names::default(), None));
        for (at, pod) in snapshot.pods.iter().enumerate() {
            let (namespace, name) = (pod.pod.namespace.as_str(), pod.pod.name.as_str());
            let of_pod = || Names { namespace, pod: name, ..Names::default() };
            let made = pod.pod.sandboxes.last().map(|sandbox| sandbox.created_at);
            add(Place::Pod(at), of_pod(), made);
            for (index, run) in pod.sandboxes.iter().enumerate() {
                let Some(sandbox) = pod.sandbox(run) else { continue };
                let names = Names { image: sandbox_image, name: &sandbox.id, ..of_pod() };
                add(Place::Sandbox(at, index), names, Some(sandbox.created_at));
            }
            for (index, run) in pod.containers.iter().enumerate() {
                let Some(container) = pod.container(run) else { continue };
                let names = Names {
                    container: &container.name,
                    image: &container.image,
                    name: &container.id,
                    ..of_pod()
                };
                add(Place::Container(at, index), names, Some(container.created_at));
            }
        }
        (0..snapshot.system.len()).for_each(|at| add(Place::System(at), Names::default(), None));
        Self { snapshot, subjects }
    }

    /// Go on with a family until the text is a piece, or it is told of all.
    fn write(&self, family: &Family, told: Told, text: &mut Text) -> Told {
        let mut samples = text.family(family.name, family.help, family.kind).continued(told.begun);
        let mut next = told.subjects;
        while samples.written() < PIECE
            && let Some(labelled) = self.subjects.get(next)
        {
            next += 1;
            let Some(group) = labelled.place.of(&self.snapshot) else { continue };
            let subject = Subject {
                group,
                snapshot: &self.snapshot,
                started: labelled.started,
                is_node: matches!(labelled.place, Place::Node),
            };
            let at = family.timed.then_some(&labelled.at);
            let mut values = Values::new(&mut samples, &labelled.labels, at);
            (family.tell)(&subject, &mut values);
        }
        Told { subjects: next, begun: samples.begun() }
    }
}

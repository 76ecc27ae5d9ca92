//! A snapshot of everything: node, pods and events from the apiserver, processes from /proc, as
//! plain data for the view.
use std::collections::HashMap;
use std::time::Instant;

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use procfs::process::Process;

use crate::stack::Daemon;

/// What the view shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) node: NodeSample,
    pub(crate) daemons: Vec<DaemonSample>,
    pub(crate) pods: Vec<PodSample>,
    /// Oldest first.
    pub(crate) events: Vec<EventSample>,
    /// Why the apiserver gave no answer, if it did not: then the rest is from an earlier snapshot.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeSample {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) runtime: String,
    pub(crate) capacity: String,
    /// Type and status of each condition.
    pub(crate) conditions: Vec<(String, String)>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DaemonSample {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
    /// Percent of one core, since the last snapshot.
    pub(crate) cpu: f64,
    /// Resident, in bytes.
    pub(crate) memory: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodSample {
    pub(crate) name: String,
    /// What keeps a container from running, or the phase.
    pub(crate) status: String,
    pub(crate) ready: usize,
    pub(crate) containers: usize,
    pub(crate) restarts: i32,
    pub(crate) ip: Option<String>,
    pub(crate) port: Option<i32>,
    /// In seconds.
    pub(crate) age: i64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EventSample {
    /// In seconds.
    pub(crate) age: i64,
    pub(crate) warning: bool,
    pub(crate) text: String,
}

/// Takes snapshots.
pub(crate) struct Inspector {
    node: String,
    nodes: Api<Node>,
    pods: Api<Pod>,
    events: Api<Event>,
    cpu: HashMap<u32, (Instant, f64)>,
    last: Snapshot,
}

impl Inspector {
    pub(crate) fn new(client: &Client, node: &str) -> Self {
        Self {
            node: node.to_owned(),
            nodes: Api::all(client.clone()),
            pods: Api::all(client.clone()),
            events: Api::all(client.clone()),
            cpu: HashMap::new(),
            last: Snapshot::default(),
        }
    }

    /// Takes a snapshot.
    pub(crate) async fn sample(&mut self, daemons: &[Daemon]) -> &Snapshot {
        match self.query().await {
            Ok((node, pods, mut events)) => {
                let now = Timestamp::now();
                self.last.node = node_sample(&node);
                self.last.pods = pods.iter().map(|pod| pod_sample(pod, now)).collect();
                // Times are whole seconds; within one, the resource version decides.
                let written = |event: &Event| event.resource_version()?.parse::<u64>().ok();
                events.sort_by_key(|event| (time(event).map(|time| time.0), written(event)));
                self.last.events = events.iter().map(|event| event_sample(event, now)).collect();
                self.last.error = None;
            }
            Err(error) => self.last.error = Some(format!("{error:#}")),
        }
        self.last.daemons = daemons.iter().filter_map(|daemon| self.daemon(*daemon)).collect();
        &self.last
    }

    async fn query(&self) -> Result<(Node, Vec<Pod>, Vec<Event>)> {
        let all = ListParams::default();
        let (node, pods, events) = tokio::try_join!(
            self.nodes.get(&self.node),
            self.pods.list(&all),
            self.events.list(&all)
        )?;
        Ok((node, pods.items, events.items))
    }

    fn daemon(&mut self, daemon: Daemon) -> Option<DaemonSample> {
        let Daemon { name, pid } = daemon;
        let stat = Process::new(i32::try_from(pid).ok()?).ok()?.stat().ok()?;
        let now = Instant::now();
        #[allow(clippy::cast_precision_loss, reason = "for display only")]
        let used = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        let cpu = match self.cpu.insert(pid, (now, used)) {
            Some((then, before)) => {
                100.0 * (used - before) / (now - then).as_secs_f64().max(f64::EPSILON)
            }
            None => 0.0,
        };
        Some(DaemonSample { name, pid, cpu, memory: stat.rss * procfs::page_size() })
    }
}

fn node_sample(node: &Node) -> NodeSample {
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.unwrap_or_default();
    let capacity = status.capacity.unwrap_or_default();
    let amount = |resource| capacity.get(resource).map_or("?", |quantity| quantity.0.as_str());
    NodeSample {
        name: node.name_any(),
        version: info.kubelet_version,
        runtime: info.container_runtime_version,
        capacity: format!(
            "{} cpu, {} memory, {} pods",
            amount("cpu"),
            gibibytes(amount("memory")),
            amount("pods")
        ),
        conditions: status
            .conditions
            .into_iter()
            .flatten()
            .map(|condition| (condition.type_, condition.status))
            .collect(),
    }
}

/// A quantity in Ki, as nodes give their memory, for people.
fn gibibytes(quantity: &str) -> String {
    let kibibytes = quantity.strip_suffix("Ki").and_then(|number| number.parse::<f64>().ok());
    kibibytes.map_or(quantity.to_owned(), |ki| format!("{:.1} GiB", ki / f64::from(1 << 20)))
}

fn pod_sample(pod: &Pod, now: Timestamp) -> PodSample {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let reason = containers.iter().find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.clone());
        waiting.or_else(|| state.terminated.as_ref().and_then(|ended| ended.reason.clone()))
    });
    let phase = status.phase.unwrap_or_else(|| "Pending".into());
    let spec = pod.spec.clone().unwrap_or_default();
    let ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    PodSample {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        status: match &pod.metadata.deletion_timestamp {
            Some(_) => "Terminating".into(),
            None => reason.unwrap_or(phase),
        },
        ready: containers.iter().filter(|container| container.ready).count(),
        containers: spec.containers.len(),
        restarts: containers.iter().map(|container| container.restart_count).sum(),
        ip: status.pod_ip,
        port: ports.map(|port| port.container_port).next(),
        age: age(pod.metadata.creation_timestamp.as_ref(), now),
    }
}

fn event_sample(event: &Event, now: Timestamp) -> EventSample {
    let object = &event.involved_object;
    EventSample {
        age: age(time(event).as_ref(), now),
        warning: event.type_.as_deref() == Some("Warning"),
        text: format!(
            "{} {}/{}: {}",
            event.reason.as_deref().unwrap_or("?"),
            object.kind.as_deref().unwrap_or_default().to_lowercase(),
            object.name.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default().trim(),
        ),
    }
}

/// When it was last seen, in whichever of its fields that is written.
fn time(event: &Event) -> Option<Time> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let precise = series.or(event.event_time.as_ref()).map(|time| Time(time.0));
    event.last_timestamp.clone().or(precise).or(event.first_timestamp.clone())
}

fn age(time: Option<&Time>, now: Timestamp) -> i64 {
    time.map_or(0, |time| now.duration_since(time.0).as_secs().max(0))
}

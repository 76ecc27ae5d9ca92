//! The lives of nodes: those that are not heard of are marked, tainted at a limited rate, and their
//! pods are marked not ready.

mod health;
pub(crate) mod taints;
mod zones;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Pod, Taint};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use longshore_base::rate::TokenBucket;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use self::health::{Health, lost_conditions};
use self::taints::{NOT_READY, UNREACHABLE};
use self::zones::{Limits, Zone, is_excluded, rates, zone_of};
use crate::Metrics;
use crate::pods::{BY_NODE, condition, index_by_node, patch_status};
use crate::writes::{is_conflict, reference, unless_gone, unless_stopped};
use crate::{ClusterSettings, Context};

/// Where nodes have their leases.
const LEASES: &str = "kube-node-lease";

/// Nodes of a zone that wait to be tainted.
struct Waiting {
    nodes: BTreeSet<String>,
    rate: f64,
    bucket: TokenBucket,
}

struct Monitor {
    client: Client,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    recorder: Recorder,
    settings: ClusterSettings,
    health: HashMap<String, Health>,
    waiting: BTreeMap<String, Waiting>,
    is_all_down: bool,
    metrics: Arc<Metrics>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("node_lifecycle_controller", &context.queues);
    let nodes = context.informers.get::<Node>();
    let leases = context.informers.get::<Lease>();
    let pods = context.informers.get::<Pod>();
    index_by_node(pods.store());
    nodes.subscribe({
        let queue = queue.clone();
        move |event: &Event<Node>| {
            if let Event::Added(node) | Event::Updated { new: node, .. } = event {
                queue.add(key_of(&**node));
            }
        }
    });
    let all = async {
        nodes.synced().await;
        leases.synced().await;
        pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let settings = context.settings.cluster.clone();
    let mut monitor = Monitor {
        client: context.client.clone(),
        nodes: nodes.clone(),
        leases,
        pods,
        recorder: context.recorder("node-controller"),
        health: HashMap::new(),
        waiting: BTreeMap::new(),
        is_all_down: false,
        metrics: context.metrics.clone(),
        settings,
    };
    let (client, store) = (context.client.clone(), nodes.clone());
    let workers =
        run_workers("node-lifecycle-controller", &queue, 8, &context.stop, |name: String| {
            let (client, node) = (client.clone(), store.store().get(&name));
            async move {
                let Some(node) = node else { return Ok(()) };
                match taints::no_schedule(&node, Timestamp::now()) {
                    Some(taints) => set_taints(&client, &node, taints).await.map(drop),
                    None => Ok(()),
                }
            }
        });
    tokio::join!(workers, async {
        unless_stopped(&context, monitor.run()).await;
    });
}

/// Replaces the taints; `false`: the node was changed meanwhile, or is gone.
async fn set_taints(client: &Client, node: &Node, taints: Vec<Taint>) -> Result<bool, kube::Error> {
    let patch = Patch::Merge(json!({
        "metadata": {
            "uid": node.metadata.uid,
            "resourceVersion": node.metadata.resource_version,
        },
        "spec": {"taints": taints},
    }));
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let api: Api<Node> = Api::all(client.clone());
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(error) if is_conflict(&error) => Ok(false),
        patched => unless_gone(patched).map(|patched| patched.is_some()),
    }
}

impl Monitor {
    async fn run(&mut self) {
        let mut tick = interval(self.settings.node_monitor_period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.pass().await;
        }
    }

    async fn pass(&mut self) {
        let metrics = self.metrics.clone();
        let start = std::time::Instant::now();
        let nodes = self.nodes.store().list();
        self.note_known(&nodes);
        let mut zones: BTreeMap<String, Zone> = BTreeMap::new();
        let mut statuses: BTreeMap<String, Option<String>> = BTreeMap::new();
        for node in &nodes {
            let one = std::time::Instant::now();
            let checked = self.check(node).await;
            metrics.nodes.one_update.took(one.elapsed());
            let status = match checked {
                Ok(status) => status,
                Err(error) => {
                    warn!(node = node.metadata.name, "cannot update the node's health: {error}");
                    continue;
                }
            };
            if !is_excluded(node) {
                let zone = zones.entry(zone_of(node)).or_default();
                match status.as_deref() {
                    Some("True") => zone.ready += 1,
                    _ => zone.unhealthy += 1,
                }
            }
            statuses.insert(node.metadata.name.clone().unwrap_or_default(), status);
        }
        self.limit(&zones);
        self.report(&zones);
        for node in &nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            if let Some(status) = statuses.get(&name)
                && let Err(error) = self.taint(node, status.as_deref()).await
            {
                warn!(node = name, "cannot taint the node: {error}");
            }
        }
        if let Err(error) = self.taint_waiting(&nodes).await {
            warn!("cannot taint nodes: {error}");
        }
        metrics.nodes.all_updates.took(start.elapsed());
    }

    fn report(&self, zones: &BTreeMap<String, Zone>) {
        let metrics = &self.metrics.nodes;
        for family in [&metrics.zone_size, &metrics.unhealthy, &metrics.zone_health] {
            family.retain(|[zone]| zones.contains_key(&**zone));
        }
        for (name, zone) in zones {
            let size = zone.ready.saturating_add(zone.unhealthy);
            metrics.zone_size.with([name]).set(size as f64);
            metrics.unhealthy.with([name]).set(zone.unhealthy as f64);
            let health = 100.0 * zone.ready as f64 / size.max(1) as f64;
            metrics.zone_health.with([name]).set(health);
            // without an eviction the counter is 0
            metrics.evictions.with([name]);
        }
    }

    fn note_known(&mut self, nodes: &[Arc<Node>]) {
        for node in nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            if !self.health.contains_key(&name) {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                self.record(node, EventType::Normal, "RegisteredNode", &message);
            }
        }
        let is_there: BTreeSet<&str> =
            nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
        let gone: Vec<String> =
            self.health.keys().filter(|name| !is_there.contains(name.as_str())).cloned().collect();
        for name in gone {
            let health = self.health.remove(&name);
            let about = ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                name: Some(name.clone()),
                uid: health.and_then(|health| health.uid()),
                ..ObjectReference::default()
            };
            let message = format!("Node {name} event: Removing Node {name} from Controller");
            self.recorder.event(about, EventType::Normal, "RemovingNode", &message);
        }
    }

    fn record(&self, node: &Node, kind: EventType, reason: &str, message: &str) {
        self.recorder.event(reference(node), kind, reason, message);
    }

    /// Marks the node if it is lost; returns the status of its condition `Ready` now.
    async fn check(&mut self, node: &Node) -> Result<Option<String>, kube::Error> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let lease = self.leases.store().get_named(LEASES, &name);
        let now = Instant::now();
        let health = self
            .health
            .entry(name.clone())
            .or_insert_with(|| Health::new(node, lease.as_deref(), now));
        health.observe(node, lease.as_deref(), now);
        let before = taints::condition(node, "Ready").map(str::to_owned);
        let (grace, startup) = (self.settings.node_monitor_grace, self.settings.node_startup_grace);
        let is_lost = health.is_lost(node, now, grace, startup);
        let lost = is_lost.then(|| lost_conditions(node, Timestamp::now())).flatten();
        let mut status = before.clone();
        if let Some(conditions) = lost {
            self.write(&name, node, conditions).await?;
            status = Some("Unknown".into());
        }
        let is_ready = status.as_deref() == Some("True");
        if before.as_deref() == Some("True") && !is_ready {
            let message = format!("Node {name} status is now: NodeNotReady");
            self.record(node, EventType::Normal, "NodeNotReady", &message);
        }
        // Tried again with each pass until no pod of it is ready.
        if !is_ready
            && status.is_some()
            && let Err(error) = self.mark_pods(&name).await
        {
            warn!(node = name, "cannot mark all pods of the node not ready: {error}");
        }
        Ok(status)
    }

    async fn write(
        &self,
        name: &str,
        node: &Node,
        conditions: Vec<NodeCondition>,
    ) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({
            "metadata": {
                "uid": node.metadata.uid,
                "resourceVersion": node.metadata.resource_version,
            },
            "status": {"conditions": conditions},
        }));
        let api: Api<Node> = Api::all(self.client.clone());
        api.patch_status(name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Marks the ready pods of a node that is not.
    async fn mark_pods(&self, node: &str) -> Result<(), kube::Error> {
        let mut failed = Ok(());
        for pod in self.pods.store().by_index(BY_NODE, node) {
            if !crate::workload::is_ready(&pod) {
                continue;
            }
            let not_ready = condition(&pod, "Ready", "False", "", "", Timestamp::now());
            match unless_gone(patch_status(&self.client, &pod, not_ready, None).await) {
                Ok(_) => self.recorder.event(
                    reference(&*pod),
                    EventType::Warning,
                    "NodeNotReady",
                    "Node is not ready",
                ),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    /// Sets the rates of the zones.
    fn limit(&mut self, zones: &BTreeMap<String, Zone>) {
        let settings = &self.settings;
        let limits = Limits {
            rate: settings.node_eviction_rate,
            secondary_rate: settings.secondary_node_eviction_rate,
            threshold: settings.unhealthy_zone_threshold,
            large: settings.large_cluster_threshold,
        };
        let now = Instant::now();
        let rates = rates(zones, limits);
        if rates.is_none() && !self.is_all_down {
            info!(
                "Controller detected that all Nodes are not-Ready. Entering master disruption mode"
            );
        } else if rates.is_some() && self.is_all_down {
            info!("Controller detected that some Nodes are Ready. Exiting master disruption mode");
            // Those that were cut off with this controller have time to report.
            self.health.values_mut().for_each(|health| health.seen = now);
        }
        self.is_all_down = rates.is_none();
        self.waiting.retain(|zone, _| zones.contains_key(zone));
        for zone in zones.keys() {
            let rate = rates.as_ref().and_then(|rates| rates.get(zone).copied());
            let rate = rate.unwrap_or_default();
            let burst = (rate * settings.node_monitor_period.as_secs_f64()).max(1.0);
            let bucket = || TokenBucket::new(rate, burst, now.into_std());
            let waiting = self.waiting.entry(zone.clone()).or_insert_with(|| Waiting {
                nodes: BTreeSet::new(),
                rate,
                bucket: bucket(),
            });
            if waiting.rate != rate {
                waiting.rate = rate;
                waiting.bucket = bucket();
            }
        }
    }

    /// Removes or swaps the taints of a node at once; queues it for a new one.
    async fn taint(&mut self, node: &Node, status: Option<&str>) -> Result<(), kube::Error> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let zone = self.waiting.get_mut(&zone_of(node));
        let wanted = match status {
            Some("False") => Some(NOT_READY),
            Some("Unknown") => Some(UNREACHABLE),
            Some(_) => None,
            None => return Ok(()),
        };
        let wanted = wanted.filter(|_| !self.is_all_down);
        let has = taints::no_execute_of(node);
        if wanted.is_some() && has.is_none() {
            if let Some(zone) = zone {
                zone.nodes.insert(name);
            }
            return Ok(());
        }
        if let Some(zone) = zone {
            zone.nodes.remove(&name);
        }
        match taints::no_execute(node, wanted, Timestamp::now()) {
            Some(taints) => set_taints(&self.client, node, taints).await.map(drop),
            None => Ok(()),
        }
    }

    /// Taints as many of the waiting nodes as the rates allow.
    async fn taint_waiting(&mut self, nodes: &[Arc<Node>]) -> Result<(), kube::Error> {
        let by_name: HashMap<&str, &Arc<Node>> =
            nodes.iter().filter_map(|node| Some((node.metadata.name.as_deref()?, node))).collect();
        let now = Instant::now();
        let evictions = &self.metrics.nodes.evictions;
        for (zone, waiting) in self.waiting.iter_mut().filter(|(_, own)| own.rate > 0.0) {
            while let Some(name) = waiting.nodes.first().cloned() {
                let Some(node) = by_name.get(name.as_str()) else {
                    waiting.nodes.remove(&name);
                    continue;
                };
                if !waiting.bucket.try_take(now.into_std()) {
                    break;
                }
                // The informer may not show yet what this pass wrote.
                let api: Api<Node> = Api::all(self.client.clone());
                let latest = api.get_opt(&name).await?;
                waiting.nodes.remove(&name);
                let Some(latest) = latest.filter(|own| own.metadata.uid == node.metadata.uid)
                else {
                    continue;
                };
                let wanted = match taints::condition(&latest, "Ready") {
                    Some("False") => NOT_READY,
                    Some("Unknown") => UNREACHABLE,
                    _ => continue,
                };
                let taints = taints::no_execute(&latest, Some(wanted), Timestamp::now());
                let Some(taints) = taints else { continue };
                if !set_taints(&self.client, &latest, taints).await? {
                    waiting.nodes.insert(name);
                    break;
                }
                evictions.with([zone]).inc();
            }
        }
        Ok(())
    }
}

//! Registers the node, updates its status, and renews its [`lease`].
//!
//! Inputs of the status come from [`channels`]; the node object is published by [`Registration::node`].

mod inputs;
mod lease;
mod node;
mod patch;
mod startup;
mod status;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Client, Error as KubeError};
use longshore_base::retry::Delays;
use longshore_base::time;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_client::{Item, Reports, object};
use longshore_config::Config;
use longshore_devices::Capacity;
use longshore_machine::{Machine, addresses, disk_capacity};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

pub use self::inputs::{Feeds, Inputs, RuntimeHealth, channels};
pub use self::lease::renew as renew_lease;
pub use self::startup::Startup;
use self::status::StatusInputs;

/// Backoff of registration.
const BACKOFF_BASE: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(7);
/// Delay after a failed status update.
const RETRY: Duration = Duration::from_secs(1);
/// How long a node that was Ready before the start stays so while it is not known whether it is: as long as one whose
/// runtime fails.
const SETTLE: Duration = Duration::from_secs(30);

/// Controller of the node object.
pub struct Registration {
    config: Arc<Config>,
    recorder: Recorder,
    inputs: Inputs,
    startup: Startup,
    machine: Machine,
    api: Api<Item<Node>>,
    node: watch::Sender<Option<Arc<Node>>>,
    addresses: Option<Vec<IpAddr>>,
    unschedulable: bool,
    next_report: Instant,
    /// Whether extended resources that the object has are of another node, until a status is written.
    resets_extended: bool,
}

impl Registration {
    /// Does nothing until [`run`](Self::run), which sends the last known object to `node`; `None`
    /// while it is not known or does not exist.
    pub fn new(
        config: Arc<Config>,
        client: Client,
        recorder: Recorder,
        inputs: Inputs,
        startup: Startup,
        node: watch::Sender<Option<Arc<Node>>>,
    ) -> Self {
        Self {
            config,
            recorder,
            inputs,
            startup,
            machine: Machine::read(),
            api: Api::all(client),
            node,
            addresses: None,
            unschedulable: false,
            next_report: Instant::now(),
            resets_extended: false,
        }
    }

    /// This machine had no device manager before: the extended resources that an object of its name has
    /// are none of its own, and are set to zero.
    pub fn reset_extended(mut self) -> Self {
        self.resets_extended = true;
        self
    }

    /// Registers the node if configured, then updates its status. Never ends; drop it to stop.
    pub async fn run(mut self) {
        let follow = follow(self.api.clone(), self.config.node_name.clone(), self.node.clone());
        let keep = async {
            if self.config.kubelet.register_node {
                self.register().await;
            }
            self.keep().await;
        };
        // Neither returns.
        tokio::select! {
            () = follow => {}
            () = keep => {}
        }
    }

    async fn register(&mut self) {
        self.startup.registration_started();
        let mut delays = Delays::doubling(BACKOFF_BASE, BACKOFF_MAX);
        loop {
            let pause = delays.next_delay();
            match self.try_register().await {
                Ok(node) => {
                    info!(node = self.config.node_name, "node registered");
                    return update_node(&self.node, node);
                }
                Err(error) => warn!(retry = ?pause, "cannot register the node: {error}"),
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_register(&mut self) -> Result<Node, KubeError> {
        let status = self.status(&NodeStatus::default()).await;
        let wanted = node::initial(&self.config, status);
        match self.api.create(&PostParams::default(), &wanted.into()).await {
            Err(KubeError::Api(status)) if status.code == 409 || status.code == 403 => {
                // it exists: reconcile it below
                debug!("the node may exist already: {status}");
            }
            outcome => {
                let node = outcome?.read()?;
                self.startup.registered();
                self.check_ready(&node);
                return Ok(node);
            }
        }
        let existing = object(self.api.get(&self.config.node_name)).await?;
        match node::reconcile(&self.config, &existing) {
            Some(changes) => self.patch(changes).await,
            None => Ok(existing),
        }
    }

    async fn keep(&mut self) {
        let settings = &self.config.kubelet;
        let update_interval = settings.node_status_update_frequency.get();
        let report = settings.node_status_report_frequency.get();
        self.settle().await;
        let mut next_update = Instant::now();
        loop {
            tokio::select! {
                () = sleep_until(next_update) => {}
                () = self.inputs.changed() => {}
            }
            let outcome = self.update(report).await;
            next_update = time::after(if outcome.is_ok() {
                update_interval
            } else {
                RETRY.min(update_interval)
            });
            if let Err(error) = outcome {
                warn!("cannot update the node's status: {error}");
            }
        }
    }

    /// Waits until a node that its object says to be Ready can be said to be so: until the runtime has answered and its
    /// containers are listed. Otherwise a restart, or the exchange of kubelets, would take its pods out of services.
    async fn settle(&mut self) {
        let node = self.node.borrow().clone();
        let Some(old) = node.as_ref().and_then(|node| node.status.as_ref()) else { return };
        if !is_ready(old) {
            return;
        }
        let settled = async {
            while !is_ready(&self.status(old).await) && !*self.inputs.shutting_down.borrow() {
                self.inputs.changed().await;
            }
        };
        let _ = tokio::time::timeout(SETTLE, settled).await;
    }

    /// Writes the status if it has changed, or if a heartbeat is due.
    async fn update(&mut self, report: Duration) -> Result<(), KubeError> {
        let Some(node) = self.node.borrow().clone() else {
            debug!("node object does not exist, status not written");
            return Ok(());
        };
        if let Some(changes) = node::required(&self.config, &node) {
            self.patch(changes).await?;
        }
        self.check_schedulable(&node);
        let unknown = NodeStatus::default();
        let old = node.status.as_ref().unwrap_or(&unknown);
        let new = self.status(old).await;
        let changed = patch::has_changes(old, &new);
        if !changed && Instant::now() < self.next_report {
            return Ok(());
        }
        let changes = Patch::Strategic(patch::status_patch(old, &new));
        let parameters = PatchParams::default();
        let patched = self.api.patch_status(&self.config.node_name, &parameters, &changes);
        let patched = object(patched).await?;
        self.check_ready(&patched);
        update_node(&self.node, patched);
        self.resets_extended = false;
        self.record_transitions(old, &new);
        // after a change, heartbeats are spread over the report interval
        let spread = if changed { 0.5 + fastrand::f64() } else { 1.0 };
        self.next_report = time::after(report.min(time::FOREVER).mul_f64(spread));
        Ok(())
    }

    async fn patch(&self, changes: Value) -> Result<Node, KubeError> {
        let changes = Patch::Strategic(changes);
        let parameters = PatchParams::default();
        let node = object(self.api.patch(&self.config.node_name, &parameters, &changes)).await?;
        update_node(&self.node, node.clone());
        Ok(node)
    }

    async fn status(&mut self, old: &NodeStatus) -> NodeStatus {
        self.find_addresses().await;
        let images = self.inputs.images.borrow().clone();
        let runtime = self.inputs.runtime.borrow().clone();
        let pleg = self.inputs.pleg.borrow().clone();
        let storage = self.inputs.storage.borrow().clone();
        let extended = self.inputs.extended.borrow_and_update().clone();
        let inputs = StatusInputs {
            config: &self.config,
            machine: &self.machine,
            disk: disk_capacity(&self.config.root_dir),
            addresses: self.addresses.as_deref(),
            runtime: &runtime,
            pleg: pleg.as_deref(),
            storage: storage.as_deref(),
            shutting_down: *self.inputs.shutting_down.borrow(),
            pressure: *self.inputs.pressure.borrow(),
            images: &images,
            volumes_in_use: self.inputs.volumes_in_use(),
            extended: &extended,
            resets_extended: self.resets_extended,
            now: Timestamp::now(),
        };
        status::node_status(old, &inputs)
    }

    /// Determines the node's addresses, again when they are no longer on this host.
    async fn find_addresses(&mut self) {
        if self.addresses.as_ref().is_some_and(|known| addresses::are_local(known)) {
            return;
        }
        match addresses::resolve(&self.config.node_ips, &self.config.node_name).await {
            Ok(addresses) => self.addresses = Some(addresses),
            Err(error) => warn!("{error}"),
        }
    }

    fn event(&self, kind: EventType, reason: &str, message: &str) {
        self.recorder.event(node_reference(&self.config.node_name), kind, reason, message);
    }

    fn status_event(&self, reason: &str) {
        let message = format!("Node {} status is now: {reason}", self.config.node_name);
        self.event(EventType::Normal, reason, &message);
    }

    fn check_schedulable(&mut self, node: &Node) {
        let unschedulable =
            node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            self.status_event(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" });
        }
    }

    fn check_ready(&mut self, node: &Node) {
        if node.status.as_ref().is_some_and(is_ready) {
            self.startup.ready();
        }
    }

    fn record_transitions(&self, old: &NodeStatus, new: &NodeStatus) {
        transitions(old, new).into_iter().for_each(|reason| self.status_event(reason));
        let boot_id = |status: &NodeStatus| {
            status.node_info.as_ref().map(|info| info.boot_id.clone()).filter(|id| !id.is_empty())
        };
        if let (Some(before), Some(now)) = (boot_id(old), boot_id(new))
            && before != now
        {
            let name = &self.config.node_name;
            let message = format!("Node {name} has been rebooted, boot id: {now}");
            self.event(EventType::Warning, "Rebooted", &message);
        }
    }
}

/// The initial node object: configured labels, taints and resources.
pub fn initial_node(config: &Config) -> Node {
    let inputs = StatusInputs {
        config,
        machine: &Machine::read(),
        disk: disk_capacity(&config.root_dir),
        addresses: None,
        runtime: &RuntimeHealth::default(),
        pleg: None,
        storage: None,
        shutting_down: false,
        pressure: inputs::Pressure::default(),
        images: &[],
        volumes_in_use: Vec::new(),
        extended: &Capacity::default(),
        resets_extended: false,
        now: Timestamp::now(),
    };
    node::initial(config, status::node_status(&NodeStatus::default(), &inputs))
}

fn condition<'a>(status: &'a NodeStatus, type_: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}

fn is_ready(status: &NodeStatus) -> bool {
    condition(status, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Event reasons for changed conditions.
fn transitions(old: &NodeStatus, new: &NodeStatus) -> Vec<&'static str> {
    [
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
        ("Ready", "NodeReady", "NodeNotReady"),
    ]
    .into_iter()
    .filter_map(|(type_, when_true, when_false)| {
        let before = condition(old, type_).map(|condition| &condition.status);
        let now = &condition(new, type_)?.status;
        // a new node is not ready at first
        let is_new = before.map_or(type_ != "Ready", |before| before != now);
        is_new.then_some(if now == "True" { when_true } else { when_false })
    })
    .collect()
}

/// Watches the node object.
async fn follow(api: Api<Item<Node>>, name: String, known: watch::Sender<Option<Arc<Node>>>) {
    let mut stream = Box::pin(watch_object(api, &name).default_backoff());
    let mut reports = Reports::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Some(item)) => match item.read() {
                Ok(node) => update_node(&known, node),
                Err(unreadable) => {
                    reports.log(&unreadable);
                }
            },
            Ok(None) => {
                known.send_replace(None);
            }
            Err(error) => debug!("watch of the node interrupted: {error}"),
        }
    }
}

/// Updates the known node object unless it is older: responses and watch events are not ordered.
fn update_node(known: &watch::Sender<Option<Arc<Node>>>, node: Node) {
    let version = |node: &Node| node.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    known.send_if_modified(|current| {
        let newer = match current {
            Some(old) if old.metadata.uid == node.metadata.uid => version(old) < version(&node),
            _ => true,
        };
        if newer {
            *current = Some(Arc::new(node));
        }
        newer
    });
}

//! Endpoint slices of services that have a selector.

pub(crate) mod membership;
pub(crate) mod plan;
#[cfg(test)]
mod tests;
mod topology;
pub(crate) mod trigger;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use longshore_client::error_message;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{
    Event, Expectations, Informer, SyncError, WorkQueue, key_of, object_key, run_workers, split_key,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::membership::Membership;
use self::plan::{Counts, LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY, Totals};
use self::topology::Topology;
use self::trigger::TriggerTimes;
use crate::writes::{is_terminating, reference, unless_gone, unless_stopped};
use crate::{Context, Metrics};

/// The index of slices by the key of their service.
pub(crate) const BY_SERVICE: &str = "service";

/// Why a service is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A slice cannot be written.
    #[error("failed to {what} for Service {service}: {}", error_message(.error))]
    Write { what: String, service: String, error: kube::Error },
    /// A pod was left out.
    #[error("skipping Pod {pod} for Service {service}: Node {node} Not Found")]
    NoNode { pod: String, service: String, node: String },
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { error, .. } if error.is_conflict())
    }
}

/// The key of the service of a slice.
pub(crate) fn service_of(slice: &EndpointSlice) -> Option<String> {
    let name = slice.metadata.labels.as_ref()?.get(LABEL_SERVICE)?;
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    Some(object_key(namespace, name))
}

/// Whether the slice is managed by that controller.
pub(crate) fn is_managed_by(slice: &EndpointSlice, controller: &str) -> bool {
    let labels = slice.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(LABEL_MANAGED_BY)).is_some_and(|by| by == controller)
}

/// The members of services, kept up to date; services whose endpoints may change are queued, those of
/// pods that changed after the period in which changes are collected.
pub(crate) fn follow_members(
    services: &Informer<Service>,
    pods: &Informer<Pod>,
    queue: &WorkQueue<String>,
    batch_period: Duration,
) -> Arc<Mutex<Membership>> {
    let members: Arc<Mutex<Membership>> = Arc::default();
    services.subscribe({
        let (members, pods, queue) = (members.clone(), pods.clone(), queue.clone());
        move |event: &Event<Service>| {
            let service = event.latest();
            let spec = match event {
                Event::Deleted(_) => None,
                _ => service.spec.as_ref(),
            };
            let key = key_of(&**service);
            let (namespace, name) = split_key(&key);
            let selector = spec.and_then(|spec| spec.selector.as_ref());
            let mut members = members.lock();
            let list = || pods.store().list_namespace(namespace);
            members.set_service(namespace, name, selector, list);
            drop(members);
            queue.add(key);
        }
    });
    pods.subscribe({
        let (members, queue) = (members.clone(), queue.clone());
        move |event: &Event<Pod>| {
            let pod = event.latest();
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let mut members = members.lock();
            let services = match event {
                Event::Deleted(pod) => {
                    members.remove_pod(namespace, pod.metadata.name.as_deref().unwrap_or_default())
                }
                _ => members.set_pod(pod),
            };
            drop(members);
            for name in services {
                queue.add_after(object_key(namespace, &name), batch_period);
            }
        }
    });
    members
}

struct Controller {
    client: kube::Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    members: Arc<Mutex<Membership>>,
    times: Mutex<TriggerTimes>,
    expectations: Arc<Expectations>,
    maximum: usize,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    totals: Mutex<Totals>,
    /// The traffic distribution of services that say one, by their keys.
    distributions: Mutex<HashMap<String, String>>,
    topology: Mutex<Topology>,
}

/// Runs the function once when informers are synced and then after each change of nodes that moves zones'
/// shares of CPUs: those of readiness and zone.
async fn follow_zones(nodes: &Informer<Node>, changed: impl Fn(&[Arc<Node>])) {
    let wake = Arc::new(Notify::new());
    nodes.subscribe({
        let wake = wake.clone();
        move |event: &Event<Node>| {
            let seen = |node: &Node| (topology::is_node_ready(node), topology::zone(node).cloned());
            let is_same = event.old().is_some_and(|old| seen(old) == seen(event.latest()));
            if !is_same || matches!(event, Event::Deleted(_)) {
                wake.notify_one();
            }
        }
    });
    loop {
        changed(&nodes.store().list());
        wake.notified().await;
    }
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("endpoint_slice", &context.queues);
    let services = context.informers.get::<Service>();
    let pods = context.informers.get::<Pod>();
    let nodes = context.informers.get::<Node>();
    let slices = context.informers.get::<EndpointSlice>();
    let expectations: Arc<Expectations> = Arc::default();
    slices.store().add_index(BY_SERVICE, |slice| service_of(slice).into_iter().collect());
    let batch_period = context.settings.cluster.slice_batch_period;
    let members = follow_members(&services, &pods, &queue, batch_period);
    follow_slices(&slices, MANAGED_BY, &expectations, &queue);
    let all = async {
        services.synced().await;
        pods.synced().await;
        nodes.synced().await;
        slices.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let controller = Controller {
        client: context.client.clone(),
        services,
        pods,
        nodes,
        slices,
        members,
        times: Mutex::default(),
        expectations,
        maximum: context.settings.cluster.max_endpoints_per_slice,
        recorder: context.recorder("endpoint-slice-controller"),
        metrics: context.metrics.clone(),
        totals: Mutex::default(),
        distributions: Mutex::default(),
        topology: Mutex::default(),
    };
    let workers = context.settings.cluster.service_endpoint_workers;
    let zones = follow_zones(&controller.nodes, |nodes| {
        let nodes = nodes.iter().map(|node| &**node);
        let overloaded = controller.topology.lock().set_nodes(nodes);
        overloaded.into_iter().for_each(|service| queue.add(service));
    });
    let work = run_workers("endpointslice-controller", &queue, workers, &context.stop, |key| {
        controller.sync(key)
    });
    // the zones come first, so that the first sync of a service knows them
    tokio::select! {
        biased;
        () = zones => {}
        _ = work => {}
    }
}

/// Queues the service of each slice that changes and is managed by this controller, and notes the slices
/// that were expected.
pub(crate) fn follow_slices(
    slices: &Informer<EndpointSlice>,
    manager: &'static str,
    expectations: &Arc<Expectations>,
    queue: &WorkQueue<String>,
) {
    let (queue, expectations) = (queue.clone(), expectations.clone());
    slices.subscribe(move |event: &Event<EndpointSlice>| {
        let of =
            |slice: &EndpointSlice| service_of(slice).filter(|_| is_managed_by(slice, manager));
        let keys = [Some(event.latest()), event.old()];
        for key in keys.into_iter().flatten().filter_map(|slice| of(slice)) {
            if matches!(event, Event::Added(_)) {
                expectations.creation_observed(&key);
            }
            queue.add(key);
        }
    });
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let synced = self.try_sync(&key).await;
        let result = if synced.is_ok() { "success" } else { "error" };
        self.metrics.slices.syncs.with([result]).inc();
        if let Err(error) = &synced
            && let Some(service) = self.services.store().get(&key)
        {
            let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
            let (about, reason) = (reference(&*service), "FailedToUpdateEndpointSlices");
            self.recorder.event(about, EventType::Warning, reason, &message);
        }
        synced
    }

    /// Notes what a service's slices hold, and how its traffic is distributed; `None`: it is gone.
    fn note(&self, key: &str, service: Option<&Service>, counts: Option<Counts>) {
        let metrics = &self.metrics.slices;
        let mut totals = self.totals.lock();
        totals.set(key, counts);
        let gauges = [&metrics.desired_endpoints, &metrics.slices, &metrics.desired_slices];
        totals.show(gauges);
        let distribution = service.and_then(topology::distribution).map(str::to_owned);
        let mut known = self.distributions.lock();
        let old = match &distribution {
            Some(new) => known.insert(key.to_owned(), new.clone()),
            None => known.remove(key),
        };
        if old != distribution {
            for (value, change) in [(old, -1.0), (distribution, 1.0)] {
                if let Some(value) = value {
                    metrics.distributions.with([&value]).add(change);
                }
            }
        }
    }

    async fn try_sync(&self, key: &str) -> Result<(), Error> {
        let (namespace, name) = split_key(key);
        let times = || self.times.lock();
        let Some(service) = self.services.store().get(key) else {
            // The garbage collector deletes the slices.
            times().forget(namespace, name);
            self.expectations.remove(key);
            self.topology.lock().forget(key);
            self.note(key, None, None);
            return Ok(());
        };
        let spec = service.spec.as_ref();
        let is_external = spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
        if is_external || spec.is_none_or(|spec| spec.selector.is_none()) {
            return Ok(());
        }
        if !self.expectations.satisfied(key) {
            // The informer shows the new slices soon.
            return Ok(());
        }
        let members = {
            let members = self.members.lock();
            members.pods_of(namespace, name)
        };
        let pods: Vec<Arc<Pod>> =
            members.iter().filter_map(|pod| self.pods.store().get_named(namespace, pod)).collect();
        let existing: Vec<Arc<EndpointSlice>> = self
            .slices
            .store()
            .by_index(BY_SERVICE, key)
            .into_iter()
            .filter(|slice| is_managed_by(slice, MANAGED_BY))
            .filter(|slice| slice.metadata.deletion_timestamp.is_none())
            .collect();
        let names: std::collections::BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        let nodes: std::collections::HashMap<&str, Arc<Node>> = names
            .into_iter()
            .filter_map(|name| Some((name, self.nodes.store().get(name)?)))
            .collect();
        let node = |name: &str| nodes.get(name).map(|node| &**node);
        let trigger = times().observe(&service, &pods);
        let mut plan = {
            let mut topology = self.topology.lock();
            plan::plan(&service, &pods, &node, &existing, self.maximum, &mut topology)
        };
        for change in &plan.hints {
            let event_type = if change.is_enabled { EventType::Normal } else { EventType::Warning };
            let about = reference(&*service);
            self.recorder.event(about, event_type, change.reason(), &change.message);
        }
        let metrics = &self.metrics.slices;
        self.note(key, Some(&service), Some(plan.counts));
        metrics.added.observe(plan.counts.added as f64);
        metrics.removed.observe(plan.counts.removed as f64);
        let mode = if topology::is_auto(&service) { "Auto" } else { "Disabled" };
        let labels = [mode, topology::distribution(&service).unwrap_or_default()];
        metrics.changed.with(labels).observe(plan.changes() as f64);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        if !plan.create.is_empty() {
            self.expectations.expect_creations(key, plan.create.len());
        }
        let failed =
            |what: String| move |error| Error::Write { what, service: key.to_owned(), error };
        let mut left = plan.create.len();
        for slice in &mut plan.create {
            plan::set_trigger_time(slice, trigger);
            if let Err(error) = api.create(&params, slice).await {
                self.expectations.creations_observed(key, left);
                if is_terminating(&error) {
                    return Ok(());
                }
                return Err(failed("create EndpointSlice".to_owned())(error));
            }
            metrics.changes.with(["create"]).inc();
            left -= 1;
        }
        for slice in &mut plan.update {
            plan::set_trigger_time(slice, trigger);
            let name = slice.metadata.name.clone().unwrap_or_default();
            let replaced = api.replace(&name, &params, slice).await;
            replaced.map_err(failed(format!("update {name} EndpointSlice")))?;
            metrics.changes.with(["update"]).inc();
        }
        for name in &plan.delete {
            let deleted = unless_gone(api.delete(name, &DeleteParams::default()).await);
            deleted.map_err(failed(format!("delete {name} EndpointSlice")))?;
            metrics.changes.with(["delete"]).inc();
        }
        match plan.without_node.into_iter().next() {
            Some((pod, node)) => Err(Error::NoNode { pod, service: key.to_owned(), node }),
            None => Ok(()),
        }
    }
}

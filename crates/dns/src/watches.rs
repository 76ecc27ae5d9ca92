//! Changes of objects of the cluster, applied to the [`Model`] in order, and published as a zone at
//! once: what is there together is published together.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use longshore_informer::{Event, Informer, Object, Options};
use longshore_metrics::{Family, Histogram};
use tokio::sync::{mpsc, watch};
use tracing::info;

use crate::model::Model;
use crate::zone::{PodNames, Zone};

/// When the change that led to a slice was made.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Changes that are published together, at most.
const MAX_TOGETHER: usize = 256;

/// A change of an object.
#[derive(Debug)]
pub(crate) enum Change {
    Service(Event<Service>),
    Slice(Event<EndpointSlice>),
    Namespace(Event<Namespace>),
    Pod(Event<Pod>),
    /// All objects are known that there were at the start.
    Synced,
}

/// Follows the objects of an apiserver until dropped.
pub(crate) async fn follow(
    client: &Client,
    pod_names: PodNames,
    changes: mpsc::UnboundedSender<Change>,
) {
    let services = subscribed(client, trim_service, &changes, Change::Service);
    let slices = subscribed(client, trim_slice, &changes, Change::Slice);
    let namespaces = subscribed(client, trim_namespace, &changes, Change::Namespace);
    let pods = (pod_names == PodNames::Verified)
        .then(|| subscribed(client, trim_pod, &changes, Change::Pod));
    tokio::join!(services.synced(), slices.synced(), namespaces.synced());
    if let Some(pods) = &pods {
        pods.synced().await;
    }
    info!("all services and endpoints are known");
    // it fails when nobody is left to hear it
    let _ = changes.send(Change::Synced);
    // The informers live as long as this.
    std::future::pending::<()>().await;
}

fn subscribed<K: Object + k8s_openapi::Resource>(
    client: &Client,
    transform: fn(&mut K),
    changes: &mpsc::UnboundedSender<Change>,
    change: fn(Event<K>) -> Change,
) -> Informer<K> {
    let informer =
        Informer::start(client, Options { transform: Some(transform), ..Options::default() });
    let changes = changes.clone();
    informer.subscribe(move |event: &Event<K>| {
        let _ = changes.send(change(event.clone()));
    });
    informer
}

/// Applies changes and publishes what follows, until there are no more to come. How long it took is
/// measured in `programming`.
pub(crate) async fn apply(
    mut model: Model,
    mut changes: mpsc::UnboundedReceiver<Change>,
    zone: watch::Sender<Arc<Zone>>,
    programming: Family<Histogram, 1>,
) {
    let mut together = Vec::new();
    while changes.recv_many(&mut together, MAX_TOGETHER).await > 0 {
        let applied = together.drain(..).filter_map(|change| apply_one(&mut model, &change));
        let triggers: Vec<_> = applied.collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let serial = u32::try_from(now.as_secs()).unwrap_or_default();
        zone.send_replace(Arc::new(model.snapshot(serial)));
        for trigger in triggers {
            let took = jiff::Timestamp::now().duration_since(trigger);
            let series = programming.with(["headless_with_selector"]);
            series.observe(took.as_secs_f64().max(0.0));
        }
    }
}

/// Applies a change; returns when it was made, where that is to be measured.
fn apply_one(model: &mut Model, change: &Change) -> Option<jiff::Timestamp> {
    match change {
        Change::Service(Event::Deleted(old)) => model.delete_service(&old.metadata),
        Change::Service(event) => model.apply_service(event.latest()),
        Change::Slice(Event::Deleted(old)) => model.delete_slice(&old.metadata),
        Change::Slice(event) => {
            // It may have been of another service.
            if let Some(old) = event.old().filter(|old| is_moved(old, event.latest())) {
                model.delete_slice(&old.metadata);
            }
            let is_measured = model.apply_slice(event.latest());
            let annotations = event.latest().metadata.annotations.as_ref()?;
            let trigger = annotations.get(TRIGGER_TIME).filter(|_| is_measured)?;
            let before = event.old().and_then(|old| old.metadata.annotations.as_ref());
            let is_new = before.and_then(|all| all.get(TRIGGER_TIME)) != Some(trigger);
            return trigger.parse().ok().filter(|_| is_new);
        }
        Change::Namespace(Event::Deleted(old)) => {
            model.delete_namespace(old.metadata.name.as_deref().unwrap_or_default());
        }
        Change::Namespace(event) => {
            model.apply_namespace(event.latest().metadata.name.as_deref().unwrap_or_default());
        }
        Change::Pod(Event::Deleted(old)) => model.delete_pod(&old.metadata),
        Change::Pod(event) => model.apply_pod(event.latest()),
        Change::Synced => model.set_synced(),
    }
    None
}

fn is_moved(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    old.metadata.labels != new.metadata.labels
}

fn trim_service(service: &mut Service) {
    trim(service.metadata_mut());
    service.status = None;
}

fn trim_slice(slice: &mut EndpointSlice) {
    trim(slice.metadata_mut());
    for endpoint in slice.endpoints.iter_mut().flatten() {
        endpoint.target_ref = None;
        endpoint.hints = None;
        endpoint.node_name = None;
        endpoint.zone = None;
        endpoint.deprecated_topology = None;
    }
}

fn trim_namespace(namespace: &mut Namespace) {
    trim(namespace.metadata_mut());
    namespace.spec = None;
    namespace.status = None;
}

fn trim_pod(pod: &mut Pod) {
    trim(pod.metadata_mut());
    pod.spec = None;
    if let Some(status) = &mut pod.status {
        *status = k8s_openapi::api::core::v1::PodStatus {
            phase: status.phase.take(),
            pod_ip: status.pod_ip.take(),
            pod_ips: status.pod_ips.take(),
            ..Default::default()
        };
    }
}

/// Leaves what an informer needs, the labels, and the one annotation that is read.
fn trim(metadata: &mut ObjectMeta) {
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| name == TRIGGER_TIME);
    }
}

//! The garbage collector: deletes objects whose owners are all gone, and finishes deletions in the
//! foreground and with orphans. It watches the metadata of everything that can be deleted.

mod collector;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use kube::core::{ApiResource, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{WorkQueue, run_workers};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use self::collector::{Cluster, Collector, Error};
use self::graph::{Identity, Policy, Work};
use crate::Context;
use crate::discovery::{Discovered, discover};
use crate::writes::{is_conflict, is_not_found, unless_stopped};
use longshore_metrics::Counter;

/// How often the apiserver is asked for new resources.
const RESYNC: Duration = Duration::from_secs(30);
/// How long the first lists may take before work begins without them.
const FIRST_LISTS: Duration = Duration::from_secs(60);
/// When an object is looked at again that exists but was not observed.
const UNOBSERVED: Duration = Duration::from_secs(10);
/// Resources that are never owned, and change all the time.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

type Kinds = HashMap<(String, String), (ApiResource, bool)>;

/// The requests, over a client.
struct ApiCluster {
    client: Client,
    kinds: RwLock<Kinds>,
    recorder: Recorder,
}

impl ApiCluster {
    fn kind(&self, api_version: &str, kind: &str) -> Result<(ApiResource, bool), Error> {
        let kinds = self.kinds.read();
        let group = |version: &str| match version.split_once('/') {
            Some((group, _)) => group.to_owned(),
            None => String::new(),
        };
        let exact = kinds.get(&(api_version.to_owned(), kind.to_owned()));
        // References name versions that are not the preferred ones.
        let other = || {
            kinds
                .iter()
                .find(|((version, own), _)| own == kind && group(version) == group(api_version))
        };
        match exact.or_else(|| other().map(|(_, found)| found)) {
            Some(found) => Ok(found.clone()),
            None => {
                Err(Error::NoKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
            }
        }
    }

    fn api(&self, object: &Identity) -> Result<Api<DynamicObject>, Error> {
        let (resource, _) = self.kind(&object.api_version, &object.kind)?;
        Ok(match object.namespace.as_str() {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        })
    }
}

fn failed(object: &Identity) -> impl FnOnce(kube::Error) -> Error {
    let object = Box::new(object.clone());
    move |error| match is_conflict(&error) {
        true => Error::Changed(object),
        false => Error::Request { object, source: Box::new(error) },
    }
}

#[async_trait]
impl Cluster for ApiCluster {
    fn is_namespaced(&self, api_version: &str, kind: &str) -> Result<bool, Error> {
        self.kind(api_version, kind).map(|(_, namespaced)| namespaced)
    }

    async fn get(&self, object: &Identity) -> Result<Option<ObjectMeta>, Error> {
        let found = self.api(object)?.get_metadata_opt(&object.name).await;
        Ok(found.map_err(failed(object))?.map(|found| found.metadata))
    }

    async fn delete(
        &self,
        object: &Identity,
        resource_version: Option<&str>,
        policy: Policy,
    ) -> Result<(), Error> {
        let params = DeleteParams {
            propagation_policy: Some(match policy {
                Policy::Background => PropagationPolicy::Background,
                Policy::Foreground => PropagationPolicy::Foreground,
                Policy::Orphan => PropagationPolicy::Orphan,
            }),
            preconditions: Some(Preconditions {
                uid: Some(object.uid.clone()),
                resource_version: resource_version.map(str::to_owned),
            }),
            ..DeleteParams::default()
        };
        match self.api(object)?.delete(&object.name, &params).await {
            // Its watch reports it.
            Err(error) if is_not_found(&error) => Ok(()),
            deleted => deleted.map(drop).map_err(failed(object)),
        }
    }

    fn report(&self, object: &Identity, owner: &Identity) {
        let Identity { api_version, kind, namespace, name, uid } = object.clone();
        let about = ObjectReference {
            api_version: Some(api_version),
            kind: Some(kind),
            namespace: Some(namespace).filter(|namespace| !namespace.is_empty()),
            name: Some(name),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        let message =
            format!("ownerRef {owner} does not exist in namespace {:?}", object.namespace);
        self.recorder.event(about, EventType::Warning, "OwnerRefInvalidNamespace", &message);
    }

    async fn patch(&self, object: &Identity, patch: Value) -> Result<(), Error> {
        let patch = Patch::Merge(patch);
        let params = PatchParams::default();
        match self.api(object)?.patch_metadata(&object.name, &params, &patch).await {
            Err(error) if is_not_found(&error) => Ok(()),
            patched => patched.map(drop).map_err(failed(object)),
        }
    }
}

/// The watch of one resource.
struct Monitor {
    synced: watch::Receiver<bool>,
    _task: AbortOnDropHandle<()>,
}

type Shared = Arc<Collector<ApiCluster>>;

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<Work> =
        WorkQueue::new("garbage_collector_attempt_to_delete", &context.queues);
    let cluster = ApiCluster {
        client: context.client.clone(),
        kinds: RwLock::default(),
        recorder: context.recorder("garbage-collector-controller"),
    };
    let collector: Shared = Arc::new(Collector::new(cluster));
    let (synced, mut is_synced) = watch::channel(false);
    let client = context.informers.client().clone();
    let monitors = {
        let errors = context.metrics.garbage_sync_errors.clone();
        follow_resources(client, collector.clone(), queue.clone(), synced, errors)
    };
    let worker = async {
        let ready = async {
            if is_synced.wait_for(|synced| *synced).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        if !unless_stopped(&context, ready).await {
            return;
        }
        let workers = context.settings.cluster.gc_workers;
        let name = "garbage-collector-controller";
        run_workers(name, &queue, workers, &context.stop, |work: Work| {
            let (collector, queue) = (collector.clone(), queue.clone());
            async move {
                let next = match collector.work(&work).await {
                    // Backs off without a warning each time.
                    Err(Error::Changed(object)) => {
                        debug!(%object, "changed meanwhile");
                        queue.add_after(work, Duration::from_millis(100));
                        return Ok(());
                    }
                    next => next?,
                };
                next.work.into_iter().for_each(|work| queue.add(work));
                if next.is_unobserved {
                    queue.add_after(work, UNOBSERVED);
                }
                Ok::<(), Error>(())
            }
        })
        .await;
    };
    tokio::select! {
        () = worker => {}
        () = monitors => {}
    }
}

/// Keeps one watch for each resource that can be deleted; never returns.
async fn follow_resources(
    client: Client,
    collector: Shared,
    queue: WorkQueue<Work>,
    synced: watch::Sender<bool>,
    errors: Counter,
) {
    let mut monitors: HashMap<ApiResource, Monitor> = HashMap::new();
    loop {
        let discovery = match discover(&client).await {
            Ok(discovery) => discovery,
            Err(error) => {
                errors.inc();
                warn!("cannot discover resources: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let is_watched = |found: &&Discovered| {
            let resource = (found.resource.group.as_str(), found.resource.plural.as_str());
            found.allows(&["list", "watch", "delete"]) && !IGNORED.contains(&resource)
        };
        let wanted: HashSet<ApiResource> = discovery
            .resources
            .iter()
            .filter(is_watched)
            .map(|found| found.resource.clone())
            .collect();
        let kinds: Kinds = discovery
            .resources
            .iter()
            .filter(|found| found.allows(&["get"]))
            .map(|found| {
                let resource = &found.resource;
                let key = (resource.api_version.clone(), resource.kind.clone());
                (key, (resource.clone(), found.namespaced))
            })
            .collect();
        *collector.cluster.kinds.write() = kinds;
        // A group that does not answer keeps its watches.
        let is_failed = |resource: &ApiResource| discovery.failed.contains(&resource.api_version);
        monitors.retain(|resource, _| {
            let stays = wanted.contains(resource) || is_failed(resource);
            if !stays {
                info!(resource = resource.plural, "the resource is gone");
                let mut graph = collector.graph();
                for uid in graph.of_kind(&resource.api_version, &resource.kind) {
                    graph.remove(&uid).into_iter().for_each(|work| queue.add(work));
                }
            }
            stays
        });
        for resource in wanted {
            monitors.entry(resource.clone()).or_insert_with(|| {
                let (synced, is_synced) = watch::channel(false);
                let task =
                    monitor(client.clone(), collector.clone(), queue.clone(), resource, synced);
                Monitor { synced: is_synced, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
            });
        }
        if !*synced.borrow() {
            let all = async {
                for monitor in monitors.values() {
                    let _ = monitor.synced.clone().wait_for(|synced| *synced).await;
                }
            };
            if tokio::time::timeout(FIRST_LISTS, all).await.is_err() {
                errors.inc();
                warn!("not all resources were listed in time; collecting without them");
            }
            synced.send_replace(true);
        }
        tokio::time::sleep(RESYNC).await;
    }
}

async fn monitor(
    client: Client,
    collector: Shared,
    queue: WorkQueue<Work>,
    resource: ApiResource,
    synced: watch::Sender<bool>,
) {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed: HashSet<String> = HashSet::new();
    let identity = |metadata: &ObjectMeta| Identity {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    };
    let observe = |object: PartialObjectMeta<DynamicObject>| {
        let identity = identity(&object.metadata);
        let uid = identity.uid.clone();
        let work = collector.graph().observe(identity, &object.metadata);
        work.into_iter().for_each(|work| queue.add(work));
        uid
    };
    let remove = |uid: &str| {
        let work = collector.graph().remove(uid);
        work.into_iter().for_each(|work| queue.add(work));
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(observe(object));
            }
            Ok(watcher::Event::InitDone) => {
                let known = collector.graph().of_kind(&resource.api_version, &resource.kind);
                known.difference(&listed).for_each(|uid| remove(uid));
                listed = HashSet::new();
                synced.send_replace(true);
            }
            Ok(watcher::Event::Apply(object)) => {
                observe(object);
            }
            Ok(watcher::Event::Delete(object)) => {
                remove(object.metadata.uid.as_deref().unwrap_or_default());
            }
            Err(error) => debug!(resource = resource.plural, "list and watch failed: {error}"),
        }
    }
}

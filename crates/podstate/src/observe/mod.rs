//! The one owner of "what does run": the pod lifecycle event generator (PLEG).
//!
//! A relist each second, or every five while the runtime tells of events, is the source of truth; exits of processes, the runtime's container events
//! and inspections by workers after their own actions make it fast. Every observation has the time
//! of its request, so a slow response never overwrites a newer one. Workers subscribe to their pod
//! and read nothing else.

mod convert;
mod exits;
mod metrics;
mod record;
mod relist;
mod termination;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use longshore_cri::{Runtime, v1};
use longshore_metrics::Registry;
use longshore_pod::observed::{Container, ObservedPod};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use longshore_pod::labels;
use metrics::Metrics;
use record::{Observation, Record, record};

pub use relist::{PLEG_DEADLINE, run};

/// Concurrent inspections after a relist, which may list thousands of new containers. So many that
/// a few calls that hang do not delay all others.
const MAX_INSPECTIONS: usize = 256;

/// An inspection failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call failed.
    #[error(transparent)]
    Cri(#[from] longshore_cri::Error),
}

/// Handle to the observed state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Observer {
    runtime: Runtime,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pods: Mutex<HashMap<String, Record>>,
    relisted: watch::Sender<Option<Instant>>,
    /// Whether the runtime's events are followed.
    has_events: watch::Sender<bool>,
    /// An inspection has failed: the next relist retries it.
    failed: Notify,
    inspections: Semaphore,
    metrics: Metrics,
}

impl Observer {
    /// An observer without observations until [`run`] has relisted for the first time. Metrics of
    /// it are registered in `registry`.
    pub fn new(runtime: Runtime, registry: &Registry) -> Self {
        let shared = Shared {
            pods: Mutex::default(),
            relisted: watch::Sender::new(None),
            has_events: watch::Sender::new(false),
            failed: Notify::default(),
            inspections: Semaphore::new(MAX_INSPECTIONS),
            metrics: Metrics::new(registry),
        };
        let observer = Self { runtime, shared: Arc::new(shared) };
        metrics::register(registry, observer.clone());
        observer
    }

    /// The observed state of one pod, and its changes.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<ObservedPod>> {
        let mut pods = self.pods();
        record(&mut pods, uid).published.subscribe()
    }

    /// The start of the last successful relist, `None` before the first.
    pub fn relisted(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.relisted.subscribe()
    }

    /// All pods of which the runtime has a sandbox or container.
    pub fn all(&self) -> Vec<Arc<ObservedPod>> {
        let pods = self.pods();
        pods.values()
            .map(|record| record.published.borrow().clone())
            .filter(|pod| !pod.is_gone())
            .collect()
    }

    /// The observed state of the pod with that UID.
    pub fn pod(&self, uid: &str) -> Option<Arc<ObservedPod>> {
        self.pods().get(uid).map(|record| record.published.borrow().clone())
    }

    /// The container with that id.
    pub fn container(&self, id: &str) -> Option<Container> {
        let pods = self.pods();
        pods.values()
            .find_map(|record| record.containers.get(id))
            .map(|observation| observation.value.clone())
    }

    /// The pod was resized. Its observed state is the same, but stats read from its cgroups since
    /// the last observation are out of date.
    pub fn resized(&self, uid: &str) {
        if let Some(record) = self.pods().get(uid) {
            record.republish_silently();
        }
    }

    /// Inspect one sandbox.
    pub async fn inspect_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        let at = Instant::now();
        match self.runtime.pod_sandbox_status(id).await {
            Ok(status) => self.store_sandbox(uid, at, &status.sandbox),
            Err(error) if error.is_not_found() => self.remove(uid, &[id].into(), at),
            Err(error) => return Err(self.store_failure(uid, id, at, error)),
        }
        Ok(())
    }

    /// Inspect one container of that sandbox.
    pub async fn inspect_container(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
    ) -> Result<(), Error> {
        let at = Instant::now();
        let status = self.runtime.container_status(id).await;
        self.store_response(uid, id, sandbox_id, at, status.map(|status| (status, None))).await
    }

    /// Inspect a container that was just started. Its pid is requested in the same call, which
    /// saves one later.
    pub async fn inspect_started(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
    ) -> Result<(), Error> {
        let at = Instant::now();
        let status = self.runtime.container_status_and_pid(id).await;
        self.store_response(uid, id, sandbox_id, at, status).await
    }

    async fn store_response(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
        at: Instant,
        response: longshore_cri::Result<(v1::ContainerStatus, Option<i32>)>,
    ) -> Result<(), Error> {
        match response {
            Ok((status, pid)) => self.store_container(uid, at, sandbox_id, status, pid).await,
            Err(error) if error.is_not_found() => self.remove(uid, &[id].into(), at),
            Err(error) => return Err(self.store_failure(uid, id, at, error)),
        }
        Ok(())
    }

    /// Inspect all known sandboxes and containers of a pod.
    pub async fn inspect_pod(&self, uid: &str) -> Result<(), Error> {
        let began = Instant::now();
        let inspected = self.inspect_each(uid).await;
        self.shared.metrics.pods.took(began.elapsed());
        inspected
    }

    async fn inspect_each(&self, uid: &str) -> Result<(), Error> {
        let (sandboxes, containers) = {
            let pods = self.pods();
            let Some(record) = pods.get(uid) else { return Ok(()) };
            let sandboxes: Vec<String> = record.sandboxes.keys().cloned().collect();
            let containers: Vec<(String, String)> = record
                .containers
                .iter()
                .map(|(id, observation)| (id.clone(), observation.value.sandbox_id.clone()))
                .collect();
            (sandboxes, containers)
        };
        for id in sandboxes {
            self.inspect_sandbox(uid, &id).await?;
        }
        for (id, sandbox_id) in containers {
            self.inspect_container(uid, &id, &sandbox_id).await?;
        }
        Ok(())
    }

    /// Find sandboxes of a pod that are not known yet, as after a failed call to create one.
    pub async fn discover(&self, uid: &str) -> Result<(), Error> {
        let filter = v1::PodSandboxFilter {
            label_selector: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
            ..v1::PodSandboxFilter::default()
        };
        for sandbox in self.runtime.list_pod_sandboxes(Some(filter)).await? {
            self.inspect_sandbox(uid, &sandbox.id).await?;
        }
        Ok(())
    }

    /// The error of the last inspection of the pod, if it failed.
    pub fn last_error(&self, uid: &str) -> Option<String> {
        self.pods().get(uid)?.failures.values().next().map(|(_, error)| error.clone())
    }

    /// The runtime has removed this sandbox or container.
    pub fn removed(&self, uid: &str, id: &str) {
        self.all_removed(uid, &[id].into());
    }

    /// The runtime has removed all of these. The pod is published once for all of them.
    pub fn all_removed(&self, uid: &str, ids: &HashSet<&str>) {
        self.remove(uid, ids, Instant::now());
    }

    fn store_sandbox(&self, uid: &str, at: Instant, status: &v1::PodSandboxStatus) {
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        if record.is_outdated(&status.id, at, *self.shared.relisted.borrow()) {
            return;
        }
        if let Some(metadata) = &status.metadata {
            record.name.clone_from(&metadata.name);
            record.namespace.clone_from(&metadata.namespace);
        }
        let observation = Observation { at, listed: status.state, value: convert::sandbox(status) };
        record.sandboxes.insert(status.id.clone(), observation);
        record.inspected(&status.id);
        record.publish_unless_many(uid);
    }

    /// The status of a container does not contain its sandbox, so the caller passes it.
    async fn store_container(
        &self,
        uid: &str,
        at: Instant,
        sandbox_id: &str,
        status: v1::ContainerStatus,
        pid: Option<i32>,
    ) {
        let message = match status.state() {
            v1::ContainerState::ContainerExited => termination::message(&status).await,
            _ => String::new(),
        };
        let (id, listed) = (status.id.clone(), status.state);
        let runs = status.state() == v1::ContainerState::ContainerRunning;
        let images = self.mounted_images(&status.mounts).await;
        let value = convert::container(status, sandbox_id.to_owned(), message, images);
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        if record.is_outdated(&id, at, *self.shared.relisted.borrow()) {
            return;
        }
        record.inspected(&id);
        if runs && record.followed.insert(id.clone()) {
            let (uid, sandbox_id) = (uid.to_owned(), sandbox_id.to_owned());
            exits::follow(self.clone(), uid, id.clone(), sandbox_id, pid);
        }
        record.containers.insert(id, Observation { at, listed, value });
        record.publish_unless_many(uid);
    }

    /// The ids of images that are mounted, by the path in the container. Those that the runtime cannot say
    /// now are left out.
    async fn mounted_images(&self, mounts: &[v1::Mount]) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for mount in mounts {
            let Some(image) = &mount.image else { continue };
            match self.runtime.image_status(image.clone()).await {
                Ok(Some(image)) => {
                    found.insert(mount.container_path.clone(), image.id);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(image = image.image, %error, "cannot inspect a mounted image")
                }
            }
        }
        found
    }

    /// Whether a container was running at the last observation.
    fn is_running(&self, uid: &str, id: &str) -> bool {
        let pods = self.pods();
        let observation = pods.get(uid).and_then(|record| record.containers.get(id));
        observation.is_some_and(|observation| observation.value.is_running())
    }

    fn unfollow(&self, uid: &str, id: &str) {
        if let Some(record) = self.pods().get_mut(uid) {
            record.followed.remove(id);
        }
    }

    fn store_failure(
        &self,
        uid: &str,
        id: &str,
        at: Instant,
        error: longshore_cri::Error,
    ) -> Error {
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        if !record.is_outdated(id, at, *self.shared.relisted.borrow()) {
            record.add_uninspected(uid, id, at);
            record.inspection_failed(uid, id, &error);
            self.shared.failed.notify_one();
        }
        error.into()
    }

    fn remove(&self, uid: &str, ids: &HashSet<&str>, at: Instant) {
        let mut pods = self.pods();
        let Some(record) = pods.get_mut(uid) else { return };
        record
            .sandboxes
            .retain(|id, observation| !ids.contains(id.as_str()) || observation.at > at);
        record
            .containers
            .retain(|id, observation| !ids.contains(id.as_str()) || observation.at > at);
        for id in ids {
            record.inspected(id);
            if !record.sandboxes.contains_key(*id) && !record.containers.contains_key(*id) {
                record.removed.insert((*id).to_owned(), at);
            }
        }
        record.publish(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Record>> {
        self.shared.pods.lock()
    }
}

/// The time since the last relist, if that is too long for the node to count as healthy.
pub fn overdue(relisted: Option<Instant>, started: Instant) -> Option<Duration> {
    let age = relisted.unwrap_or(started).elapsed();
    (age >= PLEG_DEADLINE).then_some(age)
}

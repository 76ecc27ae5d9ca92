//! The one owner of "what does run": the pod lifecycle event generator (PLEG).
//!
//! A relist each second is the truth; the ends of processes, the runtime's container events and the
//! workers' own looks at what they have just done make it quick. Every fact is stamped with the
//! moment at which it was asked for, so an answer that was slow to come never overwrites a newer
//! one. Workers subscribe to their pod and read nothing else.

mod convert;
mod exits;
mod metrics;
mod record;
mod relist;
mod termination;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_cri::{Runtime, v1};
use longshore_metrics::Registry;
use longshore_pod::observed::{Container, ObservedPod};
use tokio::sync::{Semaphore, watch};

use longshore_pod::labels;
use metrics::Metrics;
use record::{Record, Seen, put, record};

pub use relist::{PLEG_DEADLINE, run};

/// Looks under way at once after a relist, which may show thousands of containers that are new. So
/// many that some which hang hold up no others.
const LOOKS: usize = 256;

/// A look at the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call failed.
    #[error(transparent)]
    Cri(#[from] longshore_cri::Error),
}

/// Handle to what runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Observer {
    runtime: Runtime,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pods: Mutex<HashMap<String, Record>>,
    relisted: watch::Sender<Option<Instant>>,
    looks: Semaphore,
    metrics: Metrics,
}

impl Observer {
    /// Nothing is seen until [`run`] has relisted for the first time. How much runs, and how
    /// relists go, is told to `registry`.
    pub fn new(runtime: Runtime, registry: &Registry) -> Self {
        let shared = Shared {
            pods: Mutex::default(),
            relisted: watch::Sender::new(None),
            looks: Semaphore::new(LOOKS),
            metrics: Metrics::new(registry),
        };
        let observer = Self { runtime, shared: Arc::new(shared) };
        metrics::tell(registry, observer.clone());
        observer
    }

    /// What runs of one pod, and every change to it.
    pub fn subscribe(&self, uid: &str) -> watch::Receiver<Arc<ObservedPod>> {
        let mut pods = self.pods();
        record(&mut pods, uid).published.subscribe()
    }

    /// The start of the last relist that succeeded, `None` before the first.
    pub fn relisted(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.relisted.subscribe()
    }

    /// Every pod of which the runtime holds something.
    pub fn all(&self) -> Vec<Arc<ObservedPod>> {
        let pods = self.pods();
        pods.values()
            .map(|record| record.published.borrow().clone())
            .filter(|pod| !pod.is_gone())
            .collect()
    }

    /// What runs of the pod with that UID.
    pub fn pod(&self, uid: &str) -> Option<Arc<ObservedPod>> {
        self.pods().get(uid).map(|record| record.published.borrow().clone())
    }

    /// The container with that id.
    pub fn container(&self, id: &str) -> Option<Container> {
        let pods = self.pods();
        pods.values().find_map(|record| record.containers.get(id)).map(|seen| seen.value.clone())
    }

    /// The pod was given other resources. What runs of it is the same, but not what was read of its
    /// cgroups when this was last observed.
    pub fn resized(&self, uid: &str) {
        if let Some(record) = self.pods().get(uid) {
            record.renew();
        }
    }

    /// Look closely at one sandbox.
    pub async fn look_at_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        let at = Instant::now();
        match self.runtime.pod_sandbox_status(id).await {
            Ok(status) => self.saw_sandbox(uid, at, &status.sandbox),
            Err(error) if error.is_not_found() => self.lost(uid, &[id].into(), at),
            Err(error) => return Err(self.missed(uid, id, at, error)),
        }
        Ok(())
    }

    /// Look closely at one container, which runs in that sandbox.
    pub async fn look_at_container(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
    ) -> Result<(), Error> {
        let at = Instant::now();
        let status = self.runtime.container_status(id).await;
        self.looked(uid, id, sandbox_id, at, status.map(|status| (status, None))).await
    }

    /// Look closely at a container that was started just now. Asks for its process with it, which
    /// is a call less than to ask for it later.
    pub async fn look_at_started(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
    ) -> Result<(), Error> {
        let at = Instant::now();
        let status = self.runtime.container_status_and_pid(id).await;
        self.looked(uid, id, sandbox_id, at, status).await
    }

    async fn looked(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
        at: Instant,
        answer: longshore_cri::Result<(v1::ContainerStatus, Option<i32>)>,
    ) -> Result<(), Error> {
        match answer {
            Ok((status, pid)) => self.saw_container(uid, at, sandbox_id, status, pid).await,
            Err(error) if error.is_not_found() => self.lost(uid, &[id].into(), at),
            Err(error) => return Err(self.missed(uid, id, at, error)),
        }
        Ok(())
    }

    /// Look closely at all that is known of a pod.
    pub async fn look_at_pod(&self, uid: &str) -> Result<(), Error> {
        let began = Instant::now();
        let looked = self.look_at_each(uid).await;
        self.shared.metrics.pods.took(began.elapsed());
        looked
    }

    async fn look_at_each(&self, uid: &str) -> Result<(), Error> {
        let (sandboxes, containers) = {
            let pods = self.pods();
            let Some(record) = pods.get(uid) else { return Ok(()) };
            let sandboxes: Vec<String> = record.sandboxes.keys().cloned().collect();
            let containers: Vec<(String, String)> = record
                .containers
                .iter()
                .map(|(id, seen)| (id.clone(), seen.value.sandbox_id.clone()))
                .collect();
            (sandboxes, containers)
        };
        for id in sandboxes {
            self.look_at_sandbox(uid, &id).await?;
        }
        for (id, sandbox_id) in containers {
            self.look_at_container(uid, &id, &sandbox_id).await?;
        }
        Ok(())
    }

    /// Find what the runtime has of a pod and nobody has seen yet, as after a call to make
    /// something that failed.
    pub async fn find(&self, uid: &str) -> Result<(), Error> {
        let filter = v1::PodSandboxFilter {
            label_selector: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
            ..v1::PodSandboxFilter::default()
        };
        for sandbox in self.runtime.list_pod_sandboxes(Some(filter)).await? {
            self.look_at_sandbox(uid, &sandbox.id).await?;
        }
        Ok(())
    }

    /// Why the last look at something of the pod failed, if it did.
    pub fn trouble(&self, uid: &str) -> Option<String> {
        self.pods().get(uid)?.failures.values().next().map(|(_, error)| error.clone())
    }

    /// The runtime no longer has this sandbox or container.
    pub fn removed(&self, uid: &str, id: &str) {
        self.all_removed(uid, &[id].into());
    }

    /// The runtime no longer has any of these. Told together, thousands cost no more than one.
    pub fn all_removed(&self, uid: &str, ids: &HashSet<&str>) {
        self.lost(uid, ids, Instant::now());
    }

    fn saw_sandbox(&self, uid: &str, at: Instant, status: &v1::PodSandboxStatus) {
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        if let Some(metadata) = &status.metadata {
            record.name.clone_from(&metadata.name);
            record.namespace.clone_from(&metadata.namespace);
        }
        let seen = Seen { at, listed: status.state, value: convert::sandbox(status) };
        put(&mut record.sandboxes, status.id.clone(), seen);
        record.seen(&status.id);
        record.publish_in_time(uid);
    }

    /// The status of a container does not tell its sandbox, so the caller does.
    async fn saw_container(
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
        let value = convert::container(status, sandbox_id.to_owned(), message);
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        record.seen(&id);
        if runs && record.followed.insert(id.clone()) {
            let (uid, sandbox_id) = (uid.to_owned(), sandbox_id.to_owned());
            exits::follow(self.clone(), uid, id.clone(), sandbox_id, pid);
        }
        put(&mut record.containers, id, Seen { at, listed, value });
        record.publish_in_time(uid);
    }

    /// Whether a container runs, as far as is known.
    fn is_running(&self, uid: &str, id: &str) -> bool {
        let pods = self.pods();
        let seen = pods.get(uid).and_then(|record| record.containers.get(id));
        seen.is_some_and(|seen| seen.value.is_running())
    }

    fn unfollow(&self, uid: &str, id: &str) {
        if let Some(record) = self.pods().get_mut(uid) {
            record.followed.remove(id);
        }
    }

    fn missed(&self, uid: &str, id: &str, at: Instant, error: longshore_cri::Error) -> Error {
        let mut pods = self.pods();
        let record = record(&mut pods, uid);
        record.note(uid, id, at);
        record.failed(uid, id, &error);
        error.into()
    }

    fn lost(&self, uid: &str, ids: &HashSet<&str>, at: Instant) {
        let mut pods = self.pods();
        let Some(record) = pods.get_mut(uid) else { return };
        record.sandboxes.retain(|id, seen| !ids.contains(id.as_str()) || seen.at > at);
        record.containers.retain(|id, seen| !ids.contains(id.as_str()) || seen.at > at);
        ids.iter().for_each(|id| record.seen(id));
        record.publish(uid);
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Record>> {
        // No code panics while it holds the lock; if it did, the facts in it would still be facts.
        self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time since the last relist, if that is too long for the node to count as healthy.
pub fn overdue(relisted: Option<Instant>, started: Instant) -> Option<Duration> {
    let age = relisted.unwrap_or(started).elapsed();
    (age >= PLEG_DEADLINE).then_some(age)
}

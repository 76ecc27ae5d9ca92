//! The steps that make a pod run, each as a future of its own.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use longshore_base::retry::Delays;
use longshore_client::objects::Changed;
use longshore_pod::observed::{self, Sandbox};
use longshore_pod::plan::{Reset, Start};
use longshore_pod::spec::{self, describe};
use longshore_runtime::{Error, Present, StartError};
use longshore_volumes::{PodMounts, Resolved};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::WorkerContext;
use super::limiter::Slot;
use super::steps::{Failure, Outcome};
use super::stop::{MAX_WAIT, StopRequest, stop};

/// Backoff of inspections after a failed call.
const DISCOVER_BASE: Duration = Duration::from_millis(200);
const DISCOVER_MAX: Duration = Duration::from_secs(10);

/// Context of a step.
#[derive(Clone)]
pub(super) struct StepContext {
    pub(super) context: Arc<WorkerContext>,
    pub(super) pod: Arc<Pod>,
}

/// When the volumes are mounted, relative to the creation of the sandbox.
pub(super) enum Volumes {
    /// They are already mounted.
    Ready(Arc<PodMounts>),
    /// In parallel.
    Alongside,
    /// First, since the last mount failed: this avoids creating a sandbox, and allocating an address, in vain.
    First,
}

/// A container start and its inputs.
pub(super) struct ContainerStart {
    pub(super) start: Start,
    pub(super) sandbox: Sandbox,
    pub(super) mounts: Arc<PodMounts>,
    /// The image, if it was pulled before the sandbox was ready.
    pub(super) image: Option<Present>,
    /// Held while a container is started: in a new sandbox, containers start one after the other,
    /// each after the postStart hook of the previous one. `None` for a restart.
    pub(super) start_lock: Option<Arc<Mutex<()>>>,
    /// Released when it has started, or failed to.
    pub(super) slot: Arc<Slot>,
}

impl StepContext {
    fn uid(&self) -> &str {
        spec::uid(&self.pod)
    }

    /// Mounts the volumes of a pod whose sandbox exists already, made by an earlier daemon that may
    /// have stopped before it had cleaned up.
    pub(super) async fn mount(self, cancellation: CancellationToken) -> Outcome {
        self.context.runtime.adopt(&self.pod).await;
        match cancellation.run_until_cancelled(self.mounted()).await {
            None => Outcome::Cancelled,
            Some(Ok(mounts)) => {
                self.context.garbage.tidy(self.uid()).await;
                Outcome::Mounted(mounts)
            }
            Some(Err(failure)) => Outcome::Failed(failure),
        }
    }

    async fn mounted(&self) -> Result<Arc<PodMounts>, Failure> {
        self.mounted_as(self.context.volumes.resolve(&self.pod).await).await
    }

    async fn mounted_as(&self, resolved: Resolved) -> Result<Arc<PodMounts>, Failure> {
        let mounted = Box::pin(self.context.volumes.mount_resolved(&self.pod, resolved)).await;
        let failed = |error: longshore_volumes::Error| Failure {
            reason: error.reason(),
            message: error.to_string(),
            rejects: error.rejects(),
        };
        mounted.map(Arc::new).map_err(failed)
    }

    /// Updates the data in the pod's volumes, as far as it has changed.
    pub(super) async fn refresh(
        self,
        changed: Changed,
        cancellation: CancellationToken,
    ) -> Outcome {
        let refresh = self.context.volumes.refresh(&self.pod, &changed);
        let (left, error) = match cancellation.run_until_cancelled(refresh).await {
            None => (changed, None),
            Some(Ok(())) => (Changed::default(), None),
            Some(Err(error)) => (changed, Some(error.to_string())),
        };
        Outcome::Refreshed { left, error }
    }

    /// Stops the old sandboxes, then creates a new one.
    pub(super) async fn make_sandbox(
        self,
        old: Vec<String>,
        attempt: u32,
        volumes: Volumes,
        slot: Arc<Slot>,
        cancellation: CancellationToken,
    ) -> Outcome {
        match self.sandbox(old, attempt, volumes, &slot, &cancellation).await {
            _ if cancellation.is_cancelled() => Outcome::Cancelled,
            Ok(Some(mounts)) => Outcome::Mounted(mounts),
            Ok(None) => Outcome::Done,
            Err(failure) => Outcome::Failed(failure),
        }
    }

    async fn sandbox(
        &self,
        old: Vec<String>,
        attempt: u32,
        volumes: Volumes,
        slot: &Slot,
        cancellation: &CancellationToken,
    ) -> Result<Option<Arc<PodMounts>>, Failure> {
        for id in old {
            self.context.runtime.stop_sandbox(self.uid(), &id).await.map_err(killing)?;
        }
        self.context.runtime.create_dirs(&self.pod).await.map_err(|error| {
            Failure::new("Failed", format!("error making pod data directories: {error}"))
        })?;
        let run = async |groups| self.run_sandbox(attempt, groups, slot, cancellation).await;
        let (mounts, made) = match volumes {
            Volumes::Ready(mounts) => (None, run(volume_groups(&mounts)).await),
            Volumes::First => {
                let mounting = cancellation.run_until_cancelled(self.mounted());
                let mounts = mounting.await.transpose()?;
                let groups = mounts.as_deref().map(volume_groups).unwrap_or_default();
                (mounts, run(groups).await)
            }
            Volumes::Alongside => {
                // The sandbox has the groups of the volumes, which are known before these are mounted.
                let resolving = self.context.volumes.resolve(&self.pod);
                let resolving = cancellation.run_until_cancelled(resolving).await;
                let Some(resolved) = resolving else { return Ok(None) };
                let groups = resolved.groups();
                let mounting = cancellation.run_until_cancelled(self.mounted_as(resolved));
                match join(mounting, run(groups)).await {
                    (Some(Err(failure)), made) => {
                        if made.is_ok() {
                            self.remove_new_sandbox().await;
                        }
                        return Err(failure);
                    }
                    (mounts, made) => (mounts.transpose()?, made),
                }
            }
        };
        made.map(|()| mounts)
    }

    async fn run_sandbox(
        &self,
        attempt: u32,
        groups: Vec<i64>,
        slot: &Slot,
        cancellation: &CancellationToken,
    ) -> Result<(), Failure> {
        let prepare = Box::pin(self.context.claims.prepare(&self.pod));
        match cancellation.run_until_cancelled(prepare).await {
            None => return Ok(()),
            Some(prepared) => prepared.map_err(|error| {
                Failure::new(
                    "FailedPrepareDynamicResources",
                    format!("Failed to prepare dynamic resources: {error}"),
                )
            })?,
        }
        if cancellation.run_until_cancelled(slot.acquire()).await.is_none() {
            return Ok(());
        }
        let made = self.context.runtime.create_sandbox(&self.pod, attempt, &groups).await;
        self.context.metrics.sandbox_created(&self.pod, made.is_ok());
        if made.is_err() {
            slot.release();
        }
        if made.is_err() {
            self.discover().await;
        }
        made.map_err(|error| match error {
            Error::Cgroup(error) => Failure::new(
                "FailedCreatePodContainer",
                format!("unable to ensure pod container exists: {error}"),
            ),
            Error::Observe(error) => Failure::new(
                "FailedPodSandBoxStatus",
                format!("Unable to get pod sandbox status: {error}"),
            ),
            error => Failure::new(
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {error}"),
            ),
        })
    }

    /// A sandbox may exist though the call to make it failed. The pod is not known to have none, and so to
    /// have ended, before the runtime has said so.
    async fn discover(&self) {
        let mut delays = Delays::doubling(DISCOVER_BASE, DISCOVER_MAX);
        while let Err(error) = self.context.observer.discover(self.uid()).await {
            debug!(pod = describe(&self.pod), %error, "cannot inspect what a failed call has left");
            sleep(delays.next_delay()).await;
        }
    }

    /// Removes a new sandbox whose volumes could not be mounted.
    async fn remove_new_sandbox(&self) {
        let seen = self.context.observer.pod(self.uid()).unwrap_or_default();
        for sandbox in seen.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            let gone = async {
                self.context.runtime.stop_sandbox(self.uid(), &sandbox.id).await?;
                self.context.runtime.remove_sandbox(self.uid(), &sandbox.id).await
            };
            if let Err(error) = gone.await {
                debug!(pod = describe(&self.pod), %error, "sandbox without volumes not removed");
            }
        }
    }

    /// Stops the sandboxes of a pod without running containers.
    pub(super) async fn stop_sandboxes(self, ids: Vec<String>, slot: Arc<Slot>) -> Outcome {
        slot.acquire_within(MAX_WAIT).await;
        let stops = ids.iter().map(|id| self.context.runtime.stop_sandbox(self.uid(), id));
        let stopped = futures::future::join_all(stops).await;
        slot.release();
        if let Some(error) = stopped.into_iter().find_map(Result::err) {
            return Outcome::Failed(killing(error));
        }
        let seen = self.context.observer.pod(self.uid()).unwrap_or_default();
        match seen.ready_sandbox() {
            None => Outcome::SandboxesStopped(ids),
            Some(sandbox) => {
                let message = format!(
                    "error killing pod: sandbox {} is still ready after it was stopped",
                    sandbox.id
                );
                Outcome::Failed(Failure::new("FailedKillPod", message))
            }
        }
    }

    /// Unprepares the claims of a pod of which nothing runs.
    pub(super) async fn unprepare_claims(self) -> Outcome {
        match self.context.claims.unprepare(self.uid()).await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed(killing(error)),
        }
    }

    /// Pulls the image of the first container while the sandbox is created.
    pub(super) async fn fetch(
        self,
        name: String,
        attempt: u32,
        cancellation: CancellationToken,
    ) -> Outcome {
        let Some((kind, container)) = spec::container(&self.pod, &name) else {
            return Outcome::Done;
        };
        let fetch = self.context.runtime.image(&self.pod, kind, &container, attempt);
        match cancellation.run_until_cancelled(fetch).await {
            None => Outcome::Cancelled,
            Some(Ok(image)) => Outcome::Fetched(name, image),
            Some(Err(error)) => {
                self.context.metrics.container_started(&self.pod, kind, Some(error.reason));
                Outcome::NotStarted(name, error)
            }
        }
    }

    /// Stops a container, starts one, or both to replace it.
    pub(super) async fn container(
        self,
        kill: Option<(observed::Container, StopRequest)>,
        container_start: Option<ContainerStart>,
        cancellation: CancellationToken,
    ) -> Outcome {
        if let Some((run, stop_request)) = kill {
            stop(self.context.clone(), self.pod.clone(), run, stop_request).await;
        }
        let Some(ContainerStart { start, sandbox, mounts, image, start_lock, slot }) =
            container_start
        else {
            return Outcome::Done;
        };
        let acquire = async {
            match &start_lock {
                Some(lock) => Some(lock.lock().await),
                None => None,
            }
        };
        let Some(_guard) = cancellation.run_until_cancelled(acquire).await else {
            return Outcome::Cancelled;
        };
        // Large: it would not fit on the stack of a build without optimisation.
        let start_it = Box::pin(self.start(&start, &sandbox, &mounts, image, &cancellation));
        let started = match start_it.await {
            None => return Outcome::Cancelled,
            Some(started) => started,
        };
        slot.release();
        self.context.garbage.tidy(self.uid()).await;
        let failure = started.as_ref().err().map(|error| error.reason);
        self.context.metrics.container_started(&self.pod, start.kind, failure);
        match started {
            Ok(()) => Outcome::Started(start.name),
            Err(_) if self.is_lost(&sandbox.id).await => Outcome::SandboxLost(start.name),
            Err(error) => Outcome::NotStarted(start.name, error),
        }
    }

    /// Whether a ready sandbox has died meanwhile: its containers are observed to exit first.
    async fn is_lost(&self, sandbox: &str) -> bool {
        let observer = &self.context.observer;
        let looked = observer.inspect_sandbox(self.uid(), sandbox).await;
        let seen = observer.pod(self.uid()).unwrap_or_default();
        looked.is_ok() && !seen.sandboxes.iter().any(|seen| seen.id == sandbox && seen.ready)
    }

    /// `None` if it was cancelled before the start.
    async fn start(
        &self,
        start: &Start,
        sandbox: &Sandbox,
        mounts: &PodMounts,
        image: Option<Present>,
        cancellation: &CancellationToken,
    ) -> Option<Result<(), StartError>> {
        let (runtime, pod) = (&self.context.runtime, &self.pod);
        let (kind, container) = spec::container(pod, &start.name)?;
        let prepare = async {
            let image = match image {
                Some(image) => image,
                None => runtime.image(pod, kind, &container, sandbox.attempt).await?,
            };
            runtime.prepare_container(pod, sandbox, start, &container, image, mounts).await
        };
        let prepare = Box::pin(prepare);
        let started = async {
            let prepared = match cancellation.run_until_cancelled(prepare).await {
                None => return Ok(None),
                Some(prepared) => prepared?,
            };
            if cancellation.is_cancelled() {
                return Ok(None);
            }
            self.context.allocation.container_made(pod, &container).await;
            let id = runtime.start_container(pod, sandbox, start, prepared).await?;
            let hook = runtime.post_start(pod, sandbox, kind, &container, &id);
            cancellation.run_until_cancelled(hook).await.transpose()
        };
        started.await.transpose()
    }

    /// Removes all containers, so that the pod starts again in its sandbox.
    pub(super) async fn reset(
        self,
        resets: Vec<(Reset, Option<(observed::Container, StopRequest)>)>,
        cancellation: CancellationToken,
    ) -> Outcome {
        for (reset, kill) in resets {
            if cancellation.is_cancelled() {
                return Outcome::Cancelled;
            }
            if let Some((run, stop_request)) = kill {
                stop(self.context.clone(), self.pod.clone(), run, stop_request).await;
            }
            let removed = self.context.runtime.remove_container(&self.pod, &reset.name, &reset.id);
            if let Err(error) = removed.await {
                return Outcome::Failed(killing(error));
            }
        }
        Outcome::Done
    }
}

/// The supplemental groups that mounted volumes require.
fn volume_groups(mounts: &PodMounts) -> Vec<i64> {
    mounts.values().filter_map(|mounted| mounted.group).collect()
}

fn killing(error: impl Display) -> Failure {
    Failure::new("FailedKillPod", format!("error killing pod: {error}"))
}

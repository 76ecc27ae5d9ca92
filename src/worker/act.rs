//! The steps that make a pod run, each as a future of its own.

use std::sync::Arc;

use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::objects::Changed;
use longshore_pod::observed::{self, Sandbox};
use longshore_pod::plan::{Reset, Start};
use longshore_pod::spec::{self, describe};
use longshore_runtime::{Error, Present, StartError};
use longshore_volumes::PodMounts;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::WorkerContext;
use super::startup_limiter::StartupSlot;
use super::steps::{Failure, Outcome};
use super::stop::{StopRequest, stop};

/// What every step works with.
#[derive(Clone)]
pub(super) struct StepContext {
    pub(super) context: Arc<WorkerContext>,
    pub(super) pod: Arc<Pod>,
    pub(super) place: Arc<StartupSlot>,
}

/// When a new sandbox's pod gets its volumes.
pub(super) enum Volumes {
    /// They are mounted.
    Ready,
    /// While the sandbox is made: neither needs the other.
    Alongside,
    /// Before, for they failed lately: no sandbox is made, and an address taken, for nothing.
    First,
}

/// A start, and what it needs.
pub(super) struct Beginning {
    pub(super) start: Start,
    pub(super) sandbox: Sandbox,
    pub(super) mounts: Arc<PodMounts>,
    /// The image, if it was fetched before its sandbox stood.
    pub(super) image: Option<Present>,
    /// Held by the one that is being started: in a new sandbox, containers start one after the
    /// other, the postStart hook of one before the next. `None` for one that ran there before,
    /// which waits for nobody.
    pub(super) turn: Option<Arc<Mutex<()>>>,
}

impl StepContext {
    fn uid(&self) -> &str {
        spec::uid(&self.pod)
    }

    /// Mount the volumes of a pod whose sandbox stands already: an earlier daemon's, which may have
    /// come to its end before it had cleared up.
    pub(super) async fn mount(self, recall: CancellationToken) -> Outcome {
        self.context.runtime.adopt(&self.pod).await;
        match recall.run_until_cancelled(self.mounted()).await {
            None => Outcome::Recalled,
            Some(Ok(mounts)) => {
                self.context.garbage.tidy(self.uid()).await;
                Outcome::Mounted(mounts)
            }
            Some(Err(failure)) => Outcome::Failed(failure),
        }
    }

    async fn mounted(&self) -> Result<Arc<PodMounts>, Failure> {
        let mounted = Box::pin(self.context.volumes.mount(&self.pod)).await;
        let failed = |error: longshore_volumes::Error| Failure {
            reason: error.reason(),
            message: error.to_string(),
            rejects: error.rejects(),
        };
        mounted.map(Arc::new).map_err(failed)
    }

    /// Write the data of the pod's volumes anew, as far as what changed is in them.
    pub(super) async fn refresh(self, changed: Changed, recall: CancellationToken) -> Outcome {
        let refresh = self.context.volumes.refresh(&self.pod, &changed);
        let (left, error) = match recall.run_until_cancelled(refresh).await {
            None => (changed, None),
            Some(Ok(())) => (Changed::default(), None),
            Some(Err(error)) => (changed, Some(error.to_string())),
        };
        Outcome::Refreshed { left, error }
    }

    /// Stop the sandboxes that were, then make the next.
    pub(super) async fn make_sandbox(
        self,
        old: Vec<String>,
        attempt: u32,
        volumes: Volumes,
        recall: CancellationToken,
    ) -> Outcome {
        match self.sandbox(old, attempt, volumes, &recall).await {
            _ if recall.is_cancelled() => Outcome::Recalled,
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
        recall: &CancellationToken,
    ) -> Result<Option<Arc<PodMounts>>, Failure> {
        for id in old {
            self.context.runtime.stop_sandbox(self.uid(), &id).await.map_err(killing)?;
        }
        self.context.runtime.create_dirs(&self.pod).await.map_err(|error| {
            Failure::new("Failed", format!("error making pod data directories: {error}"))
        })?;
        let mounting = recall.run_until_cancelled(self.mounted());
        let (mounts, made) = match volumes {
            Volumes::Ready => (None, self.run_sandbox(attempt, recall).await),
            Volumes::First => {
                let mounts = mounting.await.transpose()?;
                (mounts, self.run_sandbox(attempt, recall).await)
            }
            Volumes::Alongside => match join(mounting, self.run_sandbox(attempt, recall)).await {
                (Some(Err(failure)), made) => {
                    if made.is_ok() {
                        self.unmake_sandbox().await;
                    }
                    return Err(failure);
                }
                (mounts, made) => (mounts.transpose()?, made),
            },
        };
        made.map(|()| mounts)
    }

    async fn run_sandbox(&self, attempt: u32, recall: &CancellationToken) -> Result<(), Failure> {
        if recall.run_until_cancelled(self.place.take()).await.is_none() {
            return Ok(());
        }
        let made = self.context.runtime.create_sandbox(&self.pod, attempt).await;
        self.context.metrics.made_sandbox(&self.pod, made.is_ok());
        if made.is_err() {
            self.place.give_back();
        }
        if made.is_err()
            && let Err(error) = self.context.observer.find(self.uid()).await
        {
            // The call may have failed and its work not: the next relist has it then.
            debug!(pod = describe(&self.pod), %error, "no look for what a failed call has left");
        }
        made.map_err(|error| match error {
            Error::Cgroup(error) => Failure::new(
                "FailedCreatePodContainer",
                format!("unable to ensure pod container exists: {error}"),
            ),
            error @ Error::DynamicResources => Failure::new(
                "FailedPrepareDynamicResources",
                format!("Failed to prepare dynamic resources: {error}"),
            ),
            error => Failure::new(
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {error}"),
            ),
        })
    }

    /// A sandbox without volumes is good for nothing.
    async fn unmake_sandbox(&self) {
        let seen = self.context.observer.pod(self.uid()).unwrap_or_default();
        for sandbox in seen.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            let gone = async {
                self.context.runtime.stop_sandbox(self.uid(), &sandbox.id).await?;
                self.context.runtime.remove_sandbox(self.uid(), &sandbox.id).await
            };
            if let Err(error) = gone.await {
                debug!(pod = describe(&self.pod), %error, "sandbox without volumes stays for now");
            }
        }
    }

    /// Stop the sandboxes of a pod of which nothing runs any more.
    pub(super) async fn stop_sandboxes(self, ids: Vec<String>) -> Outcome {
        let stops = ids.iter().map(|id| self.context.runtime.stop_sandbox(self.uid(), id));
        let stopped = futures::future::join_all(stops).await;
        if let Some(error) = stopped.into_iter().find_map(Result::err) {
            return Outcome::Failed(killing(error));
        }
        let seen = self.context.observer.pod(self.uid()).unwrap_or_default();
        match seen.ready_sandbox() {
            None => Outcome::SandboxesStopped(ids),
            Some(sandbox) => {
                let message =
                    format!("error killing pod: sandbox {} stands after its stop", sandbox.id);
                Outcome::Failed(Failure::new("FailedKillPod", message))
            }
        }
    }

    /// Fetch the image of the container that will be the first, while its sandbox is made.
    pub(super) async fn fetch(
        self,
        name: String,
        attempt: u32,
        recall: CancellationToken,
    ) -> Outcome {
        let Some((kind, container)) = spec::container(&self.pod, &name) else {
            return Outcome::Done;
        };
        let fetch = self.context.runtime.image(&self.pod, kind, &container, attempt);
        match recall.run_until_cancelled(fetch).await {
            None => Outcome::Recalled,
            Some(Ok(image)) => Outcome::Fetched(name, image),
            Some(Err(error)) => {
                self.context.metrics.began(&self.pod, kind, Some(error.reason));
                Outcome::NotStarted(name, error)
            }
        }
    }

    /// End a container, begin a container, or both for one that is to be replaced.
    pub(super) async fn container(
        self,
        kill: Option<(observed::Container, StopRequest)>,
        beginning: Option<Beginning>,
        recall: CancellationToken,
    ) -> Outcome {
        if let Some((run, stop_request)) = kill {
            stop(self.context.clone(), self.pod.clone(), run, stop_request).await;
        }
        let Some(Beginning { start, sandbox, mounts, image, turn }) = beginning else {
            return Outcome::Done;
        };
        let its_turn = async {
            match &turn {
                Some(turn) => Some(turn.lock().await),
                None => None,
            }
        };
        let Some(_turn) = recall.run_until_cancelled(its_turn).await else {
            return Outcome::Recalled;
        };
        // Large, and built in several layers: on the stack a build without optimisation has no room.
        let start_it = Box::pin(self.start(&start, &sandbox, &mounts, image, &recall));
        let started = match start_it.await {
            None => return Outcome::Recalled,
            Some(started) => started,
        };
        self.place.give_back();
        self.context.garbage.tidy(self.uid()).await;
        let failure = started.as_ref().err().map(|error| error.reason);
        self.context.metrics.began(&self.pod, start.kind, failure);
        match started {
            Ok(()) => Outcome::Started(start.name),
            Err(_) if self.is_lost(&sandbox.id).await => Outcome::SandboxLost(start.name),
            Err(error) => Outcome::NotStarted(start.name, error),
        }
    }

    /// Whether a sandbox that stood has died meanwhile: its containers are seen to end first.
    async fn is_lost(&self, sandbox: &str) -> bool {
        let observer = &self.context.observer;
        let looked = observer.look_at_sandbox(self.uid(), sandbox).await;
        let seen = observer.pod(self.uid()).unwrap_or_default();
        looked.is_ok() && !seen.sandboxes.iter().any(|seen| seen.id == sandbox && seen.ready)
    }

    /// `None` if it was recalled before there was something to tell.
    async fn start(
        &self,
        start: &Start,
        sandbox: &Sandbox,
        mounts: &PodMounts,
        image: Option<Present>,
        recall: &CancellationToken,
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
            let prepared = match recall.run_until_cancelled(prepare).await {
                None => return Ok(None),
                Some(prepared) => prepared?,
            };
            if recall.is_cancelled() {
                return Ok(None);
            }
            self.context.allocation.container_made(pod, &container).await;
            let id = runtime.start_container(pod, sandbox, start, prepared).await?;
            let hook = runtime.post_start(pod, sandbox, kind, &container, &id);
            recall.run_until_cancelled(hook).await.transpose()
        };
        started.await.transpose()
    }

    /// Remove containers, so that the pod starts afresh in its sandbox.
    pub(super) async fn reset(
        self,
        resets: Vec<(Reset, Option<(observed::Container, StopRequest)>)>,
        recall: CancellationToken,
    ) -> Outcome {
        for (reset, kill) in resets {
            if recall.is_cancelled() {
                return Outcome::Recalled;
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

fn killing(error: Error) -> Failure {
    Failure::new("FailedKillPod", format!("error killing pod: {error}"))
}

//! The lifecycle hooks of containers: postStart and preStop.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use longshore_base::time;
use longshore_pod::observed::{self, Sandbox};
use longshore_pod::spec::{self, ContainerKind, describe};
use tokio::time::timeout;
use tracing::debug;

use super::{PodRuntime, StartError};
use crate::handlers::{HookError, Target};

/// The minimum grace period of a container, whatever its hook has left.
const MIN_GRACE: Duration = Duration::from_secs(2);

impl PodRuntime {
    /// Run the postStart hook of a container that was just started, if it has one, without timeout.
    /// A container whose hook fails is stopped, after its preStop hook.
    pub async fn post_start(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        kind: ContainerKind,
        container: &Container,
        id: &str,
    ) -> Result<(), StartError> {
        let lifecycle = container.lifecycle.as_ref();
        let Some(hook) = lifecycle.and_then(|hooks| hooks.post_start.as_ref()) else {
            return Ok(());
        };
        let host_ips = self.settings.host_ips.get();
        let target = Target { container, id, ip: sandbox.address(&host_ips) };
        let Err(error) = self.hook(pod, target, hook).await else { return Ok(()) };
        let record = |warning, reason: &str, message: &str| {
            self.pod_events.container(pod, kind, &container.name, warning, reason, message);
        };
        // Events can be read by more users than the pod: the error of the hook is left out.
        record(true, "FailedPostStartHook", "PostStartHook failed");
        record(false, "Killing", "FailedPostStartHook");
        let grace = grace(pod);
        let left = grace.saturating_sub(self.run_pre_stop(pod, target, grace).await);
        let stopped =
            self.stop_container(spec::uid(pod), id, &sandbox.id, left.max(MIN_GRACE)).await;
        if let Err(error) = stopped {
            debug!(pod = describe(pod), id, %error, "cannot stop a container after its postStart hook failed");
        }
        Err(StartError::new("PostStartHookError", error.to_string()))
    }

    /// Run the preStop hook of a container, if it has one. Returns whether it succeeded.
    pub async fn pre_stop(&self, pod: &Pod, run: &observed::Container) -> bool {
        let Some((_, container)) = spec::container(pod, &run.name) else { return true };
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
        let Some(hook) = hook else { return true };
        let observed = self.observer.pod(spec::uid(pod)).unwrap_or_default();
        let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.id == run.sandbox_id);
        let host_ips = self.settings.host_ips.get();
        let ip = sandbox.map(|sandbox| sandbox.address(&host_ips)).unwrap_or_default();
        let target = Target { container: &container, id: &run.id, ip };
        self.hook(pod, target, hook).await.is_ok()
    }

    /// Report that the preStop hook of a container failed, or did not end in its grace period.
    pub fn pre_stop_failed(&self, pod: &Pod, container: &str, overdue: bool) {
        let Some((kind, container)) = spec::container(pod, container) else { return };
        let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
        if overdue && hook.is_some_and(|hook| hook.sleep.is_some()) {
            self.metrics.sleeps_cut_short.inc();
        }
        let message = "PreStopHook failed";
        self.pod_events.container(pod, kind, &container.name, true, "FailedPreStopHook", message);
    }

    /// Run the preStop hook; returns how long it took.
    async fn run_pre_stop(&self, pod: &Pod, target: Target<'_>, grace: Duration) -> Duration {
        let lifecycle = target.container.lifecycle.as_ref();
        let hook = lifecycle.and_then(|hooks| hooks.pre_stop.as_ref());
        let Some(hook) = hook.filter(|_| !grace.is_zero()) else { return Duration::ZERO };
        let start = Instant::now();
        let ended = timeout(grace, self.hook(pod, target, hook)).await;
        if !matches!(ended, Ok(Ok(()))) {
            self.pre_stop_failed(pod, &target.container.name, ended.is_err());
        }
        start.elapsed()
    }

    async fn hook(
        &self,
        pod: &Pod,
        target: Target<'_>,
        hook: &LifecycleHandler,
    ) -> Result<(), HookError> {
        let ran = self.handlers.hook(pod, target, hook).await;
        match ran {
            Ok(None) => Ok(()),
            Ok(Some(fallback)) => {
                self.metrics.http_fallbacks.inc();
                self.pod_events.pod(pod, true, "LifecycleHTTPFallback", &fallback.0);
                Ok(())
            }
            Err(error) => {
                debug!(pod = describe(pod), container = target.container.name, %error, "hook failed");
                Err(error)
            }
        }
    }
}

/// The grace period of a container that is stopped while its pod goes on.
fn grace(pod: &Pod) -> Duration {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(own).unwrap_or(0);
    time::seconds(seconds)
}

//! A pod's end: stop what runs, tell the last status, give everything back, leave no trace.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use longshore_pod::observed::ObservedPod;
use longshore_pod::{Timestamp, spec};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::task::Task;
use super::{Phase, Tools, Why};
use crate::runtime::{Error, describe};

/// Grace of a pod that does not say (seconds).
const DEFAULT_GRACE: i64 = 30;

/// How long the pod's containers may take to stop. A forced end still sends the stop signal.
pub(super) fn grace(pod: &Pod) -> Duration {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(own).unwrap_or(DEFAULT_GRACE);
    Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1))
}

/// Stop every container at once, each with that grace, then the sandboxes.
pub(super) async fn stop_all(
    tools: &Tools,
    pod: &Pod,
    observed: &ObservedPod,
    grace: Duration,
) -> Result<(), Error> {
    let uid = spec::uid(pod);
    let running = observed.containers.iter().filter(|run| run.exit_code().is_none());
    try_join_all(running.map(|run| async move {
        if let (true, Some((kind, _))) = (run.is_running(), spec::container(pod, &run.name)) {
            let message = format!("Stopping container {}", run.name);
            tools.announcer.container(pod, kind, &run.name, false, "Killing", &message);
        }
        tools.runtime.stop_container(uid, &run.id, &run.sandbox_id, grace).await
    }))
    .await?;
    // One that died by itself still has its address, until it is stopped.
    let sandboxes = observed.sandboxes.iter();
    try_join_all(sandboxes.map(|sandbox| tools.runtime.stop_sandbox(uid, &sandbox.id))).await?;
    Ok(())
}

impl Task {
    /// Stop what runs. A failed call is tried again; nothing sticks because of one.
    pub(super) async fn terminate(&mut self, grace: Duration, why: Why) {
        debug!(pod = describe(&self.pod), ?grace, ?why, "pod ends");
        let observed = self.observed.borrow_and_update().clone();
        self.tell(&observed);
        if observed.is_gone() {
            self.phase = Phase::Terminated;
            return;
        }
        let (tools, pod) = (self.tools.clone(), self.pod.clone());
        let stopping = async move { stop_all(&tools, &pod, &observed, grace).await };
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                stopped = &mut stopping => {
                    match stopped {
                        Ok(()) if !self.observed.borrow().is_active() => {
                            self.phase = Phase::Terminated;
                            return;
                        }
                        Ok(()) => {}
                        Err(error) => {
                            let message = format!("error killing pod: {error}");
                            self.tools.announcer.pod(&self.pod, true, "FailedKillPod", &message);
                        }
                    }
                    self.pause().await;
                    self.look().await;
                    return;
                }
                Ok(()) = self.observed.changed() => {
                    let observed = self.observed.borrow_and_update().clone();
                    self.tell(&observed);
                }
                Ok(()) = self.order.changed() => {
                    if let Some(Phase::Terminating { grace: newer, why: reason }) = self.take_order()
                        && newer < grace
                    {
                        // Dropping the calls cancels them; the next ones carry the shorter grace.
                        self.phase = Phase::Terminating { grace: newer, why: reason };
                        return;
                    }
                }
            }
        }
    }

    /// The end is complete: tell it, give back what the pod held, and once its object is gone,
    /// remove what the runtime keeps of it.
    pub(super) async fn clean_up(&mut self) {
        let observed = self.observed.borrow_and_update().clone();
        self.tell(&observed);
        while let Err(error) = self.tools.runtime.release(&self.pod).await {
            warn!(pod = describe(&self.pod), %error, "pod does not let go of everything yet");
            self.pause().await;
        }
        let mut finished = false;
        loop {
            match self.take_order() {
                Some(Phase::Terminating { why: Why::Gone, .. }) => break,
                Some(Phase::Terminating { why: Why::Deleted, .. }) if !finished => {
                    finished = true;
                    let observed = self.observed.borrow_and_update().clone();
                    self.told = self.status(&observed);
                    self.tools.status.finish(&self.pod, self.told.clone());
                }
                _ => {}
            }
            if self.order.changed().await.is_err() {
                return; // the daemon stops
            }
        }
        self.tools.status.forget(spec::uid(&self.pod));
        while let Err(error) = self.remove().await {
            warn!(pod = describe(&self.pod), %error, "pod leaves a trace yet");
            self.pause().await;
            self.look().await;
        }
        debug!(pod = describe(&self.pod), "pod is gone");
    }

    /// Remove containers, sandboxes, files.
    async fn remove(&mut self) -> Result<(), Error> {
        let observed = self.observed.borrow_and_update().clone();
        let (tools, pod) = (&self.tools, &self.pod);
        try_join_all(
            observed
                .containers
                .iter()
                .map(|run| tools.runtime.remove_container(pod, &run.name, &run.id)),
        )
        .await?;
        let sandboxes = observed.sandboxes.iter();
        try_join_all(
            sandboxes.map(|sandbox| tools.runtime.remove_sandbox(spec::uid(pod), &sandbox.id)),
        )
        .await?;
        tools.runtime.remove_files(pod).await
    }

    async fn pause(&mut self) {
        let now = Timestamp::now();
        let until = self.next_retry(now);
        sleep(Duration::try_from(until.duration_since(now)).unwrap_or_default()).await;
    }

    /// Look again, for what is known may be why the last try failed.
    async fn look(&self) {
        if let Err(error) = self.tools.observer.look_at_pod(spec::uid(&self.pod)).await {
            debug!(pod = describe(&self.pod), %error, "look failed");
        }
    }
}

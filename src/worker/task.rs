//! The worker of one pod: look, plan, act, tell, and again, until there is nothing to do; then wait
//! for an order, for a change of what runs, or for a delay to end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::SignedDuration;
use longshore_pod::backoff::{Backoff, RESTART_BASE};
use longshore_pod::observed::ObservedPod;
use longshore_pod::plan::{self, BackoffKey, Plan, plan};
use longshore_pod::probes::ProbeResults;
use longshore_pod::spec::Gates;
use longshore_pod::status::{self, Context};
use longshore_pod::{Timestamp, spec};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::act::{Acted, act};
use super::end::grace;
use super::{Order, Phase, Tools, Why};
use crate::runtime::{backoff_message, describe};
use crate::volumes::PodMounts;

/// Pauses after a step that failed.
const RETRY_BASE: SignedDuration = SignedDuration::from_millis(200);
const RETRY_MAX: SignedDuration = SignedDuration::from_secs(10);
/// How often the data in a pod's volumes is compared with its source.
const REFRESH: Duration = Duration::from_secs(60);

pub(super) struct Task {
    pub(super) tools: Arc<Tools>,
    pub(super) order: watch::Receiver<Order>,
    pub(super) observed: watch::Receiver<Arc<ObservedPod>>,
    probes: watch::Receiver<Arc<ProbeResults>>,
    pub(super) pod: Arc<Pod>,
    pub(super) phase: Phase,
    /// The status told last.
    pub(super) told: PodStatus,
    restarts: Backoff<BackoffKey>,
    retries: Backoff<()>,
    retry_at: Option<Timestamp>,
    /// Why containers do not run, by name.
    waiting: HashMap<String, Wait>,
    mounts: Option<Arc<PodMounts>>,
    /// When the data in the volumes was compared with its source last.
    refreshed: Instant,
}

/// A container's wait.
struct Wait {
    reason: String,
    message: String,
    /// Until when it is not tried again, if it is not the restart delay that says so.
    until: Option<Timestamp>,
}

impl Task {
    pub(super) fn new(tools: Arc<Tools>, order: watch::Receiver<Order>) -> Self {
        let pod = order.borrow().pod.clone();
        let observed = tools.observer.subscribe(spec::uid(&pod));
        let probes = tools.probes.subscribe(spec::uid(&pod));
        let restarts = Backoff::new(RESTART_BASE, tools.max_restart_delay);
        Self {
            order,
            observed,
            probes,
            phase: Phase::Syncing,
            told: pod.status.clone().unwrap_or_default(),
            restarts,
            retries: Backoff::new(RETRY_BASE, RETRY_MAX),
            retry_at: None,
            waiting: HashMap::new(),
            mounts: None,
            refreshed: Instant::now(),
            pod,
            tools,
        }
    }

    /// Work until nothing of the pod is left to care for; gives its UID.
    pub(super) async fn run(mut self) -> String {
        self.tools.objects.register(&self.pod);
        loop {
            match self.phase {
                Phase::Syncing => self.sync().await,
                Phase::Terminating { grace, why } => self.terminate(grace, why).await,
                Phase::Terminated => {
                    self.clean_up().await;
                    return spec::uid(&self.pod).to_owned();
                }
            }
        }
    }

    /// Take in the newest order. Tells whether it ends the pod, and how.
    pub(super) fn take_order(&mut self) -> Option<Phase> {
        let order = self.order.borrow_and_update().clone();
        if order.pod != self.pod {
            self.tools.objects.register(&order.pod);
            self.pod = order.pod;
        }
        let told = self.told.phase.as_deref().unwrap_or_default();
        let final_in_api = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let why = match () {
            () if order.gone => Why::Gone,
            () if self.pod.metadata.deletion_timestamp.is_some() => Why::Deleted,
            () if status::is_final(told) || status::is_final(final_in_api.unwrap_or_default()) => {
                Why::Completed
            }
            () => return None,
        };
        Some(Phase::Terminating { grace: grace(&self.pod), why })
    }

    async fn sync(&mut self) {
        if let Some(end) = self.take_order() {
            self.phase = end;
            return;
        }
        let observed = self.observed.borrow_and_update().clone();
        let now = Timestamp::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        if observed.partial {
            // Half a picture would be told, and acted upon, as if the rest were lost.
            return self.wait(None).await;
        }
        let probes = self.probes.borrow_and_update().clone();
        let gates = Gates::default();
        let inputs = plan::Inputs { probes: &probes, backoff: &self.restarts, now, gates };
        let plan = self.due(plan(&self.pod, &observed, inputs), now);
        self.note_delays(&plan, now);
        self.tell(&observed);
        if status::is_final(self.told.phase.as_deref().unwrap_or_default()) {
            self.phase = Phase::Terminating { grace: grace(&self.pod), why: Why::Completed };
            return;
        }
        if plan.is_idle() || self.retry_at.is_some() {
            self.wait(plan.wake_at()).await;
            return;
        }
        for start in &plan.start {
            // A run that follows another counts as its restart, whether it comes to be or not.
            if let Some((_, container)) = spec::container(&self.pod, &start.name)
                && let Some(ended) = start.last_end
            {
                self.restarts.next(&plan::backoff_key(&container), ended, now);
            }
        }
        let acting = act(self.tools.clone(), self.pod.clone(), observed, plan, self.mounts.clone());
        tokio::pin!(acting);
        loop {
            tokio::select! {
                acted = &mut acting => return self.acted(acted),
                // What has been done so far is news already, but no end: there is more to do.
                Ok(()) = self.observed.changed() => {
                    let observed = self.observed.borrow_and_update().clone();
                    let phase = self.status(&observed).phase.unwrap_or_default();
                    if !observed.partial && !status::is_final(&phase) {
                        self.tell(&observed);
                    }
                }
                Ok(()) = self.order.changed() => {
                    // Dropping the act cancels its calls.
                    if let Some(end) = self.take_order() {
                        self.phase = end;
                        return;
                    }
                }
            }
        }
    }

    /// Take from a plan what failed lately and is not to be tried again yet.
    fn due(&self, mut plan: Plan, now: Timestamp) -> Plan {
        let waits = &self.waiting;
        let until =
            |name: &str| waits.get(name).and_then(|wait| wait.until).filter(|until| *until > now);
        plan.start.retain(|start| match until(&start.name) {
            None => true,
            Some(until) => {
                let delay = until.duration_since(now);
                plan.waiting.push(plan::Waiting { name: start.name.clone(), until, delay });
                false
            }
        });
        plan
    }

    /// Containers in their restart delay say so.
    fn note_delays(&mut self, plan: &Plan, now: Timestamp) {
        for waiting in &plan.waiting {
            if self.waiting.get(&waiting.name).is_some_and(|wait| wait.until > Some(now)) {
                continue;
            }
            let delay = Duration::try_from(waiting.delay).unwrap_or_default();
            let message = backoff_message(&self.pod, &waiting.name, delay);
            let known = self.waiting.get(&waiting.name).is_some_and(|wait| wait.message == message);
            if known {
                continue;
            }
            if let Some((kind, container)) = spec::container(&self.pod, &waiting.name) {
                let text = format!(
                    "Back-off restarting failed container {} in pod {}",
                    container.name,
                    describe(&self.pod)
                );
                self.tools.announcer.container(
                    &self.pod,
                    kind,
                    &container.name,
                    true,
                    "BackOff",
                    &text,
                );
            }
            let reason = "CrashLoopBackOff".to_owned();
            self.waiting.insert(waiting.name.clone(), Wait { reason, message, until: None });
        }
    }

    fn acted(&mut self, acted: Acted) {
        let now = Timestamp::now();
        if let Some(mounts) = acted.mounts {
            self.mounts = Some(mounts);
        }
        for name in acted.started {
            self.waiting.remove(&name);
        }
        if acted.not_started.is_empty() && acted.failed.is_none() {
            self.retries.retain(|()| false);
        }
        for (name, error) in acted.not_started {
            let until = match error.retry_at {
                Some(until) => until,
                None => self.next_retry(now),
            };
            debug!(
                pod = describe(&self.pod),
                name,
                reason = error.reason,
                error.message,
                "container not started"
            );
            let wait = Wait {
                reason: error.reason.to_owned(),
                message: error.message,
                until: Some(until),
            };
            self.waiting.insert(name, wait);
        }
        if let Some((reason, message)) = acted.failed {
            self.tools.announcer.pod(&self.pod, true, reason, &message);
            self.retry_at = Some(self.next_retry(now));
        }
    }

    /// When to try again after a failure now.
    pub(super) fn next_retry(&mut self, now: Timestamp) -> Timestamp {
        self.retries.next(&(), now, now);
        now.checked_add(self.retries.delay(&())).unwrap_or(Timestamp::MAX)
    }

    /// Until an order, a change of what runs, or the time that is given or due.
    async fn wait(&mut self, wake_at: Option<Timestamp>) {
        let wake_at = match (wake_at, self.retry_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let wake = async {
            match wake_at {
                None => std::future::pending().await,
                Some(at) => {
                    let left = at.duration_since(Timestamp::now());
                    sleep(Duration::try_from(left).unwrap_or_default()).await;
                }
            }
        };
        let refresh = async {
            match &self.mounts {
                Some(mounts) if !mounts.is_empty() => {
                    sleep_until(self.refreshed + REFRESH).await;
                    self.tools.runtime.refresh_volumes(&self.pod).await
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.order.changed() => {}
            _ = self.observed.changed() => {}
            _ = self.probes.changed() => {}
            () = wake => {}
            refreshed = refresh => {
                self.refreshed = Instant::now();
                if let Err(error) = refreshed {
                    debug!(pod = describe(&self.pod), %error, "volumes not refreshed");
                }
            }
        }
    }

    /// Compute the pod's status and hand it to the writer.
    pub(super) fn tell(&mut self, observed: &ObservedPod) {
        self.told = self.status(observed);
        // The object of a pod that its source has no more is gone, or another pod's.
        if !self.order.borrow().gone {
            self.tools.status.tell(&self.pod, self.told.clone());
        }
    }

    pub(super) fn status(&self, observed: &ObservedPod) -> PodStatus {
        let waiting = self
            .waiting
            .iter()
            .map(|(name, wait)| (name.clone(), (wait.reason.clone(), wait.message.clone())));
        let probes = self.probes.borrow().clone();
        let context = Context {
            probes: &probes,
            starting: HashSet::new(),
            waiting: waiting.collect(),
            host_ips: &self.tools.settings.host_ips,
            terminal: self.phase == Phase::Terminated,
            verdict: None,
            runtime: &self.tools.runtime_name,
            ..Context::default()
        };
        status::status(&self.pod, observed, &self.told, &context, Timestamp::now())
    }
}

//! A pod that should run: its sync iterations report its status, plan, and start the steps that are due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use longshore_base::clock;
use longshore_client::objects::Changed;
use longshore_pod::Timestamp;
use longshore_pod::backoff::Backoff;
use longshore_pod::deadline::{Deadline, deadline};
use longshore_pod::observed::{ObservedPod, State};
use longshore_pod::plan::{
    self, BackoffKey, Kill, Plan, Reset, SandboxStep, Start, plan, usable_sandbox,
};
use longshore_pod::spec::{self, describe};
use longshore_pod::status;
use longshore_runtime::{Present, backoff_message};
use tokio::sync::Mutex;

use super::Why;
use super::act::ContainerStart;
use super::data::PodVolumes;
use super::end::grace;
use super::limiter::Slot;
use super::report::withheld_until;
use super::state::{PodState, Wake};
use super::steps::{Outcome, Subject};
use super::stop::{self, StopRequest};
use super::task::Next;
use crate::terminator::Termination;

/// A pod that should run.
pub(super) struct Syncing {
    pub(super) volumes: PodVolumes,
    restarts: Backoff<BackoffKey>,
    /// Images that were pulled and not used yet, by container name.
    images: HashMap<String, Present>,
    /// The sandbox for which `SandboxChanged` was recorded last.
    lost_sandbox: String,
    /// The sandbox in which no container has run yet, and since when it is known.
    new_sandbox: Option<(String, Timestamp)>,
    /// While the pod waits for the network: when the next event about that is due.
    network_event_at: Option<Timestamp>,
    /// Held by the container that is being started.
    start_lock: Arc<Mutex<()>>,
    /// Held while the pod is being started.
    slot: Arc<Slot>,
}

impl Syncing {
    pub(super) fn new(state: &PodState) -> Self {
        let context = &state.context;
        Self {
            volumes: PodVolumes::new(context, &state.pod),
            restarts: Backoff::new(context.restart_delays.base, context.restart_delays.max),
            images: HashMap::new(),
            lost_sandbox: String::new(),
            new_sandbox: None,
            network_event_at: None,
            start_lock: Arc::default(),
            slot: context.startup_limiter.slot(),
        }
    }

    /// The image of a container was pulled before its sandbox was ready.
    pub(super) fn fetched(&mut self, name: String, image: Present) {
        self.images.insert(name, image);
    }

    /// A container was not started because its sandbox had died. It did not fail by itself: no
    /// backoff.
    pub(super) fn lost_with(&mut self, name: &str) {
        self.restarts.retain(|(failed, _)| failed != name);
    }

    /// One sync iteration.
    pub(super) fn sync(&mut self, state: &mut PodState) -> Next {
        let observed = state.inputs.observed();
        let now = clock::now();
        if observed.partial {
            return Next::Wait(state.note_partial(now));
        }
        state.failures.complete();
        if state.take_decision() {
            self.volumes.changed(Changed::pod(), &mut state.failures);
        }
        let actuated = state.context.allocation.actuated(spec::uid(&state.pod));
        state.note_resize(&observed, &actuated);
        let (starting, backoff, gates) =
            (state.starting(&observed), &self.restarts, state.context.gates);
        state.follow_probes(&observed);
        let probes = state.inputs.probes.borrow_and_update().clone();
        let inputs = plan::Inputs {
            probes: &probes,
            starting: &starting,
            backoff,
            actuated: &actuated,
            now,
            gates,
        };
        let plan = plan(&state.pod, &observed, inputs);
        note_delays(state, &plan, now);
        let plan = due(state, plan, now);

        // A terminal phase is not reported while steps are running.
        let phase = state.status(&observed, false).phase.unwrap_or_default();
        let ends = status::is_final(&phase);
        let coalesced_until = status_coalesced_until(state, &observed, now)
            .or_else(|| self.first_start_until(state, &observed, now));
        if coalesced_until.is_none() && (!ends || state.steps.is_empty()) {
            state.report_status(&observed, false);
        }
        // A container that is being replaced has exited, which does not end its pod.
        let regular = &state.pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
        let replacing = regular.iter().any(|c| state.steps.is_container_busy(&c.name));
        if ends && state.steps.is_empty() || plan.sandbox == SandboxStep::Stop && !replacing {
            return Next::Terminate(grace(&state.pod), Why::Completed);
        }
        let over_at = match deadline(&state.pod, &state.report.last, now) {
            Deadline::None => None,
            Deadline::Due(at) => Some(at),
            Deadline::Over(verdict) => {
                state.context.pod_events.pod(&state.pod, false, &verdict.reason, &verdict.message);
                let (grace, why) = state.decide(Termination { verdict, grace: None });
                return Next::Terminate(grace, why);
            }
        };
        if let Some(event_at) = self.wait_for_network(state, now) {
            return Next::Wait(Wake(over_at.into_iter().chain([event_at]).min()));
        }
        self.refresh(state, now);
        let retries = [
            state.failures.pod_retry_at(now),
            state.resize.retry_at(now),
            self.volumes.retry_at(now),
            state.failures.backoff_event_at(now),
        ];
        let wakes =
            [plan.wake_at(), over_at, coalesced_until].into_iter().chain(retries).flatten().min();
        self.begin(state, &observed, plan, now);
        Next::Wait(Wake(wakes))
    }

    /// Until when a new sandbox is not reported: it is reported together with the start of its first container,
    /// which is soon unless something fails.
    fn first_start_until(
        &mut self,
        state: &PodState,
        observed: &ObservedPod,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let sandbox = usable_sandbox(&state.pod, observed)?;
        let has_run = observed.containers.iter().any(|run| run.state != State::Created);
        let fails = state.failures.pod_error().is_some() || !state.failures.waiting().is_empty();
        if has_run || fails {
            return None;
        }
        let since = match &self.new_sandbox {
            Some((id, since)) if *id == sandbox.id => *since,
            _ => self.new_sandbox.insert((sandbox.id.clone(), now)).1,
        };
        withheld_until(since, STATUS_COALESCE, now)
    }

    /// Whether the pod waits until the network is ready: then it returns when the next event about that is
    /// due.
    fn wait_for_network(&mut self, state: &PodState, now: Timestamp) -> Option<Timestamp> {
        let why = state.inputs.runtime.borrow().network_error.clone();
        let Some(why) = why.filter(|_| !spec::host_network(&state.pod)) else {
            self.network_event_at = None;
            return None;
        };
        self.slot.release(); // it does not wait for the runtime
        let due = self.network_event_at.filter(|at| *at > now).unwrap_or_else(|| {
            let message = format!("network is not ready: {why}");
            state.context.pod_events.pod(&state.pod, true, "NetworkNotReady", &message);
            now.checked_add(NETWORK_EVENTS).unwrap_or(Timestamp::MAX)
        });
        self.network_event_at = Some(due);
        Some(due)
    }

    /// Starts the steps of a plan that are possible now. The others are planned again later.
    fn begin(&mut self, state: &mut PodState, observed: &ObservedPod, plan: Plan, now: Timestamp) {
        let may_retry = state.failures.pod_retry_at(now).is_none();
        if !plan.reset.is_empty() {
            return self.reset(state, observed, plan.reset, may_retry);
        }
        if let SandboxStep::Create { attempt } = plan.sandbox {
            return self.replace_sandbox(state, observed, attempt, may_retry);
        }
        if state.steps.is_busy(&Subject::Pod) {
            return;
        }
        let Some(sandbox) = usable_sandbox(&state.pod, observed) else { return };
        let mounts = self.volumes.mounts().cloned();
        if mounts.is_none() && may_retry && !state.steps.is_busy(&Subject::Volumes) {
            let step_context = state.step_context();
            state.steps.begin(Subject::Volumes, |cancellation| step_context.mount(cancellation));
        }
        state.continue_resize(observed, &sandbox.id, &plan, now);
        let Plan { kill, start, .. } = plan;
        let (mut kills, mut starts): (Vec<Kill>, Vec<Start>) = (kill, start);
        // A replaced container is killed and started in one step: otherwise its exit would be handled
        // by the restart policy. None starts before the limits of the pod are raised.
        let may_start = mounts.is_some()
            && !state.steps.is_busy(&Subject::Image)
            && state.resize.may_start_containers();
        if !may_start {
            self.slot.release(); // it does not wait for the runtime
        }
        let replaced = |name: &str, starts: &[Start]| starts.iter().any(|start| start.name == name);
        for kill in &kills {
            // Cancels its current step, such as its postStart hook.
            state.steps.cancel_container(&kill.name, &kill.id);
        }
        kills.retain(|kill| {
            !state.steps.is_container_busy(&kill.name)
                && (may_start || !replaced(&kill.name, &starts))
        });
        starts.retain(|_| may_start);
        let mut begun: Vec<(String, Option<Kill>, Option<Start>)> =
            kills.into_iter().map(|kill| (kill.name.clone(), Some(kill), None)).collect();
        for start in starts {
            match begun.iter_mut().find(|(name, ..)| *name == start.name) {
                Some((.., slot)) => *slot = Some(start),
                None => begun.push((start.name.clone(), None, Some(start))),
            }
        }
        for (name, kill, start) in begun {
            let kill = kill.and_then(|kill| {
                let run = observed.containers.iter().find(|run| run.id == kill.id)?.clone();
                let grace = kill.grace.unwrap_or_else(|| grace(&state.pod));
                let slot = state.context.stop_limiter.slot();
                Some((run, state.grace.stop_request(kill.message, grace, slot)))
            });
            let container_start = start.zip(mounts.clone()).map(|(start, mounts)| {
                self.count_restart(&state.pod, &start, now);
                let ran_here = observed
                    .newest(&start.name)
                    .is_some_and(|run| run.sandbox_id == sandbox.id && run.state != State::Created);
                ContainerStart {
                    image: self.images.remove(&start.name),
                    start,
                    sandbox: sandbox.clone(),
                    mounts,
                    start_lock: (!ran_here).then(|| self.start_lock.clone()),
                    slot: self.slot.clone(),
                }
            });
            let stops = kill.as_ref().map(|(run, _)| run.id.clone());
            let replaces = container_start.is_some();
            let (subject, step_context) = (Subject::Container(name.clone()), state.step_context());
            state.steps.begin(subject, |cancellation| {
                step_context.container(kill, container_start, cancellation)
            });
            if let Some(id) = stops {
                state.steps.note_stop(&name, &id, replaces);
            }
        }
    }

    /// Counts a restart for the backoff, whether the start succeeds or not.
    fn count_restart(&mut self, pod: &Pod, start: &Start, now: Timestamp) {
        if let (Some(ended), Some((_, container))) =
            (start.last_end, spec::container(pod, &start.name))
        {
            self.restarts.next(&plan::backoff_key(&container), ended, now);
        }
    }

    /// There is no usable sandbox: stops the containers of the old one, then creates another.
    fn replace_sandbox(
        &mut self,
        state: &mut PodState,
        observed: &ObservedPod,
        attempt: u32,
        may_retry: bool,
    ) {
        if state.steps.is_busy(&Subject::Pod) {
            return;
        }
        if let Some(lost) = observed.sandboxes.first()
            && lost.id != self.lost_sandbox
        {
            self.lost_sandbox.clone_from(&lost.id);
            let message = "Pod sandbox changed, it will be killed and re-created.";
            state.context.pod_events.pod(&state.pod, false, "SandboxChanged", message);
            state.steps.cancel_all();
            self.reset_backoff_of_lost(observed, &lost.id);
        }
        let ended = state.stop_containers(observed, grace(&state.pod));
        let idle = state.steps.containers().next().is_none();
        if !ended || !idle || !may_retry || state.steps.is_busy(&Subject::Volumes) {
            return;
        }
        let volumes = self.volumes.order();
        let first = state.pod.spec.as_ref().and_then(|spec| spec::containers(spec).next());
        let first = first.map(|(_, container)| container.name.clone());
        if let Some(first) = first.filter(|first| self.wants_image(state, first)) {
            let step_context = state.step_context();
            state.steps.begin(Subject::Image, |cancellation| {
                step_context.fetch(first, attempt, cancellation)
            });
        }
        // All of them: one that died by itself keeps its address until it is stopped.
        let old = observed.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
        let (step_context, slot) = (state.step_context(), self.slot.clone());
        state.steps.begin(Subject::Pod, |cancellation| {
            step_context.make_sandbox(old, attempt, volumes, slot, cancellation)
        });
    }

    /// Containers that exited with their sandbox have not failed by themselves: their backoff is
    /// reset.
    fn reset_backoff_of_lost(&mut self, observed: &ObservedPod, sandbox_id: &str) {
        let now = clock::now();
        let ended_with = |name: &str| {
            observed.newest(name).is_some_and(|run| {
                let lately = run.finished_at().is_none_or(|at| now.duration_since(at) < LOSS);
                run.sandbox_id == sandbox_id && lately
            })
        };
        self.restarts.retain(|(name, _)| !ended_with(name));
    }

    fn wants_image(&self, state: &PodState, name: &str) -> bool {
        !self.images.contains_key(name)
            && state.failures.wait(name).is_none()
            && !state.steps.is_busy(&Subject::Image)
    }

    /// Restarts all containers of the pod in its sandbox.
    fn reset(
        &self,
        state: &mut PodState,
        observed: &ObservedPod,
        resets: Vec<Reset>,
        may_retry: bool,
    ) {
        if state.steps.is_busy(&Subject::Pod) || !may_retry {
            return;
        }
        state.steps.cancel_all();
        if !state.steps.is_empty() {
            return;
        }
        let resets = resets.into_iter().map(|reset| {
            let run = observed.containers.iter().find(|run| run.id == reset.id);
            let kill = run.filter(|_| reset.kill).map(|run| {
                let (message, slot) = ("killing".to_owned(), state.stop_slot.clone());
                let stop_request = state.grace.stop_request(message, Duration::ZERO, slot);
                (run.clone(), StopRequest { hook: false, ..stop_request })
            });
            (reset, kill)
        });
        let (resets, step_context) = (resets.collect(), state.step_context());
        state.steps.begin(Subject::Pod, |cancellation| step_context.reset(resets, cancellation));
    }
}

/// Until when the exit of a container that the node replaces is not reported: it is reported
/// together with the next start, if that follows soon. Clients that change a pod expect its
/// status to stay for a moment, as it does with a relist every second.
fn status_coalesced_until(
    state: &PodState,
    observed: &ObservedPod,
    now: Timestamp,
) -> Option<Timestamp> {
    let ends = state.steps.replaced().filter_map(|id| {
        let run = observed.containers.iter().find(|run| run.id == id)?;
        let is_newest = observed.newest(&run.name).is_some_and(|newest| newest.id == id);
        run.finished_at().filter(|_| is_newest)
    });
    ends.filter_map(|at| withheld_until(at, STATUS_COALESCE, now)).max()
}

/// Removes from a plan what is in progress, and what is in backoff.
fn due(state: &PodState, mut plan: Plan, now: Timestamp) -> Plan {
    plan.waiting.retain(|waiting| !state.steps.is_container_busy(&waiting.name));
    plan.start.retain(|start| match state.failures.waits_until(&start.name, now) {
        _ if state.steps.is_container_busy(&start.name) => false,
        None => true,
        Some(until) => {
            let delay = until.duration_since(now);
            plan.waiting.push(plan::Waiting { name: start.name.clone(), until, delay });
            false
        }
    });
    plan
}

/// Reports containers in restart backoff.
fn note_delays(state: &mut PodState, plan: &Plan, now: Timestamp) {
    let resync = state.context.resync_period;
    for waiting in &plan.waiting {
        if state.steps.is_container_busy(&waiting.name) {
            continue;
        }
        let delay = Duration::try_from(waiting.delay).unwrap_or_default();
        let message = backoff_message(&state.pod, &waiting.name, delay);
        if !state.failures.container_backs_off(&waiting.name, message, now, resync) {
            continue;
        }
        if let Some((kind, container)) = spec::container(&state.pod, &waiting.name) {
            let name = &container.name;
            let pod = describe(&state.pod);
            let text = format!("Back-off restarting failed container {name} in pod {pod}");
            state.context.pod_events.container(&state.pod, kind, name, true, "BackOff", &text);
        }
    }
}

impl PodState {
    /// Stops all containers that may run, sidecars last. Returns whether all have exited.
    pub(super) fn stop_containers(&mut self, observed: &ObservedPod, grace: Duration) -> bool {
        let mut ended = true;
        let pod = self.pod.clone();
        let mut order =
            pod.spec.as_ref().map(longshore_pod::termination::order).unwrap_or_default();
        for run in observed.containers.iter().filter(|run| run.may_run()) {
            ended = false;
            if self.steps.is_container_busy(&run.name) {
                continue;
            }
            let after = order.remove(run.name.as_str()).unwrap_or_default();
            let message = format!("Stopping container {}", run.name);
            let stop_request = StopRequest {
                after: after.into_iter().map(str::to_owned).collect(),
                ..self.grace.stop_request(message, grace, self.stop_slot.clone())
            };
            let (context, pod, run) = (self.context.clone(), self.pod.clone(), run.clone());
            self.steps.begin(Subject::Container(run.name.clone()), |_| async move {
                stop::stop(context, pod, run, stop_request).await;
                Outcome::Done
            });
        }
        ended
    }
}

/// How long the exit of a replaced container, or a new sandbox, is withheld, to be reported with the next
/// start.
const STATUS_COALESCE: SignedDuration = SignedDuration::from_millis(500);
/// How often a pod that waits for the network says so.
const NETWORK_EVENTS: SignedDuration = SignedDuration::from_secs(10);
/// The containers of a stopped sandbox exit within this time.
const LOSS: SignedDuration = SignedDuration::from_secs(5);

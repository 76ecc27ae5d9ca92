//! A sync iteration of a pod that should run: report its status, plan, and start the steps that are due.

use std::time::Duration;

use crate::terminator::Termination;
use k8s_openapi::jiff::SignedDuration;
use longshore_pod::deadline::{Deadline, deadline};
use longshore_pod::observed::{ObservedPod, State};
use longshore_pod::plan::{self, Kill, Plan, Reset, SandboxStep, Start, plan, usable_sandbox};
use longshore_pod::spec::describe;
use longshore_pod::status;
use longshore_pod::{Timestamp, spec};
use longshore_runtime::backoff_message;

use super::Why;
use super::act::{ContainerStart, Volumes};
use super::end::grace;
use super::steps::{Outcome, Subject};
use super::stop::{self, StopRequest};
use super::task::{Task, Wait, Wake};

impl Task {
    /// One sync iteration. Returns what to wait for, `None` if the next one is due at once.
    pub(super) fn sync(&mut self) -> Option<Wake> {
        let observed = self.observed.borrow_and_update().clone();
        let now = Timestamp::now();
        if observed.partial {
            return Some(self.note_partial(now));
        }
        self.note_complete();
        self.take_decision();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        self.note_resize(&observed, &actuated);
        let (starting, backoff, gates) =
            (self.starting(&observed), &self.restarts, self.context.gates);
        self.context.probes.follow(&self.pod, &observed, &starting, &self.last_status);
        let probes = self.probes.borrow_and_update().clone();
        let inputs = plan::Inputs {
            probes: &probes,
            starting: &starting,
            backoff,
            actuated: &actuated,
            now,
            gates,
        };
        let plan = plan(&self.pod, &observed, inputs);
        self.note_delays(&plan);
        let plan = self.due(plan, now);

        // A terminal phase is not reported while steps are running.
        let phase = self.status(&observed).phase.unwrap_or_default();
        let ends = status::is_final(&phase);
        let coalesced_until = self.status_coalesced_until(&observed, now);
        if coalesced_until.is_none() && (!ends || self.steps.is_empty()) {
            self.report_status(&observed);
        }
        // A container that is being replaced has exited, which does not end its pod.
        let regular = &self.pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
        let replacing = regular.iter().any(|c| self.steps.is_container_busy(&c.name));
        if ends && self.steps.is_empty() || plan.sandbox == SandboxStep::Stop && !replacing {
            self.begin_termination(grace(&self.pod), Why::Completed);
            return None;
        }
        let over_at = match deadline(&self.pod, &self.last_status, now) {
            Deadline::None => None,
            Deadline::Due(at) => Some(at),
            Deadline::Over(verdict) => {
                self.context.pod_events.pod(&self.pod, false, &verdict.reason, &verdict.message);
                self.decide(Termination { verdict, grace: None });
                return None;
            }
        };
        self.refresh(now);
        let resizing = self.resizing.as_ref().and_then(|resizing| resizing.retry_at);
        let retries = [self.retry_at, resizing, self.data.retry_at];
        let retries = retries.map(|at| at.filter(|at| *at > now));
        let wakes =
            [plan.wake_at(), over_at, coalesced_until].into_iter().chain(retries).flatten().min();
        self.begin(&observed, plan, now);
        Some(Wake(wakes))
    }

    /// Until when the exit of a container that the node replaces is not reported: it is reported
    /// together with the next start, if that follows soon. Clients that change a pod expect its
    /// status to stay for a moment, as it does with a relist every second.
    fn status_coalesced_until(&self, observed: &ObservedPod, now: Timestamp) -> Option<Timestamp> {
        let ends = self.steps.replaced().filter_map(|id| {
            let run = observed.containers.iter().find(|run| run.id == id)?;
            let is_newest = observed.newest(&run.name).is_some_and(|newest| newest.id == id);
            run.finished_at().filter(|_| is_newest)
        });
        ends.filter_map(|at| at.checked_add(STATUS_COALESCE).ok())
            .filter(|until| *until > now)
            .max()
    }

    /// Terminates the pod for a reason of the node.
    pub(super) fn decide(&mut self, end: Termination) {
        let allowed = end.grace.unwrap_or_else(|| grace(&self.pod));
        self.verdict.get_or_insert(end.verdict);
        self.begin_termination(allowed, Why::Decided);
    }

    /// Removes from a plan what is in progress, and what is in backoff.
    fn due(&self, mut plan: Plan, now: Timestamp) -> Plan {
        plan.waiting.retain(|waiting| !self.steps.is_container_busy(&waiting.name));
        let waits = &self.waiting;
        let until =
            |name: &str| waits.get(name).and_then(|wait| wait.until).filter(|until| *until > now);
        plan.start.retain(|start| match until(&start.name) {
            _ if self.steps.is_container_busy(&start.name) => false,
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
    fn note_delays(&mut self, plan: &Plan) {
        for waiting in &plan.waiting {
            if self.steps.is_container_busy(&waiting.name) {
                continue;
            }
            let known = self.waiting.get(&waiting.name);
            let delay = Duration::try_from(waiting.delay).unwrap_or_default();
            let message = backoff_message(&self.pod, &waiting.name, delay);
            if known.is_some_and(|wait| wait.message.starts_with(&message)) {
                continue;
            }
            // A failure before the container ran is shown nowhere else.
            let cause = known.filter(|wait| wait.reason != CRASH_LOOP);
            let message = match cause {
                Some(cause) => format!("{message}: {}: {}", cause.reason, cause.message),
                None => message,
            };
            if let Some((kind, container)) = spec::container(&self.pod, &waiting.name) {
                let name = &container.name;
                let pod = describe(&self.pod);
                let text = format!("Back-off restarting failed container {name} in pod {pod}");
                self.context.pod_events.container(&self.pod, kind, name, true, "BackOff", &text);
            }
            let wait = Wait { reason: CRASH_LOOP.to_owned(), message, until: None };
            self.waiting.insert(waiting.name.clone(), wait);
        }
    }

    /// Starts the steps of a plan that are possible now. The others are planned again later.
    fn begin(&mut self, observed: &ObservedPod, plan: Plan, now: Timestamp) {
        let may_retry = self.retry_at.is_none_or(|at| at <= now);
        if !plan.reset.is_empty() {
            return self.reset(observed, plan.reset, may_retry);
        }
        if let SandboxStep::Create { attempt } = plan.sandbox {
            return self.replace_sandbox(observed, attempt, may_retry);
        }
        if self.steps.is_busy(&Subject::Pod) {
            return;
        }
        let Some(sandbox) = usable_sandbox(&self.pod, observed) else { return };
        let mounts = self.mounts.clone();
        if mounts.is_none() && may_retry && !self.steps.is_busy(&Subject::Volumes) {
            let step_context = self.step_context();
            self.steps.begin(Subject::Volumes, |cancellation| step_context.mount(cancellation));
        }
        self.resize(observed, &sandbox.id, &plan, now);
        let Plan { kill, start, .. } = plan;
        let (mut kills, mut starts): (Vec<Kill>, Vec<Start>) = (kill, start);
        // A replaced container is killed and started in one step: otherwise its exit would be handled
        // by the restart policy. None starts before the limits of the pod are raised.
        let may_start =
            mounts.is_some() && !self.steps.is_busy(&Subject::Image) && self.may_start_containers();
        if !may_start {
            self.slot.release(); // it does not wait for the runtime
        }
        let replaced = |name: &str, starts: &[Start]| starts.iter().any(|start| start.name == name);
        for kill in &kills {
            // Cancels its current step, such as its postStart hook.
            self.steps.cancel_container(&kill.name, &kill.id);
        }
        kills.retain(|kill| {
            !self.steps.is_container_busy(&kill.name)
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
                let grace = kill.grace.unwrap_or_else(|| grace(&self.pod));
                Some((run, self.stop_request(kill.message, grace)))
            });
            let container_start = start.zip(mounts.clone()).map(|(start, mounts)| {
                self.count_restart(&start, now);
                let ran_here = observed
                    .newest(&start.name)
                    .is_some_and(|run| run.sandbox_id == sandbox.id && run.state != State::Created);
                ContainerStart {
                    image: self.images.remove(&start.name),
                    start,
                    sandbox: sandbox.clone(),
                    mounts,
                    start_lock: (!ran_here).then(|| self.start_lock.clone()),
                }
            });
            let stops = kill.as_ref().map(|(run, _)| run.id.clone());
            let replaces = container_start.is_some();
            let (subject, step_context) = (Subject::Container(name.clone()), self.step_context());
            self.steps.begin(subject, |cancellation| {
                step_context.container(kill, container_start, cancellation)
            });
            if let Some(id) = stops {
                self.steps.note_stop(&name, &id, replaces);
            }
        }
    }

    /// Counts a restart for the backoff, whether the start succeeds or not.
    fn count_restart(&mut self, start: &Start, now: Timestamp) {
        if let (Some(ended), Some((_, container))) =
            (start.last_end, spec::container(&self.pod, &start.name))
        {
            self.restarts.next(&plan::backoff_key(&container), ended, now);
        }
    }

    /// There is no usable sandbox: stops the containers of the old one, then creates another.
    fn replace_sandbox(&mut self, observed: &ObservedPod, attempt: u32, may_retry: bool) {
        if self.steps.is_busy(&Subject::Pod) {
            return;
        }
        if let Some(lost) = observed.sandboxes.first()
            && lost.id != self.lost_sandbox
        {
            self.lost_sandbox.clone_from(&lost.id);
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.context.pod_events.pod(&self.pod, false, "SandboxChanged", message);
            self.steps.cancel_all();
            self.reset_backoff_of_lost(observed, &lost.id);
        }
        let ended = self.stop_containers(observed, grace(&self.pod));
        let idle = self.steps.containers().next().is_none();
        if !ended || !idle || !may_retry || self.steps.is_busy(&Subject::Volumes) {
            return;
        }
        let volumes = match (&self.mounts, self.mount_failed) {
            (Some(_), _) => Volumes::Ready,
            (None, false) => Volumes::Alongside,
            (None, true) => Volumes::First,
        };
        let first = self.pod.spec.as_ref().and_then(|spec| spec::containers(spec).next());
        let first = first.map(|(_, container)| container.name.clone());
        if let Some(first) = first.filter(|first| self.wants_image(first)) {
            let step_context = self.step_context();
            self.steps.begin(Subject::Image, |cancellation| {
                step_context.fetch(first, attempt, cancellation)
            });
        }
        let (step_context, old) = (self.step_context(), self.to_stop(observed));
        self.steps.begin(Subject::Pod, |cancellation| {
            step_context.make_sandbox(old, attempt, volumes, cancellation)
        });
    }

    /// Containers that exited with their sandbox have not failed by themselves: their backoff is
    /// reset.
    fn reset_backoff_of_lost(&mut self, observed: &ObservedPod, sandbox_id: &str) {
        let now = Timestamp::now();
        let ended_with = |name: &str| {
            observed.newest(name).is_some_and(|run| {
                let lately = run.finished_at().is_none_or(|at| now.duration_since(at) < LOSS);
                run.sandbox_id == sandbox_id && lately
            })
        };
        self.restarts.retain(|(name, _)| !ended_with(name));
    }

    fn wants_image(&self, name: &str) -> bool {
        !self.images.contains_key(name)
            && !self.waiting.contains_key(name)
            && !self.steps.is_busy(&Subject::Image)
    }

    /// Restarts all containers of the pod in its sandbox.
    fn reset(&mut self, observed: &ObservedPod, resets: Vec<Reset>, may_retry: bool) {
        if self.steps.is_busy(&Subject::Pod) || !may_retry {
            return;
        }
        self.steps.cancel_all();
        if !self.steps.is_empty() {
            return;
        }
        let resets = resets.into_iter().map(|reset| {
            let run = observed.containers.iter().find(|run| run.id == reset.id);
            let kill = run.filter(|_| reset.kill).map(|run| {
                let stop_request = self.stop_request("killing".to_owned(), Duration::ZERO);
                (run.clone(), StopRequest { hook: false, ..stop_request })
            });
            (reset, kill)
        });
        let (resets, step_context) = (resets.collect(), self.step_context());
        self.steps.begin(Subject::Pod, |cancellation| step_context.reset(resets, cancellation));
    }

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
            let stop_request = StopRequest {
                after: after.into_iter().map(str::to_owned).collect(),
                ..self.stop_request(format!("Stopping container {}", run.name), grace)
            };
            let (context, pod, run) = (self.context.clone(), self.pod.clone(), run.clone());
            self.steps.begin(Subject::Container(run.name.clone()), |_| async move {
                stop::stop(context, pod, run, stop_request).await;
                Outcome::Done
            });
        }
        ended
    }

    fn stop_request(&self, message: String, grace: Duration) -> StopRequest {
        let deadline = stop::Deadline::after(grace, self.deadline.subscribe());
        StopRequest { message, hook: true, after: Vec::new(), deadline }
    }

    /// The sandboxes that are not stopped, or may hold resources.
    pub(super) fn to_stop(&self, observed: &ObservedPod) -> Vec<String> {
        // One that died by itself keeps its address until it is stopped.
        let sandboxes = observed.sandboxes.iter();
        let left = sandboxes.filter(|sandbox| sandbox.ready || !self.stopped.contains(&sandbox.id));
        left.map(|sandbox| sandbox.id.clone()).collect()
    }
}

/// How long the exit of a replaced container is withheld, to be reported with its next start.
const STATUS_COALESCE: SignedDuration = SignedDuration::from_millis(500);
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// The containers of a stopped sandbox exit within this time.
const LOSS: SignedDuration = SignedDuration::from_secs(5);

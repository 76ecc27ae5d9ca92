//! A turn of a pod that should run: look, tell, plan, and begin the steps that are due.

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
use super::act::{Beginning, Volumes};
use super::end::grace;
use super::steps::{Outcome, Subject};
use super::stop::{self, StopRequest};
use super::task::{Task, Wait, Wake};

impl Task {
    /// One turn. Gives what to wait for; nothing, if the next turn is due at once.
    pub(super) fn sync(&mut self) -> Option<Wake> {
        let observed = self.observed.borrow_and_update().clone();
        let now = Timestamp::now();
        if observed.partial {
            return Some(self.unseen(now));
        }
        self.seen();
        self.take_decision();
        let actuated = self.context.allocation.actuated(spec::uid(&self.pod));
        self.note_resize(&observed, &actuated);
        let (starting, backoff, gates) =
            (self.starting(&observed), &self.restarts, self.context.gates);
        self.context.probes.follow(&self.pod, &observed, &starting, &self.told);
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

        // An end is no news while there is more to do.
        let phase = self.status(&observed).phase.unwrap_or_default();
        let ends = status::is_final(&phase);
        let hushed = self.hushed(&observed, now);
        if hushed.is_none() && (!ends || self.steps.is_empty()) {
            self.tell(&observed);
        }
        // One that is being replaced has ended, and is no end of its pod.
        let regular = &self.pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
        let replacing = regular.iter().any(|c| self.steps.is_container_busy(&c.name));
        if ends && self.steps.is_empty() || plan.sandbox == SandboxStep::Stop && !replacing {
            self.begin_end(grace(&self.pod), Why::Completed);
            return None;
        }
        let over_at = match deadline(&self.pod, &self.told, now) {
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
        let wakes = [plan.wake_at(), over_at, hushed].into_iter().chain(retries).flatten().min();
        self.begin(&observed, plan, now);
        Some(Wake(wakes))
    }

    /// Until when nothing is told of a container that the node has ended to begin it anew: its end
    /// and its next run are told together, if that comes soon. Clients that change a pod count on
    /// its status to stay for a moment, as it does where a node looks once a second.
    fn hushed(&self, observed: &ObservedPod, now: Timestamp) -> Option<Timestamp> {
        let ends = self.steps.replaced().filter_map(|id| {
            let run = observed.containers.iter().find(|run| run.id == id)?;
            let is_newest = observed.newest(&run.name).is_some_and(|newest| newest.id == id);
            run.finished_at().filter(|_| is_newest)
        });
        ends.filter_map(|at| at.checked_add(HUSH).ok()).filter(|until| *until > now).max()
    }

    /// End the pod for a reason of the node's own.
    pub(super) fn decide(&mut self, end: Termination) {
        let allowed = end.grace.unwrap_or_else(|| grace(&self.pod));
        self.verdict.get_or_insert(end.verdict);
        self.begin_end(allowed, Why::Decided);
    }

    /// Take from a plan what is under way, and what failed lately and is not to be tried again yet.
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

    /// Containers in their restart delay say so.
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
            // What failed before the container could run shows nowhere else.
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

    /// Begin what of a plan can begin now. The rest is planned again when something is done.
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
            self.steps.begin(Subject::Volumes, |recall| step_context.mount(recall));
        }
        self.resize(observed, &sandbox.id, &plan, now);
        let Plan { kill, start, .. } = plan;
        let (mut kills, mut starts): (Vec<Kill>, Vec<Start>) = (kill, start);
        // One that is to be replaced is killed and started in one step: once it has ended, its end
        // would be judged as if it were its own.
        // Nor does one begin that its pod has no room for yet.
        let may_start = mounts.is_some() && !self.steps.is_busy(&Subject::Image) && self.has_room();
        if !may_start {
            self.place.give_back(); // it waits for something else than the runtime
        }
        let replaced = |name: &str, starts: &[Start]| starts.iter().any(|start| start.name == name);
        for kill in &kills {
            // Whatever it is busy with, such as its postStart hook, is not wanted any more.
            self.steps.recall_container(&kill.name, &kill.id);
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
            let beginning = start.zip(mounts.clone()).map(|(start, mounts)| {
                self.count_restart(&start, now);
                let ran_here = observed
                    .newest(&start.name)
                    .is_some_and(|run| run.sandbox_id == sandbox.id && run.state != State::Created);
                Beginning {
                    image: self.images.remove(&start.name),
                    start,
                    sandbox: sandbox.clone(),
                    mounts,
                    turn: (!ran_here).then(|| self.turn.clone()),
                }
            });
            let stops = kill.as_ref().map(|(run, _)| run.id.clone());
            let replaces = beginning.is_some();
            let (subject, step_context) = (Subject::Container(name.clone()), self.step_context());
            self.steps.begin(subject, |recall| step_context.container(kill, beginning, recall));
            if let Some(id) = stops {
                self.steps.note_stop(&name, &id, replaces);
            }
        }
    }

    /// A run that follows another counts as its restart, whether it comes to be or not.
    fn count_restart(&mut self, start: &Start, now: Timestamp) {
        if let (Some(ended), Some((_, container))) =
            (start.last_end, spec::container(&self.pod, &start.name))
        {
            self.restarts.next(&plan::backoff_key(&container), ended, now);
        }
    }

    /// The sandbox is not there, or cannot be used: whatever runs in it ends, and then the next is
    /// made.
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
            self.steps.recall_all();
            self.forgive_ends_with(observed, &lost.id);
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
            self.steps.begin(Subject::Image, |recall| step_context.fetch(first, attempt, recall));
        }
        let (step_context, old) = (self.step_context(), self.to_stop(observed));
        self.steps
            .begin(Subject::Pod, |recall| step_context.make_sandbox(old, attempt, volumes, recall));
    }

    /// Containers that ended when their sandbox was lost have not failed by themselves: they do not
    /// wait before they start in the next.
    fn forgive_ends_with(&mut self, observed: &ObservedPod, sandbox_id: &str) {
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

    /// Everything of the pod starts afresh in its sandbox.
    fn reset(&mut self, observed: &ObservedPod, resets: Vec<Reset>, may_retry: bool) {
        if self.steps.is_busy(&Subject::Pod) || !may_retry {
            return;
        }
        self.steps.recall_all();
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
        self.steps.begin(Subject::Pod, |recall| step_context.reset(resets, recall));
    }

    /// Stop every container that may run and is not being stopped, sidecars last. Tells whether
    /// all have ended.
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

    /// The sandboxes that have something to give back yet.
    pub(super) fn to_stop(&self, observed: &ObservedPod) -> Vec<String> {
        // One that died by itself still has its address, until it is stopped.
        let sandboxes = observed.sandboxes.iter();
        let left = sandboxes.filter(|sandbox| sandbox.ready || !self.stopped.contains(&sandbox.id));
        left.map(|sandbox| sandbox.id.clone()).collect()
    }
}

/// How long the end of a container waits to be told with its next run.
const HUSH: SignedDuration = SignedDuration::from_millis(500);
const CRASH_LOOP: &str = "CrashLoopBackOff";
/// A sandbox that is stopped takes its containers with it within this time.
const LOSS: SignedDuration = SignedDuration::from_secs(5);

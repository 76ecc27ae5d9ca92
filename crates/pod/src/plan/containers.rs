//! The action for each container in a sandbox that is ready.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

use super::{Kill, Plan, Planner, Resize, SandboxStep, Start, Waiting, backoff_key};
use crate::hash::container_hash;
use crate::observed::{self, Sandbox, State};
use crate::probes::ProbeKind;
use crate::spec::{self, ContainerKind};

/// The action for a container.
pub(super) enum Step {
    /// It runs as it should.
    Keep,
    /// It runs, and its resources are to be changed.
    Resize(Resize),
    /// It has terminated for good.
    Done,
    /// It is to be started, now or after its backoff.
    Start,
    /// It is or may be running, and not as it should: it is killed; `restart` says whether it
    /// starts again.
    Kill { message: String, grace: Option<Duration>, restart: bool },
}

/// The state of the init phase.
#[derive(PartialEq, Eq)]
pub(super) enum InitPhase {
    Pending,
    Done,
    /// It has failed for good.
    Failed,
}

impl Planner<'_> {
    pub(super) fn containers(&self, sandbox: &Sandbox) -> Plan {
        let mut plan = Plan::default();
        self.ephemeral_containers(&mut plan);
        let phase = self.init_containers(sandbox, &mut plan);
        if phase == InitPhase::Pending {
            return plan;
        }
        let mut over = true;
        if phase == InitPhase::Done {
            for container in &self.spec.containers {
                let step = self.step(sandbox, ContainerKind::Regular, container);
                over &= matches!(step, Step::Done | Step::Kill { restart: false, .. });
                self.apply(step, ContainerKind::Regular, container, &mut plan);
            }
        }
        if over {
            // Sidecars and ephemeral containers do not keep a pod alive whose containers are done.
            return Plan { sandbox: SandboxStep::Stop, ..Plan::default() };
        }
        plan
    }

    /// An ephemeral container is started once, in any phase of the pod.
    fn ephemeral_containers(&self, plan: &mut Plan) {
        let last_status = self.pod.status.as_ref();
        let last_status =
            last_status.and_then(|status| status.ephemeral_container_statuses.as_deref());
        for ephemeral in spec::ephemeral_containers(self.spec) {
            let ran = match self.observed.newest(&ephemeral.name) {
                Some(run) => run.state != State::Created,
                // The runtime may have removed it.
                None => last_status
                    .unwrap_or_default()
                    .iter()
                    .any(|status| status.name == ephemeral.name && status.container_id.is_some()),
            };
            if !ran {
                let container = spec::ephemeral_as_container(ephemeral);
                self.apply(Step::Start, ContainerKind::Ephemeral, &container, plan);
            }
        }
    }

    /// The newest container of that name, if it belongs to the ready sandbox. A container in an
    /// earlier sandbox does not count as running or done, except regular containers that exited.
    pub(super) fn current(&self, sandbox: &Sandbox, name: &str) -> Option<&observed::Container> {
        self.observed.newest(name).filter(|container| container.sandbox_id == sandbox.id)
    }

    pub(super) fn restarts(&self, kind: ContainerKind, container: &Container, code: i32) -> bool {
        spec::restarts(self.spec, kind, container, code, self.inputs.gates)
    }

    /// The action for a container that may run now.
    pub(super) fn step(
        &self,
        sandbox: &Sandbox,
        kind: ContainerKind,
        container: &Container,
    ) -> Step {
        let Some(run) = self.observed.newest(&container.name) else { return Step::Start };
        let here = run.sandbox_id == sandbox.id;
        match &run.state {
            State::Running { .. } if here => self.running(kind, container, run),
            // It may be running, and there must never be two of it.
            State::Unknown | State::Running { .. } => Step::Kill {
                message: format!(
                    "{} is in \"unknown\" state, try killing it before restart",
                    subject(kind)
                ),
                grace: None,
                restart: true,
            },
            State::Exited { exit_code, .. } if here || kind == ContainerKind::Regular => {
                match self.restarts(kind, container, *exit_code) {
                    true => Step::Start,
                    false => Step::Done,
                }
            }
            State::Exited { .. } | State::Created => Step::Start,
        }
    }

    fn running(
        &self,
        kind: ContainerKind,
        container: &Container,
        run: &observed::Container,
    ) -> Step {
        if kind == ContainerKind::Init {
            return self.resize(kind, container, run); // it terminates by itself
        }
        let changed = run.hash.is_some_and(|hash| hash != container_hash(container));
        let failing = self.inputs.probes.failing(container, &run.id);
        let (what, grace, restart) = match (changed, failing) {
            // A changed spec is applied whatever the restart policy.
            (true, _) => ("definition changed".to_owned(), None, true),
            (false, Some(probe)) => (
                format!("failed {} probe", probe.as_str().to_lowercase()),
                self.probe_grace(container, probe),
                spec::restarts_after_kill(self.spec, kind, container, self.inputs.gates),
            ),
            (false, None) => return self.resize(kind, container, run),
        };
        let intent = match kind == ContainerKind::Regular && restart {
            true => ", will be restarted",
            false => "",
        };
        let message = format!("{} {} {what}{intent}", subject(kind), container.name);
        Step::Kill { message, grace, restart }
    }

    /// The termination grace period of a probe that failed, if it has its own.
    fn probe_grace(&self, container: &Container, probe: ProbeKind) -> Option<Duration> {
        self.spec.termination_grace_period_seconds?;
        let probe = match probe {
            ProbeKind::Startup => container.startup_probe.as_ref(),
            ProbeKind::Liveness => container.liveness_probe.as_ref(),
            ProbeKind::Readiness => None,
        };
        let seconds = probe?.termination_grace_period_seconds?;
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    pub(super) fn apply(
        &self,
        step: Step,
        kind: ContainerKind,
        container: &Container,
        plan: &mut Plan,
    ) {
        let newest = self.observed.newest(&container.name);
        match step {
            Step::Keep | Step::Done => return,
            Step::Resize(resize) => return plan.resize.push(resize),
            Step::Start => {}
            Step::Kill { message, grace, restart } => {
                plan.kill.extend(newest.map(|run| Kill {
                    id: run.id.clone(),
                    name: container.name.clone(),
                    message,
                    grace,
                }));
                if !restart {
                    return;
                }
            }
        }
        let mut runs = self.observed.containers.iter().filter(|run| run.name == container.name);
        let last_end = runs.find_map(observed::Container::finished_at);
        let key = backoff_key(container);
        let until = last_end
            .and_then(|ended| self.inputs.backoff.waits_until(&key, ended, self.inputs.now));
        match until {
            Some(until) => plan.waiting.push(Waiting {
                name: container.name.clone(),
                until,
                delay: self.inputs.backoff.delay(&key),
            }),
            None => plan.start.push(Start {
                kind,
                name: container.name.clone(),
                restart_count: newest.map(|run| match run.state {
                    // It was never started.
                    State::Created => run.restart_count,
                    _ => run.restart_count.saturating_add(1),
                }),
                last_end,
            }),
        }
    }
}

/// The beginning of messages.
fn subject(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "Init container",
        ContainerKind::Regular | ContainerKind::Ephemeral => "Container",
    }
}

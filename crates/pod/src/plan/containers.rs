//! What is to be done with each container, in the sandbox that stands.

use std::time::Duration;

use k8s_openapi::api::core::v1::Container;

use super::{Kill, Plan, Planner, Resize, SandboxStep, Start, Waiting, backoff_key};
use crate::hash::container_hash;
use crate::observed::{self, Sandbox, State};
use crate::probes::ProbeKind;
use crate::spec::{self, ContainerKind};

/// What is to become of a container.
pub(super) enum Step {
    /// It runs as it should.
    Keep,
    /// It runs, and is to go on with other resources.
    Resize(Resize),
    /// It has ended for good.
    Leave,
    /// It is to be started, now or after a wait.
    Start,
    /// It runs or may run, and not as it should: it is stopped, and `restart` says if for good.
    Kill { message: String, grace: Option<Duration>, restart: bool },
}

/// How far the init phase has come.
#[derive(PartialEq, Eq)]
pub(super) enum InitPhase {
    Pending,
    Done,
    /// It never will be done.
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
                over &= matches!(step, Step::Leave | Step::Kill { restart: false, .. });
                self.apply(step, ContainerKind::Regular, container, &mut plan);
            }
        }
        if over {
            // Sidecars and guests do not keep a pod alive whose own work is done.
            return Plan { sandbox: SandboxStep::Stop, ..Plan::default() };
        }
        plan
    }

    /// A guest starts once, whatever the pod is at, and never again.
    fn ephemeral_containers(&self, plan: &mut Plan) {
        let told = self.pod.status.as_ref();
        let told = told.and_then(|status| status.ephemeral_container_statuses.as_deref());
        for ephemeral in spec::ephemeral_containers(self.spec) {
            let ran = match self.observed.newest(&ephemeral.name) {
                Some(run) => run.state != State::Created,
                // The runtime may have forgotten it.
                None => told
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

    /// The newest container of that name, if it belongs to the sandbox that stands. What ran in an
    /// earlier sandbox does not count as running or done, but for regular containers that ended.
    pub(super) fn current(&self, sandbox: &Sandbox, name: &str) -> Option<&observed::Container> {
        self.observed.newest(name).filter(|container| container.sandbox_id == sandbox.id)
    }

    pub(super) fn restarts(&self, kind: ContainerKind, container: &Container, code: i32) -> bool {
        spec::restarts(self.spec, kind, container, code, self.inputs.gates)
    }

    /// What is to become of a container whose turn it is.
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
            // It may run all the same, and there must never be two of it.
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
                    false => Step::Leave,
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
            return self.resize(kind, container, run); // it is to end by itself
        }
        let changed = run.hash.is_some_and(|hash| hash != container_hash(container));
        let failing = self.inputs.probes.failing(container, &run.id);
        let (what, grace, restart) = match (changed, failing) {
            // A changed spec is carried out whatever the policy.
            (true, _) => ("definition changed".to_owned(), None, true),
            (false, Some(probe)) => (
                format!("failed {} probe", probe.as_str().to_lowercase()),
                self.probe_grace(container, probe),
                spec::survives_a_kill(self.spec, kind, container, self.inputs.gates),
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

    /// How long a container may take to stop that failed the probe, if that is the probe's to say.
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
            Step::Keep | Step::Leave => return,
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
                    // Its run is still to come.
                    State::Created => run.restart_count,
                    _ => run.restart_count.saturating_add(1),
                }),
                last_end,
            }),
        }
    }
}

/// How messages begin.
fn subject(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "Init container",
        ContainerKind::Regular | ContainerKind::Ephemeral => "Container",
    }
}

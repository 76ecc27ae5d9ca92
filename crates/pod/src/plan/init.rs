//! The init phase: init containers and sidecars start one after the other, and sidecars are kept
//! running afterwards.

use k8s_openapi::api::core::v1::Container;

use super::containers::{InitPhase, Step};
use super::{Plan, Planner};
use crate::observed::{self, Sandbox, State};
use crate::spec::{self, ContainerKind};

impl Planner<'_> {
    /// Adds the steps of the init phase, and those for sidecars after it.
    ///
    /// The progress is derived from the last container that has a record: the runtime may have
    /// removed the ones before it.
    pub(super) fn init_containers(&self, sandbox: &Sandbox, plan: &mut Plan) -> InitPhase {
        let containers = spec::init_containers(self.spec);
        let seen = |container: &Container| self.current(sandbox, &container.name).is_some();
        let initialized = self.spec.containers.iter().any(seen);
        let reached = match initialized {
            true => containers.len(),
            false => containers.iter().rposition(seen).unwrap_or(0),
        };
        for container in containers[..reached].iter().filter(|c| spec::is_sidecar(c)) {
            let step = self.step(sandbox, ContainerKind::Sidecar, container);
            self.apply(step, ContainerKind::Sidecar, container, plan);
        }
        let Some(container) = containers.get(reached) else { return InitPhase::Done };
        let kind = spec::kind_of_init(container);
        let passed = match self.current(sandbox, &container.name) {
            Some(run) => self.is_passed(kind, container, run),
            None => false,
        };
        let step = match passed && kind == ContainerKind::Init {
            true => Step::Done,
            false => self.init_step(sandbox, kind, container),
        };
        if !passed && matches!(step, Step::Done) {
            return InitPhase::Failed;
        }
        self.apply(step, kind, container, plan);
        match containers.get(reached + 1) {
            _ if !passed => InitPhase::Pending,
            None => InitPhase::Done,
            Some(next) => {
                let kind = spec::kind_of_init(next);
                // It starts, but a run of it in an earlier sandbox may have to be killed.
                self.apply(self.step(sandbox, kind, next), kind, next, plan);
                InitPhase::Pending
            }
        }
    }

    /// Whether the container after this one may start.
    fn is_passed(
        &self,
        kind: ContainerKind,
        container: &Container,
        run: &observed::Container,
    ) -> bool {
        match (kind, &run.state) {
            (ContainerKind::Init, State::Exited { .. }) => run.has_succeeded(),
            (ContainerKind::Sidecar, State::Running { .. }) => {
                !self.inputs.starting.contains(&container.name)
                    && self.inputs.probes.is_started(container, &run.id)
            }
            _ => false,
        }
    }

    fn init_step(&self, sandbox: &Sandbox, kind: ContainerKind, container: &Container) -> Step {
        let step = self.step(sandbox, kind, container);
        match step {
            // Its exit code is not known: only the restart policy decides.
            Step::Kill { .. }
                if kind == ContainerKind::Init
                    && !spec::restarts_after_kill(
                        self.spec,
                        kind,
                        container,
                        self.inputs.gates,
                    ) =>
            {
                Step::Done
            }
            step => step,
        }
    }
}

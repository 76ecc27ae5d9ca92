//! The action for a pod without a usable sandbox.

use k8s_openapi::api::core::v1::Container;

use super::{Plan, Planner, SandboxStep};
use crate::observed::State;
use crate::spec::{self, ContainerKind};

/// Assumed exit code of a container that was killed with its sandbox.
const LOST: i32 = 137;

impl Planner<'_> {
    pub(super) fn new_sandbox(&self) -> Plan {
        let attempt =
            self.observed.sandboxes.first().map_or(0, |newest| newest.attempt.saturating_add(1));
        let ran_before = !self.observed.containers.is_empty();
        // A sandbox without containers to run would be created and stopped again and again.
        let sandbox = match ran_before && !self.anything_to_run() {
            true => SandboxStep::Stop,
            false => SandboxStep::Create { attempt },
        };
        Plan { sandbox, ..Plan::default() }
    }

    /// Whether a regular container has yet to run, or is to run again by its policy.
    fn anything_to_run(&self) -> bool {
        let begun = spec::containers(self.spec).any(|(_, container)| {
            self.observed.newest(&container.name).is_some_and(|run| run.state != State::Created)
        });
        !self.init_failed_for_good()
            && self.spec.containers.iter().any(|container| self.may_run(container, begun))
    }

    fn may_run(&self, container: &Container, begun: bool) -> bool {
        let exit_code = match self.observed.newest(&container.name).map(|run| &run.state) {
            // A pod that has begun and may not restart does not start again with its init
            // containers.
            None | Some(State::Created) => {
                let kind = ContainerKind::Regular;
                return !begun
                    || spec::restarts_after_kill(self.spec, kind, container, self.inputs.gates);
            }
            Some(State::Exited { exit_code, .. }) => *exit_code,
            // Its exit code was lost with its sandbox.
            Some(State::Running { .. } | State::Unknown) => LOST,
        };
        self.restarts(ContainerKind::Regular, container, exit_code)
    }

    fn init_failed_for_good(&self) -> bool {
        spec::containers(self.spec).filter(|(kind, _)| *kind == ContainerKind::Init).any(
            |(kind, container)| {
                let code = self.observed.newest(&container.name).and_then(|run| run.exit_code());
                code.is_some_and(|code| code != 0 && !self.restarts(kind, container, code))
            },
        )
    }
}

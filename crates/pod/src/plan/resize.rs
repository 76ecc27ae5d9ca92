//! Containers whose resources change while they run: in place or, if their resize policy requires
//! it, by a restart.

use k8s_openapi::api::core::v1::Container;

use super::Planner;
use super::containers::Step;
use crate::observed;
use crate::resize::{Amounts, effective, restarts};
use crate::spec::ContainerKind;

/// A container whose resources are to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The runtime's id.
    pub id: String,
    /// Its name in the spec.
    pub name: String,
    /// Resources in force.
    pub from: Amounts,
    /// Resources to put in force.
    pub to: Amounts,
}

impl Planner<'_> {
    /// The action for a container that runs as it should but for its resources.
    pub(super) fn resize(
        &self,
        kind: ContainerKind,
        container: &Container,
        run: &observed::Container,
    ) -> Step {
        let gates = self.inputs.gates;
        let Some(now) = self.inputs.actuated.containers.get(&container.name) else {
            return Step::Keep;
        };
        let (from, to) = (Amounts::of(now), Amounts::of(&effective(self.spec, container, gates)));
        if from == to || kind == ContainerKind::Init && !gates.resize_init_containers {
            return Step::Keep;
        }
        let cpu = (from.cpu_request, from.cpu_limit) != (to.cpu_request, to.cpu_limit);
        let memory =
            (from.memory_request, from.memory_limit) != (to.memory_request, to.memory_limit);
        let restart = cpu && restarts(container, "cpu") || memory && restarts(container, "memory");
        // A restarted init container would do its work twice.
        if restart && kind != ContainerKind::Init {
            let message = format!("Container {} resize requires restart", container.name);
            return Step::Kill { message, grace: None, restart: true };
        }
        Step::Resize(Resize { id: run.id.clone(), name: container.name.clone(), from, to })
    }
}

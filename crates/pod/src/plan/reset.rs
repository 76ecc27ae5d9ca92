//! The rule action `RestartAllContainers`: all containers of the pod are removed, and the pod
//! starts again in its sandbox, init containers first.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{Planner, Reset};
use crate::observed::{self, ObservedPod};
use crate::spec::{self, ContainerKind, Gates};

/// Whether the exit of a container requires that all containers of the pod restart.
pub fn restarts_all(pod_spec: &PodSpec, observed: &ObservedPod, gates: Gates) -> bool {
    gates.restart_all_containers
        && spec::containers(pod_spec).any(|(_, container)| {
            observed.newest(&container.name).is_some_and(|run| requests_restart_all(container, run))
        })
}

/// Whether the exit of that run requires it.
fn requests_restart_all(container: &Container, run: &observed::Container) -> bool {
    run.exit_code().is_some_and(|code| spec::restarts_all(container, code))
}

impl Planner<'_> {
    /// The container that requires it is removed last, so that the reset is resumed until it is
    /// done.
    pub(super) fn reset(&self) -> Vec<Reset> {
        if !restarts_all(self.spec, self.observed, self.inputs.gates) {
            return Vec::new();
        }
        let runs = spec::containers(self.spec).flat_map(|(kind, container)| {
            let runs = self.observed.containers.iter().filter(|run| run.name == container.name);
            runs.map(move |run| {
                let is_init = kind != ContainerKind::Regular;
                ((requests_restart_all(container, run), is_init), run)
            })
        });
        let mut runs: Vec<_> = runs.collect();
        runs.sort_by_key(|(rank, _)| *rank);
        let reset = |run: &observed::Container| Reset {
            id: run.id.clone(),
            name: run.name.clone(),
            kill: run.exit_code().is_none(),
        };
        runs.into_iter().map(|(_, run)| reset(run)).collect()
    }
}

//! The pod's phase from its containers' statuses.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec,
};

use super::Context;
use super::containers::RESTARTING_ALL;
use crate::observed::ObservedPod;
use crate::spec::{self, ContainerKind};

/// Progress of a container.
enum Progress<'a> {
    Unknown,
    Waiting,
    Running {
        started: bool,
    },
    /// It has terminated.
    Ended(&'a ContainerStateTerminated),
    /// It has terminated, and will be restarted.
    Again(&'a ContainerStateTerminated),
}

fn progress<'a>(status: Option<&&'a ContainerStatus>) -> Progress<'a> {
    let Some(status) = status else { return Progress::Unknown };
    let Some(state) = &status.state else { return Progress::Unknown };
    let end = |state: &'a ContainerState| state.terminated.as_ref();
    if state.running.is_some() {
        return Progress::Running { started: status.started.unwrap_or(false) };
    }
    if let Some(end) = end(state) {
        return Progress::Ended(end);
    }
    match (state.waiting.is_some(), status.last_state.as_ref().and_then(end)) {
        (true, Some(end)) => Progress::Again(end),
        (true, None) => Progress::Waiting,
        (false, _) => Progress::Unknown,
    }
}

/// The phase. A pod is terminal if nothing of it will run again.
pub(super) fn phase(
    pod: &Pod,
    pod_spec: &PodSpec,
    observed: &ObservedPod,
    statuses: &BTreeMap<&str, &ContainerStatus>,
    context: &Context<'_>,
) -> &'static str {
    let of = |container: &Container| progress(statuses.get(container.name.as_str()));
    let (mut pending_init, mut pending_sidecars, mut failed_init) = (0, 0, 0);
    let (mut unknown, mut running, mut waiting) = (0, 0, 0);
    let (mut ended, mut ended_for_good, mut succeeded) = (0, 0, 0);

    for (kind, container) in spec::containers(pod_spec) {
        let for_good = |end: &ContainerStateTerminated| {
            end.reason.as_deref() != Some(RESTARTING_ALL)
                && !spec::restarts(pod_spec, kind, container, end.exit_code, context.gates)
        };
        match (kind, of(container)) {
            (ContainerKind::Init, Progress::Ended(end) | Progress::Again(end)) => {
                failed_init += usize::from(end.exit_code != 0 && for_good(end));
            }
            (ContainerKind::Init, _) => pending_init += 1_usize,
            (ContainerKind::Sidecar, Progress::Running { started }) => {
                running += 1_usize;
                pending_sidecars += usize::from(!started);
            }
            // A terminated sidecar does not count for the phase.
            (ContainerKind::Sidecar, Progress::Ended(_) | Progress::Again(_)) => {}
            (ContainerKind::Sidecar, Progress::Waiting) => {
                pending_sidecars += 1;
                waiting += 1_usize;
            }
            (ContainerKind::Sidecar, Progress::Unknown) => {
                pending_sidecars += 1;
                unknown += 1_usize;
            }
            (ContainerKind::Regular, Progress::Running { .. }) => running += 1_usize,
            (ContainerKind::Regular, Progress::Ended(end)) => {
                ended += 1;
                succeeded += usize::from(end.exit_code == 0);
                ended_for_good += usize::from(for_good(end));
            }
            // A success that will be repeated does not count.
            (ContainerKind::Regular, Progress::Again(end)) => {
                ended += 1;
                ended_for_good += usize::from(for_good(end));
            }
            (ContainerKind::Regular, Progress::Waiting) => waiting += 1_usize,
            (ContainerKind::Regular, Progress::Unknown) => unknown += 1_usize,
            // Ephemeral containers do not count for the phase.
            (ContainerKind::Ephemeral, _) => {}
        }
    }

    // Sidecars that restart do not take an initialized pod back to Pending.
    let pending_sidecars = pending_sidecars > 0 && !is_initialized(pod_spec, observed);
    let verdict = if succeeded == ended { "Succeeded" } else { "Failed" };
    if failed_init > 0 {
        "Failed"
    } else if pending_init > 0 || pending_sidecars || waiting > 0 {
        "Pending"
    } else if running > 0 && unknown == 0 {
        "Running"
    } else if ended > 0 && unknown == 0 {
        match context.terminal && !spec::is_static(pod) {
            true => verdict,
            // At least one of them will be restarted.
            false if ended != ended_for_good => "Running",
            false => verdict,
        }
    } else {
        "Pending"
    }
}

/// Whether a regular container exists in the ready sandbox.
fn is_initialized(pod_spec: &PodSpec, observed: &ObservedPod) -> bool {
    let sandbox = observed.sandboxes.first().filter(|sandbox| sandbox.ready);
    sandbox.is_some_and(|sandbox| {
        let mut here = observed.containers.iter().filter(|run| run.sandbox_id == sandbox.id);
        here.any(|run| pod_spec.containers.iter().any(|container| container.name == run.name))
    })
}

//! The pod's phase from its containers' statuses.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};

use crate::spec::{self, ContainerKind};

/// How far a container has come.
enum Progress {
    Unknown,
    Waiting,
    Running {
        started: bool,
    },
    /// Ended, or waiting to run again.
    Ended {
        exit_code: i32,
    },
}

fn progress(status: Option<&&ContainerStatus>) -> Progress {
    let Some(status) = status else { return Progress::Unknown };
    let terminated = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref().and_then(|state| state.terminated.as_ref()).map(|ended| ended.exit_code)
    };
    let Some(state) = &status.state else { return Progress::Unknown };
    if state.running.is_some() {
        return Progress::Running { started: status.started.unwrap_or(false) };
    }
    if let Some(exit_code) = terminated(&status.state) {
        return Progress::Ended { exit_code };
    }
    match (state.waiting.is_some(), terminated(&status.last_state)) {
        (true, Some(exit_code)) => Progress::Ended { exit_code },
        (true, None) => Progress::Waiting,
        (false, _) => Progress::Unknown,
    }
}

/// The phase. `terminal` says that nothing of the pod will run again.
pub(super) fn phase(
    pod: &Pod,
    pod_spec: &PodSpec,
    statuses: &BTreeMap<&str, &ContainerStatus>,
    terminal: bool,
) -> &'static str {
    let of = |container: &Container| progress(statuses.get(container.name.as_str()));
    let (mut pending_init, mut pending_sidecars, mut failed_init) = (0, 0, 0);
    let (mut unknown, mut running, mut waiting) = (0, 0, 0);
    let (mut ended, mut ended_for_good, mut succeeded, mut initialized) = (0, 0, 0, false);

    for (kind, container) in spec::containers(pod_spec) {
        match (kind, of(container)) {
            (ContainerKind::Init, Progress::Ended { exit_code: 0 }) => {}
            (ContainerKind::Init, Progress::Ended { exit_code }) => {
                if !spec::restarts(pod_spec, kind, container, exit_code) {
                    failed_init += 1;
                }
            }
            (ContainerKind::Init, _) => pending_init += 1,
            (ContainerKind::Sidecar, Progress::Running { started }) => {
                running += 1;
                pending_sidecars += usize::from(!started);
            }
            // A sidecar that has ended has no say in the phase.
            (ContainerKind::Sidecar, Progress::Ended { .. }) => {}
            (ContainerKind::Sidecar, Progress::Waiting) => {
                pending_sidecars += 1;
                waiting += 1;
            }
            (ContainerKind::Sidecar, Progress::Unknown) => {
                pending_sidecars += 1;
                unknown += 1;
            }
            (ContainerKind::Regular, Progress::Running { .. }) => {
                running += 1;
                initialized = true;
            }
            (ContainerKind::Regular, Progress::Ended { exit_code }) => {
                initialized = true;
                ended += 1;
                succeeded += usize::from(exit_code == 0);
                ended_for_good +=
                    usize::from(!spec::restarts(pod_spec, kind, container, exit_code));
            }
            (ContainerKind::Regular, Progress::Waiting) => waiting += 1,
            (ContainerKind::Regular, Progress::Unknown) => unknown += 1,
            // A guest has no say in the phase.
            (ContainerKind::Ephemeral, _) => {}
        }
    }

    let verdict = if succeeded == ended { "Succeeded" } else { "Failed" };
    if failed_init > 0 {
        "Failed"
    } else if pending_init > 0 || (pending_sidecars > 0 && !initialized) || waiting > 0 {
        "Pending"
    } else if running > 0 && unknown == 0 {
        "Running"
    } else if ended > 0 && unknown == 0 {
        match terminal && !spec::is_static(pod) {
            true => verdict,
            // At least one of them is about to run again.
            false if ended != ended_for_good => "Running",
            false => verdict,
        }
    } else {
        "Pending"
    }
}

//! Helpers for container states.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};

const LOST_EXIT_CODE: i32 = 137;

pub(super) fn ended(state: &Option<ContainerState>) -> Option<&ContainerStateTerminated> {
    state.as_ref()?.terminated.as_ref()
}

pub(super) fn failed(end: &ContainerStateTerminated) -> bool {
    end.exit_code != 0
}

/// Whether a status shows a running container.
pub(super) fn ran(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn lost(reason: &str, message: &str) -> ContainerState {
    terminated(ContainerStateTerminated {
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        exit_code: LOST_EXIT_CODE,
        ..ContainerStateTerminated::default()
    })
}

pub(super) fn terminated(ended: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

pub(super) fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..ContainerState::default()
    }
}

//! The statuses of a pod's containers.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod, PodSpec, PodStatus, VolumeMountStatus,
};

use super::{Context, time};
use crate::observed::{self, ObservedPod, State};
use crate::spec::{self, ContainerKind};

const LOST_REASON: &str = "ContainerStatusUnknown";
const LOST_EXIT_CODE: i32 = 137;

/// Statuses of init containers and sidecars, in the spec's order.
pub(super) fn init_statuses(
    pod: &Pod,
    pod_spec: &PodSpec,
    observed: &ObservedPod,
    previous: &PodStatus,
    context: &Context<'_>,
) -> Vec<ContainerStatus> {
    let told = previous.init_container_statuses.as_deref().unwrap_or_default();
    let teller = Teller { pod, pod_spec, observed, told, context };
    spec::containers(pod_spec)
        .filter(|(kind, _)| *kind != ContainerKind::Regular)
        .map(|(kind, container)| teller.tell(kind, container))
        .collect()
}

/// Statuses of the regular containers, sorted by name as the API shows them.
pub(super) fn regular_statuses(
    pod: &Pod,
    pod_spec: &PodSpec,
    observed: &ObservedPod,
    previous: &PodStatus,
    context: &Context<'_>,
) -> Vec<ContainerStatus> {
    let told = previous.container_statuses.as_deref().unwrap_or_default();
    let teller = Teller { pod, pod_spec, observed, told, context };
    let mut statuses: Vec<_> = pod_spec
        .containers
        .iter()
        .map(|container| teller.tell(ContainerKind::Regular, container))
        .collect();
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// At a pod's end nothing waits any more: what has been tried and shows no end of its own is lost.
pub(super) fn close(init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    let end = |status: &ContainerStatus| {
        let of = |state: &Option<ContainerState>| state.as_ref()?.terminated.clone();
        of(&status.state).or_else(|| of(&status.last_state))
    };
    let waits = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.waiting.is_some()) && end(status).is_none()
    };
    let initialized = init.is_empty()
        || !regular.iter().all(waits)
        || init.last().and_then(end).is_some_and(|ended| ended.exit_code == 0);
    let tried = init.iter().rposition(|status| !waits(status)).map_or(1, |last| last + 1);
    let regular = regular.iter_mut().filter(|_| initialized);
    for status in init.iter_mut().take(tried).chain(regular) {
        if status.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
            status.state = Some(terminated(ContainerStateTerminated {
                reason: Some(LOST_REASON.to_owned()),
                message: Some("the pod ended and the container was not to be found".to_owned()),
                exit_code: LOST_EXIT_CODE,
                ..ContainerStateTerminated::default()
            }));
            (status.ready, status.started) = (false, Some(false));
        }
    }
}

struct Teller<'a> {
    pod: &'a Pod,
    pod_spec: &'a PodSpec,
    observed: &'a ObservedPod,
    told: &'a [ContainerStatus],
    context: &'a Context<'a>,
}

impl Teller<'_> {
    fn tell(&self, kind: ContainerKind, container: &Container) -> ContainerStatus {
        let told = self.told.iter().find(|status| status.name == container.name);
        let mut runs = self.observed.containers.iter().filter(|run| run.name == container.name);
        let mut status = match runs.next() {
            Some(run) => {
                let mut status = self.seen(run);
                status.last_state = match runs.next() {
                    Some(earlier) => Some(self.state(earlier)),
                    // The runtime has forgotten the run before; what was told of it stands.
                    None => told.and_then(|told| match told.container_id == status.container_id {
                        true => told.last_state.clone(),
                        false => told
                            .state
                            .clone()
                            .filter(|state| state.terminated.is_some())
                            .or_else(|| told.last_state.clone()),
                    }),
                };
                status
            }
            None => self.unseen(kind, container, told),
        };
        self.explain_wait(kind, container, &mut status);

        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        let done = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        status.started = Some(running);
        status.ready = match kind {
            ContainerKind::Ephemeral => false,
            ContainerKind::Init => done.is_some_and(|ended| ended.exit_code == 0),
            ContainerKind::Sidecar | ContainerKind::Regular => running,
        };
        status.resources.clone_from(&container.resources);
        status.allocated_resources =
            container.resources.as_ref().and_then(|resources| resources.requests.clone());
        status.volume_mounts = volume_mounts(container);
        status
    }

    /// What the newest run shows.
    fn seen(&self, run: &observed::Container) -> ContainerStatus {
        ContainerStatus {
            name: run.name.clone(),
            image: run.image.clone(),
            image_id: run.image_ref.clone(),
            container_id: Some(self.container_id(run)),
            restart_count: i32::try_from(run.restart_count).unwrap_or(i32::MAX),
            state: Some(self.state(run)),
            ..ContainerStatus::default()
        }
    }

    /// No run is known: it has yet to start, or the runtime lost it.
    fn unseen(
        &self,
        kind: ContainerKind,
        container: &Container,
        told: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        if let Some(told) = told
            && told.state.as_ref().is_some_and(|state| state.terminated.is_some())
        {
            return told.clone();
        }
        let mut status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            restart_count: told.map_or(0, |told| told.restart_count),
            last_state: told.and_then(|told| told.last_state.clone()),
            state: Some(self.default_wait()),
            ..ContainerStatus::default()
        };
        let was_running =
            told.is_some_and(|told| told.state.as_ref().is_some_and(|s| s.running.is_some()));
        let init_is_history = kind == ContainerKind::Init
            && self.pod_spec.containers.iter().any(|c| self.observed.newest(&c.name).is_some());
        if init_is_history {
            status.state = Some(terminated(ContainerStateTerminated {
                reason: Some("Completed".to_owned()),
                message: Some(
                    "the runtime has no record of this init container; later containers started, so it completed"
                        .to_owned(),
                ),
                ..ContainerStateTerminated::default()
            }));
        } else if was_running
            && status.last_state.as_ref().is_none_or(|last| last.terminated.is_none())
        {
            status.last_state = Some(terminated(ContainerStateTerminated {
                reason: Some(LOST_REASON.to_owned()),
                message: Some("the container was running and the runtime has lost it".to_owned()),
                exit_code: LOST_EXIT_CODE,
                ..ContainerStateTerminated::default()
            }));
            if self.pod.metadata.deletion_timestamp.is_none() {
                status.restart_count = status.restart_count.saturating_add(1);
            }
        }
        status
    }

    /// A container that should run and does not is Waiting, with the reason if one is known.
    fn explain_wait(
        &self,
        kind: ContainerKind,
        container: &Container,
        status: &mut ContainerStatus,
    ) {
        let Some((reason, message)) = self.context.waiting.get(&container.name) else { return };
        let newest = self.observed.newest(&container.name);
        let will_run = match newest.map(|run| &run.state) {
            None | Some(State::Created | State::Unknown) => true,
            Some(State::Running { .. }) => false,
            Some(State::Exited { exit_code, .. }) => {
                spec::restarts(self.pod_spec, kind, container, *exit_code)
            }
        };
        if !will_run || self.context.terminal || self.pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(reason, Some(message.clone()).filter(|text| !text.is_empty())));
    }

    fn default_wait(&self) -> ContainerState {
        match spec::init_containers(self.pod_spec).is_empty() {
            true => waiting("ContainerCreating", None),
            false => waiting("PodInitializing", None),
        }
    }

    fn state(&self, run: &observed::Container) -> ContainerState {
        match &run.state {
            State::Running { started_at } => ContainerState {
                running: Some(ContainerStateRunning { started_at: Some(time(*started_at)) }),
                ..ContainerState::default()
            },
            State::Exited { started_at, finished_at, exit_code, reason, message } => {
                terminated(ContainerStateTerminated {
                    container_id: Some(self.container_id(run)),
                    exit_code: *exit_code,
                    finished_at: Some(time(*finished_at)),
                    message: Some(message.clone()).filter(|text| !text.is_empty()),
                    reason: Some(reason.clone()).filter(|text| !text.is_empty()),
                    started_at: started_at.map(time),
                    ..ContainerStateTerminated::default()
                })
            }
            State::Created | State::Unknown => self.default_wait(),
        }
    }

    fn container_id(&self, run: &observed::Container) -> String {
        format!("{}://{}", self.context.runtime, run.id)
    }
}

fn terminated(ended: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..ContainerState::default()
    }
}

fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    Some(
        mounts
            .iter()
            .map(|mount| VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: mount.read_only,
                recursive_read_only: mount
                    .read_only
                    .unwrap_or(false)
                    .then(|| "Disabled".to_owned()),
                ..VolumeMountStatus::default()
            })
            .collect(),
    )
}

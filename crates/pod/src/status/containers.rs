//! The statuses of a pod's containers.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
    ContainerUser, ImageVolumeStatus, LinuxContainerUser, Pod, PodSpec, PodStatus, VolumeMount,
    VolumeMountStatus, VolumeStatus,
};
use k8s_openapi::jiff::Timestamp;

use super::resources::in_force;
use super::states::{ended, failed, lost, ran, terminated, waiting};
use super::{Context, time};
use crate::observed::{self, ObservedPod, State};
use crate::probes::{ProbeKind, ProbeResult};
use crate::spec::{self, ContainerKind};

/// Reason of a container that was removed because all containers of its pod restart.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const LOST_REASON: &str = "ContainerStatusUnknown";
/// The limit of the termination messages of all containers of a pod together (bytes).
const MAX_TERMINATION_MESSAGES: usize = 12 * 1024;

/// Computes the statuses of a pod's containers.
pub(super) struct StatusBuilder<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_spec: &'a PodSpec,
    pub(super) observed: &'a ObservedPod,
    pub(super) context: &'a Context<'a>,
    /// Whether the pod's containers are being removed for a restart of all.
    pub(super) restarting: bool,
}

impl StatusBuilder<'_> {
    /// Statuses of init containers and sidecars, in the spec's order.
    pub(super) fn init(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let last_statuses = previous.init_container_statuses.as_deref();
        let init = spec::init_containers(self.pod_spec).iter();
        init.map(|container| self.status(spec::kind_of_init(container), container, last_statuses))
            .collect()
    }

    /// Statuses of the regular containers, sorted by name as the API shows them.
    pub(super) fn regular(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let last_statuses = previous.container_statuses.as_deref();
        let regular = self.pod_spec.containers.iter();
        sorted(
            regular.map(|container| self.status(ContainerKind::Regular, container, last_statuses)),
        )
    }

    /// Statuses of the ephemeral containers, sorted by name.
    pub(super) fn ephemeral(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let last_statuses = previous.ephemeral_container_statuses.as_deref();
        let ephemeral = spec::ephemeral_containers(self.pod_spec).iter();
        sorted(ephemeral.map(|container| {
            self.status(
                ContainerKind::Ephemeral,
                &spec::ephemeral_as_container(container),
                last_statuses,
            )
        }))
    }

    fn status(
        &self,
        kind: ContainerKind,
        container: &Container,
        last_statuses: Option<&[ContainerStatus]>,
    ) -> ContainerStatus {
        let last_status =
            last_statuses.unwrap_or_default().iter().find(|status| status.name == container.name);
        let newest = self.observed.newest(&container.name);
        let mut status = match newest {
            Some(run) => self.recorded(container, run, last_status),
            None => self.unrecorded(kind, container, last_status),
        };
        self.explain_wait(kind, container, &mut status);
        let last_status =
            last_status.filter(|last_status| last_status.container_id == status.container_id);
        match newest.filter(|run| run.is_running()) {
            Some(run) => {
                let (started, ready) = self.started_and_ready(container, run, last_status);
                status.started = (kind != ContainerKind::Ephemeral).then_some(started);
                status.ready = match kind {
                    ContainerKind::Init | ContainerKind::Ephemeral => false,
                    ContainerKind::Sidecar | ContainerKind::Regular => started && ready,
                };
            }
            None => {
                let end = status.state.as_ref().and_then(|state| state.terminated.as_ref());
                status.ready = kind == ContainerKind::Init && end.is_some_and(|e| e.exit_code == 0);
                status.started = (kind != ContainerKind::Ephemeral).then_some(false);
            }
        }
        for state in [&mut status.state, &mut status.last_state] {
            self.truncate_message(state);
        }
        status
    }

    /// Limits the termination message: each container has the same share.
    fn truncate_message(&self, state: &mut Option<ContainerState>) {
        let end = state.as_mut().and_then(|state| state.terminated.as_mut());
        let Some(message) = end.and_then(|end| end.message.as_mut()) else { return };
        let containers = self.pod_spec.containers.len()
            + spec::init_containers(self.pod_spec).len()
            + spec::ephemeral_containers(self.pod_spec).len();
        let share = MAX_TERMINATION_MESSAGES / containers.max(1);
        message.truncate(message.floor_char_boundary(share));
    }

    /// Whether a running container is started, and whether it is ready. The last status of the same
    /// run counts until there are probe results: a restarted daemon has none yet.
    fn started_and_ready(
        &self,
        container: &Container,
        run: &observed::Container,
        last_status: Option<&ContainerStatus>,
    ) -> (bool, bool) {
        let holds =
            |kind, has_probe: bool, before: bool| match self.context.probes.get(&run.id, kind) {
                _ if !has_probe => true,
                ProbeResult::Success => true,
                ProbeResult::Failure => false,
                ProbeResult::Unknown => before,
            };
        let was_started = last_status.is_some_and(|last_status| last_status.started == Some(true));
        let was_ready = last_status.is_some_and(|last_status| last_status.ready);
        let started = !self.context.starting.contains(&container.name)
            && holds(ProbeKind::Startup, container.startup_probe.is_some(), was_started);
        let ready = holds(ProbeKind::Readiness, container.readiness_probe.is_some(), was_ready);
        (started, ready)
    }

    /// The status of a container with a record in the runtime.
    fn recorded(
        &self,
        container: &Container,
        run: &observed::Container,
        last_status: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let id = self.container_id(run);
        let allocated = container.resources.as_ref().and_then(|own| own.requests.clone());
        let same_run = last_status.filter(|last_status| {
            last_status.container_id.as_ref() == Some(&id) && ran(last_status) && run.is_running()
        });
        let resources = in_force(container, run, self.context.actuated, same_run);
        let mut status = ContainerStatus {
            name: run.name.clone(),
            image: run.image.clone(),
            image_id: run.image_ref.clone(),
            container_id: Some(id.clone()),
            restart_count: i32::try_from(run.restart_count).unwrap_or(i32::MAX),
            state: Some(self.state(run)),
            last_state: Some(
                last_status
                    .and_then(|last_status| carried_termination(last_status, &id))
                    .unwrap_or_default(),
            ),
            allocated_resources: allocated,
            resources: Some(resources),
            volume_mounts: self.volume_mounts(container, Some(run)),
            user: run.user.as_ref().map(user),
            stop_signal: run
                .stop_signal
                .clone()
                .filter(|_| self.context.gates.container_stop_signals),
            ..ContainerStatus::default()
        };
        let mut runs = self.observed.containers.iter().filter(|run| run.name == container.name);
        runs.next();
        if let Some(earlier) = runs.find(|run| run.exit_code().is_some()) {
            status.last_state = Some(self.state(earlier));
        }
        if let Some(last_status) = last_status {
            // A lost run was counted in the last status, and the count never goes down.
            let follows = run.is_running()
                && ended(&last_status.state).is_some()
                && last_status.restart_count >= status.restart_count;
            let counted = last_status.restart_count.saturating_add(i32::from(follows));
            status.restart_count = status.restart_count.max(counted);
            if run.state == State::Unknown && ran(last_status) {
                let reason = if self.restarting { RESTARTING_ALL } else { LOST_REASON };
                status.state = Some(lost(reason, NOT_LOCATED));
                status.restart_count = last_status.restart_count.saturating_add(1);
            } else if run.state == State::Unknown && last_status.container_id == status.container_id
            {
                status.state.clone_from(&last_status.state);
            }
        }
        status
    }

    /// The status of a container without a record: it has yet to start, or the runtime lost it.
    fn unrecorded(
        &self,
        kind: ContainerKind,
        container: &Container,
        last_status: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let fresh = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            restart_count: last_status.map_or(0, |last_status| last_status.restart_count),
            // Always set: the apiserver stores `{}` for it, and the status would seem to differ.
            last_state: Some(
                last_status
                    .and_then(|last_status| last_status.last_state.clone())
                    .unwrap_or_default(),
            ),
            state: Some(self.default_wait()),
            volume_mounts: self.volume_mounts(container, None),
            ..ContainerStatus::default()
        };
        let Some(last_status) = last_status else { return self.or_completed(kind, fresh) };
        let waited = last_status.state.as_ref().is_none_or(|state| state.waiting.is_some());
        if self.restarting && kind != ContainerKind::Ephemeral {
            const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
            // The restart is counted once.
            return match waited {
                true => {
                    ContainerStatus { state: last_status.state.clone().or(fresh.state), ..fresh }
                }
                false => ContainerStatus {
                    state: Some(waiting(RESTARTING_ALL, Some(MESSAGE.to_owned()))),
                    last_state: Some(lost(RESTARTING_ALL, MESSAGE)),
                    restart_count: last_status.restart_count.saturating_add(1),
                    ..fresh
                },
            };
        }
        if ended(&last_status.state).is_some() {
            return last_status.clone();
        }
        if waited || ended(&fresh.last_state).is_some() {
            return self.or_completed(kind, fresh);
        }
        // It was running and is lost: reported as terminated, for it must not look as if it never
        // ran.
        let again = i32::from(self.pod.metadata.deletion_timestamp.is_none());
        let status = ContainerStatus {
            last_state: Some(lost(
                LOST_REASON,
                "The container could not be located when the pod was deleted.  The container used to be Running",
            )),
            restart_count: last_status.restart_count.saturating_add(again),
            ..fresh
        };
        self.or_completed(kind, status)
    }

    /// An init container without a record has completed once regular containers exist.
    fn or_completed(&self, kind: ContainerKind, status: ContainerStatus) -> ContainerStatus {
        let created = |container: &Container| {
            let newest = self.observed.newest(&container.name);
            newest.is_some_and(|run| run.state != State::Unknown)
        };
        if kind != ContainerKind::Init || !self.pod_spec.containers.iter().any(created) {
            return status;
        }
        let done = ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(
                "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"
                    .to_owned(),
            ),
            ..ContainerStateTerminated::default()
        };
        ContainerStatus { state: Some(terminated(done)), ..status }
    }

    /// A container that should run and does not is waiting, with the reason if one is known.
    fn explain_wait(
        &self,
        kind: ContainerKind,
        container: &Container,
        status: &mut ContainerStatus,
    ) {
        let Some((reason, message)) = self.context.waiting.get(&container.name) else { return };
        let newest = self.observed.newest(&container.name);
        let will_run = match newest.map(|run| &run.state) {
            // Reported as completed, though its record is gone.
            None => kind != ContainerKind::Init || ended(&status.state).is_none_or(failed),
            Some(State::Created | State::Unknown) => true,
            Some(State::Running { .. }) => false,
            Some(State::Exited { .. }) if kind == ContainerKind::Ephemeral => false,
            Some(State::Exited { exit_code: 0, .. }) if kind == ContainerKind::Init => false,
            Some(State::Exited { exit_code, .. }) => {
                spec::restarts(self.pod_spec, kind, container, *exit_code, self.context.gates)
            }
        };
        if !will_run || self.context.terminal || self.pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        if ended(&status.state).is_some() {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(reason, Some(message.clone()).filter(|text| !text.is_empty())));
    }

    fn default_wait(&self) -> ContainerState {
        waiting(super::first_wait(self.pod_spec), None)
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
                    // the zero time for one that never started, as users know it
                    started_at: Some(time(started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
                    ..ContainerStateTerminated::default()
                })
            }
            State::Created | State::Unknown => self.default_wait(),
        }
    }

    fn container_id(&self, run: &observed::Container) -> String {
        format!("{}://{}", self.context.runtime, run.id)
    }

    /// `run`: the container as it is, if it is there.
    fn volume_mounts(
        &self,
        container: &Container,
        run: Option<&observed::Container>,
    ) -> Option<Vec<VolumeMountStatus>> {
        let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
        let status = |mount: &VolumeMount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|read_only| *read_only),
            recursive_read_only: mount
                .read_only
                .unwrap_or(false)
                .then(|| self.recursive_read_only(mount)),
            volume_status: run.and_then(|run| self.volume_status(mount, run)),
        };
        Some(mounts.iter().map(status).collect())
    }

    /// The status of an image that is a volume: its digest.
    fn volume_status(
        &self,
        mount: &VolumeMount,
        run: &observed::Container,
    ) -> Option<VolumeStatus> {
        let id = run.mounted_images.get(&mount.mount_path)?;
        let image_ref = id.clone();
        let is_reported =
            self.context.gates.image_volume_digests && image_ref.len() <= MAX_IMAGE_REF;
        is_reported.then_some(VolumeStatus { image: Some(ImageVolumeStatus { image_ref }) })
    }

    /// The `recursiveReadOnly` of a read-only mount.
    fn recursive_read_only(&self, mount: &VolumeMount) -> String {
        let requested =
            matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
                && matches!(mount.mount_propagation.as_deref(), None | Some("None"));
        let enabled = requested && self.context.recursive_read_only;
        if enabled { "Enabled" } else { "Disabled" }.to_owned()
    }
}

/// The most bytes of a digest that the API takes.
const MAX_IMAGE_REF: usize = 256;

const NOT_LOCATED: &str = "The container could not be located when the pod was terminated";

/// At a pod's end no container waits: those that were tried and have no exit code are lost.
pub(super) fn mark_lost(init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
    let waits = |status: &ContainerStatus| {
        status.state.as_ref().is_some_and(|state| state.waiting.is_some())
            && ended(&status.last_state).is_none()
    };
    let done = |status: &ContainerStatus| {
        let end = ended(&status.state).or_else(|| ended(&status.last_state));
        end.is_some_and(|end| end.exit_code == 0)
    };
    let initialized =
        init.is_empty() || !regular.iter().all(waits) || init.last().is_some_and(done);
    let tried = init.iter().rposition(|status| !waits(status)).map_or(1, |last| last + 1);
    let regular = regular.iter_mut().filter(|_| initialized);
    for status in init.iter_mut().take(tried).chain(regular) {
        if ended(&status.state).is_none() {
            status.state = Some(lost(LOST_REASON, NOT_LOCATED));
            (status.ready, status.started) = (false, Some(false));
        }
    }
}

/// The termination state in the last status for the run before the one with that id, which the
/// runtime may have removed.
fn carried_termination(last_status: &ContainerStatus, id: &str) -> Option<ContainerState> {
    let another = last_status.container_id.as_deref() != Some(id);
    let state = last_status.state.as_ref().filter(|state| another && state.terminated.is_some());
    state.or(last_status.last_state.as_ref().filter(|last| last.terminated.is_some())).cloned()
}

fn user(user: &observed::User) -> ContainerUser {
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        }),
    }
}

fn sorted(statuses: impl Iterator<Item = ContainerStatus>) -> Vec<ContainerStatus> {
    let mut statuses: Vec<_> = statuses.collect();
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

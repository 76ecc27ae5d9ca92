//! The statuses of a pod's containers.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus,
    ContainerUser, LinuxContainerUser, Pod, PodSpec, PodStatus, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::jiff::Timestamp;

use super::resources::in_force;
use super::states::{ended, failed, lost, ran, terminated, waiting};
use super::{Context, time};
use crate::observed::{self, ObservedPod, State};
use crate::probes::{Finding, ProbeKind};
use crate::spec::{self, ContainerKind};

/// Reason of a container that was removed because all of its pod starts afresh.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const LOST_REASON: &str = "ContainerStatusUnknown";
/// What the last words of all containers of a pod may take together (bytes).
const LAST_WORDS: usize = 12 * 1024;

/// Tells of one container after the other.
pub(super) struct Teller<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_spec: &'a PodSpec,
    pub(super) observed: &'a ObservedPod,
    pub(super) context: &'a Context<'a>,
    /// Whether the pod's containers are being removed to start afresh.
    pub(super) restarting: bool,
}

impl Teller<'_> {
    /// Statuses of init containers and sidecars, in the spec's order.
    pub(super) fn init(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let told = previous.init_container_statuses.as_deref();
        let init = spec::init_containers(self.pod_spec).iter();
        init.map(|container| self.tell(spec::kind_of_init(container), container, told)).collect()
    }

    /// Statuses of the regular containers, sorted by name as the API shows them.
    pub(super) fn regular(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let told = previous.container_statuses.as_deref();
        let regular = self.pod_spec.containers.iter();
        sorted(regular.map(|container| self.tell(ContainerKind::Regular, container, told)))
    }

    /// Statuses of the ephemeral containers, sorted by name.
    pub(super) fn ephemeral(&self, previous: &PodStatus) -> Vec<ContainerStatus> {
        let told = previous.ephemeral_container_statuses.as_deref();
        let guests = spec::ephemeral_containers(self.pod_spec).iter();
        sorted(guests.map(|guest| {
            self.tell(ContainerKind::Ephemeral, &spec::ephemeral_as_container(guest), told)
        }))
    }

    fn tell(
        &self,
        kind: ContainerKind,
        container: &Container,
        told: Option<&[ContainerStatus]>,
    ) -> ContainerStatus {
        let told = told.unwrap_or_default().iter().find(|status| status.name == container.name);
        let newest = self.observed.newest(&container.name);
        let mut status = match newest {
            Some(run) => self.seen(container, run, told),
            None => self.unseen(kind, container, told),
        };
        self.explain_wait(kind, container, &mut status);
        let told = told.filter(|told| told.container_id == status.container_id);
        match newest.filter(|run| run.is_running()) {
            Some(run) => {
                let (started, ready) = self.probed(container, run, told);
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
            self.shorten(state);
        }
        status
    }

    /// Each container has the same share of what last words may take.
    fn shorten(&self, state: &mut Option<ContainerState>) {
        let end = state.as_mut().and_then(|state| state.terminated.as_mut());
        let Some(message) = end.and_then(|end| end.message.as_mut()) else { return };
        let containers = self.pod_spec.containers.len()
            + spec::init_containers(self.pod_spec).len()
            + spec::ephemeral_containers(self.pod_spec).len();
        let share = LAST_WORDS / containers.max(1);
        message.truncate(message.floor_char_boundary(share));
    }

    /// Whether a container that runs is started, and whether it is ready. What was told of the same
    /// run stands until its probes say otherwise: a daemon that begins knows no better.
    fn probed(
        &self,
        container: &Container,
        run: &observed::Container,
        told: Option<&ContainerStatus>,
    ) -> (bool, bool) {
        let holds = |kind, asked: bool, before: bool| match self.context.probes.get(&run.id, kind) {
            _ if !asked => true,
            Finding::Success => true,
            Finding::Failure => false,
            Finding::Unknown => before,
        };
        let was_started = told.is_some_and(|told| told.started == Some(true));
        let was_ready = told.is_some_and(|told| told.ready);
        let started = !self.context.starting.contains(&container.name)
            && holds(ProbeKind::Startup, container.startup_probe.is_some(), was_started);
        let ready = holds(ProbeKind::Readiness, container.readiness_probe.is_some(), was_ready);
        (started, ready)
    }

    /// What the newest run shows.
    fn seen(
        &self,
        container: &Container,
        run: &observed::Container,
        told: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let id = self.container_id(run);
        let given = container.resources.as_ref().and_then(|given| given.requests.clone());
        let same_run = told.filter(|told| {
            told.container_id.as_ref() == Some(&id) && ran(told) && run.is_running()
        });
        let resources = in_force(container, run, self.context.actuated, same_run);
        let mut status = ContainerStatus {
            name: run.name.clone(),
            image: run.image.clone(),
            image_id: run.image_ref.clone(),
            container_id: Some(id.clone()),
            restart_count: i32::try_from(run.restart_count).unwrap_or(i32::MAX),
            state: Some(self.state(run)),
            last_state: Some(told.and_then(|told| carried_end(told, &id)).unwrap_or_default()),
            allocated_resources: given,
            resources: Some(resources),
            volume_mounts: self.volume_mounts(container),
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
        if let Some(told) = told {
            // A run that the runtime could not tell of was counted, and that is not taken back.
            let follows = run.is_running()
                && ended(&told.state).is_some()
                && told.restart_count >= status.restart_count;
            let counted = told.restart_count.saturating_add(i32::from(follows));
            status.restart_count = status.restart_count.max(counted);
            if run.state == State::Unknown && ran(told) {
                let reason = if self.restarting { RESTARTING_ALL } else { LOST_REASON };
                status.state = Some(lost(reason, NOT_LOCATED));
                status.restart_count = told.restart_count.saturating_add(1);
            } else if run.state == State::Unknown && told.container_id == status.container_id {
                status.state.clone_from(&told.state);
            }
        }
        status
    }

    /// No run is known: it has yet to start, or the runtime lost it.
    fn unseen(
        &self,
        kind: ContainerKind,
        container: &Container,
        told: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let fresh = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            restart_count: told.map_or(0, |told| told.restart_count),
            // Never left out: the apiserver shows it in any case, and would seem to differ.
            last_state: Some(told.and_then(|told| told.last_state.clone()).unwrap_or_default()),
            state: Some(self.default_wait()),
            volume_mounts: self.volume_mounts(container),
            ..ContainerStatus::default()
        };
        let Some(told) = told else { return self.or_history(kind, fresh) };
        let waited = told.state.as_ref().is_none_or(|state| state.waiting.is_some());
        if self.restarting && kind != ContainerKind::Ephemeral {
            const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
            // Told once, it is counted.
            return match waited {
                true => ContainerStatus { state: told.state.clone().or(fresh.state), ..fresh },
                false => ContainerStatus {
                    state: Some(waiting(RESTARTING_ALL, Some(MESSAGE.to_owned()))),
                    last_state: Some(lost(RESTARTING_ALL, MESSAGE)),
                    restart_count: told.restart_count.saturating_add(1),
                    ..fresh
                },
            };
        }
        if ended(&told.state).is_some() {
            return told.clone();
        }
        if waited || ended(&fresh.last_state).is_some() {
            return self.or_history(kind, fresh);
        }
        // It ran, and is no more: shown as ended, for it must not look as if it never ran.
        let again = i32::from(self.pod.metadata.deletion_timestamp.is_none());
        let status = ContainerStatus {
            last_state: Some(lost(
                LOST_REASON,
                "The container could not be located when the pod was deleted.  The container used to be Running",
            )),
            restart_count: told.restart_count.saturating_add(again),
            ..fresh
        };
        self.or_history(kind, status)
    }

    /// An init container without a record is history once regular containers are there.
    fn or_history(&self, kind: ContainerKind, status: ContainerStatus) -> ContainerStatus {
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
            // Told as done, though its record is gone.
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
                    // one that never started did so at the beginning of time, as users know it
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

    fn volume_mounts(&self, container: &Container) -> Option<Vec<VolumeMountStatus>> {
        let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
        let status = |mount: &VolumeMount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|read_only| *read_only),
            recursive_read_only: mount.read_only.unwrap_or(false).then(|| self.depth(mount)),
            ..VolumeMountStatus::default()
        };
        Some(mounts.iter().map(status).collect())
    }

    /// Whether a read-only mount is so to its depths.
    fn depth(&self, mount: &VolumeMount) -> String {
        let asked = matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
            && matches!(mount.mount_propagation.as_deref(), None | Some("None"));
        let enabled = asked && self.context.recursive_read_only;
        if enabled { "Enabled" } else { "Disabled" }.to_owned()
    }
}

const NOT_LOCATED: &str = "The container could not be located when the pod was terminated";

/// At a pod's end nothing waits any more: what has been tried and shows no end of its own is lost.
pub(super) fn close(init: &mut [ContainerStatus], regular: &mut [ContainerStatus]) {
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

/// What a status that was told says of the run before the one with that id, which the runtime may
/// have forgotten.
fn carried_end(told: &ContainerStatus, id: &str) -> Option<ContainerState> {
    let another = told.container_id.as_deref() != Some(id);
    let state = told.state.as_ref().filter(|state| another && state.terminated.is_some());
    state.or(told.last_state.as_ref().filter(|last| last.terminated.is_some())).cloned()
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

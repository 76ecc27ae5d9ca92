//! How containers stand: the engine's words → CRI's. Pure.

use bollard::models::{ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum};
use longshore_cri::v1::{Container, ContainerState, ContainerStatus, ImageSpec};

use super::config;
use crate::image_names::ImageNames;
use crate::{labels, mounts, names, resources, timestamp};

/// A line of a list; `None` for what has no name of ours.
pub(crate) fn item(container: ContainerSummary) -> Option<Container> {
    let all = container.labels.unwrap_or_default();
    let (labels, annotations) = labels::split(&all);
    let image_id = container.image_id.unwrap_or_default();
    Some(Container {
        metadata: Some(names::parse_container(container.names.as_ref()?.first()?)?),
        id: container.id?,
        pod_sandbox_id: all.get(labels::SANDBOX).cloned().unwrap_or_default(),
        image: Some(ImageSpec {
            image: container.image.unwrap_or_default(),
            ..ImageSpec::default()
        }),
        image_ref: image_id.clone(),
        state: listed_state(container.state).into(),
        created_at: timestamp::from_seconds(container.created.unwrap_or(0)),
        labels,
        annotations,
        image_id,
    })
}

fn listed_state(state: Option<ContainerSummaryStateEnum>) -> ContainerState {
    use ContainerSummaryStateEnum as Docker;
    match state {
        Some(Docker::CREATED) => ContainerState::ContainerCreated,
        Some(Docker::RUNNING | Docker::PAUSED | Docker::RESTARTING) => {
            ContainerState::ContainerRunning
        }
        Some(Docker::EXITED | Docker::DEAD | Docker::REMOVING | Docker::STOPPING) => {
            ContainerState::ContainerExited
        }
        _ => ContainerState::ContainerUnknown,
    }
}

/// A container as it is; `None` for what has no name of ours. `image` is what its image is called.
pub(crate) fn status(
    container: &ContainerInspectResponse,
    image: ImageNames,
) -> Option<ContainerStatus> {
    let config = container.config.clone().unwrap_or_default();
    let all = config.labels.unwrap_or_default();
    let (labels, annotations) = labels::split(&all);
    let run = Run::of(container);
    let image_id = container.image.clone().unwrap_or_default();
    Some(ContainerStatus {
        id: container.id.clone()?,
        metadata: Some(names::parse_container(container.name.as_deref()?)?),
        state: run.state.into(),
        created_at: timestamp::from_text(container.created.as_deref()),
        started_at: run.started_at,
        finished_at: run.finished_at,
        exit_code: run.exit_code,
        image: Some(ImageSpec {
            // A tag, where it was asked for by its identifier.
            image: image.tag.or(config.image).unwrap_or_default(),
            ..ImageSpec::default()
        }),
        image_ref: image.digest.unwrap_or_else(|| image_id.clone()),
        image_id,
        reason: run.reason.to_owned(),
        message: run.message,
        labels,
        annotations,
        mounts: container.mounts.iter().flatten().map(mounts::current).collect(),
        log_path: all.get(labels::LOG_PATH).cloned().unwrap_or_default(),
        resources: container.host_config.as_ref().map(resources::current),
        user: None,
        stop_signal: config.stop_signal.as_deref().map(config::signal).unwrap_or_default().into(),
    })
}

/// The one run that a container has.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    state: ContainerState,
    started_at: i64,
    finished_at: i64,
    exit_code: i32,
    reason: &'static str,
    message: String,
}

impl Run {
    fn of(container: &ContainerInspectResponse) -> Self {
        let state = container.state.clone().unwrap_or_default();
        let started_at = timestamp::from_text(state.started_at.as_deref());
        let finished_at = timestamp::from_text(state.finished_at.as_deref());
        let exit_code = state.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(-1);
        let message = state.error.unwrap_or_default();
        if state.running == Some(true) {
            let state = ContainerState::ContainerRunning;
            return Self { state, started_at, finished_at: 0, exit_code: 0, reason: "", message };
        }
        if finished_at != 0 {
            let reason = match (state.oom_killed, exit_code) {
                (Some(true), _) => "OOMKilled",
                (_, 0) => "Completed",
                _ => "Error",
            };
            let state = ContainerState::ContainerExited;
            return Self { state, started_at, finished_at, exit_code, reason, message };
        }
        if exit_code != 0 {
            // It could not be started: the engine has no times for that.
            let created_at = timestamp::from_text(container.created.as_deref());
            return Self {
                state: ContainerState::ContainerExited,
                started_at: created_at,
                finished_at: created_at,
                exit_code,
                reason: "ContainerCannotRun",
                message,
            };
        }
        let state = ContainerState::ContainerCreated;
        Self { state, started_at: 0, finished_at: 0, exit_code: 0, reason: "", message }
    }
}

/// How a container stands.
pub(crate) fn state(container: &ContainerInspectResponse) -> ContainerState {
    Run::of(container).state
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerConfig, ContainerState as DockerState, ImageInspect};

    use super::*;

    const NEVER: &str = "0001-01-01T00:00:00Z";
    const AT_1: &str = "1970-01-01T00:00:01Z";
    const AT_2: &str = "1970-01-01T00:00:02Z";
    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn runs_are_distinguished() {
        use ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};
        // running, out of memory, exit code, started, finished
        let cases = [
            ((true, false, 0, AT_1, NEVER), (ContainerRunning, SECOND, 0, 0, "")),
            ((true, false, 5, AT_2, AT_1), (ContainerRunning, 2 * SECOND, 0, 0, "")),
            ((false, false, 0, AT_1, AT_2), (ContainerExited, SECOND, 2 * SECOND, 0, "Completed")),
            ((false, false, 3, AT_1, AT_2), (ContainerExited, SECOND, 2 * SECOND, 3, "Error")),
            (
                (false, true, 137, AT_1, AT_2),
                (ContainerExited, SECOND, 2 * SECOND, 137, "OOMKilled"),
            ),
            (
                (false, false, 127, NEVER, NEVER),
                (ContainerExited, SECOND, SECOND, 127, "ContainerCannotRun"),
            ),
            ((false, false, 0, NEVER, NEVER), (ContainerCreated, 0, 0, 0, "")),
            (
                (false, false, i64::MAX, AT_1, AT_2),
                (ContainerExited, SECOND, 2 * SECOND, -1, "Error"),
            ),
        ];
        for ((running, oom, code, started, finished), expected) in cases {
            let container = ContainerInspectResponse {
                created: Some(AT_1.into()),
                state: Some(DockerState {
                    running: Some(running),
                    oom_killed: Some(oom),
                    exit_code: Some(code),
                    started_at: Some(started.into()),
                    finished_at: Some(finished.into()),
                    ..DockerState::default()
                }),
                ..ContainerInspectResponse::default()
            };
            let run = Run::of(&container);
            let found = (run.state, run.started_at, run.finished_at, run.exit_code, run.reason);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_is_not_ours_is_passed_over() {
        let other = ContainerSummary {
            id: Some("1".into()),
            names: Some(vec!["/somebody".into()]),
            ..ContainerSummary::default()
        };
        assert_eq!(item(other), None);
        assert_eq!(item(ContainerSummary::default()), None);
        assert_eq!(status(&ContainerInspectResponse::default(), ImageNames::default()), None);
    }

    #[test]
    fn images_are_called_by_their_tag() {
        let called = |asked: &str, image: ImageInspect| {
            let container = ContainerInspectResponse {
                id: Some("1".into()),
                name: Some("/k8s_c_pod_ns_uid_0".into()),
                image: Some("sha256:1".into()),
                config: Some(ContainerConfig { image: Some(asked.into()), ..Default::default() }),
                ..ContainerInspectResponse::default()
            };
            let status = status(&container, image.into()).unwrap();
            (status.image.unwrap().image, status.image_ref)
        };
        let names = |all: &[&str]| Some(all.iter().map(|&name| name.to_owned()).collect());
        let image = ImageInspect {
            repo_tags: names(&["a:1", "a:2"]),
            repo_digests: names(&["a@sha256:2"]),
            ..ImageInspect::default()
        };
        let expected = |name: &str, exact: &str| (name.to_owned(), exact.to_owned());
        assert_eq!(called("sha256:1", image), expected("a:1", "a@sha256:2"));
        assert_eq!(called("sha256:1", ImageInspect::default()), expected("sha256:1", "sha256:1"));
        assert_eq!(called("b:2", ImageInspect::default()), expected("b:2", "sha256:1"));
    }
}

//! Conversion from CRI messages.

use std::collections::BTreeMap;

use longshore_cri::v1;
use longshore_pod::observed::{Container, Enforced, Sandbox, State, User};
use longshore_pod::{Timestamp, labels};

/// A sandbox from its status.
pub(super) fn sandbox(status: &v1::PodSandboxStatus) -> Sandbox {
    let mut ips = Vec::new();
    if let Some(network) = &status.network {
        ips.extend(
            std::iter::once(&network.ip)
                .chain(network.additional_ips.iter().map(|ip| &ip.ip))
                .cloned(),
        );
    }
    ips.retain(|ip: &String| !ip.is_empty());
    let options = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref())
        .and_then(|n| n.options.as_ref());
    Sandbox {
        id: status.id.clone(),
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        ready: status.state() == v1::PodSandboxState::SandboxReady,
        created_at: time(status.created_at).unwrap_or_default(),
        ips,
        handler: status.runtime_handler.clone(),
        host_network: options.is_some_and(|options| options.network() == v1::NamespaceMode::Node),
    }
}

/// A container from its status.
pub(super) fn container(
    status: v1::ContainerStatus,
    sandbox_id: String,
    message: String,
    mounted_images: BTreeMap<String, String>,
) -> Container {
    let state = match status.state() {
        v1::ContainerState::ContainerCreated => State::Created,
        v1::ContainerState::ContainerRunning => {
            State::Running { started_at: time(status.started_at).unwrap_or_default() }
        }
        v1::ContainerState::ContainerExited => State::Exited {
            started_at: time(status.started_at),
            finished_at: time(status.finished_at).unwrap_or_default(),
            exit_code: status.exit_code,
            reason: status.reason.clone(),
            message,
        },
        v1::ContainerState::ContainerUnknown => State::Unknown,
    };
    let stop_signal = match status.stop_signal() {
        v1::Signal::RuntimeDefault => None, // not reported
        signal => Some(signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-")),
    };
    let user = status.user.and_then(|user| user.linux).map(|linux| User {
        uid: linux.uid,
        gid: linux.gid,
        groups: linux.supplemental_groups,
    });
    let resources = status.resources.and_then(|resources| resources.linux).map(enforced);
    let metadata = status.metadata.unwrap_or_default();
    let annotation = |key: &str| status.annotations.get(key);
    let restart_count = annotation(labels::RESTART_COUNT)
        .and_then(|count| count.parse().ok())
        .unwrap_or(metadata.attempt);
    let hash = annotation(labels::HASH).and_then(|hash| u64::from_str_radix(hash, 16).ok());
    let image = status.image.unwrap_or_default();
    let image = [image.user_specified_image, image.image].into_iter().find(|name| !name.is_empty());
    let image_ref = match status.image_ref.is_empty() {
        true => status.image_id,
        false => status.image_ref,
    };
    Container {
        id: status.id,
        name: metadata.name,
        sandbox_id,
        restart_count,
        hash,
        created_at: time(status.created_at).unwrap_or_default(),
        image: image.unwrap_or_default(),
        image_ref,
        mounted_images,
        log_path: status.log_path,
        user,
        stop_signal,
        resources: resources.filter(|enforced| *enforced != Enforced::default()),
        state,
    }
}

/// CPU shares of one CPU on cgroup v1, the unit of the CRI.
const SHARES_OF_CPU: i64 = 1024;

/// The resources that a runtime reports as enforced; 0 is not reported.
fn enforced(linux: v1::LinuxContainerResources) -> Enforced {
    let known = |amount: i64| Some(amount).filter(|amount| *amount > 0);
    let shares = known(linux.cpu_shares).map(|shares| shares.saturating_mul(1000));
    let quota = known(linux.cpu_quota).map(|quota| quota.saturating_mul(1000));
    Enforced {
        cpu_request: shares.map(|shares| shares.saturating_add(SHARES_OF_CPU - 1) / SHARES_OF_CPU),
        cpu_limit: quota.and_then(|quota| quota.checked_div(linux.cpu_period)).and_then(known),
        memory_limit: known(linux.memory_limit_in_bytes),
    }
}

/// Nanoseconds since 1970; 0 is no time.
fn time(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds == 0 {
        return None;
    }
    Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()
}

#[cfg(test)]
mod tests {
    use longshore_generators::{NUMBERS, text};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Finding 1: what a runtime may answer.
        #[test]
        fn extremes_of_runtimes_are_converted(
            numbers in prop::collection::vec(prop::sample::select(NUMBERS.to_vec()), 8),
            texts in prop::collection::vec(text(), 3),
        ) {
            let linux = v1::LinuxContainerResources {
                cpu_period: numbers[0],
                cpu_quota: numbers[1],
                cpu_shares: numbers[2],
                memory_limit_in_bytes: numbers[3],
                ..v1::LinuxContainerResources::default()
            };
            let annotations = [labels::RESTART_COUNT, labels::HASH].map(str::to_owned);
            let status = v1::ContainerStatus {
                id: texts[0].clone(),
                state: numbers[4] as i32,
                created_at: numbers[5],
                started_at: numbers[6],
                finished_at: numbers[7],
                exit_code: numbers[4] as i32,
                annotations: annotations.into_iter().zip(texts.clone()).collect(),
                resources: Some(v1::ContainerResources { linux: Some(linux), ..Default::default() }),
                ..v1::ContainerStatus::default()
            };
            container(status, String::new(), texts[1].clone(), BTreeMap::new());
            sandbox(&v1::PodSandboxStatus {
                created_at: numbers[0],
                state: numbers[1] as i32,
                ..v1::PodSandboxStatus::default()
            });
        }
    }
}

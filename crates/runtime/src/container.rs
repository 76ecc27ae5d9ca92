//! The CRI config of a container.

use std::path::{Path, PathBuf};

use crate::arguments::expanded_arguments;
use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_cri::v1;
use longshore_pod::labels;

use super::env::Environment;
use super::security::ImageUser;
use super::{Error, Settings, resources, security};

/// What the config of a container depends on besides the pod.
pub(super) struct Inputs<'a> {
    pub settings: &'a Settings,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub restart_count: u32,
    pub image_ref: String,
    pub image_user: ImageUser,
    pub environment: Environment,
    pub mounts: Vec<v1::Mount>,
    pub devices: Vec<v1::Device>,
    /// Supplemental groups of the pod's volumes.
    pub groups: Vec<i64>,
    pub namespaces: v1::NamespaceOption,
}

/// The config of a container.
pub(super) fn config(inputs: Inputs<'_>) -> Result<v1::ContainerConfig, Error> {
    let Inputs { settings, pod, container, restart_count, .. } = inputs;
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let expanded = |what, arguments: &Option<Vec<String>>| {
        let arguments = arguments.as_deref().unwrap_or_default();
        expanded_arguments(what, arguments, |name| inputs.environment.get(name))
    };
    let command = expanded("command", &container.command)?;
    let args = expanded("args", &container.args)?;
    let mut security_context = security::context(
        settings,
        pod,
        pod_spec,
        container,
        &inputs.image_user,
        inputs.namespaces,
    )?;
    security_context.supplemental_groups.extend(inputs.groups);
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: restart_count,
        }),
        image: Some(v1::ImageSpec {
            image: inputs.image_ref,
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..v1::ImageSpec::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: inputs
            .environment
            .into_inner()
            .map(|(key, value)| v1::KeyValue { key, value })
            .collect(),
        mounts: inputs.mounts,
        devices: inputs.devices,
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, restart_count),
        log_path: format!("{}/{restart_count}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        stop_signal: stop_signal(settings, container).into(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::container(settings, pod, pod_spec, container)),
            security_context: Some(security_context),
        }),
        ..v1::ContainerConfig::default()
    })
}

/// The container's stop signal, if the feature is enabled.
fn stop_signal(settings: &Settings, container: &Container) -> v1::Signal {
    let named = container.lifecycle.as_ref().and_then(|own| own.stop_signal.as_deref());
    let known = named.filter(|_| settings.stop_signals).and_then(v1::Signal::from_str_name);
    known.unwrap_or_default()
}

/// The restart count if the runtime has no earlier run, as after a lost disk: one more than that of
/// the newest log, so that no log is overwritten.
pub(super) fn restart_count_from_logs(dir: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.split('.').next()?.parse::<u32>().ok()
        })
        .max()
        .map_or(0, |newest| newest.saturating_add(1))
}

/// The symlink by which older log collectors find a container's log.
pub(super) fn legacy_log_link(namespace: &str, pod: &str, container: &str, id: &str) -> PathBuf {
    const NAME_MAX: usize = 251; // 255 less ".log"
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    name.truncate(name.floor_char_boundary(NAME_MAX));
    Path::new("/var/log/containers").join(format!("{name}.log"))
}

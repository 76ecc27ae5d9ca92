//! The container that a pod asks for, in the runtime's words.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use longshore_cri::v1;
use longshore_pod::expand::expand;
use longshore_pod::spec;

use super::env::Environment;
use super::security::ImageUser;
use super::{Error, Settings, labels, resources, security};
use crate::volumes::Mounted;

const DEV_TERMINATION_LOG: &str = "/dev/termination-log";
const ETC_HOSTS: &str = "/etc/hosts";

/// What a container's config is made of besides the pod.
pub(super) struct Inputs<'a> {
    pub settings: &'a Settings,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub restart_count: u32,
    pub image_ref: String,
    pub image_user: ImageUser,
    pub environment: Environment,
    /// Host paths of the container's volume mounts, one for each, in order.
    pub volumes: Vec<Mounted>,
    pub hosts_file: PathBuf,
}

/// The config of a container.
pub(super) fn config(inputs: Inputs<'_>) -> Result<v1::ContainerConfig, Error> {
    let Inputs { settings, pod, container, restart_count, .. } = inputs;
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        let words = words.iter().flatten();
        words.map(|word| expand(word, |name| inputs.environment.get(name))).collect()
    };
    let mut mounts: Vec<v1::Mount> = container
        .volume_mounts
        .iter()
        .flatten()
        .zip(&inputs.volumes)
        .map(|(mount, source)| volume_mount(mount, source))
        .collect::<Result<_, _>>()?;
    let has =
        |mounts: &[v1::Mount], path: &str| mounts.iter().any(|mount| mount.container_path == path);
    if !has(&mounts, ETC_HOSTS) {
        mounts.push(bind(&inputs.hosts_file, ETC_HOSTS));
    }
    let termination = container.termination_message_path.as_deref().unwrap_or(DEV_TERMINATION_LOG);
    if !termination.is_empty() && !has(&mounts, termination) {
        mounts.push(bind(&termination_log(settings, pod, container, restart_count)?, termination));
    }
    let security_context =
        security::context(settings, pod, pod_spec, container, &inputs.image_user)?;
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
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: inputs
            .environment
            .into_inner()
            .map(|(key, value)| v1::KeyValue { key, value })
            .collect(),
        mounts,
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, restart_count),
        log_path: format!("{}/{restart_count}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources::container(settings, pod, pod_spec, container)),
            security_context: Some(security_context),
        }),
        ..v1::ContainerConfig::default()
    })
}

fn bind(host_path: &Path, container_path: &str) -> v1::Mount {
    v1::Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.to_owned(),
        ..v1::Mount::default()
    }
}

fn volume_mount(mount: &VolumeMount, source: &Mounted) -> Result<v1::Mount, Error> {
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("None") => v1::MountPropagation::PropagationPrivate,
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        Some(other) => {
            return Err(Error::Field { field: "mountPropagation", value: other.to_owned() });
        }
    };
    // A path without a leading slash counts from the root, as it always has.
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(v1::Mount {
        readonly: source.read_only || mount.read_only.unwrap_or(false),
        propagation: propagation.into(),
        ..bind(&source.path, &container_path)
    })
}

/// An empty file that the container may write its last words to, a new one for each run.
fn termination_log(
    settings: &Settings,
    pod: &Pod,
    container: &Container,
    run: u32,
) -> Result<PathBuf, Error> {
    use std::os::unix::fs::PermissionsExt;
    let dir = settings.pod_dir(pod).join("containers").join(&container.name);
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    let path = dir.join(format!("{run:08x}"));
    std::fs::write(&path, "").map_err(at(&path))?;
    // Any user of the container may write, whatever the daemon's umask.
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&path, mode).map_err(at(&path))?;
    Ok(path)
}

/// Restart count to go on from when the runtime knows of no earlier run, as after a lost disk:
/// one more than the newest log, so that no log is written over.
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

/// The name by which older log collectors find a container's log.
pub(super) fn legacy_log_link(pod: &Pod, container: &str, id: &str) -> PathBuf {
    const NAME_MAX: usize = 251; // 255 less ".log"
    let mut name = format!("{}_{}_{container}-{id}", spec::name(pod), spec::namespace(pod));
    name.truncate(name.floor_char_boundary(NAME_MAX));
    Path::new("/var/log/containers").join(format!("{name}.log"))
}

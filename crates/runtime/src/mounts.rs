//! Mounts of a container: its volumes, the pod's hosts file, and the termination log.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::arguments::TooLong;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use longshore_cri::v1;
use longshore_pod::expand::expand;
use longshore_pod::spec;
use longshore_volumes::{Mounted, PodMounts, SubPath, validate_sub_path};

use super::env::Environment;
use super::{Error, PodRuntime, Settings};

/// The limit of a path: the kernel's PATH_MAX.
const MAX_PATH: usize = 4096;
const ETC_HOSTS: &str = "/etc/hosts";

/// What the mounts of a container are made from.
pub(super) struct Sources<'a> {
    pub runtime: &'a PodRuntime,
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// Volumes on the node.
    pub volumes: &'a PodMounts,
    /// Image volumes.
    pub images: &'a BTreeMap<String, v1::ImageSpec>,
    pub environment: &'a Environment,
    pub hosts_file: Option<PathBuf>,
    pub restart_count: u32,
    /// Whether the runtime supports recursive read-only mounts.
    pub recursive: bool,
    /// The user namespace of the pod.
    pub users: &'a v1::UserNamespace,
}

impl Sources<'_> {
    /// The mounts of the container: its own in their order, then the node's.
    pub(super) async fn mounts(&self) -> Result<Vec<v1::Mount>, Error> {
        let mut mounts = Vec::new();
        for (index, mount) in self.container.volume_mounts.iter().flatten().enumerate() {
            mounts.push(self.volume_mount(index, mount).await?);
        }
        let has = |mounts: &[v1::Mount], path: &str| {
            mounts.iter().any(|mount| mount.container_path == path)
        };
        if let Some(file) = self.hosts_file.as_deref().filter(|_| !has(&mounts, ETC_HOSTS)) {
            mounts.push(v1::Mount { selinux_relabel: true, ..bind(file, ETC_HOSTS) });
        }
        let last_words = self.container.termination_message_path.as_deref();
        let last_words = last_words.unwrap_or("/dev/termination-log");
        if !last_words.is_empty() && !has(&mounts, last_words) {
            let file = self.termination_log(&self.runtime.settings)?;
            mounts.push(v1::Mount { selinux_relabel: true, ..bind(&file, last_words) });
        }
        for mount in &mut mounts {
            mount.uid_mappings.clone_from(&self.users.uids);
            mount.gid_mappings.clone_from(&self.users.gids);
        }
        Ok(mounts)
    }

    /// The devices of the container: its block volumes, in their order.
    pub(super) fn devices(&self) -> Result<Vec<v1::Device>, Error> {
        let devices = self.container.volume_devices.iter().flatten();
        devices.map(|device| self.device(device)).collect()
    }

    fn device(&self, device: &VolumeDevice) -> Result<v1::Device, Error> {
        let volume = self.volumes.get(&device.name).filter(|volume| volume.device.is_some());
        let (path, read_only) = volume
            .and_then(|volume| Some((volume.device.as_ref()?, volume.read_only)))
            .ok_or_else(|| Error::NoDevice {
                volume: device.name.clone(),
                container: self.container.name.clone(),
            })?;
        Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: path.display().to_string(),
            // With `mknod` unless it is read-only.
            permissions: if read_only { "r" } else { "mrw" }.to_owned(),
        })
    }

    async fn volume_mount(&self, index: usize, mount: &VolumeMount) -> Result<v1::Mount, Error> {
        let path = self.sub_path(mount)?;
        let options = options(mount, self.recursive)?;
        if let Some(image) = self.images.get(&mount.name) {
            validate_sub_path(&path)?;
            return Ok(image_mount(options, image, path));
        }
        // The apiserver checks that a mount has a volume; a manifest may be wrong.
        let volume = self.volumes.get(&mount.name).ok_or_else(|| Error::NoVolume {
            volume: mount.name.clone(),
            container: self.container.name.clone(),
        })?;
        let host_path = match path.as_str() {
            "" => volume.path.clone(),
            path => {
                let sub_path = SubPath {
                    volume: &volume.name,
                    mount: &mount.name,
                    volume_path: &volume.path,
                    container: &self.container.name,
                    index,
                    path,
                };
                self.runtime.volumes.sub_path(spec::uid(self.pod), sub_path).await?
            }
        };
        Ok(mounted(options, volume, &host_path))
    }

    /// The path inside the volume, with its variables expanded; all of them must be defined.
    fn sub_path(&self, mount: &VolumeMount) -> Result<String, Error> {
        let Some(path) = mount.sub_path_expr.as_deref().filter(|path| !path.is_empty()) else {
            return Ok(mount.sub_path.clone().unwrap_or_default());
        };
        let missing = std::cell::RefCell::new(BTreeSet::new());
        let expanded = expand(path, MAX_PATH, |name| {
            let value = self.environment.get(name).filter(|value| !value.is_empty());
            if value.is_none() {
                missing.borrow_mut().insert(name.to_owned());
            }
            value
        });
        let expanded =
            expanded.map_err(|error| TooLong(format!("the sub-path of a mount {error}")))?;
        match missing.into_inner() {
            missing if missing.is_empty() => Ok(expanded),
            missing => Err(Error::MissingVariables(missing.into_iter().collect())),
        }
    }

    /// An empty file for the container's termination message, a new one for each run.
    fn termination_log(&self, settings: &Settings) -> Result<PathBuf, Error> {
        let dir = settings.pod_dir(self.pod).join("containers").join(&self.container.name);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        let mut maker = std::fs::DirBuilder::new();
        maker.recursive(true).mode(0o750).create(&dir).map_err(at(&dir))?;
        let path = dir.join(format!("{:08x}", self.restart_count));
        std::fs::write(&path, "").map_err(at(&path))?;
        // All users in the container can write, whatever the daemon's umask.
        let mode = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, mode).map_err(at(&path))?;
        Ok(path)
    }
}

/// The supplemental groups that volumes of a pod require.
pub(super) fn volume_groups(pod: &Pod, groups: impl Iterator<Item = i64>) -> Vec<i64> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own_groups = context.and_then(|context| context.supplemental_groups.as_deref());
    let own_groups: BTreeSet<i64> = own_groups.unwrap_or_default().iter().copied().collect();
    let groups: BTreeSet<i64> = groups.filter(|group| !own_groups.contains(group)).collect();
    groups.into_iter().collect()
}

fn bind(host_path: &Path, container_path: &str) -> v1::Mount {
    v1::Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.to_owned(),
        ..v1::Mount::default()
    }
}

/// Image mounts are always read-only; some runtimes reject the option.
fn image_mount(options: v1::Mount, image: &v1::ImageSpec, path: String) -> v1::Mount {
    v1::Mount {
        image: Some(image.clone()),
        image_sub_path: path,
        readonly: true,
        selinux_relabel: true,
        ..options
    }
}

fn mounted(options: v1::Mount, volume: &Mounted, host_path: &Path) -> v1::Mount {
    v1::Mount {
        host_path: host_path.display().to_string(),
        readonly: volume.read_only || options.readonly,
        selinux_relabel: volume.relabel,
        ..options
    }
}

/// The options of a mount of any volume.
fn options(mount: &VolumeMount, recursive: bool) -> Result<v1::Mount, Error> {
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("None") => v1::MountPropagation::PropagationPrivate,
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        Some(other) => {
            return Err(Error::Field { field: "mountPropagation", value: other.to_owned() });
        }
    };
    // A path without a leading slash is relative to the root, for compatibility.
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(v1::Mount {
        container_path,
        readonly: mount.read_only.unwrap_or(false),
        recursive_read_only: recursive_read_only(mount, recursive)?,
        propagation: propagation.into(),
        ..v1::Mount::default()
    })
}

/// Whether a container has a mount with `recursiveReadOnly`.
pub(super) fn has_recursive_read_only(container: &Container) -> bool {
    let is_requested = |mount: &VolumeMount| {
        mount.recursive_read_only.as_deref().is_some_and(|mode| mode != "Disabled")
    };
    container.volume_mounts.iter().flatten().any(is_requested)
}

fn recursive_read_only(mount: &VolumeMount, possible: bool) -> Result<bool, Error> {
    let unsupported = |why: String| Err(Error::ReadOnly { volume: mount.name.clone(), why });
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if mount.read_only != Some(true) {
        return unsupported("it is not read-only".to_owned());
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|mode| *mode != "None") {
        return unsupported(format!("it is not compatible with propagation {propagation:?}"));
    }
    match mode {
        "IfPossible" => Ok(possible),
        "Enabled" if possible => Ok(true),
        "Enabled" => unsupported("it is not supported by the runtime".to_owned()),
        other => unsupported(format!("the mode {other:?} is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mount(fields: Value) -> VolumeMount {
        let mut mount = json!({"name": "v", "mountPath": "m"});
        fields.as_object().unwrap().iter().for_each(|(key, value)| mount[key] = value.clone());
        serde_json::from_value(mount).unwrap()
    }

    #[test]
    fn mounts_of_images_are_read_only() {
        let image = v1::ImageSpec { image: "sha256:1".to_owned(), ..v1::ImageSpec::default() };
        let options = options(&mount(json!({})), false).unwrap();
        let mounted = image_mount(options, &image, "sub".to_owned());
        assert!(mounted.readonly && mounted.selinux_relabel && !mounted.recursive_read_only);
        assert_eq!((mounted.image, mounted.image_sub_path.as_str()), (Some(image), "sub"));
        assert_eq!((mounted.container_path.as_str(), mounted.host_path.as_str()), ("/m", ""));
    }

    #[test]
    fn mounts_read_only_and_propagation() {
        let volume = |read_only| Mounted { path: "/v".into(), read_only, ..Mounted::default() };
        for (fields, read_only, expected) in [
            (json!({}), false, false),
            (json!({}), true, true),
            (json!({"readOnly": true}), false, true),
        ] {
            let options = options(&mount(fields), false).unwrap();
            let mounted = mounted(options, &volume(read_only), Path::new("/v/sub"));
            assert_eq!((mounted.readonly, mounted.host_path.as_str()), (expected, "/v/sub"));
            assert_eq!(mounted.container_path, "/m");
            assert!(!mounted.selinux_relabel);
        }
        let volume = Mounted { relabel: true, ..volume(false) };
        let options = options(&mount(json!({"subPath": "sub"})), false).unwrap();
        assert!(mounted(options, &volume, Path::new("/v/sub")).selinux_relabel);
    }

    #[test]
    fn mounts_volume_groups_are_added_once() {
        let groups = [7, 5, 7, 9];
        let pod = |context: Value| {
            serde_json::from_value(json!({"spec": {"containers": [], "securityContext": context}}))
                .unwrap()
        };
        assert_eq!(volume_groups(&pod(Value::Null), groups.into_iter()), [5, 7, 9]);
        let own_groups = json!({"supplementalGroups": [9], "fsGroup": 5});
        assert_eq!(volume_groups(&pod(own_groups), groups.into_iter()), [5, 7]);
    }

    #[test]
    fn mounts_recursive_read_only_needs_runtime_support() {
        let rro = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
        for (fields, possible, expected) in [
            (json!({}), true, Ok(false)),
            (rro("Disabled"), true, Ok(false)),
            (rro("IfPossible"), true, Ok(true)),
            (rro("IfPossible"), false, Ok(false)),
            (rro("Enabled"), true, Ok(true)),
            (rro("Enabled"), false, Err("it is not supported by the runtime")),
            (json!({"recursiveReadOnly": "Enabled"}), true, Err("it is not read-only")),
            (
                json!({"readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"}),
                true,
                Err("it is not compatible with propagation \"HostToContainer\""),
            ),
        ] {
            let found = options(&mount(fields.clone()), possible);
            let found = found.map(|mount| mount.recursive_read_only).map_err(|e| e.to_string());
            let expected = expected.map_err(|why| {
                format!("failed to resolve recursive read-only mode: volume \"v\" requested recursive read-only mode, but {why}")
            });
            assert_eq!(found, expected, "{fields}");
        }
    }
}

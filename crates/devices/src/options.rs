//! What a container gets for its devices.

use std::collections::{BTreeMap, BTreeSet};

use tracing::warn;

use crate::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount};

/// The answers of all plugins for a container, merged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerDevices {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Mounts, by their path in the container at most one.
    pub mounts: Vec<Mount>,
    /// Device nodes, by their path in the container at most one.
    pub devices: Vec<DeviceSpec>,
    /// Annotations of the container in the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified names of CDI devices.
    pub cdi_devices: Vec<String>,
}

impl ContainerDevices {
    /// Merges answers; the first one for a name or path wins, as in upstream.
    pub(crate) fn merged<'a>(
        responses: impl IntoIterator<Item = &'a ContainerAllocateResponse>,
    ) -> Self {
        let mut all = Self::default();
        let (mut devices, mut mounts): (Paths<'_>, Paths<'_>) = Default::default();
        let mut names = BTreeSet::new();
        for response in responses {
            merge("environment variable", &mut all.envs, &response.envs);
            merge("annotation", &mut all.annotations, &response.annotations);
            for device in &response.devices {
                if is_new("device", &mut devices, &device.container_path, &device.host_path) {
                    all.devices.push(device.clone());
                }
            }
            for mount in &response.mounts {
                if is_new("mount", &mut mounts, &mount.container_path, &mount.host_path) {
                    all.mounts.push(mount.clone());
                }
            }
            for device in &response.cdi_devices {
                if names.insert(&device.name) {
                    all.cdi_devices.push(device.name.clone());
                }
            }
        }
        all
    }
}

fn merge(what: &str, all: &mut BTreeMap<String, String>, more: &BTreeMap<String, String>) {
    for (name, value) in more {
        match all.get(name) {
            None => {
                all.insert(name.clone(), value.clone());
            }
            Some(known) if known != value => {
                warn!(name, "device plugins differ about the {what}");
            }
            Some(_) => {}
        }
    }
}

/// Paths on the host by the path in the container.
type Paths<'a> = BTreeMap<&'a str, &'a str>;

fn is_new<'a>(what: &str, known: &mut Paths<'a>, container: &'a str, host: &'a str) -> bool {
    match known.get(container) {
        None => {
            known.insert(container, host);
            true
        }
        Some(first) => {
            if *first != host {
                warn!(container, first, host, "device plugins differ about the {what}");
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1beta1::CdiDevice;

    #[test]
    fn device_options_of_several_plugins_are_merged() {
        let device = |host: &str| DeviceSpec {
            container_path: "/dev/a".to_owned(),
            host_path: host.to_owned(),
            permissions: "rw".to_owned(),
        };
        let mount = |container: &str| Mount {
            container_path: container.to_owned(),
            host_path: "/lib".to_owned(),
            read_only: true,
        };
        let response = |value: &str, host: &str, path: &str| ContainerAllocateResponse {
            envs: [("A".to_owned(), value.to_owned()), (value.to_owned(), String::new())].into(),
            mounts: vec![mount(path), mount("/lib")],
            devices: vec![device(host)],
            annotations: [("k".to_owned(), value.to_owned())].into(),
            cdi_devices: vec![CdiDevice { name: "v/c=0".to_owned() }],
        };
        let (first, second) = (response("1", "/dev/x", "/a"), response("2", "/dev/y", "/b"));
        let all = ContainerDevices::merged([&first, &second]);
        assert_eq!(all.envs["A"], "1");
        assert!(all.envs.contains_key("2"));
        assert_eq!(all.annotations["k"], "1");
        assert_eq!(all.devices, [device("/dev/x")]);
        let paths: Vec<_> = all.mounts.iter().map(|mount| &*mount.container_path).collect();
        assert_eq!(paths, ["/a", "/lib", "/b"]);
        assert_eq!(all.cdi_devices, ["v/c=0"]);
    }
}

//! Devices of plugins in the config of a container.

use longshore_cri::v1;
use longshore_devices::ContainerDevices;

/// Adds what plugins give for the devices of a container; its environment has their variables already.
/// The pod's own mounts, devices and annotations come later, and so win.
pub(super) fn add(config: &mut v1::ContainerConfig, plugins: ContainerDevices) {
    let mount = |own: longshore_devices::v1beta1::Mount| v1::Mount {
        container_path: own.container_path,
        host_path: own.host_path,
        readonly: own.read_only,
        ..v1::Mount::default()
    };
    let device = |own: longshore_devices::v1beta1::DeviceSpec| v1::Device {
        container_path: own.container_path,
        host_path: own.host_path,
        permissions: own.permissions,
    };
    config.mounts.splice(0..0, plugins.mounts.into_iter().map(mount));
    config.devices.splice(0..0, plugins.devices.into_iter().map(device));
    for (key, value) in plugins.annotations {
        config.annotations.entry(key).or_insert(value);
    }
    let names = plugins.cdi_devices.into_iter();
    config.cdi_devices.extend(names.map(|name| v1::CdiDevice { name }));
}

#[cfg(test)]
mod tests {
    use longshore_devices::v1beta1::{DeviceSpec, Mount};

    use super::*;

    #[test]
    fn devices_of_plugins_are_before_those_of_the_pod() {
        let mut config = v1::ContainerConfig {
            mounts: vec![v1::Mount { container_path: "/own".to_owned(), ..Default::default() }],
            devices: vec![v1::Device { host_path: "/dev/own".to_owned(), ..Default::default() }],
            annotations: [("k".to_owned(), "own".to_owned())].into(),
            ..v1::ContainerConfig::default()
        };
        let mount = Mount {
            container_path: "/lib".to_owned(),
            host_path: "/usr/lib".to_owned(),
            read_only: true,
        };
        let device = DeviceSpec {
            container_path: "/dev/a".to_owned(),
            host_path: "/dev/b".to_owned(),
            permissions: "rw".to_owned(),
        };
        let plugins = ContainerDevices {
            mounts: vec![mount],
            devices: vec![device],
            annotations: ["k", "l"].map(|key| (key.to_owned(), "plugin".to_owned())).into(),
            cdi_devices: vec!["v/c=0".to_owned()],
            ..ContainerDevices::default()
        };
        add(&mut config, plugins);
        let mounts: Vec<_> =
            config.mounts.iter().map(|own| (&*own.container_path, own.readonly)).collect();
        assert_eq!(mounts, [("/lib", true), ("/own", false)]);
        let devices: Vec<_> =
            config.devices.iter().map(|own| (&*own.host_path, &*own.permissions)).collect();
        assert_eq!(devices, [("/dev/b", "rw"), ("/dev/own", "")]);
        assert_eq!((&*config.annotations["k"], &*config.annotations["l"]), ("own", "plugin"));
        assert_eq!(config.cdi_devices[0].name, "v/c=0");
    }
}

//! Host ports of pods.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::PodSpec;

use crate::spec::{self, ContainerKind};

const ANY: &str = "0.0.0.0";

/// A host port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    ip: String,
    protocol: String,
    number: i32,
}

/// The host ports of the pod's containers. Those of init containers other than sidecars are not
/// counted.
pub(super) fn of_pod(pod_spec: &PodSpec) -> Vec<Port> {
    let or = |value: &Option<String>, usual: &str| match value.as_deref().unwrap_or_default() {
        "" => usual.to_owned(),
        value => value.to_owned(),
    };
    spec::containers(pod_spec)
        .filter(|(kind, _)| *kind != ContainerKind::Init)
        .flat_map(|(_, container)| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            Some(Port { ip: or(&port.host_ip, ANY), protocol: or(&port.protocol, "TCP"), number })
        })
        .collect()
}

/// The ports in use: by protocol and number, the addresses and how often each is taken. Running
/// pods may share a port, so an address may be there more than once.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports(HashMap<(String, i32), HashMap<String, usize>>);

impl Ports {
    pub(super) fn take(&mut self, port: &Port) {
        let ips = self.0.entry((port.protocol.clone(), port.number)).or_default();
        *ips.entry(port.ip.clone()).or_default() += 1;
    }

    pub(super) fn release(&mut self, port: &Port) {
        let key = (port.protocol.clone(), port.number);
        let Some(ips) = self.0.get_mut(&key) else { return };
        if let Some(times) = ips.get_mut(&port.ip) {
            *times -= 1;
            if *times == 0 {
                ips.remove(&port.ip);
            }
        }
        if ips.is_empty() {
            self.0.remove(&key);
        }
    }

    /// Whether that port is in use: on the same address, or either of both on all addresses.
    pub(super) fn has(&self, port: &Port) -> bool {
        let Some(ips) = self.0.get(&(port.protocol.clone(), port.number)) else { return false };
        port.ip == ANY || ips.contains_key(ANY) || ips.contains_key(&port.ip)
    }
}

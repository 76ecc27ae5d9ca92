//! The network of sandboxes, by CNI. The engine itself gives them none (`none`), or the machine's (`host`).

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;

use bollard::models::ContainerInspectResponse;
use longshore_cni::{Attachment, Cni, addresses};
use longshore_cri::v1::{DnsConfig, PodSandboxConfig, PodSandboxMetadata, PortMapping};
use longshore_quantity::Quantity;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};

use crate::checkpoint::protocol;
use crate::{Error, Result, Settings};

/// The interface of a pod.
const INTERFACE: &str = "eth0";
/// Bursts are not limited: the largest number that the plugin takes, in bits.
const BURST: i32 = i32::MAX;
/// What upstream takes as a bandwidth, in bits per second: 1k to 1P.
const BANDWIDTHS: std::ops::RangeInclusive<i128> = 1_000..=1_000_000_000_000_000;

/// Attaches sandboxes.
#[derive(Debug)]
pub(crate) struct Network {
    cni: Cni,
    /// The range of the node's pods, once the kubelet has said it.
    pod_cidr: RwLock<Option<String>>,
    /// Sandboxes that need not be detached once more.
    detached: Mutex<HashSet<String>>,
}

impl Network {
    pub(crate) fn new(settings: &Settings) -> Self {
        let cni = Cni {
            bin_dirs: settings.cni_bin_dirs.clone(),
            conf_dir: settings.cni_conf_dir.clone(),
            cache_dir: settings.cni_cache_dir.clone(),
        };
        Self { cni, pod_cidr: RwLock::new(settings.pod_cidr.clone()), detached: Mutex::default() }
    }

    /// Takes the range of the node's pods: plugins with the capability `ipRanges` get it.
    pub(crate) fn set_pod_cidr(&self, cidr: String) {
        *self.pod_cidr.write() = Some(cidr);
    }

    /// # Errors
    /// Why sandboxes cannot be attached.
    pub(crate) async fn ready(&self) -> Result<()> {
        let failed =
            |source| Error::Network { action: "network plugin is not ready".into(), source };
        let network = self.cni.network().await.map_err(failed)?;
        if network.has_capability("ipRanges") && self.pod_cidr.read().is_none() {
            return Err(Error::Precondition("cni config needs ipRanges but no PodCIDR set".into()));
        }
        self.cni.status(&network).await.map_err(failed)
    }

    /// Attaches a sandbox that runs.
    ///
    /// # Errors
    /// When a plugin fails; [`Network::detach`] undoes what was done.
    pub(crate) async fn attach(
        &self,
        id: &str,
        netns: PathBuf,
        config: &PodSandboxConfig,
    ) -> Result<()> {
        let failed = |source| {
            let pod = config.metadata.clone().unwrap_or_default();
            let (name, namespace) = (pod.name, pod.namespace);
            let action =
                format!("failed to set up network of sandbox {id} for pod {namespace}/{name}");
            Error::Network { action, source }
        };
        let network = self.cni.network().await.map_err(failed)?;
        let cidr = self.pod_cidr.read().clone();
        let attachment = Attachment {
            container_id: id.to_owned(),
            netns: Some(netns),
            interface: INTERFACE.to_owned(),
            args: arguments(id, config.metadata.as_ref()),
            capability_args: capabilities(config, cidr.as_deref())?,
        };
        self.cni.add(&network, &attachment).await.map_err(failed).map(|_| ())
    }

    /// Detaches a sandbox, which need not run any more nor have been attached. May be repeated.
    ///
    /// # Errors
    /// When a plugin fails.
    pub(crate) async fn detach(
        &self,
        id: &str,
        netns: Option<PathBuf>,
        pod: Option<&PodSandboxMetadata>,
    ) -> Result<()> {
        if self.detached.lock().contains(id) {
            return Ok(());
        }
        let attachment = Attachment {
            container_id: id.to_owned(),
            netns,
            interface: INTERFACE.to_owned(),
            args: pod.map(|pod| arguments(id, Some(pod))).unwrap_or_default(),
            capability_args: Map::new(),
        };
        let fallback = self.cni.network().await.ok();
        self.cni.remove(fallback.as_ref(), &attachment).await.map_err(|source| {
            let action = format!("failed to tear down network of sandbox {id}");
            Error::Network { action, source }
        })?;
        self.detached.lock().insert(id.to_owned());
        Ok(())
    }

    /// The sandbox is gone.
    pub(crate) fn forget(&self, id: &str) {
        self.detached.lock().remove(id);
    }

    /// The addresses of a sandbox; none when it is not attached.
    pub(crate) async fn addresses(&self, id: &str) -> Vec<IpAddr> {
        match self.cni.cached(id, INTERFACE).await {
            Ok(Some(cached)) => addresses(&cached.result, INTERFACE),
            Ok(None) => Vec::new(),
            Err(error) => {
                tracing::warn!("addresses of sandbox {id}: {error}");
                Vec::new()
            }
        }
    }
}

/// The file of a container's network namespace: the engine's own, which stays the container's when its
/// process ends, or that of the process where the engine's is in a mount namespace of its own.
pub(crate) fn namespace(container: &ContainerInspectResponse) -> Option<PathBuf> {
    let key =
        container.network_settings.as_ref().and_then(|settings| settings.sandbox_key.as_ref());
    if let Some(key) = key.filter(|key| is_namespace(key)) {
        return Some(key.into());
    }
    let pid = container.state.as_ref().and_then(|state| state.pid).filter(|pid| *pid > 0)?;
    let path = format!("/proc/{pid}/ns/net");
    is_namespace(&path).then(|| path.into())
}

/// Of a namespace that is gone, the engine leaves the file on which it was mounted.
fn is_namespace(path: &str) -> bool {
    const NSFS: i128 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|system| i128::from(system.f_type) == NSFS)
}

/// `CNI_ARGS`, as other runtimes give them.
fn arguments(id: &str, pod: Option<&PodSandboxMetadata>) -> Vec<(String, String)> {
    let pod = pod.cloned().unwrap_or_default();
    [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id),
        ("K8S_POD_UID", &pod.uid),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Arguments by capability.
fn capabilities(config: &PodSandboxConfig, cidr: Option<&str>) -> Result<Map<String, Value>> {
    let mut all = Map::new();
    let ports: Vec<_> = config.port_mappings.iter().filter(|port| port.host_port > 0).collect();
    if !ports.is_empty() {
        all.insert("portMappings".into(), ports.into_iter().map(port).collect());
    }
    if let Some(bandwidth) = bandwidth(&config.annotations)? {
        all.insert("bandwidth".into(), bandwidth);
    }
    if let Some(dns) = &config.dns_config {
        let DnsConfig { servers, searches, options } = dns;
        all.insert(
            "dns".into(),
            json!({"servers": servers, "searches": searches, "options": options}),
        );
    }
    if let Some(cidr) = cidr {
        all.insert("ipRanges".into(), ranges(cidr));
    }
    if !config.annotations.is_empty() {
        all.insert("io.kubernetes.cri.pod-annotations".into(), json!(config.annotations));
    }
    if let Some(parent) = config.linux.as_ref().map(|linux| &linux.cgroup_parent)
        && !parent.is_empty()
    {
        all.insert("cgroupPath".into(), json!(parent));
    }
    Ok(all)
}

fn port(port: &PortMapping) -> Value {
    let mut mapping = json!({
        "hostPort": port.host_port,
        "containerPort": port.container_port,
        "protocol": protocol(port.protocol()),
    });
    if !port.host_ip.is_empty() {
        mapping["hostIP"] = json!(port.host_ip);
    }
    mapping
}

/// The ranges of both families, each a list of its own, from which one address is taken.
fn ranges(cidr: &str) -> Value {
    cidr.split(',').map(|subnet| json!([{"subnet": subnet.trim()}])).collect()
}

/// Whole bits, rounded up.
fn whole(quantity: Quantity) -> i128 {
    const NANO: i128 = 1_000_000_000;
    quantity.amount().saturating_add(NANO - 1).div_euclid(NANO)
}

/// What the pod's annotations say about its bandwidth.
fn bandwidth(annotations: &BTreeMap<String, String>) -> Result<Option<Value>> {
    let rate = |direction: &str| -> Result<Option<i128>> {
        let key = format!("kubernetes.io/{direction}-bandwidth");
        let Some(text) = annotations.get(&key) else { return Ok(None) };
        let bits = Quantity::parse(text).map(whole);
        match bits.filter(|bits| BANDWIDTHS.contains(bits)) {
            Some(bits) => Ok(Some(bits)),
            None => Err(Error::Invalid(format!("annotation {key}: {text:?} is no bandwidth"))),
        }
    };
    let (ingress, egress) = (rate("ingress")?, rate("egress")?);
    if ingress.is_none() && egress.is_none() {
        return Ok(None);
    }
    let mut limits = Map::new();
    for (direction, bits) in [("ingress", ingress), ("egress", egress)] {
        if let Some(bits) = bits.and_then(|bits| i64::try_from(bits).ok()) {
            limits.insert(format!("{direction}Rate"), json!(bits));
            limits.insert(format!("{direction}Burst"), json!(BURST));
        }
    }
    Ok(Some(Value::Object(limits)))
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{LinuxPodSandboxConfig, Protocol};

    use super::*;

    #[test]
    fn capabilities_are_those_of_the_pod() {
        let mapping = |host_port, host_ip: &str, protocol: Protocol| PortMapping {
            host_port,
            container_port: 80,
            host_ip: host_ip.into(),
            protocol: protocol.into(),
        };
        let config = PodSandboxConfig {
            port_mappings: vec![
                mapping(8080, "", Protocol::Tcp),
                mapping(53, "127.0.0.1", Protocol::Udp),
                mapping(0, "", Protocol::Tcp),
            ],
            annotations: [("kubernetes.io/ingress-bandwidth".to_owned(), "10M".to_owned())].into(),
            dns_config: Some(DnsConfig {
                servers: vec!["10.0.0.10".into()],
                ..DnsConfig::default()
            }),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: "/kubepods/p".into(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        };
        let expected = json!({
            "portMappings": [
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 53, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"},
            ],
            "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": i32::MAX},
            "dns": {"servers": ["10.0.0.10"], "searches": [], "options": []},
            "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
            "io.kubernetes.cri.pod-annotations": {"kubernetes.io/ingress-bandwidth": "10M"},
            "cgroupPath": "/kubepods/p",
        });
        let found = capabilities(&config, Some("10.1.0.0/24, fd00::/64")).unwrap();
        assert_eq!(Value::Object(found), expected);
        assert_eq!(capabilities(&PodSandboxConfig::default(), None).unwrap(), Map::new());
    }

    #[test]
    fn bandwidths_have_bounds() {
        for wrong in ["", "x", "1", "999", "2P", "-1M"] {
            let annotations =
                [("kubernetes.io/egress-bandwidth".to_owned(), wrong.to_owned())].into();
            assert!(bandwidth(&annotations).is_err(), "{wrong}");
        }
    }
}

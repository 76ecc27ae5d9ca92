//! What kube-proxy reads of its own node's object.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use longshore_proxy::Family;
use longshore_proxy::config::{KubeProxyConfiguration, LocalMode};
use longshore_proxy::model::Cidr;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

/// How long the node's addresses are waited for: rules work without.
const ADDRESSES: Duration = Duration::from_secs(30);
/// How long the ranges of its pods are waited for, where rules depend on them.
const POD_CIDRS: Duration = Duration::from_secs(300);
/// The label with a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The ranges of the node's pods did not come, which `detectLocalMode: NodeCIDR` needs.
#[derive(Debug, thiserror::Error)]
#[error("node {node} has no pod CIDR after {POD_CIDRS:?}, which detectLocalMode NodeCIDR needs")]
pub struct NoPodCidrs {
    node: String,
}

/// What the rules depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnNode {
    /// The family that must work.
    pub(super) primary: Family,
    /// One address of each family; loopback where it is not known.
    pub(super) ips: Vec<IpAddr>,
    /// The ranges of its pods.
    pub(super) pod_cidrs: Vec<Cidr>,
    /// Its zone.
    pub(super) zone: Option<String>,
}

impl OwnNode {
    /// Reads the object. `bind` (`bindAddress`), unless it is any address, counts more.
    pub(super) fn read(node: Option<&Node>, bind: &str) -> Self {
        let ips = node.map(addresses).unwrap_or_default();
        let bind: Option<IpAddr> = bind.parse().ok().filter(|ip: &IpAddr| !ip.is_unspecified());
        let primary = bind.or(ips.first().copied()).map_or(Family::V4, Family::of);
        let of = |family, loopback: &[u8]| {
            let ours = bind.iter().chain(&ips).find(|ip| Family::of(**ip) == family);
            ours.copied().unwrap_or_else(|| match loopback {
                [] => IpAddr::from([127, 0, 0, 1]),
                _ => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            })
        };
        let spec = node.and_then(|node| node.spec.as_ref());
        let pod_cidrs = spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
        let labels = node.and_then(|node| node.metadata.labels.as_ref());
        Self {
            primary,
            ips: vec![of(Family::V4, &[]), of(Family::V6, &[1])],
            pod_cidrs: pod_cidrs.filter_map(|cidr| cidr.parse().ok()).collect(),
            zone: labels.and_then(|labels| labels.get(ZONE)).cloned(),
        }
    }
}

/// The node's internal addresses, and then its external ones.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &'static str| all.clone().filter(move |address| address.type_ == kind);
    let ours = of("InternalIP").chain(of("ExternalIP"));
    ours.filter_map(|address| address.address.parse().ok()).collect()
}

/// Waits until the object has what the settings need.
pub(super) async fn wait(
    node: &mut watch::Receiver<Option<Node>>,
    name: &str,
    settings: &KubeProxyConfiguration,
) -> Result<OwnNode, NoPodCidrs> {
    let bind = &settings.bind_address;
    let bound = bind.parse().is_ok_and(|ip: IpAddr| !ip.is_unspecified());
    if !bound {
        let known = |node: &Option<Node>| node.as_ref().is_some_and(|it| !addresses(it).is_empty());
        if timeout(ADDRESSES, node.wait_for(known)).await.is_err() {
            warn!(name, "the node's address is unknown, using loopback: set bindAddress");
        }
    }
    if settings.detect_local_mode == LocalMode::NodeCidr {
        let known = |node: &Option<Node>| !OwnNode::read(node.as_ref(), bind).pod_cidrs.is_empty();
        if !known(&node.borrow()) {
            info!(name, "waiting for the node's pod CIDRs");
        }
        if !matches!(timeout(POD_CIDRS, node.wait_for(known)).await, Ok(Ok(_))) {
            return Err(NoPodCidrs { node: name.to_owned() });
        }
    }
    Ok(OwnNode::read(node.borrow().as_ref(), bind))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(addresses: Value, bind: &str) -> (Family, Vec<String>) {
        let node: Node =
            serde_json::from_value(json!({"metadata": {}, "status": {"addresses": addresses}}))
                .unwrap();
        let own = OwnNode::read(Some(&node), bind);
        (own.primary, own.ips.iter().map(ToString::to_string).collect())
    }

    fn address(kind: &str, ip: &str) -> Value {
        json!({"type": kind, "address": ip})
    }

    #[test]
    fn addresses_of_the_node() {
        let (v4, v6) = (address("InternalIP", "10.0.0.2"), address("InternalIP", "fd00::2"));
        let outer = address("ExternalIP", "192.0.2.2");
        let name = address("Hostname", "n");
        for (addresses, bind, primary, ips) in [
            (json!([]), "0.0.0.0", Family::V4, ["127.0.0.1", "::1"]),
            (json!([name, v4]), "0.0.0.0", Family::V4, ["10.0.0.2", "::1"]),
            (json!([outer, v4]), "::", Family::V4, ["10.0.0.2", "::1"]),
            (json!([outer, v6]), "::", Family::V6, ["192.0.2.2", "fd00::2"]),
            (json!([v4, v6]), "0.0.0.0", Family::V4, ["10.0.0.2", "fd00::2"]),
            (json!([v4, v6]), "fd00::9", Family::V6, ["10.0.0.2", "fd00::9"]),
            (json!([v4]), "10.0.0.9", Family::V4, ["10.0.0.9", "::1"]),
        ] {
            let own = read(addresses.clone(), bind);
            assert_eq!(own, (primary, ips.map(str::to_owned).into()), "{addresses} {bind}");
        }
        assert_eq!(OwnNode::read(None, "0.0.0.0").ips[0].to_string(), "127.0.0.1");
    }

    #[tokio::test(start_paused = true)]
    async fn pod_cidrs_are_awaited() {
        let settings = KubeProxyConfiguration {
            detect_local_mode: LocalMode::NodeCidr,
            ..KubeProxyConfiguration::default()
        };
        let (sender, mut node) = watch::channel(None);
        let error = wait(&mut node, "n", &settings).await.unwrap_err();
        assert!(error.to_string().starts_with("node n has no pod CIDR after 300s"), "{error}");
        let object = json!({
            "metadata": {"labels": {"topology.kubernetes.io/zone": "z"}},
            "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]},
            "status": {"addresses": [address("InternalIP", "10.0.0.2")]},
        });
        sender.send_replace(Some(serde_json::from_value(object).unwrap()));
        let own = wait(&mut node, "n", &settings).await.unwrap();
        assert_eq!((own.pod_cidrs.len(), own.zone.as_deref()), (2, Some("z")));
    }
}

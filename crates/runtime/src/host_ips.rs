//! The node's addresses, which may change while it runs.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

/// The node's addresses, primary first, one of each family at most. Empty: unknown. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostIps(watch::Receiver<Arc<[String]>>);

impl HostIps {
    /// Addresses that follow what is sent.
    pub fn follow(first: &[IpAddr]) -> (watch::Sender<Arc<[String]>>, Self) {
        let (sender, receiver) = watch::channel(first.iter().map(ToString::to_string).collect());
        (sender, Self(receiver))
    }

    /// The addresses now.
    pub fn get(&self) -> Arc<[String]> {
        self.0.borrow().clone()
    }

    /// The same, for those who wait for changes.
    pub fn subscribe(&self) -> watch::Receiver<Arc<[String]>> {
        self.0.clone()
    }
}

impl<const N: usize> From<[&str; N]> for HostIps {
    fn from(ips: [&str; N]) -> Self {
        Self(watch::channel(ips.map(str::to_owned).into()).1)
    }
}

/// The addresses that a node object has: internal ones before external ones, the first of all and then the
/// first of the other family. Empty: it has none.
pub fn of_node(node: &Node) -> Vec<String> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of_type = |wanted: &'static str| {
        let addresses = addresses.clone();
        let found = addresses.filter(move |address| address.type_ == wanted);
        found.filter_map(|address| address.address.parse::<IpAddr>().ok())
    };
    let ips: Vec<IpAddr> = of_type("InternalIP").chain(of_type("ExternalIP")).collect();
    let Some(first) = ips.first() else { return Vec::new() };
    let other = ips.iter().find(|ip| ip.is_ipv6() != first.is_ipv6());
    std::iter::once(first).chain(other).map(IpAddr::to_string).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn host_ips_are_those_of_the_node_object() {
        let node = |addresses: &[(&str, &str)]| -> Node {
            let addresses =
                addresses.iter().map(|(type_, address)| json!({"type": type_, "address": address}));
            let addresses: Vec<Value> = addresses.collect();
            serde_json::from_value(json!({"status": {"addresses": addresses}})).unwrap()
        };
        for (addresses, expected) in [
            (&[][..], &[][..]),
            (&[("Hostname", "n"), ("InternalIP", "no address")], &[]),
            (&[("ExternalIP", "192.0.2.9"), ("InternalIP", "10.0.0.1")], &["10.0.0.1"]),
            (
                &[("InternalIP", "fd00::1"), ("InternalIP", "fd00::2"), ("InternalIP", "10.0.0.1")],
                &["fd00::1", "10.0.0.1"],
            ),
            (
                &[
                    ("InternalIP", "10.0.0.1"),
                    ("InternalIP", "10.0.0.2"),
                    ("ExternalIP", "2001:db8::1"),
                ],
                &["10.0.0.1", "2001:db8::1"],
            ),
        ] {
            assert_eq!(of_node(&node(addresses)), expected, "{addresses:?}");
        }
    }

    #[test]
    fn host_ips_follow_what_is_sent() {
        let (sender, ips) = HostIps::follow(&[]);
        assert!(ips.get().is_empty());
        sender.send_replace(vec!["10.0.0.1".to_owned()].into());
        assert_eq!(*ips.get(), ["10.0.0.1"]);
    }
}

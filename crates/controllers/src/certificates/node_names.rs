//! PURE: what a node's serving certificate may name. A node writes its own addresses, so its Node
//! object proves nothing about what is somebody else's.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use longshore_csr::Request;

/// Names and addresses that belong together, in one spelling each.
#[derive(Debug, Default)]
pub(super) struct Names {
    dns: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

impl<'a> FromIterator<&'a str> for Names {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Names {
        let mut all = Names::default();
        for name in names {
            match name.parse::<IpAddr>() {
                Ok(address) => drop(all.addresses.insert(address.to_canonical())),
                Err(_) => drop(all.dns.insert(normalized_name(name))),
            }
        }
        all
    }
}

impl Names {
    /// The node's name and addresses.
    pub(super) fn of_node(node: &Node) -> Names {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref());
        let addresses = addresses.unwrap_or_default().iter().map(|one| one.address.as_str());
        addresses.chain(node.metadata.name.as_deref()).collect()
    }

    fn has_all(&self, wanted: &Request) -> bool {
        wanted.dns_names.iter().all(|name| self.dns.contains(&normalized_name(name)))
            && wanted.addresses.iter().all(|ip| self.addresses.contains(&ip.to_canonical()))
    }

    fn has_any(&self, wanted: &Request) -> bool {
        wanted.dns_names.iter().any(|name| self.dns.contains(&normalized_name(name)))
            || wanted.addresses.iter().any(|ip| self.addresses.contains(&ip.to_canonical()))
    }
}

/// What belongs to the cluster, and to no node but those of the control plane.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    /// Names and addresses of the apiserver, which it shares with the node of its machine.
    pub(super) apiserver: Names,
    /// The addresses of services; without any, no certificate is safe.
    pub(super) services: Vec<IpNet>,
}

/// The label of nodes that run the control plane. Nodes cannot set it (admission plugin NodeRestriction).
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// Whether the node may have that certificate: it names nothing but the node, and nothing that is the
/// cluster's or another node's too.
pub(super) fn may_have<'a>(
    own: &Node,
    others: impl IntoIterator<Item = &'a Node>,
    reserved: &Reserved,
    wanted: &Request,
) -> bool {
    let is_of_service =
        |ip: &IpAddr| reserved.services.iter().any(|range| range.contains(&ip.to_canonical()));
    let is_control_plane =
        own.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(CONTROL_PLANE));
    !reserved.services.is_empty()
        && Names::of_node(own).has_all(wanted)
        && (is_control_plane || !reserved.apiserver.has_any(wanted))
        && wanted.addresses.iter().all(|ip| may_be_a_nodes(*ip) && !is_of_service(ip))
        && wanted.dns_names.iter().all(|name| may_name_a_node(name))
        && !others.into_iter().any(|other| Names::of_node(other).has_any(wanted))
}

fn normalized_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether a name may be that of a node: one host, and no service of the cluster.
fn may_name_a_node(name: &str) -> bool {
    let name = normalized_name(name);
    let is_of_services = ["svc", "svc.cluster.local", "cluster.local"]
        .iter()
        .any(|domain| name == *domain || name.ends_with(&format!(".{domain}")));
    let is_of_api = name == "kubernetes" || name.starts_with("kubernetes.default");
    let is_loopback = name == "localhost" || name.ends_with(".localhost");
    is_dns_subdomain(&name) && !is_of_services && !is_of_api && !is_loopback
}

fn is_dns_subdomain(name: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_label = |label: &[u8]| {
        is_edge(label.first())
            && is_edge(label.last())
            && label.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    name.len() <= 253 && name.as_bytes().split(|byte| *byte == b'.').all(is_label)
}

/// Whether an address may be that of one node.
fn may_be_a_nodes(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, addresses: &[&str]) -> Node {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address}))
            .collect();
        serde_json::from_value(
            json!({"metadata": {"name": name}, "status": {"addresses": addresses}}),
        )
        .unwrap()
    }

    fn request(names: &[&str]) -> Request {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        Request::from_pem(pem.as_bytes()).unwrap()
    }

    /// Issue 18, finding 9: names and addresses that no node's certificate gets by itself, whatever
    /// the node says.
    #[test]
    fn serving_certificate_names_that_are_not_nodes() {
        for (name, expected) in [
            ("n1", true),
            ("N1.example.com", true),
            ("kubernetes-node-1", true),
            ("kubernetes", false),
            ("kubernetes.default", false),
            ("Kubernetes.Default.svc", false),
            ("kubernetes.default.svc.cluster.local.", false),
            ("web.shop.svc", false),
            ("web.shop.svc.cluster.local", false),
            ("localhost", false),
            ("x.localhost", false),
            ("*", false),
            ("*.example.com", false),
            ("n*", false),
            ("", false),
            (".", false),
        ] {
            assert_eq!(may_name_a_node(name), expected, "{name}");
        }
        for (address, expected) in [
            ("10.1.2.3", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(may_be_a_nodes(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn serving_certificate_is_for_what_is_the_nodes_alone() {
        let foreign =
            ["10.7.7.7", "10.96.0.1", "::ffff:10.96.0.77", "api.example.com", "n2", "10.2.2.2"];
        let all: Vec<&str> = foreign.into_iter().chain(["10.1.2.3"]).collect();
        let own = node("n1", &all);
        let other = node("n2", &["10.2.2.2"]);
        let reserved = Reserved {
            apiserver: ["10.7.7.7", "API.example.com"].into_iter().collect(),
            services: vec!["10.96.0.0/16".parse().unwrap()],
        };
        let may = |names: &[&str]| may_have(&own, [&other], &reserved, &request(names));
        assert!(may(&["n1", "10.1.2.3"]));
        assert!(may(&["N1"]));
        assert!(!may(&["n1", "10.9.9.9"]), "an address that the node does not have");
        for name in foreign {
            assert!(!may(&["n1", name]), "{name}");
        }
        let mut machine = own.clone();
        machine.metadata.labels = Some([(CONTROL_PLANE.to_owned(), String::new())].into());
        let may_machine = |names: &[&str]| may_have(&machine, [&other], &reserved, &request(names));
        assert!(may_machine(&["n1", "10.7.7.7"]), "the control plane is on the node's machine");
        assert!(!may_machine(&["n1", "10.7.7.8"]), "an address that the node does not have");
        for name in ["10.96.0.1", "n2", "10.2.2.2"] {
            assert!(!may_machine(&["n1", name]), "{name}");
        }
        let unknown = Reserved { services: Vec::new(), ..reserved };
        assert!(!may_have(&own, [&other], &unknown, &request(&["n1"])), "services may be anywhere");
    }
}

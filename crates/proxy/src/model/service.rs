use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::names::is_plain;
use super::warnings::WarningCollector;
use super::{Cidr, Endpoint, Family, Protocol, ServiceName};

/// How long ClientIP affinity lasts where the service does not say, in seconds: three hours.
const DEFAULT_AFFINITY: u32 = 10_800;
/// The longest affinity that the API allows, in seconds: a day.
const MAX_AFFINITY: i32 = 86_400;

/// The most addresses or ranges of one kind that are used of a service. Upstream uses all; of those
/// that an object can hold (some 75,000), rules would be made for each port.
const MAX_ADDRESSES: usize = 10_000;
/// The most rules of one service in shared chains and firewalls: its ports with each of its addresses.
const MAX_RULES: usize = 65_536;

/// Which endpoints traffic may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Those of all nodes.
    Cluster,
    /// Those of this node.
    Local,
}

/// The spec of a service, in one family.
#[derive(Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name.
    pub name: ServiceName,
    /// Its address inside the cluster.
    pub cluster_ip: IpAddr,
    /// External IPs.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of load balancers that keep the destination address (ipMode `VIP`).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `loadBalancerSourceRanges`; empty: all.
    pub source_ranges: Vec<Cidr>,
    /// A client stays with its endpoint for so many seconds; none: no affinity.
    pub affinity: Option<u32>,
    /// The policy for traffic to `cluster_ip`.
    pub internal_policy: Policy,
    /// The policy for traffic to all else.
    pub external_policy: Policy,
    /// The health-check node port.
    pub health_check_node_port: Option<u16>,
    /// Its ports.
    pub ports: Box<[Port]>,
}

/// One port of a service.
#[derive(Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name, empty when it is the only one and has none.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the service's addresses.
    pub port: u16,
    /// The port at the nodes' addresses.
    pub node_port: Option<u16>,
}

/// A service and the endpoints of each of its ports.
#[derive(Debug, PartialEq, Eq)]
pub struct Service {
    /// Its spec.
    pub spec: Arc<Spec>,
    /// The endpoints of `spec.ports`, in the same order; each list is in the order of its
    /// addresses as text.
    pub(super) endpoints: Vec<Box<[Endpoint]>>,
}

/// A port of a service with all that belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct PortView<'a> {
    /// The service.
    pub spec: &'a Spec,
    /// The port.
    pub port: &'a Port,
    /// Its endpoints.
    pub endpoints: &'a [Endpoint],
}

impl Service {
    /// Its ports.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_>> {
        self.spec.ports.iter().zip(&self.endpoints).map(|(port, endpoints)| PortView {
            spec: &self.spec,
            port,
            endpoints,
        })
    }
}

impl PortView<'_> {
    /// Whether the port can be reached by more than the cluster IP.
    pub fn is_external(&self) -> bool {
        self.spec.is_external(self.port)
    }

    /// Whether any node can send traffic to any endpoint.
    pub fn has_endpoints(&self) -> bool {
        self.endpoints.iter().any(Endpoint::is_usable)
    }

    /// The endpoints that traffic of a policy goes to from here.
    pub fn endpoints_for(&self, policy: Policy) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(move |endpoint| match policy {
            Policy::Cluster => endpoint.for_cluster,
            Policy::Local => endpoint.for_local,
        })
    }
}

/// `namespace/name:port`, or without the port when it has no name.
impl fmt::Display for PortView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.name.fmt(f)?;
        if self.port.name.is_empty() { Ok(()) } else { write!(f, ":{}", self.port.name) }
    }
}

impl Spec {
    fn is_external(&self, port: &Port) -> bool {
        port.node_port.is_some()
            || !self.load_balancer_ips.is_empty()
            || !self.external_ips.is_empty()
    }

    /// Whether traffic of the policy `Cluster` is ever sent from here. External traffic needs it
    /// under `Local` too: what comes from this node itself takes the short way to all endpoints.
    pub(super) fn uses_cluster(&self, port: &Port) -> bool {
        self.internal_policy == Policy::Cluster || self.is_external(port)
    }

    /// Whether traffic of the policy `Local` is ever sent from here.
    pub(super) fn uses_local(&self, port: &Port) -> bool {
        self.internal_policy == Policy::Local
            || (self.external_policy == Policy::Local && self.is_external(port))
    }

    /// Reads a service; none when there is nothing to do for it in this family. What is wrong with
    /// it is left out and complained about.
    pub(super) fn read(
        name: &ServiceName,
        service: &core::Service,
        family: Family,
        collector: &mut WarningCollector<'_>,
    ) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        let cluster_ip = cluster_ip(spec, family)?;
        if !name.is_plain() {
            collector.add("InvalidName", format_args!("the name {name:?} cannot stand in a rule"));
            return None;
        }
        let Some(cluster_ip) =
            address(cluster_ip, Special::Local).filter(|ip| Family::of(*ip) == family)
        else {
            collector.add(
                "InvalidAddress",
                format_args!("clusterIP {cluster_ip:?} is not a usable {family} address"),
            );
            return None;
        };
        let mut addresses = |field: &str, texts: &mut dyn Iterator<Item = &str>, special| {
            let mut found = Vec::new();
            let mut known = HashSet::new();
            for text in texts.map(str::trim).filter(|text| !text.is_empty()) {
                match address(text, special) {
                    Some(ip) if Family::of(ip) != family || !known.insert(ip) => {}
                    Some(ip) if found.len() < MAX_ADDRESSES => found.push(ip),
                    Some(ip) => collector.add(
                        "TooManyAddresses",
                        format_args!("{field} {ip} is left out: {MAX_ADDRESSES} are used"),
                    ),
                    None => collector.add(
                        "InvalidAddress",
                        format_args!("{field} {text:?} is not a usable IP address"),
                    ),
                }
            }
            found
        };
        let external_ips = addresses(
            "externalIP",
            &mut spec.external_ips.iter().flatten().map(String::as_str),
            Special::LinkLocal,
        );
        let ingress = service.status.iter().flat_map(|s| &s.load_balancer).flat_map(|l| &l.ingress);
        let load_balancer_ips = addresses(
            "load balancer IP",
            &mut ingress
                .flatten()
                .filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
                .filter_map(|ingress| ingress.ip.as_deref()),
            Special::Local,
        );
        let source_ranges = source_ranges(spec, family, collector);
        let mut ports = ports(spec, collector);
        let each = 1 + external_ips.len() + load_balancer_ips.len() + source_ranges.len();
        if ports.len() > (MAX_RULES / each).max(1) {
            collector.add(
                "TooManyRules",
                format_args!(
                    "{} ports with {each} addresses and source ranges each need more than \
                     {MAX_RULES} rules: some ports are left out",
                    ports.len()
                ),
            );
            ports.truncate((MAX_RULES / each).max(1));
        }
        let is_external = match spec.type_.as_deref() {
            Some("LoadBalancer" | "NodePort") => true,
            None | Some("ClusterIP") => {
                spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty())
            }
            Some(_) => false,
        };
        let external_policy = match spec.external_traffic_policy.as_deref() {
            Some("Local") if is_external => Policy::Local,
            _ => Policy::Cluster,
        };
        let health_check =
            spec.type_.as_deref() == Some("LoadBalancer") && external_policy == Policy::Local;
        Some(Self {
            name: name.clone(),
            cluster_ip,
            external_ips,
            load_balancer_ips,
            source_ranges,
            affinity: (spec.session_affinity.as_deref() == Some("ClientIP"))
                .then(|| affinity(spec)),
            internal_policy: match spec.internal_traffic_policy.as_deref() {
                Some("Local") => Policy::Local,
                _ => Policy::Cluster,
            },
            external_policy,
            health_check_node_port: spec
                .health_check_node_port
                .filter(|_| health_check)
                .and_then(port_number),
            ports: ports.into(),
        })
    }
}

/// The cluster IP of a family, by `ipFamilies` where it is set. None for headless services.
fn cluster_ip(spec: &core::ServiceSpec, family: Family) -> Option<&str> {
    let set = |ip: &&str| !ip.is_empty() && *ip != "None";
    let first = spec.cluster_ip.as_deref().filter(set)?;
    match spec.ip_families.as_deref() {
        None | Some([]) => (first.contains(':') == (family == Family::V6)).then_some(first),
        Some(families) => {
            let position = families.iter().position(|name| name == family.as_str())?;
            spec.cluster_ips.as_ref()?.get(position).map(String::as_str).filter(set)
        }
    }
}

fn source_ranges(
    spec: &core::ServiceSpec,
    family: Family,
    collector: &mut WarningCollector<'_>,
) -> Vec<Cidr> {
    let mut ranges: Vec<Cidr> = Vec::new();
    let mut known = HashSet::new();
    for text in spec.load_balancer_source_ranges.iter().flatten() {
        // validation once allowed blanks around them
        match text.trim() {
            "" => {}
            text => match text.parse::<Cidr>() {
                Ok(range) if range.family() != family || !known.insert(range) => {}
                Ok(range) if ranges.len() < MAX_ADDRESSES || range.is_all() => ranges.push(range),
                Ok(range) => collector.add(
                    "TooManySourceRanges",
                    format_args!("{range} is left out: {MAX_ADDRESSES} are used"),
                ),
                Err(error) => {
                    collector.add("InvalidSourceRange", format_args!("{error}"));
                    // It matches nobody. Without any range everybody would be allowed.
                    let nobody = nobody(family);
                    if known.insert(nobody) {
                        ranges.push(nobody);
                    }
                }
            },
        }
    }
    if ranges.iter().any(Cidr::is_all) { Vec::new() } else { ranges }
}

/// A range that no packet comes from.
fn nobody(family: Family) -> Cidr {
    Cidr::host(match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    })
}

fn affinity(spec: &core::ServiceSpec) -> u32 {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    config.and_then(|config| config.timeout_seconds).map_or(DEFAULT_AFFINITY, |seconds| {
        u32::try_from(seconds.clamp(1, MAX_AFFINITY)).unwrap_or(DEFAULT_AFFINITY)
    })
}

fn ports(spec: &core::ServiceSpec, collector: &mut WarningCollector<'_>) -> Vec<Port> {
    let mut ports = Vec::new();
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for port in spec.ports.iter().flatten() {
        let name = port.name.as_deref().unwrap_or_default();
        let protocol = Protocol::parse(port.protocol.as_deref());
        let (Some(protocol), Some(number), true) =
            (protocol, port_number(port.port), is_plain(name))
        else {
            collector.add(
                "InvalidPort",
                format_args!(
                    "port {name:?} {}/{} is left out",
                    port.port,
                    port.protocol.as_deref().unwrap_or("TCP")
                ),
            );
            continue;
        };
        if !names.insert((name, protocol)) | !numbers.insert((number, protocol)) {
            collector.add(
                "DuplicatePort",
                format_args!(
                    "port {name:?} {number}/{} is there twice; the first counts",
                    protocol.as_str()
                ),
            );
            continue;
        }
        let node_port = port.node_port.filter(|port| *port != 0).and_then(port_number);
        ports.push(Port { name: name.into(), protocol, port: number, node_port });
    }
    ports
}

/// A port as a number that packets can have; 0 is none.
pub(super) fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// How much of the addresses with a meaning of their own is refused.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Special {
    /// Unspecified, loopback and multicast ones.
    Local,
    /// Link-local ones too: traffic must not be sent to services of the node's host.
    LinkLocal,
}

/// Parses an address; none if it is invalid, or one that traffic must not be sent to. Leading zeros
/// are refused: readers differ in what they mean.
pub(super) fn address(text: &str, special: Special) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    let (mapped, link_local) = match ip {
        IpAddr::V4(v4) => (v4.is_broadcast(), v4.is_link_local()),
        IpAddr::V6(v6) => (v6.to_ipv4_mapped().is_some(), v6.is_unicast_link_local()),
    };
    let refused = mapped
        || ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || (special == Special::LinkLocal && link_local);
    (!refused).then_some(ip)
}

//! EndpointSlices, read into what is needed of them, and merged per port of a service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;

use super::names::is_plain;
use super::service::{Port, Spec, Special, address, port_number};
use super::topology::{Hint, Hinted, categorize};
use super::warnings::Complaints;
use super::{Address, Endpoint, Family, Node, Protocol};

/// More endpoints than this are left out of a port: a chain of so many rules is no balancing any
/// more, and memory is bounded by it.
const MAX_ENDPOINTS: usize = 10_000;

/// What is kept of an EndpointSlice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slice {
    ports: Box<[SlicePort]>,
    endpoints: Box<[SliceEndpoint]>,
}

#[derive(Debug, PartialEq, Eq)]
struct SlicePort {
    name: Box<str>,
    protocol: Protocol,
    number: u16,
}

#[derive(Debug, PartialEq, Eq)]
struct SliceEndpoint {
    ip: IpAddr,
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    node: Hint,
    zones: Box<[Box<str>]>,
}

impl Slice {
    /// Reads a slice of this family; none for one of another. What is wrong with it is left out
    /// and complained about.
    pub(super) fn read(
        slice: &discovery::EndpointSlice,
        family: Family,
        node: &Node,
        complaints: &mut Complaints<'_>,
    ) -> Option<Self> {
        if slice.address_type != family.as_str() {
            return None;
        }
        let mut ports = Vec::new();
        for port in slice.ports.iter().flatten() {
            let number = port.port.and_then(port_number);
            let protocol = Protocol::parse(port.protocol.as_deref());
            match (port.name.as_deref(), protocol, number) {
                (Some(name), Some(protocol), Some(number)) if is_plain(name) => {
                    ports.push(SlicePort { name: name.into(), protocol, number });
                }
                (name, ..) => complaints.add(
                    "InvalidPort",
                    format_args!("endpoint port {:?} is left out", name.unwrap_or_default()),
                ),
            }
        }
        let endpoints = slice.endpoints.iter().flatten();
        let endpoints =
            endpoints.filter_map(|e| read_endpoint(e, family, node, complaints)).collect();
        Some(Self { ports: ports.into(), endpoints })
    }
}

fn read_endpoint(
    endpoint: &discovery::Endpoint,
    family: Family,
    node: &Node,
    complaints: &mut Complaints<'_>,
) -> Option<SliceEndpoint> {
    let text = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    let Some(ip) = address(text, Special::LinkLocal).filter(|ip| Family::of(*ip) == family) else {
        complaints.add(
            "InvalidAddress",
            format_args!("endpoint {text:?} is no {family} address that traffic may be led to"),
        );
        return None;
    };
    let conditions = endpoint.conditions.as_ref();
    let hints = endpoint.hints.as_ref();
    let nodes = hints.and_then(|h| h.for_nodes.as_deref()).unwrap_or_default();
    let zones = hints.and_then(|h| h.for_zones.as_deref()).unwrap_or_default();
    Some(SliceEndpoint {
        ip,
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        serving: conditions.and_then(|c| c.serving).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(&node.name),
        node: hint(nodes.iter().map(|n| n.name.as_str()), Some(&node.name)),
        zones: zones.iter().map(|zone| zone.name.as_str().into()).collect(),
    })
}

fn hint<'a>(names: impl ExactSizeIterator<Item = &'a str>, ours: Option<&str>) -> Hint {
    if names.len() == 0 {
        return Hint::None;
    }
    let mut names = names;
    if names.any(|name| ours == Some(name)) { Hint::Us } else { Hint::Others }
}

/// The endpoints of every port of a service, from all its slices.
pub(super) fn merge<'a>(
    spec: &Spec,
    slices: impl Iterator<Item = &'a Slice> + Clone,
    zone: Option<&str>,
    complaints: &mut Complaints<'_>,
) -> Vec<Box<[Endpoint]>> {
    let merge_port = |port: &Port| {
        let mut found = merge_port(port, slices.clone(), zone);
        // in the order of their text, as upstream: the order of rules follows from it
        found.sort_by_cached_key(|hinted| hinted.endpoint.address.to_string());
        if found.len() > MAX_ENDPOINTS {
            complaints.add(
                "TooManyEndpoints",
                format_args!(
                    "port {:?} has {} endpoints; {MAX_ENDPOINTS} are used",
                    port.name,
                    found.len()
                ),
            );
            found.truncate(MAX_ENDPOINTS);
        }
        categorize(&mut found, spec.uses_cluster(port), spec.uses_local(port));
        found.into_iter().map(|hinted| hinted.endpoint).collect()
    };
    spec.ports.iter().map(merge_port).collect()
}

fn merge_port<'a>(
    port: &Port,
    slices: impl Iterator<Item = &'a Slice>,
    zone: Option<&str>,
) -> Vec<Hinted> {
    let mut found = BTreeMap::new();
    for slice in slices {
        let same = |p: &&SlicePort| p.name == port.name && p.protocol == port.protocol;
        for number in slice.ports.iter().filter(same).map(|p| p.number) {
            for endpoint in slice.endpoints.iter() {
                let address = Address { ip: endpoint.ip, port: number };
                // An address can be there twice: in two slices while it moves, or for two pods
                // when one got the address of another that terminates. The living one counts.
                if !endpoint.terminating || !found.contains_key(&address) {
                    found.insert(address, hinted(endpoint, address, zone));
                }
            }
        }
    }
    found.into_values().collect()
}

fn hinted(endpoint: &SliceEndpoint, address: Address, zone: Option<&str>) -> Hinted {
    let &SliceEndpoint { ready, serving, terminating, local, node, .. } = endpoint;
    Hinted {
        endpoint: Endpoint {
            address,
            ready,
            serving,
            terminating,
            local,
            for_cluster: false,
            for_local: false,
        },
        node,
        zone: hint(endpoint.zones.iter().map(|zone| &**zone), zone),
    }
}

/// The slices that a cluster would have that has only Endpoints: one for each subset and family.
pub(super) fn from_endpoints(endpoints: &core::Endpoints) -> Vec<discovery::EndpointSlice> {
    let service = endpoints.metadata.name.clone().unwrap_or_default();
    let mut slices = Vec::new();
    for (index, subset) in endpoints.subsets.iter().flatten().enumerate() {
        for family in [Family::V4, Family::V6] {
            let of_family = |address: &&core::EndpointAddress| {
                address.ip.contains(':') == (family == Family::V6)
            };
            let ready = subset
                .addresses
                .iter()
                .flatten()
                .filter(of_family)
                .map(|a| slice_endpoint(a, true));
            let not_ready = subset.not_ready_addresses.iter().flatten().filter(of_family);
            let all: Vec<_> = ready.chain(not_ready.map(|a| slice_endpoint(a, false))).collect();
            if all.is_empty() {
                continue;
            }
            let mut metadata = endpoints.metadata.clone();
            metadata.name = Some(format!("{service}-{index}-{family}"));
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(super::tracker::SERVICE_LABEL.to_owned(), service.clone());
            slices.push(discovery::EndpointSlice {
                address_type: family.as_str().to_owned(),
                endpoints: Some(all),
                metadata,
                ports: Some(subset.ports.iter().flatten().map(slice_port).collect()),
            });
        }
    }
    slices
}

fn slice_endpoint(address: &core::EndpointAddress, ready: bool) -> discovery::Endpoint {
    discovery::Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(discovery::EndpointConditions {
            ready: Some(ready),
            serving: Some(ready),
            terminating: None,
        }),
        node_name: address.node_name.clone(),
        ..Default::default()
    }
}

fn slice_port(port: &core::EndpointPort) -> discovery::EndpointPort {
    discovery::EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: port.protocol.clone(),
    }
}

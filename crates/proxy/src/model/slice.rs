//! EndpointSlices, read into what is needed of them, and merged per port of a service.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names::is_plain;
use super::service::{Port, Spec, Special, address, port_number};
use super::topology::{Hint, HintedEndpoint, categorize};
use super::tracker::{LABELS, SERVICE_LABEL, TRIGGER_ANNOTATION};
use super::warnings::WarningCollector;
use super::{Address, Endpoint, Family, Node, Protocol};

/// More endpoints than this are left out of a port: a chain of so many rules is no balancing any
/// more, and memory is bounded by it.
const MAX_ENDPOINTS: usize = 10_000;
/// The same for all ports of a service together.
const MAX_SERVICE_ENDPOINTS: usize = 100_000;
/// Endpoints of a port beyond these are ignored: a slice can name each of its endpoints with
/// thousands of numbers for one port.
const MAX_FOUND: usize = 10 * MAX_ENDPOINTS;
/// The same for endpoints that are there more than once.
const MAX_LOOKED_AT: usize = 10 * MAX_FOUND;
/// The most zones and nodes that the hints of an endpoint may name: the API's.
const MAX_HINTS: usize = 8;

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
        collector: &mut WarningCollector<'_>,
    ) -> Option<Self> {
        if slice.address_type != family.as_str() {
            return None;
        }
        let mut ports = Vec::new();
        let mut known = HashSet::new();
        for port in slice.ports.iter().flatten() {
            let number = port.port.and_then(port_number);
            let protocol = Protocol::parse(port.protocol.as_deref());
            match (port.name.as_deref(), protocol, number) {
                (Some(name), Some(protocol), Some(number)) if is_plain(name) => {
                    if known.insert((name, protocol, number)) {
                        ports.push(SlicePort { name: name.into(), protocol, number });
                    }
                }
                (name, ..) => collector.add(
                    "InvalidPort",
                    format_args!("endpoint port {:?} is left out", name.unwrap_or_default()),
                ),
            }
        }
        let endpoints = slice.endpoints.iter().flatten();
        let endpoints =
            endpoints.filter_map(|e| read_endpoint(e, family, node, collector)).collect();
        Some(Self { ports: ports.into(), endpoints })
    }
}

fn read_endpoint(
    endpoint: &discovery::Endpoint,
    family: Family,
    node: &Node,
    collector: &mut WarningCollector<'_>,
) -> Option<SliceEndpoint> {
    let text = endpoint.addresses.first().map(String::as_str).unwrap_or_default();
    let Some(ip) = address(text, Special::LinkLocal).filter(|ip| Family::of(*ip) == family) else {
        collector.add(
            "InvalidAddress",
            format_args!("endpoint {text:?} is no {family} address that traffic may be sent to"),
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
        node: hint(nodes.iter().take(MAX_HINTS).map(|n| n.name.as_str()), Some(&node.name)),
        zones: zones.iter().take(MAX_HINTS).map(|zone| zone.name.as_str().into()).collect(),
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
    slices: impl Iterator<Item = &'a Slice>,
    zone: Option<&str>,
    collector: &mut WarningCollector<'_>,
) -> Vec<Box<[Endpoint]>> {
    let sources = sources(slices);
    let mut left = MAX_SERVICE_ENDPOINTS;
    let merge_port = |port: &Port| {
        let most = left.min(MAX_ENDPOINTS);
        let sources = sources.get(&(&*port.name, port.protocol));
        let sources = sources.map(Vec::as_slice).unwrap_or_default();
        let mut found = merge_port(if most > 0 { sources } else { &[] }, zone);
        // in the order of their text, as upstream: the order of rules follows from it
        found.sort_by_cached_key(|hinted| hinted.endpoint.address.to_string());
        if found.len() > most || most == 0 && !sources.is_empty() {
            collector.add(
                "TooManyEndpoints",
                format_args!("port {:?} has {} endpoints; {most} are used", port.name, found.len()),
            );
            found.truncate(most);
        }
        left -= found.len();
        categorize(&mut found, spec.uses_cluster(port), spec.uses_local(port));
        found.into_iter().map(|hinted| hinted.endpoint).collect()
    };
    spec.ports.iter().map(merge_port).collect()
}

/// The slices with endpoints of a port, and the number that it has in each.
type Sources<'a> = HashMap<(&'a str, Protocol), Vec<(&'a Slice, u16)>>;

fn sources<'a>(slices: impl Iterator<Item = &'a Slice>) -> Sources<'a> {
    let mut sources = Sources::new();
    for slice in slices {
        for port in &slice.ports {
            sources.entry((&port.name, port.protocol)).or_default().push((slice, port.number));
        }
    }
    sources
}

fn merge_port(sources: &[(&Slice, u16)], zone: Option<&str>) -> Vec<HintedEndpoint> {
    let mut found = BTreeMap::new();
    let all = sources.iter().flat_map(|(slice, port)| slice.endpoints.iter().map(|e| (e, *port)));
    for (endpoint, port) in all.take(MAX_LOOKED_AT) {
        let address = Address { ip: endpoint.ip, port };
        // An address can be there twice: in two slices while it moves, or for two pods when one got
        // the address of another that terminates. The living one counts.
        if !endpoint.terminating || !found.contains_key(&address) {
            found.insert(address, hinted(endpoint, address, zone));
        }
        if found.len() >= MAX_FOUND {
            break;
        }
    }
    found.into_values().collect()
}

fn hinted(endpoint: &SliceEndpoint, address: Address, zone: Option<&str>) -> HintedEndpoint {
    let &SliceEndpoint { ready, serving, terminating, local, node, .. } = endpoint;
    HintedEndpoint {
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
    let metadata = slice_metadata(&endpoints.metadata, &service);
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
            let mut metadata = metadata.clone();
            metadata.name = Some(format!("{service}-{index}-{family}"));
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

/// What slices have of the metadata of their endpoints: no more than is used, for there may be
/// a slice for each address.
fn slice_metadata(endpoints: &ObjectMeta, service: &str) -> ObjectMeta {
    let mut labels = endpoints.labels.clone().unwrap_or_default();
    labels.retain(|name, _| LABELS.contains(&name.as_str()));
    labels.insert(SERVICE_LABEL.to_owned(), service.to_owned());
    let mut annotations = endpoints.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| name == TRIGGER_ANNOTATION);
    ObjectMeta {
        namespace: endpoints.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
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

//! PURE: the endpoint slices that a service should have, and the fewest writes that lead to them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Node, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;

use super::topology::{self, Change, Slices, Topology};
use crate::workload::{is_finished, is_ready};
use longshore_informer::key_of;
use longshore_metrics::Gauge;

/// The controller in the label `managed-by` of its slices.
pub(crate) const MANAGED_BY: &str = "endpointslice-controller.k8s.io";
pub(crate) const LABEL_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(crate) const LABEL_SERVICE: &str = "kubernetes.io/service-name";
pub(crate) const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
pub(crate) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The writes for one service.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// New slices.
    pub(crate) create: Vec<EndpointSlice>,
    /// Slices that replace those of their names.
    pub(crate) update: Vec<EndpointSlice>,
    /// The names of slices that go.
    pub(crate) delete: Vec<String>,
    /// Pods that were left out because their node is not known, with the node: they are tried later.
    pub(crate) without_node: Vec<(String, String)>,
    /// What there is to say about topology hints.
    pub(crate) hints: Vec<Change>,
    pub(crate) counts: Counts,
}

/// Numbers of what is planned, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Endpoints that were in no slice of their ports.
    pub(crate) added: usize,
    /// Endpoints that are not what they were.
    pub(crate) updated: usize,
    /// Endpoints that are in no slice any more.
    pub(crate) removed: usize,
    /// Endpoints in all slices.
    pub(crate) endpoints: usize,
    /// Slices as there are then.
    pub(crate) slices: usize,
    /// Slices as few as they could be.
    pub(crate) desired_slices: usize,
}

impl Plan {
    /// The number of slices that are written or deleted.
    pub(crate) fn changes(&self) -> usize {
        self.create.len().saturating_add(self.update.len()).saturating_add(self.delete.len())
    }
}

/// Whether the pod has an address and is not over.
pub(crate) fn has_endpoint(pod: &Pod, include_terminating: bool) -> bool {
    let Some(status) = &pod.status else { return false };
    let has_address = status.pod_ip.as_ref().is_some_and(|ip| !ip.is_empty())
        || status.pod_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    !is_finished(pod)
        && has_address
        && (include_terminating || pod.metadata.deletion_timestamp.is_none())
}

/// The port of the pod that the service's port leads to; `None`: it has none of that name.
pub(crate) fn find_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let in_container = |container: &Container| {
        container.ports.iter().flatten().find_map(|port| {
            let is_it = port.name.as_deref() == Some(name)
                && port.protocol.as_deref().unwrap_or("TCP") == protocol;
            is_it.then_some(port.container_port)
        })
    };
    spec.containers.iter().chain(sidecars).find_map(in_container)
}

/// Whether the endpoint of the pod has its host name: the pod is in the service's subdomain.
pub(crate) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.as_ref().filter(|name| !name.is_empty())?;
    let is_here = spec.subdomain.is_some()
        && spec.subdomain == service.metadata.name
        && pod.metadata.namespace == service.metadata.namespace;
    is_here.then(|| hostname.clone())
}

/// Whether the service has no cluster IP.
pub(crate) fn is_headless(service: &Service) -> bool {
    let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref());
    matches!(ip, None | Some("" | "None"))
}

/// The reference to the pod in an endpoint.
pub(crate) fn target(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// The address types of a service's slices.
fn address_types(service: &Service) -> Vec<&'static str> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let families = spec.ip_families.iter().flatten();
    let mut types: Vec<&'static str> = families
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some("IPv4"),
            "IPv6" => Some("IPv6"),
            _ => None,
        })
        .collect();
    if types.is_empty() {
        types = match spec.cluster_ip.as_deref().map(str::parse) {
            Some(Ok(IpAddr::V4(_))) => vec!["IPv4"],
            Some(Ok(IpAddr::V6(_))) => vec!["IPv6"],
            _ => vec!["IPv4", "IPv6"],
        };
    }
    types.dedup();
    types
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(find_port(pod, port)?),
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

/// What slices are grouped by. Ports in another order are the same.
pub(crate) type PortsKey = Vec<(String, Option<i32>, String, Option<String>)>;

pub(crate) fn ports_key(ports: &[EndpointPort]) -> PortsKey {
    let mut key: PortsKey = ports
        .iter()
        .map(|port| {
            (
                port.name.clone().unwrap_or_default(),
                port.port,
                port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                port.app_protocol.clone(),
            )
        })
        .collect();
    key.sort();
    key
}

/// The hints of a ready endpoint by the service's traffic distribution.
fn hints(service: &Service, node: Option<&String>, zone: Option<&String>) -> Option<EndpointHints> {
    let by_node = topology::distribution(service)? == "PreferSameNode";
    let hints = EndpointHints {
        for_zones: zone.map(|zone| vec![ForZone { name: zone.clone() }]),
        for_nodes: node.filter(|_| by_node).map(|node| vec![ForNode { name: node.clone() }]),
    };
    (hints != EndpointHints::default()).then_some(hints)
}

/// The endpoint of a pod; `None`: it has no address of that type.
fn endpoint(
    pod: &Pod,
    node: Option<&Node>,
    service: &Service,
    address_type: &str,
) -> Option<Endpoint> {
    let status = pod.status.as_ref()?;
    let addresses: Vec<String> = status
        .pod_ips
        .iter()
        .flatten()
        .filter_map(|ip| ip.ip.parse::<IpAddr>().ok())
        .filter(|ip| ip.is_ipv6() == (address_type == "IPv6"))
        .map(|ip| ip.to_string())
        .collect();
    if addresses.is_empty() {
        return None;
    }
    let spec = service.spec.as_ref();
    let publishes = spec.and_then(|spec| spec.publish_not_ready_addresses).unwrap_or_default();
    let serving = is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let ready = publishes || (serving && !terminating);
    let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let node_name = node_name.filter(|name| !name.is_empty());
    let zone = node.and_then(topology::zone).cloned();
    Some(Endpoint {
        hints: if ready { hints(service, node_name.as_ref(), zone.as_ref()) } else { None },
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service),
        node_name,
        target_ref: Some(target(pod)),
        zone,
        ..Endpoint::default()
    })
}

/// Which endpoint it is, whatever its state.
type EndpointKey = (Vec<String>, Option<String>, Option<String>);

fn endpoint_key(endpoint: &Endpoint) -> EndpointKey {
    let mut addresses = endpoint.addresses.clone();
    addresses.sort();
    let target = endpoint.target_ref.as_ref();
    (
        addresses,
        target.and_then(|target| target.namespace.clone()),
        target.and_then(|target| target.name.clone()),
    )
}

/// Whether they are the same but for versions of what they refer to.
pub(super) fn is_same(one: &Endpoint, other: &Endpoint) -> bool {
    if one == other {
        return true;
    }
    let without_version = |endpoint: &Endpoint| {
        let mut endpoint = endpoint.clone();
        if let Some(target) = &mut endpoint.target_ref {
            target.resource_version = None;
        }
        endpoint.addresses.sort();
        endpoint
    };
    without_version(one) == without_version(other)
}

/// Endpoints that belong into slices of the same ports, in a stable order.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) ports: Vec<EndpointPort>,
    endpoints: BTreeMap<EndpointKey, Endpoint>,
}

impl Group {
    pub(crate) fn new(ports: Vec<EndpointPort>) -> Self {
        Group { ports, endpoints: BTreeMap::new() }
    }

    pub(crate) fn insert(&mut self, endpoint: Endpoint) {
        self.endpoints.insert(endpoint_key(&endpoint), endpoint);
    }

    /// Gives the endpoint the hints that it has in a slice.
    fn keep_hints(&mut self, old: &Endpoint) {
        if let Some(endpoint) = self.endpoints.get_mut(&endpoint_key(old)) {
            endpoint.hints = old.hints.clone();
        }
    }

    fn pop(&mut self) -> Option<Endpoint> {
        self.endpoints.pop_first().map(|(_, endpoint)| endpoint)
    }
}

/// The slices of one owner and one address type.
pub(crate) struct Template<'a> {
    /// What a new slice starts with, without ports and endpoints.
    pub(crate) slice: EndpointSlice,
    /// Whether a slice's labels are to be corrected.
    pub(crate) is_outdated: &'a dyn Fn(&EndpointSlice) -> bool,
    /// The most endpoints of a slice.
    pub(crate) maximum: usize,
    /// Whether there is a slice even if there are no endpoints.
    pub(crate) has_placeholder: bool,
}

impl Template<'_> {
    fn filled(&self, ports: &[EndpointPort]) -> EndpointSlice {
        let mut slice = self.slice.clone();
        slice.ports = Some(ports.to_vec());
        slice.endpoints = Some(Vec::new());
        slice
    }

    /// Gives an existing slice the labels that it should have.
    fn relabel(&self, slice: &mut EndpointSlice) {
        slice.metadata.labels = self.slice.metadata.labels.clone();
        if self.slice.metadata.owner_references.is_some() {
            slice.metadata.owner_references = self.slice.metadata.owner_references.clone();
        }
        if self.slice.metadata.annotations.is_some() {
            slice.metadata.annotations = self.slice.metadata.annotations.clone();
        }
    }
}

fn count(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

fn name(slice: &EndpointSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}

/// The fewest writes by which `existing` slices hold the endpoints of these groups.
///
/// A slice that stays is changed only if an endpoint of it changed; endpoints that are left fill
/// slices that change anyway, then one unchanged slice that has room for all of them, then new ones.
pub(crate) fn arrange(
    template: &Template<'_>,
    existing: &[&EndpointSlice],
    groups: HashMap<PortsKey, Group>,
    plan: &mut Plan,
) {
    let mut by_ports: HashMap<PortsKey, Vec<&EndpointSlice>> = HashMap::new();
    for slice in existing {
        let key = ports_key(slice.ports.as_deref().unwrap_or_default());
        by_ports.entry(key).or_default().push(slice);
    }
    let mut groups: Vec<(PortsKey, Group)> = groups.into_iter().collect();
    groups.sort_by(|one, other| one.0.cmp(&other.0));
    let (mut create, mut update) = (Vec::new(), Vec::new());
    let mut delete: Vec<&EndpointSlice> = Vec::new();
    let mut desired_slices = 0_usize;
    for (key, group) in groups {
        let slices = by_ports.remove(&key).unwrap_or_default();
        plan.counts.of_group(&slices, &group);
        let fewest = group.endpoints.len().div_ceil(template.maximum.max(1));
        desired_slices = desired_slices.saturating_add(fewest);
        arrange_group(template, &slices, group, (&mut create, &mut update, &mut delete));
    }
    let gone = by_ports.values().flatten().map(|slice| count(slice)).sum();
    plan.counts.removed = plan.counts.removed.saturating_add(gone);
    let least = usize::from(template.has_placeholder);
    plan.counts.desired_slices =
        plan.counts.desired_slices.saturating_add(desired_slices.max(least));
    let mut unwanted: Vec<(PortsKey, Vec<&EndpointSlice>)> = by_ports.into_iter().collect();
    unwanted.sort_by(|one, other| one.0.cmp(&other.0));
    delete.extend(unwanted.into_iter().flat_map(|(_, slices)| slices));
    if template.has_placeholder && create.is_empty() && existing.len() == delete.len() {
        let is_placeholder = |slice: &EndpointSlice| {
            count(slice) == 0
                && slice.ports.as_ref().is_none_or(Vec::is_empty)
                && slice.metadata.labels == template.slice.metadata.labels
        };
        match delete.as_slice() {
            [only] if is_placeholder(only) => delete.clear(),
            _ => create.push(template.filled(&[])),
        }
    }
    // A slice that would go takes the content of one that would come.
    while let Some(old) = delete.last()
        && let Some(mut new) = create.pop()
    {
        new.metadata.name = old.metadata.name.clone();
        new.metadata.generate_name = old.metadata.generate_name.clone();
        new.metadata.resource_version = old.metadata.resource_version.clone();
        new.metadata.uid = old.metadata.uid.clone();
        update.push(new);
        delete.pop();
    }
    let slices = existing.len().saturating_add(create.len()).saturating_sub(delete.len());
    plan.counts.slices = plan.counts.slices.saturating_add(slices);
    plan.create.append(&mut create);
    plan.update.append(&mut update);
    plan.delete.extend(delete.into_iter().map(name));
}

impl Counts {
    /// Compares the endpoints of existing slices of the same ports with those that there should be.
    fn of_group(&mut self, existing: &[&EndpointSlice], group: &Group) {
        let mut kept = 0_usize;
        for endpoint in existing.iter().flat_map(|slice| slice.endpoints.iter().flatten()) {
            match group.endpoints.get(&endpoint_key(endpoint)) {
                Some(desired) => {
                    kept = kept.saturating_add(1);
                    let is_changed = usize::from(!is_same(desired, endpoint));
                    self.updated = self.updated.saturating_add(is_changed);
                }
                None => self.removed = self.removed.saturating_add(1),
            }
        }
        let all = group.endpoints.len();
        self.added = self.added.saturating_add(all.saturating_sub(kept));
        self.endpoints = self.endpoints.saturating_add(all);
    }
}

/// The sums of [`Counts`] of all services or Endpoints, for gauges.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    known: HashMap<String, Counts>,
    endpoints: usize,
    slices: usize,
    desired_slices: usize,
}

impl Totals {
    /// Replaces those of a key; `None`: it is gone.
    pub(crate) fn set(&mut self, key: &str, counts: Option<Counts>) {
        let old = match counts {
            Some(counts) => self.known.insert(key.to_owned(), counts),
            None => self.known.remove(key),
        };
        let (old, new) = (old.unwrap_or_default(), counts.unwrap_or_default());
        let sum = |sum: usize, new: usize, old: usize| sum.saturating_add(new).saturating_sub(old);
        self.endpoints = sum(self.endpoints, new.endpoints, old.endpoints);
        self.slices = sum(self.slices, new.slices, old.slices);
        self.desired_slices = sum(self.desired_slices, new.desired_slices, old.desired_slices);
    }

    /// Shows the sums: endpoints, slices, and slices as few as they could be.
    pub(crate) fn show(&self, [endpoints, slices, desired]: [&Gauge; 3]) {
        endpoints.set(self.endpoints as f64);
        slices.set(self.slices as f64);
        desired.set(self.desired_slices as f64);
    }
}

type Writes<'w, 'a> =
    (&'w mut Vec<EndpointSlice>, &'w mut Vec<EndpointSlice>, &'w mut Vec<&'a EndpointSlice>);

fn arrange_group<'a>(
    template: &Template<'_>,
    existing: &[&'a EndpointSlice],
    mut group: Group,
    (create, update, delete): Writes<'_, 'a>,
) {
    let mut changed: Vec<EndpointSlice> = Vec::new();
    let mut unchanged: Vec<&EndpointSlice> = Vec::new();
    for slice in existing {
        let mut kept = Vec::new();
        let mut is_changed = false;
        for endpoint in slice.endpoints.iter().flatten() {
            match group.endpoints.remove(&endpoint_key(endpoint)) {
                Some(desired) => {
                    is_changed |= !is_same(&desired, endpoint);
                    kept.push(desired);
                }
                None => is_changed = true,
            }
        }
        if is_changed && kept.is_empty() {
            delete.push(slice);
        } else if is_changed || (template.is_outdated)(slice) {
            let mut slice = (*slice).clone();
            slice.endpoints = Some(kept);
            template.relabel(&mut slice);
            changed.push(slice);
        } else {
            unchanged.push(slice);
        }
    }
    changed.sort_by_key(|slice| std::cmp::Reverse(count(slice)));
    let fill = |slice: &mut EndpointSlice, group: &mut Group| {
        let endpoints = slice.endpoints.get_or_insert_default();
        while endpoints.len() < template.maximum
            && let Some(endpoint) = group.pop()
        {
            endpoints.push(endpoint);
        }
    };
    for slice in &mut changed {
        fill(slice, &mut group);
    }
    while !group.endpoints.is_empty() {
        let left = group.endpoints.len();
        let remaining = |slice: &EndpointSlice| template.maximum.checked_sub(count(slice) + left);
        let fitting = unchanged
            .iter()
            .enumerate()
            .filter(|(_, slice)| left < template.maximum && count(slice) > 0)
            .filter_map(|(at, slice)| Some((remaining(slice)?, at)))
            .min();
        match fitting {
            Some((_, at)) => {
                let mut slice = unchanged.remove(at).clone();
                fill(&mut slice, &mut group);
                changed.push(slice);
            }
            None if template.maximum == 0 => break,
            None => {
                let mut slice = template.filled(&group.ports);
                fill(&mut slice, &mut group);
                create.push(slice);
            }
        }
    }
    update.append(&mut changed);
}

fn is_reserved(label: &str) -> bool {
    [LABEL_SERVICE, LABEL_MANAGED_BY, LABEL_HEADLESS].contains(&label)
}

/// The labels of a service's slices: its own and those that name it.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let own = service.metadata.labels.iter().flatten();
    let mut labels: BTreeMap<String, String> = own
        .filter(|(label, _)| !is_reserved(label))
        .map(|(label, value)| (label.clone(), value.clone()))
        .collect();
    if is_headless(service) {
        labels.insert(LABEL_HEADLESS.into(), String::new());
    }
    labels.insert(LABEL_SERVICE.into(), service.metadata.name.clone().unwrap_or_default());
    labels.insert(LABEL_MANAGED_BY.into(), MANAGED_BY.into());
    labels
}

/// The prefix of generated names.
pub(crate) fn prefix(name: &str) -> String {
    // A generated name has five more characters, of 253.
    match name.len() < 248 {
        true => format!("{name}-"),
        false => name.to_owned(),
    }
}

fn template_of(service: &Service, address_type: &str) -> EndpointSlice {
    let name = service.metadata.name.clone().unwrap_or_default();
    EndpointSlice {
        address_type: address_type.into(),
        metadata: ObjectMeta {
            generate_name: Some(prefix(&name)),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Service".into(),
                name,
                uid: service.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        ..EndpointSlice::default()
    }
}

fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    slice.metadata.owner_references.iter().flatten().any(|owner| {
        Some(&owner.uid) == service.metadata.uid.as_ref()
            && owner.kind == "Service"
            && owner.api_version == "v1"
    })
}

/// What is to be written for a service that has a selector. `existing` are the slices of this
/// controller for it; `node` finds nodes by name. `topology` says and notes the hints by proportion.
pub(crate) fn plan<'n>(
    service: &Service,
    pods: &[impl AsRef<Pod>],
    node: &dyn Fn(&str) -> Option<&'n Node>,
    existing: &[impl AsRef<EndpointSlice>],
    maximum: usize,
    topology: &mut Topology,
) -> Plan {
    let mut plan = Plan::default();
    let types = address_types(service);
    let key = key_of(service);
    let is_auto = topology::is_auto(service);
    for slice in existing.iter().map(AsRef::as_ref) {
        let is_supported = types.contains(&slice.address_type.as_str());
        if !is_supported {
            topology.remove_hints(&key, &slice.address_type);
        }
        if !is_supported || !is_owned(slice, service) {
            plan.delete.push(name(slice));
        }
    }
    let publishes = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses);
    let own_labels = service.metadata.labels.clone().unwrap_or_default();
    // A difference in the labels that name the service is no reason for a write.
    let is_outdated = |slice: &EndpointSlice| {
        let of = |labels: &BTreeMap<String, String>| -> Vec<(String, String)> {
            let own = labels.iter().filter(|(label, _)| !is_reserved(label));
            own.map(|(label, value)| (label.clone(), value.clone())).collect()
        };
        of(&slice.metadata.labels.clone().unwrap_or_default()) != of(&own_labels)
    };
    for address_type in types {
        let mut groups: HashMap<PortsKey, Group> = HashMap::new();
        for pod in pods.iter().map(AsRef::as_ref).filter(|pod| has_endpoint(pod, true)) {
            let ports = ports(service, pod);
            let group = groups.entry(ports_key(&ports)).or_insert_with(|| Group::new(ports));
            let node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let found = node_name.and_then(node);
            if found.is_none() && publishes != Some(true) {
                let left_out = (
                    pod.metadata.name.clone().unwrap_or_default(),
                    node_name.unwrap_or_default().to_owned(),
                );
                if !plan.without_node.contains(&left_out) {
                    plan.without_node.push(left_out);
                }
                continue;
            }
            if let Some(endpoint) = endpoint(pod, found, service, address_type) {
                group.insert(endpoint);
            }
        }
        let own: Vec<&EndpointSlice> = existing
            .iter()
            .map(AsRef::as_ref)
            .filter(|slice| slice.address_type == address_type && is_owned(slice, service))
            .collect();
        let template = Template {
            slice: template_of(service, address_type),
            is_outdated: &is_outdated,
            maximum,
            has_placeholder: true,
        };
        if !is_auto {
            arrange(&template, &own, groups, &mut plan);
            plan.hints.extend(topology.disable(&key, address_type));
            continue;
        }
        // Hints alone are no reason to write a slice until it is known which do not fit.
        for slice in &own {
            let ports = ports_key(slice.ports.as_deref().unwrap_or_default());
            if let Some(group) = groups.get_mut(&ports) {
                slice.endpoints.iter().flatten().for_each(|old| group.keep_hints(old));
            }
        }
        let (created, updated) = (plan.create.len(), plan.update.len());
        arrange(&template, &own, groups, &mut plan);
        let mut update = plan.update.split_off(updated);
        let is_left = |slice: &EndpointSlice| {
            let name = &slice.metadata.name;
            update.iter().all(|other| other.metadata.name != *name)
                && plan.delete.iter().all(|other| Some(other) != name.as_ref())
        };
        let unchanged = own.iter().copied().filter(|slice| is_left(slice)).collect();
        plan.hints.extend(topology.add_hints(Slices {
            service: &key,
            address_type,
            create: &mut plan.create[created..],
            update: &mut update,
            unchanged,
        }));
        plan.update.append(&mut update);
    }
    if service.metadata.deletion_timestamp.is_some() {
        // The garbage collector takes the slices away.
        plan.create.clear();
    }
    plan
}

/// Sets or clears the time of the change that a write is for.
pub(crate) fn set_trigger_time(slice: &mut EndpointSlice, time: Option<Timestamp>) {
    match time {
        Some(time) => {
            let annotations = slice.metadata.annotations.get_or_insert_default();
            annotations.insert(TRIGGER_TIME.into(), time.to_string());
        }
        None => {
            if let Some(annotations) = &mut slice.metadata.annotations {
                annotations.remove(TRIGGER_TIME);
            }
        }
    }
}

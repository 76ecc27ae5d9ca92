//! PURE: topology hints of services with `service.kubernetes.io/topology-mode: Auto`.
//!
//! Each ready endpoint gets the hint of one zone, so that zones have endpoints in proportion to the CPUs
//! of their ready nodes. Hints that are good enough stay: a zone may have up to a fifth fewer than its
//! share. The shares come from all nodes, and the hints of a service are given when it is synced.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone};
use longshore_quantity::Quantity;

/// How much more than its share an endpoint may get, so that hints stay.
const OVERLOAD: f64 = 0.2;
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// The annotations, of which the older one wins.
const MODES: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// Nodes with such a label take no part.
const EXCLUDED: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether the service asks for hints by proportion, which replace those of its traffic distribution.
pub(super) fn is_auto(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = annotations.and_then(|all| MODES.iter().find_map(|mode| all.get(*mode)));
    mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// The traffic distribution that decides a service's hints.
pub(super) fn distribution(service: &Service) -> Option<&str> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let is_known = ["PreferClose", "PreferSameZone", "PreferSameNode"].contains(&distribution);
    (is_known && !is_auto(service)).then_some(distribution)
}

/// What an event reports about the hints of a service's slices of one address type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether there are hints now.
    pub(crate) is_enabled: bool,
    pub(crate) message: String,
}

impl Change {
    pub(crate) fn reason(&self) -> &'static str {
        match self.is_enabled {
            true => "TopologyAwareHintsEnabled",
            false => "TopologyAwareHintsDisabled",
        }
    }
}

/// Endpoints by the zone that they are hinted to.
type ByZone = BTreeMap<String, usize>;

/// The zones' shares of the CPUs, and the hints that services have.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    /// By zone; `None`: the nodes do not show them.
    shares: Option<BTreeMap<String, f64>>,
    /// By the key of the service and the address type.
    hints: HashMap<String, BTreeMap<String, ByZone>>,
    /// The services whose last sync gave hints.
    enabled: HashSet<String>,
}

/// What is planned for the slices of a service and one address type.
pub(super) struct Slices<'a> {
    /// The key of the service.
    pub(super) service: &'a str,
    pub(super) address_type: &'a str,
    pub(super) create: &'a mut [EndpointSlice],
    pub(super) update: &'a mut Vec<EndpointSlice>,
    /// The others that stay. Those whose hints change go to `update`.
    pub(super) unchanged: Vec<&'a EndpointSlice>,
}

/// What a zone should have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Allocation {
    most: usize,
    desired: f64,
}

/// Whether the condition `Ready` of the node is true.
pub(super) fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .find(|condition| condition.type_ == "Ready")
        .is_some_and(|ready| ready.status == "True")
}

/// The zone of a node.
pub(super) fn zone(node: &Node) -> Option<&String> {
    node.metadata.labels.as_ref()?.get(ZONE).filter(|zone| !zone.is_empty())
}

fn milli_cpus(node: &Node) -> Option<i128> {
    let cpu = node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?;
    Quantity::parse(&cpu.0).map(Quantity::milli).filter(|milli| *milli > 0)
}

/// The shares of zones in the CPUs of ready nodes; `None`: there is one zone only, or a node without
/// zone or CPUs.
fn shares<'n>(nodes: impl Iterator<Item = &'n Node>) -> Option<BTreeMap<String, f64>> {
    let mut zones: BTreeMap<String, i128> = BTreeMap::new();
    for node in nodes {
        let labels = node.metadata.labels.as_ref();
        let is_excluded =
            labels.is_some_and(|labels| EXCLUDED.iter().any(|label| labels.contains_key(*label)));
        if is_excluded || !is_node_ready(node) {
            continue;
        }
        let cpus = zones.entry(zone(node)?.clone()).or_default();
        *cpus = cpus.saturating_add(milli_cpus(node)?);
    }
    if zones.len() < 2 {
        return None;
    }
    let all = zones.values().fold(0_i128, |all, cpus| all.saturating_add(*cpus)) as f64;
    Some(zones.into_iter().map(|(zone, cpus)| (zone, cpus as f64 / all)).collect())
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true)
}

fn ready_endpoints(slice: &EndpointSlice) -> impl Iterator<Item = &Endpoint> {
    slice.endpoints.iter().flatten().filter(|endpoint| is_ready(endpoint))
}

fn has_hints(slice: &EndpointSlice) -> bool {
    slice.endpoints.iter().flatten().any(|endpoint| endpoint.hints.is_some())
}

fn zones_of(endpoint: &Endpoint) -> impl Iterator<Item = &String> {
    let zones = endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten());
    zones.map(|zone| &zone.name)
}

fn hint(zone: &str) -> EndpointHints {
    EndpointHints { for_zones: Some(vec![ForZone { name: zone.to_owned() }]), for_nodes: None }
}

/// The fewest endpoints of a zone with which none of them gets too much.
fn fewest(desired: f64) -> usize {
    (desired * (1.0 / (1.0 + OVERLOAD))).ceil() as usize
}

impl Slices<'_> {
    fn all(&self) -> impl Iterator<Item = &EndpointSlice> {
        let unchanged = self.unchanged.iter().copied();
        self.create.iter().chain(self.update.iter()).chain(unchanged)
    }

    fn planned(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        let slices = self.create.iter_mut().chain(self.update.iter_mut());
        slices.flat_map(|slice| slice.endpoints.iter_mut().flatten())
    }

    /// Plans the update of the unchanged slices for which the test says so.
    fn update_where(&mut self, mut is_to_change: impl FnMut(&EndpointSlice) -> bool) {
        let update = &mut *self.update;
        self.unchanged.retain(|slice| {
            let changes = is_to_change(slice);
            if changes {
                update.push((*slice).clone());
            }
            !changes
        });
    }

    fn clear_hints(&mut self) {
        self.update_where(has_hints);
        self.planned().for_each(|endpoint| endpoint.hints = None);
    }

    /// Gives each ready endpoint the hint of a zone; returns how many each zone has then.
    fn assign(&mut self, allocations: &BTreeMap<&str, Allocation>) -> ByZone {
        let mut hinted = ByZone::new();
        self.update_where(|slice| match kept_hints(slice, &hinted, allocations) {
            None => true,
            Some(kept) => {
                for (zone, count) in kept {
                    *hinted.entry(zone).or_default() += count;
                }
                false
            }
        });
        for endpoint in self.planned() {
            endpoint.hints = match endpoint.zone.as_ref().filter(|_| is_ready(endpoint)) {
                None => None,
                Some(zone) => {
                    *hinted.entry(zone.clone()).or_default() += 1;
                    Some(hint(zone))
                }
            };
        }
        let (mut giving, mut receiving) = moves(allocations, &hinted);
        for endpoint in self.planned().filter(|endpoint| is_ready(endpoint)) {
            let Some(from) = &endpoint.zone else { continue };
            let Some(left) = giving.get_mut(from).filter(|left| **left > 0) else { continue };
            let Some((to, wanted)) = receiving.iter_mut().find(|(_, wanted)| **wanted > 0) else {
                break;
            };
            *left -= 1;
            *wanted -= 1;
            endpoint.hints = Some(hint(to));
            *hinted.entry(to.clone()).or_default() += 1;
            if let Some(count) = hinted.get_mut(from) {
                *count = count.saturating_sub(1);
            }
        }
        hinted
    }
}

/// The hints of a slice that may stay as they are beside those of others; `None`: they may not.
fn kept_hints(
    slice: &EndpointSlice,
    hinted: &ByZone,
    allocations: &BTreeMap<&str, Allocation>,
) -> Option<ByZone> {
    let mut kept = ByZone::new();
    for endpoint in ready_endpoints(slice) {
        zones_of(endpoint).next()?;
        for zone in zones_of(endpoint) {
            *kept.entry(zone.clone()).or_default() += 1;
        }
    }
    let is_fine = kept.iter().all(|(zone, count)| {
        let others = hinted.get(zone).copied().unwrap_or_default();
        let allocation = allocations.get(zone.as_str());
        allocation.is_some_and(|allocation| count + others <= allocation.most)
    });
    is_fine.then_some(kept)
}

/// How many endpoints zones give away, and how many others get.
fn moves(allocations: &BTreeMap<&str, Allocation>, hinted: &ByZone) -> (ByZone, ByZone) {
    let mut surplus: BTreeMap<&str, f64> = BTreeMap::new();
    let mut deficit: BTreeMap<&str, f64> = BTreeMap::new();
    for (zone, allocation) in allocations {
        let has = hinted.get(*zone).copied().unwrap_or_default() as f64;
        let difference = has - allocation.desired;
        match difference > 0.0 {
            true => surplus.insert(zone, difference),
            false => deficit.insert(zone, -difference),
        };
    }
    let most = |zones: &BTreeMap<&str, f64>| -> Option<(String, f64)> {
        let most = zones.iter().max_by(|one, other| one.1.total_cmp(other.1));
        most.map(|(zone, count)| ((*zone).to_owned(), *count))
    };
    let (mut giving, mut receiving) = (ByZone::new(), ByZone::new());
    while let (Some((from, has)), Some((to, lacks))) = (most(&surplus), most(&deficit)) {
        // a whole endpoint is moved for at least half a one, if that is one for either side
        if has < 0.5 || lacks < 0.5 || (has < 1.0 && lacks < 1.0) {
            break;
        }
        for (left, zone, moved) in
            [(&mut surplus, from, &mut giving), (&mut deficit, to, &mut receiving)]
        {
            if let Some(left) = left.get_mut(zone.as_str()) {
                *left -= 1.0;
            }
            *moved.entry(zone).or_default() += 1;
        }
    }
    (giving, receiving)
}

/// Whether an endpoint of a zone gets too much of the traffic.
fn is_overloaded(hinted: &ByZone, shares: Option<&BTreeMap<String, f64>>) -> bool {
    if hinted.is_empty() {
        return false;
    }
    let Some(shares) = shares else { return true };
    let all: usize = hinted.values().sum();
    shares.iter().any(|(zone, share)| {
        hinted.get(zone).is_none_or(|count| *count < fewest(all as f64 * share))
    })
}

impl Topology {
    /// Notes the nodes; returns the services whose hints they make too uneven.
    pub(crate) fn set_nodes<'n>(&mut self, nodes: impl Iterator<Item = &'n Node>) -> Vec<String> {
        self.shares = shares(nodes);
        let services = self.hints.iter().filter(|(_, types)| {
            types.values().any(|hinted| is_overloaded(hinted, self.shares.as_ref()))
        });
        services.map(|(service, _)| service.clone()).collect()
    }

    fn allocations(&self, endpoints: usize) -> Result<BTreeMap<&str, Allocation>, String> {
        let Some(shares) = &self.shares else {
            return Err("Insufficient Node information: allocatable CPU or zone not specified on \
                        one or more nodes"
                .to_owned());
        };
        let failed = |why: &str| {
            let zones = shares.len();
            Err(format!("{why} ({endpoints} endpoints, {zones} zones)"))
        };
        if shares.len() > endpoints {
            return failed("Insufficient number of endpoints");
        }
        let least = |share: &f64| fewest(share * endpoints as f64);
        let all: usize = shares.values().map(least).sum();
        let Some(spare) = endpoints.checked_sub(all) else {
            return failed(
                "Unable to allocate minimum required endpoints to each zone without exceeding \
                 overload threshold",
            );
        };
        let allocations = shares.iter().map(|(zone, share)| {
            let least = least(share);
            let desired = (share * endpoints as f64).max(least as f64);
            (zone.as_str(), Allocation { most: least + spare, desired })
        });
        Ok(allocations.collect())
    }

    /// Gives the slices hints, or takes them away where they cannot be even enough.
    pub(super) fn add_hints(&mut self, mut slices: Slices<'_>) -> Option<Change> {
        let mut count = 0_usize;
        let mut has_zones = true;
        for endpoint in slices.all().flat_map(ready_endpoints) {
            count += 1;
            has_zones &= endpoint.zone.as_ref().is_some_and(|zone| !zone.is_empty());
        }
        let allocations = self.allocations(count).and_then(|allocations| match has_zones {
            true => Ok(allocations),
            false => Err("One or more endpoints do not have a zone specified".to_owned()),
        });
        let (service, address_type) = (slices.service.to_owned(), slices.address_type.to_owned());
        match allocations {
            Ok(allocations) => {
                let hinted = slices.assign(&allocations);
                let types = self.hints.entry(service.clone()).or_default();
                types.insert(address_type.clone(), hinted);
                self.enabled.insert(service).then(|| Change {
                    is_enabled: true,
                    message: format!(
                        "Topology Aware Hints has been enabled, addressType: {address_type}"
                    ),
                })
            }
            Err(why) => {
                slices.clear_hints();
                self.remove_hints(&service, &address_type);
                let message = format!("{why}, addressType: {address_type}");
                Some(Change { is_enabled: false, message })
            }
        }
    }

    /// The service asks for no hints by proportion.
    pub(super) fn disable(&mut self, service: &str, address_type: &str) -> Option<Change> {
        let change = self.enabled.contains(service).then(|| Change {
            is_enabled: false,
            message: format!("Topology Aware Hints has been disabled, addressType: {address_type}"),
        });
        self.remove_hints(service, address_type);
        change
    }

    /// Forgets the hints of slices of that address type.
    pub(super) fn remove_hints(&mut self, service: &str, address_type: &str) {
        if let Some(types) = self.hints.get_mut(service) {
            types.remove(address_type);
            if types.is_empty() {
                self.hints.remove(service);
            }
        }
        self.enabled.remove(service);
    }

    /// Forgets a service that is gone.
    pub(crate) fn forget(&mut self, service: &str) {
        self.hints.remove(service);
        self.enabled.remove(service);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Service};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// A ready node of a zone with CPUs.
    fn node(zone: &str, cpu: &str) -> Node {
        node_with(zone, cpu, |_| {})
    }

    fn node_with(zone: &str, cpu: &str, change: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {ZONE: zone}},
            "status": {
                "allocatable": {"cpu": cpu},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    /// A slice; each endpoint is its zone and, after a slash, the zone of its hint. `-` is not ready.
    fn slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
        let endpoint = |(at, text): (usize, &&str)| {
            let (zone, hint) = text.split_once('/').map_or((*text, None), |(z, h)| (z, Some(h)));
            let mut endpoint = json!({
                "addresses": [format!("10.0.0.{at}")],
                "conditions": {"ready": !zone.starts_with('-')},
            });
            let zone = zone.trim_start_matches('-');
            if !zone.is_empty() {
                endpoint["zone"] = zone.into();
            }
            if let Some(hint) = hint {
                endpoint["hints"] = json!({"forZones": [{"name": hint}]});
            }
            endpoint
        };
        let endpoints: Vec<Value> = endpoints.iter().enumerate().map(endpoint).collect();
        serde_json::from_value(json!({
            "metadata": {"name": name}, "addressType": "IPv4", "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn hinted(slice: &EndpointSlice) -> Vec<String> {
        let zone = |endpoint: &Endpoint| zones_of(endpoint).cloned().collect::<String>();
        slice.endpoints.iter().flatten().map(zone).collect()
    }

    fn give(
        topology: &mut Topology,
        create: &mut [EndpointSlice],
        unchanged: &[EndpointSlice],
    ) -> (Vec<EndpointSlice>, Option<Change>) {
        let mut update = Vec::new();
        let change = topology.add_hints(Slices {
            service: "ns/web",
            address_type: "IPv4",
            create,
            update: &mut update,
            unchanged: unchanged.iter().collect(),
        });
        (update, change)
    }

    #[test]
    fn topology_hints_shares_are_those_of_ready_nodes() {
        let not_ready = node_with("c", "8", |node| {
            node["status"]["conditions"][0]["status"] = "Unknown".into();
        });
        let control = node_with("c", "8", |node| {
            node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = "".into();
        });
        for (nodes, expected) in [
            (vec![], None),
            (vec![node("a", "1")], None),
            (vec![node("a", "3"), node("b", "500m"), node("b", "500m")], Some(vec![0.75, 0.25])),
            (vec![node("a", "1"), node("b", "1"), not_ready, control], Some(vec![0.5, 0.5])),
            (vec![node("a", "1"), node("b", "1"), node("", "1")], None),
            (vec![node("a", "1"), node("b", "0")], None),
            (vec![node("a", "1"), node("b", "no number")], None),
        ] {
            let found = shares(nodes.iter()).map(|shares| shares.into_values().collect::<Vec<_>>());
            assert_eq!(found, expected, "{nodes:?}");
        }
    }

    #[test]
    fn topology_hints_are_given_in_proportion() {
        let two = [node("a", "1"), node("b", "1")];
        let uneven = [node("a", "3"), node("b", "1")];
        for (nodes, endpoints, expected) in [
            (&two[..], &["a", "b"][..], Ok(vec!["a", "b"])),
            (&two[..], &["a", "a"][..], Ok(vec!["b", "a"])),
            (&two[..], &["a", "a", "a", "-a", "b"][..], Ok(vec!["b", "a", "a", "", "b"])),
            (&uneven[..], &["b", "b", "b", "b"][..], Ok(vec!["a", "a", "a", "b"])),
            // a third zone that has endpoints but no nodes keeps what others do not need
            (&two[..], &["a", "a", "b", "c"][..], Ok(vec!["a", "a", "b", "c"])),
            (&two[..], &["a"][..], Err("Insufficient number of endpoints (1 endpoints, 2 zones)")),
            (
                &uneven[..],
                &["a", "b"][..],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding \
                     overload threshold (2 endpoints, 2 zones)",
                ),
            ),
            (
                &two[..],
                &["a", "b", "b", ""][..],
                Err("One or more endpoints do not have a zone specified"),
            ),
            (
                &two[..1],
                &["a", "b"][..],
                Err("Insufficient Node information: allocatable CPU or zone not specified on one \
                     or more nodes"),
            ),
        ] {
            let mut topology = Topology::default();
            assert!(topology.set_nodes(nodes.iter()).is_empty());
            let mut create = [slice("", endpoints)];
            let (update, change) = give(&mut topology, &mut create, &[]);
            assert!(update.is_empty());
            let change = change.unwrap();
            let (text, hints) = match &expected {
                Ok(hints) => ("Topology Aware Hints has been enabled", hints.clone()),
                Err(why) => (*why, vec![""; endpoints.len()]),
            };
            assert_eq!(change.message, format!("{text}, addressType: IPv4"));
            assert_eq!(change.is_enabled, expected.is_ok());
            assert_eq!(hinted(&create[0]), hints, "{endpoints:?}");
        }
    }

    #[test]
    fn topology_hints_that_are_good_enough_stay() {
        let mut topology = Topology::default();
        topology.set_nodes([node("a", "1"), node("b", "1")].iter());
        let even = [slice("s1", &["a/a", "a/b"]), slice("s2", &["b/b", "a/a"])];
        let (update, change) = give(&mut topology, &mut [], &even);
        assert!(update.is_empty(), "{update:?}");
        assert_eq!(change.unwrap().reason(), "TopologyAwareHintsEnabled");
        // no second event, and an endpoint of another slice goes where one is missing
        let mut create = [slice("", &["b", "b"])];
        let (update, change) = give(&mut topology, &mut create, &even);
        assert_eq!((update.len(), change), (0, None));
        assert_eq!(hinted(&create[0]), ["a", "b"]);
        // hints of a zone that is not there any more, none at all, too many of a zone
        for (hints, expected) in
            [(["a/a", "b/c"], ["a", "b"]), (["a/a", "b"], ["a", "b"]), (["a/a", "b/a"], ["a", "b"])]
        {
            let (update, _) = give(&mut topology, &mut [], &[slice("s", &hints)]);
            assert_eq!(hinted(&update[0]), expected, "{hints:?}");
        }
    }

    #[test]
    fn topology_hints_go_when_nodes_or_the_annotation_say_so() {
        let mut topology = Topology::default();
        topology.set_nodes([node("a", "1"), node("b", "1")].iter());
        let mut create = [slice("s", &["a", "b"])];
        give(&mut topology, &mut create, &[]);
        assert!(topology.set_nodes([node("a", "1"), node("b", "1")].iter()).is_empty());
        let more = [node("a", "1"), node("b", "1"), node("c", "1")];
        assert_eq!(topology.set_nodes(more.iter()), ["ns/web"]);
        let (update, change) = give(&mut topology, &mut [], &create);
        assert_eq!(change.unwrap().reason(), "TopologyAwareHintsDisabled");
        assert_eq!(hinted(&update[0]), ["", ""]);
        assert!(topology.set_nodes(more.iter()).is_empty(), "has no hints now");
        let (update, _) = give(&mut topology, &mut [], &update);
        assert!(update.is_empty(), "nothing is left to be written");
        topology.set_nodes(more[..2].iter());
        give(&mut topology, &mut create, &[]);
        let change = topology.disable("ns/web", "IPv4").unwrap();
        assert_eq!(change.message, "Topology Aware Hints has been disabled, addressType: IPv4");
        assert_eq!(topology.disable("ns/web", "IPv4"), None);
        assert!(topology.hints.is_empty());
    }

    #[test]
    fn topology_mode_is_that_of_the_older_annotation() {
        let [old, new] = MODES;
        for (annotations, expected) in [
            (json!({}), false),
            (json!({new: "Auto"}), true),
            (json!({new: "auto"}), true),
            (json!({new: "AUTO"}), false),
            (json!({old: "Auto"}), true),
            (json!({old: "Disabled", new: "Auto"}), false),
        ] {
            let service: Service = serde_json::from_value(json!({
                "metadata": {"annotations": annotations},
                "spec": {"trafficDistribution": "PreferClose"},
            }))
            .unwrap();
            assert_eq!(is_auto(&service), expected, "{annotations}");
            assert_eq!(distribution(&service).is_none(), expected);
        }
    }

    proptest! {
        /// Each ready endpoint has the hint of one zone that has nodes, and what is noted is what is given.
        #[test]
        fn topology_hints_are_one_for_each_endpoint(
            cpus in prop::collection::vec(1..9u32, 2..5),
            zones in prop::collection::vec(0..4usize, 2..40),
            size in 1..10usize,
        ) {
            let name = |at: usize| ["a", "b", "c", "d"][at];
            let nodes: Vec<_> =
                cpus.iter().enumerate().map(|(at, cpu)| node(name(at), &cpu.to_string())).collect();
            let mut topology = Topology::default();
            topology.set_nodes(nodes.iter());
            let zones: Vec<&str> = zones.into_iter().map(|at| name(at % cpus.len())).collect();
            let mut create: Vec<_> = zones.chunks(size).map(|some| slice("s", some)).collect();
            let (_, change) = give(&mut topology, &mut create, &[]);
            if change.unwrap().is_enabled {
                let mut given = ByZone::new();
                for zone in create.iter().flat_map(hinted) {
                    prop_assert!((0..cpus.len()).any(|at| name(at) == zone), "{zone:?}");
                    *given.entry(zone).or_default() += 1;
                }
                let noted = topology.hints["ns/web"]["IPv4"].clone();
                prop_assert_eq!(given.values().sum::<usize>(), zones.len());
                prop_assert_eq!(given, noted.into_iter().filter(|(_, count)| *count > 0).collect());
            }
        }
    }
}

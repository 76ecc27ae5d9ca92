//! Random clusters: rules forward packets as the model says, and partial syncs end in the state of full ones
//! do.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::model::fixture::{name, service, slice, tracker};
use crate::model::{Endpoint, Family, Policy, PortView, Protocol, State, Tracker};

use super::super::{LocalDetector, Settings, Stale, partial};
use super::kernel::Kernel;
use super::walker::{Packet, Verdict, walk};
use super::{full_sync, settings, synced};

/// One thing that happens in a cluster of up to four services.
#[derive(Debug, Clone)]
enum Event {
    Service(u8, Value),
    NoService(u8),
    Slice(u8, bool, Vec<String>),
    NoSlice(u8, bool),
    Zone(bool),
    Sync,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let which = 1..5u8;
    let one = prop_oneof![
        4 => (which.clone(), spec()).prop_map(|(i, spec)| Event::Service(i, spec)),
        1 => which.clone().prop_map(Event::NoService),
        6 => (which.clone(), any::<bool>(), vec(endpoint(), 0..5)).prop_map(|(i, s, e)| Event::Slice(i, s, e)),
        1 => (which, any::<bool>()).prop_map(|(i, s)| Event::NoSlice(i, s)),
        1 => any::<bool>().prop_map(Event::Zone),
        3 => Just(Event::Sync),
    ];
    vec(one, 1..24)
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("Cluster"), Just("Local")]
}

fn spec() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![Just("ClusterIP"), Just("NodePort"), Just("LoadBalancer")];
    (kind, policy(), policy(), any::<[bool; 5]>()).prop_map(|(kind, internal, external, flags)| {
        let [external_ip, ranges, affinity, two_ports, balancer] = flags;
        json!({"type": kind, "internalTrafficPolicy": internal, "externalTrafficPolicy": external,
            "externalIPs": external_ip, "loadBalancerSourceRanges": ranges, "ingress": balancer,
            "sessionAffinity": if affinity { "ClientIP" } else { "None" }, "ports": two_ports})
    })
}

/// The choices of a spec, as the service `i` has them: no two have an address in common.
fn fill(i: u8, choices: &Value) -> Value {
    let mut spec = choices.clone();
    let chosen = |field: &str, value: Value| if choices[field] == true { value } else { json!([]) };
    spec["clusterIP"] = format!("10.96.0.{i}").into();
    spec["externalIPs"] = chosen("externalIPs", json!([format!("198.51.100.{i}")]));
    spec["loadBalancerSourceRanges"] =
        chosen("loadBalancerSourceRanges", json!(["203.0.113.0/25", "192.168.0.0/24"]));
    spec["ingress"] = json!([]);
    if spec["type"] == "LoadBalancer" {
        spec["ingress"] = chosen("ingress", json!([{"ip": format!("198.51.101.{i}")}]));
        spec["healthCheckNodePort"] = (32000 + u32::from(i)).into();
    }
    let node_port = if spec["type"] == "ClusterIP" { 0 } else { 30000 + u32::from(i) };
    let mut ports = vec![json!({"name": "p80", "port": 80, "nodePort": node_port})];
    if choices["ports"] == true {
        ports.push(json!({"name": "other", "port": 81}));
    }
    spec["ports"] = ports.into();
    spec
}

fn endpoint() -> impl Strategy<Value = String> {
    let state = select(vec!["", "", "", " unready", " serving", " serving terminating"]);
    let hint = select(vec!["", " zone=zone-a", " zone=zone-b", " node=node-a", " node=node-b"]);
    (1..5u8, any::<bool>(), state, hint).prop_map(|(host, local, state, hint)| {
        format!(
            "10.244.{}.{host}{}{state}{hint}",
            u8::from(!local),
            if local { " local" } else { "" }
        )
    })
}

fn happen(tracker: &mut Tracker, event: &Event) {
    let slice_name = |second: bool| if second { "b" } else { "a" };
    let full_name = |i: &u8| format!("ns/svc{i}");
    match event {
        Event::Service(i, choices) => {
            tracker.apply_service(&service(&full_name(i), fill(*i, choices)));
        }
        Event::NoService(i) => {
            tracker.delete_service(&name(&full_name(i)));
        }
        Event::Slice(i, second, endpoints) => {
            let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
            tracker.apply_slice(&slice(&full_name(i), slice_name(*second), &endpoints, json!({})));
        }
        Event::NoSlice(i, second) => {
            tracker.delete_slice(&slice(&full_name(i), slice_name(*second), &[], json!({})));
        }
        Event::Zone(ours) => {
            tracker.set_zone(ours.then_some("zone-a"));
        }
        Event::Sync => {}
    }
}

/// The model's verdict on a packet, without rules.
fn expected(state: &State, settings: &Settings, packet: &Packet<'_>) -> BTreeSet<Verdict> {
    for port in state.services().flat_map(|service| service.ports()) {
        let spec = port.spec;
        if port.port.protocol != packet.protocol {
            continue;
        }
        let at_port = packet.port == port.port.port;
        let balanced = at_port && spec.load_balancer_ips.contains(&packet.to);
        let at_node = Some(packet.port) == port.port.node_port && packet.node.contains(&packet.to);
        if at_port && packet.to == spec.cluster_ip {
            return internal(&port, settings, packet);
        } else if balanced && port.has_endpoints() && !may_use(&port, settings, packet.from) {
            return BTreeSet::from([Verdict::Dropped]);
        } else if balanced || at_node || (at_port && spec.external_ips.contains(&packet.to)) {
            return external(&port, settings, packet);
        }
    }
    BTreeSet::from([Verdict::Passes])
}

fn may_use(port: &PortView<'_>, settings: &Settings, from: IpAddr) -> bool {
    let ranges = &port.spec.source_ranges;
    let node = ranges.iter().any(|range| range.contains(settings.node_ip));
    ranges.is_empty()
        || ranges.iter().any(|range| range.contains(from))
        || (node && port.spec.load_balancer_ips.contains(&from))
}

fn is_pod(settings: &Settings, packet: &Packet<'_>) -> Option<bool> {
    match &settings.detector {
        LocalDetector::Cidr(range) => Some(range.contains(packet.from)),
        LocalDetector::None => None,
        other => panic!("{other:?}"),
    }
}

fn internal(port: &PortView<'_>, settings: &Settings, packet: &Packet<'_>) -> BTreeSet<Verdict> {
    let masqueraded = settings.masquerade_all || is_pod(settings, packet) == Some(false);
    to_any(port, port.spec.internal_policy, masqueraded, packet)
}

fn external(port: &PortView<'_>, settings: &Settings, packet: &Packet<'_>) -> BTreeSet<Verdict> {
    if !port.has_endpoints() && packet.input.is_none() {
        // as upstream: KUBE-EXTERNAL-SERVICES does not apply to the node's own traffic
        BTreeSet::from([Verdict::Passes])
    } else if port.spec.external_policy == Policy::Cluster {
        to_any(port, Policy::Cluster, true, packet)
    } else if is_pod(settings, packet) == Some(true) {
        to_any(port, Policy::Cluster, false, packet)
    } else if packet.node.contains(&packet.from) {
        to_any(port, Policy::Cluster, true, packet)
    } else {
        to_any(port, Policy::Local, false, packet)
    }
}

fn to_any(
    port: &PortView<'_>,
    policy: Policy,
    masqueraded: bool,
    packet: &Packet<'_>,
) -> BTreeSet<Verdict> {
    if !port.has_endpoints() {
        return BTreeSet::from([Verdict::Rejected]);
    }
    let fate = |endpoint: &Endpoint| Verdict::Forwarded {
        to: endpoint.address.to_string(),
        masqueraded: masqueraded || endpoint.address.ip == packet.from,
    };
    let verdicts: BTreeSet<_> = port.endpoints_for(policy).map(fate).collect();
    if verdicts.is_empty() { BTreeSet::from([Verdict::Dropped]) } else { verdicts }
}

fn check_packets(kernel: &Kernel, state: &State, settings: &Settings) -> Result<(), TestCaseError> {
    let node: [IpAddr; 1] = [settings.node_ip];
    let senders = ["203.0.113.9", "203.0.113.200", "10.244.0.1", "192.168.0.2", "198.51.101.1"];
    for i in 1..5u16 {
        let targets = [
            (format!("10.96.0.{i}"), 80),
            (format!("10.96.0.{i}"), 81),
            (format!("198.51.100.{i}"), 80),
            (format!("198.51.101.{i}"), 80),
            ("192.168.0.2".to_owned(), 30000 + i),
        ];
        for (to, port) in &targets {
            for from in senders {
                let from: IpAddr = from.parse().unwrap();
                let packet = Packet {
                    protocol: Protocol::Tcp,
                    from,
                    to: to.parse().unwrap(),
                    port: *port,
                    input: (!node.contains(&from)).then_some("eth0"),
                    node: &node,
                    remembered: None,
                };
                let (is, should) = (walk(kernel, &packet), expected(state, settings, &packet));
                prop_assert_eq!(is, should, "{} to {}:{}", from, to, port);
            }
        }
    }
    Ok(())
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(all, detector, localhost)| Settings {
        masquerade_all: all,
        localhost_node_ports: localhost,
        detector: if detector { settings().detector } else { LocalDetector::None },
        ..settings()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn rules_forward_as_the_model(events in events(), settings in any_settings()) {
        let mut tracker = tracker(Family::V4);
        events.iter().for_each(|event| happen(&mut tracker, event));
        tracker.take_changes();
        let kernel = synced(tracker.state(), &settings);
        check_packets(&kernel, tracker.state(), &settings)?;
    }

    #[test]
    fn partial_syncs_end_in_the_state_of_a_full_sync(events in events(), settings in any_settings()) {
        let mut tracker = tracker(Family::V4);
        let mut kernel = synced(tracker.state(), &settings);
        let mut stale = Stale::default();
        for event in events.iter().chain([&Event::Sync]) {
            happen(&mut tracker, event);
            if !matches!(event, Event::Sync) {
                continue;
            }
            let changes = tracker.take_changes();
            let partial = partial(tracker.state(), &changes.services, &settings);
            let growth = (kernel.count("filter") as isize, kernel.count("nat") as isize);
            for text in &partial.transactions {
                kernel.restore(text).unwrap();
            }
            stale.follow(&partial);
            // stale chains wait for another round now and then
            if stale.len() > 3 {
                stale.take().iter().for_each(|text| kernel.restore(text).unwrap());
            }
            prop_assert_eq!(kernel.count("filter") as isize - growth.0, partial.filter_growth);
        }
        stale.take().iter().for_each(|text| kernel.restore(text).unwrap());
        let fresh = synced(tracker.state(), &settings);
        prop_assert_eq!(kernel.sorted(), fresh.sorted());
        // and a full sync has nothing to do after them
        prop_assert_eq!(full_sync(&mut kernel, tracker.state(), &settings).0, 0);
    }

    #[test]
    fn full_sync_repairs_any_state(before in events(), after in events()) {
        let mut old = tracker(Family::V4);
        before.iter().for_each(|event| happen(&mut old, event));
        old.take_changes();
        let mut kernel = synced(old.state(), &settings());
        let mut new = tracker(Family::V4);
        after.iter().for_each(|event| happen(&mut new, event));
        new.take_changes();
        full_sync(&mut kernel, new.state(), &settings());
        prop_assert_eq!(kernel.sorted(), synced(new.state(), &settings()).sorted());
    }
}

proptest! {
    /// Finding 1: services and slices with numbers and texts at their extremes.
    #[test]
    fn extremes_of_services_become_rules_or_none(
        services in vec(longshore_generators::hostile(longshore_generators::examples::service(), 8), 1..3),
        slices in vec(longshore_generators::hostile(longshore_generators::examples::endpoint_slice(), 8), 1..3),
    ) {
        let mut tracker = tracker(Family::V4);
        for service in services {
            if let Ok(service) = serde_json::from_value(service) {
                tracker.apply_service(&service);
            }
        }
        for slice in slices {
            if let Ok(slice) = serde_json::from_value(slice) {
                tracker.apply_slice(&slice);
            }
        }
        tracker.take_changes();
        synced(tracker.state(), &settings());
    }
}

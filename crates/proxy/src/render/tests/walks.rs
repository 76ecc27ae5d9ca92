//! What becomes of packets, by kinds of services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::model::Protocol;
use crate::model::fixture::one;

use super::super::{LocalDetector, Settings};
use super::kernel::Kernel;
use super::walker::{Packet, Verdict, walk};
use super::{addresses, settings, synced};

const FAR: &str = "203.0.113.9";
const POD: &str = "10.244.0.7";
const NODE_IP: &str = "192.168.0.2";

fn verdicts(kernel: &Kernel, from: &str, to: &str, port: u16) -> BTreeSet<Verdict> {
    let node: [IpAddr; 1] = [NODE_IP.parse().unwrap()];
    let from: IpAddr = from.parse().unwrap();
    let packet = Packet {
        protocol: Protocol::Tcp,
        from,
        to: to.parse().unwrap(),
        port,
        input: (!node.contains(&from) && !from.is_loopback()).then_some("eth0"),
        node: &node,
        remembered: None,
    };
    walk(kernel, &packet)
}

fn forwarded(to: &[&str], masqueraded: bool) -> BTreeSet<Verdict> {
    to.iter().map(|to| Verdict::Forwarded { to: (*to).to_owned(), masqueraded }).collect()
}

fn one_of(fate: Verdict) -> BTreeSet<Verdict> {
    BTreeSet::from([fate])
}

fn kernel(mut spec: Value, endpoints: &[&str]) -> Kernel {
    spec["clusterIP"] = "10.96.0.1".into();
    synced(one(spec, endpoints).0.state(), &settings())
}

fn balancer(policy: &str) -> Value {
    json!({"type": "LoadBalancer", "externalTrafficPolicy": policy,
        "externalIPs": ["198.51.100.1"], "ingress": [{"ip": "198.51.100.2"}, {"ip": "198.51.100.3", "ipMode": "Proxy"}],
        "ports": [{"name": "p80", "port": 80, "nodePort": 30080}]})
}

#[test]
fn cluster_ip() {
    let kernel = kernel(json!({}), &["10.244.0.7 local", "10.244.1.8"]);
    let both = ["10.244.0.7:80", "10.244.1.8:80"];
    assert_eq!(verdicts(&kernel, FAR, "10.96.0.1", 80), forwarded(&both, true));
    assert_eq!(verdicts(&kernel, NODE_IP, "10.96.0.1", 80), forwarded(&both, true));
    assert_eq!(verdicts(&kernel, "10.244.0.9", "10.96.0.1", 80), forwarded(&both, false));
    // a pod that reaches itself answers through the node
    let mut hairpin = forwarded(&["10.244.1.8:80"], false);
    hairpin.extend(forwarded(&["10.244.0.7:80"], true));
    assert_eq!(verdicts(&kernel, POD, "10.96.0.1", 80), hairpin);
    assert_eq!(verdicts(&kernel, POD, "10.96.0.1", 81), one_of(Verdict::Passes));
    assert_eq!(verdicts(&kernel, POD, "10.96.0.2", 80), one_of(Verdict::Passes));
}

#[test]
fn internal_policy_local() {
    let spec = json!({"internalTrafficPolicy": "Local"});
    let some = kernel(spec.clone(), &["10.244.0.7 local", "10.244.1.8"]);
    assert_eq!(
        verdicts(&some, "10.244.0.9", "10.96.0.1", 80),
        forwarded(&["10.244.0.7:80"], false)
    );
    let elsewhere = kernel(spec.clone(), &["10.244.1.8"]);
    assert_eq!(verdicts(&elsewhere, POD, "10.96.0.1", 80), one_of(Verdict::Dropped));
    let none = kernel(spec, &["10.244.1.8 unready"]);
    assert_eq!(verdicts(&none, POD, "10.96.0.1", 80), one_of(Verdict::Rejected));
}

#[test]
fn external_traffic_policy_cluster() {
    let kernel = kernel(balancer("Cluster"), &["10.244.1.8"]);
    for (to, port) in
        [("198.51.100.1", 80), ("198.51.100.2", 80), (NODE_IP, 30080), ("127.0.0.1", 30080)]
    {
        assert_eq!(
            verdicts(&kernel, FAR, to, port),
            forwarded(&["10.244.1.8:80"], true),
            "{to}:{port}"
        );
    }
    // the load balancer has it: it is not ours
    assert_eq!(verdicts(&kernel, FAR, "198.51.100.3", 80), one_of(Verdict::Passes));
    assert_eq!(verdicts(&kernel, FAR, "192.168.0.3", 30080), one_of(Verdict::Passes));
}

#[test]
fn external_traffic_policy_local() {
    let some = kernel(balancer("Local"), &["10.244.0.7 local", "10.244.1.8"]);
    let none = kernel(balancer("Local"), &["10.244.1.8"]);
    for (to, port) in [("198.51.100.1", 80), ("198.51.100.2", 80), (NODE_IP, 30080)] {
        // the source is kept
        assert_eq!(
            verdicts(&some, FAR, to, port),
            forwarded(&["10.244.0.7:80"], false),
            "{to}:{port}"
        );
        assert_eq!(verdicts(&none, FAR, to, port), one_of(Verdict::Dropped), "{to}:{port}");
        // the node and its pods reach all
        assert_eq!(
            verdicts(&none, NODE_IP, to, port),
            forwarded(&["10.244.1.8:80"], true),
            "{to}:{port}"
        );
        assert_eq!(
            verdicts(&none, POD, to, port),
            forwarded(&["10.244.1.8:80"], false),
            "{to}:{port}"
        );
    }
}

#[test]
fn nobody_there() {
    let kernel = kernel(balancer("Cluster"), &[]);
    for (to, port) in
        [("10.96.0.1", 80), ("198.51.100.1", 80), ("198.51.100.2", 80), (NODE_IP, 30080)]
    {
        assert_eq!(verdicts(&kernel, FAR, to, port), one_of(Verdict::Rejected), "{to}:{port}");
    }
}

#[test]
fn source_ranges() {
    let mut spec = balancer("Cluster");
    spec["loadBalancerSourceRanges"] = json!(["203.0.113.0/28"]);
    let kernel = kernel(spec, &["10.244.1.8"]);
    assert_eq!(verdicts(&kernel, FAR, "198.51.100.2", 80), forwarded(&["10.244.1.8:80"], true));
    assert_eq!(verdicts(&kernel, "203.0.113.77", "198.51.100.2", 80), one_of(Verdict::Dropped));
    // only load balancers' addresses are guarded
    assert_eq!(
        verdicts(&kernel, "203.0.113.77", NODE_IP, 30080),
        forwarded(&["10.244.1.8:80"], true)
    );
}

#[test]
fn node_ports_at_some_addresses() {
    let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.1",
        "ports": [{"name": "p80", "port": 80, "nodePort": 30080}]});
    let (tracker, _) = one(spec, &["10.244.1.8"]);
    let other = Settings { node_ports: addresses(&["10.9.9.9"]), ..settings() };
    let kernel = synced(tracker.state(), &other);
    assert_eq!(verdicts(&kernel, FAR, NODE_IP, 30080), one_of(Verdict::Passes));
    let closed = Settings { localhost_node_ports: false, ..settings() };
    let kernel = synced(tracker.state(), &closed);
    assert_eq!(verdicts(&kernel, "127.0.0.1", "127.0.0.1", 30080), one_of(Verdict::Passes));
    assert_eq!(verdicts(&kernel, FAR, NODE_IP, 30080), forwarded(&["10.244.1.8:80"], true));
}

/// CVE-2020-8558.
#[test]
fn rules_guard_localhost() {
    let kernel = kernel(json!({}), &[]);
    assert_eq!(verdicts(&kernel, FAR, "127.0.0.1", 22), one_of(Verdict::Dropped));
    assert_eq!(verdicts(&kernel, "127.0.0.1", "127.0.0.1", 22), one_of(Verdict::Passes));
}

#[test]
fn rules_without_detector_do_not_masquerade_cluster_ips() {
    let (tracker, _) = one(json!({"clusterIP": "10.96.0.1"}), &["10.244.1.8"]);
    let with =
        |settings: &Settings| verdicts(&synced(tracker.state(), settings), FAR, "10.96.0.1", 80);
    let none = Settings { detector: LocalDetector::None, ..settings() };
    assert_eq!(with(&none), forwarded(&["10.244.1.8:80"], false));
    assert_eq!(
        with(&Settings { masquerade_all: true, ..none }),
        forwarded(&["10.244.1.8:80"], true)
    );
    let bridge =
        |name: &str| Settings { detector: LocalDetector::Bridge(name.into()), ..settings() };
    assert_eq!(with(&bridge("eth0")), forwarded(&["10.244.1.8:80"], false));
    assert_eq!(with(&bridge("cbr0")), forwarded(&["10.244.1.8:80"], true));
    let prefix = |name: &str| Settings {
        detector: LocalDetector::InterfacePrefix(name.into()),
        ..settings()
    };
    assert_eq!(with(&prefix("eth")), forwarded(&["10.244.1.8:80"], false));
    assert_eq!(with(&prefix("veth")), forwarded(&["10.244.1.8:80"], true));
}

#[test]
fn session_affinity_keeps_the_endpoint() {
    let spec = json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP"});
    let (tracker, _) = one(spec, &["10.244.1.7", "10.244.1.8", "10.244.1.9"]);
    let kernel = synced(tracker.state(), &settings());
    let (chain, _) = kernel
        .chains("nat")
        .find(|(_, rules)| {
            rules.iter().any(|rule| rule.ends_with("--to-destination 10.244.1.8:80"))
        })
        .unwrap();
    let packet = Packet {
        protocol: Protocol::Tcp,
        from: POD.parse().unwrap(),
        to: "10.96.0.1".parse().unwrap(),
        port: 80,
        input: Some("veth1"),
        node: &[],
        remembered: Some(chain),
    };
    assert_eq!(walk(&kernel, &packet), forwarded(&["10.244.1.8:80"], false));
    assert_eq!(walk(&kernel, &Packet { remembered: None, ..packet }).len(), 3);
}

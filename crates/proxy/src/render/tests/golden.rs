//! Rules as `iptables-save` prints them. Names of chains and texts of rules are upstream's: other
//! tools look for them.

use serde_json::json;

use crate::model::Family;
use crate::model::fixture::{one, service, slice, tracker};

use super::super::names::{Hash, Kind};
use super::super::{Accounting, ChainName, LocalDetector, Settings};
use super::{addresses, settings, synced};

/// Compares the rules of a chain.
macro_rules! assert_chain {
    ($kernel:expr, $table:literal, $chain:literal, [$($rule:literal),* $(,)?]) => {
        let expected: &[&str] = &[$($rule),*];
        assert_eq!($kernel.chain($table, $chain), expected, "{}", $chain);
    };
}

#[test]
fn render_chain_names_are_upstreams() {
    let port = |name: &str, protocol: &str| {
        let hash = Hash::of(&[name, protocol]);
        ChainName::of_port(Kind::Cluster, hash).to_string()
    };
    assert_eq!(port("ns1/svc1:p80", "tcp"), "KUBE-SVC-XPGD46QRK7WJZT7O");
    assert_eq!(port("ns2/svc2:p80", "tcp"), "KUBE-SVC-GNZBNJ2PO5MGZ6GT");
    assert_eq!(port("ns4/svc4:p80", "tcp"), "KUBE-SVC-4SW47YFZTEDKD3PK");
    let endpoint = |name, address| ChainName::of_endpoint(name, "tcp", address).to_string();
    assert_eq!(endpoint("ns1/svc1:p80", "10.180.0.1:80"), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    assert_eq!(endpoint("ns5/svc5:p80", "10.180.0.3:80"), "KUBE-SEP-I77PXRDZVX7PMWMN");
}

#[test]
fn a_cluster_ip() {
    let (tracker, _) = one(json!({"clusterIP": "172.30.0.41"}), &["10.180.0.1"]);
    let kernel = synced(tracker.state(), &settings());
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SERVICES",
        [
            "-d 172.30.0.41/32 -p tcp -m comment --comment \"ns1/svc1:p80 cluster IP\" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O",
            "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SVC-XPGD46QRK7WJZT7O",
        [
            "! -s 10.244.0.0/16 -d 172.30.0.41/32 -p tcp -m comment --comment \"ns1/svc1:p80 cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ",
            "-m comment --comment \"ns1/svc1:p80 -> 10.180.0.1:80\" -j KUBE-SEP-SXIVWICOYRO3J4NJ",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SEP-SXIVWICOYRO3J4NJ",
        [
            "-s 10.180.0.1/32 -m comment --comment \"ns1/svc1:p80\" -j KUBE-MARK-MASQ",
            "-p tcp -m comment --comment \"ns1/svc1:p80\" -m tcp -j DNAT --to-destination 10.180.0.1:80",
        ]
    );
}

#[test]
fn rules_that_are_always_there() {
    let kernel = synced(tracker(Family::V4).state(), &settings());
    assert_chain!(
        kernel,
        "nat",
        "KUBE-POSTROUTING",
        [
            "-m mark ! --mark 0x4000/0x4000 -j RETURN",
            "-j MARK --set-xmark 0x4000/0x0",
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
        ]
    );
    assert_chain!(kernel, "nat", "KUBE-MARK-MASQ", ["-j MARK --set-xmark 0x4000/0x4000"]);
    assert_chain!(
        kernel,
        "filter",
        "KUBE-FIREWALL",
        [
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
        ]
    );
    assert_chain!(
        kernel,
        "filter",
        "KUBE-FORWARD",
        [
            "-m conntrack --ctstate INVALID -j DROP",
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT",
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "POSTROUTING",
        ["-m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",]
    );
    assert_chain!(
        kernel,
        "filter",
        "OUTPUT",
        [
            "-j KUBE-FIREWALL",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL",
            "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        ]
    );
}

#[test]
fn settings_change_what_is_always_there() {
    let empty = tracker(Family::V4);
    let other = Settings {
        masquerade_bit: 0,
        random_fully: false,
        localhost_node_ports: false,
        drop_invalid: false,
        ..settings()
    };
    let kernel = synced(empty.state(), &other);
    assert_chain!(kernel, "nat", "KUBE-MARK-MASQ", ["-j MARK --set-xmark 0x1/0x1"]);
    assert_chain!(kernel, "filter", "KUBE-FIREWALL", []);
    assert_eq!(kernel.chain("filter", "KUBE-FORWARD").len(), 2);
    assert!(kernel.chain("nat", "KUBE-POSTROUTING")[2].ends_with("-j MASQUERADE"));
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SERVICES",
        [
            "! -d 127.0.0.0/8 -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        ]
    );
    let two = Settings { node_ports: addresses(&["192.168.0.2", "127.0.0.1"]), ..other };
    let kernel = synced(empty.state(), &two);
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SERVICES",
        [
            "-d 192.168.0.2/32 -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -j KUBE-NODEPORTS",
        ]
    );
    let counted = Accounting { invalid_dropped: true, localhost_node_ports: true };
    let kernel = synced(empty.state(), &Settings { accounting: counted, ..settings() });
    let drop = "-m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP";
    assert_eq!(kernel.chain("filter", "KUBE-FORWARD")[0], drop);
}

#[test]
fn local_traffic_detectors() {
    let (tracker, _) = one(json!({"clusterIP": "172.30.0.41"}), &["10.180.0.1"]);
    let first = |settings: &Settings| {
        synced(tracker.state(), settings).chain("nat", "KUBE-SVC-XPGD46QRK7WJZT7O")[0].clone()
    };
    let to = "-p tcp -m comment --comment \"ns1/svc1:p80 cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ";
    let with = |detector| Settings { detector, ..settings() };
    let bridge = first(&with(LocalDetector::Bridge("cbr0".into())));
    assert_eq!(bridge, format!("-d 172.30.0.41/32 ! -i cbr0 {to}"));
    let prefix = first(&with(LocalDetector::InterfacePrefix("veth".into())));
    assert_eq!(prefix, format!("-d 172.30.0.41/32 ! -i veth+ {to}"));
    let all = first(&Settings { masquerade_all: true, ..settings() });
    assert_eq!(all, format!("-d 172.30.0.41/32 {to}"));
    assert!(!first(&with(LocalDetector::None)).contains("KUBE-MARK-MASQ"));
}

#[test]
fn userspace_balance_is_even_with_affinity() {
    let spec = json!({"clusterIP": "172.30.0.41", "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let (tracker, _) = one(spec, &["10.180.0.1", "10.180.0.10", "10.180.0.2"]);
    let kernel = synced(tracker.state(), &settings());
    let rules = kernel.chain("nat", "KUBE-SVC-XPGD46QRK7WJZT7O");
    let second = ChainName::of_endpoint("ns1/svc1:p80", "tcp", "10.180.0.10:80");
    let remembered = format!(
        "-m comment --comment \"ns1/svc1:p80 -> 10.180.0.10:80\" -m recent --rcheck --seconds 60 --reap --name {second} --mask 255.255.255.255 --rsource -j {second}"
    );
    assert_eq!(rules[1], remembered);
    assert!(
        rules[4].contains("-m statistic --mode random --probability 0.33333333349 -j"),
        "{}",
        rules[4]
    );
    assert!(
        rules[5].contains("-m statistic --mode random --probability 0.50000000000 -j"),
        "{}",
        rules[5]
    );
    assert!(rules[6].contains("10.180.0.2:80\" -j KUBE-SEP-"), "{}", rules[6]);
    assert_eq!(rules.len(), 7);
    assert_eq!(
        kernel.chain("nat", "KUBE-SEP-SXIVWICOYRO3J4NJ")[1],
        "-p tcp -m comment --comment \"ns1/svc1:p80\" -m recent --set --name KUBE-SEP-SXIVWICOYRO3J4NJ --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.180.0.1:80"
    );
}

#[test]
fn a_load_balancer_with_the_policy_local_and_no_local_endpoint() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service(
        "ns2/svc2",
        json!({
            "type": "LoadBalancer", "clusterIP": "172.30.0.42", "externalTrafficPolicy": "Local",
            "externalIPs": ["192.168.99.22"], "ingress": [{"ip": "1.2.3.4"}],
            "healthCheckNodePort": 30000, "ports": [{"name": "p80", "port": 80, "nodePort": 3001}],
        }),
    ));
    tracker.apply_slice(&slice("ns2/svc2", "a", &["10.180.0.2"], json!({})));
    tracker.take_changes();
    let counted = Accounting { invalid_dropped: false, localhost_node_ports: true };
    let kernel = synced(tracker.state(), &Settings { accounting: counted, ..settings() });
    assert_chain!(
        kernel,
        "filter",
        "KUBE-EXTERNAL-SERVICES",
        [
            "-d 192.168.99.22/32 -p tcp -m comment --comment \"ns2/svc2:p80 has no local endpoints\" -m tcp --dport 80 -j DROP",
            "-d 1.2.3.4/32 -p tcp -m comment --comment \"ns2/svc2:p80 has no local endpoints\" -m tcp --dport 80 -j DROP",
            "-p tcp -m comment --comment \"ns2/svc2:p80 has no local endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 3001 -j DROP",
        ]
    );
    assert_chain!(
        kernel,
        "filter",
        "KUBE-NODEPORTS",
        [
            "-p tcp -m comment --comment \"ns2/svc2:p80 health check node port\" -m tcp --dport 30000 -j ACCEPT",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-NODEPORTS",
        [
            "-d 127.0.0.0/8 -p tcp -m comment --comment \"ns2/svc2:p80\" -m tcp --dport 3001 -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-GNZBNJ2PO5MGZ6GT",
            "-p tcp -m comment --comment \"ns2/svc2:p80\" -m tcp --dport 3001 -j KUBE-EXT-GNZBNJ2PO5MGZ6GT",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-EXT-GNZBNJ2PO5MGZ6GT",
        [
            "-s 10.244.0.0/16 -m comment --comment \"pod traffic for ns2/svc2:p80 external destinations\" -j KUBE-SVC-GNZBNJ2PO5MGZ6GT",
            "-m comment --comment \"masquerade LOCAL traffic for ns2/svc2:p80 external destinations\" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ",
            "-m comment --comment \"route LOCAL traffic for ns2/svc2:p80 external destinations\" -m addrtype --src-type LOCAL -j KUBE-SVC-GNZBNJ2PO5MGZ6GT",
        ]
    );
    assert_eq!(
        kernel.chain("nat", "KUBE-SERVICES")[1..3],
        [
            "-d 192.168.99.22/32 -p tcp -m comment --comment \"ns2/svc2:p80 external IP\" -m tcp --dport 80 -j KUBE-EXT-GNZBNJ2PO5MGZ6GT",
            "-d 1.2.3.4/32 -p tcp -m comment --comment \"ns2/svc2:p80 loadbalancer IP\" -m tcp --dport 80 -j KUBE-EXT-GNZBNJ2PO5MGZ6GT",
        ]
    );
}

#[test]
fn a_load_balancer_with_source_ranges() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service(
        "ns5/svc5",
        json!({
            "type": "LoadBalancer", "clusterIP": "172.30.0.45", "ingress": [{"ip": "5.6.7.8"}],
            "loadBalancerSourceRanges": [" 203.0.113.0/25", "192.168.0.0/24"],
            "ports": [{"name": "p80", "port": 80, "nodePort": 3002}],
        }),
    ));
    tracker.apply_slice(&slice("ns5/svc5", "a", &["10.180.0.3"], json!({})));
    tracker.take_changes();
    let kernel = synced(tracker.state(), &settings());
    assert_chain!(
        kernel,
        "nat",
        "KUBE-FW-NUKIZ6OKUXPJNT4C",
        [
            "-s 203.0.113.0/25 -m comment --comment \"ns5/svc5:p80 loadbalancer IP\" -j KUBE-EXT-NUKIZ6OKUXPJNT4C",
            "-s 192.168.0.0/24 -m comment --comment \"ns5/svc5:p80 loadbalancer IP\" -j KUBE-EXT-NUKIZ6OKUXPJNT4C",
            "-s 5.6.7.8/32 -m comment --comment \"ns5/svc5:p80 loadbalancer IP\" -j KUBE-EXT-NUKIZ6OKUXPJNT4C",
            "-m comment --comment \"other traffic to ns5/svc5:p80 will be dropped by KUBE-PROXY-FIREWALL\"",
        ]
    );
    assert_chain!(
        kernel,
        "filter",
        "KUBE-PROXY-FIREWALL",
        [
            "-d 5.6.7.8/32 -p tcp -m comment --comment \"ns5/svc5:p80 traffic not accepted by KUBE-FW-NUKIZ6OKUXPJNT4C\" -m tcp --dport 80 -j DROP",
        ]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-EXT-NUKIZ6OKUXPJNT4C",
        [
            "-m comment --comment \"masquerade traffic for ns5/svc5:p80 external destinations\" -j KUBE-MARK-MASQ",
            "-j KUBE-SVC-NUKIZ6OKUXPJNT4C",
        ]
    );
}

#[test]
fn no_endpoints_in_ipv6() {
    let mut tracker = tracker(Family::V6);
    tracker.apply_service(&service("ns1/svc1", json!({
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00:10::41"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ports": [{"port": 53, "protocol": "UDP"}, {"name": "x", "port": 9, "protocol": "SCTP"}],
    })));
    let ports = json!({"ports": [{"name": "", "port": 53, "protocol": "UDP"}]});
    tracker.apply_slice(&slice("ns1/svc1", "a", &["fd00:1::5"], ports));
    tracker.take_changes();
    let v6 = Settings { family: Family::V6, detector: LocalDetector::None, ..settings() };
    let kernel = synced(tracker.state(), &v6);
    assert_chain!(
        kernel,
        "filter",
        "KUBE-SERVICES",
        [
            "-d fd00:10::41/128 -p sctp -m comment --comment \"ns1/svc1:x has no endpoints\" -m sctp --dport 9 -j REJECT --reject-with icmp6-port-unreachable",
        ]
    );
    let saved = kernel.save();
    assert!(saved.contains("-p udp -m comment --comment \"ns1/svc1\" -m udp -j DNAT --to-destination [fd00:1::5]:53\n"), "{saved}");
    assert!(saved.contains("! -d ::1/128 -m comment"), "{saved}");
}

#[test]
fn many_endpoints_go_without_comments() {
    let many: Vec<String> =
        (0..1001).map(|i| format!("10.180.{}.{}", i / 250, i % 250 + 1)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (tracker, _) = one(json!({"clusterIP": "172.30.0.41"}), &many);
    let kernel = synced(tracker.state(), &settings());
    let rules = kernel.chain("nat", "KUBE-SVC-XPGD46QRK7WJZT7O");
    assert!(
        rules[1].starts_with("-m statistic --mode random --probability 0.00099900"),
        "{}",
        rules[1]
    );
    assert_chain!(
        kernel,
        "nat",
        "KUBE-SEP-SXIVWICOYRO3J4NJ",
        [
            "-s 10.180.0.1/32 -j KUBE-MARK-MASQ",
            "-p tcp -m tcp -j DNAT --to-destination 10.180.0.1:80",
        ]
    );
    // what is shared keeps its comments: each rule is found by them
    assert!(kernel.chain("nat", "KUBE-SERVICES")[0].contains("ns1/svc1:p80 cluster IP"));
}

//! What is read of objects, and what is left out.

use serde_json::{Value, json};

use crate::model::fixture::{one, service, slice, tracker};
use crate::model::{Cidr, Family, Policy, Protocol, Spec, Warning};

/// A service as it is read in a family, and the complaints.
fn read(family: Family, spec: Value) -> (Option<std::sync::Arc<Spec>>, Vec<Warning>) {
    let mut tracker = tracker(family);
    tracker.apply_service(&service("ns/svc", spec));
    let changes = tracker.take_changes();
    let service = changes.services.into_iter().next().and_then(|change| change.after);
    (service.map(|service| service.spec.clone()), changes.warnings)
}

fn good(family: Family, spec: Value) -> std::sync::Arc<Spec> {
    let (spec, warnings) = read(family, spec);
    assert_eq!(warnings, []);
    spec.unwrap()
}

#[test]
fn cluster_ips_by_family() {
    let ip = |family, spec: Value| read(family, spec).0.map(|spec| spec.cluster_ip.to_string());
    let both = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"]});
    assert_eq!(ip(Family::V4, both.clone()).as_deref(), Some("10.96.0.1"));
    assert_eq!(ip(Family::V6, both).as_deref(), Some("fd00::1"));
    let old = json!({"clusterIP": "fd00::1"});
    assert_eq!(ip(Family::V4, old.clone()), None);
    assert_eq!(ip(Family::V6, old).as_deref(), Some("fd00::1"));
    for nothing in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": ""}),
        json!({}),
        json!({"clusterIP": "10.96.0.1", "type": "ExternalName"}),
        json!({"clusterIP": "10.96.0.1", "clusterIPs": [], "ipFamilies": ["IPv4"]}),
    ] {
        let (spec, warnings) = read(Family::V4, nothing.clone());
        assert!(spec.is_none() && warnings.is_empty(), "{nothing}");
    }
}

#[test]
fn all_of_a_load_balancer() {
    let spec = good(
        Family::V4,
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP",
            "externalIPs": ["198.51.100.1", "2001:db8::1", "198.51.100.1", ""],
            "loadBalancerSourceRanges": [" 203.0.113.9/24 ", "2001:db8::/32"],
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "ingress": [{"ip": "198.51.100.2"}, {"ip": "198.51.100.3", "ipMode": "VIP"},
                {"ip": "198.51.100.4", "ipMode": "Proxy"}, {"hostname": "lb.example.org"}, {"ip": "2001:db8::2"}],
            "ports": [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 80, "protocol": "UDP"}, {"name": "c", "port": 9, "protocol": "SCTP"}],
        }),
    );
    let texts = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&spec.external_ips), ["198.51.100.1"]);
    assert_eq!(texts(&spec.load_balancer_ips), ["198.51.100.2", "198.51.100.3"]);
    assert_eq!(spec.source_ranges, ["203.0.113.0/24".parse().unwrap()]);
    assert_eq!(spec.affinity, Some(10_800));
    assert_eq!((spec.internal_policy, spec.external_policy), (Policy::Local, Policy::Local));
    assert_eq!(spec.health_check_node_port, Some(32000));
    let ports: Vec<_> =
        spec.ports.iter().map(|p| (&*p.name, p.protocol, p.port, p.node_port)).collect();
    let expected = [
        ("a", Protocol::Tcp, 80, Some(30080)),
        ("b", Protocol::Udp, 80, None),
        ("c", Protocol::Sctp, 9, None),
    ];
    assert_eq!(ports, expected);
}

#[test]
fn everybody_is_nobody_in_particular() {
    let ranges = json!({"clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ["203.0.113.0/24", "0.0.0.0/0"]});
    assert!(good(Family::V4, ranges).source_ranges.is_empty());
}

#[test]
fn affinity_is_within_bounds() {
    for (given, kept) in [(1, 1), (0, 1), (-5, 1), (600, 600), (1_000_000, 86_400)] {
        let spec = json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": given}}});
        assert_eq!(good(Family::V4, spec).affinity, Some(kept), "{given}");
    }
    let none = json!({"clusterIP": "10.96.0.1", "sessionAffinity": "None"});
    assert_eq!(good(Family::V4, none).affinity, None);
}

#[test]
fn render_invalid_values_are_left_out_with_a_warning() {
    let table = [
        (json!({"clusterIP": "010.96.0.1"}), "InvalidAddress", false),
        (json!({"clusterIP": "127.0.0.1"}), "InvalidAddress", false),
        (json!({"clusterIP": "10.96.0.1", "externalIPs": ["1.2.3"]}), "InvalidAddress", true),
        (json!({"clusterIP": "10.96.0.1", "externalIPs": ["169.254.1.1"]}), "InvalidAddress", true),
        (
            json!({"clusterIP": "10.96.0.1", "ingress": [{"ip": "::ffff:1.2.3.4"}]}),
            "InvalidAddress",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ["10.0.0.0/33"]}),
            "InvalidSourceRange",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a\"\n-j DROP", "port": 80}]}),
            "InvalidPort",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 70000}]}),
            "InvalidPort",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 0}]}),
            "InvalidPort",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 1, "protocol": "ICMP"}]}),
            "InvalidPort",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 1}]}),
            "DuplicatePort",
            true,
        ),
        (
            json!({"clusterIP": "10.96.0.1", "ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}),
            "DuplicatePort",
            true,
        ),
    ];
    for (spec, reason, kept) in table {
        let (service, warnings) = read(Family::V4, spec.clone());
        assert_eq!(service.is_some(), kept, "{spec}");
        let [warning] = &warnings[..] else { panic!("{spec}: {warnings:?}") };
        assert_eq!((warning.kind, warning.reason), ("Service", reason), "{spec}");
        assert_eq!((&*warning.namespace, &*warning.name), ("ns", "svc"));
    }
}

/// An invalid source range allows nobody, rather than everybody.
#[test]
fn load_balancer_invalid_source_range_allows_nobody() {
    for (ranges, expected) in [
        (json!(["010.0.0.0/8"]), &["0.0.0.0/32"][..]),
        (json!(["x", "192.0.2.0/24"]), &["0.0.0.0/32", "192.0.2.0/24"]),
        (json!([" 192.0.2.0/24 "]), &["192.0.2.0/24"]),
        (json!(["0.0.0.0/0", "192.0.2.0/24"]), &[]),
    ] {
        let spec = json!({"clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ranges});
        let (spec, _) = read(Family::V4, spec);
        let found: Vec<String> =
            spec.unwrap().source_ranges.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{ranges}");
    }
}

#[test]
fn render_names_are_escaped() {
    let mut tracker = tracker(Family::V4);
    for bad in ["ns/a\"b", "ns/a b", "n\ns/a", &format!("ns/{}", "x".repeat(64)), "/a", "ns/"] {
        tracker.apply_service(&service(bad, json!({"clusterIP": "10.96.0.1"})));
        let changes = tracker.take_changes();
        assert!(changes.services.is_empty(), "{bad}");
        assert_eq!(changes.warnings[0].reason, "InvalidName", "{bad}");
    }
}

#[test]
fn warnings_one_per_object_and_change() {
    let mut tracker = tracker(Family::V4);
    let bad = service("ns/svc", json!({"clusterIP": "10.96.0.1", "externalIPs": ["x", "y", "z"]}));
    assert!(tracker.apply_service(&bad));
    assert!(!tracker.apply_service(&bad));
    let warnings = tracker.take_changes().warnings;
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].message, "externalIP \"x\" is not a usable IP address (and 2 more)");
    assert!(!tracker.apply_service(&bad));
    assert!(tracker.take_changes().warnings.is_empty());
    // and there is an end to them
    for i in 0..200 {
        tracker.apply_service(&service(&format!("ns/svc{i}"), json!({"clusterIP": "x"})));
    }
    assert_eq!(tracker.take_changes().warnings.len(), 64);
}

/// CVE-2021-25737: endpoints at loopback and link-local addresses are the node's own.
#[test]
fn tracker_rejects_special_endpoint_addresses() {
    let bad = [
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "10.0.0.01",
        "fd00::1",
        "x",
        "",
    ];
    for text in bad {
        let (tracker, changes) =
            one(json!({"clusterIP": "10.96.0.1"}), &["10.0.0.1", text, "10.0.0.2"]);
        assert_eq!(tracker.state().endpoints(), 2, "{text}");
        assert_eq!(changes.warnings[0].kind, "EndpointSlice", "{text}");
        assert_eq!(changes.warnings[0].reason, "InvalidAddress", "{text}");
    }
    for text in
        ["::1", "::", "fe80::1", "febf::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"]
    {
        let mut tracker = tracker(Family::V6);
        tracker.apply_service(&service("ns/svc", json!({"clusterIP": "fd00::1"})));
        tracker.apply_slice(&slice("ns/svc", "a", &["fd01::1", text], json!({})));
        let changes = tracker.take_changes();
        assert_eq!(tracker.state().endpoints(), 1, "{text}");
        assert_eq!(changes.warnings[0].reason, "InvalidAddress", "{text}");
    }
}

#[test]
fn ports_of_slices() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns/svc", json!({"clusterIP": "10.96.0.1"})));
    let ports = json!([{"port": 1}, {"name": "p80"}, {"name": "p80", "port": 0}, {"name": "p80", "port": 99999},
        {"name": "p80", "port": 8, "protocol": "UDP"}, {"name": "p80", "port": 8080, "protocol": "TCP"}]);
    tracker.apply_slice(&slice("ns/svc", "a", &["10.0.0.1"], json!({"ports": ports})));
    let changes = tracker.take_changes();
    assert_eq!(changes.warnings.len(), 1);
    let service = changes.services[0].after.clone().unwrap();
    let addresses: Vec<_> =
        service.ports().next().unwrap().endpoints.iter().map(|e| e.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1:8080"]);
}

#[test]
fn tracker_endpoints_above_the_limit() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns/svc", json!({"clusterIP": "10.96.0.1"})));
    let all: Vec<String> = (0..10_050).map(|i| format!("10.0.{}.{}", i / 256, i % 256)).collect();
    for (index, part) in all.chunks(1000).enumerate() {
        let part: Vec<&str> = part.iter().map(String::as_str).collect();
        tracker.apply_slice(&slice("ns/svc", &index.to_string(), &part, json!({})));
    }
    let changes = tracker.take_changes();
    assert_eq!(tracker.state().endpoints(), 10_000);
    assert_eq!(changes.warnings[0].reason, "TooManyEndpoints");
    assert!(changes.everything, "rules go without comments from now on");
}

#[test]
fn ranges_of_addresses() {
    let show = |text: &str| text.parse::<Cidr>().map(|range| range.to_string()).ok();
    assert_eq!(show("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
    assert_eq!(show("10.1.2.3/32").as_deref(), Some("10.1.2.3/32"));
    assert_eq!(show("0.0.0.0/0").as_deref(), Some("0.0.0.0/0"));
    assert_eq!(show("fd00::1/64").as_deref(), Some("fd00::/64"));
    assert_eq!(show("::/0").as_deref(), Some("::/0"));
    for bad in [
        "10.0.0.0",
        "10.0.0.0/33",
        "10.0.0.0/08",
        "10.0.0.0/+8",
        "10.0.0.0/",
        "10.00.0.0/8",
        "fd00::/129",
        "/8",
        "",
    ] {
        assert_eq!(show(bad), None, "{bad}");
    }
    let error = "10.0.0.0/33".parse::<Cidr>().unwrap_err();
    assert_eq!(error.to_string(), "\"10.0.0.0/33\" is not a CIDR such as 10.0.0.0/8 or fd00::/64");
    let range: Cidr = "10.96.0.0/12".parse().unwrap();
    let holds = |ip: &str| range.contains(ip.parse().unwrap());
    assert!(holds("10.96.0.0") && holds("10.111.255.255"));
    assert!(!holds("10.112.0.0") && !holds("fd00::1"));
}

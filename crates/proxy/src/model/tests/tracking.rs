//! Changes between syncs.

use serde_json::json;

use crate::model::fixture::{endpoints, name, one, service, slice, tracker};
use crate::model::{Changes, Family, HealthCheck, NoLocalEndpoints, Tracker};

fn plain() -> serde_json::Value {
    json!({"clusterIP": "10.96.0.1"})
}

/// The addresses of the first service's first port.
fn addresses(tracker: &Tracker) -> Vec<String> {
    let service = tracker.state().services().next().unwrap();
    service.ports().next().unwrap().endpoints.iter().map(|e| e.address.to_string()).collect()
}

fn names(changes: &Changes) -> Vec<String> {
    let any =
        |change: &crate::model::Change| change.after.clone().or(change.before.clone()).unwrap();
    changes.services.iter().map(|change| any(change).spec.name.to_string()).collect()
}

#[test]
fn before_and_after() {
    let (mut tracker, changes) = one(plain(), &["10.0.0.1"]);
    assert_eq!(names(&changes), ["ns1/svc1"]);
    assert!(changes.services[0].before.is_none());
    let first = changes.services[0].after.clone();
    assert!(tracker.take_changes().services.is_empty());
    assert!(tracker.apply_slice(&slice("ns1/svc1", "a", &["10.0.0.1", "10.0.0.2"], json!({}))));
    let changes = tracker.take_changes();
    assert_eq!(changes.services[0].before, first);
    assert_eq!(addresses(&tracker), ["10.0.0.1:80", "10.0.0.2:80"]);
    assert!(tracker.delete_service(&name("ns1/svc1")));
    assert!(!tracker.delete_service(&name("ns1/svc1")));
    let changes = tracker.take_changes();
    assert!(changes.services[0].after.is_none());
    assert_eq!(tracker.state().services().count(), 0);
    assert_eq!(tracker.state().endpoints(), 0);
}

#[test]
fn tracker_endpoints_before_their_service() {
    let mut tracker = tracker(Family::V4);
    assert!(!tracker.apply_slice(&slice("ns/svc", "a", &["10.0.0.1"], json!({}))));
    assert!(!tracker.apply_slice(&slice("ns/svc", "b", &["10.0.0.2"], json!({}))));
    assert!(!tracker.delete_slice(&slice("ns/svc", "b", &["10.0.0.2"], json!({}))));
    assert!(tracker.take_changes().services.is_empty());
    assert!(tracker.apply_service(&service("ns/svc", plain())));
    assert_eq!(names(&tracker.take_changes()), ["ns/svc"]);
    assert_eq!(addresses(&tracker), ["10.0.0.1:80"]);
}

#[test]
fn tracker_reverted_change_is_no_change() {
    let (mut tracker, _) = one(plain(), &["10.0.0.1"]);
    assert!(tracker.apply_slice(&slice("ns1/svc1", "a", &["10.0.0.2"], json!({}))));
    assert!(tracker.apply_slice(&slice("ns1/svc1", "a", &["10.0.0.1"], json!({}))));
    assert!(!tracker.apply_slice(&slice("ns1/svc1", "a", &["10.0.0.1"], json!({}))));
    assert!(tracker.take_changes().services.is_empty());
}

#[test]
fn tracker_slices_are_merged_and_serving_endpoints_win() {
    let (mut tracker, _) = one(plain(), &["10.0.0.2", "10.0.0.1 terminating"]);
    tracker.apply_slice(&slice(
        "ns1/svc1",
        "b",
        &["10.0.0.1", "10.0.0.2 terminating", "10.0.0.30"],
        json!({}),
    ));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.30:80"]);
    let service = tracker.state().services().next().unwrap();
    assert!(service.ports().next().unwrap().endpoints.iter().all(|e| e.ready && !e.terminating));
    // the same name and another number, as named target ports may have in different pods
    let other = json!({"ports": [{"name": "p80", "port": 8080}]});
    tracker.apply_slice(&slice("ns1/svc1", "b", &["10.0.0.9"], other));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.9:8080"]);
    tracker.delete_slice(&slice("ns1/svc1", "a", &[], json!({})));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.9:8080"]);
}

#[test]
fn tracker_slices_may_precede_outlive_and_change_service() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_slice(&slice("ns/a", "x", &["10.0.0.1"], json!({})));
    assert!(tracker.take_changes().services.is_empty());
    tracker.apply_service(&service("ns/a", plain()));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:80"]);
    tracker.delete_service(&name("ns/a"));
    tracker.take_changes();
    tracker.apply_service(&service("ns/a", plain()));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:80"]);
    // the slice a-x becomes one of another service
    let mut moved = slice("ns/a", "x", &["10.0.0.1"], json!({}));
    moved.metadata.labels.as_mut().unwrap().insert("kubernetes.io/service-name".into(), "b".into());
    assert!(tracker.apply_slice(&moved));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), [""; 0]);
    tracker.delete_slice(&moved);
    tracker.delete_service(&name("ns/a"));
    tracker.take_changes();
    assert!(tracker.is_empty());
}

#[test]
fn labels_that_say_keep_off() {
    let (mut tracker, _) = one(plain(), &["10.0.0.1"]);
    let mut other = service("ns1/svc1", plain());
    other.metadata.labels =
        Some([("service.kubernetes.io/service-proxy-name".into(), "x".into())].into());
    assert!(tracker.apply_service(&other));
    assert_eq!(names(&tracker.take_changes()), ["ns1/svc1"]);
    assert!(!tracker.apply_service(&other));
    assert!(tracker.apply_service(&service("ns1/svc1", plain())));
    let mut headless = slice("ns1/svc1", "a", &["10.0.0.1"], json!({}));
    headless
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("service.kubernetes.io/headless".into(), String::new());
    assert!(tracker.apply_slice(&headless));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), [""; 0]);
}

#[test]
fn tracker_ignores_slices_of_the_other_family() {
    let (mut tracker, _) = one(plain(), &["10.0.0.1"]);
    assert!(!tracker.apply_slice(&slice("ns1/svc1", "six", &["fd00::1"], json!({}))));
    assert!(!tracker.apply_slice(&slice(
        "ns1/svc1",
        "name",
        &["x"],
        json!({"addressType": "FQDN"})
    )));
    assert!(!tracker.delete_slice(&slice("ns1/svc1", "six", &["fd00::1"], json!({}))));
}

#[test]
fn tracker_relist_removes_missing_objects() {
    let (mut tracker, _) = one(plain(), &["10.0.0.1"]);
    tracker.apply_service(&service("ns/gone", json!({"clusterIP": "10.96.0.2"})));
    tracker.apply_slice(&slice("ns1/svc1", "b", &["10.0.0.2"], json!({})));
    tracker.take_changes();
    tracker.begin_list_services();
    // Slices are listed meanwhile: neither list counts in the other.
    tracker.begin_list_slices();
    assert!(!tracker.apply_service(&service("ns1/svc1", plain())));
    assert!(tracker.end_list_services());
    assert!(!tracker.end_list_services());
    assert_eq!(names(&tracker.take_changes()), ["ns/gone"]);
    tracker.apply_slice(&slice("ns1/svc1", "b", &["10.0.0.2"], json!({})));
    tracker.begin_list_services();
    assert!(tracker.end_list_slices());
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.2:80"]);
    assert_eq!(tracker.state().services().count(), 1);
}

#[test]
fn tracker_endpoints_without_slices() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service(
        "ns/svc",
        json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}),
    ));
    let subsets = json!([
        {"addresses": [{"ip": "10.0.0.1", "nodeName": "node-a"}, {"ip": "fd00::1"}],
         "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 8080}]},
        {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"port": 8081}]},
    ]);
    assert!(tracker.apply_endpoints(&endpoints("ns/svc", subsets.clone())));
    assert!(!tracker.apply_endpoints(&endpoints("ns/svc", subsets)));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8081"]);
    let service = tracker.state().services().next().unwrap();
    let flags: Vec<_> =
        service.ports().next().unwrap().endpoints.iter().map(|e| (e.ready, e.local)).collect();
    assert_eq!(flags, [(true, true), (false, false), (true, false)]);
    let fewer = json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 8080}]}]);
    assert!(tracker.apply_endpoints(&endpoints("ns/svc", fewer)));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.0.1:8080"]);
    assert!(tracker.delete_endpoints(&name("ns/svc")));
    tracker.take_changes();
    assert_eq!(addresses(&tracker), [""; 0]);
}

#[test]
fn tracker_oldest_trigger_is_kept() {
    let (mut tracker, changes) = one(plain(), &["10.0.0.1"]);
    assert!(changes.triggers.is_empty());
    let at = |endpoint: &str, time: &str| {
        let mut slice = slice("ns1/svc1", "a", &[endpoint], json!({}));
        let annotation =
            ("endpoints.kubernetes.io/last-change-trigger-time".to_owned(), time.to_owned());
        slice.metadata.annotations = Some([annotation].into());
        slice
    };
    tracker.apply_slice(&at("10.0.0.2", "2026-03-01T00:00:02Z"));
    tracker.apply_slice(&at("10.0.0.3", "2026-03-01T00:00:01.5Z"));
    tracker.apply_slice(&at("10.0.0.4", "yesterday"));
    // from before the start
    tracker.apply_slice(&at("10.0.0.5", "2025-03-01T00:00:00Z"));
    let changes = tracker.take_changes();
    assert_eq!(changes.triggers, [(name("ns1/svc1"), "2026-03-01T00:00:01.5Z".parse().unwrap())]);
    // a removal is not when its slice last changed
    let last = at("10.0.0.6", "2026-03-01T00:00:03Z");
    tracker.apply_slice(&last);
    tracker.delete_slice(&last);
    assert!(tracker.take_changes().triggers.is_empty());
}

#[test]
fn conntrack_udp_ports_have_all_serving_endpoints() {
    let mut tracker = tracker(Family::V4);
    let dns = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.1"],
        "ingress": [{"ip": "198.51.100.2"}], "internalTrafficPolicy": "Local",
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}, {"name": "tcp", "port": 53}]});
    tracker.apply_service(&service("ns/dns", dns));
    let ports = json!({"ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}]});
    let endpoints = ["10.0.0.1", "10.0.0.2 unready", "10.0.0.3 terminating"];
    tracker.apply_slice(&slice("ns/dns", "a", &endpoints, ports));
    tracker.apply_service(&service("ns/web", plain()));
    let changes = tracker.take_changes();
    assert!(changes.udp);
    assert!(changes.old_udp().is_empty());
    let [udp] = &tracker.state().udp()[..] else { panic!() };
    let texts: Vec<_> = udp.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.96.0.10:53", "198.51.100.1:53", "198.51.100.2:53"]);
    assert_eq!(udp.node_port, Some(30053));
    let texts: Vec<_> = udp.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.0.1:5353", "10.0.0.3:5353"]);
    // a change of TCP alone ends no flow
    tracker.delete_service(&name("ns/web"));
    assert!(!tracker.take_changes().udp);
    // gone: what was there has no endpoints now
    tracker.delete_service(&name("ns/dns"));
    let changes = tracker.take_changes();
    assert!(changes.udp && tracker.state().udp().is_empty());
    assert!(changes.old_udp()[0].endpoints.is_empty());
    assert_eq!(changes.old_udp()[0].addresses.len(), 3);
}

#[test]
fn health_checks_count_local_addresses() {
    let mut tracker = tracker(Family::V4);
    let spec = |policy: &str| {
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": policy,
        "healthCheckNodePort": 32000, "ports": [{"name": "p80", "port": 80, "nodePort": 30080}, {"name": "p81", "port": 81}]})
    };
    tracker.apply_service(&service("ns/lb", spec("Local")));
    let ports = json!({"ports": [{"name": "p80", "port": 80}, {"name": "p81", "port": 81}]});
    let endpoints = ["10.0.0.1 local", "10.0.0.2 local", "10.0.0.3", "10.0.0.4 local terminating"];
    tracker.apply_slice(&slice("ns/lb", "a", &endpoints, ports.clone()));
    tracker.take_changes();
    let check = HealthCheck { port: 32000, local_endpoints: 2 };
    assert_eq!(tracker.state().health_checks(), [(name("ns/lb"), check)].into());
    assert_eq!(tracker.state().no_local_endpoints(), NoLocalEndpoints::default());
    tracker.apply_slice(&slice("ns/lb", "a", &["10.0.0.3"], ports));
    tracker.take_changes();
    assert_eq!(tracker.state().health_checks()[&name("ns/lb")].local_endpoints, 0);
    // the other port is reached by the cluster IP only
    let none = NoLocalEndpoints { internal: 0, external: 1 };
    assert_eq!(tracker.state().no_local_endpoints(), none);
    tracker.apply_service(&service("ns/lb", spec("Cluster")));
    tracker.take_changes();
    assert!(tracker.state().health_checks().is_empty());
}

#[test]
fn render_large_endpoint_change_is_a_full_sync() {
    let many: Vec<String> = (0..1000).map(|i| format!("10.0.{}.{}", i / 250, i % 250)).collect();
    let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (mut tracker, changes) = one(plain(), &many);
    assert!(!changes.everything && !tracker.state().is_large());
    many.push("10.1.0.1");
    tracker.apply_slice(&slice("ns1/svc1", "a", &many, json!({})));
    assert!(tracker.take_changes().everything && tracker.state().is_large());
    many.push("10.1.0.2");
    tracker.apply_slice(&slice("ns1/svc1", "a", &many, json!({})));
    assert!(!tracker.take_changes().everything);
    tracker.apply_slice(&slice("ns1/svc1", "a", &many[..5], json!({})));
    assert!(tracker.take_changes().everything);
}

/// Finding 14: the rules of a service are its ports times its addresses, times its source ranges.
#[test]
fn the_rules_of_one_service_are_bounded() {
    let ip = |index: usize| format!("20.{}.{}.{}", index >> 16, (index >> 8) & 255, index & 255);
    let many: Vec<String> = (0..70_000).map(ip).collect();
    let ranges: Vec<String> = many.iter().map(|ip| format!("{ip}/32")).collect();
    let ports: Vec<_> =
        (1..=20_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let spec = json!({
        "clusterIP": "10.96.0.1", "type": "LoadBalancer", "ports": ports, "externalIPs": many,
        "loadBalancerSourceRanges": ranges,
        "ingress": many.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
    });
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns1/svc1", spec));
    let changes = tracker.take_changes();
    let spec = &changes.services[0].after.as_ref().unwrap().spec;
    assert_eq!(spec.external_ips.len(), 10_000);
    assert_eq!(spec.load_balancer_ips.len(), 10_000);
    assert_eq!(spec.source_ranges.len(), 10_000);
    assert_eq!(spec.ports.len(), 2);
    assert_eq!(changes.warnings.len(), 1);
}

/// Finding 14: each port of a service was compared with each port of each slice, and a slice may name each
/// endpoint with thousands of ports.
#[test]
fn the_endpoints_of_one_service_are_bounded() {
    let ports: Vec<_> =
        (1..=15_000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let endpoints: Vec<String> =
        (0..1000).map(|index| format!("10.0.{}.{}", index / 250, 1 + index % 250)).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns1/svc1", json!({"clusterIP": "10.96.0.1", "ports": ports})));
    tracker.apply_slice(&slice("ns1/svc1", "a", &endpoints, json!({"ports": ports})));
    assert_eq!(tracker.take_changes().services.len(), 1);
    assert_eq!(tracker.state().endpoints(), 100_000);
    // One port that has thousands of numbers.
    let same: Vec<_> = (1..=15_000).map(|port| json!({"name": "p80", "port": port})).collect();
    tracker.apply_service(&service("ns1/svc2", json!({"clusterIP": "10.96.0.2"})));
    tracker.apply_slice(&slice("ns1/svc2", "a", &endpoints, json!({"ports": same})));
    tracker.take_changes();
    assert_eq!(tracker.state().endpoints(), 110_000);
}

/// Finding 14: of many slices deleted at once, each was searched for among all.
#[test]
fn many_slices_of_one_service_come_and_go() {
    let mut tracker = tracker(Family::V4);
    tracker.apply_service(&service("ns1/svc1", plain()));
    tracker.begin_list_slices();
    for index in 0..50_000 {
        let endpoint = format!("10.{}.{}.1", index / 250, index % 250);
        tracker.apply_slice(&slice("ns1/svc1", &format!("{index:06}"), &[&endpoint], json!({})));
    }
    tracker.end_list_slices();
    tracker.take_changes();
    assert_eq!(tracker.state().endpoints(), 10_000);
    tracker.begin_list_slices();
    tracker.keep_slice(&name("ns1/svc1-000007"));
    assert!(tracker.end_list_slices());
    tracker.take_changes();
    assert_eq!(addresses(&tracker), ["10.0.7.1:80"]);
}

/// Finding 13: an object that cannot be decoded stays as it was.
#[test]
fn tracker_undecodable_object_keeps_the_last() {
    let (mut tracker, _) = one(plain(), &["10.0.0.1"]);
    tracker.begin_list_services();
    tracker.begin_list_slices();
    assert!(!tracker.keep_service(&name("ns1/svc1")) && !tracker.keep_service(&name("ns1/other")));
    assert!(!tracker.keep_slice(&name("ns1/svc1-a")) && !tracker.keep_slice(&name("ns1/other")));
    assert!(!tracker.end_list_services() && !tracker.end_list_slices());
    assert!(tracker.take_changes().services.is_empty());
    assert_eq!(addresses(&tracker), ["10.0.0.1:80"]);
    tracker.begin_list_slices();
    tracker.keep_endpoints(&name("ns1/svc1"));
    assert!(!tracker.end_list_slices());
}

/// CVE-2020-8554: `externalIPs` redirect traffic for any address to a service; the gate
/// AllowServiceExternalIPs switches them off.
#[test]
fn external_ips_can_be_disabled() {
    let spec = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1",
        "externalIPs": ["198.51.100.1"], "ingress": [{"ip": "198.51.100.2"}]});
    for used in [true, false] {
        let mut tracker = tracker(Family::V4).with_external_ips(used);
        assert!(tracker.apply_service(&service("ns/svc", spec.clone())));
        tracker.take_changes();
        let service = tracker.state().services().next().unwrap();
        let port = service.ports().next().unwrap();
        assert_eq!(port.spec.external_ips.len(), usize::from(used));
        assert_eq!(port.spec.load_balancer_ips.len(), 1);
    }
}

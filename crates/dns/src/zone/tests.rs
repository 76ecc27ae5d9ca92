//! Objects → records, and questions → answers, as the specification has them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service as ServiceObject};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::Model;

const ENOUGH: usize = 1000;

pub(crate) fn service(namespace: &str, name: &str, spec: Value) -> ServiceObject {
    let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// A slice of ready endpoints with a hostname each, or without.
pub(crate) fn slice(service: &str, name: &str, ports: Value, endpoints: Value) -> EndpointSlice {
    let endpoints = endpoints.as_array().unwrap().iter().map(|endpoint| {
        let mut whole = endpoint.clone();
        if let Some(address) = endpoint["address"].as_str() {
            whole["addresses"] = json!([address]);
        }
        whole
    });
    let object = json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": if endpoints.clone().any(|it| it.to_string().contains("::")) { "IPv6" } else { "IPv4" },
        "ports": ports,
        "endpoints": endpoints.collect::<Vec<_>>(),
    });
    serde_json::from_value(object).unwrap()
}

/// A cluster with some of everything.
pub(crate) fn model(pods: PodNames) -> Model {
    let mut model = Model::new(Domain::parse("cluster.local").unwrap(), 30, pods);
    for namespace in ["default", "kube-system", "shop"] {
        model.apply_namespace(namespace);
    }
    let https = json!([{"name": "https", "port": 443, "protocol": "TCP"}]);
    model.apply_service(&service(
        "default",
        "kubernetes",
        json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": https}),
    ));
    model.apply_service(&service(
        "kube-system",
        "kube-dns",
        json!({"clusterIP": "10.96.0.10", "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ]}),
    ));
    model.apply_service(&service(
        "shop",
        "dual",
        json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"], "ports": [
            {"name": "http", "port": 80}, {"port": 81, "protocol": "UDP"},
        ]}),
    ));
    let web = json!([{"name": "web", "port": 8080, "protocol": "TCP"}]);
    model.apply_slice(&slice("dual", "dual-1", web.clone(), json!([{"address": "10.244.0.9"}])));
    model.apply_service(&service(
        "shop",
        "headless",
        json!({"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"name": "web", "port": 80}]}),
    ));
    model.apply_slice(&slice(
        "headless",
        "headless-1",
        web.clone(),
        json!([
            {"address": "10.244.0.1", "hostname": "web-0"},
            {"address": "10.244.0.2", "conditions": {"ready": true}},
            {"address": "10.244.0.3", "conditions": {"ready": false}},
        ]),
    ));
    model.apply_slice(&slice("headless", "headless-2", web, json!([{"address": "fd00:1::"}])));
    model.apply_service(&service("shop", "empty", json!({"clusterIP": "None"})));
    for (name, target) in [
        ("external", "www.Example.com"),
        ("inner", "kubernetes.default.svc.cluster.local."),
        ("gone", "nobody.shop.svc.cluster.local"),
        ("circle", "circle.shop.svc.cluster.local"),
        ("address", "1.2.3.4"),
    ] {
        let spec = json!({"type": "ExternalName", "externalName": target});
        model.apply_service(&service("shop", name, spec));
    }
    model.set_synced();
    model
}

fn ask(zone: &Zone, name: &str, kind: RecordType) -> Answer {
    let name = Name::from_ascii(name).unwrap();
    zone.answer(&Question { name: &name, kind, limit: ENOUGH }, &mut Shuffle::seeded(1))
}

/// The answer in words: records in order of their text, those of the additional section after `+`.
pub(crate) fn said(zone: &Zone, name: &str, kind: RecordType) -> String {
    let answer = ask(zone, name, kind);
    let lines = |records: &[Record]| {
        let lines = records.iter().map(|record| {
            assert!(record.ttl <= 30 || record.record_type() == RecordType::TXT);
            format!("{} {} {}", record.name, record.record_type(), record.data)
        });
        lines.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ")
    };
    let mut text = lines(&answer.records);
    if !answer.additionals.is_empty() {
        text += &format!(" + {}", lines(&answer.additionals));
    }
    match answer.outcome {
        Outcome::Complete => text,
        Outcome::NoData(soa) => format!("{text}NODATA {}", soa.name),
        Outcome::NameError(soa) => format!("{text}NXDOMAIN {}", soa.name),
        Outcome::Elsewhere(name) => format!("{text} -> {name}"),
        Outcome::Refused => "REFUSED".to_owned(),
        Outcome::NotSynced => "SERVFAIL".to_owned(),
    }
}

#[test]
fn zone_answers_as_specified() {
    use RecordType as T;
    let zone = model(PodNames::Insecure).snapshot(7);
    let nodata = "NODATA cluster.local.";
    let nxdomain = "NXDOMAIN cluster.local.";
    for (name, kind, expected) in [
        // 2.2 the version of the schema
        ("dns-version.cluster.local.", T::TXT, "dns-version.cluster.local. TXT 1.1.0"),
        ("dns-version.cluster.local.", T::A, nodata),
        // 2.3 cluster IPs
        (
            "kubernetes.default.svc.cluster.local.",
            T::A,
            "kubernetes.default.svc.cluster.local. A 10.96.0.1",
        ),
        ("kubernetes.default.svc.cluster.local.", T::AAAA, nodata),
        ("kubernetes.default.svc.cluster.local.", T::TXT, nodata),
        ("kubernetes.default.svc.cluster.local.", T::ANY, nodata),
        (
            "KuberneTes.Default.SVC.cluster.LOCAL.",
            T::A,
            "KuberneTes.Default.SVC.cluster.LOCAL. A 10.96.0.1",
        ),
        ("dual.shop.svc.cluster.local.", T::A, "dual.shop.svc.cluster.local. A 10.96.0.7"),
        ("dual.shop.svc.cluster.local.", T::AAAA, "dual.shop.svc.cluster.local. AAAA fd00::7"),
        (
            "_https._tcp.kubernetes.default.svc.cluster.local.",
            T::SRV,
            "_https._tcp.kubernetes.default.svc.cluster.local. SRV 0 100 443 kubernetes.default.svc.cluster.local. + kubernetes.default.svc.cluster.local. A 10.96.0.1",
        ),
        (
            "_http._tcp.dual.shop.svc.cluster.local.",
            T::SRV,
            "_http._tcp.dual.shop.svc.cluster.local. SRV 0 50 80 dual.shop.svc.cluster.local. + dual.shop.svc.cluster.local. A 10.96.0.7; dual.shop.svc.cluster.local. AAAA fd00::7",
        ),
        (
            "_http._tcp.dual.shop.svc.cluster.local.",
            T::A,
            "_http._tcp.dual.shop.svc.cluster.local. A 10.96.0.7",
        ),
        ("_http._udp.dual.shop.svc.cluster.local.", T::SRV, nxdomain),
        ("_x._tcp.dual.shop.svc.cluster.local.", T::SRV, nxdomain),
        // an unnamed port has none
        ("_._udp.dual.shop.svc.cluster.local.", T::SRV, nxdomain),
        (
            "dual.shop.svc.cluster.local.",
            T::SRV,
            "dual.shop.svc.cluster.local. SRV 0 25 80 dual.shop.svc.cluster.local.; dual.shop.svc.cluster.local. SRV 0 25 81 dual.shop.svc.cluster.local. + dual.shop.svc.cluster.local. A 10.96.0.7; dual.shop.svc.cluster.local. AAAA fd00::7",
        ),
        (
            "1.0.96.10.in-addr.arpa.",
            T::PTR,
            "1.0.96.10.in-addr.arpa. PTR kubernetes.default.svc.cluster.local.",
        ),
        ("1.0.96.10.in-addr.arpa.", T::A, "NODATA in-addr.arpa."),
        (
            "in-addr.arpa.",
            T::SOA,
            "in-addr.arpa. SOA ns.dns.in-addr.arpa. hostmaster.in-addr.arpa. 7 7200 1800 86400 30",
        ),
        (
            "ip6.arpa.",
            T::NS,
            "ip6.arpa. NS kube-dns.kube-system.svc.cluster.local. + kube-dns.kube-system.svc.cluster.local. A 10.96.0.10",
        ),
        ("in-addr.arpa.", T::A, " -> in-addr.arpa."),
        ("96.10.in-addr.arpa.", T::SOA, " -> 96.10.in-addr.arpa."),
        (
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
            T::PTR,
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. PTR dual.shop.svc.cluster.local.",
        ),
        // endpoints have names also where there is a cluster IP
        (
            "10-244-0-9.dual.shop.svc.cluster.local.",
            T::A,
            "10-244-0-9.dual.shop.svc.cluster.local. A 10.244.0.9",
        ),
        // 2.4 headless
        (
            "headless.shop.svc.cluster.local.",
            T::A,
            "headless.shop.svc.cluster.local. A 10.244.0.1; headless.shop.svc.cluster.local. A 10.244.0.2",
        ),
        (
            "headless.shop.svc.cluster.local.",
            T::AAAA,
            "headless.shop.svc.cluster.local. AAAA fd00:1::",
        ),
        (
            "web-0.headless.shop.svc.cluster.local.",
            T::A,
            "web-0.headless.shop.svc.cluster.local. A 10.244.0.1",
        ),
        ("web-0.headless.shop.svc.cluster.local.", T::AAAA, nodata),
        (
            "10-244-0-2.headless.shop.svc.cluster.local.",
            T::A,
            "10-244-0-2.headless.shop.svc.cluster.local. A 10.244.0.2",
        ),
        (
            "fd00-1--0.headless.shop.svc.cluster.local.",
            T::AAAA,
            "fd00-1--0.headless.shop.svc.cluster.local. AAAA fd00:1::",
        ),
        // it has a hostname, and no other
        ("10-244-0-1.headless.shop.svc.cluster.local.", T::A, nxdomain),
        // it is not ready
        ("10-244-0-3.headless.shop.svc.cluster.local.", T::A, nxdomain),
        (
            "_web._tcp.headless.shop.svc.cluster.local.",
            T::SRV,
            "_web._tcp.headless.shop.svc.cluster.local. SRV 0 33 8080 10-244-0-2.headless.shop.svc.cluster.local.; _web._tcp.headless.shop.svc.cluster.local. SRV 0 33 8080 fd00-1--0.headless.shop.svc.cluster.local.; _web._tcp.headless.shop.svc.cluster.local. SRV 0 33 8080 web-0.headless.shop.svc.cluster.local. + 10-244-0-2.headless.shop.svc.cluster.local. A 10.244.0.2; fd00-1--0.headless.shop.svc.cluster.local. AAAA fd00:1::; web-0.headless.shop.svc.cluster.local. A 10.244.0.1",
        ),
        ("_x._tcp.headless.shop.svc.cluster.local.", T::SRV, nxdomain),
        (
            "1.0.244.10.in-addr.arpa.",
            T::PTR,
            "1.0.244.10.in-addr.arpa. PTR web-0.headless.shop.svc.cluster.local.",
        ),
        (
            "2.0.244.10.in-addr.arpa.",
            T::PTR,
            "2.0.244.10.in-addr.arpa. PTR 10-244-0-2.headless.shop.svc.cluster.local.",
        ),
        ("3.0.244.10.in-addr.arpa.", T::PTR, " -> 3.0.244.10.in-addr.arpa."),
        ("empty.shop.svc.cluster.local.", T::A, nxdomain),
        // 2.5 external names
        (
            "external.shop.svc.cluster.local.",
            T::A,
            "external.shop.svc.cluster.local. CNAME www.Example.com. -> www.Example.com.",
        ),
        (
            "external.shop.svc.cluster.local.",
            T::CNAME,
            "external.shop.svc.cluster.local. CNAME www.Example.com.",
        ),
        ("external.shop.svc.cluster.local.", T::SRV, nodata),
        ("x.external.shop.svc.cluster.local.", T::A, nxdomain),
        ("address.shop.svc.cluster.local.", T::A, nxdomain),
        (
            "inner.shop.svc.cluster.local.",
            T::A,
            "inner.shop.svc.cluster.local. CNAME kubernetes.default.svc.cluster.local.; kubernetes.default.svc.cluster.local. A 10.96.0.1",
        ),
        (
            "gone.shop.svc.cluster.local.",
            T::A,
            "gone.shop.svc.cluster.local. CNAME nobody.shop.svc.cluster.local.NXDOMAIN cluster.local.",
        ),
        ("circle.shop.svc.cluster.local.", T::A, nodata),
        // 2.6 pods
        ("10-1-2-3.shop.pod.cluster.local.", T::A, "10-1-2-3.shop.pod.cluster.local. A 10.1.2.3"),
        ("10-1-2-3.shop.pod.cluster.local.", T::AAAA, nodata),
        (
            "fd00--3.shop.pod.cluster.local.",
            T::AAAA,
            "fd00--3.shop.pod.cluster.local. AAAA fd00::3",
        ),
        ("10-1-2-300.shop.pod.cluster.local.", T::A, nxdomain),
        ("10-1-2-3.nowhere.pod.cluster.local.", T::A, nxdomain),
        ("x.10-1-2-3.shop.pod.cluster.local.", T::A, nxdomain),
        // names that lead somewhere, and others
        ("cluster.local.", T::A, nodata),
        (
            "cluster.local.",
            T::SOA,
            "cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 30",
        ),
        (
            "cluster.local.",
            T::NS,
            "cluster.local. NS kube-dns.kube-system.svc.cluster.local. + kube-dns.kube-system.svc.cluster.local. A 10.96.0.10",
        ),
        ("ns.dns.cluster.local.", T::A, "ns.dns.cluster.local. A 10.96.0.10"),
        ("svc.cluster.local.", T::A, nodata),
        ("pod.cluster.local.", T::A, nodata),
        ("shop.svc.cluster.local.", T::A, nodata),
        ("nowhere.svc.cluster.local.", T::A, nxdomain),
        ("nobody.shop.svc.cluster.local.", T::A, nxdomain),
        ("*.shop.svc.cluster.local.", T::A, nxdomain),
        ("a.b.c.headless.shop.svc.cluster.local.", T::A, nxdomain),
        ("x.cluster.local.", T::A, nxdomain),
        ("cluster.local.", T::AXFR, "REFUSED"),
        ("example.com.", T::AXFR, "REFUSED"),
        ("example.com.", T::A, " -> example.com."),
        ("local.", T::A, " -> local."),
        (".", T::NS, " -> ."),
    ] {
        assert_eq!(said(&zone, name, kind), expected, "{name} {kind}");
    }
}

#[test]
fn zone_that_is_not_synced_denies_nothing() {
    let mut model = Model::new(Domain::parse("cluster.local").unwrap(), 30, PodNames::Insecure);
    model.apply_namespace("shop");
    model.apply_service(&service("shop", "a", json!({"clusterIP": "10.96.0.9"})));
    let zone = model.snapshot(0);
    assert_eq!(
        said(&zone, "a.shop.svc.cluster.local.", RecordType::A),
        "a.shop.svc.cluster.local. A 10.96.0.9"
    );
    for name in ["b.shop.svc.cluster.local.", "shop.svc.cluster.local.", "x.cluster.local."] {
        assert_eq!(said(&zone, name, RecordType::A), "SERVFAIL", "{name}");
    }
}

#[test]
fn zone_pod_names() {
    let pod = |ip: &str, phase: &str| -> Pod {
        let status = json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]});
        let object = json!({"metadata": {"namespace": "shop", "name": "p"}, "status": status});
        serde_json::from_value(object).unwrap()
    };
    let mut verified = model(PodNames::Verified);
    verified.apply_pod(&pod("10.244.0.1", "Running"));
    let name = "10-244-0-1.shop.pod.cluster.local.";
    let has = |model: &mut Model, name: &str| {
        !said(&model.snapshot(0), name, RecordType::A).contains("NXDOMAIN")
    };
    assert!(has(&mut verified, name));
    assert!(!has(&mut verified, "10-244-0-1.default.pod.cluster.local."));
    assert!(!has(&mut verified, "10-244-0-2.shop.pod.cluster.local."));
    verified.apply_pod(&pod("10.244.0.2", "Running"));
    assert!(!has(&mut verified, name));
    assert!(has(&mut verified, "10-244-0-2.shop.pod.cluster.local."));
    verified.apply_pod(&pod("10.244.0.2", "Succeeded"));
    assert!(!has(&mut verified, "10-244-0-2.shop.pod.cluster.local."));
    assert!(!has(&mut model(PodNames::Disabled), name));
}

#[test]
fn zone_unready_endpoints_are_published_on_request() {
    let mut model = model(PodNames::Insecure);
    let spec = json!({"clusterIP": "None", "publishNotReadyAddresses": true});
    model.apply_service(&service("shop", "headless", spec));
    let zone = model.snapshot(0);
    let name = "10-244-0-3.headless.shop.svc.cluster.local.";
    assert_eq!(said(&zone, name, RecordType::A), format!("{name} A 10.244.0.3"));
    assert!(said(&zone, "headless.shop.svc.cluster.local.", RecordType::A).contains("10.244.0.3"));
    assert!(said(&zone, "3.0.244.10.in-addr.arpa.", RecordType::PTR).contains("headless"));
}

#[test]
fn zone_address_of_several_services() {
    let mut model = model(PodNames::Insecure);
    let web = json!([{"name": "web", "port": 8080}]);
    model.apply_service(&service("shop", "other", json!({"clusterIP": "None"})));
    model.apply_slice(&slice("other", "other-1", web, json!([{"address": "10.244.0.1"}])));
    let pointer =
        |model: &mut Model| said(&model.snapshot(0), "1.0.244.10.in-addr.arpa.", RecordType::PTR);
    let both = pointer(&mut model);
    assert!(both.contains("web-0.headless.") && both.contains("10-244-0-1.other."), "{both}");
    model.delete_service(&service("shop", "headless", json!({})).metadata);
    assert!(!pointer(&mut model).contains("headless"));
    let gone = slice("other", "other-1", json!([]), json!([])).metadata;
    model.delete_slice(&gone);
    assert_eq!(pointer(&mut model), " -> 1.0.244.10.in-addr.arpa.");
}

#[test]
fn zone_service_changes_its_kind() {
    let mut model = model(PodNames::Insecure);
    let spec = json!({"type": "ExternalName", "externalName": "a.example"});
    model.apply_service(&service("shop", "dual", spec));
    let zone = model.snapshot(0);
    assert!(said(&zone, "dual.shop.svc.cluster.local.", RecordType::A).contains("a.example."));
    assert!(said(&zone, "7.0.96.10.in-addr.arpa.", RecordType::PTR).starts_with(" ->"));
    // Without a cluster IP yet, there is nothing to say.
    model.apply_service(&service("shop", "dual", json!({"clusterIP": ""})));
    let zone = model.snapshot(0);
    assert!(said(&zone, "dual.shop.svc.cluster.local.", RecordType::A).contains("NXDOMAIN"));
}

#[test]
fn zone_addresses_are_in_random_order_and_bounded() {
    let mut model = model(PodNames::Insecure);
    let endpoints: Vec<_> =
        (0..200).map(|n| json!({"address": format!("10.1.{}.{}", n / 100, n % 100)})).collect();
    let web = json!([{"name": "web", "port": 80}]);
    model.apply_service(&service("shop", "many", json!({"clusterIP": "None"})));
    model.apply_slice(&slice("many", "many-1", web, json!(endpoints)));
    let zone = model.snapshot(0);
    let mut random = Shuffle::seeded(3);
    let mut firsts = BTreeSet::new();
    for kind in [RecordType::A, RecordType::SRV] {
        let name = Name::from_ascii("many.shop.svc.cluster.local.").unwrap();
        for _ in 0..100 {
            let question = Question { name: &name, kind, limit: 20 };
            let answer = zone.answer(&question, &mut random);
            assert_eq!(answer.records.len(), 20);
            let distinct: BTreeSet<_> =
                answer.records.iter().map(|record| record.data.to_string()).collect();
            assert_eq!(distinct.len(), 20);
            firsts.insert(answer.records[0].data.to_string());
        }
    }
    assert!(firsts.len() > 100, "{}", firsts.len());
}

/// One of few objects, so that they meet.
fn change() -> impl Strategy<Value = (u8, u8, u8, bool)> {
    (0..3_u8, 0..4_u8, 0..6_u8, any::<bool>())
}

fn apply(model: &mut Model, (what, which, value, is_there): (u8, u8, u8, bool)) {
    let name = format!("s{}", which % 2);
    let spec = match value % 3 {
        0 => json!({"clusterIP": format!("10.96.0.{value}"), "ports": [{"port": 1, "name": "p"}]}),
        1 => json!({"clusterIP": "None", "publishNotReadyAddresses": value > 3}),
        _ => json!({"type": "ExternalName", "externalName": "x.example"}),
    };
    let service = service("shop", &name, spec);
    let ready =
        json!({"address": format!("10.2.0.{}", value % 3), "conditions": {"ready": value > 2}});
    let slice = slice(&name, &format!("slice-{which}"), json!([]), json!([ready]));
    match (what, is_there) {
        (0, true) => model.apply_service(&service),
        (0, false) => model.delete_service(&service.metadata),
        (_, true) => {
            model.apply_slice(&slice);
        }
        (_, false) => model.delete_slice(&slice.metadata),
    }
}

fn all_said(zone: &Zone) -> Vec<String> {
    let names = ["s0.shop.svc.cluster.local.", "s1.shop.svc.cluster.local."];
    let pointers = (0..4).map(|n| format!("{n}.0.2.10.in-addr.arpa."));
    let cluster = (0..6).map(|n| format!("{n}.0.96.10.in-addr.arpa."));
    let names = names.map(str::to_owned).into_iter();
    names
        .map(|name| said(zone, &name, RecordType::A))
        .chain(pointers.chain(cluster).map(|name| said(zone, &name, RecordType::PTR)))
        .collect()
}

proptest! {
    /// What is answered depends on what is there, and not on how it came to be.
    #[test]
    fn zone_any_history_ends_the_same(changes in prop::collection::vec(change(), 0..40)) {
        let start = || {
            let domain = Domain::parse("cluster.local").unwrap();
            let mut model = Model::new(domain, 30, PodNames::Insecure);
            model.apply_namespace("shop");
            model.set_synced();
            model
        };
        let mut changed = start();
        let mut last = std::collections::BTreeMap::new();
        for change in &changes {
            apply(&mut changed, *change);
            let of = if change.0 == 0 { (0, change.1 % 2) } else { (1, change.1) };
            last.insert(of, *change);
        }
        let mut fresh = start();
        for change in last.into_values().filter(|change| change.3) {
            apply(&mut fresh, change);
        }
        prop_assert_eq!(all_said(&changed.snapshot(0)), all_said(&fresh.snapshot(0)));
    }
}

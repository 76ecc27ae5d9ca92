//! Names, answers, health.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::SignedDuration;
use longshore_pod::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::answers::{prepared, unprepared};
use crate::api::health::{DeviceHealth, DeviceIdentifier};
use crate::api::v1;
use crate::claims::{Claim, Claims, Device};
use crate::error::Error;
use crate::health::{self, Health, HealthCache, Report};
use crate::names::{check, container_uses, is_for, pod_claims};
use crate::plugin::Service;
use crate::testing::ScriptedDriver;

pub(super) fn decoded<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(spec: Value, status: Value) -> Pod {
    let metadata = json!({"name": "p", "namespace": "ns", "uid": "u"});
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    decoded(json!({"metadata": metadata, "spec": spec, "status": status}))
}

#[test]
fn claim_names_of_a_pod() {
    let by_name = json!({"name": "a", "resourceClaimName": "shared"});
    let by_template = json!({"name": "b", "resourceClaimTemplateName": "t"});
    let neither = json!({"name": "c"});
    let status = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}]});
    let not_needed = json!({"resourceClaimStatuses": [{"name": "b"}]});
    let extended = json!({"extendedResourceClaimStatus": {
        "requestMappings": [], "resourceClaimName": "of-resources",
    }});
    let cases = [
        (json!([]), json!({}), Ok(vec![])),
        (json!([by_name]), json!({}), Ok(vec![("shared", false)])),
        (json!([by_name, by_name]), json!({}), Ok(vec![("shared", false)])),
        (json!([by_name, by_template]), status, Ok(vec![("shared", false), ("made", true)])),
        (json!([by_template]), not_needed, Ok(vec![])),
        (json!([by_template]), json!({}), Err("pod \"ns/p\": ResourceClaim not created yet")),
        (
            json!([neither]),
            json!({}),
            Err("pod \"ns/p\", spec.resourceClaim \"c\": none of the supported fields are set"),
        ),
        (json!([]), extended, Ok(vec![("of-resources", false)])),
    ];
    for (claims, status, expected) in cases {
        let pod = pod(json!({"resourceClaims": claims}), status);
        let found = pod_claims(&pod, true);
        let found = match &found {
            Ok(found) => Ok(found.iter().map(|own| (own.name, own.is_generated)).collect()),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(found, expected.map_err(str::to_owned), "{claims}");
    }
    let pod = pod(
        json!({}),
        json!({"extendedResourceClaimStatus": {
            "requestMappings": [], "resourceClaimName": "of-resources",
        }}),
    );
    assert_eq!(pod_claims(&pod, false), Ok(vec![]), "without the gate");
}

#[test]
fn claim_uses_of_a_container() {
    let status = json!({
        "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "of-resources", "requestMappings": [
            {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r0"},
            {"containerName": "c", "resourceName": "example.com/none", "requestName": "r1"},
            {"containerName": "other", "resourceName": "example.com/gpu", "requestName": "r2"},
        ]},
    });
    let claims = json!([
        {"name": "a", "resourceClaimName": "shared"},
        {"name": "b", "resourceClaimTemplateName": "t"},
        {"name": "unused", "resourceClaimName": "unused"},
    ]);
    let pod = pod(json!({"resourceClaims": claims}), status);
    let container: Container = decoded(json!({"name": "c", "resources": {
        "claims": [{"name": "b", "request": "large"}, {"name": "a"}, {"name": "unknown"}],
        "requests": {"example.com/gpu": "1", "example.com/none": "0"},
    }}));
    let uses = container_uses(&pod, &container, true).unwrap();
    let uses: Vec<_> = uses.iter().map(|own| (own.entry, own.claim, own.request)).collect();
    let expected =
        [(Some("b"), "made", "large"), (Some("a"), "shared", ""), (None, "of-resources", "r0")];
    assert_eq!(uses, expected);
    assert_eq!(container_uses(&pod, &container, false).unwrap().len(), 2, "without the gate");
}

#[test]
fn claim_requests_with_alternatives() {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (requests, wanted, expected) in [
        (&[][..], "gpu", true),
        (&["gpu"], "", true),
        (&["gpu"], "gpu", true),
        (&["nic"], "gpu", false),
        (&["nic", "gpu"], "gpu", true),
        (&["gpu/large"], "gpu", true),
        (&["gpu"], "gpu/large", true),
        (&["gpus"], "gpu", false),
    ] {
        assert_eq!(is_for(&owned(requests), wanted), expected, "{requests:?} {wanted}");
    }
}

#[test]
fn claim_must_be_reserved_for_the_pod_and_allocated() {
    let pod = pod(json!({}), json!({}));
    let claim = |uid: &str, owner: Option<&str>, reserved: &[&str]| -> ResourceClaim {
        let owners = owner.map(|owner| {
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}])
        });
        let reserved: Vec<Value> = reserved
            .iter()
            .map(|uid| json!({"resource": "pods", "name": "p", "uid": uid}))
            .collect();
        decoded(json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": uid, "ownerReferences": owners},
            "spec": {}, "status": {"reservedFor": reserved},
        }))
    };
    let checked = |claim: &ResourceClaim, generated| {
        check(&pod, claim, generated).map_err(|error| error.to_string())
    };
    assert_eq!(checked(&claim("1", None, &["v", "u"]), false), Ok(()));
    assert_eq!(checked(&claim("1", Some("u"), &["u"]), true), Ok(()));
    let not_owner = "ResourceClaim ns/c was not created for pod ns/p (pod is not owner)";
    assert_eq!(checked(&claim("1", Some("v"), &["u"]), true), Err(not_owner.to_owned()));
    assert_eq!(checked(&claim("1", None, &["u"]), true), Err(not_owner.to_owned()));
    let not_reserved = "pod p (u) is not allowed to use ResourceClaim c (1)";
    assert_eq!(checked(&claim("1", None, &["v"]), false), Err(not_reserved.to_owned()));
    let error = Claim::allocated(&claim("1", None, &["u"])).unwrap_err();
    assert_eq!(error.to_string(), "ResourceClaim c: not allocated");
}

fn claim(name: &str, drivers: &[&str]) -> Claim {
    Claim {
        uid: format!("uid-{name}"),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        drivers: drivers.iter().map(|driver| ((*driver).to_owned(), Vec::new())).collect(),
        ..Claim::default()
    }
}

fn asked(claims: &[v1::Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.name.as_str()).collect()
}

#[test]
fn claims_are_prepared_once_and_unprepared_with_their_last_pod() {
    let mut claims = Claims::default();
    let (a, b) = (claim("a", &["d", "e"]), claim("b", &["d"]));
    let batches = claims.reserve("p", &[a.clone(), b.clone()]).unwrap();
    assert_eq!(asked(&batches["d"]), ["a", "b"]);
    assert_eq!(asked(&batches["e"]), ["a"]);
    // It is repeated until it has succeeded.
    assert_eq!(claims.reserve("p", std::slice::from_ref(&a)).unwrap().len(), 2);
    claims.set_prepared(&BTreeSet::from([a.key(), b.key()]));
    assert!(claims.reserve("q", std::slice::from_ref(&a)).unwrap().is_empty(), "it is prepared");
    assert_eq!(claims.in_use(), ([("d", 2), ("e", 1)].into(), 2));

    let batches = claims.release("p");
    assert_eq!(batches.keys().collect::<Vec<_>>(), ["d"]);
    assert_eq!(asked(&batches["d"]), ["b"], "the other is in use");
    assert!(claims.is_used_by("p"), "until it is unprepared");
    claims.remove("p");
    assert!(!claims.is_used_by("p") && claims.is_used_by("q"));
    assert!(claims.release("p").is_empty(), "a pod without claims releases none of others");
    assert_eq!(claims.release("q").len(), 2);
    claims.remove("q");
    assert_eq!(claims, Claims::default());
}

#[test]
fn claims_of_a_name_with_another_uid_are_refused_whole() {
    let mut claims = Claims::default();
    claims.reserve("p", &[claim("a", &["d"])]).unwrap();
    let before = claims.clone();
    let other = Claim { uid: "new".to_owned(), ..claim("a", &["d"]) };
    let error = claims.reserve("q", &[claim("b", &["d"]), other]).unwrap_err();
    let text = "old ResourceClaim with same name a and different UID uid-a still exists (previous pod force-deleted?!)";
    assert_eq!(error.to_string(), text);
    assert_eq!(claims, before);
}

/// UID, error and CDI devices of a claim in an answer.
type ClaimAnswer<'a> = (&'a str, &'a str, &'a [&'a str]);

fn prepare_answer(claims: &[ClaimAnswer<'_>]) -> v1::NodePrepareResourcesResponse {
    let answer = |error: &str, cdi: &[&str]| v1::NodePrepareResourceResponse {
        devices: vec![ScriptedDriver::device("0", &["r"], cdi)],
        error: error.to_owned(),
    };
    let claims = claims.iter();
    let claims = claims.map(|(uid, error, cdi)| ((*uid).to_owned(), answer(error, cdi)));
    v1::NodePrepareResourcesResponse { claims: claims.collect() }
}

#[test]
fn driver_answers_are_checked() {
    let asked: Vec<v1::Claim> = ["a", "b"]
        .iter()
        .map(|name| v1::Claim {
            namespace: "ns".to_owned(),
            uid: format!("uid-{name}"),
            name: (*name).to_owned(),
        })
        .collect();
    let good: &[&str] = &["vendor.com/class=0", "v/c_d-e=x.y:z-0"];
    let whole = prepare_answer(&[("uid-a", "", good), ("uid-b", "", &[])]);
    let devices = prepared("d", &asked, whole).unwrap();
    assert_eq!(devices["uid-a"][0].cdi, good);
    assert_eq!(devices["uid-b"][0].cdi, Vec::<String>::new());
    let long = "x".repeat(10_000);
    let cases: [(&[ClaimAnswer<'_>], &str); 4] = [
        (&[("uid-a", "", good)], "NodePrepareResources skipped 1 ResourceClaims (DRA driver d)"),
        (
            &[("uid-a", "", good), ("uid-b", "", good), ("c", "", good)],
            "NodePrepareResources returned result for unknown claim UID c (DRA driver d)",
        ),
        (
            &[("uid-a", "broken", good), ("uid-b", "", good)],
            "NodePrepareResources failed for ResourceClaim a: broken (DRA driver d)",
        ),
        (
            &[("uid-a", &long, good), ("uid-b", "", good)],
            &format!(
                "NodePrepareResources failed for ResourceClaim a: {}... (9488 more bytes) (DRA driver d)",
                "x".repeat(512)
            ),
        ),
    ];
    for (answer, expected) in cases {
        let error = prepared("d", &asked, prepare_answer(answer)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    for odd in [
        "",
        "=",
        "vendor.com/class",
        "vendor.com=0",
        "vendor.com/=0",
        "/class=0",
        "vendor.com/class=",
        "vendor.com/cl ass=0",
        "vendor.com/class=\n",
        "vendor.com/class=../0",
        "vendor.com/class=a=b",
        "1vendor.com/class=0",
        "vendor.com./class=0",
        "vendor.com/cläss=0",
        "vendor.com/class=0,",
        &format!("vendor.com/class={}", "0".repeat(2000)),
    ] {
        let answer = prepare_answer(&[("uid-a", "", &[odd]), ("uid-b", "", good)]);
        let error = prepared("d", &asked, answer).unwrap_err();
        assert!(matches!(error, Error::CdiDevice { .. }), "{odd:?}: {error}");
        assert!(error.to_string().len() < 2000);
    }
    let answer = |claims: &[(&str, &str)]| v1::NodeUnprepareResourcesResponse {
        claims: claims
            .iter()
            .map(|(uid, error)| {
                let error = (*error).to_owned();
                ((*uid).to_owned(), v1::NodeUnprepareResourceResponse { error })
            })
            .collect(),
    };
    let unprepared = |claims: &[(&str, &str)]| unprepared("d", &asked, &answer(claims));
    assert_eq!(unprepared(&[("uid-a", ""), ("uid-b", "")]), Ok(()));
    for wrong in [&[][..], &[("uid-a", "")], &[("uid-a", "no"), ("uid-b", "")], &[("c", "")]] {
        assert!(unprepared(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn driver_service_is_chosen_as_upstream_does() {
    let choose = |offered: &[&str]| {
        let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
        Service::choose(&offered)
    };
    assert_eq!(choose(&["v1.DRAPlugin"]), Ok(Service::V1));
    assert_eq!(choose(&["v1beta1.DRAPlugin"]), Ok(Service::V1Beta1));
    assert_eq!(choose(&["v1alpha1.DRAResourceHealth", "v1.DRAPlugin"]), Ok(Service::V1));
    assert_eq!(choose(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(Service::V1Beta1), "its order");
    let empty = "empty list of supported gRPC services (aka supported versions)";
    assert_eq!(choose(&[]), Err(empty.to_owned()));
    let none = r#"none of services supported by the plugin (["1.0.0" "v2.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])"#;
    assert_eq!(choose(&["1.0.0", "v2.DRAPlugin"]), Err(none.to_owned()));
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn report(device: &str, health: Health, seconds: i64) -> Report {
    Report {
        pool: "pool".to_owned(),
        device: device.to_owned(),
        health,
        timeout: SignedDuration::from_secs(seconds),
        message: String::new(),
    }
}

#[test]
fn health_of_devices_changes_and_expires() {
    use Health::{Healthy, Unhealthy};
    let mut cache = HealthCache::default();
    let both = || vec![report("0", Healthy, 30), report("1", Healthy, 60)];
    assert_eq!(cache.update("d", both(), at(0)), ["pool/0", "pool/1"]);
    assert_eq!(cache.update("d", both(), at(10)), Vec::<String>::new());
    assert_eq!(cache.next_end("d", at(10)), Some(at(40)));
    let changed = cache.update("d", vec![report("0", Unhealthy, 30)], at(20));
    assert_eq!(changed, ["pool/0"], "the other is valid for a while");
    assert_eq!(cache.update("d", vec![report("0", Unhealthy, 30)], at(70)), ["pool/0", "pool/1"]);
    assert_eq!(cache.next_end("d", at(100)), None);
    assert!(cache.clear("d") && !cache.clear("d"));
}

#[test]
fn health_reports_are_bounded() {
    let received = |seconds, message: String| {
        Report::new(DeviceHealth {
            device: Some(DeviceIdentifier::default()),
            health: 7,
            last_updated_time: i64::MIN,
            health_check_timeout_seconds: seconds,
            message,
        })
    };
    let odd = received(-5, "ä".repeat(10_000));
    assert_eq!((odd.health, odd.timeout), (Health::Unknown, SignedDuration::from_secs(30)));
    assert!(odd.message.len() <= 1024 && odd.message.ends_with("ä..."));
    let forever = received(i64::MAX, String::new());
    let mut cache = HealthCache::default();
    cache.update("d", vec![forever], at(0));
    assert_eq!(cache.next_end("d", at(0)), Some(Timestamp::MAX));
    let many = |from: usize| {
        (from..from + 20_000).map(|n| report(&n.to_string(), Health::Healthy, 60)).collect()
    };
    assert_eq!(cache.update("e", many(0), at(0)).len(), 10_000);
    let changed = cache.update("e", many(50_000), at(1));
    assert_eq!(changed.len(), 20_000, "the older ones make room");
}

#[test]
fn health_is_part_of_the_status_of_containers() {
    let device = |name: &str, requests: &[&str], cdi: &[&str]| Device {
        pool: "pool".to_owned(),
        name: name.to_owned(),
        share_id: None,
        requests: requests.iter().map(|own| (*own).to_owned()).collect(),
        cdi: cdi.iter().map(|own| (*own).to_owned()).collect(),
    };
    let mut own = claim("c", &["d"]);
    own.drivers.insert(
        "d".to_owned(),
        vec![
            device("0", &["gpu"], &["v/c=0"]),
            device("1", &["gpu"], &[]),
            device("2", &["nic"], &[]),
        ],
    );
    let claims = Claims::new([own]);
    let container = |claims: Value| json!({"name": "c", "resources": {"claims": claims}});
    let pod = pod(
        json!({
            "resourceClaims": [{"name": "own", "resourceClaimName": "c"}],
            "containers": [container(json!([{"name": "own", "request": "gpu"}]))],
        }),
        json!({}),
    );
    let status = || -> PodStatus {
        decoded(json!({"containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0},
        ]}))
    };
    let mut cache = HealthCache::default();
    let broken = Report { message: "hot".to_owned(), ..report("0", Health::Unhealthy, 30) };
    cache.update("d", vec![broken, report("2", Health::Healthy, 30)], at(0));
    for (messages, now, first) in [
        (true, 1, json!({"resourceID": "v/c=0", "health": "Unhealthy", "message": "hot"})),
        (false, 1, json!({"resourceID": "v/c=0", "health": "Unhealthy"})),
        (true, 100, json!({"resourceID": "v/c=0", "health": "Unknown"})),
    ] {
        let mut status = status();
        for _ in 0..2 {
            cache.set_status(&claims, &pod, &mut status, messages, at(now));
        }
        let shown = serde_json::to_value(&status).unwrap();
        let second = json!({"resourceID": "d/pool/1", "health": "Unknown"});
        let expected = json!([{"name": "claim:own/gpu", "resources": [first, second]}]);
        assert_eq!(shown["containerStatuses"][0]["allocatedResourcesStatus"], expected);
    }
}

#[test]
fn health_file_is_upstreams() {
    let recorded = r#"{"gpu.example.com":{"Devices":{"pool/0":{"PoolName":"pool","DeviceName":"0","Health":"Unhealthy","LastUpdated":"2026-01-01T02:00:00.5+01:00","HealthCheckTimeout":30000000000,"Message":"hot"},"pool/1":{"PoolName":"pool","DeviceName":"1","Health":"Healthy","LastUpdated":"2026-01-01T01:00:00Z","HealthCheckTimeout":0,"Message":""}}}}"#;
    let cache = health::decode(recorded.as_bytes()).unwrap();
    let shown: Value = serde_json::from_slice(&health::encode(&cache).unwrap()).unwrap();
    let devices = &shown["gpu.example.com"]["Devices"];
    assert_eq!(
        devices["pool/0"],
        json!({
            "PoolName": "pool", "DeviceName": "0", "Health": "Unhealthy", "Message": "hot",
            "LastUpdated": "2026-01-01T01:00:00.5Z", "HealthCheckTimeout": 30_000_000_000_u64,
        })
    );
    assert_eq!(devices["pool/1"]["HealthCheckTimeout"], 30_000_000_000_u64, "the default");
    assert_eq!(health::decode(&health::encode(&cache).unwrap()).unwrap(), cache);
}

proptest! {
    #[test]
    fn health_file_of_any_content_is_read_or_refused(content in ".{0,200}") {
        let _ = health::decode(content.as_bytes());
        let _ = crate::checkpoint::decode(content.as_bytes());
    }
}

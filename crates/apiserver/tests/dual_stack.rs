//! Services of both families, and addresses of ServiceCIDRs, over real HTTPS.

use crate::common;

use common::*;
use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

async fn cluster(ranges: &str) -> Cluster {
    Cluster::start_with(|config| config.service_ranges = ranges.parse().unwrap()).await
}

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["ports"] = json!([{"port": 80}]);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn list<'a>(service: &'a Value, field: &str) -> Vec<&'a str> {
    let list = service["spec"][field].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(|text| text.as_str().unwrap()).collect()
}

/// What a POST says in refusal.
async fn refusal(admin: &Client, spec: Value) -> String {
    let (code, status) = admin.call("POST", SERVICES, Some(service("refused", spec))).await;
    assert_eq!(code, 422, "{status}");
    status["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dual_stack_services_have_the_families_that_they_ask_for() {
    let cluster = cluster("10.96.0.0/24,fd00:96::/112").await;
    let admin = &cluster.admin;
    let (_, own) = admin.get(&format!("{CIDRS}/kubernetes")).await;
    assert_eq!(own["spec"]["cidrs"], json!(["10.96.0.0/24", "fd00:96::/112"]));
    assert_eq!(own["status"]["conditions"][0]["status"], "True");
    let (_, own) = admin.get(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(
        (list(&own, "clusterIPs"), list(&own, "ipFamilies")),
        (vec!["10.96.0.1"], vec!["IPv4"])
    );

    let selector = json!({"a": "b"});
    for (i, (spec, policy, families)) in [
        (json!({}), "SingleStack", &["IPv4"][..]),
        (json!({"ipFamilies": ["IPv6"]}), "SingleStack", &["IPv6"]),
        (json!({"ipFamilyPolicy": "PreferDualStack"}), "PreferDualStack", &["IPv4", "IPv6"]),
        (
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
            "RequireDualStack",
            &["IPv6", "IPv4"],
        ),
        (json!({"clusterIP": "None", "selector": selector}), "SingleStack", &["IPv4"]),
        (json!({"clusterIP": "None"}), "RequireDualStack", &["IPv4", "IPv6"]),
    ]
    .into_iter()
    .enumerate()
    {
        let made = admin.create(SERVICES, service(&format!("s{i}"), spec.clone())).await;
        assert_eq!(made["spec"]["ipFamilyPolicy"], policy, "{spec}");
        assert_eq!(list(&made, "ipFamilies"), families, "{spec}");
        let addresses = list(&made, "clusterIPs");
        assert_eq!(made["spec"]["clusterIP"], addresses[0]);
        if addresses == ["None"] {
            continue;
        }
        assert_eq!(addresses.len(), families.len(), "{made}");
        for (address, family) in addresses.iter().zip(families) {
            let wanted = if *family == "IPv4" { "10.96.0." } else { "fd00:96::" };
            assert!(address.starts_with(wanted), "{made}");
            let path = format!("{ADDRESSES}/{address}");
            eventually("each address has its object", || async {
                let (code, object) = admin.get(&path).await;
                code == 200
                    && object["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"] == *family
            })
            .await;
        }
    }
    let said = refusal(admin, json!({"ipFamilies": ["IPv4", "IPv6"]})).await;
    assert!(said.contains("must be 'RequireDualStack' or 'PreferDualStack'"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dual_stack_services_are_upgraded_and_downgraded() {
    let cluster = cluster("10.96.0.0/24,fd00:96::/112").await;
    let admin = &cluster.admin;
    let path = format!("{SERVICES}/web");
    let made = admin.create(SERVICES, service("web", json!({}))).await;
    let first = list(&made, "clusterIPs")[0].to_owned();
    let upgrade = service("web", json!({"ipFamilyPolicy": "RequireDualStack"}));
    let (code, double) = admin.call("PUT", &path, Some(upgrade)).await;
    assert_eq!(code, 200, "{double}");
    assert_eq!(list(&double, "ipFamilies"), ["IPv4", "IPv6"]);
    let addresses = list(&double, "clusterIPs");
    assert!(addresses[0] == first && addresses[1].starts_with("fd00:96::"), "{double}");
    // a client that names no families keeps them
    let (code, kept) = admin.call("PUT", &path, Some(service("web", json!({})))).await;
    assert_eq!((code, &kept["spec"]["clusterIPs"]), (200, &double["spec"]["clusterIPs"]), "{kept}");
    assert_eq!(kept["spec"]["ipFamilyPolicy"], "RequireDualStack");
    // one address less without the policy is refused
    let mut less = kept.clone();
    less["spec"]["clusterIPs"] = json!([first]);
    let (code, status) = admin.call("PUT", &path, Some(less)).await;
    let why = "must be 'SingleStack' to release the secondary cluster IP";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(why), "{status}");
    let object = format!("{ADDRESSES}/{}", addresses[1]);
    eventually("the address has its object", || async { admin.get(&object).await.0 == 200 }).await;
    let mut downgrade = kept.clone();
    downgrade["spec"]["ipFamilyPolicy"] = "SingleStack".into();
    let (code, single) = admin.call("PUT", &path, Some(downgrade)).await;
    assert_eq!(code, 200, "{single}");
    assert_eq!(list(&single, "clusterIPs"), [&first]);
    assert_eq!(list(&single, "ipFamilies"), ["IPv4"]);
    eventually("the object goes with the address", || async { admin.get(&object).await.0 == 404 })
        .await;
    let named = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "ExternalName", "externalName": "a.example"}});
    let (code, named) = admin.call("PUT", &path, Some(named)).await;
    assert_eq!(code, 200, "{named}");
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        assert!(named["spec"].get(field).is_none(), "{named}");
    }
    let back = service("web", json!({"ipFamilyPolicy": "PreferDualStack"}));
    let (code, back) = admin.call("PUT", &path, Some(back)).await;
    assert_eq!((code, list(&back, "clusterIPs").len()), (200, 2), "{back}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_get_addresses_of_service_cidrs() {
    let cluster = cluster("10.96.0.0/24").await;
    let admin = &cluster.admin;
    let said = refusal(admin, json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    assert_eq!(
        said,
        "Service \"refused\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": \
         this cluster is not configured for dual-stack services"
    );
    let said = refusal(admin, json!({"ipFamilies": ["IPv6"]})).await;
    assert!(said.contains("spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured"), "{said}");
    let made =
        admin.create(SERVICES, service("any", json!({"ipFamilyPolicy": "PreferDualStack"}))).await;
    assert_eq!(list(&made, "ipFamilies"), ["IPv4"]);
    let made = admin.create(SERVICES, service("headless", json!({"clusterIP": "None"}))).await;
    assert_eq!(list(&made, "ipFamilies"), ["IPv4", "IPv6"]);

    let asked = || json!({"clusterIP": "203.0.113.10"});
    let outside =
        "failed to allocate IP 203.0.113.10: the provided network does not match the current range";
    assert!(refusal(admin, asked()).await.contains(outside));
    let more = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["203.0.113.0/24"]},
    });
    admin.create(CIDRS, more).await;
    admin.create(SERVICES, service("more", asked())).await;
    // an address that a user reserves is not given out
    let reserved = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {"name": "203.0.113.11"},
        "spec": {"parentRef": {"group": "g", "resource": "r", "name": "n"}},
    });
    admin.create(ADDRESSES, reserved).await;
    let said = refusal(admin, json!({"clusterIP": "203.0.113.11"})).await;
    assert!(said.contains("provided IP is already allocated"), "{said}");
    let path = format!("{ADDRESSES}/203.0.113.11");
    assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
    admin.create(SERVICES, service("free", json!({"clusterIP": "203.0.113.11"}))).await;
    // what is deleted gives nothing more
    assert_eq!(admin.call("DELETE", &format!("{CIDRS}/more"), None).await.0, 200);
    assert_eq!(admin.call("DELETE", &format!("{SERVICES}/more"), None).await.0, 200);
    assert!(refusal(admin, asked()).await.contains(outside));
}

//! The controllers of cluster objects over a real apiserver.

use crate::common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{Cluster, dynamic, eventually};
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, Pod, ReplicationController, ResourceQuota,
    Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The addresses of a service's slices that are ready.
async fn ready_addresses(cluster: &Cluster, service: &str) -> BTreeSet<String> {
    let label = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let slices = cluster.api::<EndpointSlice>("default").list(&label).await.unwrap();
    let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
    endpoints
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|own| own.ready) == Some(true))
        .flat_map(|endpoint| endpoint.addresses)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_follow_the_pods_of_a_service() {
    let controllers =
        ["endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller"];
    let mut cluster = Cluster::start(&controllers, |_| {}).await;
    cluster.add_node("n1").await;
    let labels = json!({"labels": {"app": "web"}});
    for name in ["a", "b"] {
        cluster.pod("default", name, "n1", labels.clone()).await;
    }
    cluster.pod("default", "other", "n1", json!({"labels": {"app": "db"}})).await;
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
    });
    cluster.create::<Service>("default", service).await;
    let both = eventually(
        "two addresses",
        async || ready_addresses(&cluster, "web").await,
        |found| found.len() == 2,
    )
    .await;
    let subsets = async || {
        let found = cluster.api::<Endpoints>("default").get_opt("web").await.unwrap();
        serde_json::to_value(found.and_then(|found| found.subsets)).unwrap()
    };
    let subsets = eventually("endpoints", subsets, |subsets| {
        subsets[0]["addresses"].as_array().is_some_and(|addresses| addresses.len() == 2)
    })
    .await;
    assert_eq!(subsets[0]["ports"], json!([{"port": 8080, "protocol": "TCP"}]));
    let slices =
        cluster.api::<EndpointSlice>("default").list(&ListParams::default()).await.unwrap();
    let of_web: Vec<_> = slices
        .items
        .iter()
        .filter(|slice| slice.metadata.generate_name.as_deref() == Some("web-"))
        .collect();
    assert_eq!(of_web.len(), 1, "endpoints of a service with a selector are not mirrored");

    let pods = cluster.api::<Pod>("default");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "gone"}}}));
    pods.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let one = eventually(
        "one address",
        async || ready_addresses(&cluster, "web").await,
        |found| found.len() == 1,
    )
    .await;
    assert!(one.is_subset(&both));
    pods.delete("b", &DeleteParams::default()).await.unwrap();
    eventually("no address", async || ready_addresses(&cluster, "web").await, BTreeSet::is_empty)
        .await;

    // endpoints that somebody writes for a service without a selector are mirrored
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 5432}]}});
    cluster.create::<Service>("default", service).await;
    let written = json!({
        "metadata": {"name": "db"},
        "subsets": [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 5432}]}],
    });
    cluster.create::<Endpoints>("default", written).await;
    let mirrored = set(&["192.0.2.7"]);
    eventually(
        "a mirror",
        async || ready_addresses(&cluster, "db").await,
        |found| *found == mirrored,
    )
    .await;
    let endpoints = cluster.api::<Endpoints>("default");
    let patch = Patch::Merge(json!({"subsets": [
        {"addresses": [{"ip": "192.0.2.8"}], "ports": [{"port": 5432}]}]}));
    endpoints.patch("db", &PatchParams::default(), &patch).await.unwrap();
    let mirrored = set(&["192.0.2.8"]);
    eventually(
        "the change",
        async || ready_addresses(&cluster, "db").await,
        |found| *found == mirrored,
    )
    .await;
    endpoints.delete("db", &DeleteParams::default()).await.unwrap();
    eventually("no mirror", async || ready_addresses(&cluster, "db").await, BTreeSet::is_empty)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_slices_get_hints_in_proportion_to_the_cpus_of_zones() {
    let mut cluster = Cluster::start(&["endpointslice-controller"], |_| {}).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for (node, zone, cpu) in [("n1", "a", "3"), ("n2", "b", "1")] {
        cluster.add_node(node).await;
        let params = PatchParams::default();
        let status = json!({"status": {"allocatable": {"cpu": cpu}}});
        nodes.patch_status(node, &params, &Patch::Merge(status)).await.unwrap();
        // a change of the zone has the CPUs looked at
        let patch = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        nodes.patch(node, &params, &Patch::Merge(patch)).await.unwrap();
    }
    for name in ["p1", "p2", "p3", "p4"] {
        cluster.pod("default", name, "n2", json!({"labels": {"app": "web"}})).await;
    }
    let service = json!({
        "metadata": {
            "name": "web",
            "annotations": {"service.kubernetes.io/topology-mode": "Auto"},
        },
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
    });
    cluster.create::<Service>("default", service).await;
    let services = cluster.api::<Service>("default");
    let changes = std::sync::atomic::AtomicUsize::new(0);
    let hints = async || {
        // a service without hints is looked at when it changes, and not when nodes do
        let change = changes.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string();
        let patch = Patch::Merge(json!({"metadata": {"labels": {"change": change}}}));
        services.patch("web", &PatchParams::default(), &patch).await.unwrap();
        let slices = cluster.api::<EndpointSlice>("default").list(&ListParams::default()).await;
        let endpoints = slices.unwrap().items.into_iter().flat_map(|it| it.endpoints);
        let hints = endpoints.flatten().flat_map(|endpoint| endpoint.hints);
        let mut zones: Vec<String> =
            hints.flat_map(|hints| hints.for_zones).flatten().map(|zone| zone.name).collect();
        zones.sort();
        zones
    };
    eventually("hints by CPUs", hints, |zones| *zones == ["a", "a", "a", "b"]).await;
    let messages = async || {
        let events = cluster.api::<Event>("default").list(&ListParams::default()).await.unwrap();
        let own = events.items.into_iter().filter(|event| {
            event.involved_object.kind.as_deref() == Some("Service")
                && event.source.as_ref().and_then(|source| source.component.as_deref())
                    == Some("endpoint-slice-controller")
        });
        own.filter_map(|event| event.message).collect::<Vec<_>>()
    };
    let enabled = "Topology Aware Hints has been enabled, addressType: IPv4".to_owned();
    eventually("the event", messages, |messages| messages.contains(&enabled)).await;
    // with one zone left the hints are uneven: they go
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    eventually("no hints", hints, Vec::is_empty).await;
}

async fn owned_pods(cluster: &Cluster, owner: &str, blocks: bool) {
    let controller = json!({
        "metadata": {"name": owner},
        "spec": {"replicas": 0, "selector": {"app": owner}, "template": {
            "metadata": {"labels": {"app": owner}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    });
    let controller = cluster.create::<ReplicationController>("default", controller).await;
    for number in 0..3 {
        let metadata = json!({"ownerReferences": [{
            "apiVersion": "v1", "kind": "ReplicationController", "name": owner,
            "uid": controller.metadata.uid, "blockOwnerDeletion": blocks,
        }]});
        cluster.pod("default", &format!("{owner}-{number}"), "n1", metadata).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_deletes_pods_of_deleted_owners() {
    let mut cluster = Cluster::start(&["garbage-collector-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    owned_pods(&cluster, "one", true).await;
    owned_pods(&cluster, "two", true).await;
    let owners = cluster.api::<ReplicationController>("default");
    owners.delete("one", &DeleteParams::background()).await.unwrap();
    let left = set(&["two-0", "two-1", "two-2"]);
    eventually(
        "the others",
        async || cluster.names::<Pod>("default").await,
        |found| *found == left,
    )
    .await;
    // an owner that never was
    let metadata = json!({"ownerReferences": [{
        "apiVersion": "v1", "kind": "ReplicationController", "name": "none", "uid": "none",
    }]});
    cluster.pod("default", "stray", "n1", metadata).await;
    eventually(
        "the others",
        async || cluster.names::<Pod>("default").await,
        |found| *found == left,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_finishes_foreground_and_orphan_deletions() {
    let mut cluster = Cluster::start(&["garbage-collector-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    owned_pods(&cluster, "one", true).await;
    owned_pods(&cluster, "two", true).await;
    let owners = cluster.api::<ReplicationController>("default");
    owners.delete("one", &DeleteParams::foreground()).await.unwrap();
    eventually(
        "one owner",
        async || cluster.names::<ReplicationController>("default").await,
        |found| *found == set(&["two"]),
    )
    .await;
    let left = set(&["two-0", "two-1", "two-2"]);
    assert_eq!(cluster.names::<Pod>("default").await, left, "the owner goes last");
    owners.delete("two", &DeleteParams::orphan()).await.unwrap();
    eventually(
        "no owner",
        async || cluster.names::<ReplicationController>("default").await,
        |found| found.is_empty(),
    )
    .await;
    let pods = cluster.api::<Pod>("default").list(&ListParams::default()).await.unwrap();
    assert_eq!(pods.items.len(), 3);
    assert!(pods.items.iter().all(|pod| pod.metadata.owner_references.is_none()));
}

async fn namespace(cluster: &Cluster, name: &str) {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    api.create(&PostParams::default(), &namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_deletion_takes_everything() {
    let controllers = ["namespace-controller", "serviceaccount-controller"];
    let mut cluster = Cluster::start(&controllers, |_| {}).await;
    cluster.add_node("n1").await;
    namespace(&cluster, "doomed").await;
    let accounts = async || cluster.names::<ServiceAccount>("doomed").await;
    eventually("the default account", accounts, |found| found.contains("default")).await;
    cluster.create::<ConfigMap>("doomed", json!({"metadata": {"name": "m"}})).await;
    cluster.create::<Secret>("doomed", json!({"metadata": {"name": "s"}})).await;
    cluster.pod("doomed", "p", "n1", json!({})).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete("doomed", &DeleteParams::default()).await.unwrap();
    let gone = async || namespaces.get_opt("doomed").await.unwrap();
    eventually("no namespace", gone, Option::is_none).await;
    assert!(cluster.names::<Pod>("doomed").await.is_empty());
    assert!(cluster.names::<ConfigMap>("doomed").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_gets_the_root_ca_again() {
    let controllers = ["root-ca-certificate-publisher-controller"];
    let cluster = Cluster::start(&controllers, |own| own.cluster.root_ca = Some("CA".into())).await;
    let maps = cluster.api::<ConfigMap>("default");
    let data = async || {
        let map = maps.get_opt("kube-root-ca.crt").await.unwrap();
        map.and_then(|map| map.data?.get("ca.crt").cloned())
    };
    // the apiserver publishes its own
    eventually("the map", data, Option::is_some).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taint_eviction_deletes_pods_that_do_not_tolerate() {
    let mut cluster = Cluster::start(&["taint-eviction-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    cluster.pod("default", "plain", "n1", json!({})).await;
    let tolerant =
        json!({"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}]});
    cluster.pod_with("default", "tolerant", "n1", json!({}), tolerant).await;
    let a_while = json!({"tolerations": [
        {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}]});
    cluster.pod_with("default", "patient", "n1", json!({}), a_while).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let taint = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}});
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(taint)).await.unwrap();
    let left = set(&["patient", "tolerant"]);
    eventually(
        "the tolerant",
        async || cluster.names::<Pod>("default").await,
        |found| *found == left,
    )
    .await;
    let none = json!({"spec": {"taints": null}});
    nodes.patch("n1", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
    let events = async || -> BTreeSet<String> {
        let list = cluster.api::<Event>("default").list(&ListParams::default()).await.unwrap();
        let own = list
            .items
            .into_iter()
            .filter(|event| event.reason.as_deref() == Some("TaintManagerEviction"));
        own.filter_map(|event| event.message).collect()
    };
    let said = set(&[
        "Marking for deletion Pod default/plain",
        "Cancelling deletion of Pod default/patient",
    ]);
    eventually("both events", events, |found| *found == said).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_silent_is_marked_and_tainted() {
    let settings = |settings: &mut longshore_controllers::Settings| {
        let cluster = &mut settings.cluster;
        cluster.node_monitor_period = Duration::from_millis(100);
        cluster.node_monitor_grace = Duration::from_secs(2);
        cluster.node_eviction_rate = 100.0;
    };
    let mut cluster = Cluster::start(&["node-lifecycle-controller"], settings).await;
    for name in ["quiet", "loud"] {
        cluster.add_node(name).await;
    }
    cluster.pod("default", "p", "quiet", json!({})).await;
    let pods = cluster.api::<Pod>("default");
    let ready = async || {
        let pod = serde_json::to_value(pods.get("p").await.unwrap()).unwrap();
        pod["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Ready")
            .map(|condition| condition["status"].clone())
    };
    eventually("a ready pod", ready, |found| *found == Some(json!("True"))).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    // one of them goes on to report
    let heartbeat = tokio::spawn({
        let nodes = nodes.clone();
        async move {
            for second in 0..600 {
                let (minutes, seconds) = (second / 60, second % 60);
                let patch = Patch::Strategic(json!({"status": {"conditions": [{"type": "Ready",
                    "lastHeartbeatTime": format!("2026-01-01T00:{minutes:02}:{seconds:02}Z")}]}}));
                let _ = nodes.patch_status("loud", &PatchParams::default(), &patch).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    });
    let taints = async || -> BTreeSet<String> {
        let node = nodes.get("quiet").await.unwrap();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.into_iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
    };
    let wanted = set(&[
        "node.kubernetes.io/unreachable:NoExecute",
        "node.kubernetes.io/unreachable:NoSchedule",
    ]);
    eventually("both taints", taints, |found| *found == wanted).await;
    eventually("a pod that is not ready", ready, |found| *found == Some(json!("False"))).await;
    let loud = nodes.get("loud").await.unwrap();
    assert_eq!(loud.spec.and_then(|spec| spec.taints), None);
    heartbeat.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_status_follows_what_is_there() {
    let mut cluster = Cluster::start(&["resourcequota-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {
        "pods": "5", "configmaps": "9", "services": "9", "requests.cpu": "2", "count/secrets": "9"}}});
    cluster.create::<ResourceQuota>("default", quota).await;
    let used = async || -> Value {
        let quota = cluster.api::<ResourceQuota>("default").get("q").await.unwrap();
        serde_json::to_value(quota.status.and_then(|status| status.used)).unwrap()
    };
    let first = eventually("a status", used, |used| used["pods"] == "0").await;
    let maps: usize = first["configmaps"].as_str().unwrap().parse().unwrap();
    let cpu = json!({"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": "500m"}}}]});
    cluster.pod_with("default", "p", "n1", json!({}), cpu).await;
    cluster.create::<ConfigMap>("default", json!({"metadata": {"name": "m"}})).await;
    let more = (maps + 1).to_string();
    eventually("one pod and map more", used, |used| {
        used["pods"] == "1" && used["requests.cpu"] == "500m" && used["configmaps"] == more.as_str()
    })
    .await;
    cluster.api::<Pod>("default").delete("p", &DeleteParams::default()).await.unwrap();
    cluster.api::<ConfigMap>("default").delete("m", &DeleteParams::default()).await.unwrap();
    eventually("what was before", used, |used| *used == first).await;
    // what somebody writes is corrected
    let patch = Patch::Merge(json!({"status": {"used": {"pods": "4"}}}));
    let quotas = cluster.api::<ResourceQuota>("default");
    quotas.patch_status("q", &PatchParams::default(), &patch).await.unwrap();
    eventually("what is true", used, |used| *used == first).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_counts_custom_objects() {
    let cluster = Cluster::start(&["resourcequota-controller"], |_| {}).await;
    let quota = json!({"metadata": {"name": "q"},
        "spec": {"hard": {"count/widgets.example.com": "2"}}});
    cluster.create::<ResourceQuota>("default", quota).await;
    let used = async || -> Value {
        let quota = cluster.api::<ResourceQuota>("default").get("q").await.unwrap();
        let used = serde_json::to_value(quota.status.and_then(|status| status.used)).unwrap();
        used["count/widgets.example.com"].clone()
    };
    eventually("none of an unknown kind", used, |used| *used == "0").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    // Once it is defined again it has another version.
    for version in ["v1", "v2"] {
        let definition = json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": version, "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]},
        });
        let definition = serde_json::from_value(definition).unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
        let api_version = format!("example.com/{version}");
        let widgets = dynamic(&cluster.client, "default", &api_version, "Widget", "widgets");
        let make = async |name: &str| {
            let widget =
                json!({"apiVersion": api_version, "kind": "Widget", "metadata": {"name": name}});
            let widget = serde_json::from_value(widget).unwrap();
            widgets.create(&PostParams::default(), &widget).await
        };
        eventually("the kind is served", async || make("a").await.is_ok(), |made| *made).await;
        make("b").await.unwrap();
        let refused = make("c").await.unwrap_err().to_string();
        let why = "exceeded quota: q, requested: count/widgets.example.com=1, used: \
                   count/widgets.example.com=2, limited: count/widgets.example.com=2";
        assert!(refused.contains(why), "{refused}");
        widgets.delete("a", &DeleteParams::default()).await.unwrap();
        eventually("one is left", used, |used| *used == "1").await;
        definitions.delete("widgets.example.com", &DeleteParams::default()).await.unwrap();
        eventually("none is left", used, |used| *used == "0").await;
        let gone = async || definitions.get_opt("widgets.example.com").await.unwrap().is_none();
        eventually("the kind is gone", gone, |gone| *gone).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disruption_status_follows_the_pods() {
    let mut cluster = Cluster::start(&["disruption-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    let labels = json!({"labels": {"app": "web"}});
    for name in ["a", "b", "c"] {
        cluster.pod("default", name, "n1", labels.clone()).await;
    }
    let budget = json!({
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    });
    cluster.create::<PodDisruptionBudget>("default", budget).await;
    let status = async || -> Value {
        let budget = cluster.api::<PodDisruptionBudget>("default").get("web").await.unwrap();
        serde_json::to_value(budget.status).unwrap()
    };
    let numbers = |status: &Value| {
        ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"]
            .map(|field| status[field].as_i64().unwrap_or(-1))
    };
    let first =
        eventually("one disruption", status, |status| numbers(status) == [3, 2, 3, 1]).await;
    assert_eq!(first["conditions"][0]["reason"], "SufficientPods");
    assert_eq!(first["observedGeneration"], 1);
    cluster.api::<Pod>("default").delete("a", &DeleteParams::default()).await.unwrap();
    eventually("no disruption", status, |status| numbers(status) == [2, 2, 2, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_cidrs_stay_while_they_have_addresses() {
    let cluster = Cluster::start(&["service-cidr-controller"], |_| {}).await;
    let cidrs: Api<ServiceCIDR> = Api::all(cluster.client.clone());
    let cidr = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    let cidr = serde_json::from_value(cidr).unwrap();
    cidrs.create(&PostParams::default(), &cidr).await.unwrap();
    let ready = async |name: &str| {
        let own = cidrs.get(name).await.unwrap();
        let conditions = own.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
        let ready = ready.map(|one| format!("{} {}", one.status, one.reason)).unwrap_or_default();
        (ready, own.metadata.finalizers.unwrap_or_default().len())
    };
    let reported = async || ready("more").await;
    eventually("it is ready", reported, |own| *own == ("True ".to_owned(), 1)).await;
    // The service `kubernetes` has an address of the range of all services.
    cidrs.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    let reported = async || ready("kubernetes").await;
    eventually("it is in use", reported, |own| *own == ("False Terminating".to_owned(), 1)).await;
    cidrs.delete("more", &DeleteParams::default()).await.unwrap();
    let gone = async || cidrs.get_opt("more").await.unwrap();
    eventually("it is gone", gone, Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn device_taints_delete_the_pods_that_have_the_device() {
    let mut cluster = Cluster::start(&["device-taint-eviction-controller"], |_| {}).await;
    cluster.add_node("n1").await;
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    let slice = json!({"metadata": {"name": "n1"}, "spec": {
        "driver": "gpu.example.com", "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a"}, {"name": "b"}]}});
    let slice = serde_json::from_value(slice).unwrap();
    slices.create(&PostParams::default(), &slice).await.unwrap();
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), "default");
    for name in ["a", "b"] {
        let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]});
        let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}});
        let claim = serde_json::from_value(claim).unwrap();
        let mut claim: ResourceClaim = claims.create(&PostParams::default(), &claim).await.unwrap();
        let pod = cluster.pod_with("default", name, "n1", json!({}), spec).await;
        let uid = pod.metadata.uid;
        claim.status = serde_json::from_value(json!({
            "allocation": {"devices": {"results": [
                {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": name}]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
        }))
        .unwrap();
        claims.replace_status(name, &PostParams::default(), &claim).await.unwrap();
    }
    let taint = json!([{"key": "broken", "effect": "NoExecute"}]);
    let patch = json!({"spec": {"devices": [{"name": "a", "taints": taint}, {"name": "b"}]}});
    slices.patch("n1", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let left = async || cluster.names::<Pod>("default").await;
    eventually("the pod of the other device", left, |found| *found == set(&["b"])).await;
}

//! The scheduler on an apiserver in this process.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use hyper::http::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use longshore_apiserver::{
    AuthenticationConfig, Config, ConnectionLimits, FeatureGates, Mode, RequestLimits, Server,
};
use longshore_informer::Informers;
use longshore_scheduler::config::Configuration;
use longshore_scheduler::service::{Pages, Service};
use longshore_store::EmbeddedStore;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

struct Cluster {
    _dir: TempDir,
    client: Client,
    _stop: tokio_util::sync::DropGuard,
}

impl Cluster {
    /// An apiserver and a scheduler on it.
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(Config {
            store: Arc::new(EmbeddedStore::open(dir.path().join("store")).await.unwrap()),
            storage_media_type: longshore_apiserver::StorageMediaType::Json,
            snapshots: None,
            bind: "127.0.0.1:0".parse().unwrap(),
            advertise: "127.0.0.1".parse().unwrap(),
            cert_dir: dir.path().join("pki"),
            service_ranges: "10.96.0.0/24".parse().unwrap(),
            node_ports: longshore_apiserver::NodePorts::default(),
            endpoint_reconciler: longshore_apiserver::EndpointReconciler::default(),
            client_ca: None,
            serving: None,
            tls: longshore_apiserver::TlsOptions::default(),
            kubelet_client: None,
            kubelet_ca: None,
            kubelet_address_types: Vec::new(),
            runtime_config: longshore_apiserver::RuntimeConfig::default(),
            event_ttl: Duration::from_secs(3600),
            compaction_interval: Duration::from_secs(300),
            node_names: Vec::new(),
            authentication: AuthenticationConfig::default(),
            authorization: vec![Mode::Rbac].into(),
            gates: FeatureGates::default(),
            requests: RequestLimits::default(),
            request_timeout: Duration::from_secs(60),
            connections: ConnectionLimits::DEFAULT,
            plugins: longshore_apiserver::Plugins::default(),
            admission: longshore_apiserver::AdmissionConfig::default(),
            aggregation: longshore_apiserver::AggregationConfig::default(),
            audit: longshore_apiserver::AuditConfig::default(),
            encryption: None,
            pages: longshore_apiserver::PagesConfig::default(),
            tracing: None,
        })
        .await
        .unwrap();
        let kubeconfig = Kubeconfig::read_from(server.admin_kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.run(stop.clone()));
        let own = Self { _dir: dir, client: client.clone(), _stop: stop.clone().drop_guard() };
        own.ensure(
            "/api/v1/namespaces/default/serviceaccounts",
            json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
        )
        .await;
        let (gates, pages) = (FeatureGates::default(), Pages::default());
        let service = Service::new(Configuration::default(), &gates, &pages);
        tokio::spawn(async move {
            let informers = Informers::new(client.clone());
            tokio::select! {
                ended = service.run(client, &informers, || {}) => panic!("{ended:?}"),
                () = stop.cancelled() => {}
            }
        });
        own
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        type_: &str,
        body: Value,
    ) -> kube::Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", type_)
            .body(body.to_string().into_bytes())
            .unwrap();
        let text = self.client.request_text(request).await?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        self.send("POST", path, "application/json", object).await.unwrap()
    }

    async fn ensure(&self, path: &str, object: Value) {
        match self.send("POST", path, "application/json", object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => {
                other.unwrap();
            }
        }
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).body(Vec::new()).unwrap();
        serde_json::from_str(&self.client.request_text(request).await.unwrap()).unwrap()
    }

    async fn node(&self, name: &str, cpus: &str) {
        self.create(
            "/api/v1/nodes",
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            }),
        )
        .await;
        let capacity = json!({"cpu": cpus, "memory": "8Gi", "pods": "110"});
        // A node begins with the taint that its controller takes away.
        self.send(
            "PATCH",
            &format!("/api/v1/nodes/{name}"),
            "application/merge-patch+json",
            json!({"spec": {"taints": null}}),
        )
        .await
        .unwrap();
        self.send(
            "PATCH",
            &format!("/api/v1/nodes/{name}/status"),
            "application/merge-patch+json",
            json!({"status": {"capacity": capacity, "allocatable": capacity}}),
        )
        .await
        .unwrap();
    }

    async fn pod(&self, name: &str, cpus: &str, more: Value) -> Value {
        let mut spec = json!({
            "containers": [{"name": "c", "image": "image", "resources": {"requests": {"cpu": cpus}}}],
            "terminationGracePeriodSeconds": 0,
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        self.create(
            "/api/v1/namespaces/default/pods",
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec,
            }),
        )
        .await
    }

    /// The object once it is as wanted.
    async fn wait(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path_ = path.to_owned();
        let found = timeout(Duration::from_secs(60), async {
            loop {
                let object = self.get(&path_).await;
                if wanted(&object) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        match found {
            Ok(object) => object,
            Err(_) => panic!("{path} stays {:#}", self.get(path).await),
        }
    }

    async fn wait_for_pod(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait(&format!("/api/v1/namespaces/default/pods/{name}"), wanted).await
    }

    async fn wait_for_event(&self, reason: &str, about: &str) -> Value {
        let is_wanted =
            |event: &Value| event["reason"] == reason && event["involvedObject"]["name"] == about;
        let list = self
            .wait("/api/v1/namespaces/default/events", |list| {
                list["items"].as_array().unwrap().iter().any(is_wanted)
            })
            .await;
        list["items"].as_array().unwrap().iter().find(|event| is_wanted(event)).unwrap().clone()
    }
}

fn is_on(node: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| pod["spec"]["nodeName"] == node
}

fn scheduled(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "PodScheduled")
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_and_events_say_so() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "4").await;
    cluster.pod("p", "1", json!({})).await;
    let pod = cluster.wait_for_pod("p", is_on("n1")).await;
    assert_eq!(scheduled(&pod).unwrap()["status"], "True");
    let event = cluster.wait_for_event("Scheduled", "p").await;
    assert_eq!(event["message"], "Successfully assigned default/p to n1");
    assert_eq!(event["reportingComponent"], "default-scheduler");
    assert_eq!(event["type"], "Normal");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_fit_nowhere_say_why_and_go_to_a_node_that_comes() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.pod("p", "2", json!({})).await;
    let message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let pod = cluster
        .wait_for_pod("p", |pod| scheduled(pod).is_some_and(|one| one["message"] == message))
        .await;
    let condition = scheduled(&pod).unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Unschedulable"))
    );
    assert!(condition["lastTransitionTime"].is_string(), "{condition}");
    let event = cluster.wait_for_event("FailedScheduling", "p").await;
    assert_eq!((&event["message"], &event["type"]), (&json!(message), &json!("Warning")));
    cluster.node("n2", "4").await;
    cluster.wait_for_pod("p", is_on("n2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_higher_priority_preempt_others() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.pod("low", "1", json!({})).await;
    let low = cluster.wait_for_pod("low", is_on("n1")).await;
    let high = json!({"priorityClassName": "system-cluster-critical"});
    let created = cluster.pod("high", "1", high).await;
    // The binding, which follows once the other pod is gone, clears the nomination.
    let is_nominated =
        |pod: &Value| pod["status"]["nominatedNodeName"] == "n1" || pod["spec"]["nodeName"] == "n1";
    cluster.wait_for_pod("high", is_nominated).await;
    let event = cluster.wait_for_event("Preempted", "low").await;
    let uid = created["metadata"]["uid"].as_str().unwrap();
    assert_eq!(event["message"], format!("Preempted by pod {uid} on node n1"));
    // the kubelet of the node ends it
    let path = "/api/v1/namespaces/default/pods/low";
    let gone =
        |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
    match cluster.send("GET", path, "application/json", json!({})).await {
        Ok(pod) if pod["metadata"]["uid"] == low["metadata"]["uid"] => {
            let conditions = pod["status"]["conditions"].as_array().unwrap();
            let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").unwrap();
            assert_eq!(target["reason"], "PreemptionByScheduler");
            assert_eq!(
                target["message"],
                "default-scheduler: preempting to accommodate a higher priority pod"
            );
            let now = json!({"gracePeriodSeconds": 0});
            let _ = cluster.send("DELETE", path, "application/json", now).await;
        }
        Ok(pod) => panic!("{pod}"),
        Err(error) => assert!(gone(&error), "{error}"),
    }
    cluster.wait_for_pod("high", is_on("n1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_are_given_the_node() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "4").await;
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "wait"},
        "provisioner": "driver", "volumeBindingMode": "WaitForFirstConsumer",
    })).await;
    cluster.create("/api/v1/namespaces/default/persistentvolumeclaims", json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })).await;
    let volume = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
    cluster.pod("p", "1", volume).await;
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/c";
    cluster
        .wait(path, |claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n1"
        })
        .await;
    let pod = cluster.get("/api/v1/namespaces/default/pods/p").await;
    assert!(pod["spec"]["nodeName"].is_null());
    assert_eq!(pod["status"]["nominatedNodeName"], "n1", "others know where it will be");
    // a provisioner does its work
    cluster.create("/api/v1/persistentvolumes", json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"storageClassName": "wait", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": "driver", "volumeHandle": "h"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "c"}},
    })).await;
    cluster
        .send(
            "PATCH",
            path,
            "application/merge-patch+json",
            json!({
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": "pv"},
            }),
        )
        .await
        .unwrap();
    let pod = cluster.wait_for_pod("p", is_on("n1")).await;
    assert_eq!(pod["status"]["nominatedNodeName"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_to_a_node_that_declares_the_features_that_they_need() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "4").await;
    let rule = json!({
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]},
    });
    let container = json!({
        "name": "c", "image": "image", "restartPolicy": "Never", "restartPolicyRules": [rule],
    });
    cluster.pod("p", "1", json!({"containers": [container]})).await;
    let message = "0/1 nodes are available: 1 node(s) didn't match Pod's required features. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let is_rejected = |pod: &Value| scheduled(pod).is_some_and(|one| one["message"] == message);
    cluster.wait_for_pod("p", is_rejected).await;
    let features = json!({"status": {
        "declaredFeatures": ["Other", "RestartAllContainersOnContainerExits"],
    }});
    let patch = "application/merge-patch+json";
    cluster.send("PATCH", "/api/v1/nodes/n1/status", patch, features).await.unwrap();
    cluster.wait_for_pod("p", is_on("n1")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_allocates_devices_and_reserves_them_for_pods() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "4").await;
    let group = "/apis/resource.k8s.io/v1";
    cluster
        .create(
            &format!("{group}/deviceclasses"),
            json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": "gpu"}, "spec": {}}),
        )
        .await;
    cluster
        .create(
            &format!("{group}/resourceslices"),
            json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "n1-gpu"},
            "spec": {"driver": "gpu.example.com", "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}]}}),
        )
        .await;
    let claims = format!("{group}/namespaces/default/resourceclaims");
    for name in ["c1", "c2"] {
        cluster
            .create(
                &claims,
                json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": [
                    {"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}}),
            )
            .await;
    }
    let pod = |name: &str, claim: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
                "containers": [{"name": "c", "image": "pause",
                    "resources": {"claims": [{"name": "gpu"}]}}],
            },
        })
    };
    let pods = "/api/v1/namespaces/default/pods";
    let first = cluster.create(pods, pod("p1", "c1")).await;
    let bound = |pod: &Value| pod["spec"]["nodeName"] == "n1";
    cluster.wait(&format!("{pods}/p1"), bound).await;
    let claim = cluster.get(&format!("{claims}/c1")).await;
    let status = &claim["status"];
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["resource.kubernetes.io/delete-protection"])
    );
    assert_eq!(status["reservedFor"][0]["uid"], first["metadata"]["uid"], "{status}");
    assert_eq!(
        status["allocation"]["devices"]["results"],
        json!([
        {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}])
    );
    assert!(status["allocation"]["allocationTimestamp"].is_string());
    cluster.create(pods, pod("p2", "c2")).await;
    let rejected = |pod: &Value| {
        pod["status"]["conditions"].as_array().into_iter().flatten().any(|one| {
            one["message"].as_str().is_some_and(|text| text.contains("cannot allocate all claims"))
        })
    };
    cluster.wait(&format!("{pods}/p2"), rejected).await;
    // What the controller of claims does when the pod has ended.
    let mut freed = cluster.get(&format!("{claims}/c1")).await;
    freed["status"] = json!({});
    cluster.send("PUT", &format!("{claims}/c1/status"), "application/json", freed).await.unwrap();
    cluster.wait(&format!("{pods}/p2"), bound).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_serves_extended_resources_by_devices_that_it_waits_for() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "4").await;
    let group = "/apis/resource.k8s.io/v1";
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    cluster.create(&format!("{group}/deviceclasses"), class).await;
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "n1-gpu"},
        "spec": {"driver": "gpu.example.com", "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "bindingConditions": ["example.com/attached"],
                "bindingFailureConditions": ["example.com/broken"]}]}});
    cluster.create(&format!("{group}/resourceslices"), slice).await;
    let requests = json!({"cpu": "1", "example.com/gpu": "1"});
    let container = json!({"name": "c", "image": "image",
        "resources": {"requests": requests, "limits": requests}});
    let pod = cluster.pod("p", "1", json!({"containers": [container]})).await;
    let pending = cluster.wait_for_event("BindingConditionsPending", "p").await;
    assert_eq!(pending["message"], "waiting for binding conditions for device on node n1");
    let claims = format!("{group}/namespaces/default/resourceclaims");
    let claim = cluster.get(&claims).await["items"][0].clone();
    assert!(claim["metadata"]["name"].as_str().unwrap().starts_with("p-extended-resources-"));
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], pod["metadata"]["uid"]);
    let requests = &claim["spec"]["devices"]["requests"];
    assert_eq!(requests[0]["name"], "container-0-request-1");
    assert_eq!(requests[0]["exactly"]["deviceClassName"], "gpu");
    let waiting = cluster.get("/api/v1/namespaces/default/pods/p").await;
    assert!(waiting["spec"]["nodeName"].is_null());
    assert_eq!(
        waiting["status"]["extendedResourceClaimStatus"],
        json!({
            "resourceClaimName": claim["metadata"]["name"],
            "requestMappings": [{"containerName": "c", "resourceName": "example.com/gpu",
                "requestName": "container-0-request-1"}],
        })
    );
    // The driver has attached the device.
    let path = format!("{claims}/{}", claim["metadata"]["name"].as_str().unwrap());
    let mut ready = cluster.get(&path).await;
    ready["status"]["devices"] = json!([{
        "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0",
        "conditions": [{"type": "example.com/attached", "status": "True", "reason": "Attached",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]);
    cluster.send("PUT", &format!("{path}/status"), "application/json", ready).await.unwrap();
    cluster.wait_for_pod("p", is_on("n1")).await;
}

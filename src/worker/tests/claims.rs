//! Pods whose devices are prepared by a driver.

use std::time::Duration;

use longshore_dra::api::health::{DeviceHealth, DeviceIdentifier, HealthStatus};
use longshore_dra::testing::{Behaviour as Driving, ScriptedDriver};
use longshore_testkit::scripted::Behaviour;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::testing::{Node, pod};

const DRIVER: &str = "gpu.example.com";

/// A node with a driver.
async fn node() -> (Node, ScriptedDriver) {
    let node = Node::start().await;
    let driver = ScriptedDriver::new(DRIVER);
    driver.register(&node.daemon().context.claims);
    (node, driver)
}

/// A claim that is allocated, and reserved for these pods.
fn put_claim(node: &Node, name: &str, pods: &[&str]) {
    let results = json!([{"driver": DRIVER, "pool": "pool", "device": "0", "request": "gpu"}]);
    let reserved: Vec<Value> =
        pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    });
    let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
    node.api.objects().others.insert(path, claim);
}

/// A pod that uses a claim.
fn claiming(name: &str, claim: &str, spec: Value) -> Value {
    let mut whole = pod(name, spec, json!({"resources": {"claims": [{"name": "own"}]}}));
    whole["spec"]["resourceClaims"] = json!([{"name": "own", "resourceClaimName": claim}]);
    whole
}

/// The CDI devices that the runtime was given for a container.
fn devices(node: &Node, container: &str) -> Vec<String> {
    let world = node.runtime.world();
    let run = world.runs.values().find(|run| run.name == container).unwrap();
    run.config.cdi_devices.iter().map(|device| device.name.clone()).collect()
}

fn calls(driver: &ScriptedDriver) -> Vec<String> {
    driver.calls().into_iter().map(|(method, claims)| format!("{method} {claims:?}")).collect()
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_has_its_devices_from_start_to_end() {
    let (node, driver) = node().await;
    put_claim(&node, "a", &["p"]);
    let device = ScriptedDriver::device;
    driver.set_devices(
        "a",
        vec![device("0", &["gpu"], &["v/gpu=0"]), device("1", &["nic"], &["v/nic=1"])],
    );
    let mut whole = claiming("p", "a", json!({"restartPolicy": "Never"}));
    let image = "registry.test/image:1";
    whole["spec"]["initContainers"] = json!([
        {"name": "init", "image": image,
            "resources": {"claims": [{"name": "own", "request": "nic"}]}},
        {"name": "sidecar", "image": image, "restartPolicy": "Always",
            "resources": {"claims": [{"name": "own", "request": "gpu"}]}},
    ]);
    let containers = whole["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({"name": "without", "image": image}));
    node.runtime.set_behaviour(
        "init",
        Behaviour { exits: Some((Duration::from_secs(1), 0)), ..Behaviour::default() },
    );
    for container in ["c", "without"] {
        let exits = Some((Duration::from_secs(20), 0));
        node.runtime.set_behaviour(container, Behaviour { exits, ..Behaviour::default() });
    }
    node.api.put_pod(whole);
    node.phase(20, "p", "Running").await;
    assert_eq!(devices(&node, "init"), ["v/nic=1"]);
    assert_eq!(devices(&node, "sidecar"), ["v/gpu=0"]);
    assert_eq!(devices(&node, "c"), ["v/gpu=0", "v/nic=1"]);
    assert_eq!(devices(&node, "without"), Vec::<String>::new());
    assert_eq!(calls(&driver), [r#"prepare ["a"]"#]);

    // Its final status follows when the driver has the devices back.
    driver.on_unprepare(Driving::Fails("busy".to_owned()));
    node.within(60, "the driver is asked", |node| node.api.event("FailedKillPod").is_some()).await;
    let message = node.api.event("FailedKillPod").unwrap();
    let text = "error killing pod: unprepare dynamic resources: NodeUnprepareResources: rpc error: code = Internal desc = busy";
    assert!(message.starts_with(text), "{message}");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.api.status("p")["phase"], "Running");
    driver.on_unprepare(Driving::Well);
    node.phase(20, "p", "Succeeded").await;
    assert!(driver.prepared().is_empty());
    node.api.delete_pod("p", 30);
    node.clean().await;
    assert_eq!(calls(&driver).last().unwrap(), r#"unprepare ["a"]"#);
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_waits_for_its_driver() {
    let node = Node::start().await;
    put_claim(&node, "a", &["p"]);
    node.api.put_pod(claiming("p", "a", json!({})));
    node.within(10, "an event", |node| node.api.event("FailedPrepareDynamicResources").is_some())
        .await;
    let message = node.api.event("FailedPrepareDynamicResources").unwrap();
    let text = "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.example.com is not registered";
    assert_eq!(message, text);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 0, "no sandbox is made in vain");
    assert_eq!(node.api.status("p")["phase"], "Pending");
    let driver = ScriptedDriver::new(DRIVER);
    driver.register(&node.daemon().context.claims);
    node.running(20, &["c"]).await;
    assert_eq!(devices(&node, "c"), ["example.com/device=a"]);
    node.api.delete_pod("p", 30);
    node.clean().await;
    assert!(driver.prepared().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_whose_driver_hangs_delays_no_other_and_can_be_deleted() {
    let (node, driver) = node().await;
    driver.on_prepare(Driving::Hangs);
    // More than there are slots for starts.
    for name in ["p", "q", "r"] {
        put_claim(&node, name, &[name]);
        node.api.put_pod(claiming(name, name, json!({})));
    }
    sleep(Duration::from_secs(1)).await;
    node.api.put_pod(pod("other", json!({}), json!({"name": "other"})));
    node.running(5, &["other"]).await;
    node.within(60, "an event", |node| node.api.event("FailedPrepareDynamicResources").is_some())
        .await;
    let message = node.api.event("FailedPrepareDynamicResources").unwrap();
    assert!(
        message.contains("context deadline exceeded (DRA driver gpu.example.com)"),
        "{message}"
    );
    for name in ["p", "q", "r", "other"] {
        node.api.delete_pod(name, 30);
    }
    node.clean().await;
    assert!(calls(&driver).contains(&r#"unprepare ["q"]"#.to_owned()), "what was begun is undone");
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_is_found_again_after_a_restart() {
    let (mut node, driver) = node().await;
    put_claim(&node, "a", &["p"]);
    put_claim(&node, "b", &["q"]);
    for (pod, claim, container) in [("p", "a", "c"), ("q", "b", "d")] {
        let mut whole = claiming(pod, claim, json!({}));
        whole["spec"]["containers"][0]["name"] = json!(container);
        node.api.put_pod(whole);
    }
    node.running(10, &["c", "d"]).await;
    node.kill_daemon().await;
    // This one is gone when the daemon comes back.
    node.api.delete_pod("q", 0);
    node.start_daemon().await;
    driver.register(&node.daemon().context.claims);
    node.running(20, &["c"]).await;
    node.within(20, "the claim of the pod that is gone is unprepared", |_| {
        driver.prepared() == ["a"]
    })
    .await;
    // A container that is restarted has its devices.
    node.runtime.exit("c", 1);
    node.within(30, "it runs again", |node| node.runtime.count("StartContainer", "c") == 2).await;
    let world_devices = devices(&node, "c");
    assert_eq!(world_devices, ["example.com/device=a"]);
    node.api.delete_pod("p", 30);
    node.clean().await;
    assert!(driver.prepared().is_empty());
    assert_eq!(calls(&driver).iter().filter(|call| call.starts_with("prepare")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn pod_with_claims_shows_the_health_of_its_devices() {
    let (node, driver) = node().await;
    put_claim(&node, "a", &["p"]);
    node.api.put_pod(claiming("p", "a", json!({})));
    node.running(10, &["c"]).await;
    let shown = |node: &Node| {
        node.api.status("p")["containerStatuses"][0]["allocatedResourcesStatus"].clone()
    };
    let health = |health: &str| {
        json!([{"name": "claim:own", "resources": [
            {"resourceID": "example.com/device=a", "health": health},
        ]}])
    };
    node.within(5, "unknown", |node| shown(node) == health("Unknown")).await;
    let device = DeviceIdentifier { pool_name: "pool".to_owned(), device_name: "a".to_owned() };
    driver.report(vec![DeviceHealth {
        device: Some(device),
        health: HealthStatus::Unhealthy.into(),
        health_check_timeout_seconds: 60,
        ..DeviceHealth::default()
    }]);
    node.within(20, "unhealthy", |node| shown(node) == health("Unhealthy")).await;
    node.within(70, "unknown again", |node| shown(node) == health("Unknown")).await;
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_claim_for_its_extended_resources_has_its_devices() {
    let (node, driver) = node().await;
    put_claim(&node, "of-resources", &["p"]);
    let device = ScriptedDriver::device;
    driver.set_devices(
        "of-resources",
        vec![device("0", &["r0"], &["v/gpu=0"]), device("1", &["r1"], &["v/gpu=1"])],
    );
    let resources = json!({"deviceclass.resource.kubernetes.io/gpu": "1"});
    let mut whole =
        pod("p", json!({}), json!({"resources": {"requests": resources, "limits": resources}}));
    whole["status"] = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": "of-resources",
        "requestMappings": [{
            "containerName": "c", "requestName": "r1",
            "resourceName": "deviceclass.resource.kubernetes.io/gpu",
        }],
    }});
    node.api.put_pod(whole);
    node.running(10, &["c"]).await;
    assert_eq!(devices(&node, "c"), ["v/gpu=1"]);
    let status = node.api.status("p");
    assert_eq!(status["extendedResourceClaimStatus"]["resourceClaimName"], "of-resources");
    node.api.delete_pod("p", 30);
    node.clean().await;
    assert!(driver.prepared().is_empty());
}

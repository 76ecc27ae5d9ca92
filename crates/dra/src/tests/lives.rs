//! The claims of pods from their preparation to their end.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::world::{DRIVER, World, container, pod};
use crate::testing::{Behaviour, ScriptedDriver};

#[tokio::test(start_paused = true)]
async fn claim_of_a_pod_is_prepared_and_unprepared() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    world.put_claim("b", &[DRIVER], &["p"]);
    let p = pod("p", &["a", "b"]);
    assert!(!world.manager.holds("p"));
    world.prepare(&p).await.unwrap();
    world.prepare(&p).await.unwrap();
    assert_eq!(world.calls(), ["prepare a b"], "one call for all claims, once");
    assert!(world.manager.holds("p"));
    let c = &p.spec.as_ref().unwrap().containers[0];
    let devices = ["example.com/device=a", "example.com/device=b"];
    assert_eq!(world.manager.cdi_devices(&p, c).unwrap(), devices);
    let shown = world.manager.resources(&p, c);
    assert_eq!((shown[0].claim_name.as_str(), shown[0].claim_namespace.as_str()), ("a", "ns"));
    assert_eq!(shown[1].devices[0].cdi_devices, [devices[1]]);
    assert_eq!(
        (shown[1].devices[0].driver.as_str(), shown[1].devices[0].pool.as_str()),
        (DRIVER, "pool")
    );

    let page = world.registry.text();
    for line in [
        "dra_resource_claims_in_use{driver_name=\"<any>\"} 2",
        "dra_resource_claims_in_use{driver_name=\"gpu.example.com\"} 2",
        "dra_operations_duration_seconds_count{operation_name=\"PrepareResources\",is_error=\"false\"} 2",
        "dra_grpc_operations_duration_seconds_count{driver_name=\"gpu.example.com\",method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\",grpc_status_code=\"OK\"} 1",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }

    world.unprepare("p").await.unwrap();
    world.unprepare("p").await.unwrap();
    assert_eq!(world.calls(), ["prepare a b", "unprepare a b"]);
    assert!(!world.manager.holds("p") && world.driver.prepared().is_empty());
    assert!(world.manager.cdi_devices(&p, c).is_err());
    assert!(world.registry.text().contains("dra_resource_claims_in_use{driver_name=\"<any>\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn claim_devices_are_those_of_the_requests_of_a_container() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    let device = ScriptedDriver::device;
    world.driver.set_devices(
        "a",
        vec![
            device("0", &["gpu"], &["v/gpu=0", "v/gpu=0-control"]),
            device("1", &["nic"], &["v/nic=1"]),
            device("2", &[], &["v/all=2"]),
        ],
    );
    let p = pod("p", &["a"]);
    world.prepare(&p).await.unwrap();
    let cases: [(Value, &[&str]); 5] = [
        (json!([{"name": "a"}]), &["v/gpu=0", "v/gpu=0-control", "v/nic=1", "v/all=2"]),
        (json!([{"name": "a", "request": "gpu"}]), &["v/gpu=0", "v/gpu=0-control", "v/all=2"]),
        (json!([{"name": "a", "request": "nic"}]), &["v/nic=1", "v/all=2"]),
        (
            json!([{"name": "a", "request": "nic"}, {"name": "a", "request": "gpu"}]),
            &["v/nic=1", "v/all=2", "v/gpu=0", "v/gpu=0-control"],
        ),
        (json!([]), &[]),
    ];
    for (claims, expected) in cases {
        let devices = world.manager.cdi_devices(&p, &container(claims.clone())).unwrap();
        assert_eq!(devices, expected, "{claims}");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_shared_is_unprepared_with_its_last_pod() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p", "q"]);
    world.prepare(&pod("p", &["a"])).await.unwrap();
    world.prepare(&pod("q", &["a"])).await.unwrap();
    world.unprepare("p").await.unwrap();
    // A pod whose claim was not prepared takes no other pod's.
    world.unprepare("r").await.unwrap();
    assert_eq!(world.calls(), ["prepare a"]);
    world.unprepare("q").await.unwrap();
    assert_eq!(world.calls(), ["prepare a", "unprepare a"]);
}

#[tokio::test(start_paused = true)]
async fn claim_that_a_pod_may_not_use_leaves_nothing() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    world.put_claim("others", &[DRIVER], &["q"]);
    world.put_claim("driverless", &["gone.example.com"], &["p"]);
    world.put_claim("unallocated", &[DRIVER], &["p"]);
    world.change_claim("unallocated", |claim| claim["status"]["allocation"] = Value::Null);
    for (claim, expected) in [
        ("none", "fetch ResourceClaim none: resourceclaims.resource.k8s.io \"none\" not found"),
        ("others", "pod p (p) is not allowed to use ResourceClaim others (uid-others)"),
        ("driverless", "DRA driver gone.example.com is not registered"),
        ("unallocated", "ResourceClaim unallocated: not allocated"),
    ] {
        let error = world.prepare(&pod("p", &["a", claim])).await.unwrap_err();
        assert_eq!(error, format!("prepare dynamic resources: {expected}"));
        assert!(!world.manager.holds("p"), "{claim}");
    }
    assert!(world.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn claim_calls_to_drivers_that_fail_or_lie_are_errors_that_name_them() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    let p = pod("p", &["a"]);
    let large = 10 << 20;
    let cases = [
        (
            Behaviour::Hangs,
            "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        ),
        (
            Behaviour::Fails("burnt".to_owned()),
            "NodePrepareResources: rpc error: code = Internal desc = burnt",
        ),
        (
            Behaviour::FailsClaims("burnt".to_owned()),
            "NodePrepareResources failed for ResourceClaim a: burnt",
        ),
        (
            Behaviour::AnswersForOthers,
            "NodePrepareResources returned result for unknown claim UID of-others",
        ),
        (Behaviour::AnswersNothing, "NodePrepareResources skipped 1 ResourceClaims"),
        (Behaviour::IsLarge(large), "NodePrepareResources: rpc error: code = OutOfRange"),
        (Behaviour::IsLarge(1 << 20), "NodePrepareResources failed for ResourceClaim a: xxx"),
    ];
    for (behaviour, expected) in cases {
        world.driver.on_prepare(behaviour.clone());
        let began = Instant::now();
        let error = world.prepare(&p).await.unwrap_err();
        let expected = format!("prepare dynamic resources: {expected}");
        assert!(error.starts_with(&expected), "{behaviour:?}: {error}");
        assert!(error.ends_with("(DRA driver gpu.example.com)") && error.len() < 1000, "{error}");
        assert!(began.elapsed() <= Duration::from_secs(46), "{behaviour:?}");
        assert!(world.manager.holds("p"), "the driver may have prepared it");
    }
    world.driver.set_devices("a", vec![ScriptedDriver::device("0", &[], &["v/c=0\n"])]);
    world.driver.on_prepare(Behaviour::Well);
    let error = world.prepare(&p).await.unwrap_err();
    assert!(error.contains(r#"invalid CDI device "v/c=0\n" for ResourceClaim a"#), "{error}");
    world.driver.set_devices("a", vec![ScriptedDriver::device("0", &[], &["v/c=0"])]);
    world.prepare(&p).await.unwrap();
    let c = &p.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        world.manager.cdi_devices(&p, c).unwrap(),
        ["v/c=0"],
        "those of the last call alone"
    );

    for behaviour in [
        Behaviour::Hangs,
        Behaviour::Fails("burnt".to_owned()),
        Behaviour::FailsClaims("burnt".to_owned()),
        Behaviour::AnswersForOthers,
        Behaviour::AnswersNothing,
        Behaviour::IsLarge(large),
    ] {
        world.driver.on_unprepare(behaviour.clone());
        let error = world.unprepare("p").await.unwrap_err();
        assert!(
            error.starts_with("unprepare dynamic resources: NodeUnprepareResources"),
            "{error}"
        );
        assert!(world.manager.holds("p"), "{behaviour:?}");
    }
    world.driver.on_unprepare(Behaviour::Well);
    world.unprepare("p").await.unwrap();
    assert!(!world.manager.holds("p"));
}

#[tokio::test(start_paused = true)]
async fn claim_driver_that_hangs_delays_no_other_driver_and_no_other_pod() {
    let world = World::start();
    let other = ScriptedDriver::new("other.example.com");
    other.register(&world.manager);
    world.put_claim("both", &[DRIVER, "other.example.com"], &["p"]);
    world.put_claim("a", &["other.example.com"], &["q"]);
    world.driver.on_prepare(Behaviour::Hangs);
    let began = Instant::now();
    let (hanging, q) = (pod("p", &["both"]), pod("q", &["a"]));
    let (failed, well) = tokio::join!(world.prepare(&hanging), async {
        sleep(Duration::from_secs(1)).await;
        let prepared = world.prepare(&q).await;
        (prepared, began.elapsed())
    });
    assert!(failed.unwrap_err().contains("DRA driver gpu.example.com"));
    assert_eq!(well.0, Ok(()));
    assert!(well.1 < Duration::from_secs(2), "{:?}", well.1);
    assert_eq!(other.prepared(), ["both", "a"], "it was asked although the other hangs");
    // A preparation that is given up is undone.
    let given_up = timeout(Duration::from_secs(1), world.prepare(&hanging)).await;
    assert!(given_up.is_err());
    world.unprepare("p").await.unwrap();
    assert!(!world.manager.holds("p"));
}

#[tokio::test(start_paused = true)]
async fn claim_is_known_after_a_restart() {
    let mut world = World::start();
    world.put_claim("a", &[DRIVER], &["p", "q"]);
    let (p, q) = (pod("p", &["a"]), pod("q", &["a"]));
    world.prepare(&p).await.unwrap();
    world.restart();
    let c = &p.spec.as_ref().unwrap().containers[0];
    assert_eq!(world.manager.cdi_devices(&p, c).unwrap(), ["example.com/device=a"]);
    assert!(world.manager.holds("p"));
    // Another pod has it prepared again, as the driver may have been restarted, too.
    world.prepare(&q).await.unwrap();
    assert_eq!(world.manager.cdi_devices(&q, c).unwrap(), ["example.com/device=a"]);
    assert_eq!(world.calls(), ["prepare a", "prepare a"]);
    world.restart();
    world.unprepare("p").await.unwrap();
    world.unprepare("q").await.unwrap();
    assert_eq!(world.calls()[2..], ["unprepare a"]);
    world.restart();
    assert!(!world.manager.holds("q"));
}

#[tokio::test(start_paused = true)]
async fn claim_of_an_earlier_object_of_that_name_is_not_used() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p", "q"]);
    world.prepare(&pod("p", &["a"])).await.unwrap();
    world.change_claim("a", |claim| claim["metadata"]["uid"] = json!("new"));
    let error = world.prepare(&pod("q", &["a"])).await.unwrap_err();
    assert!(
        error.contains("old ResourceClaim with same name a and different UID uid-a"),
        "{error}"
    );
    world.unprepare("p").await.unwrap();
    world.prepare(&pod("q", &["a"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn claim_of_pods_that_are_gone_are_unprepared_each_minute() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    world.put_claim("b", &[DRIVER], &["q"]);
    world.prepare(&pod("p", &["a"])).await.unwrap();
    world.prepare(&pod("q", &["b"])).await.unwrap();
    let (known, pods) = tokio::sync::watch::channel(None);
    let reconcile = world.manager.clone().reconcile(move || pods.borrow().clone());
    let reconcile = tokio::spawn(reconcile);
    sleep(Duration::from_secs(330)).await;
    assert_eq!(world.calls().len(), 2, "as long as it is not known which pods there are");
    world.driver.on_unprepare(Behaviour::Fails("later".to_owned()));
    known.send_replace(Some(HashSet::from(["q".to_owned()])));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.calls()[2..], ["unprepare a"]);
    world.driver.on_unprepare(Behaviour::Well);
    sleep(Duration::from_secs(90)).await;
    assert!(!world.manager.holds("p") && world.manager.holds("q"));
    assert_eq!(world.driver.prepared(), ["b"]);
    reconcile.abort();
}

#[tokio::test(start_paused = true)]
async fn claim_driver_with_two_plugins_is_called_at_the_newest_that_is_connected() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    world.put_claim("b", &[DRIVER], &["q"]);
    let newer = ScriptedDriver::new(DRIVER);
    // It has another endpoint.
    let connection = {
        let newer = newer.clone();
        longshore_grpc::Connection::dial(move || std::future::ready(newer.accept()))
    };
    let service = crate::plugin::Service::V1;
    world.manager.drivers().add(DRIVER, "memory:newer", service, connection.clone()).unwrap();
    let again = world.manager.drivers().add(DRIVER, "memory:newer", service, connection);
    let text = "endpoint memory:newer already registered for DRA driver plugin gpu.example.com";
    assert_eq!(again, Err(longshore_plugins::Refusal::Failed(text.to_owned())));
    sleep(Duration::from_secs(1)).await;
    world.prepare(&pod("p", &["a"])).await.unwrap();
    assert_eq!((newer.calls().len(), world.calls().len()), (1, 0));
    newer.stop();
    sleep(Duration::from_secs(1)).await;
    world.prepare(&pod("q", &["b"])).await.unwrap();
    assert_eq!((newer.calls().len(), world.calls().len()), (1, 1));
    world.manager.drivers().remove(DRIVER, "memory:newer");
    world.unprepare("p").await.unwrap();
    world.driver.unregister(&world.manager);
    let error = world.unprepare("q").await.unwrap_err();
    assert_eq!(error, "unprepare dynamic resources: DRA driver gpu.example.com is not registered");
}

#[tokio::test(start_paused = true)]
async fn claim_driver_that_restarts_during_a_call_is_an_error_and_then_used_again() {
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    world.driver.on_prepare(Behaviour::Hangs);
    let p = pod("p", &["a"]);
    let (error, ()) = tokio::join!(world.prepare(&p), async {
        sleep(Duration::from_secs(1)).await;
        world.driver.stop();
    });
    let text = "NodePrepareResources: rpc error: code = Unavailable";
    assert!(error.unwrap_err().contains(text));
    let error = world.prepare(&p).await.unwrap_err();
    assert!(error.contains(text) && error.contains("refused"), "{error}");
    world.driver.on_prepare(Behaviour::Well);
    world.driver.resume();
    let began = Instant::now();
    world.prepare(&p).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(100), "it is tried at once");
}

/// The query of a deletion of the slices of a driver.
fn deletion(driver: Option<&str>) -> String {
    let of_driver = driver.map(|driver| format!("spec.driver%3D{driver}%2C"));
    format!("&fieldSelector={}spec.nodeName%3Dn1", of_driver.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn resource_slices_of_a_driver_that_is_gone_are_deleted() {
    let world = World::start();
    let deletions = || world.objects.lock().deletions.clone();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(deletions(), Vec::<String>::new(), "it is connected");
    world.driver.stop();
    sleep(Duration::from_secs(20)).await;
    world.driver.resume();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(deletions(), Vec::<String>::new(), "it has come back in time");
    world.objects.lock().failures = 2;
    world.driver.unregister(&world.manager);
    sleep(Duration::from_secs(29)).await;
    assert_eq!(world.objects.lock().failures, 2);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(deletions(), [deletion(Some(DRIVER))]);
    world.driver.register(&world.manager);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(deletions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn resource_slices_of_all_drivers_are_deleted_when_the_daemon_starts() {
    let world = World::start();
    world.node.send_replace(None);
    let wipe = tokio::spawn(world.manager.clone().wipe_slices());
    sleep(Duration::from_secs(600)).await;
    assert!(world.objects.lock().deletions.is_empty(), "there is no Node yet");
    world.node.send_replace(Some(std::sync::Arc::default()));
    wipe.await.unwrap();
    assert_eq!(world.objects.lock().deletions, [deletion(None)]);
}

#[tokio::test(start_paused = true)]
async fn device_health_of_a_driver_reaches_the_status_of_pods() {
    use crate::api::health::{DeviceHealth, DeviceIdentifier, HealthStatus};
    let world = World::start();
    world.put_claim("a", &[DRIVER], &["p"]);
    let p = pod("p", &["a"]);
    world.driver.set_devices("a", vec![ScriptedDriver::device("0", &[], &[])]);
    world.prepare(&p).await.unwrap();
    let mut changes = world.manager.health_changes().unwrap();
    let health = |status: HealthStatus, seconds| {
        vec![DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: "pool".to_owned(),
                device_name: "0".to_owned(),
            }),
            health: status.into(),
            health_check_timeout_seconds: seconds,
            ..DeviceHealth::default()
        }]
    };
    let shown = || {
        let mut status = super::pure::decoded(json!({"containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0},
        ]}));
        world.manager.set_health(&p, &mut status);
        let status = serde_json::to_value(status).unwrap();
        let own = &status["containerStatuses"][0]["allocatedResourcesStatus"][0];
        assert_eq!(own["name"], "claim:a");
        own["resources"][0]["health"].as_str().unwrap().to_owned()
    };
    assert_eq!(shown(), "Unknown");
    world.driver.report(health(HealthStatus::Unhealthy, 20));
    changes.changed().await.unwrap();
    assert_eq!(shown(), "Unhealthy");
    let began = Instant::now();
    changes.changed().await.unwrap();
    assert_eq!(shown(), "Unknown", "the report has expired");
    assert!(began.elapsed() >= Duration::from_secs(19), "{:?}", began.elapsed());
    world.driver.report(health(HealthStatus::Healthy, 1000));
    changes.changed().await.unwrap();
    assert_eq!(shown(), "Healthy");
    assert!(
        std::fs::read_to_string(world.dir.path().join("dra_health_state"))
            .unwrap()
            .contains("Healthy")
    );
    world.driver.stop();
    changes.changed().await.unwrap();
    assert_eq!(shown(), "Unknown", "the driver is gone");
}

//! Pods with resource claims on a real node: they wait for their claim and its driver, get the CDI devices of the
//! claim, and give it back when their containers have ended; restarts of the daemon in between.
//!
//! Which devices containers get is tested with containerd 2.x. Earlier ones take no CDI devices here (1.6 does not
//! know them), and containers start without: then the test checks that they do not get any, and all the rest.

use crate::common;

use common::{Cluster, FOREVER, TIMEOUT, phase, run_of, script, uid};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use longshore_devices::pod_resources::v1::ListPodResourcesRequest;
use longshore_devices::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient;
use longshore_dra::testing::{Behaviour, Listening, ScriptedDriver};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn listen(cluster: &Cluster, driver: &ScriptedDriver) -> Listening {
    let root = cluster.node.root_dir();
    let plugin = root.join("plugins").join(DRIVER);
    driver.listen(&plugin, &root.join("plugins_registry"), &["v1.DRAPlugin"])
}

/// A driver whose claims have one device each, and whether the runtime knows that device.
fn driver(cluster: &Cluster, claims: &[&str]) -> (ScriptedDriver, bool) {
    let device = |claim: &&str| {
        json!({"name": claim, "containerEdits": {
            "env": [format!("CLAIM={claim}")],
            "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/zero"}],
        }})
    };
    let devices: Vec<Value> = claims.iter().map(device).collect();
    let description =
        json!({"cdiVersion": "0.6.0", "kind": "example.com/device", "devices": devices});
    let knows_cdi = cluster.host.describe_devices(&description).unwrap();
    let driver = ScriptedDriver::new(DRIVER);
    for claim in claims {
        let cdi = format!("example.com/device={claim}");
        driver.set_devices(claim, vec![ScriptedDriver::device("gpu-0", &["gpu"], &[&cdi])]);
    }
    (driver, knows_cdi)
}

fn claims(cluster: &Cluster) -> Api<ResourceClaim> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn create_claim(cluster: &Cluster, name: &str) {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu"}});
    let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
    let claim = serde_json::from_value(claim).unwrap();
    claims(cluster).create(&PostParams::default(), &claim).await.unwrap();
}

/// Allocates a claim, and reserves it for a pod, as the scheduler does.
async fn allocate(cluster: &Cluster, name: &str, pod: &Pod) {
    let result = json!({"request": "gpu", "driver": DRIVER, "pool": "pool", "device": "gpu-0"});
    let consumer = json!({"resource": "pods", "name": pod.metadata.name, "uid": uid(pod)});
    let status = json!({"status": {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [consumer],
    }});
    let patch = Patch::Merge(status);
    claims(cluster).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// A pod whose container has the claim, which runs `text` where it has got its device, or none if the runtime
/// knows no CDI.
fn claiming(claim: &str, knows_cdi: bool, text: &str) -> Value {
    let check = match knows_cdi {
        true => format!("[ $CLAIM = {claim} ] && [ -c /dev/gpu ]"),
        false => "[ -z $CLAIM ] && [ ! -e /dev/gpu ]".to_owned(),
    };
    let mut spec = script(&format!("{check} && {text}"));
    spec["resourceClaims"] = json!([{"name": "own", "resourceClaimName": claim}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "own"}]});
    spec
}

async fn until_prepared(driver: &ScriptedDriver, expected: &[&str]) {
    wait_until(TIMEOUT, "claims that are prepared", async || {
        let mut found = driver.prepared();
        found.sort();
        found.dedup();
        if found == expected { Ok(()) } else { Err(format!("{found:?}: {:?}", driver.calls())) }
    })
    .await
    .unwrap();
}

fn unprepares(driver: &ScriptedDriver) -> usize {
    driver.calls().iter().filter(|(method, _)| method == "unprepare").count()
}

#[tokio::test]
async fn dra_claim_is_prepared_before_its_pod_starts_and_unprepared_after_it_has_ended() {
    let mut cluster = Cluster::start().await;
    let (driver, knows_cdi) = driver(&cluster, &["a"]);

    // The pod waits for its claim, for the reservation, for the driver, and for the driver's success.
    let ends = cluster.host.dir().join("ends");
    std::fs::create_dir(&ends).unwrap();
    let stop =
        "trap 'touch /ends/begins; while [ ! -e /ends/now ]; do sleep 0.1; done; exit 0' TERM";
    let text = format!("{stop}; while true; do sleep 1000 & wait $!; done");
    let mut spec = claiming("a", knows_cdi, &text);
    spec["terminationGracePeriodSeconds"] = json!(600);
    spec["volumes"] = json!([{"name": "ends", "hostPath": {"path": ends}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "ends", "mountPath": "/ends"}]);
    let pod = cluster.create("p", spec).await;
    const REASON: &str = "FailedPrepareDynamicResources";
    cluster.until_event(REASON, "fetch ResourceClaim a").await;
    create_claim(&cluster, "a").await;
    cluster.until_event(REASON, "is not allowed to use ResourceClaim a").await;
    allocate(&cluster, "a", &pod).await;
    cluster.until_event(REASON, "DRA driver gpu.example.com is not registered").await;
    driver.on_prepare(Behaviour::FailsClaims("no power".to_owned()));
    let _listening = listen(&cluster, &driver);
    cluster.until_event(REASON, "no power").await;
    let waiting = cluster.pod("p").await;
    assert_eq!((phase(&waiting), run_of(&waiting)), ("Pending", (0, String::new())));
    assert_eq!(driver.statuses(), [(true, String::new())]);
    driver.on_prepare(Behaviour::Well);
    let before = cluster.until_ready("p").await;
    until_prepared(&driver, &["a"]).await;

    // The daemon is killed: the pod runs on with its claim, which the PodResources API shows.
    cluster.node.daemon().kill().expect("killed");
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "registration after the restart", async || match driver.statuses().len() {
        1 => Err(format!("{:?}", driver.statuses())),
        _ => Ok(()),
    })
    .await
    .unwrap();
    let socket = cluster.node.root_dir().join("pod-resources/kubelet.sock");
    let endpoint = longshore_grpc::Endpoint::parse(socket.to_str().unwrap()).unwrap();
    wait_until(TIMEOUT, "the claim in the PodResources API", async || {
        let mut client = PodResourcesListerClient::new(endpoint.clone().channel());
        let listed = client.list(ListPodResourcesRequest {}).await;
        let listed = listed.map_err(|error| error.to_string())?.into_inner().pod_resources;
        let own = listed.iter().find(|own| own.name == "p").ok_or("no such pod")?;
        let resources = &own.containers.first().ok_or("no container")?.dynamic_resources;
        let resource = resources.first().ok_or("no claim")?;
        let device = &resource.claim_resources[0];
        assert_eq!((&*resource.claim_name, &*device.device_name), ("a", "gpu-0"));
        assert_eq!(device.cdi_devices[0].name, "example.com/device=a");
        Ok::<(), String>(())
    })
    .await
    .unwrap();
    assert_eq!(run_of(&cluster.until_ready("p").await), run_of(&before));
    assert_eq!(unprepares(&driver), 0);

    // It has its claim as long as its container runs.
    cluster.delete("p").await;
    let begins = ends.join("begins");
    wait_until(TIMEOUT, "SIGTERM", async || match begins.exists() {
        true => Ok(()),
        false => Err("not yet"),
    })
    .await
    .unwrap();
    assert_eq!(unprepares(&driver), 0, "{:?}", driver.calls());
    driver.on_unprepare(Behaviour::FailsClaims("busy".to_owned()));
    std::fs::write(ends.join("now"), "").unwrap();
    cluster.until_event("FailedKillPod", "busy").await;
    assert!(cluster.pods().get_opt("p").await.unwrap().is_some(), "gone with its claim prepared");
    driver.on_unprepare(Behaviour::Well);
    cluster.until_gone("p").await;
    assert_eq!(driver.prepared(), Vec::<String>::new());
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn dra_claims_of_pods_that_end_or_crash_while_the_daemon_is_away() {
    let mut cluster = Cluster::start().await;
    let (driver, knows_cdi) = driver(&cluster, &["gone", "kept"]);
    let listening = listen(&cluster, &driver);
    for claim in ["gone", "kept"] {
        create_claim(&cluster, claim).await;
        let pod = cluster.create(claim, claiming(claim, knows_cdi, FOREVER)).await;
        allocate(&cluster, claim, &pod).await;
    }
    let gone = cluster.until_ready("gone").await;
    let kept = cluster.until_ready("kept").await;
    until_prepared(&driver, &["gone", "kept"]).await;

    // Meanwhile the container of one pod is killed, and the other pod is deleted without a grace period.
    cluster.node.daemon().kill().expect("killed");
    let id = run_of(&kept).1.trim_start_matches("containerd://").to_owned();
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", &id]).expect("a container is killed");
    cluster.pods().delete("gone", &DeleteParams::default().grace_period(0)).await.unwrap();
    // The driver is away, too, and comes back later than the daemon.
    drop(listening);
    cluster.node.restart(&cluster.host).expect("started again");
    cluster
        .until("kept", "started again", |pod| match run_of(pod) {
            (1, id) if common::condition(pod, "Ready") == "True" && !id.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let _listening = listen(&cluster, &driver);
    until_prepared(&driver, &["kept"]).await;
    cluster.until_removed(&uid(&gone)).await;
    cluster.delete("kept").await;
    cluster.until_gone("kept").await;
    until_prepared(&driver, &[]).await;
    cluster.host.assert_clean();
}

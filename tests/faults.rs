//! Errors, delays and hangs for one pod (a CRI call, a file system, a hook, a probe): the node stays
//! Ready, other pods are not affected, and the pod recovers.

use crate::common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Cluster, FOREVER, TIMEOUT, condition, run_of, script, uid};
use futures::future::join_all;
use kube::api::Patch;
use longshore_testkit::fakecri::{Calls, Fault, FaultProxy};
use longshore_testkit::{BUSYBOX, Host, wait_until};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

/// Calls of a pod's start, and of its end.
const START: [&str; 5] =
    ["RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer", "ContainerStatus"];
const END: [&str; 4] = ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"];

async fn cluster_with_proxy(config: Value) -> (Cluster, FaultProxy) {
    Cluster::behind_proxy(Host::start().expect("a host"), config).await
}

fn kill_container(cluster: &Cluster, id: &str) {
    let id = id.trim_start_matches("containerd://");
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", id]).expect("a container is killed");
}

async fn until_restarted(cluster: &Cluster, name: &str, count: i32) -> String {
    let restarted = |pod: &_| match (run_of(pod).0, condition(pod, "Ready").as_str()) {
        (restarts, "True") if restarts == count => Ok(()),
        other => Err(format!("{other:?}")),
    };
    run_of(&cluster.until(name, "restarted and Ready", restarted).await).1
}

/// The whole life of a pod that nothing is wrong with, on a node that is Ready.
async fn live(cluster: &Cluster, name: &str) {
    cluster.create(name, script(FOREVER)).await;
    let (_, id) = run_of(&cluster.until_ready(name).await);
    kill_container(cluster, &id);
    until_restarted(cluster, name, 1).await;
    let gone = uid(&cluster.pod(name).await);
    cluster.delete(name).await;
    cluster.until_gone(name).await;
    cluster.until_removed(&gone).await;
    cluster.node_ready().await.expect("the node is Ready");
}

async fn until_held(proxy: &FaultProxy) {
    wait_until(TIMEOUT, "calls hang", async || match proxy.unmet() {
        unmet if unmet.is_empty() => Ok(()),
        unmet => Err(format!("{unmet:?}")),
    })
    .await
    .unwrap();
}

/// A script that leaves a mark in a folder of the host each time it starts.
fn marking(marks: &Path, name: &str) -> Value {
    let mut spec = script(&format!("echo x >>/marks/{name}; {FOREVER}"));
    spec["volumes"] = json!([{"name": "marks", "hostPath": {"path": marks}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "marks", "mountPath": "/marks"}]);
    spec
}

/// Each was started once, and no restart is reported.
async fn assert_started_once(cluster: &Cluster, marks: &Path, names: &[String]) {
    for name in names {
        let starts = fs::read_to_string(marks.join(name)).unwrap_or_default().lines().count();
        let restarts = run_of(&cluster.until_ready(name).await).0;
        assert_eq!((starts, restarts), (1, 0), "{name}: starts, restarts");
    }
}

/// How often the daemon has complained that it cannot see what runs of that pod.
fn complaints(cluster: &mut Cluster, pod: &str) -> usize {
    let log = cluster.node.daemon().log();
    let about = |line: &&str| {
        line.contains("cannot inspect sandboxes and containers of a pod") && line.contains(pod)
    };
    log.lines().filter(about).count()
}

fn threads(cluster: &mut Cluster) -> usize {
    let pid = cluster.node.daemon().pid();
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[tokio::test]
async fn container_exit_is_observed_without_a_relist() {
    let (mut cluster, proxy) = cluster_with_proxy(json!({})).await;
    cluster.create("web", script(FOREVER)).await;
    let (_, mut last) = run_of(&cluster.until_ready("web").await);
    for count in 1..=2 {
        proxy.inject("ListContainers", Fault::Hang);
        // The runtime of some machines has events, and they are not what is tested here.
        proxy.inject("GetContainerEvents", Fault::Hang);
        kill_container(&cluster, &last);
        last = until_restarted(&cluster, "web", count).await;
        proxy.release_all();
        // Known from its predecessor, a container's end is awaited as well.
        cluster.node.restart(&cluster.host).expect("started again");
        let before = proxy.calls("ListContainers");
        wait_until(TIMEOUT, "relists", async || match proxy.calls("ListContainers") - before {
            2.. => Ok(()),
            calls => Err(calls),
        })
        .await
        .unwrap();
    }
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cri_faults_of_one_pod_do_not_affect_others() {
    let (mut cluster, proxy) = cluster_with_proxy(json!({})).await;
    let marks = cluster.host.dir().join("marks");
    fs::create_dir(&marks).unwrap();
    let faults = [
        ("hang", Fault::Hang),
        ("reply", Fault::HangReply),
        ("delay", Fault::Delay(Duration::from_secs(2))),
        ("error", Fault::Error(longshore_cri::Code::Internal, "injected".to_owned())),
    ];
    let victims = |methods: &'static [&'static str]| {
        faults.iter().flat_map(move |(kind, fault)| {
            methods.iter().map(move |method| {
                let name = format!("{kind}-{}", method.to_lowercase());
                (Calls::of(method).about(&name), name, fault.clone())
            })
        })
    };
    let (mut starting, mut ending, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    for (_, name, _) in victims(&END) {
        cluster.create(&name, script(FOREVER)).await;
        ending.push(name);
    }
    for name in &ending {
        ended.push(uid(&cluster.until_ready(name).await));
    }
    for (calls, name, fault) in victims(&START) {
        proxy.inject(calls, fault);
        cluster.create(&name, marking(&marks, &name)).await;
        starting.push(name);
    }
    for (calls, name, fault) in victims(&END) {
        proxy.inject(calls, fault);
        cluster.delete(&name).await;
    }
    until_held(&proxy).await;

    let before = threads(&mut cluster);
    live(&cluster, "witness").await;
    cluster.until_event("FailedCreatePodSandBox", "injected").await;
    live(&cluster, "other").await;
    // A call that hangs is not made again and again, nor does it take a thread.
    for method in START.iter().chain(&END) {
        let pending = proxy.pending(method);
        assert!(pending <= 2 * faults.len(), "{pending} calls of {method} are under way");
    }
    let after = threads(&mut cluster);
    assert!(after <= before + 2, "{before} threads, and then {after}");
    wait_until(TIMEOUT, "a failed inspection is logged with the name of the pod", async || {
        match complaints(&mut cluster, "error-containerstatus") {
            0 => Err("it is not".to_owned()),
            _ => Ok(()),
        }
    })
    .await
    .unwrap();
    cluster.until_event("FailedSync", "injected").await;
    assert_eq!(complaints(&mut cluster, "error-containerstatus"), 1, "once");

    proxy.release_all();
    join_all(starting.iter().map(|name| cluster.until_ready(name))).await;
    assert_started_once(&cluster, &marks, &starting).await;
    join_all(ending.iter().map(|name| cluster.until_gone(name))).await;
    join_all(ended.iter().map(|uid| cluster.until_removed(uid))).await;
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cri_timeouts_are_retried_and_start_nothing_twice() {
    let (mut cluster, proxy) = cluster_with_proxy(json!({"runtimeRequestTimeout": "3s"})).await;
    let marks = cluster.host.dir().join("marks");
    fs::create_dir(&marks).unwrap();
    let mut names = Vec::new();
    for method in START {
        for (kind, fault) in [("hang", Fault::Hang), ("reply", Fault::HangReply)] {
            let name = format!("{kind}-{}", method.to_lowercase());
            proxy.inject(Calls::of(method).about(&name), fault);
            cluster.create(&name, marking(&marks, &name)).await;
            names.push(name);
        }
    }
    until_held(&proxy).await;
    let called: Vec<usize> = START.iter().map(|method| proxy.calls(method)).collect();
    wait_until(TIMEOUT, "each call is made again", async || {
        let again =
            START.iter().zip(&called).filter(|(method, called)| proxy.calls(method) < **called + 2);
        match again.map(|(method, _)| *method).collect::<Vec<_>>() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(format!("{missing:?}")),
        }
    })
    .await
    .unwrap();
    cluster.node_ready().await.expect("the node is Ready");
    // A call let go in its last moment would be broken off in the runtime: a start that failed.
    proxy.spare_all();
    join_all(names.iter().map(|name| cluster.until_ready(name))).await;
    assert_started_once(&cluster, &marks, &names).await;
    cluster.node.daemon().check_running().expect("the daemon runs");
    drop(proxy);
    cluster.host.assert_clean();
}

/// A file system on which every call hangs until it is lifted, as on one from a dead server: FUSE,
/// with nobody to answer.
struct Mute {
    device: File,
    path: PathBuf,
}

impl Mute {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir(&path).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("mute"), &path, Some("fuse"), MsFlags::empty(), Some(options.as_str()))
            .expect("a mount");
        Self { device, path }
    }

    /// What hangs fails, and the folder beneath is there.
    fn lift(self) {
        umount2(&self.path, MntFlags::MNT_DETACH).expect("unmounted");
        drop(self.device);
    }
}

#[tokio::test]
async fn file_system_hang_delays_only_its_pods() {
    let mut cluster = Cluster::start().await;
    let mute = Mute::mount(cluster.host.dir().join("mute"));
    for name in ["stays", "goes"] {
        let mut spec = script(FOREVER);
        let source = json!({"path": mute.path, "type": "Directory"});
        spec["volumes"] = json!([{"name": "v", "hostPath": source}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        cluster.create(name, spec).await;
    }
    let gone = uid(&cluster.pod("goes").await);
    live(&cluster, "witness").await;
    let before = threads(&mut cluster);
    // One that waits for it can still go.
    cluster.delete("goes").await;
    cluster.until_gone("goes").await;
    live(&cluster, "other").await;
    assert!(threads(&mut cluster) <= before + 2, "nothing piles up");
    assert_eq!(common::phase(&cluster.pod("stays").await), "Pending");
    mute.lift();
    cluster.until_ready("stays").await;
    cluster.until_removed(&gone).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn hook_and_probe_hangs_delay_only_their_pod() {
    let (cluster, proxy) = cluster_with_proxy(json!({})).await;
    let exec = json!({"exec": {"command": ["true"]}});
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let with = |field: &str, value: &Value| {
        let mut spec = script(FOREVER);
        spec["containers"][0][field] = value.clone();
        spec
    };
    proxy.inject(Calls::of("ExecSync").about("starting"), Fault::Hang);
    proxy.inject(Calls::of("ExecSync").about("probed"), Fault::Hang);
    cluster.create("starting", with("lifecycle", &json!({"postStart": exec}))).await;
    cluster.create("probed", with("readinessProbe", &probe)).await;
    cluster.create("stopping", with("lifecycle", &json!({"preStop": exec}))).await;
    let stopping = uid(&cluster.until_ready("stopping").await);
    proxy.inject(Calls::of("ExecSync").about("stopping"), Fault::Hang);
    cluster.delete("stopping").await;
    until_held(&proxy).await;
    cluster.create("well", with("readinessProbe", &probe)).await;
    cluster.until_ready("well").await;
    live(&cluster, "witness").await;
    // The hook's time is the grace period.
    cluster.until_gone("stopping").await;
    cluster.until_removed(&stopping).await;
    assert_eq!(condition(&cluster.pod("probed").await, "Ready"), "False");
    assert!(proxy.pending("ExecSync") <= 3, "{}", proxy.pending("ExecSync"));
    proxy.release_all();
    cluster.until_ready("starting").await;
    cluster.until_ready("probed").await;
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn status_of_replaced_container_is_coalesced() {
    const NEXT: &str = "longshore.local/busybox:next";
    let (cluster, proxy) = cluster_with_proxy(json!({})).await;
    cluster.host.ctr(["images", "tag", BUSYBOX, NEXT]).expect("a second name of the image");
    cluster.create("web", script("trap exit TERM; while :; do sleep 0.1; done")).await;
    cluster.until_ready("web").await;
    proxy.inject("CreateContainer", Fault::Delay(Duration::from_secs(3)));
    let begun = Instant::now();
    let patch = json!({"spec": {"containers": [{"name": "c", "image": NEXT}]}});
    let patched = cluster.pods().patch("web", &Default::default(), &Patch::Strategic(&patch)).await;
    patched.expect("the image is changed");
    cluster
        .until("web", "not Ready", |pod| match condition(pod, "Ready").as_str() {
            "False" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500), "reported after {took:?}");
    until_restarted(&cluster, "web", 1).await;
    drop(proxy);
}

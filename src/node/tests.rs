//! The start, the life and the stop of a node whose runtime and apiserver are in memory
//! (`crate::testing`), without root and under tokio's paused clock.

use std::net::IpAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use longshore_cri::Runtime;
use longshore_metrics::Registry;
use longshore_testkit::scripted::{Fault, ScriptedRuntime};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::environment::Connect;
use super::*;
use crate::testing::{self, Api, pod};

const NODE: &str = "/api/v1/nodes/n";

#[derive(Clone, Default)]
struct InMemory {
    runtime: ScriptedRuntime,
    api: Option<Api>,
    /// The machine has no address.
    has_no_address: bool,
    /// The machine cannot be prepared.
    fails: bool,
    /// A task of the node with this name ends after that time.
    ending_task: Option<(&'static str, Duration)>,
}

impl Environment for InMemory {
    fn runtime<'a>(
        &'a self,
        _: &'a Config,
        _: &'a Registry,
        _: Tracer,
        _: &'a mut TaskSet,
    ) -> BoxFuture<'a, Result<Runtime, Error>> {
        let runtime = self.runtime.clone();
        let connected = Runtime::in_memory(runtime.clone(), runtime, testing::CALL_TIMEOUT);
        std::future::ready(connected.map_err(Error::from)).boxed()
    }

    fn api(
        &self,
        _: &Config,
        _: &NodeMetrics,
        tasks: &mut TaskSet,
    ) -> Result<Option<Connect>, Error> {
        if let Some((name, after)) = self.ending_task {
            tasks.spawn(name, sleep(after));
        }
        let connect = |api: Api| -> Connect {
            Box::new(move |_, _| std::future::ready(Ok(api.client())).boxed())
        };
        Ok(self.api.clone().map(connect))
    }

    fn network_leftovers(&self) -> longshore_cni::Leftovers {
        longshore_cni::Leftovers::default()
    }

    fn prepare_machine(&self, _: &Config) -> Result<(), Error> {
        match self.fails {
            true => Err(Error::RootDirectory(longshore_volumes::Error::Interrupted)),
            false => Ok(()),
        }
    }

    fn addresses<'a>(&'a self, _: &'a Config) -> BoxFuture<'a, Vec<IpAddr>> {
        let address = "192.0.2.1".parse().unwrap();
        std::future::ready(if self.has_no_address { vec![] } else { vec![address] }).boxed()
    }
}

/// Runs a test with its node on this thread.
async fn local(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// A node that was started.
struct Started {
    runtime: ScriptedRuntime,
    api: Api,
    stop: CancellationToken,
    run: JoinHandle<Result<(), Error>>,
    _dir: tempfile::TempDir,
}

impl Started {
    /// With an apiserver.
    fn new(change: impl FnOnce(&mut InMemory)) -> Self {
        let mut environment = InMemory { api: Some(Api::default()), ..InMemory::default() };
        change(&mut environment);
        Self::with(environment, |_| ())
    }

    fn with(environment: InMemory, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = testing::config(dir.path());
        // This machine may be short of disk.
        config.eviction.thresholds = Vec::new();
        let kubelet = &mut config.kubelet;
        // What needs root, or ports.
        kubelet.cgroups_per_qos = false;
        kubelet.enforce_node_allocatable = Vec::new();
        kubelet.oom_score_adj = 0;
        kubelet.max_open_files = 0;
        kubelet.make_iptables_util_chains = false;
        kubelet.enable_server = false;
        kubelet.healthz_port = 0;
        kubelet.fail_swap_on = false;
        kubelet.static_pod_path = dir.path().join("manifests").display().to_string();
        std::fs::create_dir(&kubelet.static_pod_path).unwrap();
        change(&mut config);
        let (runtime, api) = (environment.runtime.clone(), environment.api.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = spawn_local(async move {
            let ended = run_in(&environment, config, stopped).await;
            eprintln!("the node has ended: {ended:?}");
            ended
        });
        Self { runtime, api: api.unwrap_or_default(), stop, run, _dir: dir }
    }

    fn add_manifest(environment: &InMemory, name: &'static str) -> Self {
        Self::with(environment.clone(), |config| {
            let manifest = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {"containers": [{"name": name, "image": "registry.test/image:1"}]},
            });
            let path = Path::new(&config.kubelet.static_pod_path).join("p.json");
            std::fs::write(path, manifest.to_string()).unwrap();
        })
    }

    async fn within(&self, seconds: u64, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..seconds * 20 {
            if holds(self) {
                return;
            }
            assert!(!self.run.is_finished(), "the node has ended before: {what}");
            sleep(Duration::from_millis(50)).await;
        }
        let (objects, world) = (self.api.objects(), self.runtime.world());
        let node = objects.others.get(NODE);
        panic!(
            "not within {seconds} s: {what}; requests: {:?}, calls: {:?}, events: {:?}, node: {node:?}",
            objects.requests, world.requests, objects.events
        );
    }

    async fn running(&self, seconds: u64, containers: &[&str]) {
        let what = format!("containers {containers:?} run");
        self.within(seconds, &what, |it| it.runtime.running() == containers).await;
    }

    /// The condition of the node's object.
    fn condition(&self, kind: &str) -> Value {
        let objects = self.api.objects();
        let conditions = objects.others.get(NODE).map(|node| node["status"]["conditions"].clone());
        let conditions = conditions.unwrap_or_default();
        let mut all = conditions.as_array().into_iter().flatten();
        all.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
    }

    async fn ready(&self, seconds: u64, status: &str) {
        let what = format!("Ready is {status}");
        self.within(seconds, &what, |it| it.condition("Ready")["status"] == status).await;
    }

    async fn stopped(self) -> Result<(), Error> {
        self.stop.cancel();
        timeout(Duration::from_secs(60), self.run).await.unwrap().unwrap()
    }
}

fn index(requests: &[String], request: &str) -> usize {
    let index = requests.iter().position(|known| known == request);
    index.unwrap_or_else(|| panic!("{request} is not among {requests:?}"))
}

#[tokio::test(start_paused = true)]
async fn node_start_is_in_order() {
    local(async {
        let it = Started::new(|environment| {
            environment.runtime.inject("Version", Fault::AnsweredLate(Duration::from_secs(5)));
            environment.api.as_ref().unwrap().put_pod(pod("p", json!({}), json!({})));
        });
        sleep(Duration::from_secs(4)).await;
        assert_eq!(it.runtime.world().requests, ["Version"]);
        assert_eq!(it.api.objects().requests, Vec::<String>::new(), "the runtime comes first");
        it.running(30, &["c"]).await;
        it.ready(30, "True").await;
        let requests = it.api.objects().requests.clone();
        let (listed, watched) =
            (index(&requests, "GET /api/v1/nodes"), index(&requests, "GET /api/v1/pods"));
        assert!(listed < watched, "pods are admitted by the node's object: {requests:?}");
        let calls = it.runtime.world().requests.clone();
        let first = |method| calls.iter().position(|known| *known == method).unwrap();
        assert_eq!(calls[..2], ["Version", "ImageFsInfo"]);
        for method in ["ListPodSandbox", "ListContainers"] {
            assert!(first(method) < first("RunPodSandbox"), "workers start after the first relist");
        }
        it.within(10, "its start is an event", |it| it.api.event("Starting").is_some()).await;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n";
        it.within(10, "a lease", |it| it.api.objects().others.contains_key(lease)).await;
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_without_a_runtime_waits_for_it() {
    local(async {
        let it = Started::new(|environment| {
            environment.runtime.world().is_down = true;
            environment.api.as_ref().unwrap().put_pod(pod("p", json!({}), json!({})));
        });
        it.ready(30, "False").await;
        let message = it.condition("Ready")["message"].as_str().unwrap().to_owned();
        assert!(message.contains("container runtime status check may not have"), "{message}");
        assert!(message.contains("network state unknown"), "{message}");
        sleep(Duration::from_secs(60)).await;
        assert!(!it.run.is_finished());
        it.runtime.world().is_down = false;
        it.ready(30, "True").await;
        it.running(30, &["c"]).await;
        // And it may be away again: the node is ready for half a minute more.
        it.runtime.world().is_down = true;
        sleep(Duration::from_secs(20)).await;
        assert_eq!(it.condition("Ready")["status"], "True");
        it.ready(60, "False").await;
        assert_eq!(it.condition("Ready")["message"], "container runtime is down");
        it.runtime.world().is_down = false;
        it.ready(60, "True").await;
        assert_eq!(it.runtime.count("StartContainer", "c"), 1);
        it.stopped().await.unwrap();
    })
    .await;
}

/// They started in a network that was not there, or were reported as running without an address.
#[tokio::test(start_paused = true)]
async fn node_without_a_network_starts_pods_in_the_hosts_network_alone() {
    local(async {
        let it = Started::new(|environment| {
            environment.runtime.world().network_down = true;
            let api = environment.api.as_ref().unwrap();
            api.put_pod(pod("p", json!({}), json!({})));
            let host = json!({"hostNetwork": true});
            api.put_pod(pod("host", host, json!({"name": "host"})));
        });
        it.running(30, &["host"]).await;
        it.within(10, "an event", |it| it.api.event("NetworkNotReady").is_some()).await;
        let event = it.api.event("NetworkNotReady").unwrap();
        let why = "container runtime network not ready: NetworkReady=false \
                   reason:NetworkPluginNotReady message:scripted";
        assert_eq!(event, format!("network is not ready: {why}"));
        it.within(30, "the reason", |it| it.condition("Ready")["message"] == why).await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(it.runtime.running(), ["host"]);
        it.runtime.world().network_down = false;
        it.running(10, &["c", "host"]).await;
        it.ready(30, "True").await;
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_without_an_address_waits_for_that_of_its_object() {
    local(async {
        let api = Api::default();
        api.put_pod(pod("p", json!({"hostNetwork": true}), json!({})));
        let environment = InMemory { api: Some(api), has_no_address: true, ..InMemory::default() };
        // The addresses are written by a controller of the cloud.
        let it = Started::with(environment, |config| config.external_cloud = true);
        it.running(30, &["c"]).await;
        let ip = |it: &Started| it.api.status("p")["hostIP"].clone();
        it.ready(30, "True").await;
        assert_eq!(ip(&it), Value::Null);
        // They are known with the next heartbeat, as this apiserver has no watch of nodes.
        let set = |addresses: Value| {
            let mut objects = it.api.objects();
            objects.others.get_mut(NODE).unwrap()["status"]["addresses"] = addresses;
        };
        let of = |ip: &str| json!({"type": "InternalIP", "address": ip});
        set(json!([of("192.0.2.7")]));
        it.within(600, "the address", |it| ip(it) == "192.0.2.7").await;
        it.within(30, "the pod's", |it| it.api.status("p")["podIP"] == "192.0.2.7").await;
        // It becomes a node of both families, and then has another address.
        set(json!([of("192.0.2.7"), of("2001:db8::7")]));
        let both = json!([{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}]);
        it.within(600, "both", |it| it.api.status("p")["hostIPs"] == both).await;
        it.within(30, "both of the pod", |it| it.api.status("p")["podIPs"] == both).await;
        set(json!([of("192.0.2.8")]));
        it.within(600, "the new one", |it| ip(it) == "192.0.2.8").await;
        assert_eq!(it.api.status("p")["podIPs"], both, "those of a pod stay");
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_that_fails_is_an_event() {
    local(async {
        let it = Started::new(|environment| environment.fails = true);
        let (api, run) = (it.api.clone(), it.run);
        let error = timeout(Duration::from_secs(60), run).await.unwrap().unwrap().unwrap_err();
        let text = "error configuring root directory: work on volumes was interrupted";
        assert_eq!(error.to_string(), text);
        assert_eq!(api.event("KubeletSetupFailed").as_deref(), Some(text));
        assert_eq!(api.event("Starting"), None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_with_a_runtime_that_hangs_stops_when_it_should() {
    local(async {
        let it = Started::new(|environment| environment.runtime.inject("Version", Fault::Hangs));
        sleep(Duration::from_secs(1)).await;
        // Its call has a deadline.
        it.ready(60, "True").await;
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_refuses_a_runtime_of_another_version() {
    local(async {
        let it = Started::new(|environment| {
            environment.runtime.inject("Version", Fault::Unimplemented);
        });
        let error = timeout(Duration::from_secs(60), it.run).await.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, Error::Runtime(longshore_cri::Error::NoV1 { .. })), "{error}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_without_an_apiserver_runs_static_pods_and_registers_later() {
    local(async {
        let api = Api::default();
        api.objects().is_down = true;
        api.put_pod(pod("p", json!({}), json!({})));
        let environment = InMemory { api: Some(api), ..InMemory::default() };
        let it = Started::add_manifest(&environment, "static");
        it.running(30, &["static"]).await;
        sleep(Duration::from_secs(120)).await;
        assert!(!it.run.is_finished());
        assert!(!it.api.objects().others.contains_key(NODE));
        it.api.objects().is_down = false;
        it.ready(60, "True").await;
        it.running(60, &["c", "static"]).await;
        let mirror = |it: &Started| {
            let objects = it.api.objects();
            objects.pods.contains_key("static-n")
        };
        it.within(60, "a mirror pod", mirror).await;
        assert_eq!(it.runtime.count("StartContainer", "static"), 1);
        // And away again: nothing ends.
        it.api.objects().is_down = true;
        sleep(Duration::from_secs(120)).await;
        assert_eq!(it.runtime.running(), ["c", "static"]);
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_start_in_standalone_mode_runs_static_pods() {
    local(async {
        let it = Started::add_manifest(&InMemory::default(), "static");
        it.running(30, &["static"]).await;
        let requests = it.api.objects().requests.clone();
        assert_eq!(requests, Vec::<String>::new());
        it.stopped().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_part_that_ends_early_ends_the_daemon_with_its_name() {
    local(async {
        let name = "rotation of the client certificate";
        let it = Started::new(|environment| {
            environment.ending_task = Some((name, Duration::from_secs(100)));
            environment.api.as_ref().unwrap().put_pod(pod("p", json!({}), json!({})));
        });
        it.running(30, &["c"]).await;
        let begun = Instant::now();
        let error = timeout(Duration::from_secs(200), it.run).await.unwrap().unwrap().unwrap_err();
        let expected = format!("task {name:?} ended: it returned before the node was stopped");
        assert_eq!(error.to_string(), expected);
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
        assert!(it.stop.is_cancelled(), "all other parts are stopped");
        assert_eq!(it.runtime.running(), ["c"], "containers keep running");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_stop_keeps_containers_and_writes_the_last_statuses() {
    local(async {
        let it = Started::new(|environment| {
            environment.api.as_ref().unwrap().put_pod(pod("p", json!({}), json!({})));
        });
        it.within(30, "it runs", |it| it.api.status("p")["phase"] == "Running").await;
        let (runtime, api) = (it.runtime.clone(), it.api.clone());
        it.stopped().await.unwrap();
        assert_eq!(runtime.running(), ["c"]);
        assert_eq!(runtime.count("StopContainer", "c"), 0);
        assert_eq!(api.status("p")["phase"], "Running");
        let count = api.objects().requests.len();
        sleep(Duration::from_secs(100)).await;
        assert_eq!(api.objects().requests.len(), count, "nothing is left behind");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_stop_does_not_wait_for_a_runtime_or_an_apiserver_that_hang() {
    local(async {
        let it = Started::new(|_| ());
        it.ready(30, "True").await;
        for method in ["RunPodSandbox", "ListPodSandbox", "Version", "Status"] {
            it.runtime.inject(method, Fault::Hangs);
        }
        it.api.put_pod(pod("p", json!({}), json!({})));
        sleep(Duration::from_secs(3)).await;
        it.api.objects().is_down = true;
        let begun = Instant::now();
        it.stopped().await.unwrap();
        assert!(begun.elapsed() <= DRAIN + Duration::from_secs(1), "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn node_relists_that_hang_make_it_unready() {
    local(async {
        let it = Started::new(|environment| {
            environment.api.as_ref().unwrap().put_pod(pod("p", json!({}), json!({})));
        });
        it.ready(30, "True").await;
        it.running(30, &["c"]).await;
        for _ in 0..100 {
            it.runtime.inject("ListPodSandbox", Fault::Hangs);
        }
        sleep(Duration::from_secs(100)).await;
        // A new pod needs no list to run.
        it.api.put_pod(pod("new", json!({}), json!({"name": "new"})));
        it.running(5, &["c", "new"]).await;
        sleep(Duration::from_secs(65)).await;
        assert_eq!(it.condition("Ready")["status"], "True");
        it.ready(30, "False").await;
        let message = it.condition("Ready")["message"].as_str().unwrap().to_owned();
        assert!(message.contains("PLEG is not healthy: pleg was last seen active 3m"), "{message}");
        it.runtime.end_faults();
        it.ready(30, "True").await;
        assert_eq!(it.runtime.count("StartContainer", "c"), 1);
        it.stopped().await.unwrap();
    })
    .await;
}

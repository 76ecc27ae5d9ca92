//! A node in memory, for tests: the real workers with all that they use, on a container runtime and an
//! apiserver in memory, without root and under tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic)]

mod api;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::{Detection, Objects};
use longshore_config::{Command, Config};
use longshore_credential_provider::CredentialProviders;
use longshore_cri::Runtime;
use longshore_devices::Devices;
use longshore_machine::Machine;
use longshore_metrics::Registry;
use longshore_pod::admission::{NodeCapabilities, NodePressure, Sysctls};
use longshore_pod::backoff::RESTART_BASE;
use longshore_pod::resize::Rules;
use longshore_pod::spec::{self, Gates};
use longshore_pod::status::Verdict;
use longshore_podstate::desired::{self, Desired};
use longshore_podstate::observe::{self, Observer};
use longshore_podstate::sources::Source;
use longshore_resources::cgroups::{Cgroups, Driver, Policy};
use longshore_resources::managers::Managers;
use longshore_runtime::handlers::Handlers;
use longshore_runtime::probes::Probes;
use longshore_runtime::services::Services;
use longshore_runtime::{Parts, PodRuntime, Settings};
use longshore_testkit::scripted::ScriptedRuntime;
use longshore_volumes::Volumes;
use longshore_volumes::plugins::Drivers;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(crate) use self::api::Api;
use crate::admission::{self, Admission};
use crate::allocation::{self, Allocation};
use crate::gc;
use crate::registration::RuntimeHealth;
use crate::status::StatusWriter;
use crate::terminator::{PodTerminator, Termination};
use crate::worker::{Limiter, Metrics, Pool, RestartDelays, WorkerContext};

/// Pods that may start at once.
pub(crate) const SLOTS: usize = 2;
/// Deadline of calls to the runtime.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest restart backoff.
const MAX_RESTART_DELAY: SignedDuration = SignedDuration::from_secs(40);

thread_local! {
    /// The UIDs of pods whose next turn panics, and their runtimes.
    static PANICS: RefCell<Vec<(String, ScriptedRuntime)>> = const { RefCell::new(Vec::new()) };
}

/// Called by workers at the start of each iteration.
pub(crate) fn turn(pod: &Pod) {
    let due = PANICS.with_borrow_mut(|due| {
        let index = due.iter().position(|(uid, _)| uid == spec::uid(pod));
        index.map(|index| due.swap_remove(index))
    });
    if let Some((uid, runtime)) = due {
        // Another worker does not know of the stops that this one has begun.
        runtime.world().epoch += 1;
        panic!("as the test wants it for {uid}");
    }
}

/// A node whose daemon can be ended and started again; its runtime, its disk and the apiserver stay.
pub(crate) struct Node {
    pub(crate) runtime: ScriptedRuntime,
    pub(crate) api: Api,
    dir: tempfile::TempDir,
    daemon: Option<Daemon>,
    /// The status of the runtime, as the daemon sees it.
    pub(crate) health: watch::Sender<RuntimeHealth>,
}

/// One run of the daemon, as far as pods are concerned. It ends when this is dropped.
pub(crate) struct Daemon {
    _tasks: JoinSet<()>,
    pub(crate) context: Arc<WorkerContext>,
    pub(crate) terminator: PodTerminator,
    pub(crate) desired: Desired,
    pub(crate) recorder: Recorder,
    /// Pressure conditions, by which admission decides.
    pub(crate) pressure: watch::Sender<NodePressure>,
    /// Whether the machine shuts down.
    pub(crate) shutting_down: watch::Sender<bool>,
}

/// The configuration of a node on any machine, with its files in this directory.
pub(crate) fn config(dir: &Path) -> Config {
    let root = format!("--root-dir={}", dir.join("root").display());
    let args = ["kubelet", "--fail-cgroupv1=false", "--hostname-override=n", &root];
    let mut config = match longshore_config::from_args(args.map(str::to_owned)) {
        Ok(Command::Kubelet(config)) => config,
        other => panic!("{other:?}"),
    };
    config.kubelet.pod_logs_dir = dir.join("logs").display().to_string();
    config.kubelet.resolv_conf = String::new();
    config.kubelet.serialize_image_pulls = false;
    config.kubelet.cluster_dns = vec!["192.0.2.53".to_owned()];
    *config
}

impl Node {
    pub(crate) async fn start() -> Self {
        let runtime = ScriptedRuntime::default();
        let dir = tempfile::tempdir().unwrap();
        let health = RuntimeHealth {
            version: "scripted://1".to_owned(),
            down: None,
            network_error: None,
            ..RuntimeHealth::default()
        };
        let health = watch::Sender::new(health);
        let mut node = Self { runtime, api: Api::default(), dir, daemon: None, health };
        node.start_daemon().await;
        node
    }

    pub(crate) fn config(&self) -> Config {
        config(self.dir.path())
    }

    /// Starts the daemon, as `node::run` does, with those parts that pods need.
    pub(crate) async fn start_daemon(&mut self) {
        let config = self.config();
        let registry = &Registry::default();
        std::fs::create_dir_all(config.root_dir.join("pods")).unwrap();
        std::fs::create_dir_all(&config.kubelet.pod_logs_dir).unwrap();
        self.runtime.world().epoch += 1;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let cri = Runtime::in_memory(self.runtime.clone(), self.runtime.clone(), CALL_TIMEOUT);
        let cri = cri.unwrap();
        let client = self.api.client();
        let (recorder, _) = Recorder::start(Some(client.clone()), "n");
        let pod_events = PodEventRecorder::new(recorder.clone());
        let policy = Policy {
            per_qos: false,
            cfs_quota_period: None,
            pod_pids: None,
            protection: None,
            memory_reserve: None,
            exclusive_cpus: false,
        };
        let cgroups = Cgroups::setup(Driver::Cgroupfs, "/", policy, registry).await.unwrap();
        let host_ips = ["192.0.2.1"].into();
        let settings = Settings::new(&config, &Machine::read(), host_ips, cgroups).unwrap();
        let settings = Arc::new(settings);

        let (updates, merged) = mpsc::channel(1 << 16);
        let (changes, changed) = mpsc::channel(64);
        let desired = Desired::new([Source::Api, Source::File]);
        tasks.spawn(desired.clone().run(merged, changes));
        let node_object = watch::Sender::new(Some(Arc::new(Node::object())));
        let mirrors = desired::reconcile_mirrors(
            desired.clone(),
            client.clone(),
            node_object.subscribe(),
            recorder.clone(),
        );
        tasks.spawn(async move {
            let _node_object = node_object;
            mirrors.await;
        });
        self.api.follow(updates);

        let objects = Objects::new(Some(client.clone()), Detection::Get(Duration::from_secs(60)));
        let parts = longshore_volumes::Parts {
            root: settings.root_dir.clone(),
            objects: objects.clone(),
            allocatable: settings.allocatable.clone(),
            pod_events: pod_events.clone(),
            drivers: Drivers::new("n", registry),
            node: None,
            claim_poll_interval: Duration::from_secs(60),
            plugin_dir: settings.root_dir.join("flex"),
            node_name: "n".to_owned(),
            projects: None,
        };
        let volumes = Volumes::new(parts, registry);
        let observer = Observer::new(cri.clone(), registry);
        tasks.spawn(observe::run(observer.clone(), stop.clone()));
        let status = StatusWriter::new(registry);
        tasks.spawn(status.clone().run(client.clone(), desired.clone(), stop.clone()));
        let handlers = Handlers::new(cri.clone());
        let probes = Probes::new(
            handlers.clone(),
            pod_events.clone(),
            settings.host_ips.clone(),
            false,
            registry,
        );
        let managers = Managers::default();
        let devices = Devices::default();
        let parts = longshore_dra::Parts {
            root: settings.root_dir.clone(),
            node_name: "n".to_owned(),
            client: Some(client.clone()),
            node: None,
            gates: longshore_dra::Gates {
                extended_resources: true,
                health: true,
                health_messages: true,
            },
        };
        let claims = longshore_dra::Manager::open(parts, registry).unwrap();
        let pods = PodRuntime::new(Parts {
            cri: cri.clone(),
            observer: observer.clone(),
            objects: objects.clone(),
            services: Services::none(),
            volumes: volumes.clone(),
            credential_providers: CredentialProviders::default(),
            pod_events: pod_events.clone(),
            handlers,
            managers: managers.clone(),
            devices: devices.clone(),
            claims: claims.clone(),
            settings: settings.clone(),
            metrics: longshore_runtime::Metrics::new(registry),
        });
        let terminator = PodTerminator::default();
        let pressure = watch::Sender::new(NodePressure::default());
        let shutting_down = watch::Sender::new(false);
        let admission = Admission::new(admission::Sources {
            capabilities: NodeCapabilities {
                sysctls: Sysctls::new(&[], (6, 1)).unwrap(),
                app_armor: false,
                supplemental_groups_policy: false,
                pod_level_resources: true,
                toleration_comparisons: false,
                declared_features: None,
            },
            own: Self::object(),
            api_node: None,
            pressure: pressure.subscribe(),
            shutting_down: shutting_down.subscribe(),
            pod_events: pod_events.clone(),
            terminator: terminator.clone(),
            managers,
            devices: devices.clone(),
        });
        let given = allocation::Parts {
            desired: desired.clone(),
            pod_events: pod_events.clone(),
            admission: admission.clone(),
            rules: Rules {
                limited_swap: false,
                static_cpus: false,
                static_memory: false,
                pod_level: true,
            },
            gates: Gates::default(),
        };
        let allocation = Allocation::open(&settings.root_dir, given, registry).unwrap();
        let allocating = allocation.clone();
        tasks.spawn(async move {
            allocating.run().await;
        });
        let collectors = gc::collectors(
            &config,
            gc::Parts {
                cri,
                observer: observer.clone(),
                desired: desired.clone(),
                status: status.clone(),
                recorder: recorder.clone(),
                pods: pods.clone(),
                metrics: gc::Metrics::new(registry),
            },
        );
        let context = Arc::new(WorkerContext {
            runtime: pods,
            observer,
            status,
            probes,
            volumes,
            claims,
            pod_events,
            settings,
            objects,
            runtime_health: self.health.subscribe(),
            restart_delays: RestartDelays { base: RESTART_BASE, max: MAX_RESTART_DELAY },
            resync_period: SignedDuration::from_secs(60),
            gates: Gates::default(),
            startup_limiter: Limiter::new(SLOTS, Duration::from_secs(2), || false),
            stop_limiter: Limiter::new(SLOTS, Duration::from_secs(2), || true),
            allocation,
            garbage: collectors.containers,
            admission,
            devices,
            metrics: Metrics::new(registry),
            tracer: longshore_telemetry::Tracer::default(),
        });
        let pool = Pool::new(context.clone(), desired.clone(), terminator.clone());
        tasks.spawn(pool.run(changed, stop));
        self.daemon = Some(Daemon {
            _tasks: tasks,
            context,
            terminator,
            desired,
            recorder,
            pressure,
            shutting_down,
        });
    }

    /// The node's object.
    fn object() -> k8s_openapi::api::core::v1::Node {
        let object = json!({
            "metadata": {"name": "n", "uid": "node"},
            "status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "100"}},
        });
        serde_json::from_value(object).unwrap()
    }

    /// Ends the daemon at once, as SIGKILL does. What it was waiting for is cancelled.
    pub(crate) async fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon._tasks.shutdown().await;
        }
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    /// The next turn of the pod's worker panics.
    pub(crate) fn panic_next(&self, uid: &str) {
        PANICS.with_borrow_mut(|due| due.push((uid.to_owned(), self.runtime.clone())));
    }

    /// No turn panics any more.
    pub(crate) fn end_panics() {
        PANICS.with_borrow_mut(Vec::clear);
    }

    /// The node terminates a pod.
    pub(crate) fn evict(&self, uid: &str, grace: Option<u64>) {
        let verdict = Verdict::failed("Evicted", "The node was low on resource: memory.");
        let grace = grace.map(Duration::from_secs);
        self.daemon().terminator.terminate(uid, Termination { verdict, grace });
    }

    pub(crate) fn pods_dir(&self) -> PathBuf {
        self.dir.path().join("root/pods")
    }

    /// What of past and present pods is held, in words; none if nothing is.
    pub(crate) fn held(&self) -> Vec<String> {
        let context = &self.daemon().context;
        let world = self.runtime.world();
        let dirs = std::fs::read_dir(self.pods_dir()).unwrap().count();
        [
            ("workers", self.daemon().terminator.workers().len()),
            ("sandboxes", world.sandboxes.len()),
            ("containers", world.runs.len()),
            ("reservations", context.admission.reserved()),
            ("startup slots", SLOTS - context.startup_limiter.free()),
            ("stop slots", SLOTS - context.stop_limiter.free()),
            ("registrations of objects", context.objects.registered()),
            ("directories", dirs),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect()
    }

    /// What no daemon should have done.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut all = self.runtime.world().violations.clone();
        all.extend(self.api.objects().violations.iter().cloned());
        all
    }

    /// Waits for a condition, which must hold within a time of the paused clock.
    pub(crate) async fn within(&self, seconds: u64, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..seconds * 20 {
            if holds(self) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let (calls, events) =
            (self.runtime.world().calls.clone(), self.api.objects().events.clone());
        let held = self.daemon.as_ref().map(|_| self.held());
        let pods = self.api.objects().pods.clone();
        panic!(
            "not within {seconds} s: {what}; held: {held:?}, calls: {calls:?}, events: {events:?}, pods: {pods:?}"
        );
    }

    pub(crate) async fn phase(&self, seconds: u64, name: &str, phase: &str) {
        self.within(seconds, phase, |node| node.api.status(name)["phase"] == phase).await;
    }

    pub(crate) async fn running(&self, seconds: u64, containers: &[&str]) {
        let what = format!("containers {containers:?} run");
        self.within(seconds, &what, |node| node.runtime.running() == containers).await;
    }

    /// Everything is given back, and nothing went wrong on the way.
    pub(crate) async fn clean(&self) {
        self.within(60, "everything is given back", |node| node.held().is_empty()).await;
        assert_eq!(self.violations(), Vec::<String>::new());
    }
}

/// A pod with its name as UID and one container of the name `c`, with these fields in its spec and in
/// its container.
pub(crate) fn pod(name: &str, spec: Value, container: Value) -> Value {
    let mut whole = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
        "spec": {
            "containers": [{"name": "c", "image": "registry.test/image:1"}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        whole["spec"][key] = value.clone();
    }
    for (key, value) in container.as_object().unwrap() {
        whole["spec"]["containers"][0][key] = value.clone();
    }
    whole
}

/// The same as a static pod of a manifest, of that version: its UID depends on it.
pub(crate) fn static_pod(name: &str, version: &str, spec: Value, container: Value) -> Value {
    let mut whole = pod(name, spec, container);
    whole["metadata"]["uid"] = json!(format!("{name}-{version}"));
    whole["metadata"]["annotations"] = json!({
        spec::SOURCE_ANNOTATION: "file",
        spec::HASH_ANNOTATION: format!("{name}-{version}"),
    });
    whole
}

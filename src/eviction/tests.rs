//! The eviction manager on a node in memory (`crate::testing`) with scripted statistics: pods are
//! terminated by their real workers, and what they used is free once their containers have exited.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use longshore_machine::FileSystem;
use longshore_metrics::Registry;
use longshore_pod::eviction::{Amount, Signal, Threshold};
use longshore_pod::spec;
use longshore_pod::usage::{CgroupUsage, ContainerUsage, Memory, PodUsage, Space};
use longshore_resources::stats::{
    Depth, Error, FileSystems, Machine, Pids, RuntimeFileSystems, RuntimeUse,
};
use longshore_testkit::scripted::{Behaviour, Fault, ScriptedRuntime};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::testing::{Node, pod};

const MI: u64 = 1 << 20;
/// Memory of the machine.
const MEMORY: u64 = 1000 * MI;
/// Size of its disk, which the runtime shares.
const DISK: u64 = 100_000 * MI;

/// What is used, and of which statistics there is no answer.
#[derive(Default)]
struct Usage {
    /// Memory that no pod uses.
    system: u64,
    /// Memory of pods that run, by UID.
    pods: HashMap<String, u64>,
    /// Bytes of disk that dead containers, images and other files use.
    garbage: [u64; 3],
    /// Writable layers of pods that run, by UID.
    layers: HashMap<String, u64>,
    machine_hangs: bool,
    disk_hangs: bool,
    /// How often the machine was read.
    samples: u32,
}

/// Scripted statistics of a runtime's pods, and what is reclaimed of the node. Clones share it.
#[derive(Clone)]
struct Script {
    runtime: ScriptedRuntime,
    usage: Arc<Mutex<Usage>>,
}

impl Script {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock()
    }

    /// The sum of what those pods use that run.
    fn of_running(&self, amounts: &HashMap<String, u64>) -> u64 {
        let world = self.runtime.world();
        let runs = |uid: &str| world.runs.values().any(|run| run.is_running() && run.uid == uid);
        amounts.iter().filter(|(uid, _)| runs(uid)).map(|(_, amount)| amount).sum()
    }

    fn memory(&self, used: u64) -> Memory {
        Memory { usage: used, working_set: used, rss: used, limit: Some(MEMORY) }
    }

    /// So much memory is available.
    fn set_available(&self, available: u64) {
        let used = self.of_running(&self.usage().pods.clone());
        self.usage().system = MEMORY - available - used;
    }
}

impl Statistics for Script {
    fn machine(&self, _: Duration) -> BoxFuture<'_, Result<Arc<Machine>, Error>> {
        let mut usage = self.usage();
        usage.samples += 1;
        if usage.machine_hangs {
            return std::future::pending().boxed();
        }
        let (system, pods) = (usage.system, usage.pods.clone());
        drop(usage);
        let machine = Machine {
            usage: CgroupUsage::default(),
            memory: self.memory(system + self.of_running(&pods)),
            swap_total: 0,
            swap_free: 0,
            pids: Pids { max: 32768, running: 100 },
        };
        std::future::ready(Ok(Arc::new(machine))).boxed()
    }

    fn pods_memory(&self) -> BoxFuture<'_, Result<Option<Memory>, Error>> {
        std::future::ready(Ok(None)).boxed()
    }

    fn file_systems(&self, _: Duration) -> BoxFuture<'_, Result<Arc<FileSystems>, Error>> {
        let usage = self.usage();
        if usage.disk_hangs {
            return std::future::pending().boxed();
        }
        let (garbage, layers) = (usage.garbage, usage.layers.clone());
        drop(usage);
        let used = garbage.iter().sum::<u64>() + self.of_running(&layers);
        let available = DISK - used;
        let disk = FileSystem {
            device: 1,
            capacity: DISK,
            available,
            used,
            inodes: 1_000_000,
            inodes_free: 900_000,
        };
        let runtime =
            RuntimeFileSystems { images: disk, containers: disk, used: RuntimeUse::default() };
        let found = FileSystems { node: disk, runtime: Some(runtime) };
        std::future::ready(Ok(Arc::new(found))).boxed()
    }

    fn pods<'a>(
        &'a self,
        pods: &'a [Arc<Pod>],
        _: Depth,
        _: Duration,
    ) -> BoxFuture<'a, HashMap<String, PodUsage>> {
        let usage = self.usage();
        let of = |uid: &str| {
            let memory = usage.pods.get(uid).map(|used| self.memory(*used));
            let layer = usage.layers.get(uid).copied().unwrap_or(0);
            let cgroup = CgroupUsage { memory, ..CgroupUsage::default() };
            let container = ContainerUsage {
                name: uid.to_owned(),
                cgroup,
                rootfs: Some(Space { bytes: layer, inodes: 1 }),
                logs: None,
            };
            PodUsage { cgroup, containers: vec![container], ..PodUsage::default() }
        };
        let usages = pods.iter().map(|pod| (spec::uid(pod).to_owned(), of(spec::uid(pod))));
        std::future::ready(usages.collect()).boxed()
    }
}

impl Reclaim for Script {
    fn dead_containers(&self) -> BoxFuture<'_, ()> {
        self.usage().garbage[0] = 0;
        std::future::ready(()).boxed()
    }

    fn unused_images(&self) -> BoxFuture<'_, ()> {
        self.usage().garbage[1] = 0;
        std::future::ready(()).boxed()
    }
}

/// A node with an eviction manager.
struct Evicting {
    node: Node,
    script: Script,
    pressure: Pressure,
    notify: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl Evicting {
    async fn start(thresholds: &[Threshold], change: impl FnOnce(&mut Config)) -> Self {
        let node = Node::start().await;
        let script = Script { runtime: node.runtime.clone(), usage: Arc::default() };
        let mut config = node.config();
        config.eviction.thresholds = thresholds.to_vec();
        config.eviction.transition = Duration::from_secs(1);
        config.eviction.max_pod_grace = 0;
        change(&mut config);
        let daemon = node.daemon();
        let parts = Parts {
            desired: daemon.desired.clone(),
            observer: daemon.context.observer.clone(),
            terminator: daemon.terminator.clone(),
            recorder: daemon.recorder.clone(),
            reclaim: Arc::new(script.clone()),
            pressure: daemon.pressure.clone(),
            metrics: Metrics::new(&Registry::default()),
        };
        let (pressure, notify) = (daemon.pressure.subscribe(), Arc::new(Notify::new()));
        let (statistics, notified) = (Arc::new(script.clone()), notify.clone());
        let task = tokio::spawn(async move { manage(&config, statistics, parts, &notified).await });
        Self { node, script, pressure, notify, _task: AbortOnDropHandle::new(task) }
    }

    /// Runs a pod whose container has its name, requests so much memory and uses so much.
    async fn run(&self, name: &str, request: u64, used: u64, spec: Value) {
        self.script.usage().pods.insert(name.to_owned(), used);
        let requests = json!({"requests": {"memory": request.to_string(), "cpu": "1m"}});
        self.node.api.put_pod(pod(name, spec, json!({"name": name, "resources": requests})));
        self.node.phase(10, name, "Running").await;
    }

    /// Its container ends with its grace period only.
    fn ignores_stop_signals(&self, name: &str) {
        let behaviour = Behaviour { exits: None, stops_in: Duration::from_secs(100_000) };
        self.node.runtime.set_behaviour(name, behaviour);
    }

    fn is_evicted(&self, name: &str) -> bool {
        let status = self.node.api.status(name);
        status["phase"] == "Failed" && status["reason"] == "Evicted"
    }

    /// Waits for the eviction, and returns how long it took until the container was stopped.
    async fn evicted(&self, limit: u64, name: &str) -> Duration {
        let begun = Instant::now();
        let what = format!("{name} is evicted");
        self.node
            .within(limit, &what, |_| {
                self.node.runtime.count("StopContainer", name) > 0 && self.is_evicted(name)
            })
            .await;
        let stopped = self.node.runtime.calls("StopContainer", name);
        stopped[0].saturating_duration_since(begun)
    }

    /// How often it was attempted to reclaim something.
    fn attempts(&self) -> usize {
        let objects = self.node.api.objects();
        // Later ones only change the count of the first.
        let attempt = |message: &str| message.starts_with("Attempting to reclaim");
        objects.events.iter().filter(|(_, message)| attempt(message)).count()
    }

    fn running(&self) -> Vec<String> {
        self.node.runtime.running()
    }
}

/// A hard threshold; a soft one if it has a grace period in seconds.
fn threshold(signal: Signal, bytes: u64, grace: u64) -> Threshold {
    Threshold {
        signal,
        value: Amount::Milli { milli: i128::from(bytes) * 1000, binary: true },
        grace: Duration::from_secs(grace),
        min_reclaim: None,
    }
}

fn memory(grace: u64) -> Threshold {
    threshold(Signal::Memory, 100 * MI, grace)
}

#[tokio::test(start_paused = true)]
async fn eviction_by_a_hard_threshold_ends_pods_one_by_one_in_order() {
    let it = Evicting::start(&[memory(0)], |_| ()).await;
    it.run("within", 200 * MI, 100 * MI, json!({})).await;
    it.run("over", 10 * MI, 60 * MI, json!({})).await;
    it.run("far-over", 10 * MI, 80 * MI, json!({})).await;
    it.run("important", 10 * MI, 200 * MI, json!({"priority": 1000})).await;
    for name in ["within", "over", "far-over", "important"] {
        it.ignores_stop_signals(name);
    }
    it.script.set_available(30 * MI);
    it.evicted(15, "far-over").await;
    assert!(!it.is_evicted("over"), "one at a time");
    // That was enough.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(it.running(), ["important", "over", "within"]);
    assert_eq!(*it.pressure.borrow(), NodePressure::default());
    // All but what is used within its request.
    it.script.usage().system += 600 * MI - 10 * MI;
    it.node.within(60, "two are evicted", |_| it.running() == ["within"]).await;
    assert!(it.pressure.borrow().memory);
    let stops = ["far-over", "over", "important"]
        .map(|name| it.node.runtime.calls("StopContainer", name)[0]);
    assert!(stops.is_sorted(), "{stops:?}");
    // Each has its grace period of a second before the next is selected.
    assert!(stops[2] - stops[1] >= Duration::from_secs(1), "{stops:?}");
    let status = it.node.api.status("far-over");
    let message = status["message"].as_str().unwrap();
    let expected =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 30Mi.";
    assert!(message.starts_with(expected), "{message}");
    let conditions = status["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "TerminationByKubelet");
}

#[tokio::test(start_paused = true)]
async fn eviction_by_a_soft_threshold_waits_for_its_grace_period() {
    let it = Evicting::start(&[memory(60)], |config| config.eviction.max_pod_grace = 5).await;
    it.run("p", 10 * MI, 200 * MI, json!({"terminationGracePeriodSeconds": 3000})).await;
    it.ignores_stop_signals("p");
    it.script.set_available(50 * MI);
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert!(it.pressure.borrow().memory, "reported at once");
    // It is over for a moment: the grace period begins again.
    it.script.set_available(500 * MI);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!it.pressure.borrow().memory);
    it.script.set_available(50 * MI);
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!((it.attempts(), it.running()), (0, vec!["p".to_owned()]));
    it.evicted(30, "p").await;
    let stopped = it.node.runtime.calls("StopContainer", "p")[0] - begun;
    assert!((60..=71).contains(&stopped.as_secs()), "{stopped:?}");
    // Its own grace period is limited.
    it.node.running(10, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn eviction_goes_on_until_the_minimum_reclaim_is_available() {
    for (min_reclaim, expected) in [(0, vec!["b".to_owned()]), (200, vec![])] {
        let min_reclaim =
            Amount::Milli { milli: i128::from(min_reclaim * MI) * 1000, binary: true };
        let it =
            Evicting::start(&[Threshold { min_reclaim: Some(min_reclaim), ..memory(0) }], |_| ())
                .await;
        it.run("a", 10 * MI, 100 * MI, json!({})).await;
        it.run("b", 10 * MI, 90 * MI, json!({})).await;
        it.script.set_available(50 * MI);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(it.running(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn eviction_pressure_is_kept_for_the_transition_period() {
    let transition = Duration::from_secs(300);
    let it = Evicting::start(&[memory(0)], |config| config.eviction.transition = transition).await;
    it.script.set_available(50 * MI);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(it.pressure.borrow().memory);
    // A pod that requests no memory is not admitted.
    it.node.api.put_pod(pod("p", json!({}), json!({})));
    it.node.phase(10, "p", "Failed").await;
    assert_eq!(it.node.api.status("p")["reason"], "Evicted");
    it.script.set_available(500 * MI);
    let over = Instant::now();
    let mut pressure = it.pressure.clone();
    pressure.wait_for(|pressure| !pressure.memory).await.unwrap();
    let lasted = over.elapsed();
    assert!((298..=300).contains(&lasted.as_secs()), "{lasted:?}");
    it.node.api.put_pod(pod("q", json!({}), json!({})));
    it.node.phase(10, "q", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn eviction_of_a_pod_that_does_not_end_is_followed_by_the_next() {
    let it = Evicting::start(&[memory(0)], |_| ()).await;
    it.run("stuck", 10 * MI, 200 * MI, json!({})).await;
    it.run("next", 10 * MI, 100 * MI, json!({})).await;
    it.script.set_available(50 * MI);
    for _ in 0..100 {
        it.node.runtime.inject("StopContainer", Fault::Hangs);
    }
    let events = || it.node.api.objects().events.clone();
    let evictions = |events: &[(String, String)]| {
        events.iter().filter(|(reason, _)| reason == "Evicted").count()
    };
    it.node.within(12, "the first", |node| node.api.event("Evicted").is_some()).await;
    let first = Instant::now();
    it.node.within(60, "the second", |node| evictions(&node.api.objects().events) == 2).await;
    // The grace period, and what a pod may take to release its resources.
    let between = first.elapsed();
    assert!((30..=36).contains(&between.as_secs()), "{between:?}");
    it.node.runtime.end_faults();
    it.node.running(60, &[]).await;
    assert_eq!(evictions(&events()), 2, "none is evicted twice");
}

#[tokio::test(start_paused = true)]
async fn eviction_by_a_hard_threshold_shortens_a_soft_eviction() {
    let thresholds = [memory(0), threshold(Signal::Memory, 300 * MI, 30)];
    let it = Evicting::start(&thresholds, |_| ()).await;
    it.run("p", 10 * MI, 200 * MI, json!({"terminationGracePeriodSeconds": 600})).await;
    it.ignores_stop_signals("p");
    it.script.set_available(200 * MI);
    it.node.within(60, "it is stopped", |node| node.runtime.count("StopContainer", "p") == 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(it.running(), ["p"], "it has its own grace period");
    it.script.set_available(50 * MI);
    it.node.running(12, &[]).await;
    assert_eq!(it.node.runtime.count("StopContainer", "p"), 2);
    assert_eq!(it.node.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn eviction_reclaims_from_the_node_first() {
    let disk = threshold(Signal::NodeFs, 10_000 * MI, 0);
    for (garbage, is_enough) in [([5_000, 5_000, 80_000], true), ([0, 100, 88_000], false)] {
        let it = Evicting::start(&[disk], |_| ()).await;
        it.run("p", 10 * MI, 10 * MI, json!({})).await;
        it.script.usage().layers.insert("p".to_owned(), 5_000 * MI);
        it.script.usage().garbage = garbage.map(|mebibytes| mebibytes * MI);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(it.script.usage().garbage[1], 0);
        assert_eq!(it.is_evicted("p"), !is_enough, "{garbage:?}");
        assert!(!it.pressure.borrow().disk);
        let message = it.node.api.event("EvictionThresholdMet");
        assert_eq!(message.as_deref(), Some("Attempting to reclaim ephemeral-storage"));
    }
}

#[tokio::test(start_paused = true)]
async fn eviction_spares_critical_pods_and_retries() {
    let it = Evicting::start(&[memory(0)], |_| ()).await;
    it.run("critical", 10 * MI, 200 * MI, json!({"priority": 2_000_001_000})).await;
    it.script.set_available(50 * MI);
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert_eq!(it.running(), ["critical"]);
    // Every ten seconds, though signals are sampled each second under pressure.
    assert!((5..=7).contains(&it.attempts()), "{}", it.attempts());
    it.run("other", 10 * MI, 20 * MI, json!({})).await;
    it.evicted(12, "other").await;
    assert_eq!(it.running(), ["critical"]);
}

#[tokio::test(start_paused = true)]
async fn eviction_signals_that_hang_delay_no_other_and_evict_nothing() {
    let thresholds = [memory(0), threshold(Signal::NodeFs, 10_000 * MI, 0)];
    let it = Evicting::start(&thresholds, |_| ()).await;
    it.run("p", 10 * MI, 200 * MI, json!({})).await;
    it.script.set_available(500 * MI);
    it.script.usage().machine_hangs = true;
    it.script.set_available(10 * MI);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(it.running(), ["p"], "the last observation is kept");
    assert_eq!(*it.pressure.borrow(), NodePressure::default());
    it.script.usage().garbage = [0, 0, 95_000 * MI];
    it.node.within(12, "the other signal", |_| it.pressure.borrow().disk).await;
    it.evicted(10, "p").await;
}

#[tokio::test(start_paused = true)]
async fn eviction_samples_upon_a_notification_of_the_kernel() {
    let it = Evicting::start(&[memory(0)], |_| ()).await;
    it.run("p", 10 * MI, 10 * MI, json!({})).await;
    // So much is available that signals are sampled seldom.
    it.script.usage().pods.insert("p".to_owned(), 0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = it.script.usage().samples;
    it.notify.notify_one();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(it.script.usage().samples, before + 1);
    it.script.set_available(50 * MI);
    it.notify.notify_one();
    let took = it.evicted(5, "p").await;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn eviction_sampling_is_more_frequent_under_pressure() {
    let it = Evicting::start(&[memory(60)], |_| ()).await;
    it.script.set_available(MEMORY);
    let samples = async |seconds| {
        let before = it.script.usage().samples;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        it.script.usage().samples - before
    };
    tokio::time::sleep(Duration::from_secs(20)).await;
    // 900 MiB may be used within a quarter of a second.
    let relaxed = samples(20).await;
    it.script.set_available(50 * MI);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pressed = samples(20).await;
    assert!((85..=95).contains(&relaxed), "{relaxed}");
    assert!((19..=21).contains(&pressed), "{pressed}");
}

#[tokio::test(start_paused = true)]
async fn eviction_by_limits_of_ephemeral_storage() {
    let it = Evicting::start(&[], |_| ()).await;
    it.script.usage().pods.insert("p".to_owned(), MI);
    let limits = json!({"limits": {"ephemeral-storage": "10Mi"}});
    it.node.api.put_pod(pod("p", json!({}), json!({"name": "p", "resources": limits})));
    it.node.phase(10, "p", "Running").await;
    it.script.usage().layers.insert("p".to_owned(), 10 * MI);
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(it.running(), ["p"]);
    it.script.usage().layers.insert("p".to_owned(), 11 * MI);
    it.evicted(12, "p").await;
    let message = it.node.api.status("p")["message"].clone();
    assert!(message.as_str().unwrap().contains("10Mi"), "{message}");
}

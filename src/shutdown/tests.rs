#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;

use futures::stream::BoxStream;
use longshore_testkit::scripted::Behaviour;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::testing::{Node, pod};

/// An announcer of the test.
struct Scripted {
    delays: Mutex<VecDeque<u64>>,
    set: Mutex<Vec<Duration>>,
    locks: Arc<()>,
    announced: Mutex<Option<mpsc::UnboundedReceiver<bool>>>,
}

impl Scripted {
    fn new(delays: &[u64]) -> (Arc<Self>, mpsc::UnboundedSender<bool>) {
        let (announce, announced) = mpsc::unbounded_channel();
        let scripted = Self {
            delays: Mutex::new(delays.iter().copied().collect()),
            set: Mutex::default(),
            locks: Arc::default(),
            announced: Mutex::new(Some(announced)),
        };
        (Arc::new(scripted), announce)
    }

    /// Locks that are held.
    fn locks(&self) -> usize {
        Arc::strong_count(&self.locks) - 1
    }
}

impl Announcer for Scripted {
    type Lock = Arc<()>;

    async fn delay(&self) -> Result<Duration, logind::Error> {
        let mut delays = self.delays.lock();
        let delay = if delays.len() > 1 { delays.pop_front() } else { delays.front().copied() };
        Ok(Duration::from_secs(delay.unwrap()))
    }

    async fn set_delay(&self, delay: Duration) -> Result<(), logind::Error> {
        self.set.lock().push(delay);
        Ok(())
    }

    async fn lock(&self) -> Result<Arc<()>, logind::Error> {
        Ok(self.locks.clone())
    }

    async fn announcements(&self) -> Result<BoxStream<'static, bool>, logind::Error> {
        let announced = self.announced.lock().take().unwrap();
        let values = futures::stream::unfold(announced, |mut announced| async {
            announced.recv().await.map(|value| (value, announced))
        });
        Ok(values.boxed())
    }
}

const REGULAR: Level = Level { priority: 0, seconds: 20 };
const CRITICAL: Level = Level { priority: 2_000_000_000, seconds: 10 };

fn shutdown(node: &Node) -> (Shutdown, Registry) {
    let (daemon, registry) = (node.daemon(), Registry::default());
    let parts = Parts {
        desired: daemon.desired.clone(),
        observer: daemon.context.observer.clone(),
        status: daemon.context.status.clone(),
        terminator: daemon.terminator.clone(),
        recorder: daemon.recorder.clone(),
        shutting_down: daemon.shutting_down.clone(),
        metrics: Metrics::new(&registry),
    };
    (Shutdown::new(&node.config(), vec![REGULAR, CRITICAL], parts), registry)
}

fn metric(registry: &Registry, name: &str) -> f64 {
    let page = registry.text();
    let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(-1.0)
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_pods_by_priority_and_delays_the_machine_until_then() {
    let node = Node::start().await;
    let make = |name: &str, priority: i32, grace: i64| {
        let mut made = pod(name, json!({"priority": priority}), json!({"name": name}));
        made["spec"]["terminationGracePeriodSeconds"] = json!(grace);
        made
    };
    let pods = [
        ("long", 0, 120),
        ("short", 0, 5),
        ("critical-long", CRITICAL.priority, 120),
        ("critical-short", CRITICAL.priority, 5),
    ];
    for (name, priority, grace) in pods {
        let behaviour = Behaviour { stops_in: Duration::from_secs(1000), exits: None };
        node.runtime.set_behaviour(name, behaviour);
        node.api.put_pod(make(name, priority, grace));
    }
    node.running(20, &["critical-long", "critical-short", "long", "short"]).await;

    let (logind, announce) = Scripted::new(&[5, 5, 30]);
    let (mut shutdown, registry) = shutdown(&node);
    let watched = {
        let logind = logind.clone();
        tokio::spawn(async move { shutdown.watch(&*logind).await })
    };
    node.within(5, "a lock is held", |_| logind.locks() == 1).await;
    assert_eq!(*logind.set.lock(), [Duration::from_secs(30)], "its delay was too short");

    let began = Instant::now();
    announce.send(true).unwrap();
    node.within(2, "the node takes no pods", |node| *node.daemon().shutting_down.borrow()).await;
    node.api.put_pod(make("late", 0, 5));
    node.phase(5, "late", "Failed").await;
    let status = node.api.status("late");
    assert_eq!(status["reason"], "NodeShutdown");
    assert_eq!(
        status["message"],
        "Pod was rejected: Pod was rejected as the node is shutting down."
    );
    let ends: Vec<u64> = {
        let mut ends = Vec::new();
        for (name, ..) in [pods[1], pods[0], pods[3], pods[2]] {
            node.phase(60, name, "Failed").await;
            ends.push(began.elapsed().as_secs());
            let status = node.api.status(name);
            assert_eq!(status["reason"], "Terminated");
            let message = "Pod was terminated in response to imminent node shutdown.";
            assert_eq!(status["message"], message);
            let conditions = status["conditions"].as_array().unwrap();
            let disrupted =
                conditions.iter().find(|one| one["type"] == "DisruptionTarget").unwrap();
            assert_eq!(disrupted["reason"], "TerminationByKubelet");
            assert_eq!(disrupted["message"], message);
        }
        ends
    };
    assert_eq!(ends, [5, 20, 25, 30], "critical pods after the others");
    node.within(3, "the lock is released", |_| logind.locks() == 0).await;
    let times = std::fs::read(node.config().root_dir.join(STATE_FILE)).unwrap();
    let times: Times = serde_json::from_slice(&times).unwrap();
    assert!(times.start_time < times.end_time, "{times:?}");
    let gauges = [
        "kubelet_graceful_shutdown_start_time_seconds",
        "kubelet_graceful_shutdown_end_time_seconds",
    ];
    let [start, end] = gauges.map(|name| metric(&registry, name));
    assert!(start > 1e9 && end >= start, "{start} {end}");

    announce.send(false).unwrap();
    node.within(5, "a new lock is held", |_| logind.locks() == 1).await;
    assert!(!*node.daemon().shutting_down.borrow());
    node.api.put_pod(make("after", 0, 5));
    node.phase(5, "after", "Running").await;
    drop(announce);
    assert!(matches!(watched.await, Ok(Err(Error::Ended))));
    assert_eq!(node.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn shutdown_needs_a_logind_that_waits_for_long_enough() {
    let node = Node::start().await;
    let (logind, _announce) = Scripted::new(&[5, 5]);
    let (mut shutdown, _) = shutdown(&node);
    let error = shutdown.watch(&*logind).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "node shutdown manager was timed out after 5 attempts waiting for logind \
         InhibitDelayMaxSec to update to 30s (ShutdownGracePeriod), current value is 5s"
    );
    assert_eq!(logind.locks(), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_times_are_shown_after_a_restart() {
    let node = Node::start().await;
    let file = node.config().root_dir.join(STATE_FILE);
    let text = |end: &str| format!(r#"{{"startTime":"2026-01-01T00:00:00Z","endTime":"{end}"}}"#);
    let start = 1_767_225_600.0;
    for (content, expected) in [
        (text("2026-01-01T00:00:20.5Z"), [start, start + 20.0]),
        (text(NEVER), [start, 0.0]),
        ("{".to_owned(), [0.0, 0.0]),
        (format!(r#"{{"startTime":"{NEVER}","endTime":"{NEVER}"}}"#), [0.0, 0.0]),
    ] {
        std::fs::write(&file, &content).unwrap();
        let (mut shutdown, registry) = shutdown(&node);
        shutdown.restore_metrics().await;
        let gauges = [
            "kubelet_graceful_shutdown_start_time_seconds",
            "kubelet_graceful_shutdown_end_time_seconds",
        ];
        assert_eq!(gauges.map(|name| metric(&registry, name)), expected, "{content}");
    }
}

//! The driver with an API that is not there, under a paused clock.
#![allow(clippy::unwrap_used)]

use longshore_metrics::Registry;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::metrics::Metrics;
use crate::scheduler::Settings;
use crate::testing::{node, pod, profile};

/// Answers bindings after a while, and keeps what was asked.
struct Api {
    seen: Mutex<Vec<String>>,
    changes: mpsc::UnboundedSender<Change>,
    /// How many bindings fail before they succeed.
    failures: Mutex<u32>,
}

impl Executor for Api {
    async fn carry_out(&self, action: Action) -> Option<Outcome> {
        let saw = |line: String| {
            self.seen.lock().push(line);
        };
        match action {
            Action::Bind { pod, node } => {
                saw(format!("bind {} to {node}", pod.name));
                tokio::time::sleep(Duration::from_millis(50)).await;
                let mut failures = self.failures.lock();
                if *failures > 0 {
                    *failures -= 1;
                    assert!(*failures != 1, "a panic of an action");
                    return Some(Outcome::Failed(pod.uid.clone(), "refused".to_owned()));
                }
                let bound = Arc::new(pod.on(&node));
                self.changes.send(Change::Pod(pod.uid.clone(), Some(bound))).unwrap();
                Some(Outcome::Bound(pod.uid.clone()))
            }
            Action::Report { pod, message, .. } => {
                saw(format!("report {}: {message}", pod.name));
                None
            }
            Action::Preempt { pod, victims, .. } => {
                for victim in victims {
                    saw(format!("preempt {}", victim.name));
                    self.changes.send(Change::Pod(victim.uid.clone(), None)).unwrap();
                }
                Some(Outcome::Preempted(pod.uid.clone(), true))
            }
            Action::PreBind { .. }
            | Action::Unreserve { .. }
            | Action::Deallocate { .. }
            | Action::DeleteClaim { .. } => None,
        }
    }
}

async fn run_until(changes: Vec<Change>, failures: u32, seconds: u64) -> Vec<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let api = Arc::new(Api {
        seen: Mutex::default(),
        changes: sender.clone(),
        failures: Mutex::new(failures),
    });
    for change in changes {
        sender.send(change).unwrap();
    }
    let metrics = Metrics::new(&Registry::default());
    let scheduler = Scheduler::new(vec![profile()], Settings::default(), metrics);
    let task = tokio::spawn(run(scheduler, receiver, api.clone(), Extenders::default()));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    task.abort();
    let seen = api.seen.lock();
    seen.clone()
}

fn add_pod(pod: Arc<crate::model::Pod>) -> Change {
    Change::Pod(pod.uid.clone(), Some(pod))
}

fn add_node(node: Arc<crate::model::Node>) -> Change {
    Change::Node(node.name.clone(), Some(node))
}

#[tokio::test(start_paused = true)]
async fn driver_binds_more_pods_than_may_be_under_way() {
    let mut changes: Vec<_> =
        (0..100).map(|number| add_node(node(&format!("n{number}"), 10, json!({})))).collect();
    changes.extend((0..600).map(|number| add_pod(pod(&format!("p{number}"), "1", json!({})))));
    let seen = run_until(changes, 0, 5).await;
    assert_eq!(seen.len(), 600, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn driver_tries_again_after_failures_and_panics() {
    let changes = vec![add_node(node("n", 1, json!({}))), add_pod(pod("p", "1", json!({})))];
    let seen = run_until(changes, 3, 60).await;
    let binds = seen.iter().filter(|line| line.starts_with("bind")).count();
    assert_eq!(binds, 4, "{seen:?}");
    assert!(seen.contains(&"report p: refused".to_owned()), "{seen:?}");
    assert!(seen.contains(&"report p: the scheduler failed".to_owned()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn driver_preempts_and_binds() {
    let changes = vec![
        add_node(node("n", 1, json!({}))),
        add_pod(pod("low", "1", json!({"spec": {"nodeName": "n"}}))),
        add_pod(pod("high", "1", json!({"spec": {"priority": 1}}))),
    ];
    let seen = run_until(changes, 0, 5).await;
    assert_eq!(
        seen,
        [
            "report high: 0/1 nodes are available: 1 Insufficient cpu.",
            "preempt low",
            "bind high to n",
        ]
    );
}

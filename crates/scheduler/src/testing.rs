//! Objects for tests, from JSON as the API has it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use longshore_metrics::Registry;
use serde_json::{Value, json};

use crate::config::{Configuration, default_profiles};
use crate::framework::Profile;
use crate::metrics::Metrics;
use crate::model::{Atom, Node, Pod};
use crate::plugins;
use crate::scheduler::{Action, Change, Outcome, Scheduler, Settings};

pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A pod with a container that requests a CPU amount, changed by `more`.
pub(crate) fn api_pod(name: &str, cpu: &str, more: Value) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [
            {"name": "c", "image": "image", "resources": {"requests": {"cpu": cpu}}},
        ]},
    });
    merge(&mut pod, more);
    serde_json::from_value(pod).unwrap()
}

pub(crate) fn pod(name: &str, cpu: &str, more: Value) -> Arc<Pod> {
    Arc::new(Pod::new(&api_pod(name, cpu, more)).unwrap())
}

/// A node with that many CPUs and 10 GiB, changed by `more`.
pub(crate) fn node(name: &str, cpus: u32, more: Value) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpus.to_string(), "memory": "10Gi", "pods": "110"}},
    });
    merge(&mut node, more);
    Arc::new(Node::new(&serde_json::from_value(node).unwrap()))
}

/// The default profile.
pub(crate) fn profile() -> Profile {
    let registry = plugins::Registry::default();
    default_profiles(&registry).unwrap().remove(0)
}

/// The profile of a configuration.
pub(crate) fn profile_of(config: Value) -> Profile {
    let config = Configuration::parse(&config.to_string()).unwrap();
    config.profiles(&plugins::Registry::default()).unwrap().remove(0)
}

/// A scheduler with an API that takes everything.
pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Duration,
    pub(crate) registry: Registry,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(profile())
    }

    pub(crate) fn with(profile: Profile) -> Self {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        let scheduler = Scheduler::new(vec![profile], Settings::default(), metrics);
        Self { scheduler, now: Duration::from_secs(1), registry }
    }

    pub(crate) fn apply(&mut self, change: Change) {
        self.scheduler.apply(change, self.now);
    }

    pub(crate) fn add_node(&mut self, node: Arc<Node>) {
        self.apply(Change::Node(node.name.clone(), Some(node)));
    }

    pub(crate) fn add_pod(&mut self, pod: Arc<Pod>) {
        self.apply(Change::Pod(pod.uid.clone(), Some(pod)));
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) {
        self.apply(Change::Pod(uid.into(), None));
    }

    /// One attempt, if a pod is to be tried.
    pub(crate) fn attempt(&mut self) -> Vec<Action> {
        self.scheduler.tick(self.now);
        if let Some(mut attempt) = self.scheduler.begin(self.now) {
            let candidates = self.scheduler.candidates(&mut attempt);
            self.scheduler.finish(attempt, candidates, None, self.now);
        }
        self.scheduler.take_actions()
    }

    /// All attempts; pods are bound, and appear so.
    pub(crate) fn settle(&mut self) -> Vec<Action> {
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let actions = self.attempt();
            if actions.is_empty() {
                return all;
            }
            for action in &actions {
                if let Action::Bind { pod, node } = action {
                    self.scheduler.outcome(Outcome::Bound(pod.uid.clone()), self.now);
                    self.add_pod(Arc::new(pod.on(node)));
                }
            }
            all.extend(actions);
        }
        all
    }
}

/// Pods and nodes that were bound by these actions.
pub(crate) fn bound(actions: &[Action]) -> Vec<(String, String)> {
    let bound = |action: &Action| match action {
        Action::Bind { pod, node } => Some((pod.name.to_string(), node.to_string())),
        _ => None,
    };
    actions.iter().filter_map(bound).collect()
}

/// Messages of pods that could not be scheduled.
pub(crate) fn messages(actions: &[Action]) -> Vec<String> {
    let message = |action: &Action| match action {
        Action::Report { message, .. } => Some(message.clone()),
        _ => None,
    };
    actions.iter().filter_map(message).collect()
}

pub(crate) fn atom(text: &str) -> Atom {
    Atom::new(text)
}

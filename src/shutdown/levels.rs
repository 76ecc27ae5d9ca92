//! Which pods end when, and how long they may take. Pure.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_config::Config;
use longshore_pod::spec;

/// The priority from which pods are critical.
const CRITICAL: i32 = 2_000_000_000;

/// A level of priorities, whose pods end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// The lowest priority.
    pub(super) priority: i32,
    /// How long its pods may take, in seconds.
    pub(super) seconds: i64,
}

/// The levels of the config, lowest first; empty if the node does not wait for its pods.
pub(super) fn levels(config: &Config) -> Vec<Level> {
    let (kubelet, gates) = (&config.kubelet, &config.gates);
    if !gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    let configured = kubelet.shutdown_grace_period_by_pod_priority.iter();
    let mut levels: Vec<Level> = configured
        .filter(|_| gates.enabled("GracefulNodeShutdownBasedOnPodPriority"))
        .map(|level| Level {
            priority: level.priority,
            seconds: level.shutdown_grace_period_seconds,
        })
        .collect();
    if levels.is_empty() {
        let seconds = |period: Duration| i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
        let whole = seconds(kubelet.shutdown_grace_period.get());
        let critical = seconds(kubelet.shutdown_grace_period_critical_pods.get());
        if whole > 0 && critical <= whole {
            let regular = Level { priority: 0, seconds: whole.saturating_sub(critical) };
            levels = vec![regular, Level { priority: CRITICAL, seconds: critical }];
        }
    }
    levels.sort_by_key(|level| level.priority);
    levels
}

/// How long all levels may take together.
pub(super) fn total(levels: &[Level]) -> Duration {
    let seconds = levels.iter().map(|level| level.seconds);
    time::seconds(seconds.fold(0, i64::saturating_add))
}

/// The pods of each level, in its order.
pub(super) fn by_level(levels: &[Level], pods: Vec<Arc<Pod>>) -> Vec<(Level, Vec<Arc<Pod>>)> {
    let mut groups: Vec<(Level, Vec<Arc<Pod>>)> =
        levels.iter().map(|level| (*level, Vec::new())).collect();
    for pod in pods {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        // The last level that does not begin above it; the first one for all below it.
        let index = levels.iter().rposition(|level| level.priority <= priority).unwrap_or(0);
        if let Some((_, group)) = groups.get_mut(index) {
            group.push(pod);
        }
    }
    groups
}

/// The grace period of a pod in its level: its own, if that is shorter.
pub(super) fn grace(pod: &Pod, level: Level) -> Duration {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    time::seconds(own.map_or(level.seconds, |own| own.min(level.seconds)))
}

/// For messages.
pub(super) fn names(pods: &[Arc<Pod>]) -> String {
    pods.iter().map(|pod| spec::describe(pod)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn level(priority: i32, seconds: i64) -> Level {
        Level { priority, seconds }
    }

    fn config(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        std::fs::write(&file, format!("{head}failCgroupV1: false\n{text}")).unwrap();
        let args = ["kubelet".to_owned(), format!("--config={}", file.display())];
        match longshore_config::from_args(args) {
            Ok(longshore_config::Command::Kubelet(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shutdown_levels_of_the_config() {
        let regular_and_critical = vec![level(0, 20), level(CRITICAL, 10)];
        for (text, expected) in [
            ("", vec![]),
            (
                "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
                regular_and_critical,
            ),
            ("shutdownGracePeriod: 30s", vec![level(0, 30), level(CRITICAL, 0)]),
            (
                "shutdownGracePeriodByPodPriority:\n\
                 - {priority: 100, shutdownGracePeriodSeconds: 7}\n\
                 - {priority: -5, shutdownGracePeriodSeconds: 9}",
                vec![level(-5, 9), level(100, 7)],
            ),
        ] {
            assert_eq!(levels(&config(text)), expected, "{text}");
        }
        assert_eq!(total(&[level(-5, 9), level(100, 7)]), Duration::from_secs(16));
        assert_eq!(total(&[]), Duration::ZERO);
    }

    #[test]
    fn shutdown_level_of_a_pod() {
        let levels = [level(0, 20), level(1000, 15), level(CRITICAL, 10)];
        let pod = |spec: Value| -> Arc<Pod> {
            Arc::new(serde_json::from_value(json!({"spec": spec})).unwrap())
        };
        for (priority, expected) in [
            (json!(null), 0),
            (json!(-7), 0),
            (json!(0), 0),
            (json!(999), 0),
            (json!(1000), 1),
            (json!(1001), 1),
            (json!(CRITICAL), 2),
            (json!(i32::MAX), 2),
        ] {
            let pods = vec![pod(json!({"containers": [], "priority": priority}))];
            let groups = by_level(&levels, pods);
            let found = groups.iter().position(|(_, pods)| !pods.is_empty());
            assert_eq!(found, Some(expected), "{priority}");
        }
        for (own, expected) in [(json!(null), 20), (json!(5), 5), (json!(120), 20), (json!(0), 0)] {
            let pod = pod(json!({"containers": [], "terminationGracePeriodSeconds": own}));
            assert_eq!(grace(&pod, levels[0]).as_secs(), expected, "{own}");
        }
    }
}

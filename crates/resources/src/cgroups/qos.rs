//! Limits of the QoS level cgroups, from their pods. Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::qos::{self, QosClass, milli_of, units_of};
use longshore_pod::{resources, spec};

use super::limits::{LEAST_SHARES, Limits, Max, shares};
use super::{Policy, Protection};
use crate::hugepages;

/// No limit of huge pages: pods have their own.
const UNBOUNDED: u64 = 1 << 62;

/// The limits of the levels.
pub(super) type Levels = HashMap<QosClass, Limits>;

/// The initial limits of a level.
pub(super) fn initial(class: QosClass) -> Limits {
    let shares = (class == QosClass::BestEffort).then_some(LEAST_SHARES);
    let hugepages = match class {
        // Limited by Node Allocatable.
        QosClass::Guaranteed => Vec::new(),
        _ => hugepages::SIZES.iter().map(|size| (*size, UNBOUNDED)).collect(),
    };
    Limits { shares, hugepages, ..Limits::default() }
}

/// A pod's contribution to its level.
#[derive(Debug)]
struct Part {
    class: QosClass,
    milli_cpu: i128,
    /// Requested bytes.
    memory: u64,
}

/// The pods of all levels, by UID.
#[derive(Debug, Default)]
pub(super) struct Pods(HashMap<String, Part>);

impl Pods {
    /// Adds or updates a pod.
    pub(super) fn insert(&mut self, pod: &Pod) {
        let requests = pod.spec.as_ref().map(resources::requests);
        let part = Part {
            class: qos::class(pod),
            milli_cpu: milli_of(requests.as_ref(), "cpu"),
            memory: u64::try_from(units_of(requests.as_ref(), "memory")).unwrap_or(0),
        };
        self.0.insert(spec::uid(pod).to_owned(), part);
    }

    pub(super) fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// The limits of all levels.
    pub(super) fn levels(&self, policy: &Policy) -> Vec<(QosClass, Limits)> {
        let of = |class| self.0.values().filter(move |part| part.class == class);
        let memory = |class| of(class).fold(0u64, |sum, part| sum.saturating_add(part.memory));
        let cpu: i128 = of(QosClass::Burstable).map(|part| part.milli_cpu).sum();
        let (guaranteed, burstable) = (memory(QosClass::Guaranteed), memory(QosClass::Burstable));
        let protected = policy.protection.map(|protection| match protection {
            Protection::None => (0, 0),
            // Protection of a child must be covered by its parents.
            Protection::Tiered => (guaranteed.saturating_add(burstable), burstable),
        });
        let kept = policy.memory_reserve.map(|reserve| {
            let part = |requests: u64| requests.saturating_mul(reserve.percent) / 100;
            let to_burstable = reserve.allocatable.saturating_sub(part(guaranteed));
            (to_burstable, to_burstable.saturating_sub(part(burstable)))
        });
        let none = Limits::default;
        vec![
            (QosClass::Guaranteed, Limits { memory_min: protected.map(|(min, _)| min), ..none() }),
            (
                QosClass::Burstable,
                Limits {
                    shares: Some(shares(cpu)),
                    memory: kept.map(|(limit, _)| Max::At(limit)),
                    memory_low: protected.map(|(_, low)| low),
                    ..none()
                },
            ),
            (
                QosClass::BestEffort,
                Limits {
                    shares: Some(LEAST_SHARES),
                    memory: kept.map(|(_, limit)| Max::At(limit)),
                    ..none()
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::MemoryReserve;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pod(uid: &str, requests: Value, limits: Value) -> Pod {
        let container = json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let pod = json!({"metadata": {"uid": uid}, "spec": {"containers": [container]}});
        serde_json::from_value(pod).unwrap()
    }

    fn some() -> Pods {
        let both = json!({"cpu": "1", "memory": "100Mi"});
        let mut pods = Pods::default();
        pods.insert(&pod("a", both.clone(), both));
        pods.insert(&pod("b", json!({"cpu": "500m", "memory": "50Mi"}), json!({})));
        pods.insert(&pod("c", json!({"cpu": "1500m"}), json!({})));
        pods.insert(&pod("d", json!({}), json!({})));
        pods
    }

    fn levels(pods: &Pods, policy: &Policy) -> [Limits; 3] {
        let levels = pods.levels(policy);
        let classes: Vec<_> = levels.iter().map(|(class, _)| *class).collect();
        assert_eq!(classes, [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]);
        levels.into_iter().map(|(_, limits)| limits).collect::<Vec<_>>().try_into().unwrap()
    }

    fn policy() -> Policy {
        Policy {
            per_qos: true,
            cfs_quota_period: None,
            pod_pids: None,
            protection: None,
            memory_reserve: None,
            exclusive_cpus: false,
        }
    }

    #[test]
    fn qos_burstable_cpu_shares() {
        let mut pods = some();
        let [guaranteed, burstable, best_effort] = levels(&pods, &policy());
        assert_eq!(guaranteed, Limits::default());
        assert_eq!(burstable, Limits { shares: Some(2048), ..Limits::default() });
        assert_eq!(best_effort, Limits { shares: Some(2), ..Limits::default() });
        pods.remove("c");
        assert_eq!(levels(&pods, &policy())[1].shares, Some(512));
        // Updated, after a resize.
        pods.insert(&pod("b", json!({"cpu": "1"}), json!({})));
        assert_eq!(levels(&pods, &policy())[1].shares, Some(1024));
        pods.remove("b");
        assert_eq!(levels(&pods, &policy())[1].shares, Some(2));
    }

    #[test]
    fn qos_memory_requests_are_protected() {
        let tiered = Policy { protection: Some(Protection::Tiered), ..policy() };
        let [guaranteed, burstable, _] = levels(&some(), &tiered);
        assert_eq!((guaranteed.memory_min, guaranteed.memory_low), (Some(150 * MIB), None));
        assert_eq!((burstable.memory_min, burstable.memory_low), (None, Some(50 * MIB)));
        let none = Policy { protection: Some(Protection::None), ..policy() };
        let [guaranteed, burstable, _] = levels(&some(), &none);
        assert_eq!((guaranteed.memory_min, burstable.memory_low), (Some(0), Some(0)));
    }

    #[test]
    fn qos_reserved_memory() {
        for (percent, allocatable, burstable, best_effort) in
            [(100, 1000, 900, 850), (50, 1000, 950, 925), (0, 1000, 1000, 1000), (100, 120, 20, 0)]
        {
            let reserve = MemoryReserve { percent, allocatable: allocatable * MIB };
            let kept = levels(&some(), &Policy { memory_reserve: Some(reserve), ..policy() });
            let expected = [None, Some(burstable), Some(best_effort)];
            let expected = expected.map(|mib| mib.map(|mib| Max::At(mib * MIB)));
            assert_eq!(kept.map(|limits| limits.memory), expected, "{percent} % of {allocatable}");
        }
    }
}

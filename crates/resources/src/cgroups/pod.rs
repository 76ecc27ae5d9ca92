//! Limits of a pod's cgroup. Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::qos::{self, QosClass, milli_of, units_of};
use longshore_pod::resources;

use super::limits::{CpuMax, LEAST_SHARES, Limits, Max, shares};
use super::{Policy, Protection};
use crate::hugepages;

const DEFAULT_PERIOD: Duration = Duration::from_millis(100);

/// The limits of the pod, including its overhead.
pub(super) fn limits(pod: &Pod, policy: &Policy) -> Limits {
    let class = qos::class(pod);
    let pids = policy.pod_pids.map(Max::At);
    let Some(pod_spec) = pod.spec.as_ref() else {
        return Limits { shares: Some(LEAST_SHARES), pids, ..Limits::default() };
    };
    let requests = resources::requests(pod_spec);
    let pages = hugepages::SIZES.iter();
    let pages = pages.map(|size| (*size, hugepages::amount(&requests, *size).unwrap_or(0)));
    let base = Limits {
        shares: Some(LEAST_SHARES),
        pids,
        hugepages: pages.collect(),
        ..Limits::default()
    };
    if class == QosClass::BestEffort {
        return base;
    }
    let limits = resources::limits(pod_spec);
    let limit = |resource: &str, amount: i128| match resources::is_limited(pod_spec, resource) {
        true => amount.max(0),
        false => 0,
    };
    let cpu = limit("cpu", milli_of(Some(&limits), "cpu"));
    let memory = limit("memory", units_of(Some(&limits), "memory").into());
    let requested = u64::try_from(units_of(Some(&requests), "memory")).unwrap_or(0);
    let protected =
        Some(requested).filter(|_| policy.protection == Some(Protection::Tiered) && requested > 0);
    let is_guaranteed = class == QosClass::Guaranteed;
    Limits {
        shares: Some(shares(milli_of(Some(&requests), "cpu"))),
        cpu: Some(match policy.cfs_quota_period {
            Some(period) => CpuMax::new(cpu, period),
            None => CpuMax::new(0, DEFAULT_PERIOD),
        }),
        memory: Some(match u64::try_from(memory) {
            Ok(limit) if limit > 0 => Max::At(limit),
            _ => Max::Unlimited,
        }),
        memory_min: protected.filter(|_| is_guaranteed),
        memory_low: protected.filter(|_| !is_guaranteed),
        ..base
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn policy() -> Policy {
        Policy {
            per_qos: true,
            cfs_quota_period: Some(DEFAULT_PERIOD),
            pod_pids: None,
            protection: None,
            memory_reserve: None,
            exclusive_cpus: false,
        }
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn of(spec: Value, policy: &Policy) -> Limits {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        Limits { hugepages: vec![], ..limits(&pod, policy) }
    }

    fn cpu(quota: Option<u64>) -> Option<CpuMax> {
        Some(CpuMax { quota, period: 100_000 })
    }

    #[test]
    fn pod_cgroup_sums_container_resources() {
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let guaranteed = of(json!({"containers": [container(both.clone(), both)]}), &policy());
        let expected = Limits {
            shares: Some(512),
            cpu: cpu(Some(50_000)),
            memory: Some(Max::At(64 * MIB)),
            ..Limits::default()
        };
        assert_eq!(guaranteed, expected);

        let some = json!({"containers": [
            container(json!({"cpu": "100m", "memory": "10Mi"}), json!({"cpu": "1", "memory": "20Mi"})),
            container(json!({"cpu": "200m"}), json!({"cpu": "1"})),
        ]});
        let expected = Limits {
            shares: Some(307),
            cpu: cpu(Some(200_000)),
            memory: Some(Max::Unlimited),
            ..Limits::default()
        };
        assert_eq!(of(some.clone(), &policy()), expected);

        let nothing = of(json!({"containers": [{"name": "c"}]}), &policy());
        assert_eq!(nothing, Limits { shares: Some(2), ..Limits::default() });

        let unquoted = Policy { cfs_quota_period: None, ..policy() };
        assert_eq!(of(some, &unquoted).cpu, cpu(None));
    }

    #[test]
    fn pod_cgroup_overhead_and_pod_level_resources() {
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let with_overhead = of(
            json!({
                "overhead": {"cpu": "250m", "memory": "32Mi"},
                "containers": [container(both.clone(), both)],
            }),
            &policy(),
        );
        assert_eq!(with_overhead.shares, Some(768));
        assert_eq!(with_overhead.cpu, cpu(Some(75_000)));
        assert_eq!(with_overhead.memory, Some(Max::At(96 * MIB)));

        let own = of(
            json!({
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "128Mi", "cpu": "2"}},
                "containers": [container(json!({"cpu": "100m"}), json!({})), {"name": "d"}],
            }),
            &policy(),
        );
        assert_eq!(own.shares, Some(1024));
        assert_eq!(own.cpu, cpu(Some(200_000)));
        assert_eq!(own.memory, Some(Max::At(128 * MIB)));
    }

    #[test]
    fn pod_cgroup_pids_and_memory_policy() {
        let policy =
            Policy { pod_pids: Some(100), protection: Some(Protection::Tiered), ..policy() };
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let guaranteed = of(json!({"containers": [container(both.clone(), both)]}), &policy);
        assert_eq!(guaranteed.pids, Some(Max::At(100)));
        assert_eq!((guaranteed.memory_min, guaranteed.memory_low), (Some(64 * MIB), None));
        let burstable =
            of(json!({"containers": [container(json!({"memory": "8Mi"}), json!({}))]}), &policy);
        assert_eq!((burstable.memory_min, burstable.memory_low), (None, Some(8 * MIB)));
        let best_effort = of(json!({"containers": [{"name": "c"}]}), &policy);
        assert_eq!(best_effort.pids, Some(Max::At(100)));
        assert_eq!((best_effort.memory_min, best_effort.memory_low), (None, None));
    }
}

//! PURE: what of a quota is used.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuotaSpec, ResourceRequirements, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use longshore_pod::qos::{self, QosClass};
use longshore_pod::quantity::{milli, milli_of};
use longshore_pod::resources;

use crate::volumes::{attributes_of_claim, claim_class};
use crate::workload::is_finished;

type Amounts = BTreeMap<String, Quantity>;

/// The resources of the core group that a quota names by their plural alone.
const COUNTED: [&str; 6] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// The plural and the group of the objects whose number a name limits; `None`: it limits something
/// else, or pods.
pub(super) fn counted(name: &str) -> Option<(&str, &str)> {
    if COUNTED.contains(&name) {
        return Some((name, ""));
    }
    let resource = name.strip_prefix("count/")?;
    Some(resource.split_once('.').unwrap_or((resource, "")))
}

/// Whether the pod still counts, other than as an object.
fn is_charged(pod: &Pod, now: Timestamp) -> bool {
    let grace = pod.metadata.deletion_grace_period_seconds;
    let is_overdue = match (&pod.metadata.deletion_timestamp, grace) {
        (Some(deleted), Some(grace)) => {
            now.as_second() > deleted.0.as_second().saturating_add(grace)
        }
        _ => false,
    };
    !is_finished(pod) && !is_overdue
}

fn crosses_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else {
        return false;
    };
    let crosses = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|namespaces| !namespaces.is_empty())
            || term.namespace_selector.is_some()
    };
    let with = affinity.pod_affinity.iter().any(|affinity| {
        let required = affinity.required_during_scheduling_ignored_during_execution.iter();
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter();
        required.flatten().any(crosses)
            || preferred.flatten().any(|weighted| crosses(&weighted.pod_affinity_term))
    });
    let without = affinity.pod_anti_affinity.iter().any(|affinity| {
        let required = affinity.required_during_scheduling_ignored_during_execution.iter();
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter();
        required.flatten().any(crosses)
            || preferred.flatten().any(|weighted| crosses(&weighted.pod_affinity_term))
    });
    with || without
}

/// Whether a scope with an operator and values takes the pod in.
fn is_in_scope(pod: &Pod, scope: &str, operator: &str, values: &[String]) -> bool {
    let spec = pod.spec.as_ref();
    let is_terminating =
        spec.and_then(|spec| spec.active_deadline_seconds).is_some_and(|deadline| deadline >= 0);
    let is_best_effort = || qos::class(pod) == QosClass::BestEffort;
    match scope {
        "Terminating" => is_terminating,
        "NotTerminating" => !is_terminating,
        "BestEffort" => is_best_effort(),
        "NotBestEffort" => !is_best_effort(),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_ref());
            selects(operator, values, class.filter(|class| !class.is_empty()))
        }
        _ => false,
    }
}

/// Whether the operator and values of a scope select that value.
fn selects(operator: &str, values: &[String], value: Option<&String>) -> bool {
    match operator {
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        _ => false,
    }
}

/// Whether the quota is for the claim: its one scope is by VolumeAttributesClasses.
fn includes_claim(spec: &ResourceQuotaSpec, claim: &PersistentVolumeClaim) -> bool {
    let classes = attributes_of_claim(claim);
    selector(spec).iter().all(|(scope, operator, values)| {
        *scope == "VolumeAttributesClass"
            && match classes.as_slice() {
                [] => selects(operator, values, None),
                classes => classes.iter().any(|class| selects(operator, values, Some(class))),
            }
    })
}

fn selector(spec: &ResourceQuotaSpec) -> Vec<(&str, &str, &[String])> {
    let scopes = spec.scopes.iter().flatten().map(|scope| (scope.as_str(), "Exists", &[][..]));
    let expressions =
        spec.scope_selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten());
    let expressions = expressions.map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        (expression.scope_name.as_str(), expression.operator.as_str(), values)
    });
    scopes.chain(expressions).collect()
}

/// Whether the quota is for the pod.
pub(super) fn includes(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    selector(spec).iter().all(|(scope, operator, values)| is_in_scope(pod, scope, operator, values))
}

/// What is in a namespace.
pub(super) struct Objects<'a> {
    pub(super) pods: &'a [&'a Pod],
    pub(super) services: &'a [&'a Service],
    pub(super) claims: &'a [&'a PersistentVolumeClaim],
    /// The number of objects of a resource, by plural and group.
    pub(super) count: &'a dyn Fn(&str, &str) -> usize,
}

/// An amount in thousandths of units.
fn thousandths(units: usize) -> i128 {
    i128::try_from(units).unwrap_or(i128::MAX).saturating_mul(1000)
}

fn pod_amount(pod: &Pod, name: &str) -> i128 {
    let Some(spec) = &pod.spec else { return 0 };
    if let Some(limit) = name.strip_prefix("limits.") {
        return milli_of(Some(&resources::limits(spec)), limit);
    }
    let name = name.strip_prefix("requests.").unwrap_or(name);
    let mut amount = milli_of(Some(&resources::requests(spec)), name);
    // A pod that was made smaller is charged for what it has until the node has done it.
    if let Some(status) = &pod.status {
        let allocated: i128 = status
            .container_statuses
            .iter()
            .flatten()
            .map(|status| {
                let resources = status.resources.as_ref();
                milli_of(resources.and_then(|resources| resources.requests.as_ref()), name)
            })
            .fold(0, i128::saturating_add);
        amount = amount.max(allocated);
    }
    amount
}

fn service_amount(service: &Service, name: &str) -> i128 {
    let Some(spec) = &service.spec else { return 0 };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
    match name {
        "services.loadbalancers" => thousandths(usize::from(is_balanced)),
        "services.nodeports" if is_balanced => match spec.allocate_load_balancer_node_ports {
            Some(false) => {
                let chosen = |port: &&_| -> bool {
                    let port: &k8s_openapi::api::core::v1::ServicePort = port;
                    port.node_port.is_some_and(|port| port != 0)
                };
                thousandths(ports.iter().filter(chosen).count())
            }
            _ => thousandths(ports.len()),
        },
        "services.nodeports" if spec.type_.as_deref() == Some("NodePort") => {
            thousandths(ports.len())
        }
        _ => 0,
    }
}

fn claim_storage(claim: &PersistentVolumeClaim) -> i128 {
    let spec = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requested = milli_of(spec.and_then(|resources| resources.requests.as_ref()), "storage");
    let status = claim.status.as_ref();
    let allocated =
        milli_of(status.and_then(|status| status.allocated_resources.as_ref()), "storage");
    requested.max(allocated)
}

const CLASS: &str = ".storageclass.storage.k8s.io/";

/// What is used of one name.
fn used_of(name: &str, spec: &ResourceQuotaSpec, objects: &Objects<'_>, now: Timestamp) -> i128 {
    let is_scoped = !selector(spec).is_empty();
    let pods = || objects.pods.iter().filter(|pod| includes(spec, pod));
    match name {
        "count/pods" => return thousandths(pods().count()),
        "pods" => return thousandths(pods().filter(|pod| is_charged(pod, now)).count()),
        _ => {}
    }
    let is_of_services = name.starts_with("services.");
    let is_count_of_claims =
        matches!(name, "persistentvolumeclaims" | "count/persistentvolumeclaims");
    if is_scoped && is_count_of_claims {
        let claims = objects.claims.iter().filter(|claim| includes_claim(spec, claim));
        return thousandths(claims.count());
    }
    let is_of_claims = name == "requests.storage" || name.contains(CLASS);
    if let Some((plural, group)) = counted(name) {
        return if is_scoped { 0 } else { thousandths((objects.count)(plural, group)) };
    }
    if is_scoped && is_of_services {
        return 0;
    }
    if is_of_services {
        let amounts = objects.services.iter().map(|service| service_amount(service, name));
        return amounts.fold(0, i128::saturating_add);
    }
    if is_of_claims {
        let (class, what) = match name.split_once(CLASS) {
            Some((class, what)) => (Some(class), what),
            None => (None, name),
        };
        let claims = objects
            .claims
            .iter()
            .filter(|claim| class.is_none_or(|class| claim_class(claim) == Some(class)))
            .filter(|claim| includes_claim(spec, claim));
        return match what {
            "persistentvolumeclaims" => thousandths(claims.count()),
            _ => claims.map(|claim| claim_storage(claim)).fold(0, i128::saturating_add),
        };
    }
    let charged = pods().filter(|pod| is_charged(pod, now));
    charged.map(|pod| pod_amount(pod, name)).fold(0, i128::saturating_add)
}

/// What is used of each name that the quota limits.
pub(super) fn used(spec: &ResourceQuotaSpec, objects: &Objects<'_>, now: Timestamp) -> Amounts {
    let names = spec.hard.iter().flatten();
    names
        .map(|(name, hard)| {
            let amount = used_of(name, spec, objects, now);
            let is_bytes = ["memory", "storage", "hugepages-"].iter().any(|w| name.contains(w));
            let is_binary = resources::is_binary(hard) || is_bytes;
            (name.clone(), Quantity(resources::format(amount, is_binary)))
        })
        .collect()
}

/// Whether the amounts are the same, however they are written.
pub(super) fn is_same(one: Option<&Amounts>, other: Option<&Amounts>) -> bool {
    let read = |amounts: Option<&Amounts>| -> BTreeMap<String, Option<i128>> {
        let amounts = amounts.into_iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), milli(amount))).collect()
    };
    read(one) == read(other)
}

/// Whether some amount is less than that of `old`.
pub(super) fn is_less(used: &Amounts, old: Option<&Amounts>) -> bool {
    let old = |name: &String| old.and_then(|old| old.get(name)).and_then(milli);
    used.iter().any(|(name, amount)| milli(amount) < old(name))
}

/// Whether a pod may count otherwise than before. That it is bound or runs makes no difference.
pub(super) fn counts_otherwise(old: &Pod, new: &Pod) -> bool {
    fn resources(pod: &Pod) -> Vec<&Option<ResourceRequirements>> {
        let spec = pod.spec.iter().flat_map(|spec| {
            let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            containers.map(|container| &container.resources).chain([&spec.resources])
        });
        let status = pod.status.iter().flat_map(|status| {
            let lists = [&status.container_statuses, &status.init_container_statuses];
            lists.into_iter().flatten().flatten().map(|container| &container.resources)
        });
        spec.chain(status).filter(|resources| resources.is_some()).collect()
    }
    let deadline = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    is_finished(old) != is_finished(new)
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || deadline(old) != deadline(new)
        || resources(old) != resources(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuotaSpec, Service};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::{Objects, counted, counts_otherwise, includes, is_less, is_same, used};

    fn pod(more: Value, requests: Value, phase: &str) -> Pod {
        let mut spec = json!({"containers": [{"name": "c", "resources":
            {"requests": requests, "limits": requests}}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({
            "metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn quota_is_computed_anew_when_a_pod_counts_otherwise() {
        let half = json!({"cpu": "500m"});
        let old = pod(json!({}), half.clone(), "Pending");
        assert!(!counts_otherwise(&old, &pod(json!({"nodeName": "n"}), half.clone(), "Running")));
        assert!(counts_otherwise(&old, &pod(json!({}), half.clone(), "Succeeded")));
        assert!(counts_otherwise(&old, &pod(json!({}), json!({"cpu": "1"}), "Pending")));
        let limited = json!({"activeDeadlineSeconds": 5});
        assert!(counts_otherwise(&old, &pod(limited, half.clone(), "Pending")));
        let mut resized = old.clone();
        let status = json!({"phase": "Pending", "containerStatuses": [{"name": "c", "ready": true,
            "restartCount": 0, "image": "i", "imageID": "", "resources": {"requests": half}}]});
        resized.status = serde_json::from_value(status).unwrap();
        assert!(counts_otherwise(&old, &resized));
    }

    #[test]
    fn quota_use_that_falls_is_known() {
        let amounts = |value: Value| serde_json::from_value(value).unwrap();
        let old = amounts(json!({"pods": "2", "cpu": "1"}));
        for (used, falls) in [
            (json!({"pods": "2", "cpu": "1000m"}), false),
            (json!({"pods": "3", "cpu": "2"}), false),
            (json!({"pods": "3", "cpu": "900m"}), true),
        ] {
            assert_eq!(is_less(&amounts(used.clone()), Some(&old)), falls, "{used}");
        }
        assert!(!is_less(&old, None));
    }

    fn spec(value: Value) -> ResourceQuotaSpec {
        serde_json::from_value(value).unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    #[test]
    fn quota_counts_pods_and_what_they_request() {
        let half = json!({"cpu": "500m", "memory": "256Mi", "example.com/dongle": "2"});
        let mut overdue = pod(json!({}), half.clone(), "Running");
        overdue.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        overdue.metadata.deletion_grace_period_seconds = Some(30);
        let pods = [
            pod(json!({}), half.clone(), "Running"),
            pod(json!({}), half.clone(), "Pending"),
            pod(json!({}), half, "Succeeded"),
            overdue,
        ];
        let pods: Vec<&Pod> = pods.iter().collect();
        let objects =
            Objects { pods: &pods, services: &[], claims: &[], count: &|_, _| unreachable!() };
        let hard = json!({"hard": {
            "pods": "5", "count/pods": "9", "cpu": "1", "requests.cpu": "1", "limits.memory": "1Gi",
            "memory": "1Gi", "requests.example.com/dongle": "3", "requests.nvidia.com/gpu": "1",
        }});
        assert_eq!(
            serde_json::to_value(used(&spec(hard), &objects, now())).unwrap(),
            json!({
                "pods": "2", "count/pods": "4", "cpu": "1", "requests.cpu": "1",
                "limits.memory": "512Mi", "memory": "512Mi", "requests.example.com/dongle": "4",
                "requests.nvidia.com/gpu": "0",
            })
        );
    }

    #[test]
    fn quota_scopes_choose_pods() {
        let best_effort = pod(json!({"activeDeadlineSeconds": 10}), json!({}), "Running");
        let burstable = pod(json!({"priorityClassName": "high"}), json!({"cpu": "1"}), "Running");
        let chosen = |value: Value| {
            let spec = spec(value);
            (includes(&spec, &best_effort), includes(&spec, &burstable))
        };
        let expression = |operator: &str, values: Value| {
            json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
        };
        assert_eq!(chosen(json!({})), (true, true));
        assert_eq!(chosen(json!({"scopes": ["BestEffort"]})), (true, false));
        assert_eq!(chosen(json!({"scopes": ["NotBestEffort"]})), (false, true));
        assert_eq!(chosen(json!({"scopes": ["Terminating"]})), (true, false));
        assert_eq!(chosen(json!({"scopes": ["NotTerminating"]})), (false, true));
        assert_eq!(chosen(json!({"scopes": ["BestEffort", "NotTerminating"]})), (false, false));
        assert_eq!(chosen(expression("In", json!(["high"]))), (false, true));
        assert_eq!(chosen(expression("NotIn", json!(["high"]))), (true, false));
        assert_eq!(chosen(expression("Exists", Value::Null)), (false, true));
        assert_eq!(chosen(json!({"scopes": ["Odd"]})), (false, false));
    }

    #[test]
    fn quota_counts_services_claims_and_other_objects() {
        let service =
            |value: Value| -> Service { serde_json::from_value(json!({"spec": value})).unwrap() };
        let ports = json!([{"port": 1, "nodePort": 30001}, {"port": 2}]);
        let services = [
            service(json!({"type": "ClusterIP", "ports": ports})),
            service(json!({"type": "NodePort", "ports": ports})),
            service(json!({"type": "LoadBalancer", "ports": ports,
                "allocateLoadBalancerNodePorts": false})),
        ];
        let claim = |class: &str, size: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"spec": {
                "storageClassName": class, "resources": {"requests": {"storage": size}}}}))
            .unwrap()
        };
        let claims = [claim("gold", "1Gi"), claim("silver", "2Gi")];
        let (services, claims): (Vec<_>, Vec<_>) =
            (services.iter().collect(), claims.iter().collect());
        let count = |plural: &str, group: &str| match (plural, group) {
            ("configmaps", "") => 3,
            ("deployments", "apps") => 4,
            _ => 0,
        };
        let objects = Objects { pods: &[], services: &services, claims: &claims, count: &count };
        let hard = json!({
            "services.nodeports": "9", "services.loadbalancers": "9", "configmaps": "9",
            "count/deployments.apps": "9", "requests.storage": "9Gi",
            "gold.storageclass.storage.k8s.io/requests.storage": "9Gi",
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "9",
        });
        assert_eq!(
            serde_json::to_value(used(&spec(json!({"hard": hard})), &objects, now())).unwrap(),
            json!({
                "services.nodeports": "3", "services.loadbalancers": "1", "configmaps": "3",
                "count/deployments.apps": "4", "requests.storage": "3Gi",
                "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            })
        );
        let scoped = spec(json!({"scopes": ["BestEffort"], "hard": {"configmaps": "9"}}));
        assert_eq!(used(&scoped, &objects, now())["configmaps"].0, "0");
        assert_eq!(counted("count/widgets.example.com"), Some(("widgets", "example.com")));
        assert_eq!(counted("secrets"), Some(("secrets", "")));
        assert_eq!(counted("cpu"), None);
    }

    #[test]
    fn quota_amounts_are_compared_by_value() {
        let amounts = |value: Value| serde_json::from_value(value).unwrap();
        let one = amounts(json!({"cpu": "1000m", "pods": "1"}));
        assert!(is_same(Some(&one), Some(&amounts(json!({"cpu": "1", "pods": "1"})))));
        assert!(!is_same(Some(&one), Some(&amounts(json!({"cpu": "1"})))));
        assert!(!is_same(Some(&one), None));
    }
}

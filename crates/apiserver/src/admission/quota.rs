//! The ResourceQuota admission plugin: a new object is charged to every quota of its namespace that
//! covers it, by a conditional write of the quota's status, so that a quota is never exceeded however
//! many clients create at once. Usage is given back when the object is not made after all;
//! the usage of deleted objects is for the controller of quotas to recompute.
//!
//! Current limitations: updates are not charged (resized pods and claims, changed services), and there
//! are no quotas that are required by configuration.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::resources::{Amounts, pod_limits, pod_requests};
use crate::api_types::Resource;
use crate::kinds::{class_of, core, pod_qos};
use crate::object;
use crate::registry::{Registry, Write};
use crate::schema::quantity::Quantity;
use crate::schema::value::{items, text};
use crate::selector::LabelSelector;
use crate::status::StatusError;

/// Resources of containers that a quota can require every container to name.
const REQUIRED: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
const PODS: [&str; 11] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "count/pods",
];
/// Core resources whose number can be limited by their bare name.
const COUNTED: [&str; 7] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// What quotas were charged for an object that is about to be made.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    namespace: String,
    /// By name of the quota.
    charged: Vec<(String, Amounts)>,
}

/// Charges the quotas of the object's namespace, or refuses it. With `dry_run` they are only checked.
pub(crate) async fn charge(
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    object: &Value,
    dry_run: bool,
) -> Result<Charge, StatusError> {
    let mut charge = Charge { namespace: namespace.to_owned(), charged: Vec::new() };
    if !resource.namespaced || resource.kind == "Event" {
        return Ok(charge);
    }
    let quotas = core("resourcequotas")?;
    let all = registry.list_all(quotas, namespace).await?;
    if all.is_empty() {
        return Ok(charge);
    }
    let usage = usage(resource, object);
    let mut covering = Vec::new();
    for quota in &all {
        if covers(quota, resource, object) {
            check(resource, quota, object, &usage)?;
            covering.push(object::name(quota));
        }
    }
    if dry_run {
        return Ok(charge);
    }
    for name in covering {
        let mut added = Amounts::default();
        let written = registry
            .write(quotas, (namespace, name), None, false, |quota| {
                added = check(resource, quota, object, &usage)?;
                let mut used = Amounts::of(&quota["status"]["used"]);
                used.add(&added);
                let mut new = quota.clone();
                object::child_mut(&mut new, "status").insert("used".into(), used.to_value());
                Ok(Write::Put(new))
            })
            .await;
        match written {
            Ok(_) => charge.charged.push((name.to_owned(), added)),
            // It was deleted meanwhile.
            Err(error) if error.code == 404 => {}
            Err(error) => {
                charge.release(registry).await;
                return Err(error);
            }
        }
    }
    Ok(charge)
}

impl Charge {
    /// Gives back what was charged.
    pub(crate) async fn release(self, registry: &Registry) {
        let Ok(quotas) = core("resourcequotas") else { return };
        for (name, amounts) in self.charged {
            let written = registry
                .write(quotas, (&self.namespace, &name), None, false, |quota| {
                    let mut used = Amounts::of(&quota["status"]["used"]);
                    used.subtract(&amounts);
                    let mut new = quota.clone();
                    object::child_mut(&mut new, "status").insert("used".into(), used.to_value());
                    Ok(Write::Put(new))
                })
                .await;
            if let Err(error) = written {
                tracing::warn!(%error, quota = name, "cannot give back the usage of an object that was not made");
            }
        }
    }
}

/// What the object adds to the quota; 403 if it does not fit.
fn check(
    resource: &Resource,
    quota: &Value,
    object: &Value,
    usage: &Amounts,
) -> Result<Amounts, StatusError> {
    let name = object::name(quota);
    let refuse = |why: &str| Err(StatusError::forbidden(resource, object::name(object), why));
    let hard = Amounts::of(&quota["status"]["hard"]);
    let used = Amounts::of(&quota["status"]["used"]);
    let limited: BTreeSet<&str> =
        hard.0.keys().map(String::as_str).filter(|limited| is_of(resource, limited)).collect();
    if let Some(missing) = unnamed(resource, &limited, object) {
        return refuse(&format!("failed quota: {name}: must specify {missing}"));
    }
    if limited.iter().any(|limited| used.get(limited).is_none()) {
        let all: Vec<&str> = limited.into_iter().collect();
        let all = all.join(",");
        return refuse(&format!("status unknown for quota: {name}, resources: {all}"));
    }
    let added = usage
        .only(|resource| hard.get(resource).is_some())
        .only(|resource| usage.get(resource).is_some_and(|amount| amount.amount() != 0));
    let exceeded: BTreeSet<&String> = added
        .0
        .iter()
        .filter(|(resource, amount)| {
            let used = used.get(resource).map_or(0, Quantity::amount);
            let hard = hard.get(resource).map_or(0, Quantity::amount);
            used.saturating_add(amount.amount()) > hard
        })
        .map(|(resource, _)| resource)
        .collect();
    if exceeded.is_empty() {
        return Ok(added);
    }
    let shown = |amounts: &Amounts| {
        amounts.only(|resource| exceeded.iter().any(|own| own.as_str() == resource)).to_text()
    };
    refuse(&format!(
        "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
        shown(&added),
        shown(&used),
        shown(&hard)
    ))
}

/// Whether objects of this resource use what the quota limits by this name.
fn is_of(resource: &Resource, limited: &str) -> bool {
    if limited == format!("count/{}", resource.qualified()) {
        return true;
    }
    if !resource.group.is_empty() {
        return false;
    }
    match resource.plural {
        "pods" => {
            PODS.contains(&limited)
                || limited.starts_with("hugepages-")
                || limited.starts_with("requests.hugepages-")
                || (limited.starts_with("requests.") && limited.contains('/'))
        }
        "services" => {
            matches!(limited, "services" | "services.loadbalancers" | "services.nodeports")
        }
        "persistentvolumeclaims" => {
            matches!(limited, "persistentvolumeclaims" | "requests.storage")
                || limited.contains(".storageclass.storage.k8s.io/")
        }
        plural => COUNTED.contains(&plural) && limited == plural,
    }
}

/// Whether the quota covers the object: it limits something of its kind, and all its scopes match.
fn covers(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let hard = Amounts::of(&quota["status"]["hard"]);
    if !hard.0.keys().any(|limited| is_of(resource, limited)) {
        return false;
    }
    let scopes = items(&quota["spec"]["scopes"])
        .iter()
        .map(|scope| json!({"scopeName": scope, "operator": "Exists"}));
    let selected = items(&quota["spec"]["scopeSelector"]["matchExpressions"]).iter().cloned();
    let is_pod = resource.group.is_empty() && resource.plural == "pods";
    scopes.chain(selected).all(|scope| is_pod && in_scope(&scope, object))
}

fn in_scope(scope: &Value, pod: &Value) -> bool {
    let spec = &pod["spec"];
    let is_terminating = spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    let is_best_effort = pod_qos(spec) == "BestEffort";
    match text(&scope["scopeName"]) {
        "Terminating" => is_terminating,
        "NotTerminating" => !is_terminating,
        "BestEffort" => is_best_effort,
        "NotBestEffort" => !is_best_effort,
        "PriorityClass" => {
            let class = text(&spec["priorityClassName"]);
            if scope["operator"] == "Exists" {
                return !class.is_empty();
            }
            let expression = json!({
                "key": "PriorityClass",
                "operator": scope["operator"],
                "values": scope["values"],
            });
            let labels = match class {
                "" => json!({}),
                class => json!({"PriorityClass": class}),
            };
            LabelSelector::of(&json!({"matchExpressions": [expression]}))
                .is_ok_and(|selector| selector.matches(&json!({"metadata": {"labels": labels}})))
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(&spec["affinity"]),
        _ => false,
    }
}

fn crosses_namespaces(affinity: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let required = items(&affinity[*kind]["requiredDuringSchedulingIgnoredDuringExecution"]);
        let preferred = items(&affinity[*kind]["preferredDuringSchedulingIgnoredDuringExecution"]);
        let preferred = preferred.iter().map(|term| &term["podAffinityTerm"]);
        required.iter().chain(preferred).any(|term| {
            !items(&term["namespaces"]).is_empty() || !term["namespaceSelector"].is_null()
        })
    })
}

/// Resources that the quota limits and that containers do not name, as `cpu for: a,b; memory for: a`.
fn unnamed(resource: &Resource, limited: &BTreeSet<&str>, pod: &Value) -> Option<String> {
    let is_pod = resource.group.is_empty() && resource.plural == "pods";
    let whole = &pod["spec"]["resources"];
    if !is_pod || !whole["requests"].is_null() || !whole["limits"].is_null() {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for list in ["containers", "initContainers"] {
        for container in items(&pod["spec"][list]) {
            let own = &container["resources"];
            let named = computed(&Amounts::of(&own["requests"]), &Amounts::of(&own["limits"]));
            for required in REQUIRED.iter().filter(|required| limited.contains(*required)) {
                if named.get(required).is_none() {
                    missing.entry(required).or_default().insert(text(&container["name"]));
                }
            }
        }
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(resource, names)| {
            format!("{resource} for: {}", names.into_iter().collect::<Vec<_>>().join(","))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Requests and limits by the names that quotas have for them.
fn computed(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut all = Amounts::default();
    for (resource, amount) in &requests.0 {
        match resource.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {
                all.put(resource.as_str(), *amount);
                all.put(format!("requests.{resource}"), *amount);
            }
            name if name.starts_with("hugepages-") => {
                all.put(name, *amount);
                all.put(format!("requests.{name}"), *amount);
            }
            name if name.contains('/') => all.put(format!("requests.{name}"), *amount),
            _ => {}
        }
    }
    for (resource, amount) in &limits.0 {
        if matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            all.put(format!("limits.{resource}"), *amount);
        }
    }
    all
}

fn whole(count: usize) -> Quantity {
    Quantity::whole(i64::try_from(count).unwrap_or(i64::MAX))
}

/// What an object of this resource uses.
fn usage(resource: &Resource, object: &Value) -> Amounts {
    let mut usage = Amounts::default();
    usage.put(format!("count/{}", resource.qualified()), whole(1));
    if !resource.group.is_empty() {
        return usage;
    }
    if COUNTED.contains(&resource.plural) {
        usage.put(resource.plural, whole(1));
    }
    let spec = &object["spec"];
    match resource.plural {
        "pods" => {
            let (mut requests, mut limits) = (pod_requests(object), pod_limits(object));
            let overhead = Amounts::of(&spec["overhead"]);
            requests.add(&overhead);
            limits.add(&overhead.only(|resource| limits.get(resource).is_some()));
            usage.add(&computed(&requests, &limits));
        }
        "services" => {
            let ports = items(&spec["ports"]).len();
            let has_node_ports = spec["allocateLoadBalancerNodePorts"] != false;
            match text(&spec["type"]) {
                "NodePort" => usage.put("services.nodeports", whole(ports)),
                "LoadBalancer" => {
                    usage.put("services.loadbalancers", whole(1));
                    let ports = if has_node_ports { ports } else { 0 };
                    usage.put("services.nodeports", whole(ports));
                }
                _ => {}
            }
        }
        "persistentvolumeclaims" => {
            let class = class_of(object).filter(|class| !class.is_empty());
            let suffix = "storageclass.storage.k8s.io";
            if let Some(class) = class {
                usage.put(format!("{class}.{suffix}/persistentvolumeclaims"), whole(1));
            }
            if let Some(storage) = Amounts::of(&spec["resources"]["requests"]).get("storage") {
                usage.put("requests.storage", storage);
                if let Some(class) = class {
                    usage.put(format!("{class}.{suffix}/requests.storage"), storage);
                }
            }
        }
        _ => {}
    }
    usage
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::sync::Arc;

    use longshore_store::EmbeddedStore;

    use super::*;

    fn quota(hard: Value, used: Value) -> Value {
        json!({
            "kind": "ResourceQuota",
            "apiVersion": "v1",
            "metadata": {"name": "q", "namespace": "a"},
            "spec": {"hard": hard},
            "status": {"hard": hard, "used": used},
        })
    }

    fn pod(resources: Value) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        })
    }

    fn check_pod(quota: &Value, pod: &Value) -> Result<String, String> {
        let pods = core("pods").unwrap();
        check(pods, quota, pod, &usage(pods, pod))
            .map(|added| added.to_text())
            .map_err(|error| error.message)
    }

    #[test]
    fn quota_messages() {
        let small = quota(json!({"cpu": "1", "pods": "2"}), json!({"cpu": "500m", "pods": "1"}));
        let requests = |cpu: &str| pod(json!({"requests": {"cpu": cpu}}));
        assert_eq!(check_pod(&small, &requests("500m")), Ok("cpu=500m,pods=1".into()));
        let error = check_pod(&small, &requests("600m")).unwrap_err();
        assert!(
            error.ends_with(
                "exceeded quota: q, requested: cpu=600m, used: cpu=500m, limited: cpu=1"
            ),
            "{error}"
        );
        let error = check_pod(&small, &pod(json!({}))).unwrap_err();
        assert!(error.ends_with("failed quota: q: must specify cpu for: c"), "{error}");
        let unknown = quota(json!({"pods": "2"}), json!({}));
        let error = check_pod(&unknown, &pod(json!({}))).unwrap_err();
        assert!(error.ends_with("status unknown for quota: q, resources: pods"), "{error}");
    }

    #[test]
    fn quota_scopes_select_pods() {
        let pods = core("pods").unwrap();
        let mut scoped = quota(json!({"pods": "2"}), json!({"pods": "0"}));
        let best_effort = pod(json!({}));
        let mut terminating = pod(json!({"requests": {"cpu": "1"}}));
        terminating["spec"]["activeDeadlineSeconds"] = 10.into();
        terminating["spec"]["priorityClassName"] = "high".into();
        for (scopes, first, second) in [
            (json!(["BestEffort"]), true, false),
            (json!(["NotBestEffort"]), false, true),
            (json!(["Terminating"]), false, true),
            (json!(["NotTerminating"]), true, false),
            (json!(["PriorityClass"]), false, true),
            (json!(["Terminating", "BestEffort"]), false, false),
        ] {
            scoped["spec"]["scopes"] = scopes.clone();
            assert_eq!(covers(&scoped, pods, &best_effort), first, "{scopes}");
            assert_eq!(covers(&scoped, pods, &terminating), second, "{scopes}");
        }
        scoped["spec"] = json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["low", "high"]},
        ]}});
        assert!(covers(&scoped, pods, &terminating));
        assert!(!covers(&scoped, pods, &best_effort));
        let services = core("services").unwrap();
        assert!(!covers(&scoped, services, &json!({})));
    }

    #[test]
    fn quota_usage_of_services_and_claims() {
        let text = |plural: &str, object: Value| usage(core(plural).unwrap(), &object).to_text();
        let ports = json!([{"port": 1}, {"port": 2}]);
        assert_eq!(
            text("services", json!({"spec": {"type": "NodePort", "ports": ports}})),
            "count/services=1,services=1,services.nodeports=2"
        );
        assert_eq!(
            text("services", json!({"spec": {"type": "LoadBalancer", "ports": ports}})),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2"
        );
        let claim = json!({"spec": {
            "storageClassName": "gold",
            "resources": {"requests": {"storage": "1Gi"}},
        }});
        assert_eq!(
            text("persistentvolumeclaims", claim),
            "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
             gold.storageclass.storage.k8s.io/requests.storage=1Gi,persistentvolumeclaims=1,\
             requests.storage=1Gi"
        );
        let sets = crate::kinds::known("apps", "replicasets").unwrap();
        assert_eq!(usage(sets, &json!({})).to_text(), "count/replicasets.apps=1");
    }

    /// However many create at once, no more pass than the quota allows, and its usage is theirs.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn quota_is_never_exceeded_under_concurrency() {
        const HARD: usize = 10;
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path().join("store")).await.unwrap();
        let registry = Arc::new(Registry::new(Arc::new(store)));
        let quotas = core("resourcequotas").unwrap();
        let hard = HARD.to_string();
        let object = quota(json!({"pods": hard}), json!({"pods": "0"}));
        registry.create(quotas, object, None).await.unwrap();
        let attempts = (0..40).map(|i| {
            let registry = registry.clone();
            tokio::spawn(async move {
                let pods = core("pods").unwrap();
                match charge(&registry, pods, "a", &pod(json!({})), false).await {
                    // Every fifth of them fails later.
                    Ok(charge) if i % 5 == 0 => {
                        charge.release(&registry).await;
                        false
                    }
                    Ok(_) => true,
                    Err(error) => {
                        assert!(error.message.contains("exceeded quota"), "{error}");
                        false
                    }
                }
            })
        });
        let mut passed = 0;
        for attempt in attempts.collect::<Vec<_>>() {
            passed += usize::from(attempt.await.unwrap());
        }
        let after = registry.get(quotas, "a", "q").await.unwrap();
        assert!(passed <= HARD, "{passed}");
        assert_eq!(after["status"]["used"]["pods"], passed.to_string());
    }
}

//! Defaults of pods and of what is inside them.

use serde_json::{Map, Value, json};

use super::storage;
use crate::schema::quantity::Quantity;
use crate::schema::resources::{is_huge_page, is_supported_for_pods, of_containers};
use crate::schema::value::{default, default_absent, is_zero, items_mut, map_mut, text};

const CONTAINER_LISTS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
const DEFAULT_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Defaults of a pod: those of any pod spec, and those that only a pod itself gets.
pub(in crate::kinds) fn pod(pod: &mut Map<String, Value>) {
    let Some(spec) = map_mut(pod, "spec") else { return };
    self::spec(spec);
    default_absent(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers"] {
        for container in items_mut(spec.get_mut(list)) {
            requests_from_limits(container);
            if host_network {
                host_ports(container);
            }
        }
    }
    pod_level(spec);
}

/// Resources of the pod as a whole that are given in part. Huge pages that containers are limited to
/// become limits of the pod; where it has limits, what it does not request comes from the containers'
/// requests, and else from its limits.
fn pod_level(spec: &mut Map<String, Value>) {
    let given = |list: &str| -> Map<String, Value> {
        let resources = spec.get("resources").and_then(|resources| resources.get(list));
        resources.and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (mut requests, mut limits) = (given("requests"), given("limits"));
    if requests.is_empty() && limits.is_empty() {
        return;
    }
    let of_containers = |field| {
        let lists = ["containers", "initContainers"];
        let lists =
            lists.map(|list| (list.to_owned(), spec.get(list).cloned().unwrap_or_default()));
        of_containers(&Value::Object(lists.into_iter().collect()), field).0
    };
    for (resource, amount) in of_containers("limits") {
        if is_huge_page(&resource) && !requests.contains_key(&resource) {
            limits.entry(resource).or_insert_with(|| amount.to_string().into());
        }
    }
    if !limits.is_empty() {
        for (resource, amount) in of_containers("requests") {
            if is_supported_for_pods(&resource) && !is_huge_page(&resource) {
                requests.entry(resource).or_insert_with(|| amount.to_string().into());
            }
        }
        for (resource, limit) in &limits {
            if is_supported_for_pods(resource) {
                requests.entry(resource.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    let Some(resources) = map_mut(spec, "resources") else { return };
    for (list, amounts) in [("limits", limits), ("requests", requests)] {
        if !amounts.is_empty() {
            resources.insert(list.to_owned(), Value::Object(amounts));
        }
    }
}

/// Defaults of a pod spec, in a pod or in a template.
pub(in crate::kinds) fn spec(spec: &mut Map<String, Value>) {
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "schedulerName", "default-scheduler");
    default_absent(spec, "terminationGracePeriodSeconds", 30);
    default_absent(spec, "securityContext", json!({}));
    service_account(spec);
    for list in CONTAINER_LISTS {
        for container in items_mut(spec.get_mut(list)) {
            self::container(container);
        }
    }
    for volume in items_mut(spec.get_mut("volumes")) {
        self::volume(volume);
    }
}

/// `serviceAccount` is the old name of `serviceAccountName`: both are always shown, and the new one counts.
fn service_account(spec: &mut Map<String, Value>) {
    let name = ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|f| spec.get(*f).filter(|n| !is_zero(n)));
    if let Some(name) = name.cloned() {
        spec.insert("serviceAccountName".into(), name.clone());
        spec.insert("serviceAccount".into(), name);
    }
}

fn container(container: &mut Map<String, Value>) {
    let policy = pull_policy(container.get("image").map_or("", text));
    default(container, "imagePullPolicy", policy);
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    default_absent(container, "resources", json!({}));
    for port in items_mut(container.get_mut("ports")) {
        default(port, "protocol", "TCP");
    }
    for variable in items_mut(container.get_mut("env")) {
        if let Some(from) = map_mut(variable, "valueFrom") {
            if let Some(field) = map_mut(from, "fieldRef") {
                default(field, "apiVersion", "v1");
            }
            if let Some(resource) = map_mut(from, "resourceFieldRef") {
                default_absent(resource, "divisor", "0");
            }
            if let Some(file) = map_mut(from, "fileKeyRef") {
                default_absent(file, "optional", false);
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = map_mut(container, name) {
            self::probe(probe);
        }
    }
    if let Some(lifecycle) = map_mut(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = map_mut(lifecycle, hook) {
                http_get(hook);
            }
        }
    }
    if let Some(resources) = map_mut(container, "resources") {
        for list in ["limits", "requests"] {
            for quantity in map_mut(resources, list).into_iter().flat_map(Map::values_mut) {
                if let Some(parsed) = quantity.as_str().and_then(Quantity::parse) {
                    *quantity = parsed.round_up_to_milli().to_string().into();
                }
            }
        }
    }
}

fn probe(probe: &mut Map<String, Value>) {
    for (field, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        default(probe, field, value);
    }
    http_get(probe);
    if let Some(grpc) = map_mut(probe, "grpc") {
        default_absent(grpc, "service", "");
    }
}

fn http_get(handler: &mut Map<String, Value>) {
    if let Some(get) = map_mut(handler, "httpGet") {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
}

/// Images whose tag is `latest`, spelled out or left out, are pulled anew each time.
pub(in crate::kinds) fn pull_policy(image: &str) -> &'static str {
    let has_digest = image.contains('@');
    let name = image.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    let latest = match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => !has_digest && !name.is_empty(),
    };
    if latest { "Always" } else { "IfNotPresent" }
}

fn requests_from_limits(container: &mut Map<String, Value>) {
    let Some(resources) = map_mut(container, "resources") else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    if let Some(requests) = requests.as_object_mut() {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn host_ports(container: &mut Map<String, Value>) {
    for port in items_mut(container.get_mut("ports")) {
        if let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    }
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = map_mut(volume, source) {
            default_absent(source, "defaultMode", DEFAULT_MODE);
        }
    }
    if let Some(downward) = map_mut(volume, "downwardAPI") {
        downward_items(downward);
    }
    if let Some(projected) = map_mut(volume, "projected") {
        for source in items_mut(projected.get_mut("sources")) {
            if let Some(token) = map_mut(source, "serviceAccountToken") {
                default_absent(token, "expirationSeconds", TOKEN_SECONDS);
            }
            if let Some(downward) = map_mut(source, "downwardAPI") {
                downward_items(downward);
            }
        }
    }
    if let Some(image) = map_mut(volume, "image") {
        let policy = pull_policy(image.get("reference").map_or("", text));
        default(image, "pullPolicy", policy);
    }
    storage::source(volume);
    if let Some(template) =
        map_mut(volume, "ephemeral").and_then(|source| map_mut(source, "volumeClaimTemplate"))
        && let Some(spec) = map_mut(template, "spec")
    {
        storage::claim_spec(spec);
    }
}

fn downward_items(source: &mut Map<String, Value>) {
    for item in items_mut(source.get_mut("items")) {
        if let Some(field) = map_mut(item, "fieldRef") {
            default(field, "apiVersion", "v1");
        }
        if let Some(resource) = map_mut(item, "resourceFieldRef") {
            default_absent(resource, "divisor", "0");
        }
    }
}

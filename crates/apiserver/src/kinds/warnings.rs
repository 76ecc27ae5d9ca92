//! What clients are warned of, in upstream's words (`pkg/api/pod/warnings.go` and its kin): fields that
//! are accepted and do not do what their writer expects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::schema::Path;
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, items, same, text};

const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";
const TERMS: [&str; 2] = [
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
];
const SECCOMP_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
const OLD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Of a new pod. Updates of pods are those of machines, and warn nobody.
pub(super) fn pod(pod: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    of_pod(pod, &Path::root("metadata"), &Path::root("spec"), false, &mut warnings);
    warnings
}

/// Of a kind that has a template of pods at this place, when that is new.
fn template_at(object: &Value, old: Option<&Value>, place: &[&'static str]) -> Vec<String> {
    let at = |object: &Value| place.iter().fold(object.clone(), |value, name| value[*name].clone());
    let template = at(object);
    if old.is_some_and(|old| same(&at(old), &template)) {
        return Vec::new();
    }
    let place = place.join(".");
    let path = Path::root(&place);
    let mut warnings = Vec::new();
    of_pod(&template, &path.child("metadata"), &path.child("spec"), true, &mut warnings);
    warnings
}

/// Of a kind with `spec.template`.
pub(super) fn template(object: &Value, old: Option<&Value>) -> Vec<String> {
    template_at(object, old, &["spec", "template"])
}

/// Of a CronJob.
pub(super) fn job_template(object: &Value, old: Option<&Value>) -> Vec<String> {
    template_at(object, old, &["spec", "jobTemplate", "spec", "template"])
}

/// Of a PodTemplate.
pub(super) fn pod_template(object: &Value, old: Option<&Value>) -> Vec<String> {
    template_at(object, old, &["template"])
}

/// Of a service.
pub(super) fn service(service: &Value, _: Option<&Value>) -> Vec<String> {
    let spec = &service["spec"];
    let has = |field: &str| !text(&spec[field]).is_empty();
    let is_headless = spec["type"] == "ClusterIP" && spec["clusterIP"] == "None";
    let is_external = spec["type"] == "ExternalName";
    let external = !items(&spec["externalIPs"]).is_empty();
    let mut warnings = Vec::new();
    let old_hints = "service.kubernetes.io/topology-aware-hints";
    if !service["metadata"]["annotations"][old_hints].is_null() {
        warnings.push(format!(
            "annotation {old_hints} is deprecated, please use \
             service.kubernetes.io/topology-mode instead"
        ));
    }
    if is_headless {
        if has("loadBalancerIP") {
            warnings.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if external {
            warnings.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if spec["sessionAffinity"] != "None" {
            warnings.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if external && !is_headless && !is_external {
        let why =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(why.to_owned());
    }
    if external && is_external {
        let why = "spec.externalIPs is ignored when spec.type is \"ExternalName\"";
        warnings.push(why.to_owned());
    }
    if has("externalName") && !is_external {
        let why = "spec.externalName is ignored when spec.type is not \"ExternalName\"";
        warnings.push(why.to_owned());
    }
    if spec["trafficDistribution"] == "PreferClose" {
        let why = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(why.to_owned());
    }
    warnings
}

/// Of what is served under an old name.
pub(super) fn endpoints(_: &Value, _: Option<&Value>) -> Vec<String> {
    vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()]
}

fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, why)| *why)
}

fn of_pod(
    pod: &Value,
    metadata: &Path<'_>,
    path: &Path<'_>,
    is_template: bool,
    warnings: &mut Vec<String>,
) {
    let spec = &pod["spec"];
    labels(path, spec, warnings);
    annotations(pod, metadata, is_template, warnings);
    volumes(&path.child("volumes"), &spec["volumes"], warnings);
    repeated(&path.child("hostAliases"), &spec["hostAliases"], "ip", warnings);
    repeated(&path.child("imagePullSecrets"), &spec["imagePullSecrets"], "name", warnings);
    let list = path.child("imagePullSecrets");
    for (i, secret) in items(&spec["imagePullSecrets"]).iter().enumerate() {
        if text(&secret["name"]).is_empty() {
            let path = list.index(i);
            warnings.push(format!("{}: invalid empty name \"\"", path.child("name")));
        }
    }
    fractions(&path.child("overhead"), &spec["overhead"], warnings);
    let (mut ports, mut port_names) = (BTreeMap::new(), BTreeMap::new());
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        let list = path.child(field);
        for (i, container) in items(&spec[field]).iter().enumerate() {
            let path = list.index(i);
            let resources = path.child("resources");
            for kind in ["limits", "requests"] {
                let amounts = &container["resources"][kind];
                fractions(&resources.child(kind), amounts, warnings);
            }
            hidden_variables(&path.child("env"), &container["env"], warnings);
            let list = path.child("ports");
            for (i, port) in items(&container["ports"]).iter().enumerate() {
                let path = list.index(i).to_string();
                container_port(&path, port, &mut ports, &mut port_names, warnings);
            }
        }
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        let path = path.child("terminationGracePeriodSeconds");
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.push(format!("{path}: {why}"));
    }
    selectors(path, spec, warnings);
}

/// Labels of nodes that have newer names.
fn labels(path: &Path<'_>, spec: &Value, warnings: &mut Vec<String>) {
    let selector = path.child("nodeSelector");
    for (key, _) in entries(&spec["nodeSelector"]) {
        if let Some(why) = old_label(key) {
            warnings.push(format!("{}: {why}", selector.key(key)));
        }
    }
    let affinity = path.child("affinity");
    let (affinity, terms) = (affinity.child("nodeAffinity"), &spec["affinity"]["nodeAffinity"]);
    let required = affinity.child(TERMS[0]);
    let list = required.child("nodeSelectorTerms");
    for (i, term) in items(&terms[TERMS[0]]["nodeSelectorTerms"]).iter().enumerate() {
        node_term(&list.index(i), term, false, warnings);
    }
    let list = affinity.child(TERMS[1]);
    for (i, term) in items(&terms[TERMS[1]]).iter().enumerate() {
        node_term(&list.index(i).child("preference"), &term["preference"], true, warnings);
    }
    let list = path.child("topologySpreadConstraints");
    for (i, constraint) in items(&spec["topologySpreadConstraints"]).iter().enumerate() {
        let key = text(&constraint["topologyKey"]);
        let path = list.index(i);
        if let Some(why) = old_label(key) {
            warnings.push(format!("{}: {key} is {why}", path.child("topologyKey")));
        }
        if constraint["labelSelector"].is_null() {
            warnings.push(format!("{}: {NO_SELECTOR}", path.child("labelSelector")));
        }
    }
}

fn node_term(path: &Path<'_>, term: &Value, is_preferred: bool, warnings: &mut Vec<String>) {
    let list = path.child("matchExpressions");
    for (i, expression) in items(&term["matchExpressions"]).iter().enumerate() {
        let (path, key) = (list.index(i), text(&expression["key"]));
        if let Some(why) = old_label(key) {
            warnings.push(format!("{}: {key} is {why}", path.child("key")));
        }
        let values = path.child("values");
        for (i, value) in items(&expression["values"]).iter().map(text).enumerate() {
            for why in names::label_value(value).iter().filter(|_| is_preferred) {
                warnings.push(format!("{}: {value} is invalid, {why}", values.index(i)));
            }
        }
    }
}

/// Annotations that fields have taken the place of.
fn annotations(pod: &Value, metadata: &Path<'_>, is_template: bool, warnings: &mut Vec<String>) {
    let path = metadata.child("annotations");
    let (given, spec) = (&pod["metadata"]["annotations"], &pod["spec"]);
    for (key, why) in OLD_ANNOTATIONS {
        if !given[key].is_null() {
            warnings.push(format!("{}: {why}", path.key(key)));
        }
    }
    let without = |holder: &Value, field: &str| holder["securityContext"][field].is_null();
    let seccomp = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
    if without(spec, "seccompProfile") && !given[SECCOMP_ANNOTATION].is_null() {
        warnings.push(format!("{}: {seccomp}", path.key(SECCOMP_ANNOTATION)));
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&spec[field]) {
            let name = text(&container["name"]);
            let key = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
            if without(container, "seccompProfile") && !given[&key].is_null() {
                warnings.push(format!("{}: {seccomp}", path.key(&key)));
            }
            let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
            let is_unset =
                without(container, "appArmorProfile") && without(spec, "appArmorProfile");
            if is_template && is_unset && !given[&key].is_null() {
                let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
                warnings.push(format!("{}: {why}", path.key(&key)));
            }
        }
    }
}

fn volumes(list: &Path<'_>, volumes: &Value, warnings: &mut Vec<String>) {
    for (i, volume) in items(volumes).iter().enumerate() {
        let path = list.index(i);
        for (field, why) in OLD_VOLUMES {
            if !volume[field].is_null() {
                warnings.push(format!("{}: {why}", path.child(field)));
            }
        }
        for source in items(&volume["projected"]["sources"]) {
            if entries(source).all(|(_, source)| source.is_null()) {
                let name = text(&volume["name"]);
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
        }
    }
}

/// Entries of a list that have a field in common, of which the last counts.
fn repeated(list: &Path<'_>, all: &Value, field: &str, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, value) in items(all).iter().map(|one| text(&one[field])).enumerate() {
        if !seen.insert(value) {
            warnings.push(format!("{}: duplicate {field} {value:?}", list.index(i).child(field)));
        }
    }
}

/// Parts of a byte.
fn fractions(path: &Path<'_>, amounts: &Value, warnings: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        let amount = Quantity::parse(text(&amounts[name]));
        if let Some(amount) = amount.filter(|amount| !amount.is_whole()) {
            let text = amount.to_string();
            let why = format!("fractional byte value {text:?} is invalid, must be an integer");
            warnings.push(format!("{}: {why}", path.key(name)));
        }
    }
}

/// Variables that are set twice, unless the later value builds on the earlier.
fn hidden_variables(list: &Path<'_>, env: &Value, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, variable) in items(env).iter().enumerate() {
        let (name, value) = (text(&variable["name"]), text(&variable["value"]));
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let builds_on = value.contains(&reference) && value != reference;
        if !variable["valueFrom"].is_null() || !builds_on {
            let why = format!(
                "hides previous definition of {name:?}, which may be dropped when using apply"
            );
            warnings.push(format!("{}: {why}", list.index(i)));
        }
    }
}

/// The ports seen so far by number and protocol, and the names seen so far, with their places.
type Ports<'a> = BTreeMap<(i64, &'a str), Vec<(String, &'a Value)>>;

fn container_port<'a>(
    path: &str,
    port: &'a Value,
    ports: &mut Ports<'a>,
    port_names: &mut BTreeMap<&'a str, String>,
    warnings: &mut Vec<String>,
) {
    let place = |port: &'a Value| (text(&port["hostIP"]), port["hostPort"].as_i64().unwrap_or(0));
    let key = (port["containerPort"].as_i64().unwrap_or(0), text(&port["protocol"]));
    let (ip, number) = place(port);
    let others = ports.entry(key).or_default();
    for (other, other_port) in others.iter() {
        let (other_ip, other_number) = place(other_port);
        let what = if (ip, number) == (other_ip, other_number) {
            "duplicate"
        } else if number == 0 || other_number == 0 {
            "overlapping"
        } else if number == other_number && ip.is_empty() != other_ip.is_empty() {
            "dangerously ambiguous"
        } else {
            continue;
        };
        warnings.push(format!("{path}: {what} port definition with {other}"));
    }
    others.push((path.to_owned(), port));
    let name = text(&port["name"]);
    if name.is_empty() {
        return;
    }
    match port_names.get(name) {
        Some(other) => warnings.push(format!(
            "{path}: duplicate port name {name:?} with {other}, services and probes that select \
             ports by name will use {other}"
        )),
        None => drop(port_names.insert(name, path.to_owned())),
    }
}

/// Terms of affinity that select no pod.
fn selectors(path: &Path<'_>, spec: &Value, warnings: &mut Vec<String>) {
    let affinity = path.child("affinity");
    for field in ["podAffinity", "podAntiAffinity"] {
        let path = affinity.child(field);
        for terms in TERMS {
            let list = path.child(terms);
            for (i, term) in items(&spec["affinity"][field][terms]).iter().enumerate() {
                let path = list.index(i);
                let (path, term) = match terms == TERMS[1] {
                    true => (path.child("podAffinityTerm").to_string(), &term["podAffinityTerm"]),
                    false => (path.to_string(), term),
                };
                if term["labelSelector"].is_null() {
                    warnings.push(format!("{path}.labelSelector: {NO_SELECTOR}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn warnings_name_what_does_not_do_what_it_says() {
        let new = json!({"spec": {
            "nodeSelector": {"beta.kubernetes.io/os": "linux"},
            "terminationGracePeriodSeconds": -1,
            "containers": [{
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "A", "value": "$(A)2"},
                    {"name": "A", "value": "3"},
                ],
                "ports": [
                    {"containerPort": 80, "protocol": "TCP", "name": "http"},
                    {"containerPort": 80, "protocol": "TCP", "name": "http"},
                ],
                "resources": {"limits": {"memory": "100m"}},
            }],
        }});
        assert_eq!(
            pod(&new, None),
            [
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \
                 \"kubernetes.io/os\" instead",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is \
                 invalid, must be an integer",
                "spec.containers[0].env[2]: hides previous definition of \"A\", which may be \
                 dropped when using apply",
                "spec.containers[0].ports[1]: duplicate port definition with \
                 spec.containers[0].ports[0]",
                "spec.containers[0].ports[1]: duplicate port name \"http\" with \
                 spec.containers[0].ports[0], services and probes that select ports by name will \
                 use spec.containers[0].ports[0]",
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid \
                 and will be treated as 1",
            ]
        );
        assert!(pod(&new, Some(&new)).is_empty(), "an update warns nobody");
        let owner = json!({"spec": {"template": new}});
        assert_eq!(template(&owner, None).len(), 6);
        assert!(template(&owner, Some(&owner)).is_empty(), "the template is as it was");
    }
}

//! Rules for pods and pod templates.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::container::{self, Kind};
use super::{meta, one_of, scheduling, supported, volume};
use crate::schema::field::{Causes, Path};
use crate::schema::names::{self, range};
use crate::schema::value::{entries, is_zero, items, text};

/// A new pod.
pub(in crate::kinds) fn create(pod: &Value, causes: &mut Causes) {
    metadata_and_spec(pod, causes);
    let path = Path::root("spec");
    let spec = &pod["spec"];
    if !items(&spec["ephemeralContainers"]).is_empty() {
        causes.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    if !text(&spec["nodeName"]).is_empty() && !items(&spec["schedulingGates"]).is_empty() {
        causes.forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
}

/// What holds for a pod at any time.
pub(in crate::kinds) fn metadata_and_spec(pod: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    let spec = &pod["spec"];
    self::spec(&path, spec, Some(text(&pod["metadata"]["name"])), causes);
    if text(&spec["serviceAccountName"]).is_empty() {
        let volumes = path.child("volumes");
        for (i, volume) in items(&spec["volumes"]).iter().enumerate() {
            for (j, source) in items(&volume["projected"]["sources"]).iter().enumerate() {
                if !source["serviceAccountToken"].is_null() {
                    causes.forbidden(
                        &volumes
                            .index(i)
                            .child("projected")
                            .child("sources")
                            .index(j)
                            .child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let list_path = path.child(list);
        for (i, container) in items(&spec[list]).iter().enumerate() {
            let image = text(&container["image"]);
            if image != image.trim() {
                causes.invalid(
                    &list_path.index(i).child("image"),
                    image,
                    "must not have leading or trailing whitespace",
                );
            }
        }
    }
}

/// A pod template, as replication controllers have it.
pub(in crate::kinds) fn template(path: &Path<'_>, template: &Value, causes: &mut Causes) {
    meta::labels(&path.child("labels"), &template["metadata"]["labels"], causes);
    meta::annotations(&path.child("annotations"), &template["metadata"]["annotations"], causes);
    let spec_path = path.child("spec");
    spec(&spec_path, &template["spec"], None, causes);
    if !items(&template["spec"]["ephemeralContainers"]).is_empty() {
        causes.forbidden(
            &spec_path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// The spec of a pod of this name, or of a template.
fn spec(path: &Path<'_>, spec: &Value, pod: Option<&str>, causes: &mut Causes) {
    let grace = spec["terminationGracePeriodSeconds"].as_i64();
    if grace.is_none() {
        causes.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let volumes = volume::volumes(&path.child("volumes"), &spec["volumes"], pod, causes);
    let claims = resource_claims(&path.child("resourceClaims"), &spec["resourceClaims"], causes);
    // A negative grace period is as good as one second.
    let grace = grace.map(|grace| if grace < 0 { 1 } else { grace });
    let context = container::Context { volumes, claims, grace };
    containers(path, spec, &context, causes);
    host_network(path, spec, pod.is_some(), causes);
    one_of(
        &path.child("restartPolicy"),
        &spec["restartPolicy"],
        &["Always", "OnFailure", "Never"],
        causes,
    );
    one_of(
        &path.child("dnsPolicy"),
        &spec["dnsPolicy"],
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        causes,
    );
    meta::labels(&path.child("nodeSelector"), &spec["nodeSelector"], causes);
    scheduling::affinity(&path.child("affinity"), &spec["affinity"], causes);
    let constraints = path.child("topologySpreadConstraints");
    scheduling::topology_spread(&constraints, &spec["topologySpreadConstraints"], causes);
    security_context(&path.child("securityContext"), spec, causes);
    dns_config(&path.child("dnsConfig"), spec, causes);
    gates(path, spec, causes);
    small_fields(path, spec, causes);
    tolerations(&path.child("tolerations"), &spec["tolerations"], causes);
    host_aliases(&path.child("hostAliases"), &spec["hostAliases"], causes);
    let whole = path.child("resources");
    container::resources(&whole, &spec["resources"], causes);
}

/// The three lists share one space of names.
fn containers(
    path: &Path<'_>,
    spec: &Value,
    context: &container::Context<'_>,
    causes: &mut Causes,
) {
    if items(&spec["containers"]).is_empty() {
        causes.required(&path.child("containers"), "");
    }
    let mut names = BTreeSet::new();
    for (list, kind) in [
        ("containers", Kind::Regular),
        ("initContainers", Kind::Init),
        ("ephemeralContainers", Kind::Ephemeral),
    ] {
        let list_path = path.child(list);
        for (i, container) in items(&spec[list]).iter().enumerate() {
            let path = list_path.index(i);
            container::container(&path, container, kind, context, causes);
            let target = text(&container["targetContainerName"]);
            if kind == Kind::Ephemeral && !target.is_empty() && !names.contains(target) {
                causes.not_found(&path.child("targetContainerName"), target);
            }
            let name = text(&container["name"]);
            if !name.is_empty() && !names.insert(name) {
                causes.duplicate(&path.child("name"), name, "");
            }
        }
    }
    let list_path = path.child("containers");
    container::host_ports(&list_path, items(&spec["containers"]), causes);
    for container in items(&spec["initContainers"]) {
        // init containers run one by one, so only the ports of one can collide
        container::host_ports(
            &path.child("initContainers"),
            std::slice::from_ref(container),
            causes,
        );
    }
}

fn host_network(path: &Path<'_>, spec: &Value, is_pod: bool, causes: &mut Causes) {
    if spec["hostNetwork"] != true {
        return;
    }
    let containers = path.child("containers");
    for (i, container) in items(&spec["containers"]).iter().enumerate() {
        let container_path = containers.index(i);
        let ports = container_path.child("ports");
        for (j, port) in items(&container["ports"]).iter().enumerate() {
            let (host, inside) = (
                port["hostPort"].as_i64().unwrap_or(0),
                port["containerPort"].as_i64().unwrap_or(0),
            );
            if host != inside && (is_pod || host != 0) {
                causes.invalid(
                    &ports.index(j).child("hostPort"),
                    &host,
                    "must match `containerPort` when `hostNetwork` is true",
                );
            }
        }
    }
}

fn security_context(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let context = &spec["securityContext"];
    container::user_ids(path, context, &["fsGroup", "runAsUser", "runAsGroup"], causes);
    let groups = path.child("supplementalGroups");
    for (i, group) in items(&context["supplementalGroups"]).iter().enumerate() {
        container::user_id(&groups.index(i), group, causes);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        causes.invalid(
            &path.child("shareProcessNamespace"),
            &true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    container::seccomp(&path.child("seccompProfile"), &context["seccompProfile"], causes);
    container::app_armor(&path.child("appArmorProfile"), &context["appArmorProfile"], causes);
    for (field, values) in [
        ("fsGroupChangePolicy", ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", ["Merge", "Strict"]),
    ] {
        if !context[field].is_null() {
            supported(&path.child(field), &context[field], &values, causes);
        }
    }
    let sysctls = path.child("sysctls");
    let mut seen = BTreeSet::new();
    for (i, sysctl) in items(&context["sysctls"]).iter().enumerate() {
        let name_path = sysctls.index(i);
        let name_path = name_path.child("name");
        let name = text(&sysctl["name"]);
        if name.is_empty() {
            causes.required(&name_path, "");
        } else if !is_sysctl(name) {
            let detail = "must have at most 253 characters and match regex \
                ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            causes.invalid(&name_path, name, detail);
        } else if !seen.insert(name.replace('/', ".")) {
            causes.duplicate(&name_path, name, "");
        }
        for (field, is_of) in
            [("hostNetwork", is_network_sysctl as fn(&str) -> bool), ("hostIPC", is_ipc_sysctl)]
        {
            if spec[field] == true && is_of(&name.replace('/', ".")) {
                let detail = format!("may not be specified when '{field}' is true");
                causes.invalid(&name_path, name, detail);
            }
        }
    }
}

/// Whether a text can be the name of a sysctl: segments between dots or slashes.
fn is_sysctl(name: &str) -> bool {
    const MAX: usize = 253;
    let is_plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_segment = |segment: &str| {
        let bytes = segment.as_bytes();
        let ends = bytes.first().zip(bytes.last());
        ends.is_some_and(|(first, last)| is_plain(*first) && is_plain(*last))
            && bytes.iter().all(|letter| is_plain(*letter) || matches!(letter, b'-' | b'_'))
    };
    name.len() <= MAX && name.split(['.', '/']).all(is_segment)
}

fn is_network_sysctl(name: &str) -> bool {
    name.starts_with("net.")
}

fn is_ipc_sysctl(name: &str) -> bool {
    name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix))
}

/// The claims of devices that the pod has; their names.
fn resource_claims<'a>(path: &Path<'_>, claims: &'a Value, causes: &mut Causes) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for (i, claim) in items(claims).iter().enumerate() {
        let path = path.index(i);
        let name_path = path.child("name");
        let name = text(&claim["name"]);
        match name {
            "" => causes.required(&name_path, ""),
            name if seen.contains(&name) => causes.duplicate(&name_path, name, ""),
            name => {
                causes.each(&name_path, name, names::dns_label(name));
                seen.push(name);
            }
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let given = sources.iter().filter(|source| !claim[**source].is_null()).count();
        let value = json!({
            "Name": name,
            "ResourceClaimName": claim[sources[0]],
            "ResourceClaimTemplateName": claim[sources[1]],
        });
        match given {
            0 => {
                let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                causes.invalid(&path, &value, why);
            }
            1 => {}
            _ => {
                let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may \
                           be specified";
                causes.invalid(&path, &value, why);
            }
        }
        for source in sources.into_iter().filter(|source| !claim[*source].is_null()) {
            let name = text(&claim[source]);
            causes.each(&path.child(source), name, names::dns_subdomain(name));
        }
    }
    seen
}

fn dns_config(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let config = &spec["dnsConfig"];
    let servers = items(&config["nameservers"]);
    if text(&spec["dnsPolicy"]) == "None" {
        if config.is_null() {
            return causes.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            return causes.required(
                &path.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    if servers.len() > 3 {
        causes.invalid(
            &path.child("nameservers"),
            servers,
            "must not have more than 3 nameservers",
        );
    }
    for (i, server) in servers.iter().enumerate() {
        ip(&path.child("nameservers").index(i), server, causes);
    }
    let searches = items(&config["searches"]);
    if searches.len() > 32 {
        causes.invalid(
            &path.child("searches"),
            searches,
            "must not have more than 32 search paths",
        );
    }
    for (i, search) in searches.iter().map(text).enumerate() {
        // A final dot is that of the root, and the root alone is a search path.
        let name = search.strip_suffix('.').unwrap_or(search);
        if search != "." {
            let list = path.child("searches");
            causes.each(&list.index(i), name, names::dns_subdomain_with_underscores(name));
        }
    }
    let length = searches.iter().map(|s| text(s).len() + 1).sum::<usize>();
    if length > 2049 {
        causes.invalid(
            &path.child("searches"),
            searches,
            "must not have more than 2048 characters (including spaces) in the search list",
        );
    }
    for (i, option) in items(&config["options"]).iter().enumerate() {
        if text(&option["name"]).is_empty() {
            causes.required(&path.child("options").index(i), "must not be empty");
        }
    }
}

fn gates(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    for (i, gate) in items(&spec["readinessGates"]).iter().enumerate() {
        let condition = text(&gate["conditionType"]);
        causes.each(
            &path.child("readinessGates").index(i).child("conditionType"),
            condition,
            names::qualified(condition),
        );
    }
    let mut seen = BTreeSet::new();
    for (i, gate) in items(&spec["schedulingGates"]).iter().enumerate() {
        let name = text(&gate["name"]);
        let list = path.child("schedulingGates");
        causes.each(&list.index(i), name, names::qualified(name));
        if !seen.insert(name) {
            causes.duplicate(&list.index(i), name, "");
        }
    }
}

fn small_fields(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    type Check = fn(&str) -> Vec<String>;
    let checks: [(&str, Check); 6] = [
        ("serviceAccountName", names::dns_subdomain),
        ("nodeName", names::dns_subdomain),
        ("priorityClassName", names::dns_subdomain),
        ("runtimeClassName", names::dns_subdomain),
        ("hostname", names::dns_label),
        ("subdomain", names::dns_label),
    ];
    for (field, check) in checks {
        let given = text(&spec[field]);
        if !given.is_empty() {
            causes.each(&path.child(field), given, check(given));
        }
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64()
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        causes.invalid(&path.child("activeDeadlineSeconds"), &seconds, range(1, i32::MAX.into()));
    }
    if !is_zero(&spec["preemptionPolicy"]) {
        one_of(
            &path.child("preemptionPolicy"),
            &spec["preemptionPolicy"],
            &["PreemptLowerPriority", "Never"],
            causes,
        );
    }
    if !spec["os"].is_null() {
        one_of(&path.child("os").child("name"), &spec["os"]["name"], &["linux", "windows"], causes);
    }
    for (name, quantity) in entries(&spec["overhead"]) {
        let list = path.child("overhead");
        container::quantity(&list.key(name), name, quantity, causes);
    }
}

pub(in crate::kinds) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(in crate::kinds) fn tolerations(path: &Path<'_>, tolerations: &Value, causes: &mut Causes) {
    for (i, toleration) in items(tolerations).iter().enumerate() {
        let path = path.index(i);
        let of = |field: &str| text(&toleration[field]);
        let (key, operator, value, effect) = (of("key"), of("operator"), of("value"), of("effect"));
        let operator_path = path.child("operator");
        if !key.is_empty() {
            causes.each(&path.child("key"), key, names::qualified(key));
        } else if operator != "Exists" {
            causes.invalid(
                &operator_path,
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            causes.invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "" | "Equal" => {
                let complaints = names::label_value(value);
                if !complaints.is_empty() {
                    causes.invalid(&operator_path, value, complaints.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                causes.invalid(
                    &operator_path,
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            _ => causes.not_supported(&operator_path, operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            causes.not_supported(&path.child("effect"), effect, &EFFECTS);
        }
    }
}

fn host_aliases(path: &Path<'_>, aliases: &Value, causes: &mut Causes) {
    for (i, alias) in items(aliases).iter().enumerate() {
        let path = path.index(i);
        ip(&path.child("ip"), &alias["ip"], causes);
        for (j, name) in items(&alias["hostnames"]).iter().enumerate() {
            causes.each(
                &path.child("hostnames").index(j),
                text(name),
                names::dns_subdomain(text(name)),
            );
        }
    }
}

/// An IP address of either family; leading zeros are refused, unlike upstream, since nodes disagree on them.
pub(in crate::kinds) fn ip(
    path: &Path<'_>,
    value: &Value,
    causes: &mut Causes,
) -> Option<std::net::IpAddr> {
    let parsed = text(value).parse().ok();
    if parsed.is_none() {
        causes.invalid(
            path,
            &json!(text(value)),
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        );
    }
    parsed
}

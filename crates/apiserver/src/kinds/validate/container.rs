//! Rules for one container.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::handlers::{lifecycle, probe};
use super::{non_negative, one_of, supported, volume};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::quantity::Quantity;
use crate::schema::resources::is_huge_page;
use crate::schema::value::{entries, is_zero, items, text};

/// Which list of the pod a container is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::kinds) enum Kind {
    Regular,
    Init,
    Ephemeral,
}

/// What of its pod a container is checked against.
pub(in crate::kinds) struct Context<'a> {
    /// The pod's volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    /// The names of the pod's claims of devices.
    pub claims: Vec<&'a str>,
    /// The pod's termination grace period.
    pub grace: Option<i64>,
}

/// Fields that only containers of a workload have.
const NOT_EPHEMERAL: [&str; 6] =
    ["lifecycle", "ports", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

pub(in crate::kinds) fn container(
    path: &Path<'_>,
    container: &Value,
    kind: Kind,
    context: &Context<'_>,
    causes: &mut Causes,
) {
    match text(&container["name"]) {
        "" => causes.required(&path.child("name"), ""),
        name => causes.each(&path.child("name"), name, names::dns_label(name)),
    }
    if text(&container["image"]).is_empty() {
        causes.required(&path.child("image"), "");
    }
    one_of(
        &path.child("terminationMessagePolicy"),
        &container["terminationMessagePolicy"],
        &["File", "FallbackToLogsOnError"],
        causes,
    );
    one_of(
        &path.child("imagePullPolicy"),
        &container["imagePullPolicy"],
        &["Always", "IfNotPresent", "Never"],
        causes,
    );
    ports(&path.child("ports"), &container["ports"], causes);
    env(&path.child("env"), &container["env"], causes);
    env_from(&path.child("envFrom"), &container["envFrom"], causes);
    volume::mounts(path, container, &context.volumes, causes);
    volume::devices(path, container, &context.volumes, causes);
    resources(&path.child("resources"), &container["resources"], causes);
    claims(&path.child("resources"), &container["resources"], &context.claims, causes);
    resize_policy(&path.child("resizePolicy"), &container["resizePolicy"], causes);
    security_context(&path.child("securityContext"), &container["securityContext"], causes);
    match kind {
        Kind::Regular => running(path, container, context, causes),
        Kind::Init if container["restartPolicy"] == "Always" => {
            running(path, container, context, causes)
        }
        Kind::Init => {
            for field in ["lifecycle"].iter().chain(&PROBES) {
                if !container[*field].is_null() {
                    causes.forbidden(
                        &path.child(field),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
            restart_policy(path, container, causes);
        }
        Kind::Ephemeral => {
            const NOT: &str = "cannot be set for an Ephemeral Container";
            for field in NOT_EPHEMERAL.iter().chain(&PROBES) {
                if !is_zero(&container[*field]) {
                    causes.forbidden(&path.child(field), NOT);
                }
            }
            let mounts = path.child("volumeMounts");
            for (i, mount) in items(&container["volumeMounts"]).iter().enumerate() {
                for field in ["subPath", "subPathExpr"] {
                    if !is_zero(&mount[field]) {
                        causes.forbidden(&mounts.index(i).child(field), NOT);
                    }
                }
            }
        }
    }
}

/// Rules for containers that run as long as their pod.
fn running(path: &Path<'_>, container: &Value, context: &Context<'_>, causes: &mut Causes) {
    lifecycle(&path.child("lifecycle"), &container["lifecycle"], context.grace, causes);
    for name in PROBES {
        probe(&path.child(name), &container[name], causes);
        let threshold = container[name]["successThreshold"].as_i64().unwrap_or(1);
        if name != "readinessProbe" && threshold > 1 {
            causes.invalid(&path.child(name).child("successThreshold"), &threshold, "must be 1");
        }
    }
    if !container["readinessProbe"]["terminationGracePeriodSeconds"].is_null() {
        causes.invalid(
            &path.child("readinessProbe").child("terminationGracePeriodSeconds"),
            &container["readinessProbe"]["terminationGracePeriodSeconds"],
            "must not be set for readinessProbes",
        );
    }
    restart_policy(path, container, causes);
}

fn restart_policy(path: &Path<'_>, container: &Value, causes: &mut Causes) {
    let field = path.child("restartPolicy");
    let rules = items(&container["restartPolicyRules"]);
    if container["restartPolicy"].is_null() {
        if !rules.is_empty() {
            causes.required(&field, "must specify restartPolicy when restart rules are used");
        }
    } else {
        let policies = ["Always", "Never", "OnFailure"];
        supported(&field, &container["restartPolicy"], &policies, causes);
    }
    if rules.len() > 20 {
        causes.too_many(&path.child("restartPolicyRules"), rules.len(), 20);
    }
}

fn ports(path: &Path<'_>, ports: &Value, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (i, port) in items(ports).iter().enumerate() {
        let path = path.index(i);
        let name = text(&port["name"]);
        if !name.is_empty() {
            let complaints = names::port_name(name);
            if complaints.is_empty() && !seen.insert(name) {
                causes.duplicate(&path.child("name"), name, "");
            }
            causes.each(&path.child("name"), name, complaints);
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => causes.required(&path.child("containerPort"), ""),
            number => port_number(&path.child("containerPort"), number, causes),
        }
        if let Some(number) = port["hostPort"].as_i64().filter(|n| *n != 0) {
            port_number(&path.child("hostPort"), number, causes);
        }
        one_of(&path.child("protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"], causes);
    }
}

pub(in crate::kinds) fn port_number(path: &Path<'_>, number: i64, causes: &mut Causes) {
    for complaint in names::port_number(number) {
        causes.invalid(path, &number, complaint);
    }
}

/// No two containers that run together take the same port of the host.
pub(in crate::kinds) fn host_ports(path: &Path<'_>, containers: &[Value], causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in items(&container["ports"]).iter().enumerate() {
            let Some(number) = port["hostPort"].as_i64().filter(|n| *n != 0) else { continue };
            let key = format!("{}/{}/{number}", text(&port["protocol"]), text(&port["hostIP"]));
            if seen.contains(&key) {
                causes.duplicate(
                    &path.index(i).child("ports").index(j).child("hostPort"),
                    &key,
                    "",
                );
            }
            seen.insert(key);
        }
    }
}

fn env(path: &Path<'_>, env: &Value, causes: &mut Causes) {
    const SOURCES: [&str; 5] =
        ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    const FIELDS: [&str; 9] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    for (i, variable) in items(env).iter().enumerate() {
        let path = path.index(i);
        match text(&variable["name"]) {
            "" => causes.required(&path.child("name"), ""),
            name => causes.each(&path.child("name"), name, names::env_name(name)),
        }
        let from = &variable["valueFrom"];
        if from.is_null() {
            continue;
        }
        let from_path = path.child("valueFrom");
        for source in ["configMapKeyRef", "secretKeyRef"] {
            if !from[source].is_null() {
                key_ref(&from_path.child(source), &from[source], causes);
            }
        }
        volume::field_ref(&from_path.child("fieldRef"), &from["fieldRef"], &FIELDS, causes);
        volume::resource_ref(
            &from_path.child("resourceFieldRef"),
            &from["resourceFieldRef"],
            false,
            causes,
        );
        match SOURCES.iter().filter(|s| !from[**s].is_null()).count() {
            0 => causes.invalid(
                &from_path,
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ),
            _ if !text(&variable["value"]).is_empty() => {
                causes.invalid(&from_path, "", "may not be specified when `value` is not empty");
            }
            1 => {}
            _ => causes.invalid(&from_path, "", "may not have more than one field specified at a time"),
        }
    }
}

fn key_ref(path: &Path<'_>, reference: &Value, causes: &mut Causes) {
    let name = text(&reference["name"]);
    causes.each(&path.child("name"), name, names::dns_subdomain(name));
    match text(&reference["key"]) {
        "" => causes.required(&path.child("key"), ""),
        key => causes.each(&path.child("key"), key, names::config_key(key)),
    }
}

fn env_from(list: &Path<'_>, sources: &Value, causes: &mut Causes) {
    for (i, source) in items(sources).iter().enumerate() {
        let path = list.index(i);
        let prefix = text(&source["prefix"]);
        causes.each(&path.child("prefix"), prefix, names::env_name(prefix));
        let given: Vec<&str> =
            ["configMapRef", "secretRef"].into_iter().filter(|r| !source[*r].is_null()).collect();
        for reference in &given {
            let name = text(&source[*reference]["name"]);
            if name.is_empty() {
                causes.required(&path.child(reference).child("name"), "");
            } else {
                causes.each(&path.child(reference).child("name"), name, names::dns_subdomain(name));
            }
        }
        match given.len() {
            0 => causes.invalid(list, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => causes.invalid(list, "", "may not have more than one field specified at a time"),
        }
    }
}

pub(in crate::kinds) fn resources(path: &Path<'_>, resources: &Value, causes: &mut Causes) {
    let parse = |v: &Value| Quantity::parse(text(v));
    let requests_path = path.child("requests");
    let limits_path = path.child("limits");
    let limits = &resources["limits"];
    for (name, limit) in entries(limits) {
        resource_name(&limits_path.key(name), name, causes);
        quantity(&limits_path.key(name), name, limit, causes);
    }
    for (name, request) in entries(&resources["requests"]) {
        resource_name(&requests_path.key(name), name, causes);
        quantity(&requests_path.key(name), name, request, causes);
        let may_overcommit = is_native(name) && !is_huge_page(name);
        match (parse(request), parse(&limits[name])) {
            (Some(r), Some(l)) if r.amount() != l.amount() && !may_overcommit => {
                causes.invalid(
                    &requests_path,
                    request,
                    format!("must be equal to {name} limit of {l}"),
                );
            }
            (Some(r), Some(l)) if r.amount() > l.amount() => {
                causes.invalid(
                    &requests_path,
                    request,
                    format!("must be less than or equal to {name} limit of {l}"),
                );
            }
            (Some(_), None) if !may_overcommit => {
                causes.required(&limits_path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
}

/// The claims that a container uses are the pod's.
fn claims(path: &Path<'_>, resources: &Value, known: &[&str], causes: &mut Causes) {
    let list = path.child("claims");
    let mut seen = BTreeSet::new();
    for (i, claim) in items(&resources["claims"]).iter().enumerate() {
        let path = list.index(i);
        let (name, request) = (text(&claim["name"]), text(&claim["request"]));
        if name.is_empty() {
            causes.required(&path, "");
            continue;
        }
        if !request.is_empty() {
            causes.each(&path.child("request"), request, names::dns_label(request));
        }
        let whole = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
        if seen.contains(name) || !seen.insert(name) && request.is_empty() {
            causes.duplicate(&path, &whole, "");
        }
        if !known.contains(&name) {
            let which = match known {
                [] => " which is empty".to_owned(),
                known => format!(": {}", known.join(", ")),
            };
            let why = format!("must be one of the names in pod.spec.resourceClaims{which}");
            causes.not_found_because(&path, name, why);
        }
    }
}

/// What a change of a resource needs, for each resource once.
fn resize_policy(path: &Path<'_>, policies: &Value, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (i, policy) in items(policies).iter().enumerate() {
        let resource = text(&policy["resourceName"]);
        if !seen.insert(resource) {
            causes.duplicate(&path.index(i), resource, "");
        }
        one_of(path, &policy["resourceName"], &["cpu", "memory"], causes);
        let needs = ["NotRequired", "RestartContainer"];
        one_of(path, &policy["restartPolicy"], &needs, causes);
    }
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.split('/').next().is_some_and(|p| p.ends_with("kubernetes.io"))
}

/// A resource that a container can ask for.
pub(in crate::kinds) fn resource_name(path: &Path<'_>, name: &str, causes: &mut Causes) {
    let complaints = names::qualified(name);
    let is_plain = !name.contains('/');
    let is_of_containers =
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
    if is_plain && !is_of_containers {
        if complaints.is_empty() {
            causes.invalid(path, name, "must be a standard resource type or fully qualified");
        }
        causes.invalid(path, name, "must be a standard resource for containers");
    }
    causes.each(path, name, complaints);
}

/// An amount that is not below zero, and whole where it counts things.
pub(in crate::kinds) fn quantity(path: &Path<'_>, name: &str, value: &Value, causes: &mut Causes) {
    let Some(quantity) = Quantity::parse(text(value)) else { return };
    if quantity.is_negative() {
        causes.invalid(path, value, "must be greater than or equal to 0");
    }
    if !is_native(name) && !quantity.is_whole() {
        causes.invalid(path, value, "must be an integer");
    }
}

pub(in crate::kinds) fn user_ids(
    path: &Path<'_>,
    context: &Value,
    fields: &[&str],
    causes: &mut Causes,
) {
    for field in fields {
        user_id(&path.child(field), &context[*field], causes);
    }
}

pub(in crate::kinds) fn user_id(path: &Path<'_>, value: &Value, causes: &mut Causes) {
    if let Some(id) = value.as_i64().filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
        causes.invalid(path, &id, names::range(0, i32::MAX.into()));
    }
}

fn security_context(path: &Path<'_>, context: &Value, causes: &mut Causes) {
    user_ids(path, context, &["runAsUser", "runAsGroup"], causes);
    seccomp(&path.child("seccompProfile"), &context["seccompProfile"], causes);
    app_armor(&path.child("appArmorProfile"), &context["appArmorProfile"], causes);
    if !context["procMount"].is_null() {
        let mounts = ["Default", "Unmasked"];
        supported(&path.child("procMount"), &context["procMount"], &mounts, causes);
    }
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            causes.invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        if items(&context["capabilities"]["add"]).iter().any(|c| c == "CAP_SYS_ADMIN") {
            causes.invalid(
                path,
                context,
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

pub(in crate::kinds) fn seccomp(path: &Path<'_>, profile: &Value, causes: &mut Causes) {
    if profile.is_null() {
        return;
    }
    profile_type(path, profile, "seccompProfile", causes);
    let file = path.child("localhostProfile");
    match (text(&profile["type"]) == "Localhost", &profile["localhostProfile"]) {
        // an empty path would run the container unconfined
        (true, given) if is_zero(given) => {
            causes.required(&file, "must be set when seccomp type is Localhost")
        }
        (true, given) => volume::descending(&file, text(given), causes),
        (false, Value::Null) => {}
        (false, _) => {
            #[derive(Serialize)]
            #[serde(rename_all = "PascalCase")]
            struct Shown<'a> {
                r#type: &'a str,
                localhost_profile: &'a Value,
            }
            let shown = Shown {
                r#type: text(&profile["type"]),
                localhost_profile: &profile["localhostProfile"],
            };
            causes.invalid(&file, &shown, "can only be set when seccomp type is Localhost")
        }
    }
}

fn profile_type(path: &Path<'_>, profile: &Value, what: &str, causes: &mut Causes) {
    let path = path.child("type");
    if text(&profile["type"]).is_empty() {
        return causes.required(&path, &format!("type is required when {what} is set"));
    }
    let types = ["Localhost", "RuntimeDefault", "Unconfined"];
    supported(&path, &profile["type"], &types, causes);
}

pub(in crate::kinds) fn app_armor(path: &Path<'_>, profile: &Value, causes: &mut Causes) {
    const MAX_NAME: usize = 4095;
    if profile.is_null() {
        return;
    }
    profile_type(path, profile, "appArmorProfile", causes);
    let field = path.child("localhostProfile");
    let given = &profile["localhostProfile"];
    let name = text(given);
    match text(&profile["type"]) {
        "Localhost" => {
            if name.trim() != name {
                causes.invalid(&field, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                causes.required(&field, "must be set when AppArmor type is Localhost");
            }
            if name.len() > MAX_NAME {
                causes.too_long(&field, MAX_NAME);
            }
        }
        "RuntimeDefault" | "Unconfined" if !given.is_null() => {
            causes.invalid(&field, name, "can only be set when AppArmor type is Localhost");
        }
        _ => {}
    }
}

/// Fields of a probe that count something.
pub(in crate::kinds) fn counts(
    path: &Path<'_>,
    value: &Value,
    fields: &[&str],
    causes: &mut Causes,
) {
    for field in fields {
        non_negative(&path.child(field), &value[*field], causes);
    }
}

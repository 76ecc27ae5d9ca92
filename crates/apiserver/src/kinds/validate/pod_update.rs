//! What may change in a pod that exists.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{immutable, pod};
use crate::schema::field::{Causes, Path};
use crate::schema::names::{self, range};
use crate::schema::value::{by_name, entries, is_zero, items, items_mut, same, text};

const MAY_CHANGE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` \
(allow it to be set to 1 if it was previously negative)";

/// An update of a pod's spec: images, a shorter deadline, more tolerations, fewer scheduling gates.
pub(in crate::kinds) fn update(pod: &Value, old: &Value, causes: &mut Causes) {
    pod::metadata_and_spec(pod, causes);
    let path = Path::root("spec");
    let (new, old) = (&pod["spec"], &old["spec"]);
    for list in ["containers", "initContainers"] {
        if items(&new[list]).len() != items(&old[list]).len() {
            return causes
                .forbidden(&path.child(list), "pod updates may not add or remove containers");
        }
    }
    deadline(&path.child("activeDeadlineSeconds"), new, old, causes);
    tolerations(&path.child("tolerations"), new, old, causes);
    let gates = path.child("schedulingGates");
    let had: HashSet<&str> =
        items(&old["schedulingGates"]).iter().map(|g| text(&g["name"])).collect();
    for (i, gate) in items(&new["schedulingGates"]).iter().enumerate() {
        if !had.contains(text(&gate["name"])) {
            let complaint = "only deletion is allowed, but found new scheduling gate";
            causes.forbidden(&gates.index(i), complaint);
        }
    }
    let changed = changed_fields(new, old);
    if !changed.is_empty() {
        causes.forbidden(
            &path,
            format!(
                "pod updates may not change fields other than {MAY_CHANGE}\nchanged: {}",
                changed.join(", ")
            ),
        );
    }
}

fn deadline(path: &Path<'_>, new: &Value, old: &Value, causes: &mut Causes) {
    let (new, old) = (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64());
    match (new, old) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            causes.invalid(path, &new, range(0, i32::MAX.into()));
        }
        (Some(new), Some(old)) if old < new => {
            causes.invalid(path, &new, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            causes.invalid(
                path,
                &Value::Null,
                "must not update from a positive integer to nil value",
            );
        }
        _ => {}
    }
}

fn tolerations(path: &Path<'_>, new: &Value, old: &Value, causes: &mut Causes) {
    let without_seconds = |toleration: &Value| {
        let set = entries(toleration).filter(|(k, v)| *k != "tolerationSeconds" && !is_zero(v));
        set.map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",")
    };
    let kept: HashSet<String> = items(&new["tolerations"]).iter().map(without_seconds).collect();
    if !items(&old["tolerations"]).iter().all(|old| kept.contains(&without_seconds(old))) {
        let complaint = "existing toleration can not be modified except its tolerationSeconds";
        causes.forbidden(path, complaint);
    }
}

/// The fields of the spec that differ and must not.
fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let mut munged = new.as_object().cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        for (container, old) in items_mut(munged.get_mut(list)).zip(items(&old[list])) {
            restore_field(container, old, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore_field(&mut munged, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    if old[grace].as_i64().is_some_and(|g| g < 0) && new[grace] == 1 {
        restore_field(&mut munged, old, grace);
    }
    if !items(&old["schedulingGates"]).is_empty()
        && only_adds(&new["nodeSelector"], &old["nodeSelector"])
    {
        restore_field(&mut munged, old, "nodeSelector");
    }
    let old = old.as_object().cloned().unwrap_or_default();
    let mut names: Vec<&String> = munged.keys().chain(old.keys()).collect();
    names.sort();
    names.dedup();
    let of = |map: &Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
    names
        .into_iter()
        .filter(|n| !same(&of(&munged, n), &of(&old, n)))
        .map(|n| format!("spec.{n}"))
        .collect()
}

fn restore_field(map: &mut Map<String, Value>, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

fn only_adds(new: &Value, old: &Value) -> bool {
    old.as_object().is_none_or(|old| old.iter().all(|(k, v)| new.get(k) == Some(v)))
}

/// An update of a pod's status.
pub(in crate::kinds) fn status(pod: &Value, old: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let (new, was) = (&pod["status"], &old["status"]);
    immutable(&path.child("qosClass"), &new["qosClass"], &was["qosClass"], causes);
    let nominated = text(&new["nominatedNodeName"]);
    if !nominated.is_empty() && nominated != text(&was["nominatedNodeName"]) {
        causes.each(&path.child("nominatedNodeName"), nominated, names::dns_subdomain(nominated));
        if !text(&old["spec"]["nodeName"]).is_empty() {
            causes.forbidden(
                &path.child("nominatedNodeName"),
                "may not be set on pods that are already bound to a node",
            );
        }
    }
    if let Some(generation) = new["observedGeneration"].as_i64().filter(|g| *g < 0) {
        causes.invalid(
            &path.child("observedGeneration"),
            &generation,
            "must be a non-negative integer",
        );
    }
    for (i, condition) in items(&new["conditions"]).iter().enumerate() {
        let kind = text(&condition["type"]);
        causes.each(&path.child("conditions").index(i).child("Type"), kind, names::qualified(kind));
    }
    for (list, field) in [("podIPs", "ip"), ("hostIPs", "ip")] {
        for (i, ip) in items(&new[list]).iter().enumerate() {
            if new[list] != was[list] {
                pod::ip(&path.child(list).index(i).child(field), &ip[field], causes);
            }
        }
    }
    transitions(
        &path.child("containerStatuses"),
        "containerStatuses",
        "containers",
        pod,
        old,
        causes,
    );
    transitions(
        &path.child("initContainerStatuses"),
        "initContainerStatuses",
        "initContainers",
        pod,
        old,
        causes,
    );
}

/// A container that ended for good does not come back.
fn transitions(
    path: &Path<'_>,
    statuses: &str,
    list: &str,
    pod: &Value,
    old: &Value,
    causes: &mut Causes,
) {
    let spec = &old["spec"];
    let (statuses_by_name, containers) = (by_name(&pod["status"][statuses]), by_name(&spec[list]));
    for (i, was) in items(&old["status"][statuses]).iter().enumerate() {
        let ended = &was["state"]["terminated"];
        if ended.is_null() {
            continue;
        }
        let name = text(&was["name"]);
        let Some(now) = statuses_by_name.get(name) else { continue };
        let container = containers.get(name).copied();
        if now["state"]["terminated"].is_null() && !may_restart(spec, container, &ended["exitCode"])
        {
            causes.forbidden(
                &path.index(i).child("state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

fn may_restart(spec: &Value, container: Option<&Value>, exit_code: &Value) -> bool {
    // one container's end may have all of them run again
    let mut all = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
    let rules = |c: &Value| {
        items(&c["restartPolicyRules"]).iter().any(|rule| rule["action"] == "RestartAllContainers")
    };
    if all.any(rules) {
        return true;
    }
    let own = container.map_or(&Value::Null, |c| &c["restartPolicy"]);
    // a rule may restart where the policy would not
    if container.is_some_and(|c| !is_zero(&c["restartPolicyRules"])) {
        return true;
    }
    let policy = if own.is_null() { &spec["restartPolicy"] } else { own };
    match text(policy) {
        "Never" => false,
        "OnFailure" => exit_code.as_i64().unwrap_or(0) != 0,
        _ => true,
    }
}

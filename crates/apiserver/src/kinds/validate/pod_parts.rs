//! What the subresources of a pod may change: ephemeral containers come and stay, resources move.

use serde_json::{Map, Value, json};

use crate::kinds::qos;
use crate::schema::field::{Causes, Path};
use crate::schema::value::{by_name, entries, is_zero, items, items_mut, same, text};

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Ephemeral containers are added, and then stay as they are.
pub(in crate::kinds) fn ephemeral_containers(pod: &Value, old: &Value, causes: &mut Causes) {
    if is_mirror(old) {
        return only(causes, "static pods do not support ephemeral containers");
    }
    let list = "ephemeralContainers";
    let spec = Path::root("spec");
    let path = spec.child(list);
    let known = by_name(&pod["spec"][list]);
    for was in items(&old["spec"][list]) {
        let name = text(&was["name"]);
        let now = known.get(name).copied();
        let complaint = match now {
            Some(now) if same(now, was) => continue,
            Some(_) => "changed",
            None => "removed",
        };
        causes.forbidden(
            &path,
            format!("existing ephemeral containers {name:?} may not be {complaint}\n"),
        );
    }
}

/// Requests and limits of CPU and memory change, within the pod's class of service.
pub(in crate::kinds) fn resize(pod: &Value, old: &Value, causes: &mut Causes) {
    if is_mirror(old) {
        return only(causes, "static pods cannot be resized");
    }
    let path = Path::root("spec");
    let class = text(&old["status"]["qosClass"]);
    let class = if class.is_empty() { qos::class(&old["spec"]) } else { class };
    if class != qos::class(&pod["spec"]) {
        causes.invalid(&path, class, "Pod QOS Class may not change as a result of resizing");
    }
    // one that runs where nothing is said of its resources runs where they cannot be changed
    let statuses = items(&old["status"]["containerStatuses"]);
    let running = statuses.iter().find(|status| !status["state"]["running"].is_null());
    if running.is_some_and(|status| status["resources"].is_null()) {
        causes.forbidden(&path, "Pod running on node without support for resize");
    }
    let (own, had) = (&pod["spec"]["resources"], &old["spec"]["resources"]);
    for kind in ["requests", "limits"] {
        if was_removed(&own[kind], &had[kind]) {
            let complaint = format!("pod-level resource {kind} cannot be removed");
            causes.forbidden(&path.child("resources").child(kind), complaint);
        }
    }
    if !same_containers(pod, old, causes) {
        return;
    }
    let mut rest = pod["spec"].clone();
    if let Some(rest) = rest.as_object_mut() {
        restore_amounts(rest, &old["spec"]);
    }
    for list in ["initContainers", "containers"] {
        let list_path = path.child(list);
        let pairs = items(&pod["spec"][list]).iter().zip(items(&old["spec"][list]));
        for (i, ((now, was), rest)) in pairs.zip(items_mut(rest.get_mut(list))).enumerate() {
            let container = list_path.index(i);
            for kind in ["requests", "limits"] {
                let field = container.child("resources");
                if was_removed(&now["resources"][kind], &was["resources"][kind]) {
                    let complaint = format!("resource {kind} cannot be removed");
                    causes.forbidden(&field.child(kind), complaint);
                }
            }
            let is_plain_init = list == "initContainers" && was["restartPolicy"] != "Always";
            let restarts = items(&now["resizePolicy"])
                .iter()
                .any(|p| p["restartPolicy"] == "RestartContainer");
            if is_plain_init && restarts && !same(now, was) {
                causes.forbidden(
                    &container,
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
                );
            }
            restore_amounts(rest, was);
        }
    }
    if !same(&rest, &old["spec"]) {
        causes.forbidden(&path, "only cpu and memory resources are mutable");
    }
}

/// Whether the containers are those of the pod, in their order.
fn same_containers(pod: &Value, old: &Value, causes: &mut Causes) -> bool {
    let path = Path::root("spec");
    let mut is_same = true;
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        let (new, old) = (items(&pod["spec"][list]), items(&old["spec"][list]));
        if new.len() != old.len() {
            is_same = false;
            causes.forbidden(&list_path, format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            if text(&new["name"]) != text(&old["name"]) {
                is_same = false;
                let complaint = format!("{list} may not be renamed or reordered on resize");
                causes.forbidden(&list_path.index(i).child("name"), complaint);
            }
        }
    }
    is_same
}

fn was_removed(new: &Value, old: &Value) -> bool {
    entries(old).any(|(name, _)| new.get(name).is_none())
}

/// Restores the amounts of CPU and memory, which leaves all other changes.
fn restore_amounts(holder: &mut Map<String, Value>, old: &Value) {
    for kind in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            let was = &old["resources"][kind][name];
            let now = holder.get("resources").map_or(&Value::Null, |r| &r[kind][name]);
            if was.is_null() && now.is_null() {
                continue;
            }
            let resources = holder.entry("resources").or_insert_with(|| json!({}));
            let amounts = match resources.as_object_mut() {
                Some(resources) => resources.entry(kind).or_insert_with(|| json!({})),
                None => continue,
            };
            let Some(amounts) = amounts.as_object_mut() else { continue };
            match was.is_null() {
                true => drop(amounts.remove(name)),
                false => drop(amounts.insert(name.to_owned(), was.clone())),
            }
            if amounts.is_empty()
                && let Some(resources) = resources.as_object_mut()
            {
                resources.remove(kind);
            }
        }
    }
    // what was empty before is empty again
    if holder.get("resources").is_some_and(is_zero) && old["resources"].is_null() {
        holder.remove("resources");
    }
}

fn is_mirror(pod: &Value) -> bool {
    !pod["metadata"]["annotations"][MIRROR].is_null()
}

/// The one reason that counts.
fn only(causes: &mut Causes, why: &str) {
    causes.0.clear();
    causes.forbidden(&Path::root(""), why);
}

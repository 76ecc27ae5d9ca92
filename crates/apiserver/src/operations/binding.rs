//! Binding of pods to nodes (`pods/binding`).

use serde_json::{Value, json};

use super::update::{check_uid, precondition_failed};
use super::{Api, calling_node, check_namespace};
use crate::admission::node_restriction;
use crate::api_types::Resource;
use crate::kinds;
use crate::object;
use crate::registry::Write;
use crate::status::StatusError;
use crate::user::User;

impl Api {
    /// Assigns a pod to the node that a Binding names.
    pub(crate) async fn bind(
        &self,
        user: &User,
        pods: &Resource,
        namespace: &str,
        name: &str,
        binding: &Value,
        dry_run: bool,
    ) -> Result<(), StatusError> {
        if let Some(node) = calling_node(user) {
            node_restriction::admit_subresource(node, pods, name, "binding")?;
        }
        let named = object::name(binding);
        if named != name {
            return Err(StatusError::bad_request(
                "name in URL does not match name in Binding object",
            ));
        }
        check_namespace(binding, namespace)?;
        // upstream does not say that it is invalid
        kinds::validate_binding(binding).map_err(|error| match error.details {
            Some(details) if error.code == 422 => {
                let all: Vec<String> = details
                    .causes
                    .iter()
                    .map(|cause| format!("{}: {}", cause.field, cause.message))
                    .collect();
                StatusError::internal_plain(all.join(", "))
            }
            _ => error,
        })?;
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        let conflict = |why: String| StatusError::conflict_of(("", "pods/binding"), name, &why);
        self.registry
            .write(pods, (namespace, name), None, dry_run, |current| {
                check_uid(pods, object::uid(binding), current)?;
                let (version, found) =
                    (object::resource_version(binding), object::resource_version(current));
                if !version.is_empty() && version != found {
                    let why = format!(
                        "ResourceVersion in precondition: {version}, ResourceVersion in object meta: {found}"
                    );
                    return Err(precondition_failed(pods, current, &why));
                }
                if object::is_deleting(current) {
                    return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
                }
                if let Some(node) = current["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
                    return Err(conflict(format!("pod {name} is already assigned to node {node:?}")));
                }
                if current["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                    return Err(conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
                }
                Ok(Write::Put(bound(current, binding, node)))
            })
            .await
            .map(drop)
    }
}

fn bound(pod: &Value, binding: &Value, node: &str) -> Value {
    let mut pod = pod.clone();
    object::child_mut(&mut pod, "spec").insert("nodeName".into(), node.into());
    let metadata = object::metadata_mut(&mut pod);
    for field in ["annotations", "labels"] {
        let Some(given) = binding["metadata"][field].as_object().filter(|given| !given.is_empty())
        else {
            continue;
        };
        let own = metadata.entry(field).or_insert_with(|| json!({}));
        for (key, value) in given {
            own[key] = value.clone();
        }
    }
    let status = object::child_mut(&mut pod, "status");
    status.remove("nominatedNodeName");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let scheduled = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": object::now().to_string(),
    });
    match conditions.as_array_mut() {
        Some(conditions) => {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(scheduled);
        }
        None => *conditions = json!([scheduled]),
    }
    pod
}

//! The `scale` of a replication controller: its size, seen and set without the rest.

use serde_json::{Value, json};

use super::{Api, Change};
use crate::api_types::{Gvk, Resource};
use crate::object;
use crate::patch;
use crate::registry::Write;
use crate::schema;
use crate::status::{Cause, MODIFIED, StatusError};

/// The Scale of a replication controller.
pub(crate) fn of(controller: &Value) -> Value {
    let selector = controller["spec"]["selector"].as_object().into_iter().flatten();
    let selector: Vec<String> = selector
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let metadata = &controller["metadata"];
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": number(&controller["spec"]["replicas"])},
        "status": {
            "replicas": number(&controller["status"]["replicas"]),
            "selector": selector.join(","),
        },
    })
}

impl Api {
    /// Sets the size of a controller through its Scale; returns the new Scale.
    pub(crate) async fn set_scale(
        &self,
        resource: &Resource,
        gvk: Gvk,
        (namespace, name): (&str, &str),
        change: &Change<'_>,
        dry_run: bool,
    ) -> Result<Value, StatusError> {
        let written = self
            .registry
            .write(resource, (namespace, name), None, dry_run, |current| {
                let scale = match change {
                    Change::Replace(scale) => scale.clone(),
                    Change::Patch { kind, body, validation } => {
                        let patched = patch::apply(*kind, gvk, &of(current), body)?;
                        schema::conform(gvk, patched, *validation)?.0
                    }
                };
                let version = object::resource_version(&scale);
                if !version.is_empty() && version != object::resource_version(current) {
                    return Err(StatusError::conflict(resource, name, MODIFIED));
                }
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                if replicas < 0 {
                    let cause = Cause {
                        reason: "FieldValueInvalid",
                        message: format!(
                            "Invalid value: {replicas}: must be greater than or equal to 0"
                        ),
                        field: "spec.replicas".into(),
                    };
                    return Err(StatusError::invalid(resource, name, vec![cause]));
                }
                let mut new = current.clone();
                object::child_mut(&mut new, "spec").insert("replicas".into(), replicas.into());
                schema::prepare_update(resource, &mut new, current);
                Ok(Write::Put(new))
            })
            .await?;
        Ok(of(&written.object))
    }
}

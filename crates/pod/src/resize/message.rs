//! Messages of resize events, which contain the requested resources as JSON.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;

use crate::spec;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Own<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Own<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Own<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

impl<'a> Own<'a> {
    fn of(container: &'a Container) -> Self {
        Self { name: &container.name, resources: container.resources.clone().unwrap_or_default() }
    }
}

/// `Pod resize <what>` with a summary; `error` is left out if it is empty.
pub fn message(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let pod_spec = pod.spec.as_ref();
    let init = pod_spec.map(spec::init_containers).unwrap_or_default();
    let summary = Summary {
        init_containers: init.iter().map(Own::of).collect(),
        containers: pod_spec.iter().flat_map(|spec| &spec.containers).map(Own::of).collect(),
        generation: generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("Pod resize {what}: {summary}"),
        Err(_) => format!("Pod resize {what}"),
    }
}

//! Features of its node that a pod needs, of those that nodes declare.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use longshore_gates::DeclaredFeatures;

use crate::spec;

/// What a node needs to run the pod.
pub fn needed(pod_spec: &PodSpec) -> DeclaredFeatures {
    let host_network = pod_spec.host_network == Some(true);
    DeclaredFeatures::for_pod(
        spec::may_restart_all(pod_spec),
        host_network && spec::has_user_namespace(pod_spec),
    )
}

/// What its node needs to follow an update of the pod.
pub fn needed_by_update(old: &PodSpec, new: &PodSpec) -> DeclaredFeatures {
    let none = ResourceRequirements::default();
    let resources = |own: &Option<ResourceRequirements>| own.clone().unwrap_or(none.clone());
    let is_init = |container: &&Container| !spec::is_sidecar(container);
    let mut inits = spec::init_containers(old).iter().zip(spec::init_containers(new));
    DeclaredFeatures::for_resize(
        resources(&old.resources) != resources(&new.resources),
        inits.any(|(old, new)| {
            is_init(&old) && resources(&old.resources) != resources(&new.resources)
        }),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec_of(spec: Value) -> PodSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn declared_features_that_a_pod_needs() {
        let rules = |action: &str| {
            json!([{"name": "c", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": "In", "values": [1]}},
            ]}])
        };
        let (restart, host) =
            ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport");
        for (spec, expected) in [
            (json!({"containers": []}), ""),
            (json!({"containers": rules("Restart")}), ""),
            (json!({"containers": rules("RestartAllContainers")}), restart),
            (json!({"containers": [], "initContainers": rules("RestartAllContainers")}), restart),
            (json!({"containers": [], "hostNetwork": true}), ""),
            (json!({"containers": [], "hostUsers": false}), ""),
            (json!({"containers": [], "hostNetwork": true, "hostUsers": true}), ""),
            (json!({"containers": [], "hostNetwork": true, "hostUsers": false}), host),
        ] {
            assert_eq!(needed(&spec_of(spec.clone())).to_string(), expected, "{spec}");
        }
    }

    #[test]
    fn declared_features_that_an_update_needs() {
        let pod = |resources: Value| json!({"containers": [], "resources": resources});
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let init = |policy: Value, resources: Value| {
            json!({"containers": [], "initContainers": [
                {"name": "i", "restartPolicy": policy, "resources": resources},
            ]})
        };
        let regular =
            |resources: Value| json!({"containers": [{"name": "c", "resources": resources}]});
        let (of_pod, of_init) =
            ("InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers");
        for (old, new, expected) in [
            (pod(Value::Null), pod(Value::Null), ""),
            (pod(Value::Null), pod(json!({})), ""),
            (pod(cpu("1")), pod(cpu("1")), ""),
            (pod(cpu("1")), pod(cpu("2")), of_pod),
            (pod(Value::Null), pod(cpu("1")), of_pod),
            (init(Value::Null, cpu("1")), init(Value::Null, cpu("1")), ""),
            (init(Value::Null, cpu("1")), init(Value::Null, cpu("2")), of_init),
            (init(json!("Always"), cpu("1")), init(json!("Always"), cpu("2")), ""),
            (regular(cpu("1")), regular(cpu("2")), ""),
        ] {
            let needed = needed_by_update(&spec_of(old.clone()), &spec_of(new.clone()));
            assert_eq!(needed.to_string(), expected, "{old} {new}");
        }
    }
}

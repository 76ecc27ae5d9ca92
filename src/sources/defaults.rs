//! What the apiserver would have filled in for a pod that never passes it.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration};

const GRACE_SECONDS: i64 = 30;

/// Fill in what a manifest leaves out.
pub(super) fn apply(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let or = |field: &mut Option<String>, value: &str| {
        field.get_or_insert_with(|| value.to_owned());
    };
    or(&mut spec.restart_policy, "Always");
    or(&mut spec.dns_policy, "ClusterFirst");
    or(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(GRACE_SECONDS);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    tolerate_everything(spec);
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    containers.for_each(container);
}

/// A static pod stays whatever befalls its node.
fn tolerate_everything(spec: &mut PodSpec) {
    let toleration = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&toleration) {
        tolerations.push(toleration);
    }
}

fn container(container: &mut Container) {
    let latest = container.image.as_deref().is_some_and(|image| {
        let name = image.rsplit('/').next().unwrap_or(image);
        !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"))
    });
    let policy = if latest { "Always" } else { "IfNotPresent" };
    container.image_pull_policy.get_or_insert_with(|| policy.to_owned());
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
    container.termination_message_policy.get_or_insert_with(|| "File".to_owned());
    for port in container.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
        if pod_port_is_host(port.host_port) {
            port.host_port = None;
        }
    }
    // A limit without a request asks for as much as it allows.
    if let Some(resources) = &mut container.resources
        && let Some(limits) = resources.limits.clone()
    {
        let requests = resources.requests.get_or_insert_default();
        for (name, quantity) in limits {
            requests.entry(name).or_insert(quantity);
        }
    }
}

/// 0 is how some tools write "none".
fn pod_port_is_host(host_port: Option<i32>) -> bool {
    host_port == Some(0)
}

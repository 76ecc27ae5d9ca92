//! Helpers for the spec and metadata of pods.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};

/// Annotation: the source of a pod: `file`, `http` or `api`.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Annotation of a mirror pod: the hash of the static pod that it mirrors.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// Annotation of a static pod: the hash of its manifest.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// Annotation of a static pod whose manifest has a UID: the hash of the rest of its content.
pub const CONTENT_ANNOTATION: &str = "longshore/config.content";
/// Annotation of a static pod: when the node first saw it.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// Pods of this priority and above are system critical.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Default termination grace period (seconds).
const DEFAULT_TERMINATION_GRACE: i64 = 30;

/// The list of the spec that a container is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// `initContainers` without `restartPolicy: Always`.
    Init,
    /// `initContainers` with `restartPolicy: Always`.
    Sidecar,
    /// `containers`.
    Regular,
    /// `ephemeralContainers`.
    Ephemeral,
}

/// The pod's UID, or "" for an object that has none yet.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name, or "".
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace, or "".
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// The name of the pod's service account, if it has one.
pub fn service_account(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// Whether the pod has a user namespace of its own.
pub fn has_user_namespace(pod_spec: &PodSpec) -> bool {
    pod_spec.host_users == Some(false)
}

/// The pod in logs and messages: `name_namespace(uid)`.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// The termination grace period in seconds: that of the deletion, or else the pod's own; at least
/// 1, as a forced deletion still sends the stop signal.
pub fn termination_grace_seconds(pod: &Pod) -> i64 {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = pod.metadata.deletion_grace_period_seconds.or(own);
    seconds.unwrap_or(DEFAULT_TERMINATION_GRACE).max(1)
}

/// An annotation of the pod.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the pod comes from a file or a URL and not from the apiserver.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Whether the object is the mirror pod of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some()
}

/// The pod's priority; 0 if it has none.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Whether the pod is critical: a static pod, its mirror pod, or one of a system priority.
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || is_mirror(pod) || priority(pod) >= SYSTEM_CRITICAL
}

/// Whether the pod is critical for the node.
pub fn is_node_critical(pod: &Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    class == Some("system-node-critical") && is_critical(pod)
}

/// Whether the pod shares the node's network namespace.
pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// Whether an init container is a sidecar.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The kind of a container in the list of init containers.
pub fn kind_of_init(container: &Container) -> ContainerKind {
    match is_sidecar(container) {
        true => ContainerKind::Sidecar,
        false => ContainerKind::Init,
    }
}

/// The init containers and sidecars of the spec, in order.
pub fn init_containers(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

/// Init containers, sidecars and regular containers in the order in which they start.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = (ContainerKind, &Container)> {
    let init = init_containers(spec).iter().map(|container| (kind_of_init(container), container));
    init.chain(spec.containers.iter().map(|container| (ContainerKind::Regular, container)))
}

/// The container of that name, in any list.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, Cow<'a, Container>)> {
    let pod_spec = pod.spec.as_ref()?;
    let declared = containers(pod_spec).find(|(_, container)| container.name == name);
    declared.map(|(kind, container)| (kind, Cow::Borrowed(container))).or_else(|| {
        let ephemeral = ephemeral_containers(pod_spec).iter().find(|found| found.name == name)?;
        Some((ContainerKind::Ephemeral, Cow::Owned(ephemeral_as_container(ephemeral))))
    })
}

/// Whether a container of the spec mounts the volume or has it as a device; true for a spec without
/// containers.
pub fn uses_volume(spec: &PodSpec, volume: &str) -> bool {
    let lasting = containers(spec).map(|(_, c)| (&c.volume_mounts, &c.volume_devices));
    let ephemeral = ephemeral_containers(spec).iter();
    let mut all =
        lasting.chain(ephemeral.map(|c| (&c.volume_mounts, &c.volume_devices))).peekable();
    all.peek().is_none()
        || all.any(|(mounts, devices)| {
            mounts.iter().flatten().any(|mount| mount.name == volume)
                || devices.iter().flatten().any(|device| device.name == volume)
        })
}

/// The ephemeral containers of the spec.
pub fn ephemeral_containers(spec: &PodSpec) -> &[EphemeralContainer] {
    spec.ephemeral_containers.as_deref().unwrap_or_default()
}

/// An ephemeral container as a container; its target is lost.
pub fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    let own = ephemeral.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        lifecycle: own.lifecycle,
        liveness_probe: own.liveness_probe,
        name: own.name,
        ports: own.ports,
        readiness_probe: own.readiness_probe,
        resize_policy: own.resize_policy,
        resources: own.resources,
        restart_policy: own.restart_policy,
        restart_policy_rules: own.restart_policy_rules,
        security_context: own.security_context,
        startup_probe: own.startup_probe,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
    }
}

/// The path of a container's field in the pod, as in events.
pub fn field_path(kind: ContainerKind, name: &str) -> String {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => format!("spec.initContainers{{{name}}}"),
        ContainerKind::Regular => format!("spec.containers{{{name}}}"),
        ContainerKind::Ephemeral => format!("spec.ephemeralContainers{{{name}}}"),
    }
}

/// Feature gates that change how pods are handled; by default as in Kubernetes 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `ContainerRestartRules`: containers have restart policies and rules of their own.
    pub container_restart_rules: bool,
    /// `RestartAllContainersOnContainerExits`: a rule may restart all containers.
    pub restart_all_containers: bool,
    /// `ContainerStopSignals`: the stop signal is reported in the status.
    pub container_stop_signals: bool,
    /// `ImageVolumeWithDigest`: the digests of images that are volumes are reported in the status.
    pub image_volume_digests: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: pod-level resources can be resized.
    pub resize_pods: bool,
    /// `InPlacePodVerticalScalingInitContainers`: init containers can be resized.
    pub resize_init_containers: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            container_restart_rules: true,
            restart_all_containers: true,
            container_stop_signals: false,
            image_volume_digests: false,
            resize_pods: true,
            resize_init_containers: true,
        }
    }
}

/// Whether a container that exited with `exit_code` is restarted under its policies and rules. An
/// init container that succeeded is done, whatever this returns.
pub fn restarts(
    spec: &PodSpec,
    kind: ContainerKind,
    container: &Container,
    exit_code: i32,
    gates: Gates,
) -> bool {
    if kind == ContainerKind::Sidecar {
        return true;
    }
    let action = restart_rule(container, exit_code).filter(|_| gates.container_restart_rules);
    match action {
        Some("Restart") => true,
        Some(RESTART_ALL) if gates.restart_all_containers => true,
        _ => match restart_policy(spec, container, gates) {
            "Never" => false,
            "OnFailure" => exit_code != 0,
            _ => true,
        },
    }
}

/// Whether a container that is killed because it does not work is restarted. Rules do not apply, as
/// they match exit codes, and it has none of its own.
pub fn restarts_after_kill(
    spec: &PodSpec,
    kind: ContainerKind,
    container: &Container,
    gates: Gates,
) -> bool {
    kind == ContainerKind::Sidecar || restart_policy(spec, container, gates) != "Never"
}

/// Whether a rule of the container restarts all containers of its pod after that exit code.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    restart_rule(container, exit_code) == Some(RESTART_ALL)
}

/// Whether some exit of some container restarts all of them.
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let mut rules = containers(spec).flat_map(|(_, c)| c.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == RESTART_ALL)
}

const RESTART_ALL: &str = "RestartAllContainers";

fn restart_policy<'a>(spec: &'a PodSpec, container: &'a Container, gates: Gates) -> &'a str {
    let own = container.restart_policy.as_deref().filter(|_| gates.container_restart_rules);
    own.or(spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// The action of the first of the container's `restartPolicyRules` that matches an exit code.
fn restart_rule(container: &Container, exit_code: i32) -> Option<&str> {
    let rules = container.restart_policy_rules.as_deref()?;
    let matching = rules.iter().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let named = codes.values.as_ref().is_some_and(|values| values.contains(&exit_code));
            match codes.operator.as_str() {
                "In" => named,
                "NotIn" => !named,
                _ => false,
            }
        })
    });
    matching.map(|rule| rule.action.as_str())
}

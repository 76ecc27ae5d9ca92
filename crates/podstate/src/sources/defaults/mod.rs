//! API defaults for static pods, which the apiserver does not see. Upstream's UID of a static pod
//! is a hash that includes them, so they must be exactly upstream's.

mod pod_level;

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, EphemeralContainer, HTTPGetAction, ObjectFieldSelector, Pod,
    PodSpec, Probe, ResourceRequirements, Volume,
};
use longshore_pod::spec;

const GRACE_SECONDS: i64 = 30;
const MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Set the defaults of a pod.
pub(super) fn apply(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.resources.iter_mut().for_each(requests_follow_limits);
    }
    pod_level::apply(spec);
    spec.enable_service_links.get_or_insert(true);
    default(&mut spec.dns_policy, "ClusterFirst");
    default(&mut spec.restart_policy, "Always");
    default(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(GRACE_SECONDS);
    spec.volumes.iter_mut().flatten().for_each(volume);
    containers(spec);
}

/// Set a default string.
fn default(field: &mut Option<String>, text: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(text.to_owned());
    }
}

/// Set a default number.
fn default_number(field: &mut Option<i32>, number: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(number);
    }
}

/// Requests default to the limits.
fn requests_follow_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, quantity) in limits {
        requests.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
}

fn containers(spec: &mut PodSpec) {
    let host_network = spec.host_network.unwrap_or_default();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        self::container(container);
        if host_network {
            host_ports(container);
        }
    }
    for ephemeral in spec.ephemeral_containers.iter_mut().flatten() {
        let mut common = spec::ephemeral_as_container(ephemeral);
        self::container(&mut common);
        *ephemeral = EphemeralContainer {
            env: common.env,
            image_pull_policy: common.image_pull_policy,
            termination_message_path: common.termination_message_path,
            termination_message_policy: common.termination_message_policy,
            ..ephemeral.clone()
        };
    }
}

/// On the host's network, host ports default to the container ports.
fn host_ports(container: &mut Container) {
    for port in container.ports.iter_mut().flatten() {
        default_number(&mut port.host_port, port.container_port);
    }
}

fn container(container: &mut Container) {
    let image = container.image.as_deref().unwrap_or_default();
    default(&mut container.image_pull_policy, pull_policy(image));
    default(&mut container.termination_message_path, "/dev/termination-log");
    default(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        default(&mut port.protocol, "TCP");
    }
    for source in container.env.iter_mut().flatten().filter_map(|env| env.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(field);
        if let Some(file) = &mut source.file_key_ref {
            file.optional.get_or_insert_default();
        }
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    probes.into_iter().flatten().for_each(probe);
    if let Some(lifecycle) = &mut container.lifecycle {
        let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        hooks.into_iter().flatten().filter_map(|hook| hook.http_get.as_mut()).for_each(http_get);
    }
}

/// Images with the tag `latest` default to `Always`.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
    match (tag, digest) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn probe(probe: &mut Probe) {
    default_number(&mut probe.timeout_seconds, 1);
    default_number(&mut probe.period_seconds, 10);
    default_number(&mut probe.success_threshold, 1);
    default_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn http_get(action: &mut HTTPGetAction) {
    default(&mut action.path, "/");
    default(&mut action.scheme, "HTTP");
}

fn field(field: &mut ObjectFieldSelector) {
    default(&mut field.api_version, "v1");
}

fn downward(items: &mut Option<Vec<DownwardAPIVolumeFile>>) {
    items.iter_mut().flatten().filter_map(|item| item.field_ref.as_mut()).for_each(field);
}

fn volume(volume: &mut Volume) {
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        default(&mut image.pull_policy, policy);
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(MODE);
        downward(&mut source.items);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(MODE);
        for source in projected.sources.iter_mut().flatten() {
            source.downward_api.iter_mut().for_each(|source| downward(&mut source.items));
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
            }
        }
    }
    network_disk(volume);
}

/// Defaults of network volumes that are no longer supported in-tree.
fn network_disk(volume: &mut Volume) {
    if let Some(disk) = &mut volume.iscsi {
        default(&mut disk.iscsi_interface, "default");
    }
    if let Some(disk) = &mut volume.rbd {
        default(&mut disk.pool, "rbd");
        default(&mut disk.user, "admin");
        default(&mut disk.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
        disk.read_only.get_or_insert_default();
        disk.kind.get_or_insert_with(|| "Shared".to_owned());
    }
    if let Some(disk) = &mut volume.scale_io {
        default(&mut disk.storage_mode, "ThinProvisioned");
        default(&mut disk.fs_type, "xfs");
    }
}

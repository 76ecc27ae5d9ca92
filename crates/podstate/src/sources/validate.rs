//! Validation of manifests.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements, Volume};
use longshore_client::objects;
use longshore_godump::Quantity;
use longshore_pod::spec;

use super::manifest::{Error, field};

type Check = Result<(), Error>;

/// Whether the pod is valid.
pub(super) fn check(pod: &Pod) -> Check {
    let name = spec::name(pod);
    if name.is_empty() {
        return Err(field("metadata.name", "required"));
    }
    if !is_subdomain(name) {
        return Err(field("metadata.name", format!("{name:?} is not a DNS subdomain name")));
    }
    let namespace = spec::namespace(pod);
    if !namespace.is_empty() && !is_label(namespace) {
        return Err(field("metadata.namespace", format!("{namespace:?} is not a DNS label")));
    }
    // The UID becomes part of paths.
    let uid = spec::uid(pod);
    if uid.starts_with('.') || uid.contains('/') {
        return Err(field("metadata.uid", format!("{uid:?} is not a UID")));
    }
    let Some(pod_spec) = &pod.spec else { return Err(field("spec", "required")) };
    match pod_spec.restart_policy.as_deref() {
        None | Some("" | "Always" | "OnFailure" | "Never") => {}
        Some(other) => {
            let reason = format!("{other:?} is not one of Always, OnFailure, Never");
            return Err(field("spec.restartPolicy", reason));
        }
    }
    let volumes = volumes(pod_spec)?;
    containers(pod_spec, &volumes)?;
    resources("spec", pod_spec.resources.as_ref())?;
    reject_references(pod, pod_spec)
}

/// The names of the pod's volumes.
fn volumes(pod_spec: &PodSpec) -> Result<HashSet<&str>, Error> {
    let mut names = HashSet::new();
    for (index, volume) in pod_spec.volumes.iter().flatten().enumerate() {
        let at = |part: &str| format!("spec.volumes[{index}].{part}");
        if !is_label(&volume.name) {
            return Err(field(at("name"), format!("{:?} is not a DNS label", volume.name)));
        }
        if !names.insert(volume.name.as_str()) {
            return Err(field(at("name"), format!("duplicate value {:?}", volume.name)));
        }
        let limit = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref());
        if let Some(limit) = limit.filter(|limit| Quantity::parse(&limit.0).is_none()) {
            return Err(field(
                at("emptyDir.sizeLimit"),
                format!("{:?} is not a quantity", limit.0),
            ));
        }
    }
    Ok(names)
}

fn containers(pod_spec: &PodSpec, volumes: &HashSet<&str>) -> Check {
    if pod_spec.containers.is_empty() {
        return Err(field("spec.containers", "required: at least one container"));
    }
    if !spec::ephemeral_containers(pod_spec).is_empty() {
        return Err(field("spec.ephemeralContainers", "may not be set in a manifest"));
    }
    let mut names = HashSet::new();
    let lists = [
        ("spec.initContainers", spec::init_containers(pod_spec)),
        ("spec.containers", &pod_spec.containers),
    ];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let at = format!("{list}[{index}]");
            if !names.insert(container.name.as_str()) {
                let reason = format!("duplicate value {:?}", container.name);
                return Err(field(format!("{at}.name"), reason));
            }
            self::container(&at, container, volumes)?;
        }
    }
    Ok(())
}

fn container(at: &str, container: &Container, volumes: &HashSet<&str>) -> Check {
    if container.name.is_empty() {
        return Err(field(format!("{at}.name"), "required"));
    }
    if !is_label(&container.name) {
        return Err(field(
            format!("{at}.name"),
            format!("{:?} is not a DNS label", container.name),
        ));
    }
    if container.image.as_deref().unwrap_or_default().is_empty() {
        return Err(field(format!("{at}.image"), "required"));
    }
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if !volumes.contains(mount.name.as_str()) {
            let reason = format!("the pod has no volume {:?}", mount.name);
            return Err(field(format!("{at}.volumeMounts[{index}].name"), reason));
        }
        if mount.mount_path.is_empty() {
            return Err(field(format!("{at}.volumeMounts[{index}].mountPath"), "required"));
        }
    }
    for (index, port) in container.ports.iter().flatten().enumerate() {
        if !(1..=65535).contains(&port.container_port) {
            let reason = format!("{} is not a port", port.container_port);
            return Err(field(format!("{at}.ports[{index}].containerPort"), reason));
        }
    }
    resources(at, container.resources.as_ref())
}

fn resources(at: &str, resources: Option<&ResourceRequirements>) -> Check {
    let Some(resources) = resources else { return Ok(()) };
    for (name, list) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for (resource, quantity) in list.iter().flatten() {
            if Quantity::parse(&quantity.0).is_none() {
                let at = format!("{at}.resources.{name}[{resource}]");
                return Err(field(at, format!("{:?} is not a quantity", quantity.0)));
            }
        }
    }
    Ok(())
}

/// A static pod must not refer to objects of the apiserver.
fn reject_references(pod: &Pod, pod_spec: &PodSpec) -> Check {
    let reject = |at: String| Err(field(at, "a static pod may not reference an API object"));
    let account = [&pod_spec.service_account_name, &pod_spec.service_account];
    if account.into_iter().flatten().any(|name| !name.is_empty()) {
        return reject("spec.serviceAccountName".to_owned());
    }
    if pod_spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Err(field("spec.resourceClaims", "static pods may not use ResourceClaims"));
    }
    for (index, volume) in pod_spec.volumes.iter().flatten().enumerate() {
        if references_objects(volume) {
            return reject(format!("spec.volumes[{index}]"));
        }
    }
    match objects::first_reference(pod) {
        Some(object) => reject(format!("spec ({object})")),
        None => Ok(()),
    }
}

/// Whether a volume of that kind always refers to an object of the apiserver. Secrets and config
/// maps are checked by name.
fn references_objects(volume: &Volume) -> bool {
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.csi.is_some()
        || volume.glusterfs.is_some()
        || volume.azure_file.is_some()
        || sources.into_iter().any(|source| {
            source.service_account_token.is_some()
                || source.cluster_trust_bundle.is_some()
                || source.pod_certificate.is_some()
        })
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label.len() <= 63
        && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

//! The sandbox that a pod asks for, in the runtime's words.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use longshore_cri::v1;
use longshore_pod::spec;

use super::{Error, Settings, dns, hosts, labels, resources};

/// The config of a pod's sandbox.
pub(super) fn config(
    settings: &Settings,
    pod: &Pod,
    attempt: u32,
) -> Result<v1::PodSandboxConfig, Error> {
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let hostname = match spec::host_network(pod) {
        true => String::new(),
        false => hosts::kernel_hostname(settings, pod)?,
    };
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: spec::name(pod).to_owned(),
            namespace: spec::namespace(pod).to_owned(),
            uid: spec::uid(pod).to_owned(),
            attempt,
        }),
        hostname,
        log_directory: settings.pod_log_dir(pod).display().to_string(),
        dns_config: Some(dns::config(settings, pod)?),
        port_mappings: port_mappings(pod_spec),
        labels: labels::sandbox_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(linux(settings, pod, pod_spec)?),
        ..v1::PodSandboxConfig::default()
    })
}

fn port_mappings(pod_spec: &PodSpec) -> Vec<v1::PortMapping> {
    let ports = pod_spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    ports
        .map(|port| v1::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            }
            .into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn linux(
    settings: &Settings,
    pod: &Pod,
    pod_spec: &PodSpec,
) -> Result<v1::LinuxPodSandboxConfig, Error> {
    let privileged = spec::containers(pod_spec).any(|(_, container)| {
        container.security_context.as_ref().and_then(|context| context.privileged).unwrap_or(false)
    });
    let mut security = v1::LinuxSandboxSecurityContext {
        privileged,
        namespace_options: Some(namespaces(pod_spec)),
        // The pause process needs nothing that the default profile forbids.
        seccomp: Some(v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
            ..v1::SecurityProfile::default()
        }),
        ..v1::LinuxSandboxSecurityContext::default()
    };
    let mut sysctls = std::collections::BTreeMap::new();
    if let Some(context) = &pod_spec.security_context {
        security.run_as_user = context.run_as_user.map(|value| v1::Int64Value { value });
        security.run_as_group = context.run_as_group.map(|value| v1::Int64Value { value });
        security.supplemental_groups = supplemental_groups(pod_spec);
        security.supplemental_groups_policy = supplemental_groups_policy(pod_spec)?.into();
        security.selinux_options = context.se_linux_options.as_ref().map(selinux);
        sysctls =
            context.sysctls.iter().flatten().map(|s| (s.name.clone(), s.value.clone())).collect();
    }
    Ok(v1::LinuxPodSandboxConfig {
        cgroup_parent: settings.cgroups.parent_of(pod),
        security_context: Some(security),
        sysctls,
        overhead: Some(resources::overhead(settings, pod_spec)),
        resources: Some(resources::pod(settings, pod_spec)),
    })
}

/// The namespaces that the pod shares with the node or among its containers.
pub(super) fn namespaces(pod_spec: &PodSpec) -> v1::NamespaceOption {
    let node_if = |shared: Option<bool>| match shared.unwrap_or(false) {
        true => v1::NamespaceMode::Node,
        false => v1::NamespaceMode::Pod,
    };
    let pid = match (pod_spec.host_pid, pod_spec.share_process_namespace) {
        (Some(true), _) => v1::NamespaceMode::Node,
        (_, Some(true)) => v1::NamespaceMode::Pod,
        _ => v1::NamespaceMode::Container,
    };
    v1::NamespaceOption {
        network: node_if(pod_spec.host_network).into(),
        pid: pid.into(),
        ipc: node_if(pod_spec.host_ipc).into(),
        ..v1::NamespaceOption::default()
    }
}

/// The groups that every process of the pod is in besides its own.
pub(super) fn supplemental_groups(pod_spec: &PodSpec) -> Vec<i64> {
    let Some(context) = &pod_spec.security_context else { return Vec::new() };
    context
        .fs_group
        .into_iter()
        .chain(context.supplemental_groups.iter().flatten().copied())
        .collect()
}

/// Whether groups of the image count too.
pub(super) fn supplemental_groups_policy(
    pod_spec: &PodSpec,
) -> Result<v1::SupplementalGroupsPolicy, Error> {
    let policy =
        pod_spec.security_context.as_ref().and_then(|c| c.supplemental_groups_policy.as_deref());
    match policy {
        None | Some("Merge") => Ok(v1::SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(v1::SupplementalGroupsPolicy::Strict),
        Some(other) => {
            Err(Error::Field { field: "supplementalGroupsPolicy", value: other.to_owned() })
        }
    }
}

/// SELinux options as the runtime takes them.
pub(super) fn selinux(options: &k8s_openapi::api::core::v1::SELinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

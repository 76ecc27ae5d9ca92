//! The CRI config of a sandbox.

use k8s_openapi::api::core::v1::{Pod, PodSpec, SecurityContext};
use longshore_cri::v1;
use longshore_pod::{labels, spec};

use super::{Error, Settings, dns, hosts, mounts, resources};

/// The config of a pod's sandbox, and events about what had to be left out. `groups`: the supplemental
/// groups of its volumes.
pub(super) fn config(
    settings: &Settings,
    pod: &Pod,
    attempt: u32,
    namespaces: v1::NamespaceOption,
    groups: &[i64],
) -> Result<(v1::PodSandboxConfig, Vec<dns::DnsWarning>), Error> {
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let hostname = match spec::host_network(pod) {
        true => String::new(),
        false => hosts::kernel_hostname(settings, pod)?,
    };
    let (dns, warnings) = dns::config(settings, pod)?;
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: spec::name(pod).to_owned(),
            namespace: spec::namespace(pod).to_owned(),
            uid: spec::uid(pod).to_owned(),
            attempt,
        }),
        hostname,
        log_directory: settings.pod_log_dir(pod).display().to_string(),
        dns_config: Some(dns),
        port_mappings: port_mappings(pod_spec),
        labels: labels::sandbox_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(linux(settings, pod, pod_spec, namespaces, groups)?),
        ..v1::PodSandboxConfig::default()
    };
    Ok((config, warnings))
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
    namespaces: v1::NamespaceOption,
    groups: &[i64],
) -> Result<v1::LinuxPodSandboxConfig, Error> {
    let privileged = |context: Option<&SecurityContext>| {
        context.and_then(|context| context.privileged).unwrap_or(false)
    };
    let privileged = spec::containers(pod_spec)
        .any(|(_, container)| privileged(container.security_context.as_ref()))
        || spec::ephemeral_containers(pod_spec)
            .iter()
            .any(|container| privileged(container.security_context.as_ref()));
    let mut security = v1::LinuxSandboxSecurityContext {
        privileged,
        namespace_options: Some(namespaces),
        // The default profile is enough for the pause process.
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
        let of_volumes = mounts::volume_groups(pod, groups.iter().copied());
        security.supplemental_groups.extend(of_volumes);
        security.supplemental_groups_policy = supplemental_groups_policy(pod_spec)?.into();
        security.selinux_options = context.se_linux_options.as_ref().map(selinux);
        let own = context.sysctls.iter().flatten();
        sysctls = own.map(|sysctl| (dotted(&sysctl.name), sysctl.value.clone())).collect();
    }
    Ok(v1::LinuxPodSandboxConfig {
        cgroup_parent: settings.cgroups.parent_of(pod),
        security_context: Some(security),
        sysctls,
        overhead: Some(resources::overhead(settings, pod_spec)),
        resources: Some(resources::pod(settings, pod_spec)),
    })
}

/// A sysctl's name with dots as separators, as runtimes expect it: in `net/ipv4/conf/eth0.1/x`,
/// dots and slashes are swapped.
fn dotted(name: &str) -> String {
    let swap = |c| match c {
        '/' => '.',
        '.' => '/',
        other => other,
    };
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => name.chars().map(swap).collect(),
        _ => name.to_owned(),
    }
}

/// The supplemental groups of all processes of the pod.
pub(super) fn supplemental_groups(pod_spec: &PodSpec) -> Vec<i64> {
    let Some(context) = &pod_spec.security_context else { return Vec::new() };
    context
        .fs_group
        .into_iter()
        .chain(context.supplemental_groups.iter().flatten().copied())
        .collect()
}

/// Whether groups of the image are used too.
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

/// SELinux options as a CRI message.
pub(super) fn selinux(options: &k8s_openapi::api::core::v1::SELinuxOptions) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{config, dotted};
    use crate::fixture;

    #[test]
    fn sandbox_has_the_groups_of_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let settings = fixture::settings(dir.path());
        let groups = |context| {
            let pod = fixture::pod(json!({"dnsPolicy": "None", "securityContext": context}));
            let (config, _) = config(&settings, &pod, 0, Default::default(), &[9, 7, 9]).unwrap();
            config.linux.unwrap().security_context.unwrap().supplemental_groups
        };
        assert_eq!(groups(json!({})), [7, 9]);
        let own = json!({"fsGroup": 5, "supplementalGroups": [7]});
        assert_eq!(groups(own), [5, 7, 9]);
    }

    #[test]
    fn sysctl_separator_is_the_first_one() {
        for (name, expected) in [
            ("net.ipv4.ip_forward", "net.ipv4.ip_forward"),
            ("net/ipv4/ip_forward", "net.ipv4.ip_forward"),
            ("net/ipv4/conf/eth0.1/x", "net.ipv4.conf.eth0/1.x"),
            ("net.ipv4.conf.eth0/1.x", "net.ipv4.conf.eth0/1.x"),
            ("plain", "plain"),
        ] {
            assert_eq!(dotted(name), expected, "{name}");
        }
    }
}

//! A sandbox as the engine makes it: a container that pauses and holds the namespaces. Pure.

use bollard::models::{ContainerCreateBody, HostConfig, RestartPolicy, RestartPolicyNameEnum};
use longshore_cri::v1::{LinuxPodSandboxConfig, NamespaceMode, PodSandboxConfig};

use crate::labels;
use crate::resources::{CgroupDriver, cgroup_parent};
use crate::{Result, logs, security};

/// The kernel ends sandboxes after everything else of a pod.
pub(crate) const OOM_SCORE: i64 = -998;
/// The least share.
const CPU_SHARES: i64 = 2;
/// What holds a namespace of the machine.
pub(crate) const HOST: &str = "host";

/// What the engine brings along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) image: &'a str,
    /// The runtime's name; `None` is the engine's default.
    pub(crate) runtime: Option<&'a str>,
    pub(crate) oom_score: i64,
    pub(crate) driver: CgroupDriver,
}

/// The container of a sandbox.
///
/// # Errors
/// When the engine cannot do what is asked for.
pub(crate) fn body(
    config: &PodSandboxConfig,
    with: Surroundings<'_>,
) -> Result<ContainerCreateBody> {
    let linux = config.linux.as_ref();
    let context = linux.and_then(|linux| linux.security_context.as_ref());
    let mut host = HostConfig {
        ipc_mode: Some("shareable".to_owned()),
        network_mode: Some("none".to_owned()),
        // Pause needs nothing, and the engine's default seccomp profile holds.
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        oom_score_adj: Some(with.oom_score),
        cpu_shares: Some(CPU_SHARES),
        cgroup_parent: linux.and_then(|linux| cgroup_parent(&linux.cgroup_parent, with.driver)),
        sysctls: linux.and_then(sysctls),
        runtime: with.runtime.map(str::to_owned),
        restart_policy: Some(never()),
        log_config: Some(logs::config()),
        ..HostConfig::default()
    };
    let mut user = None;
    if let Some(context) = context {
        security::apply_to_sandbox(context, &mut host)?;
        user = security::user(context.run_as_user.as_ref(), "", context.run_as_group.as_ref())?;
        if let Some(options) = &context.namespace_options {
            host.userns_mode = security::user_namespace(options.userns_options.as_ref())?;
            if options.network() == NamespaceMode::Node {
                host.network_mode = Some(HOST.to_owned());
            }
            if options.pid() == NamespaceMode::Node {
                host.pid_mode = Some(HOST.to_owned());
            }
            if options.ipc() == NamespaceMode::Node {
                host.ipc_mode = Some(HOST.to_owned());
            }
        }
    }
    Ok(ContainerCreateBody {
        image: Some(with.image.to_owned()),
        hostname: (!config.hostname.is_empty()).then(|| config.hostname.clone()),
        user,
        labels: Some(labels::of_sandbox(&config.labels, &config.annotations)),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

fn sysctls(linux: &LinuxPodSandboxConfig) -> Option<std::collections::HashMap<String, String>> {
    let all = linux.sysctls.iter().map(|(key, value)| (key.clone(), value.clone()));
    (!linux.sysctls.is_empty()).then(|| all.collect())
}

/// It is the kubelet that restarts.
pub(crate) fn never() -> RestartPolicy {
    RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }
}

/// The lines of `resolv.conf`; `None` when the pod has nothing of its own.
pub(crate) fn resolv_conf(config: &PodSandboxConfig) -> Option<String> {
    let dns = config.dns_config.as_ref()?;
    let mut text: String =
        dns.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    for (word, values) in [("search", &dns.searches), ("options", &dns.options)] {
        if !values.is_empty() {
            text.push_str(&format!("{word} {}\n", values.join(" ")));
        }
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{
        DnsConfig, Int64Value, LinuxSandboxSecurityContext, NamespaceOption, UserNamespace,
    };

    use super::*;

    fn surroundings() -> Surroundings<'static> {
        Surroundings {
            image: "pause:1",
            runtime: None,
            oom_score: OOM_SCORE,
            driver: CgroupDriver::Systemd,
        }
    }

    fn config(context: LinuxSandboxSecurityContext) -> PodSandboxConfig {
        PodSandboxConfig {
            hostname: "web".into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: "/kubepods.slice/kubepods-pod1.slice".into(),
                sysctls: [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into(),
                security_context: Some(context),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    fn namespaces(
        network: NamespaceMode,
        pid: NamespaceMode,
        ipc: NamespaceMode,
    ) -> NamespaceOption {
        NamespaceOption {
            network: network.into(),
            pid: pid.into(),
            ipc: ipc.into(),
            ..NamespaceOption::default()
        }
    }

    #[test]
    fn namespaces_are_the_pods_or_the_nodes() {
        use NamespaceMode::{Container, Node, Pod};
        let cases = [
            (namespaces(Pod, Pod, Pod), ("none", None, "shareable")),
            (namespaces(Pod, Container, Pod), ("none", None, "shareable")),
            (namespaces(Node, Pod, Pod), ("host", None, "shareable")),
            (namespaces(Node, Node, Node), ("host", Some("host"), "host")),
        ];
        for (options, (network, pid, ipc)) in cases {
            let context = LinuxSandboxSecurityContext {
                namespace_options: Some(options),
                ..LinuxSandboxSecurityContext::default()
            };
            let host = body(&config(context), surroundings()).unwrap().host_config.unwrap();
            assert_eq!(host.network_mode.as_deref(), Some(network));
            assert_eq!(host.pid_mode.as_deref(), pid);
            assert_eq!(host.ipc_mode.as_deref(), Some(ipc));
        }
    }

    #[test]
    fn sandboxes_are_made_as_asked_for() {
        let context = LinuxSandboxSecurityContext {
            run_as_user: Some(Int64Value { value: 1000 }),
            privileged: true,
            ..LinuxSandboxSecurityContext::default()
        };
        let with = Surroundings { runtime: Some("kata"), ..surroundings() };
        let body = super::body(&config(context), with).unwrap();
        assert_eq!((body.user.as_deref(), body.hostname.as_deref()), (Some("1000"), Some("web")));
        let host = body.host_config.unwrap();
        assert_eq!(host.cgroup_parent.as_deref(), Some("kubepods-pod1.slice"));
        assert_eq!((host.runtime.as_deref(), host.privileged), (Some("kata"), Some(true)));
        assert_eq!(host.oom_score_adj, Some(-998));
        assert!(host.sysctls.unwrap().contains_key("net.ipv4.ip_forward"));
    }

    #[test]
    fn user_namespaces_are_refused() {
        let options = NamespaceOption {
            userns_options: Some(UserNamespace::default()),
            ..NamespaceOption::default()
        };
        let context = LinuxSandboxSecurityContext {
            namespace_options: Some(options),
            ..LinuxSandboxSecurityContext::default()
        };
        assert!(body(&config(context), surroundings()).is_err());
    }

    #[test]
    fn names_are_resolved_as_the_pod_says() {
        let dns = DnsConfig {
            servers: vec!["10.0.0.10".into(), "fd00::a".into()],
            searches: vec!["a.b".into(), "c".into()],
            options: vec!["ndots:5".into()],
        };
        let config = PodSandboxConfig { dns_config: Some(dns), ..PodSandboxConfig::default() };
        let text = "nameserver 10.0.0.10\nnameserver fd00::a\nsearch a.b c\noptions ndots:5\n";
        assert_eq!(resolv_conf(&config).as_deref(), Some(text));
        let empty = PodSandboxConfig { dns_config: Some(DnsConfig::default()), ..config };
        assert_eq!(resolv_conf(&empty), None);
    }
}

//! A container as the engine makes it. Pure.

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HealthConfig, HostConfig,
};
use longshore_cri::v1::{
    ContainerConfig, KeyValue, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig, Signal,
};

use crate::resources::{self, CgroupDriver, cgroup_parent};
use crate::sandbox::config::{HOST, never};
use crate::{Error, Result, labels, logs, mounts, security};

/// The first API that takes CDI devices.
const WITH_CDI: u32 = 44;

/// What the engine and the sandbox bring along.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// The sandbox's identifier.
    pub(crate) sandbox: String,
    /// Its runtime.
    pub(crate) runtime: Option<String>,
    pub(crate) driver: CgroupDriver,
    /// The option of the seccomp profile.
    pub(crate) seccomp: Option<String>,
    /// The minor version of the engine's API.
    pub(crate) api: u32,
    /// Where the engine can go no lower.
    pub(crate) oom_score: i64,
}

/// A container.
///
/// # Errors
/// When the engine cannot do what is asked for, or what is asked for is not valid.
pub(crate) fn body(
    config: &ContainerConfig,
    sandbox: &PodSandboxConfig,
    with: Surroundings,
) -> Result<ContainerCreateBody> {
    let linux = config.linux.clone().unwrap_or_default();
    let context = linux.security_context.unwrap_or_default();
    let parent = sandbox.linux.as_ref().map(|linux| linux.cgroup_parent.as_str());
    let mut host = HostConfig {
        restart_policy: Some(never()),
        log_config: Some(logs::config()),
        runtime: with.runtime,
        cgroup_parent: parent.and_then(|parent| cgroup_parent(parent, with.driver)),
        oom_score_adj: Some(with.oom_score),
        security_opt: Some(with.seccomp.into_iter().collect()),
        devices: Some(config.devices.iter().map(device).collect()),
        device_requests: cdi(config, with.api)?,
        mounts: Some(
            config
                .mounts
                .iter()
                .map(|mount| mounts::convert(mount, with.api))
                .collect::<Result<_>>()?,
        ),
        ..HostConfig::default()
    };
    if let Some(resources) = &linux.resources {
        resources::apply(resources, &mut host);
    }
    security::apply_to_container(&context, &mut host)?;
    namespaces(context.namespace_options.as_ref(), &with.sandbox, &mut host)?;
    Ok(ContainerCreateBody {
        image: Some(config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default()),
        entrypoint: listed(&config.command),
        cmd: listed(&config.args),
        env: Some(config.envs.iter().map(variable).collect::<Result<_>>()?),
        working_dir: (!config.working_dir.is_empty()).then(|| config.working_dir.clone()),
        user: user(&context)?,
        labels: Some(labels::of_container(
            &config.labels,
            &config.annotations,
            &with.sandbox,
            &log_path(config, sandbox),
        )),
        tty: Some(config.tty),
        open_stdin: Some(config.stdin),
        stdin_once: Some(config.stdin_once),
        stop_signal: stop_signal(config.stop_signal()),
        // Probes are the kubelet's.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..HealthConfig::default()
        }),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    })
}

/// The file that the kubelet reads, empty when it wants none.
pub(crate) fn log_path(config: &ContainerConfig, sandbox: &PodSandboxConfig) -> String {
    if config.log_path.is_empty() || sandbox.log_directory.is_empty() {
        return String::new();
    }
    format!("{}/{}", sandbox.log_directory.trim_end_matches('/'), config.log_path)
}

/// Empty is the image's.
fn listed(words: &[String]) -> Option<Vec<String>> {
    (!words.is_empty()).then(|| words.to_vec())
}

fn variable(env: &KeyValue) -> Result<String> {
    match std::str::from_utf8(&env.value) {
        Ok(value) => Ok(format!("{}={value}", env.key)),
        Err(_) => Err(Error::Invalid(format!(
            "the value of variable {:?} is not UTF-8, as the Docker Engine's API is",
            env.key
        ))),
    }
}

fn user(context: &LinuxContainerSecurityContext) -> Result<Option<String>> {
    let name = context.run_as_username.as_str();
    security::user(context.run_as_user.as_ref(), name, context.run_as_group.as_ref())
}

fn device(device: &longshore_cri::v1::Device) -> DeviceMapping {
    DeviceMapping {
        path_on_host: Some(device.host_path.clone()),
        path_in_container: Some(device.container_path.clone()),
        cgroup_permissions: Some(device.permissions.clone()),
    }
}

fn cdi(config: &ContainerConfig, api: u32) -> Result<Option<Vec<DeviceRequest>>> {
    if config.cdi_devices.is_empty() {
        return Ok(None);
    }
    if api < WITH_CDI {
        return Err(Error::Unsupported("this Docker Engine does not support CDI devices".into()));
    }
    let ids = config.cdi_devices.iter().map(|device| device.name.clone()).collect();
    Ok(Some(vec![DeviceRequest {
        driver: Some("cdi".to_owned()),
        device_ids: Some(ids),
        ..DeviceRequest::default()
    }]))
}

/// Network, IPC and host name are the sandbox's, which may have the node's; the PID namespace is as asked for.
fn namespaces(
    options: Option<&NamespaceOption>,
    sandbox: &str,
    host: &mut HostConfig,
) -> Result<()> {
    let shared = format!("container:{sandbox}");
    host.network_mode = Some(shared.clone());
    host.ipc_mode = Some(shared.clone());
    let Some(options) = options else { return Ok(()) };
    host.userns_mode = security::user_namespace(options.userns_options.as_ref())?;
    if options.network() == NamespaceMode::Node {
        host.uts_mode = Some(HOST.to_owned());
    }
    host.pid_mode = match options.pid() {
        NamespaceMode::Container => None,
        NamespaceMode::Pod => Some(shared),
        NamespaceMode::Node => Some(HOST.to_owned()),
        NamespaceMode::Target => {
            crate::check_id(&options.target_id)?;
            Some(format!("container:{}", options.target_id))
        }
    };
    Ok(())
}

/// A signal as Linux names it; `None` is the image's.
fn stop_signal(signal: Signal) -> Option<String> {
    match signal {
        Signal::RuntimeDefault => None,
        signal => Some(signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-")),
    }
}

/// The signal of a container's configuration.
pub(crate) fn signal(name: &str) -> Signal {
    let name = name.replace('+', "PLUS").replace('-', "MINUS");
    Signal::from_str_name(&name).unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{
        CdiDevice, ContainerMetadata, Device, ImageSpec, Int64Value, LinuxContainerConfig,
        LinuxContainerResources, LinuxPodSandboxConfig,
    };
    use tonic::Code;

    use super::*;

    fn surroundings() -> Surroundings {
        Surroundings {
            sandbox: "5a5a".into(),
            runtime: Some("runc".into()),
            driver: CgroupDriver::Cgroupfs,
            seccomp: Some("seccomp=unconfined".into()),
            api: 41,
            oom_score: 1000,
        }
    }

    fn sandbox() -> PodSandboxConfig {
        PodSandboxConfig {
            log_directory: "/var/log/pods/n_p_u/".into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: "/kubepods/podu".into(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    fn config() -> ContainerConfig {
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
            image: Some(ImageSpec { image: "sha256:1".into(), ..ImageSpec::default() }),
            log_path: "c/0.log".into(),
            ..ContainerConfig::default()
        }
    }

    fn with(context: LinuxContainerSecurityContext) -> ContainerConfig {
        let linux = LinuxContainerConfig { security_context: Some(context), resources: None };
        ContainerConfig { linux: Some(linux), ..config() }
    }

    #[test]
    fn containers_are_made_as_asked_for() {
        let resources = LinuxContainerResources {
            memory_limit_in_bytes: 1 << 26,
            ..LinuxContainerResources::default()
        };
        let config = ContainerConfig {
            command: vec!["sh".into()],
            args: vec!["-c".into(), "x".into()],
            envs: vec![KeyValue { key: "A".into(), value: b"b=c".as_slice().into() }],
            working_dir: "/w".into(),
            devices: vec![Device {
                host_path: "/dev/null".into(),
                container_path: "/dev/zero".into(),
                permissions: "rw".into(),
            }],
            stdin: true,
            tty: true,
            stop_signal: Signal::Sigusr1.into(),
            linux: Some(LinuxContainerConfig {
                resources: Some(resources),
                security_context: Some(LinuxContainerSecurityContext {
                    run_as_user: Some(Int64Value { value: 7 }),
                    run_as_group: Some(Int64Value { value: 8 }),
                    ..LinuxContainerSecurityContext::default()
                }),
            }),
            ..config()
        };
        let body = body(&config, &sandbox(), surroundings()).unwrap();
        assert_eq!(body.image.as_deref(), Some("sha256:1"));
        assert_eq!(body.entrypoint, Some(vec!["sh".to_owned()]));
        assert_eq!(body.cmd, Some(vec!["-c".to_owned(), "x".to_owned()]));
        assert_eq!(body.env, Some(vec!["A=b=c".to_owned()]));
        assert_eq!(body.user.as_deref(), Some("7:8"));
        assert_eq!(body.stop_signal.as_deref(), Some("SIGUSR1"));
        assert_eq!(
            (body.tty, body.open_stdin, body.stdin_once),
            (Some(true), Some(true), Some(false))
        );
        assert_eq!(body.labels.unwrap()[labels::LOG_PATH], "/var/log/pods/n_p_u/c/0.log");
        let host = body.host_config.unwrap();
        assert_eq!(host.memory, Some(1 << 26));
        assert_eq!(host.cgroup_parent.as_deref(), Some("/kubepods/podu"));
        assert_eq!(host.network_mode.as_deref(), Some("container:5a5a"));
        assert_eq!(host.ipc_mode.as_deref(), Some("container:5a5a"));
        assert_eq!(host.devices.unwrap()[0].path_in_container.as_deref(), Some("/dev/zero"));
        assert_eq!(host.security_opt, Some(vec!["seccomp=unconfined".to_owned()]));
    }

    #[test]
    fn what_is_unsaid_is_the_images() {
        let body = body(&config(), &sandbox(), surroundings()).unwrap();
        assert_eq!(
            (body.entrypoint, body.cmd, body.user, body.working_dir),
            (None, None, None, None)
        );
        assert_eq!((body.stop_signal, body.hostname), (None, None));
    }

    #[test]
    fn processes_are_seen_as_asked_for() {
        let cases = [
            (NamespaceMode::Container, "", Ok(None)),
            (NamespaceMode::Pod, "", Ok(Some("container:5a5a"))),
            (NamespaceMode::Node, "", Ok(Some("host"))),
            (NamespaceMode::Target, "c0de", Ok(Some("container:c0de"))),
            (NamespaceMode::Target, "../x", Err(())),
            (NamespaceMode::Target, "", Err(())),
        ];
        for (pid, target, expected) in cases {
            let options = NamespaceOption {
                pid: pid.into(),
                target_id: target.into(),
                ..NamespaceOption::default()
            };
            let context = LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..LinuxContainerSecurityContext::default()
            };
            let body = body(&with(context), &sandbox(), surroundings()).map_err(|_| ());
            let mode = body.map(|body| body.host_config.unwrap().pid_mode);
            assert_eq!(mode, expected.map(|mode| mode.map(str::to_owned)), "{pid:?}");
        }
    }

    #[test]
    fn devices_of_cdi_need_a_newer_engine() {
        let config =
            ContainerConfig { cdi_devices: vec![CdiDevice { name: "v/c=d".into() }], ..config() };
        let error = body(&config, &sandbox(), surroundings()).unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        let newer = Surroundings { api: WITH_CDI, ..surroundings() };
        let host = body(&config, &sandbox(), newer).unwrap().host_config.unwrap();
        assert_eq!(host.device_requests.unwrap()[0].device_ids, Some(vec!["v/c=d".to_owned()]));
    }

    #[test]
    fn broken_variables_and_paths_are_no_panic() {
        let env = KeyValue { key: "A".into(), value: [0xff].as_slice().into() };
        let config = ContainerConfig { envs: vec![env], ..config() };
        assert_eq!(
            body(&config, &sandbox(), surroundings()).unwrap_err().code(),
            Code::InvalidArgument
        );
        assert_eq!(log_path(&config, &PodSandboxConfig::default()), "");
    }

    #[test]
    fn signals_come_back() {
        for (signal, name) in [
            (Signal::Sigterm, "SIGTERM"),
            (Signal::from_str_name("SIGRTMINPLUS3").unwrap(), "SIGRTMIN+3"),
            (Signal::from_str_name("SIGRTMAXMINUS2").unwrap(), "SIGRTMAX-2"),
        ] {
            assert_eq!(stop_signal(signal).as_deref(), Some(name));
            assert_eq!(super::signal(name), signal);
        }
        assert_eq!(super::signal("nonsense"), Signal::RuntimeDefault);
    }
}

//! Start of a container, in steps between which the worker may change its mind: image, config,
//! start. The postStart hook comes after them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_base::panics;
use longshore_cri::v1;
use longshore_pod::observed::{Sandbox, State};
use longshore_pod::plan::Start;
use longshore_pod::spec::{self, ContainerKind, describe};
use longshore_volumes::PodMounts;
use tracing::debug;

use super::images::{self, Present};
use super::isolation::{self, Isolation};
use super::{
    Error, PodRuntime, StartError, container, create_dir, devices, env, hosts, mounts, sandbox,
};

/// A container that can be created: its CRI config.
pub struct Prepared {
    config: v1::ContainerConfig,
    sandbox_config: v1::PodSandboxConfig,
    log: PathBuf,
    /// Number of image volumes that it mounts.
    image_volumes: usize,
}

/// What a container is created from besides the pod.
struct CreateContext<'a> {
    sandbox: &'a Sandbox,
    kind: ContainerKind,
    container: &'a Container,
    mounts: &'a PodMounts,
    image_volumes: BTreeMap<String, v1::ImageSpec>,
    image: Present,
    isolation: Isolation,
    restart_count: u32,
}

impl PodRuntime {
    /// The image of a container, pulled if its policy requires it. Needs no sandbox: `attempt` is
    /// that of the current or next one.
    pub async fn image(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        container: &Container,
        attempt: u32,
    ) -> Result<Present, StartError> {
        let say = |message: &str| {
            self.pod_events.container(pod, kind, &container.name, true, "Failed", message);
        };
        // The user namespace does not matter for a pull.
        let namespaces = pod.spec.as_ref().map(isolation::namespaces).unwrap_or_default();
        let sandbox_config = sandbox::config(&self.settings, pod, attempt, namespaces, &[]);
        let (sandbox_config, _) = sandbox_config.map_err(|error| {
            say(&format!("Error: {error}"));
            StartError::new("CreateContainerConfigError", error.to_string())
        })?;
        let request = images::ImageRequest {
            reference: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
            container: Some((kind, &container.name)),
        };
        let image = self.images.ensure(pod, request, &sandbox_config).await;
        image.inspect_err(|error| say(&format!("Error: {}", error.reason)))
    }

    /// Build the config of a container. Changes nothing in the runtime.
    pub async fn prepare_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        container: &Container,
        image: Present,
        mounts: &PodMounts,
    ) -> Result<Prepared, StartError> {
        let config_error = |error: Error| {
            self.not_started(pod, start, "CreateContainerConfigError", error.to_string())
        };
        let isolation = self.isolation(pod).await.map_err(config_error)?;
        // What had to be left out was reported when the sandbox was created.
        let groups: Vec<i64> = mounts.values().filter_map(|volume| volume.group).collect();
        let namespaces = isolation.namespaces.clone();
        let (sandbox_config, _) =
            sandbox::config(&self.settings, pod, sandbox.attempt, namespaces, &groups)
                .map_err(config_error)?;
        let image_volumes = self.image_volumes(pod, container, &sandbox_config).await;
        let image_volumes = image_volumes.inspect_err(|error| {
            let text = format!("Error: {}", error.reason);
            self.pod_events.container(pod, start.kind, &start.name, true, "Failed", &text);
        })?;
        let image_count = image_volumes.len();
        let log_dir = self.settings.pod_log_dir(pod).join(&container.name);
        create_dir(&log_dir, 0o755).await.map_err(config_error)?;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => container::restart_count_from_logs(&log_dir),
        };
        let create_context = CreateContext {
            sandbox,
            kind: start.kind,
            container,
            mounts,
            image_volumes,
            image,
            isolation,
            restart_count,
        };
        let mut config = self.container_config(pod, create_context).await.map_err(config_error)?;
        let devices = self.claims.cdi_devices(pod, container);
        let devices = devices.map_err(|error| config_error(error.into()))?;
        config.cdi_devices.extend(devices.into_iter().map(|name| v1::CdiDevice { name }));
        if let Some(resources) = config.linux.as_mut().and_then(|own| own.resources.as_mut()) {
            self.managers.set_resources(pod, &container.name, resources);
        }
        let log = log_dir.join(format!("{restart_count}.log"));
        Ok(Prepared { config, sandbox_config, log, image_volumes: image_count })
    }

    /// Create and start the container; returns its id. Must not be dropped half-way, as the result
    /// would not be observed.
    pub async fn start_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        prepared: Prepared,
    ) -> Result<String, StartError> {
        let say = |reason: &str, message: &str| {
            self.pod_events.container(pod, start.kind, &start.name, false, reason, message);
        };
        self.remove_unstarted(pod, &start.name).await.map_err(|error| {
            self.not_started(pod, start, "CreateContainerError", error.to_string())
        })?;
        let Prepared { config, sandbox_config, log, image_volumes } = prepared;
        let images = config.mounts.iter().filter(|mount| mount.image.is_some()).count();
        let created = self.cri.create_container(&sandbox.id, config, sandbox_config).await;
        let created = created.map_err(|error| cri_message(&error));
        let failure = created.as_ref().err().map(String::as_str);
        self.metrics.created_with_images(image_volumes, images, failure);
        let id = created
            .map_err(|message| self.not_started(pod, start, "CreateContainerError", message))?;
        say("Created", "Container created");
        let uid = spec::uid(pod);
        let starting = self.cri.start_container(&id);
        // The restart is counted from here on, while the container starts.
        let counting = async {
            if start.restart_count.is_some_and(|count| count > 0) {
                let _ = self.observer.inspect_container(uid, &id, &sandbox.id).await;
            }
        };
        let (started, ()) = tokio::join!(starting, counting);
        // Inspected in either case: a container that failed to start has an exit code.
        if let Err(error) = self.observer.inspect_started(uid, &id, &sandbox.id).await {
            debug!(pod = describe(pod), %id, %error, "inspection of a started container failed");
        }
        started.map_err(|error| {
            let message = cri_message(&error);
            // The id would make each event unique.
            let text = message.replace(&id, &start.name);
            self.failed(pod, start, &text);
            StartError::new("RunContainerError", message)
        })?;
        say("Started", "Container started");
        let (namespace, name) = (spec::namespace(pod), spec::name(pod));
        let link = container::legacy_log_link(namespace, name, &start.name, &id);
        let (from, to) = (log, link.clone());
        if let Err(error) = panics::try_blocking(move || link_log(&from, &to)).await {
            debug!(link = %link.display(), %error, "cannot create the link to the log");
        }
        Ok(id)
    }

    /// Remove a container that was created and never started, as by a daemon that was killed,
    /// before its replacement. The runtime rejects this while it is being started.
    async fn remove_unstarted(&self, pod: &Pod, name: &str) -> Result<(), Error> {
        let seen = self.observer.pod(spec::uid(pod));
        match seen.as_ref().and_then(|seen| seen.newest(name)) {
            Some(run) if run.state == State::Created => {
                self.remove_container(pod, name, &run.id).await
            }
            _ => Ok(()),
        }
    }

    fn not_started(
        &self,
        pod: &Pod,
        start: &Start,
        reason: &'static str,
        message: String,
    ) -> StartError {
        self.failed(pod, start, &message);
        StartError::new(reason, message)
    }

    fn failed(&self, pod: &Pod, start: &Start, message: &str) {
        let text = format!("Error: {message}");
        self.pod_events.container(pod, start.kind, &start.name, true, "Failed", &text);
    }

    /// The image volumes of the container, by the volume's name.
    async fn image_volumes(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<BTreeMap<String, v1::ImageSpec>, StartError> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut images = BTreeMap::new();
        for volume in volumes {
            let used = container.volume_mounts.iter().flatten().any(|m| m.name == volume.name);
            let Some(source) = volume.image.as_ref().filter(|_| used) else { continue };
            let request = images::ImageRequest {
                reference: source.reference.as_deref().unwrap_or_default(),
                policy: source.pull_policy.as_deref(),
                container: None,
            };
            let image = self.images.ensure(pod, request, sandbox_config).await?;
            let image = v1::ImageSpec {
                image: image.reference,
                user_specified_image: request.reference.to_owned(),
                annotations: images::annotations(pod),
                ..v1::ImageSpec::default()
            };
            images.insert(volume.name.clone(), image);
        }
        Ok(images)
    }

    async fn container_config(
        &self,
        pod: &Pod,
        create_context: CreateContext<'_>,
    ) -> Result<v1::ContainerConfig, Error> {
        let CreateContext { container, mounts, restart_count, .. } = create_context;
        let host_ips = self.settings.host_ips.get();
        let pod_ips = match create_context.sandbox.host_network {
            true => &*host_ips,
            false => create_context.sandbox.ips.as_slice(),
        };
        let sources = env::Sources { runtime: self, pod, container, pod_ips, mounts };
        let mut environment = sources.environment().await?;
        let mut plugins = self.devices.container(pod, container).await?;
        environment.add(std::mem::take(&mut plugins.envs))?;
        let Isolation { handler, namespaces } = create_context.isolation;
        let namespaces =
            self.container_namespaces(pod, create_context.kind, container, namespaces)?;
        let recursive = mounts::has_recursive_read_only(container)
            && self.supports_recursive_read_only(&handler).await?;
        let sources = mounts::Sources {
            runtime: self,
            pod,
            container,
            volumes: mounts,
            images: &create_context.image_volumes,
            environment: &environment,
            hosts_file: hosts::write(&self.settings, pod, pod_ips).await?,
            restart_count,
            recursive,
            users: &namespaces.userns_options.clone().unwrap_or_default(),
        };
        let (mounts, devices) = (sources.mounts().await?, sources.devices()?);
        let groups = sources.volumes.values().filter_map(|volume| volume.group);
        let groups = mounts::volume_groups(pod, groups);
        let mut config = container::config(container::Inputs {
            settings: &self.settings,
            pod,
            container,
            restart_count,
            image_ref: create_context.image.reference,
            image_user: create_context.image.user,
            environment,
            mounts,
            devices,
            groups,
            namespaces,
        })?;
        devices::add(&mut config, plugins);
        Ok(config)
    }
}

/// The error message of the runtime, without the name of the call.
fn cri_message(error: &longshore_cri::Error) -> String {
    match error {
        longshore_cri::Error::Status { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

fn link_log(log: &Path, link: &Path) -> io::Result<()> {
    // Some runtimes log to another file, and the link would be dangling.
    if !log.try_exists().unwrap_or(true) {
        return Ok(());
    }
    if let Some(dir) = link.parent() {
        fs::create_dir_all(dir)?;
    }
    symlink(log, link)
}

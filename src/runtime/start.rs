//! A container's beginning: image, config, create, start, and its postStart hook.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_cri::v1;
use longshore_pod::observed::Sandbox;
use longshore_pod::plan::Start;
use longshore_pod::spec;
use tracing::debug;

use super::isolation::Isolation;
use super::{
    Error, PodRuntime, StartError, container, create_dir, describe, env, hosts, images, mounts,
    sandbox,
};
use crate::volumes::PodMounts;

/// What a container is made from, once its image is there.
struct Making<'a> {
    pod: &'a Pod,
    sandbox: &'a Sandbox,
    start: &'a Start,
    container: &'a Container,
    mounts: &'a PodMounts,
    image_volumes: BTreeMap<String, v1::ImageSpec>,
    image: images::Present,
    isolation: Isolation,
    restart_count: u32,
}

impl PodRuntime {
    /// Pull if need be, create, start.
    pub async fn start_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        container: &Container,
        mounts: &PodMounts,
    ) -> Result<(), StartError> {
        let say = |warning, reason: &str, message: &str| {
            self.announcer.container(pod, start.kind, &container.name, warning, reason, message);
        };
        let failed = |reason: &'static str, message: String| {
            say(true, "Failed", &format!("Error: {message}"));
            StartError::new(reason, message)
        };
        let config_error = |error: Error| failed("CreateContainerConfigError", error.to_string());
        let isolation = self.isolation(pod).await.map_err(config_error)?;
        // What had to be left out was told when the sandbox was made.
        let (sandbox_config, _) =
            sandbox::config(&self.settings, pod, sandbox.attempt, isolation.namespaces.clone())
                .map_err(config_error)?;
        let no_image =
            |error: &StartError| say(true, "Failed", &format!("Error: {}", error.reason));
        let image_volumes = self.image_volumes(pod, container, &sandbox_config).await;
        let image_volumes = image_volumes.inspect_err(no_image)?;
        let wanted = images::Wanted {
            reference: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref(),
            container: Some((start.kind, &container.name)),
        };
        let image = self.images.ensure(pod, wanted, &sandbox_config).await;
        let image = image.inspect_err(no_image)?;

        let log_dir = self.settings.pod_log_dir(pod).join(&container.name);
        create_dir(&log_dir).await.map_err(config_error)?;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => container::restart_count_from_logs(&log_dir),
        };
        let making = Making {
            pod,
            sandbox,
            start,
            container,
            mounts,
            image_volumes,
            image,
            isolation,
            restart_count,
        };
        let config = self.container_config(making).await.map_err(config_error)?;

        let created = self.cri.create_container(&sandbox.id, config, sandbox_config).await;
        let id = created.map_err(|error| failed("CreateContainerError", message(&error)))?;
        say(false, "Created", "Container created");
        let started = self.cri.start_container(&id).await;
        // Looked at in either case: a container that failed to start has an exit to show.
        if let Err(error) = self.observer.look_at_container(spec::uid(pod), &id, &sandbox.id).await
        {
            debug!(pod = describe(pod), %id, %error, "look at a started container failed");
        }
        // An id tells a user nothing, and makes each event one of its own.
        let named = |error| message(&error).replace(&id, &container.name);
        started.map_err(|error| failed("RunContainerError", named(error)))?;
        say(false, "Started", "Container started");
        let link = container::legacy_log_link(pod, &container.name, &id);
        let log = log_dir.join(format!("{restart_count}.log"));
        if let Err(error) = link_log(&log, &link).await {
            debug!(link = %link.display(), %error, "no link to the log");
        }
        self.post_start(pod, sandbox, start.kind, container, &id).await
    }

    /// The images that the container mounts as volumes, by the volume's name.
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
            let wanted = images::Wanted {
                reference: source.reference.as_deref().unwrap_or_default(),
                policy: source.pull_policy.as_deref(),
                container: None,
            };
            let image = self.images.ensure(pod, wanted, sandbox_config).await?;
            let image = v1::ImageSpec {
                image: image.reference,
                user_specified_image: wanted.reference.to_owned(),
                annotations: images::annotations(pod),
                ..v1::ImageSpec::default()
            };
            images.insert(volume.name.clone(), image);
        }
        Ok(images)
    }

    async fn container_config(&self, making: Making<'_>) -> Result<v1::ContainerConfig, Error> {
        let Making { pod, container, mounts, restart_count, .. } = making;
        let pod_ips = match making.sandbox.host_network {
            true => &self.settings.host_ips,
            false => &making.sandbox.ips,
        };
        let sources = env::Sources { runtime: self, pod, container, pod_ips, mounts };
        let environment = sources.environment().await?;
        let Isolation { handler, namespaces } = making.isolation;
        let namespaces =
            self.container_namespaces(pod, making.start.kind, container, namespaces)?;
        let recursive = mounts::asks_for_recursion(container)
            && self.mounts_read_only_recursively(&handler).await?;
        let sources = mounts::Sources {
            runtime: self,
            pod,
            container,
            volumes: mounts,
            images: &making.image_volumes,
            environment: &environment,
            hosts_file: hosts::write(&self.settings, pod, pod_ips).await?,
            restart_count,
            recursive,
            users: &namespaces.userns_options.clone().unwrap_or_default(),
        };
        let mounts = sources.mounts().await?;
        container::config(container::Inputs {
            settings: &self.settings,
            pod,
            container,
            restart_count,
            image_ref: making.image.reference,
            image_user: making.image.user,
            environment,
            mounts,
            namespaces,
        })
    }
}

/// The runtime's own words, without the name of the call, as users know them.
fn message(error: &longshore_cri::Error) -> String {
    match error {
        longshore_cri::Error::Status { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

async fn link_log(log: &Path, link: &Path) -> std::io::Result<()> {
    if let Some(dir) = link.parent() {
        tokio::fs::create_dir_all(dir).await?;
    }
    tokio::fs::symlink(log, link).await
}

//! A container's beginning: image, config, create, start, and its postStart hook.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_pod::expand::expand;
use longshore_pod::observed::Sandbox;
use longshore_pod::plan::Start;
use longshore_pod::spec;
use tracing::debug;

use super::{
    Error, PodRuntime, StartError, container, create_dir, describe, env, hosts, images, sandbox,
};
use crate::volumes::{Mounted, PodMounts, SubPath};

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
        let failed = |reason: &'static str, event: &str, message: String| {
            say(true, event, &format!("Error: {message}"));
            StartError::new(reason, message)
        };
        let config_error =
            |error: Error| failed("CreateContainerConfigError", "Failed", error.to_string());
        let sandbox_config =
            sandbox::config(&self.settings, pod, sandbox.attempt).map_err(config_error)?;
        let image = self.images.ensure(pod, start.kind, container, &sandbox_config).await;
        let image = image.inspect_err(|error| {
            say(true, "Failed", &format!("Error: {}", error.reason));
        })?;

        let log_dir = self.settings.pod_log_dir(pod).join(&container.name);
        create_dir(&log_dir).await.map_err(config_error)?;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => container::restart_count_from_logs(&log_dir),
        };
        let config = self
            .container_config(pod, sandbox, container, restart_count, image, mounts)
            .await
            .map_err(config_error)?;

        let message = |error: longshore_cri::Error| cri_message(&error);
        let id = self
            .cri
            .create_container(&sandbox.id, config, sandbox_config)
            .await
            .map_err(|error| failed("CreateContainerError", "Failed", message(error)))?;
        say(false, "Created", "Container created");
        let started = self.cri.start_container(&id).await;
        // Looked at in either case: a container that failed to start has an exit to show.
        if let Err(error) = self.observer.look_at_container(spec::uid(pod), &id, &sandbox.id).await
        {
            debug!(pod = describe(pod), %id, %error, "look at a started container failed");
        }
        started.map_err(|error| failed("RunContainerError", "Failed", message(error)))?;
        say(false, "Started", "Container started");
        self.post_start(pod, sandbox, start.kind, container, &id).await?;
        let link = container::legacy_log_link(pod, &container.name, &id);
        let log = log_dir.join(format!("{restart_count}.log"));
        if let Err(error) = link_log(&log, &link).await {
            debug!(link = %link.display(), %error, "no link to the log");
        }
        Ok(())
    }

    async fn container_config(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        container: &Container,
        restart_count: u32,
        image: images::Present,
        mounts: &PodMounts,
    ) -> Result<longshore_cri::v1::ContainerConfig, Error> {
        let ips = match sandbox.host_network {
            true => &self.settings.host_ips,
            false => &sandbox.ips,
        };
        let sources = env::Sources { runtime: self, pod, container, pod_ips: ips, mounts };
        let environment = sources.environment().await?;
        let mut volumes = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            // The apiserver sees to it that a mount names a volume; a manifest may not.
            let volume = mounts.get(&mount.name).cloned().ok_or_else(|| Error::Field {
                field: "volumeMounts.name",
                value: mount.name.clone(),
            })?;
            let path = match (&mount.sub_path, &mount.sub_path_expr) {
                (Some(path), _) if !path.is_empty() => path.clone(),
                (_, Some(path)) => expand(path, |name| environment.get(name)),
                _ => String::new(),
            };
            volumes.push(match path.is_empty() {
                true => volume,
                false => {
                    let sub_path = SubPath {
                        volume: &mount.name,
                        volume_path: &volume.path,
                        container: &container.name,
                        index,
                        path: &path,
                    };
                    let path = self.volumes.sub_path(spec::uid(pod), sub_path).await?;
                    Mounted { path, ..volume }
                }
            });
        }
        let hosts_file = hosts::write(&self.settings, pod, ips).await?;
        container::config(container::Inputs {
            settings: &self.settings,
            pod,
            container,
            restart_count,
            image_ref: image.reference,
            image_user: image.user,
            environment,
            volumes,
            hosts_file,
        })
    }
}

/// The runtime's own words, without the name of the call, as users know them.
fn cri_message(error: &longshore_cri::Error) -> String {
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

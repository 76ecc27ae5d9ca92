//! A container's beginning, in the steps between which its worker may change its mind: image,
//! config, start. The postStart hook comes after them.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_pod::expand::expand;
use longshore_pod::observed::Sandbox;
use longshore_pod::plan::Start;
use longshore_pod::spec::{self, ContainerKind};
use tracing::debug;

use super::images::Present;
use super::{Error, PodRuntime, StartError, container, create_dir, describe, env, hosts, sandbox};
use crate::volumes::{Mounted, PodMounts, SubPath};

/// A container that is ready to be made: what the runtime is asked for.
pub struct Prepared {
    config: longshore_cri::v1::ContainerConfig,
    sandbox_config: longshore_cri::v1::PodSandboxConfig,
    log: PathBuf,
}

impl PodRuntime {
    /// The image of a container, pulled if its policy asks for that. Needs no sandbox to stand:
    /// `attempt` is that of the one that does or is to be.
    pub async fn image(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        container: &Container,
        attempt: u32,
    ) -> Result<Present, StartError> {
        let say = |message: &str| {
            self.announcer.container(pod, kind, &container.name, true, "Failed", message);
        };
        let sandbox_config = sandbox::config(&self.settings, pod, attempt).map_err(|error| {
            say(&format!("Error: {error}"));
            StartError::new("CreateContainerConfigError", error.to_string())
        })?;
        let image = self.images.ensure(pod, kind, container, &sandbox_config).await;
        image.inspect_err(|error| say(&format!("Error: {}", error.reason)))
    }

    /// Put together what a container is made from. Changes nothing in the runtime.
    pub async fn prepare_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        container: &Container,
        image: Present,
        mounts: &PodMounts,
    ) -> Result<Prepared, StartError> {
        let prepare = async {
            let sandbox_config = sandbox::config(&self.settings, pod, sandbox.attempt)?;
            let log_dir = self.settings.pod_log_dir(pod).join(&container.name);
            create_dir(&log_dir).await?;
            let restart_count = match start.restart_count {
                Some(count) => count,
                None => container::restart_count_from_logs(&log_dir),
            };
            let config = self
                .container_config(pod, sandbox, container, restart_count, image, mounts)
                .await?;
            let log = log_dir.join(format!("{restart_count}.log"));
            Ok(Prepared { config, sandbox_config, log })
        };
        prepare.await.map_err(|error: Error| {
            self.not_started(pod, start, "CreateContainerConfigError", error.to_string())
        })
    }

    /// Create the container and start it; gives its id. Not to be dropped half-way: nobody would
    /// look at what came of it.
    pub async fn start_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        prepared: Prepared,
    ) -> Result<String, StartError> {
        let say = |reason: &str, message: &str| {
            self.announcer.container(pod, start.kind, &start.name, false, reason, message);
        };
        let Prepared { config, sandbox_config, log } = prepared;
        let created = self.cri.create_container(&sandbox.id, config, sandbox_config).await;
        let id = created.map_err(|error| {
            self.not_started(pod, start, "CreateContainerError", cri_message(&error))
        })?;
        say("Created", "Container created");
        let uid = spec::uid(pod);
        let starting = self.cri.start_container(&id);
        // A restart counts from here on, and the start takes a while yet.
        let counting = async {
            if start.restart_count.is_some_and(|count| count > 0) {
                let _ = self.observer.look_at_container(uid, &id, &sandbox.id).await;
            }
        };
        let (started, ()) = tokio::join!(starting, counting);
        // Looked at in either case: a container that failed to start has an exit to show.
        if let Err(error) = self.observer.look_at_container(uid, &id, &sandbox.id).await {
            debug!(pod = describe(pod), %id, %error, "look at a started container failed");
        }
        started.map_err(|error| {
            self.not_started(pod, start, "RunContainerError", cri_message(&error))
        })?;
        say("Started", "Container started");
        let link = container::legacy_log_link(pod, &start.name, &id);
        if let Err(error) = link_log(&log, &link).await {
            debug!(link = %link.display(), %error, "no link to the log");
        }
        Ok(id)
    }

    fn not_started(
        &self,
        pod: &Pod,
        start: &Start,
        reason: &'static str,
        message: String,
    ) -> StartError {
        let text = format!("Error: {message}");
        self.announcer.container(pod, start.kind, &start.name, true, "Failed", &text);
        StartError::new(reason, message)
    }

    async fn container_config(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        container: &Container,
        restart_count: u32,
        image: Present,
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

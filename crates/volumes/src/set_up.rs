//! Set-up of one volume of a pod.

mod persistent;

use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Volume};
use longshore_pod::spec;

use crate::claims::{self, migrated};
use crate::error::{self, Error};
use crate::medium::Medium;
use crate::mounted::Mounted;
use crate::payload::{Payload, Sources, fs_group};
use crate::persistent::Persistent;
use crate::source::Source;
use crate::state::State;
use crate::{Volumes, atomic, empty_dir, host_path, layout, nested};

impl Volumes {
    pub(super) async fn set_up(
        &self,
        pod: &Pod,
        volume: &Volume,
        source: &Source<'_>,
    ) -> Result<Mounted, Error> {
        let (uid, name, began) = (spec::uid(pod), &volume.name, Instant::now());
        let outcome = self.set_up_source(pod, name, source).await;
        self.inner.metrics.set_up(uid, name, source.plugin(), began, &outcome);
        if let (Source::Persistent(persistent), Err(error)) = (source, &outcome) {
            self.note_other_format(persistent, error);
        }
        outcome.map_err(|error| match source {
            Source::Persistent(persistent) => persistent.set_up_error(error),
            _ => error.of_volume(error::SET_UP, name),
        })
    }

    /// A volume that has another file system than it names is an event of it.
    fn note_other_format(&self, persistent: &Persistent, error: &Error) {
        if persistent.claim.is_none() || !error.is_other_format() {
            return;
        }
        let name = &persistent.spec_name;
        let volume = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolume".to_owned()),
            name: Some(name.clone()),
            uid: persistent.uid.clone(),
            ..ObjectReference::default()
        };
        let message = format!("MountVolume failed for volume {name:?} {error}");
        let reason = "FailedMountOnFilesystemMismatch";
        self.inner.pod_events.about(volume, true, reason, &message);
    }

    /// The persistent volume behind a claim or an inline volume.
    pub(super) async fn persistent(
        &self,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<Option<Persistent>, Error> {
        let client = self.inner.objects.client();
        let unready = |source| {
            let volume = volume.name.clone();
            Error::Claim { volume, source: Box::new(source) }
        };
        let bound = claims::bound(client, pod, volume).await.map_err(unready)?;
        let persistent = match &bound {
            Some(bound) => Some(Persistent::of_claim(bound)),
            None => match migrated::of_pod(volume, spec::namespace(pod)).map_err(unready)? {
                Some(translated) => Some(Persistent::of_migrated(&translated)),
                None => Persistent::of_pod(volume).map(Ok),
            },
        };
        persistent.transpose().map_err(|error| error.of_volume(error::SET_UP, &volume.name))
    }

    async fn set_up_source(
        &self,
        pod: &Pod,
        name: &str,
        source: &Source<'_>,
    ) -> Result<Mounted, Error> {
        let State { objects, allocatable, .. } = &*self.inner;
        let sources = Sources { pod, objects, allocatable };
        let memory = || Medium::memory(None, pod, allocatable);
        let (plugin, medium, payload) = match source {
            Source::HostPath(source) => return host_path::mount(source).await,
            Source::Persistent(persistent) => {
                return self.set_up_persistent(pod, persistent).await;
            }
            Source::EmptyDir(source) => {
                return self.empty_dir(pod, name, Medium::of(source, pod, allocatable)?).await;
            }
            Source::ConfigMap(source) => {
                let payload = sources.config_map_volume(source).await?;
                (layout::CONFIG_MAP, Medium::Disk, payload)
            }
            Source::Secret(source) => {
                (layout::SECRET, memory(), sources.secret_volume(source).await?)
            }
            // In memory as upstream: annotations may be confidential.
            Source::DownwardApi(source) => {
                (layout::DOWNWARD_API, memory(), sources.downward_api_volume(source)?)
            }
            Source::Projected(source) => {
                (layout::PROJECTED, memory(), sources.projected_volume(name, source).await?)
            }
        };
        self.write(pod, name, plugin, medium, payload).await
    }

    async fn empty_dir(&self, pod: &Pod, name: &str, medium: Medium) -> Result<Mounted, Error> {
        let path = self.volume_path(pod, layout::EMPTY_DIR, name)?;
        let (name, group) = (name.to_owned(), fs_group(pod));
        // A container outside of a user namespace can give files to another project.
        let in_user_namespace = pod.spec.as_ref().is_some_and(spec::has_user_namespace);
        let projects = self.inner.projects.clone().filter(|_| in_user_namespace);
        self.in_pod_dir(spec::uid(pod), move |pod| {
            empty_dir::set_up(pod, &name, medium, group, projects.as_deref())
        })
        .await?;
        Ok(Mounted::at(path).relabelled())
    }

    /// Writes data into an ephemeral volume.
    async fn write(
        &self,
        pod: &Pod,
        name: &str,
        plugin: &'static str,
        medium: Medium,
        payload: Payload,
    ) -> Result<Mounted, Error> {
        let path = self.volume_path(pod, plugin, name)?;
        let mount_points = nested::mount_points(pod, name)?;
        let (name, group) = (name.to_owned(), fs_group(pod));
        self.in_pod_dir(spec::uid(pod), move |pod| {
            let volume = empty_dir::make(&layout::volumes_dir(pod, plugin)?, &name, medium)?;
            if let Some(group) = group {
                volume.set_volume_ownership(group, atomic::READABLE)?;
            }
            nested::make_mount_points(&volume, &mount_points)?;
            atomic::write(&volume, &payload, group)
        })
        .await?;
        Ok(Mounted { read_only: true, ..Mounted::at(path).relabelled() })
    }

    fn volume_path(&self, pod: &Pod, plugin: &str, name: &str) -> Result<PathBuf, Error> {
        let name = layout::component("volume name", name)?;
        Ok(self.pod_dir(spec::uid(pod)).join(layout::VOLUMES).join(plugin).join(name))
    }
}

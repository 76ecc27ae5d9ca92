//! What all kinds of persistent volumes need to set one up for a pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::spec;

use crate::devices::Devices;
use crate::error::Error;
use crate::host::blocking;
use crate::host::mounts::{self, BindOptions, Table};
use crate::layout;
use crate::mounted::Mounted;
use crate::ownership::Ownership;
use crate::payload::fs_group;
use crate::persistent::Persistent;
use crate::state::State;

/// Which pod's fsGroup is applied to a volume that several pods use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// The first pod's; a warning event is recorded for others with another one.
    First,
    /// That of the pod that came last.
    Each,
}

/// One volume to be set up for one pod.
pub(super) struct Task<'a> {
    pub(super) node: &'a Arc<State>,
    pub(super) pod: &'a Pod,
    pub(super) persistent: &'a Persistent,
}

impl Task<'_> {
    pub(super) fn uid(&self) -> &str {
        spec::uid(self.pod)
    }

    pub(super) fn devices(&self) -> &Devices {
        &self.node.devices
    }

    /// Applies the pod's fsGroup to a path.
    pub(super) async fn set_volume_ownership(&self, path: PathBuf) -> Result<(), Error> {
        let Some(ownership) = Ownership::of_pod(self.pod, self.persistent.read_only) else {
            return Ok(());
        };
        ownership.apply(path, self.pod, &self.node.pod_events).await
    }

    pub(super) fn check_node_affinity(&self) -> Result<(), Error> {
        let Some(selector) = &self.persistent.node_affinity else { return Ok(()) };
        let Some(node) = self.devices().node() else { return Ok(()) };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        match longshore_pod::admission::selects_node(selector, name, &labels) {
            true => Ok(()),
            false => Err(Error::OtherNodes),
        }
    }

    /// The directory of the volume below the pod's, made if it is absent: from here on, teardown
    /// finds the volume.
    pub(super) async fn make_target(&self, plugin: &str) -> Result<PathBuf, Error> {
        let (root, uid) = (self.node.root.clone(), self.uid().to_owned());
        let (name, plugin) = (self.persistent.spec_name.clone(), plugin.to_owned());
        blocking(move || {
            let pod = layout::pod_dir(&root, &uid)?;
            let volumes = layout::volumes_dir(&pod, &plugin)?;
            // An existing one may be an unresponsive mount, so it is not opened.
            match volumes.new_dir(&name, 0o750) {
                Err(error) if error.errno() == Some(nix::errno::Errno::EEXIST) => {}
                made => drop(made?),
            }
            Ok(volumes.path().join(name))
        })
        .await
    }

    /// Bind mounts a directory for the pod, after applying fsGroup. An existing mount is kept.
    pub(super) async fn publish(
        &self,
        from: PathBuf,
        target: PathBuf,
        options: &[String],
        groups: Groups,
    ) -> Result<Mounted, Error> {
        let read_only = self.persistent.read_only;
        let options = BindOptions::of(options, read_only)?;
        let (source, to) = (from.clone(), target.clone());
        let pods = self.node.root.join(layout::PODS);
        let (mounted, shared) = blocking(move || {
            let (table, pods) = (Table::read()?, mounts::real_dir(&pods));
            let shared = table.binds(&source).iter().any(|point| point.starts_with(&pods));
            Ok((table.has(&to), shared))
        })
        .await?;
        let to = target.clone();
        if mounted {
            // An earlier daemon may have been killed between the two steps of a bind.
            blocking(move || mounts::complete(&to, options)).await?;
        } else {
            match shared && groups == Groups::First {
                true => self.warn_of_other_group(&from),
                false if read_only => {}
                false => self.set_volume_ownership(from.clone()).await?,
            }
            blocking(move || mounts::bind(&from, &to, options)).await?;
        }
        Ok(Mounted { read_only, relabel: !read_only, ..Mounted::at(target) })
    }

    fn warn_of_other_group(&self, path: &Path) {
        use std::os::unix::fs::MetadataExt;
        let wanted = fs_group(self.pod);
        let Some((wanted, found)) = wanted.zip(fs::metadata(path).ok().map(|root| root.gid()))
        else {
            return;
        };
        if wanted != found {
            let volume = &self.persistent.spec_name;
            let message = format!(
                "The requested fsGroup is {wanted}, but the volume {volume} has GID {found}. The \
                 volume may not be shareable."
            );
            self.node.pod_events.pod(self.pod, true, "AlreadyMountedVolume", &message);
        }
    }
}

//! Set-up of persistent volumes, by the kind of their source.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::panics;
use longshore_pod::spec;

use crate::error::Error;
use crate::mounted::Mounted;
use crate::persistent::{Persistent, PersistentSource};
use crate::task::Task;
use crate::{Volumes, csi, fc, flex, host_path, iscsi, layout, local, nfs, shared_disk};

impl Volumes {
    /// Sets up a persistent volume. It goes on when the caller is cancelled, so that no operation
    /// is left half-done.
    pub(super) async fn set_up_persistent(
        &self,
        pod: &Pod,
        persistent: &Persistent,
    ) -> Result<Mounted, Error> {
        layout::component("volume name", &persistent.dir_name())?;
        let is_csi =
            matches!(persistent.source, PersistentSource::Csi(_) | PersistentSource::CsiInline(_));
        if !is_csi {
            // The others have it as it is in paths.
            layout::component("volume name", &persistent.spec_name)?;
        }
        layout::component("pod UID", spec::uid(pod))?;
        let task = Task { node: &self.inner, pod, persistent };
        match &persistent.source {
            PersistentSource::Csi(source) => csi::until_attached(&task, source).await?,
            PersistentSource::Iscsi(disk) => shared_disk::until_attached(&task, disk).await?,
            PersistentSource::Fc(disk) => {
                fc::check(disk)?;
                shared_disk::until_attached(&task, disk).await?;
            }
            PersistentSource::Flex(source) => flex::until_attached(&task, source).await?,
            _ => {}
        }
        let guard = self.lock(spec::uid(pod)).read_owned().await;
        let (inner, pod, persistent) = (Arc::clone(&self.inner), pod.clone(), persistent.clone());
        let work = panics::task(async move {
            let _guard = guard;
            let task = Task { node: &inner, pod: &pod, persistent: &persistent };
            task.check_node_affinity()?;
            let mounted = match &persistent.source {
                PersistentSource::HostPath(_) if !persistent.mount_options.is_empty() => {
                    return Err(Error::MountOptions);
                }
                PersistentSource::HostPath(source) => {
                    let read_only = persistent.read_only;
                    Mounted { read_only, ..host_path::mount(source).await? }
                }
                PersistentSource::Local(source) => local::set_up(&task, source).await?,
                PersistentSource::Nfs(source) => nfs::set_up(&task, source).await?,
                PersistentSource::Iscsi(disk) => iscsi::set_up(&task, disk).await?,
                PersistentSource::Fc(disk) => fc::set_up(&task, disk).await?,
                PersistentSource::Flex(source) => flex::set_up(&task, source).await?,
                PersistentSource::Csi(source) => csi::set_up(&task, source).await?,
                PersistentSource::CsiInline(source) => csi::set_up_inline(&task, source).await?,
            };
            Ok(Mounted { group: persistent.group, ..mounted })
        });
        work.await.unwrap_or(Err(Error::Interrupted))
    }
}

//! Expansion of a volume by its driver (`NodeExpandVolume`).

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_csi::v1::{CapacityRange, NodeExpandVolumeRequest};

use super::paths::{BlockVolumePaths, VolumePaths};
use super::request::Volume;
use crate::error::Error;
use crate::expansion::{Expand, ExpandError, Expansion, Kind, expand_to, whole_bytes};
use crate::persistent::PersistentSource;
use crate::task::Task;

impl Expand for Volume<'_> {
    fn device(&self) -> &str {
        &self.device
    }

    fn unsupported(&self) -> Option<String> {
        let driver = self.driver.name();
        let why = || format!("NodeExpand is not supported by the CSI driver {driver}");
        (!self.capabilities.expand).then(why)
    }

    async fn expand(
        &self,
        task: &Task<'_>,
        size: &Quantity,
        _old: Option<&Quantity>,
    ) -> Result<(), ExpandError> {
        let request = self.expand_request(task, size).await?;
        self.driver.expand(request).await.map(drop).map_err(ExpandError::Call)
    }
}

impl Volume<'_> {
    async fn expand_request(
        &self,
        task: &Task<'_>,
        size: &Quantity,
    ) -> Result<NodeExpandVolumeRequest, Error> {
        let (root, name) = (&task.node.root, &task.persistent.spec_name);
        let (path, staging) = if task.persistent.block {
            let paths = BlockVolumePaths::new(root, name);
            (paths.maps.join(task.uid()), paths.staging)
        } else {
            let staged = VolumePaths::staged(root, self.driver.name(), &self.handle);
            (VolumePaths::of_pod(root, task.uid(), name).mount, staged.mount)
        };
        let staging = Some(staging).filter(|_| self.capabilities.stage);
        Ok(NodeExpandVolumeRequest {
            volume_id: self.handle.clone(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange {
                required_bytes: whole_bytes(size),
                limit_bytes: 0,
            }),
            staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
            volume_capability: Some(self.capability(task)),
            secrets: task.node.csi.secret(self.expand_secret.as_ref()).await?,
        })
    }
}

/// Volumes of CSI drivers.
pub(super) struct CsiKind;

impl Kind for CsiKind {
    async fn expand(
        task: &Task<'_>,
        claim: PersistentVolumeClaim,
        node_size: i128,
    ) -> Result<Expansion, Error> {
        let PersistentSource::Csi(source) = &task.persistent.source else {
            return Ok(Expansion::NotNeeded);
        };
        let volume = Volume::persistent(task, source).await?;
        expand_to(task, &volume, claim, Some(node_size)).await
    }
}

//! Expansion of a volume's file system, by its driver or in its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{calls, device_name, global_path, json, options};
use crate::error::Error;
use crate::expansion::{
    Expand, ExpandError, Expansion, Kind, expand_file_system, expand_to, whole_bytes,
};
use crate::host::blocking;
use crate::host::mounts::Table;
use crate::layout;
use crate::persistent::{FlexSource, PersistentSource};
use crate::state::flex::{self as driver, Driver};
use crate::task::Task;

/// A volume of a driver.
pub(super) struct FlexVolume<'a> {
    device: String,
    source: &'a FlexSource,
    driver: Arc<Driver>,
}

impl<'a> FlexVolume<'a> {
    pub(super) async fn of(task: &Task<'_>, source: &'a FlexSource) -> Result<Self, Error> {
        let driver = task.node.flex.get(&task.node.tools, &source.driver).await?;
        let device = device_name(&source.driver, &task.persistent.spec_name);
        Ok(Self { device, source, driver })
    }

    /// Where it is mounted for all pods, or for this one.
    fn mounted(&self, task: &Task<'_>) -> PathBuf {
        let (root, persistent) = (&task.node.root, task.persistent);
        if self.driver.capabilities.attach {
            return global_path(root, &self.source.driver, &persistent.spec_name);
        }
        let volumes = layout::pod_path(root, task.uid()).join(layout::VOLUMES);
        volumes.join(driver::dir_name(&self.source.driver)).join(persistent.dir_name())
    }
}

impl Expand for FlexVolume<'_> {
    fn device(&self) -> &str {
        &self.device
    }

    fn unsupported(&self) -> Option<String> {
        let driver = &self.source.driver;
        let why = || format!("NodeExpand is not required by the FlexVolume driver {driver}");
        (!self.driver.capabilities.requires_resize).then(why)
    }

    async fn expand(
        &self,
        task: &Task<'_>,
        size: &Quantity,
        old: Option<&Quantity>,
    ) -> Result<(), ExpandError> {
        let mounted = self.mounted(task);
        let path = mounted.clone();
        let device = blocking(move || Ok(Table::read()?.source(&path))).await?.unwrap_or_default();
        let options = json(&options::of_volume(task, self.source))?;
        let sizes =
            [size, old.unwrap_or(&Quantity::default())].map(|size| whole_bytes(size).to_string());
        let [size, old] = sizes.each_ref().map(AsRef::as_ref);
        let args = [options.as_ref(), device.as_os_str(), mounted.as_os_str(), size, old];
        if calls::set_up(task, &self.driver, "expandfs", &args).await?.is_none() {
            expand_file_system(&task.node.tools, Path::new(&device), &mounted).await?;
        }
        Ok(())
    }
}

/// Volumes of FlexVolume drivers.
pub(super) struct FlexKind;

impl Kind for FlexKind {
    async fn expand(
        task: &Task<'_>,
        claim: PersistentVolumeClaim,
        node_size: i128,
    ) -> Result<Expansion, Error> {
        let PersistentSource::Flex(source) = &task.persistent.source else {
            return Ok(Expansion::NotNeeded);
        };
        let volume = FlexVolume::of(task, source).await?;
        expand_to(task, &volume, claim, Some(node_size)).await
    }
}

//! Volume stats from CSI drivers.

use std::time::Instant;

use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse};

use super::paths::{BlockVolumePaths, VolumePaths};
use super::vol_data::VolData;
use crate::error::{Error, csi as error};
use crate::host::blocking;
use crate::state::State;
use crate::stats::{Condition, CsiVolume, VolumeStats};

/// Queries the driver for the stats of a pod's volume; `None` if it does not support that.
pub(crate) async fn stats(
    node: &State,
    uid: &str,
    volume: &CsiVolume,
) -> Result<Option<VolumeStats>, Error> {
    let (dir, path) = if volume.block {
        let paths = BlockVolumePaths::new(&node.root, &volume.name);
        (paths.data, paths.maps.join(uid))
    } else {
        let paths = VolumePaths::of_pod(&node.root, uid, &volume.name);
        (paths.dir, paths.mount)
    };
    let data_dir = dir.clone();
    let Some(vol_data) = blocking(move || VolData::read(&data_dir)).await? else { return Ok(None) };
    let (driver, handle) = vol_data.volume(&dir)?;
    let driver = node.csi.driver(driver)?;
    let capabilities = driver.capabilities().await.map_err(error::Error::from)?;
    if !capabilities.stats {
        return Ok(None);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.display().to_string(),
        staging_target_path: String::new(),
    };
    let began = Instant::now();
    let response = driver.stats(request).await;
    node.metrics.observe_collection(driver.name(), began);
    let response = response.map_err(error::Error::from)?;
    Ok(Some(from_response(&response, capabilities.condition)))
}

/// Converts a driver's response; with the volume's condition only if the driver has that
/// capability.
pub(super) fn from_response(
    response: &NodeGetVolumeStatsResponse,
    knows_condition: bool,
) -> VolumeStats {
    let mut stats = VolumeStats::default();
    for usage in &response.usage {
        // Negative values are a driver's mistake.
        let [total, available, used] = [usage.total, usage.available, usage.used]
            .map(|response| u64::try_from(response).unwrap_or_default());
        match usage.unit() {
            Unit::Bytes => {
                (stats.capacity, stats.available, stats.used) = (total, available, used);
            }
            Unit::Inodes => {
                (stats.inodes, stats.inodes_free, stats.inodes_used) = (total, available, used);
            }
            Unit::Unknown => {}
        }
    }
    let condition = response.volume_condition.clone().unwrap_or_default();
    let condition = Condition { abnormal: condition.abnormal, message: condition.message };
    VolumeStats { condition: knows_condition.then_some(condition), ..stats }
}

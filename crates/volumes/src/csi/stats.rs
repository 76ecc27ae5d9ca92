//! How full volumes are, as their drivers tell.

use std::time::Instant;

use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse};

use super::super::stats::{Condition, Driven, VolumeStats};
use super::super::{Error, Inner, blocking};
use super::error;
use super::notes::Notes;
use super::paths::{BlockPlace, Place};

/// Asks the driver of a pod's volume how full it is; `None`: it cannot tell, so that its file system
/// may be asked.
pub(crate) async fn stats(
    node: &Inner,
    uid: &str,
    volume: &Driven,
) -> Result<Option<VolumeStats>, Error> {
    let (dir, path) = if volume.block {
        let place = BlockPlace::new(&node.root, &volume.name);
        (place.data, place.maps.join(uid))
    } else {
        let place = Place::of_pod(&node.root, uid, &volume.name);
        (place.dir, place.mount)
    };
    let noted = dir.clone();
    let Some(notes) = blocking(move || Notes::read(&noted)).await? else { return Ok(None) };
    let (driver, handle) = notes.volume(&dir)?;
    let driver = node.csi.driver(driver)?;
    let able = driver.capabilities().await.map_err(error::Error::from)?;
    if !able.stats {
        return Ok(None);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.display().to_string(),
        staging_target_path: String::new(),
    };
    let began = Instant::now();
    let told = driver.stats(request).await;
    node.metrics.collected(driver.name(), began);
    let told = told.map_err(error::Error::from)?;
    Ok(Some(filling(&told, able.condition)))
}

/// What a driver has told; of the volume's condition only if the driver says that it knows.
pub(super) fn filling(told: &NodeGetVolumeStatsResponse, knows_condition: bool) -> VolumeStats {
    let mut filling = VolumeStats::default();
    for usage in &told.usage {
        // What is less than nothing is a driver's mistake.
        let [total, available, used] = [usage.total, usage.available, usage.used]
            .map(|told| u64::try_from(told).unwrap_or_default());
        match usage.unit() {
            Unit::Bytes => {
                (filling.capacity, filling.available, filling.used) = (total, available, used);
            }
            Unit::Inodes => {
                (filling.inodes, filling.inodes_free, filling.inodes_used) =
                    (total, available, used);
            }
            Unit::Unknown => {}
        }
    }
    let condition = told.volume_condition.clone().unwrap_or_default();
    let condition = Condition { abnormal: condition.abnormal, message: condition.message };
    VolumeStats { condition: knows_condition.then_some(condition), ..filling }
}

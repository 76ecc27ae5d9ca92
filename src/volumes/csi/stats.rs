//! How full volumes are, as their drivers tell.

use longshore_csi::v1::volume_usage::Unit;
use longshore_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};

use super::super::{Error, Inner, blocking};
use super::error;
use super::notes::Notes;
use super::paths::{BlockPlace, Place};

/// How much of something there is; `None`: the driver does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// What there is in all.
    pub capacity: u64,
    /// What pods can have of it yet.
    pub available: u64,
    /// What they have.
    pub used: u64,
}

/// How full a volume is, and how it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// In bytes.
    pub bytes: Option<Amount>,
    /// In inodes.
    pub inodes: Option<Amount>,
    /// What is the matter with the volume; `None`: nothing, or the driver does not say.
    pub abnormal: Option<String>,
}

/// Asks the driver of a pod's volume how full it is; `None`: it cannot tell, so that its file system
/// may be asked.
pub(in crate::volumes) async fn stats(
    node: &Inner,
    uid: &str,
    volume: &str,
    block: bool,
) -> Result<Option<Usage>, Error> {
    let (dir, path) = if block {
        let place = BlockPlace::new(&node.root, volume);
        (place.data, place.maps.join(uid))
    } else {
        let place = Place::of_pod(&node.root, uid, volume);
        (place.dir, place.mount)
    };
    let noted = dir.clone();
    let Some(notes) = blocking(move || Notes::read(&noted)).await? else { return Ok(None) };
    let (driver, handle) = notes.volume(&dir)?;
    let driver = node.csi.driver(driver)?;
    if !driver.capabilities().await.map_err(error::Error::from)?.stats {
        return Ok(None);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: handle.to_owned(),
        volume_path: path.display().to_string(),
        staging_target_path: String::new(),
    };
    let told = driver.stats(request).await.map_err(error::Error::from)?;
    Ok(Some(Usage::of(&told)))
}

impl Usage {
    pub(super) fn of(told: &NodeGetVolumeStatsResponse) -> Self {
        let of = |unit: Unit| told.usage.iter().rfind(|usage| usage.unit() == unit).map(Amount::of);
        let condition = told.volume_condition.as_ref().filter(|condition| condition.abnormal);
        Self {
            bytes: of(Unit::Bytes),
            inodes: of(Unit::Inodes),
            abnormal: condition.map(|condition| condition.message.clone()),
        }
    }
}

impl Amount {
    fn of(usage: &VolumeUsage) -> Self {
        // What is less than nothing is a driver's mistake.
        let amount = |told: i64| u64::try_from(told).unwrap_or_default();
        Self {
            capacity: amount(usage.total),
            available: amount(usage.available),
            used: amount(usage.used),
        }
    }
}

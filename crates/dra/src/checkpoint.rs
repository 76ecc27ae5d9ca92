//! The claims on disk, in upstream's format: a Go kubelet reads what this daemon has written, and this daemon
//! what a Go kubelet has.

use std::collections::BTreeMap;
use std::path::Path;

use longshore_base::files::if_present;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::claims::{Claim, Claims, Device};
use crate::error::Error;
use crate::file::StateFile;

/// The file, in the node's root directory.
const FILE: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// The file, with a checksum of its data, which are JSON in a text.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    version: String,
    #[serde(rename = "ClaimInfoStateList", default)]
    claims: Option<Vec<ClaimEntry>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ClaimEntry {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    claim_name: String,
    namespace: String,
    #[serde(rename = "PodUIDs", default)]
    pod_uids: Option<BTreeMap<String, Empty>>,
    #[serde(default)]
    driver_state: Option<BTreeMap<String, DriverEntry>>,
}

/// A member of a set.
#[derive(Serialize, Deserialize)]
struct Empty {}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverEntry {
    #[serde(default)]
    devices: Option<Vec<DeviceEntry>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceEntry {
    pool_name: String,
    device_name: String,
    #[serde(rename = "ShareID", default)]
    share_id: Option<String>,
    #[serde(default)]
    request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs", default)]
    cdi_device_ids: Option<Vec<String>>,
}

/// An empty list, as Go has it.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

impl From<&Claim> for ClaimEntry {
    fn from(claim: &Claim) -> Self {
        let devices = |devices: &[Device]| {
            some(devices.iter().cloned().map(DeviceEntry::from).collect::<Vec<_>>())
        };
        let drivers = claim.drivers.iter();
        let drivers =
            drivers.map(|(name, own)| (name.clone(), DriverEntry { devices: devices(own) }));
        Self {
            claim_uid: claim.uid.clone(),
            claim_name: claim.name.clone(),
            namespace: claim.namespace.clone(),
            pod_uids: Some(claim.pods.iter().map(|uid| (uid.clone(), Empty {})).collect()),
            driver_state: Some(drivers.collect()),
        }
    }
}

impl From<ClaimEntry> for Claim {
    fn from(entry: ClaimEntry) -> Self {
        let drivers = entry.driver_state.unwrap_or_default().into_iter();
        let devices = |own: DriverEntry| {
            own.devices.unwrap_or_default().into_iter().map(Device::from).collect()
        };
        Self {
            uid: entry.claim_uid,
            namespace: entry.namespace,
            name: entry.claim_name,
            pods: entry.pod_uids.unwrap_or_default().into_keys().collect(),
            drivers: drivers.map(|(name, own)| (name, devices(own))).collect(),
            is_prepared: false,
        }
    }
}

impl From<Device> for DeviceEntry {
    fn from(device: Device) -> Self {
        Self {
            pool_name: device.pool,
            device_name: device.name,
            share_id: device.share_id,
            request_names: some(device.requests),
            cdi_device_ids: some(device.cdi),
        }
    }
}

impl From<DeviceEntry> for Device {
    fn from(entry: DeviceEntry) -> Self {
        Self {
            pool: entry.pool_name,
            name: entry.device_name,
            share_id: entry.share_id,
            requests: entry.request_names.unwrap_or_default(),
            cdi: entry.cdi_device_ids.unwrap_or_default(),
        }
    }
}

/// The content of the file.
pub(crate) fn encode(claims: &Claims) -> Result<Vec<u8>, serde_json::Error> {
    let entries: Vec<ClaimEntry> = claims.iter().map(ClaimEntry::from).collect();
    let data = Data { kind: KIND.to_owned(), version: VERSION.to_owned(), claims: some(entries) };
    let data = serde_json::to_string(&data)?;
    serde_json::to_vec(&File { checksum: crc32fast::hash(data.as_bytes()), data })
}

/// The claims in the content of a file. An error is a text about it.
pub(crate) fn decode(content: &[u8]) -> Result<Claims, String> {
    let file: File = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    let checksum = crc32fast::hash(file.data.as_bytes());
    if checksum != file.checksum {
        return Err("checkpoint is corrupted".to_owned());
    }
    let data: Data = serde_json::from_str(&file.data).map_err(|error| error.to_string())?;
    Ok(Claims::new(data.claims.unwrap_or_default().into_iter().map(Claim::from)))
}

/// The file.
pub(crate) struct Checkpoint {
    file: StateFile,
}

impl Checkpoint {
    /// Opens the file, and reads the claims in it.
    pub(crate) fn open(root: &Path) -> Result<(Self, Claims), Error> {
        let path = root.join(FILE);
        let failed = |reason| Error::Restore { path: path.display().to_string(), reason };
        let content =
            if_present(std::fs::read(&path)).map_err(|error| failed(error.to_string()))?;
        let claims = match content {
            Some(content) => decode(&content).map_err(failed)?,
            None => Claims::default(),
        };
        Ok((Self { file: StateFile::new(path) }, claims))
    }

    /// Writes the claims. Returns when they are on disk.
    pub(crate) async fn write(&self, claims: &Mutex<Claims>) -> Result<(), Error> {
        let written = self.file.write(|| encode(&claims.lock())).await;
        written.map_err(|reason| Error::Checkpoint {
            path: self.file.path().display().to_string(),
            reason,
        })
    }
}

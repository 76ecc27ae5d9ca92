//! The checkpoint file of the resources of all pods, in upstream's format: JSON inside a JSON
//! string, beside its checksum.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_godump::Fnv32a;
use serde::{Deserialize, Serialize};

use super::PodResources;

/// The resources of pods by UID.
type Entries = BTreeMap<String, Arc<PodResources>>;

/// A checkpoint that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not JSON of that form.
    #[error("not a checkpoint: {0}")]
    Form(#[from] serde_json::Error),
    /// Its content does not match its checksum.
    #[error("checkpoint is corrupted: its checksum is {written}, and {computed} of what it holds")]
    Checksum {
        /// The checksum in the file.
        written: u64,
        /// The checksum of the content.
        computed: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    data: String,
    checksum: u64,
}

/// What `data` holds.
#[derive(Serialize, Deserialize)]
struct Data<E> {
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    entries: Option<E>,
}

/// Encode the checkpoint of those pods.
pub fn encode(entries: &BTreeMap<String, Arc<PodResources>>) -> Result<Vec<u8>, Error> {
    let entries: BTreeMap<&String, &PodResources> =
        entries.iter().map(|(uid, resources)| (uid, resources.as_ref())).collect();
    let data = Data { entries: (!entries.is_empty()).then_some(entries) };
    let data = serde_json::to_string(&data)?;
    let checksum = checksum(&data);
    Ok(serde_json::to_vec(&Checkpoint { data, checksum })?)
}

/// Decode a checkpoint.
pub fn decode(content: &[u8]) -> Result<BTreeMap<String, Arc<PodResources>>, Error> {
    let Checkpoint { data, checksum: written } = serde_json::from_slice(content)?;
    let computed = checksum(&data);
    if computed != written {
        return Err(Error::Checksum { written, computed });
    }
    let data: Data<BTreeMap<String, PodResources>> = serde_json::from_str(&data)?;
    let entries = data.entries.into_iter().flatten();
    Ok(entries.map(|(uid, resources)| (uid, Arc::new(resources))).collect::<Entries>())
}

/// The checksum of the string with its Go type, as upstream prints it.
pub(super) fn checksum(data: &str) -> u64 {
    let mut hasher = Fnv32a::default();
    hasher.update(b"(string)");
    hasher.update(data.as_bytes());
    hasher.finish().into()
}

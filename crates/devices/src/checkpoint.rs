//! The checkpoint `kubelet_internal_checkpoint` of Kubernetes 1.36: JSON with a checksum over the Go
//! representation of the struct.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use longshore_godump::{Fnv32a, Types, print};
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::state::{Holding, PodHoldings, State};
use crate::v1beta1::ContainerAllocateResponse;

const TYPES: &str = include_str!("checkpoint.types.txt");
const DATA: &str = "checkpoint.checkpointData";

/// Why a checkpoint cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It is not in the format.
    #[error("{0}")]
    Format(String),
    /// The checksum does not match.
    #[error("checkpoint is corrupted")]
    Corrupt,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    #[serde(default)]
    checksum: u64,
}

/// An empty list of entries is null, as Go writes it.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    #[serde(deserialize_with = "or_default")]
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID", default)]
    pod_uid: String,
    #[serde(default)]
    container_name: String,
    #[serde(default)]
    resource_name: String,
    /// By NUMA node, which is a number.
    #[serde(rename = "DeviceIDs", deserialize_with = "or_default", default)]
    device_ids: BTreeMap<String, Vec<String>>,
    /// A `ContainerAllocateResponse` in base64.
    #[serde(default, deserialize_with = "or_default")]
    alloc_resp: String,
}

/// Go writes null for empty values.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The content of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Content {
    /// Healthy devices by resource.
    pub(crate) registered: BTreeMap<String, Vec<String>>,
    /// By pod UID.
    pub(crate) pods: BTreeMap<String, PodHoldings>,
}

impl Content {
    /// The state as far as it is kept: registered resources, and what plugins have allocated.
    pub(crate) fn of(state: &State) -> Self {
        let listed = state.resources.iter().filter(|(_, known)| known.is_listed);
        let registered = listed.map(|(name, known)| (name.clone(), ids(&known.healthy)));
        let mut pods = state.pods.clone();
        for containers in pods.values_mut() {
            for holdings in containers.values_mut() {
                holdings.retain(|_, own| own.response.is_some());
            }
            containers.retain(|_, holdings| !holdings.is_empty());
        }
        pods.retain(|_, containers| !containers.is_empty());
        Self { registered: registered.collect(), pods }
    }

    /// The text of the file.
    pub(crate) fn write(&self) -> String {
        let mut entries = Vec::new();
        for (uid, containers) in &self.pods {
            for (container, holdings) in containers {
                for (resource, own) in holdings {
                    let nodes = own.by_node.iter();
                    let response = own.response.as_ref().map(Message::encode_to_vec);
                    entries.push(Entry {
                        pod_uid: uid.clone(),
                        container_name: container.clone(),
                        resource_name: resource.clone(),
                        device_ids: nodes.map(|(id, own)| (id.to_string(), own.clone())).collect(),
                        alloc_resp: STANDARD.encode(response.unwrap_or_default()),
                    });
                }
            }
        }
        let data = Data {
            pod_device_entries: Some(entries).filter(|entries| !entries.is_empty()),
            registered_devices: self.registered.clone(),
        };
        // Maps with string keys and plain fields always serialize.
        let value = serde_json::to_value(&data).unwrap_or_default();
        let checksum = checksum(&value).into();
        serde_json::to_string(&File { data, checksum }).unwrap_or_default()
    }

    /// The content of a file.
    pub(crate) fn read(text: &str) -> Result<Self, Error> {
        let format = |error: serde_json::Error| Error::Format(error.to_string());
        let value: Value = serde_json::from_str(text).map_err(format)?;
        let file: File = serde_json::from_value(value.clone()).map_err(format)?;
        if file.checksum != u64::from(checksum(&value["Data"])) {
            return Err(Error::Corrupt);
        }
        let mut pods: BTreeMap<String, PodHoldings> = BTreeMap::new();
        for entry in file.data.pod_device_entries.into_iter().flatten() {
            let mut by_node = BTreeMap::new();
            for (node, ids) in &entry.device_ids {
                let node = node.parse::<i64>().map_err(|_| {
                    Error::Format(format!("{node:?} is no NUMA node of {}", entry.resource_name))
                })?;
                by_node.insert(node, ids.clone());
            }
            // As upstream: what cannot be read of an entry is as if it were not there.
            let response = STANDARD.decode(&entry.alloc_resp).ok();
            let Some(response) =
                response.and_then(|bytes| ContainerAllocateResponse::decode(bytes.as_slice()).ok())
            else {
                let Entry { pod_uid, container_name, resource_name, .. } = &entry;
                tracing::warn!(pod_uid, container_name, resource_name, "unreadable allocation");
                continue;
            };
            let containers = pods.entry(entry.pod_uid).or_default();
            let holdings = containers.entry(entry.container_name).or_default();
            holdings.insert(entry.resource_name, Holding { by_node, response: Some(response) });
        }
        Ok(Self { registered: file.data.registered_devices, pods })
    }
}

fn ids(healthy: &crate::state::Ids) -> Vec<String> {
    healthy.iter().cloned().collect()
}

/// The checksum over the content of a file. Go has the bytes of a response where JSON has base64.
fn checksum(data: &Value) -> u32 {
    let mut data = data.clone();
    // A hostile file may have anything in the place of an object.
    let entries = data.get_mut("PodDeviceEntries").and_then(Value::as_array_mut);
    for response in entries.into_iter().flatten().filter_map(|own| own.get_mut("AllocResp")) {
        if let Some(text) = response.as_str() {
            *response = json!(STANDARD.decode(text).unwrap_or_default());
        }
    }
    let mut hasher = Fnv32a::default();
    // Writing to a hasher cannot fail.
    let _ = print(&Types::parse(TYPES), DATA, &data, &mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by upstream's package `checkpoint`.
    const UPSTREAM: &str = include_str!("testdata/upstream.json");
    const UPSTREAM_EMPTY: &str = include_str!("testdata/upstream-empty.json");

    #[test]
    fn device_checkpoint_of_upstream_is_read() {
        let content = Content::read(UPSTREAM).unwrap();
        let held = &content.pods["uid-1"]["main"]["example.com/gpu"];
        let nodes = BTreeMap::from([(0, vec!["gpu-0".to_owned()]), (1, vec!["gpu-0".to_owned()])]);
        assert_eq!(held.by_node, nodes);
        let response = held.response.as_ref().unwrap();
        assert_eq!(response.envs["VISIBLE"], "0");
        assert_eq!(response.devices[0].host_path, "/dev/gpu0");
        assert_eq!(response.cdi_devices[0].name, "example.com/gpu=0");
        let other = &content.pods["uid-1"]["main"]["example.com/nic"];
        assert_eq!(other.by_node[&-1], ["nic-<1>"]);
        assert_eq!(other.response, Some(ContainerAllocateResponse::default()));
        assert_eq!(content.registered["example.com/gpu"], ["gpu-0", "gpu-1"]);
        assert!(content.registered["example.com/nic"].is_empty());
        assert_eq!(Content::read(UPSTREAM_EMPTY).unwrap(), Content::default());
    }

    #[test]
    fn device_checkpoint_is_the_one_that_upstream_writes() {
        let same = |text: &str| {
            let own: Value = serde_json::from_str(&Content::read(text).unwrap().write()).unwrap();
            let mut theirs: Value = serde_json::from_str(text).unwrap();
            // Go's order of a map is not the same twice, and neither is that of entries.
            let name = |entry: &Value| entry["ResourceName"].as_str().unwrap().to_owned();
            if let Some(entries) = theirs["Data"]["PodDeviceEntries"].as_array_mut() {
                entries.sort_by_key(name);
            }
            assert_eq!(own, theirs);
        };
        same(UPSTREAM);
        same(UPSTREAM_EMPTY);
    }

    #[test]
    fn device_checkpoint_that_was_changed_is_refused() {
        let changed = UPSTREAM.replace("gpu-1", "gpu-2");
        assert_eq!(Content::read(&changed), Err(Error::Corrupt));
        for text in ["", "{", "[]", "{\"Data\":1}", "{\"Data\":{\"PodDeviceEntries\":[1]}}"] {
            assert!(matches!(Content::read(text), Err(Error::Format(_))), "{text}");
        }
        let entry = json!(["u", "c", "r", {}, ""]);
        for data in [json!([[], {}]), json!({"PodDeviceEntries": [entry]})] {
            let text = json!({"Data": data, "Checksum": 1}).to_string();
            assert_eq!(Content::read(&text), Err(Error::Corrupt), "{text}");
        }
    }
}

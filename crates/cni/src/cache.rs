//! Results in files, in libcni's format: `results/NETWORK-CONTAINER-INTERFACE` in the cache folder.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use longshore_base::files::{self, if_present};
use longshore_base::panics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attachment::Attachment;
use crate::{Error, Network, Result};

const KIND: &str = "cniCacheV1";
/// No file is larger.
const MAX_FILE: u64 = 4 << 20;

/// A file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    kind: String,
    container_id: String,
    /// The list of plugins, in base64.
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    capability_args: Map<String, Value>,
    result: Value,
}

/// What is kept of an attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    path: PathBuf,
    config: String,
    args: Vec<(String, String)>,
    capability_args: Map<String, Value>,
    /// The last plugin's result.
    pub result: Value,
}

impl Cached {
    /// The network by which it was made.
    pub(crate) fn network(&self) -> Result<Network> {
        let invalid = |reason: String| Error::Cache { path: self.path.clone(), reason };
        Network::parse(&self.config).map_err(invalid)
    }

    /// The attachment with the arguments with which it was made.
    pub(crate) fn complete(&self, attachment: &Attachment) -> Attachment {
        let mut attachment = attachment.clone();
        if attachment.args.is_empty() {
            attachment.args.clone_from(&self.args);
        }
        if attachment.capability_args.is_empty() {
            attachment.capability_args.clone_from(&self.capability_args);
        }
        attachment
    }

    /// Removes the file.
    pub(crate) async fn forget(self) -> Result<()> {
        let path = self.path.clone();
        let removed = panics::try_blocking(move || if_present(fs::remove_file(path))).await;
        removed.map(drop).map_err(|error| Error::file("remove", self.path, error))
    }
}

/// Keeps a result. Whole or not at all, but not durable: after a crash of the machine there are no attachments.
pub(crate) async fn store(
    folder: &Path,
    network: &Network,
    attachment: &Attachment,
    result: &Value,
) -> Result<()> {
    let folder = folder.join("results");
    let name = format!("{}-{}-{}", network.name(), attachment.container_id, attachment.interface);
    let path = folder.join(name);
    let entry = Entry {
        kind: KIND.to_owned(),
        container_id: attachment.container_id.clone(),
        config: base64(network.text()),
        if_name: attachment.interface.clone(),
        network_name: network.name().to_owned(),
        netns: attachment.netns.as_ref().map(|path| path.to_string_lossy().into_owned()),
        cni_args: attachment.args.clone(),
        capability_args: attachment.capability_args.clone(),
        result: result.clone(),
    };
    let write = move || {
        let write = || {
            fs::create_dir_all(&folder)?;
            files::replace_volatile(&path, &serde_json::to_vec(&entry)?)
        };
        write().map_err(|source| Error::file("write", &path, source))
    };
    panics::try_blocking(write).await
}

/// The file of an attachment, whatever its network is called.
pub(crate) fn find(folder: &Path, container: &str, interface: &str) -> Result<Option<Cached>> {
    let folder = folder.join("results");
    let failed = |source| Error::file("read", &folder, source);
    let suffix = format!("-{container}-{interface}");
    let entries = if_present(fs::read_dir(&folder)).map_err(failed)?.into_iter().flatten();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if !name.as_bytes().ends_with(suffix.as_bytes()) {
            continue;
        }
        match read(&folder.join(name), container, interface) {
            Ok(cached) => return Ok(Some(cached)),
            Err(error) => tracing::warn!("{error}"),
        }
    }
    Ok(None)
}

fn read(path: &Path, container: &str, interface: &str) -> Result<Cached> {
    let invalid = |reason: String| Error::Cache { path: path.to_owned(), reason };
    let bytes = files::read_at_most(path, MAX_FILE).map_err(|e| Error::file("read", path, e))?;
    let entry: Entry = serde_json::from_slice(&bytes).map_err(|e| invalid(e.to_string()))?;
    if entry.kind != KIND {
        return Err(invalid(format!("its kind is {:?}", entry.kind)));
    }
    if entry.container_id != container || entry.if_name != interface {
        return Err(invalid("it belongs to another container".to_owned()));
    }
    let config = decode(&entry.config).ok_or_else(|| invalid("its config is not base64".into()))?;
    Ok(Cached {
        path: path.to_owned(),
        config,
        args: entry.cni_args,
        capability_args: entry.capability_args,
        result: entry.result,
    })
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn decode(text: &str) -> Option<String> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    String::from_utf8(bytes).ok()
}

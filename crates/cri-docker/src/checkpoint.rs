//! Files that cri-dockerd keeps of sandboxes, `sandbox/ID` in its root folder: what the engine cannot tell once a
//! container is gone. Theirs are read, and ours are for them to read: the checksum is over the fields that
//! they have, as Go prints them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use longshore_base::files::{self, if_present};
use longshore_base::panics;
use longshore_cri::v1::{
    NamespaceMode, PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol,
};
use longshore_godump::Fnv32a;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// No file is larger.
const MAX_FILE: u64 = 1 << 20;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    version: String,
    name: String,
    namespace: String,
    /// Not cri-dockerd's, which passes over it: what tells pods of one name apart.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    attempt: u32,
    #[serde(default)]
    data: Data,
    checksum: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    port_mappings: Vec<Port>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    host_network: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Port {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container_port: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_port: Option<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host_ip: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Checkpoint {
    /// What is kept of a sandbox.
    pub(crate) fn new(config: &PodSandboxConfig) -> Self {
        let metadata = config.metadata.clone().unwrap_or_default();
        let options = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = options.and_then(|context| context.namespace_options.as_ref());
        let data = Data {
            port_mappings: config.port_mappings.iter().map(Port::new).collect(),
            host_network: options.is_some_and(|o| o.network() == NamespaceMode::Node),
        };
        Self {
            version: "v1".to_owned(),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            checksum: data.checksum(),
            data,
        }
    }

    pub(crate) fn metadata(&self) -> PodSandboxMetadata {
        PodSandboxMetadata {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            attempt: self.attempt,
        }
    }

    pub(crate) fn is_host_network(&self) -> bool {
        self.data.host_network
    }
}

impl Port {
    fn new(mapping: &PortMapping) -> Self {
        Self {
            protocol: Some(protocol(mapping.protocol()).to_owned()),
            container_port: Some(mapping.container_port),
            host_port: Some(mapping.host_port),
            host_ip: mapping.host_ip.clone(),
        }
    }
}

/// A protocol as CNI and checkpoints have it.
pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

impl Data {
    /// FNV-1a over what Go's spew prints of cri-dockerd's types.
    fn checksum(&self) -> u64 {
        let mut hash = Fnv32a::default();
        // A hash takes everything.
        let _ = self.print(&mut hash);
        hash.finish().into()
    }

    fn print(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        out.write_str("(core.CheckpointData){PortMappings:([]*config.PortMapping)")?;
        if self.port_mappings.is_empty() {
            out.write_str("<nil>")?;
        } else {
            for (number, port) in self.port_mappings.iter().enumerate() {
                out.write_str(if number == 0 { "[" } else { " " })?;
                port.print(out)?;
            }
            out.write_str("]")?;
        }
        write!(out, " HostNetwork:(bool){}}}", self.host_network)
    }
}

impl Port {
    fn print(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        fn optional<T: ToString>(value: Option<&T>) -> String {
            value.map_or_else(|| "<nil>".to_owned(), ToString::to_string)
        }
        write!(
            out,
            "<*>{{Protocol:(*config.Protocol){} ContainerPort:(*int32){} HostPort:(*int32){} \
             HostIP:(string){}}}",
            optional(self.protocol.as_ref()),
            optional(self.container_port.as_ref()),
            optional(self.host_port.as_ref()),
            self.host_ip
        )
    }
}

/// The folder of them.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoints(PathBuf);

impl Checkpoints {
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.join("sandbox"))
    }

    /// Keeps a sandbox. Whole or not at all, but not durable: the engine knows sandboxes too.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn write(&self, id: &str, checkpoint: &Checkpoint) -> Result<()> {
        let path = self.0.join(id);
        let failed = |error| Error::file("write checkpoint", &path, error);
        let text = serde_json::to_vec(checkpoint).map_err(|error| failed(error.into()))?;
        let (folder, file) = (self.0.clone(), path.clone());
        let write = move || {
            fs::create_dir_all(folder)?;
            files::replace_volatile(&file, &text)
        };
        panics::try_blocking(write).await.map_err(failed)
    }

    /// What is kept of a sandbox. A file that is not valid is removed, and counts as absent.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn read(&self, id: &str) -> Result<Option<Checkpoint>> {
        let path = self.0.join(id);
        let file = path.clone();
        let read = panics::try_blocking(move || files::read_at_most(&file, MAX_FILE)).await;
        let text = match if_present(read) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::FileTooLarge => Vec::new(),
            Err(error) => return Err(Error::file("read checkpoint", path, error)),
        };
        match serde_json::from_slice::<Checkpoint>(&text) {
            Ok(checkpoint) if checkpoint.checksum == checkpoint.data.checksum() => {
                Ok(Some(checkpoint))
            }
            _ => {
                tracing::warn!("checkpoint {path:?} is corrupt, and removed");
                self.remove(id).await?;
                Ok(None)
            }
        }
    }

    /// Removes what is kept of a sandbox, if anything is.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn remove(&self, id: &str) -> Result<()> {
        let path = self.0.join(id);
        let file = path.clone();
        let removed = if_present(panics::try_blocking(move || fs::remove_file(file)).await);
        removed.map(drop).map_err(|error| Error::file("remove checkpoint", path, error))
    }

    /// The identifiers of kept sandboxes.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) async fn list(&self) -> Result<Vec<String>> {
        let folder = self.0.clone();
        let list = move || {
            let entries = if_present(fs::read_dir(folder))?.into_iter().flatten();
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.filter(|name| name.as_ref().map_or(true, |name| crate::is_id(name))).collect()
        };
        let listed = panics::try_blocking(list).await;
        listed.map_err(|error| Error::file("list checkpoints", &self.0, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(protocol: &str, container: i32, host: i32, ip: &str) -> Port {
        Port {
            protocol: Some(protocol.into()),
            container_port: Some(container),
            host_port: Some(host),
            host_ip: ip.into(),
        }
    }

    /// Sums that Go's spew and FNV have given for cri-dockerd's types.
    #[test]
    fn checksums_are_those_of_cri_dockerd() {
        let cases = [
            (Data::default(), 2_305_795_928),
            (Data { host_network: true, ..Data::default() }, 12_315_789),
            (
                Data { port_mappings: vec![port("tcp", 80, 8080, "")], host_network: false },
                3_712_672_205,
            ),
            (
                Data {
                    port_mappings: vec![port("tcp", 80, 8080, "127.0.0.1"), port("udp", 80, 0, "")],
                    host_network: false,
                },
                932_334_534,
            ),
        ];
        for (data, expected) in cases {
            assert_eq!(data.checksum(), expected, "{data:?}");
        }
    }

    #[tokio::test]
    async fn checkpoints_are_kept_and_theirs_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let all = Checkpoints::new(folder.path());
        assert_eq!(all.list().await.unwrap(), Vec::<String>::new());
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: "p".into(),
                namespace: "n".into(),
                uid: "u".into(),
                attempt: 2,
            }),
            port_mappings: vec![PortMapping { host_port: 80, ..PortMapping::default() }],
            ..PodSandboxConfig::default()
        };
        let id = "ab".repeat(32);
        all.write(&id, &Checkpoint::new(&config)).await.unwrap();
        let read = all.read(&id).await.unwrap().unwrap();
        assert_eq!(Some(read.metadata()), config.metadata);
        assert_eq!(all.list().await.unwrap(), std::slice::from_ref(&id));

        let theirs = r#"{"version":"v1","name":"web","namespace":"prod","data":{"host_network":true},"checksum":12315789}"#;
        std::fs::write(folder.path().join("sandbox").join(&id), theirs).unwrap();
        let read = all.read(&id).await.unwrap().unwrap();
        assert!(read.is_host_network() && read.metadata().name == "web");

        for broken in ["", "{", &theirs.replace("12315789", "1")] {
            std::fs::write(folder.path().join("sandbox").join(&id), broken).unwrap();
            assert_eq!(all.read(&id).await.unwrap(), None);
            assert_eq!(all.list().await.unwrap(), Vec::<String>::new(), "it is removed");
        }
        all.remove(&id).await.unwrap();
    }
}

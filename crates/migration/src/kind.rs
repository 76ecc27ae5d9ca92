//! What the kinds have in common.

use serde_json::{Map, Value, json};

use crate::Error;
use crate::topology::Topology;
use crate::values::{strings, text};

pub(crate) const READ_WRITE_ONCE: &str = "ReadWriteOnce";
pub(crate) const READ_WRITE_MANY: &str = "ReadWriteMany";
pub(crate) const READ_ONLY_MANY: &str = "ReadOnlyMany";

/// A kind of volume that a driver has taken over.
pub(crate) struct Kind {
    /// The field of a volume that holds its source.
    pub(crate) field: &'static str,
    /// The plugin that served it.
    pub(crate) plugin: &'static str,
    pub(crate) driver: &'static str,
    /// The field of the source that says which volume it is.
    pub(crate) id: &'static str,
    pub(crate) topology: Topology,
    /// Translates what is special to this kind.
    pub(crate) translate: fn(&InTreeVolume<'_>, &mut CsiVolume) -> Result<(), Error>,
}

/// The in-tree source of a volume.
pub(crate) struct InTreeVolume<'a> {
    source: &'a Value,
    pub(crate) found: &'a Found<'a>,
}

/// The object that has the source.
pub(crate) enum Found<'a> {
    /// A PersistentVolume.
    Persistent(&'a Value),
    /// The volume of that name of a pod in that namespace.
    Inline { name: &'a str, namespace: &'a str },
}

/// The CSI volume that replaces it.
pub(crate) struct CsiVolume {
    /// The name of the PersistentVolume, or that it would have.
    pub(crate) name: String,
    pub(crate) handle: String,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) attributes: Map<String, Value>,
    /// References to secrets, by the field that holds them.
    pub(crate) secrets: Vec<(&'static str, Value)>,
    /// None: it has none of its own.
    pub(crate) access_modes: Vec<String>,
}

impl Kind {
    pub(crate) fn describe(&self, source: &Value, found: &Found<'_>) -> Result<CsiVolume, Error> {
        let in_tree = InTreeVolume { source, found };
        let handle = in_tree.text(self.id);
        if handle.is_empty() {
            return Err(Error::NoVolume { kind: self.field, field: self.id });
        }
        let mut csi_volume = CsiVolume {
            name: match found {
                Found::Persistent(volume) => text(&volume["metadata"]["name"]).to_owned(),
                Found::Inline { .. } => format!("{}-{handle}", self.driver),
            },
            handle: handle.to_owned(),
            read_only: in_tree.read_only(),
            fs_type: in_tree.text("fsType").to_owned(),
            attributes: Map::new(),
            secrets: Vec::new(),
            access_modes: match found {
                Found::Persistent(volume) => strings(&volume["spec"]["accessModes"]),
                Found::Inline { .. } => vec![READ_WRITE_ONCE.to_owned()],
            },
        };
        (self.translate)(&in_tree, &mut csi_volume)?;
        Ok(csi_volume)
    }
}

impl<'a> InTreeVolume<'a> {
    /// A text in the source, empty if it is absent.
    pub(crate) fn text(&self, field: &str) -> &'a str {
        text(&self.source[field])
    }

    /// A text in the source.
    pub(crate) fn optional(&self, field: &str) -> Option<&'a str> {
        self.source[field].as_str()
    }

    pub(crate) fn read_only(&self) -> bool {
        self.source["readOnly"] == true
    }

    /// The number of a partition; 0: the whole disk.
    pub(crate) fn partition(&self) -> i64 {
        self.source["partition"].as_i64().unwrap_or(0)
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.found, Found::Inline { .. })
    }
}

impl CsiVolume {
    pub(crate) fn attribute(&mut self, name: &str, value: &str) {
        self.attributes.insert(name.to_owned(), value.into());
    }

    /// The volume that a pod describes is for one pod to write, or for all to read.
    pub(crate) fn read_by_many(&mut self) {
        self.access_modes = vec![READ_ONLY_MANY.to_owned()];
    }

    /// As the source of a PersistentVolume.
    pub(crate) fn csi(&self, driver: &str) -> Value {
        let mut csi = json!({"driver": driver, "volumeHandle": self.handle});
        if self.read_only {
            csi["readOnly"] = true.into();
        }
        if !self.fs_type.is_empty() {
            csi["fsType"] = json!(self.fs_type);
        }
        if !self.attributes.is_empty() {
            csi["volumeAttributes"] = json!(self.attributes);
        }
        for (field, reference) in &self.secrets {
            csi[*field] = reference.clone();
        }
        csi
    }
}

pub(crate) fn secret(name: &str, namespace: &str) -> Value {
    json!({"name": name, "namespace": namespace})
}

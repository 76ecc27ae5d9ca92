//! The metadata of a CSI volume, `vol_data.json`: upstream's fields, and our own for the progress
//! of the set-up. A map of strings; unknown fields are kept.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::{Error, csi as error};
use crate::layout;

pub(super) const FILE: &str = "vol_data.json";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The boot ID of the set-up. Without it, or in a later boot, a volume is set up again.
const DONE: &str = "doneInBoot";

const VOLUME: &str = "specVolID";
const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const MODE: &str = "volumeLifecycleMode";
const LABEL: &str = "seLinuxMountContext";

/// The fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolData(BTreeMap<String, String>);

impl VolData {
    /// The metadata of a volume.
    pub(super) fn new(driver: &str, handle: &str) -> Self {
        let fields = [(DRIVER, driver), (HANDLE, handle)];
        Self(fields.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    /// Adds the fields of a published volume.
    pub(super) fn on_node(self, volume: &str, node: &str, attachment: &str) -> Self {
        self.with(VOLUME, volume).with(NODE, node).with(ATTACHMENT, attachment)
    }

    /// Adds the volume lifecycle mode.
    pub(super) fn in_mode(self, mode: &str) -> Self {
        self.with(MODE, mode)
    }

    /// Adds the SELinux label that it is mounted with.
    pub(super) fn labelled(self, label: Option<&str>) -> Self {
        match label {
            Some(label) => self.with(LABEL, label),
            None => self,
        }
    }

    fn with(mut self, key: &str, value: &str) -> Self {
        self.0.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Reads the file in a directory; `None` if there is none.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, Error> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            text => text.map_err(|error| Error::io("read", &path, error))?,
        };
        // A disk that was full leaves an empty file.
        let fields = serde_json::from_slice(&text).map_err(|error| {
            Error::from(error::Error::VolData { path: path.clone(), reason: error.to_string() })
        })?;
        Ok(Some(Self(fields)))
    }

    /// Writes the file into a directory, which is made if it is absent.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec(&self.0).unwrap_or_default();
        layout::write_file(&dir.join(FILE), &text)
    }

    /// Removes the file and the directory, if they exist.
    pub(super) fn remove(dir: &Path) -> Result<(), Error> {
        let path = dir.join(FILE);
        // One that was being written when the daemon was killed.
        layout::remove_file(&path.with_extension("tmp"))?;
        layout::remove_file(&path)?;
        layout::remove_dir(dir)
    }

    pub(super) fn driver(&self) -> Option<&str> {
        self.0.get(DRIVER).map(String::as_str)
    }

    pub(super) fn handle(&self) -> Option<&str> {
        self.0.get(HANDLE).map(String::as_str)
    }

    /// Driver and handle.
    pub(super) fn volume(&self, dir: &Path) -> Result<(&str, &str), error::Error> {
        self.driver().zip(self.handle()).ok_or_else(|| error::Error::VolData {
            path: dir.join(FILE),
            reason: "no driver name or volume handle".to_owned(),
        })
    }

    pub(super) fn is_inline(&self) -> bool {
        self.0.get(MODE).is_some_and(|mode| mode == super::policy::EPHEMERAL)
    }

    /// Whether the set-up was completed in this boot.
    pub(super) fn is_done(&self) -> bool {
        self.0.get(DONE).is_some_and(|boot| boot == boot_id())
    }

    /// Marks the set-up as completed or not.
    pub(super) fn done(mut self, done: bool) -> Self {
        self.0.remove(DONE);
        if done { self.with(DONE, boot_id()) } else { self }
    }
}

fn boot_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned())
}

//! Records when each image was first detected and last used, in a file that survives restarts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use longshore_base::files::{self, if_present};
use longshore_cri::v1;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::plan::{ImagesInUse, handler};
use crate::gc::Error;

const FILE: &str = "image_gc_state";
const VERSION: &str = "1";
/// Maximum size of the file.
const LONGEST: u64 = 16 << 20;

/// An image: its id and, with `RuntimeClassInImageCriApi`, its runtime handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) id: String,
    pub(super) handler: String,
}

impl Key {
    pub(super) fn of(image: &v1::Image, by_handler: bool) -> Self {
        let handler = if by_handler { handler(image) } else { "" };
        Self { id: image.id.clone(), handler: handler.to_owned() }
    }
}

/// Record of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    pub(super) first_detected: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_used: Option<Timestamp>,
}

/// Records of all images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageRecords(BTreeMap<Key, Seen>);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: String,
    images: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    runtime_handler: String,
    #[serde(flatten)]
    seen: Seen,
}

impl ImageRecords {
    pub(super) fn get(&self, key: &Key) -> Option<&Seen> {
        self.0.get(key)
    }

    /// Updates the records with the existing images and their use.
    pub(super) fn note(&mut self, images: &[v1::Image], in_use: &ImagesInUse, now: Timestamp) {
        let before = std::mem::take(&mut self.0);
        for image in images {
            let key = Key::of(image, in_use.by_handler);
            let known = self.0.get(&key).or_else(|| before.get(&key)).copied();
            let mut seen = known.unwrap_or(Seen { first_detected: now, last_used: None });
            // The clock may have been set back.
            seen.first_detected = seen.first_detected.min(now);
            seen.last_used = match in_use.contains(image) {
                true => Some(now),
                false => seen.last_used.map(|used| used.min(now)),
            };
            self.0.insert(key, seen);
        }
    }

    /// Removes the record of an image.
    pub(super) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Whether an image of that id exists for any handler.
    pub(super) fn has(&self, id: &str) -> bool {
        self.0.keys().any(|key| key.id == id)
    }

    fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Loads the file. An unreadable file is logged and ignored. Blocks.
    pub(super) fn load(dir: &Path) -> Self {
        let path = Self::path(dir);
        match read(&path) {
            Ok(records) => records,
            Err(why) => {
                let path = path.display();
                warn!(%path, why, "when images were used is not known, and learnt anew");
                Self::default()
            }
        }
    }

    /// Write down what is known, whole or not at all. Blocks.
    pub(super) fn save(&self, dir: &Path) -> Result<(), Error> {
        let entry = |(key, seen): (&Key, &Seen)| Entry {
            id: key.id.clone(),
            runtime_handler: key.handler.clone(),
            seen: *seen,
        };
        let images = self.0.iter().map(entry).collect();
        let document = Document { version: VERSION.to_owned(), images };
        let path = Self::path(dir);
        let write = || {
            let mut content = serde_json::to_vec(&document)?;
            content.push(b'\n');
            files::replace(&path, &content)
        };
        write().map_err(|source| Error::Io { path: path.clone(), source })
    }
}

fn read(path: &Path) -> Result<ImageRecords, String> {
    let file = if_present(File::open(path)).map_err(|error| error.to_string())?;
    let Some(file) = file else { return Ok(ImageRecords::default()) };
    let mut content = Vec::new();
    file.take(LONGEST).read_to_end(&mut content).map_err(|error| error.to_string())?;
    let document: Document = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
    if document.version != VERSION {
        return Err(format!("its version is {:?}, not {VERSION:?}", document.version));
    }
    let known = document
        .images
        .into_iter()
        .map(|Entry { id, runtime_handler, seen }| (Key { id, handler: runtime_handler }, seen));
    Ok(ImageRecords(known.collect()))
}

//! Records of image pulls, so that a private image can be used only by pods that could pull it
//! themselves. The files are the Go kubelet's: `image_manager/pulling` and `…/pulled`.

mod access;
mod files;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::Image;
use longshore_metrics::{Kind, Labels, Registry};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::credentials::{PodLogins, Source};
use super::name::Name;
pub(super) use access::Access;
use files::{Unreadable, all, read, remove, write};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// For which present images a pod must prove that it can pull them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// For none, and nothing is recorded.
    Off,
    /// For none.
    Never,
    /// For those that the node pulled.
    Pulled,
    /// For all but those of these names; one that ends in `/*` is a prefix.
    AllBut(Vec<String>),
    /// For all.
    All,
}

impl Verification {
    fn applies_to(&self, image: &str, pulled: bool) -> bool {
        match self {
            Self::Off | Self::Never => false,
            Self::Pulled => pulled,
            Self::All => true,
            Self::AllBut(names) => {
                let name = Name::parse(image).map_or(image, |name| name.repository);
                !names.iter().any(|allowed| match allowed.strip_suffix('*') {
                    Some(prefix) if prefix.ends_with('/') => name.starts_with(prefix),
                    _ => name == allowed,
                })
            }
        }
    }
}

/// Whether a pod may use an image that is present, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Verification is off.
    Off,
    /// The policy allows it.
    ByPolicy,
    /// The records allow it.
    ByRecord,
    /// The pod must pull it first.
    MustAuthenticate,
}

impl Check {
    pub(super) fn is_allowed(self) -> bool {
        self != Self::MustAuthenticate
    }

    /// The label in upstream's metric; `None` if it is not counted.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::ByPolicy => Some("credentialPolicyAllowed"),
            Self::ByRecord => Some("credentialRecordFound"),
            Self::MustAuthenticate => Some("mustAuthenticate"),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pulled {
    kind: String,
    api_version: String,
    last_updated_time: Option<Timestamp>,
    image_ref: String,
    /// By the image's name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Access>,
}

impl Pulled {
    fn new(image_ref: &str) -> Self {
        Self {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: None,
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }
}

/// The records in the daemon's directory.
pub(super) struct Records {
    verification: Verification,
    pulling: PathBuf,
    pulled: PathBuf,
    /// Number of pulls in progress by image. Locked while files are read and written.
    in_progress: Mutex<HashMap<String, usize>>,
}

impl Records {
    pub(super) fn new(verification: Verification, root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        Self { verification, pulling, pulled, in_progress: Mutex::default() }
    }

    /// Registers how many records there are; they are counted when somebody asks.
    pub(super) fn register_metrics(&self, registry: &Registry) {
        if self.is_off() {
            return;
        }
        for (dir, name, help) in [
            (
                self.pulling.clone(),
                "kubelet_imagemanager_ondisk_pullintents",
                "[ALPHA] Number of ImagePullIntents stored on disk.",
            ),
            (
                self.pulled.clone(),
                "kubelet_imagemanager_ondisk_pulledrecords",
                "[ALPHA] Number of ImagePulledRecords stored on disk.",
            ),
        ] {
            registry.collect(move |text| {
                let count = files::count(&dir) as f64;
                text.family(name, help, Kind::Gauge).add(&Labels::NONE, count);
            });
        }
    }

    /// Whether nothing is recorded, and present images are for all pods.
    pub(super) fn is_off(&self) -> bool {
        self.verification == Verification::Off
    }

    /// Whether a pod with these credentials may use an image that is present.
    pub(super) async fn check(
        &self,
        image: &str,
        image_ref: &str,
        logins: impl AsyncFnOnce() -> PodLogins,
    ) -> Check {
        let record = {
            let in_progress = self.lock();
            if self.is_off() {
                return Check::Off;
            }
            let record = self.pulled_record(image_ref);
            let intended = || match read::<Intent>(&self.pulling, image) {
                Ok(intent) => intent.is_some_and(|intent| intent.image == image),
                Err(Unreadable) => true,
            };
            let pulled = record.is_some() || in_progress.contains_key(image) || intended();
            if !self.verification.applies_to(image, pulled) {
                return Check::ByPolicy;
            }
            record
        };
        let Ok(name) = Name::parse(image) else { return Check::MustAuthenticate };
        let access =
            record.and_then(|mut record| record.credential_mapping.remove(name.repository));
        let Some(access) = access else { return Check::MustAuthenticate };
        let logins = match access.depends_on_logins() {
            true => logins().await,
            false => PodLogins::default(),
        };
        match access.allows(&logins) {
            None => Check::MustAuthenticate,
            Some(unrecorded) => {
                if let Some(login) = unrecorded {
                    self.record_access(
                        image,
                        image_ref,
                        Some(Access::of(Source::Secret(login.clone()))),
                    );
                }
                Check::ByRecord
            }
        }
    }

    /// Record the intent to pull an image, until the guard is dropped or the result is recorded.
    pub(super) fn record_intent<'a>(&'a self, image: &'a str) -> io::Result<PullInProgress<'a>> {
        if !self.is_off() {
            let mut in_progress = self.lock();
            let intent = Intent {
                kind: "ImagePullIntent".to_owned(),
                api_version: API_VERSION.to_owned(),
                image: image.to_owned(),
            };
            write(&self.pulling, image, &intent)?;
            *in_progress.entry(image.to_owned()).or_default() += 1;
        }
        Ok(PullInProgress { records: self, image })
    }

    /// Clean up after the last run of the daemon: an image whose pull was interrupted is recorded
    /// as pulled without credentials, and records of removed images are deleted.
    pub(super) fn recover(&self, images: &[Image]) {
        if self.is_off() {
            return;
        }
        for intent in all::<Intent>(&self.pulling) {
            let is_its = |image: &&Image| {
                image.repo_tags.contains(&intent.image)
                    || image.repo_digests.contains(&intent.image)
            };
            if let Some(image) = images.iter().find(is_its) {
                self.record_access(&intent.image, &image.id, None);
                remove(&self.pulling, &intent.image);
            }
        }
        for record in all::<Pulled>(&self.pulled) {
            if !images.iter().any(|image| image.id == record.image_ref) {
                remove(&self.pulled, &record.image_ref);
            }
        }
    }

    /// Remove the record of an image that was removed, unless it was written at `since` or later:
    /// the image was pulled again then.
    pub(super) fn forget(&self, image_ref: &str, since: Timestamp) {
        if self.is_off() {
            return;
        }
        let _guard = self.lock();
        let written = self.pulled_record(image_ref).map(|record| record.last_updated_time);
        // Times in records are in whole seconds.
        let is_older = |at: &Timestamp| at.as_second() < since.as_second();
        if written.is_some_and(|at| at.as_ref().is_none_or(is_older)) {
            remove(&self.pulled, image_ref);
        }
    }

    /// The record of an image. An invalid file counts as a pull without credentials: a private
    /// image must not become accessible because of it.
    fn pulled_record(&self, image_ref: &str) -> Option<Pulled> {
        let record = match read::<Pulled>(&self.pulled, image_ref) {
            Ok(record) => record?,
            Err(Unreadable) => Pulled::new(image_ref),
        };
        Some(record).filter(|record| record.image_ref == image_ref)
    }

    /// Record the access to an image; `None` if it is not known.
    fn record_access(&self, image: &str, image_ref: &str, access: Option<Access>) {
        let _guard = self.lock();
        let Ok(name) = Name::parse(image) else { return };
        let known = self.pulled_record(image_ref);
        let mut changed = known.is_none();
        let mut record = known.unwrap_or_else(|| Pulled::new(image_ref));
        if let Some(access) = access {
            let known = record.credential_mapping.entry(name.repository.to_owned()).or_default();
            changed |= known.merge(access);
        }
        if !changed {
            return;
        }
        record.api_version = API_VERSION.to_owned();
        let now = Timestamp::from_second(Timestamp::now().as_second());
        record.last_updated_time = now.ok();
        if let Err(error) = write(&self.pulled, image_ref, &record) {
            warn!(image, %error, "cannot record image pull");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.in_progress.lock()
    }
}

/// A pull in progress.
pub(super) struct PullInProgress<'a> {
    records: &'a Records,
    image: &'a str,
}

impl PullInProgress<'_> {
    /// Record a successful pull, and who may use the image.
    pub(super) fn pulled(self, image_ref: &str, access: Access) {
        if !self.records.is_off() {
            self.records.record_access(self.image, image_ref, Some(access));
        }
    }
}

impl Drop for PullInProgress<'_> {
    fn drop(&mut self) {
        if self.records.is_off() {
            return;
        }
        let mut in_progress = self.records.lock();
        let Some(count) = in_progress.get_mut(self.image) else { return };
        *count -= 1;
        if *count == 0 {
            in_progress.remove(self.image);
            remove(&self.records.pulling, self.image);
        }
    }
}

#[cfg(test)]
mod tests;

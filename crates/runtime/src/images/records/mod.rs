//! What the node remembers of its pulls, so that a private image is for those pods alone that could
//! pull it themselves. The files are the Go kubelet's: `image_manager/pulling` and `…/pulled`.

mod access;
mod files;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::Image;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::credentials::SecretLogin;
use super::name::Name;
pub(super) use access::Access;
use files::{Unreadable, all, read, remove, write};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// For which images that are there a pod must show that it could pull them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// For none; and nothing is remembered.
    Off,
    /// For none.
    Never,
    /// For those that the node pulled.
    Pulled,
    /// For all but those of these names; one that ends in `/*` covers all that begin like it.
    AllBut(Vec<String>),
    /// For all.
    All,
}

impl Verification {
    fn asks(&self, image: &str, pulled: bool) -> bool {
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

/// Whether a pod may use an image that is there, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// Nobody asks.
    Off,
    /// Such images are everybody's.
    ByPolicy,
    /// It, or anybody, could pull it before.
    ByRecord,
    /// It may not, before it has pulled it.
    Refused,
}

impl Check {
    pub(super) fn admits(self) -> bool {
        self != Self::Refused
    }

    /// What upstream counts it under; `None`: it does not.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::ByPolicy => Some("credentialPolicyAllowed"),
            Self::ByRecord => Some("credentialRecordFound"),
            Self::Refused => Some("mustAuthenticate"),
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

/// The records below the daemon's directory.
pub(super) struct Records {
    verification: Verification,
    pulling: PathBuf,
    pulled: PathBuf,
    /// How many pulls of an image are under way. Held while files are read and written.
    under_way: Mutex<HashMap<String, usize>>,
}

impl Records {
    pub(super) fn new(verification: Verification, root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        Self { verification, pulling, pulled, under_way: Mutex::default() }
    }

    /// Whether nothing is kept, and images that are there are for all.
    pub(super) fn is_off(&self) -> bool {
        self.verification == Verification::Off
    }

    /// Whether a pod with these logins may use an image that is there as it is.
    pub(super) async fn admits(
        &self,
        image: &str,
        image_ref: &str,
        logins: impl AsyncFnOnce() -> Vec<SecretLogin>,
    ) -> Check {
        let record = {
            let under_way = self.lock();
            if self.is_off() {
                return Check::Off;
            }
            let record = self.pulled_record(image_ref);
            let intended = || match read::<Intent>(&self.pulling, image) {
                Ok(intent) => intent.is_some_and(|intent| intent.image == image),
                Err(Unreadable) => true,
            };
            let pulled = record.is_some() || under_way.contains_key(image) || intended();
            if !self.verification.asks(image, pulled) {
                return Check::ByPolicy;
            }
            record
        };
        let Ok(name) = Name::parse(image) else { return Check::Refused };
        let access =
            record.and_then(|mut record| record.credential_mapping.remove(name.repository));
        let Some(access) = access else { return Check::Refused };
        let logins = if access.node_pods_accessible { Vec::new() } else { logins().await };
        match access.admits(&logins) {
            None => Check::Refused,
            Some(news) => {
                if let Some(login) = news {
                    self.remember(image, image_ref, Some(Access::of(Some(login.clone()))));
                }
                Check::ByRecord
            }
        }
    }

    /// Note that an image is about to be pulled, until the answer is dropped or told how it went.
    pub(super) fn intend<'a>(&'a self, image: &'a str) -> io::Result<Intention<'a>> {
        if !self.is_off() {
            let mut under_way = self.lock();
            let intent = Intent {
                kind: "ImagePullIntent".to_owned(),
                api_version: API_VERSION.to_owned(),
                image: image.to_owned(),
            };
            write(&self.pulling, image, &intent)?;
            *under_way.entry(image.to_owned()).or_default() += 1;
        }
        Ok(Intention { records: self, image })
    }

    /// Make what an earlier daemon left behind fit what there is: an image whose pull was not seen
    /// to its end counts as pulled by nobody known, and of images that are gone nothing is kept.
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
                self.remember(&intent.image, &image.id, None);
                remove(&self.pulling, &intent.image);
            }
        }
        for record in all::<Pulled>(&self.pulled) {
            if !images.iter().any(|image| image.id == record.image_ref) {
                remove(&self.pulled, &record.image_ref);
            }
        }
    }

    /// Keep nothing of an image that was removed, but for what was written from `since` on: the
    /// image was pulled again then.
    pub(super) fn forget(&self, image_ref: &str, since: Timestamp) {
        if self.is_off() {
            return;
        }
        let _guard = self.lock();
        let written = self.pulled_record(image_ref).map(|record| record.last_updated_time);
        // Times in records are whole seconds.
        let is_older = |at: &Timestamp| at.as_second() < since.as_second();
        if written.is_some_and(|at| at.as_ref().is_none_or(is_older)) {
            remove(&self.pulled, image_ref);
        }
    }

    /// What is written of an image. A file that cannot be read says that it was pulled, and no
    /// more: a private image must not be anybody's because of it.
    fn pulled_record(&self, image_ref: &str) -> Option<Pulled> {
        let record = match read::<Pulled>(&self.pulled, image_ref) {
            Ok(record) => record?,
            Err(Unreadable) => Pulled::new(image_ref),
        };
        Some(record).filter(|record| record.image_ref == image_ref)
    }

    /// Write down who may use an image; nobody known for `None`.
    fn remember(&self, image: &str, image_ref: &str, access: Option<Access>) {
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
            warn!(image, %error, "the pull of an image is not recorded");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pull that is under way.
pub(super) struct Intention<'a> {
    records: &'a Records,
    image: &'a str,
}

impl Intention<'_> {
    /// It came to its end, and these may use the image.
    pub(super) fn pulled(self, image_ref: &str, access: Access) {
        if !self.records.is_off() {
            self.records.remember(self.image, image_ref, Some(access));
        }
    }
}

impl Drop for Intention<'_> {
    fn drop(&mut self) {
        if self.records.is_off() {
            return;
        }
        let mut under_way = self.records.lock();
        let Some(count) = under_way.get_mut(self.image) else { return };
        *count -= 1;
        if *count == 0 {
            under_way.remove(self.image);
            remove(&self.records.pulling, self.image);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

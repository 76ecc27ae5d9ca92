//! What the node remembers of its pulls, so that a private image is for those pods alone that could
//! pull it themselves. The files are the Go kubelet's: `image_manager/pulling` and `…/pulled`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::Image;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::credentials::{SecretLogin, hex};
use super::name::Name;
use crate::files;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// So many logins of an image are remembered when they are only seen, not used.
const MOST_LOGINS: usize = 100;

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

/// Who may use an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Access {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretLogin>,
    /// Written by credential providers, and kept for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<serde_json::Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl Access {
    /// That of all pods, or of those with a secret.
    pub(super) fn of(secret: Option<SecretLogin>) -> Self {
        Self {
            node_pods_accessible: secret.is_none(),
            kubernetes_secrets: secret.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Whether a pod with one of these logins may use the image, and if so the login that is not
    /// remembered yet in that form.
    fn admits<'a>(&self, logins: &'a [SecretLogin]) -> Option<Option<&'a SecretLogin>> {
        if self.node_pods_accessible {
            return Some(None);
        }
        let few = self.kubernetes_secrets.len() < MOST_LOGINS;
        for login in logins {
            for known in &self.kubernetes_secrets {
                let same_hash = !known.hash.is_empty() && known.hash == login.hash;
                let same_secret = (&known.uid, &known.namespace, &known.name)
                    == (&login.uid, &login.namespace, &login.name);
                match (same_hash, same_secret) {
                    (true, same) => return Some(Some(login).filter(|_| !same && few)),
                    // Its content has changed since; it is the owner's to change.
                    (false, true) if few => return Some(Some(login)),
                    (false, _) => {}
                }
            }
        }
        None
    }

    /// Add what else is known. Tells whether that is news.
    fn merge(&mut self, new: Access) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let mut changed = false;
        for login in new.kubernetes_secrets {
            let place = self.kubernetes_secrets.iter_mut().find(|known| {
                (&known.uid, &known.namespace, &known.name)
                    == (&login.uid, &login.namespace, &login.name)
            });
            match place {
                Some(known) if *known == login => {}
                Some(known) => (*known, changed) = (login, true),
                None => {
                    self.kubernetes_secrets.push(login);
                    changed = true;
                }
            }
        }
        let order =
            |login: &SecretLogin| (login.namespace.clone(), login.name.clone(), login.uid.clone());
        self.kubernetes_secrets.sort_by_key(order);
        changed
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
    ) -> bool {
        let record = {
            let under_way = self.lock();
            if self.is_off() {
                return true;
            }
            let record = self.pulled_record(image_ref);
            let intended = || match read::<Intent>(&self.pulling, image) {
                Ok(intent) => intent.is_some_and(|intent| intent.image == image),
                Err(Unreadable) => true,
            };
            let pulled = record.is_some() || under_way.contains_key(image) || intended();
            if !self.verification.asks(image, pulled) {
                return true;
            }
            record
        };
        let Ok(name) = Name::parse(image) else { return false };
        let access =
            record.and_then(|mut record| record.credential_mapping.remove(name.repository));
        let Some(access) = access else { return false };
        let logins = if access.node_pods_accessible { Vec::new() } else { logins().await };
        match access.admits(&logins) {
            None => false,
            Some(news) => {
                if let Some(login) = news {
                    self.remember(image, image_ref, Some(Access::of(Some(login.clone()))));
                }
                true
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

fn file_name(text: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(text)))
}

/// A file that is there and holds no record.
struct Unreadable;

fn read<T: DeserializeOwned>(dir: &Path, text: &str) -> Result<Option<T>, Unreadable> {
    parse(&dir.join(file_name(text)))
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Unreadable> {
    let unreadable = |error: &dyn std::fmt::Display| {
        warn!(path = %path.display(), %error, "record of a pull cannot be read");
        Unreadable
    };
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

fn all<T: DeserializeOwned>(dir: &Path) -> Vec<T> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sha256-") && !name.ends_with(".tmp")
    });
    files.filter_map(|path| parse(&path).ok().flatten()).collect()
}

fn write(dir: &Path, text: &str, record: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut content = serde_json::to_vec(record)?;
    content.push(b'\n');
    files::replace(&dir.join(file_name(text)), &content)
}

fn remove(dir: &Path, text: &str) {
    let path = dir.join(file_name(text));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(path = %path.display(), %error, "record of a pull stays");
        }
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const IMAGE: &str = "reg.example/app:1";
    const REF: &str = "sha256:1234";

    fn login(name: &str, hash: &str) -> SecretLogin {
        SecretLogin {
            uid: format!("uid-{name}"),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            hash: hash.to_owned(),
        }
    }

    async fn admits(records: &Records, logins: &[SecretLogin]) -> bool {
        records.admits(IMAGE, REF, async || logins.to_vec()).await
    }

    #[tokio::test]
    async fn a_private_image_is_for_those_who_could_pull_it() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(Verification::Pulled, dir.path());
        assert!(admits(&records, &[]).await, "somebody put it there");
        let intention = records.intend(IMAGE).unwrap();
        assert!(!admits(&records, &[]).await, "it is being pulled");
        intention.pulled(REF, Access::of(Some(login("a", "1"))));

        assert!(!admits(&records, &[]).await);
        assert!(!admits(&records, &[login("b", "2")]).await);
        assert!(admits(&records, &[login("b", "2"), login("a", "1")]).await);
        assert!(admits(&records, &[login("b", "1")]).await, "the same login in another secret");
        assert!(admits(&records, &[login("b", "3")]).await, "which is known from now on");
        assert!(!admits(&records, &[login("c", "")]).await);
        let again = Records::new(Verification::Pulled, dir.path());
        assert!(admits(&again, &[login("b", "3")]).await && !admits(&again, &[]).await);

        again.intend(IMAGE).unwrap().pulled(REF, Access::of(None));
        assert!(admits(&again, &[]).await, "it was pulled without a login");
    }

    #[tokio::test]
    async fn whom_to_ask_is_a_matter_of_policy() {
        let allowed = |names: &[&str]| {
            Verification::AllBut(names.iter().map(|name| (*name).to_owned()).collect())
        };
        for (policy, before, after) in [
            (Verification::Off, true, true),
            (Verification::Never, true, true),
            (Verification::Pulled, true, false),
            (Verification::All, false, false),
            (allowed(&["reg.example/app"]), true, true),
            (allowed(&["reg.example/*"]), true, true),
            (allowed(&["reg.example/ap"]), false, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let records = Records::new(policy.clone(), dir.path());
            assert_eq!(admits(&records, &[]).await, before, "{policy:?}");
            records.intend(IMAGE).unwrap().pulled(REF, Access::of(Some(login("a", "1"))));
            assert_eq!(admits(&records, &[]).await, after, "{policy:?}");
        }
    }

    #[tokio::test]
    async fn files_are_the_go_kubelets() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(Verification::Pulled, dir.path());
        let pulling = dir.path().join("image_manager/pulling");
        let pulled = dir.path().join("image_manager/pulled");
        // The name and the content of a file in the Go kubelet's own tests.
        let name = "sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56";
        let image = "docker.io/testing/test:latest";
        let (first, second) = (records.intend(image).unwrap(), records.intend(image).unwrap());
        let intent = std::fs::read_to_string(pulling.join(name)).unwrap();
        assert_eq!(
            intent.trim_end(),
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"docker.io/testing/test:latest"}"#
        );
        drop(first);
        assert!(pulling.join(name).exists(), "another pull is under way");
        second.pulled("testimageref", Access::of(Some(login("s", "h"))));
        assert!(!pulling.join(name).exists());
        let record = std::fs::read_to_string(pulled.join(file_name("testimageref"))).unwrap();
        let (head, tail) = record.split_once(r#""lastUpdatedTime":""#).unwrap();
        assert_eq!(
            head,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#
        );
        let (time, tail) = tail.split_once('"').unwrap();
        assert_eq!(time.len(), "2026-01-01T00:00:00Z".len());
        assert_eq!(
            tail.trim_end(),
            r#","imageRef":"testimageref","credentialMapping":{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"uid-s","namespace":"ns","name":"s","credentialHash":"h"}]}}}"#
        );
    }

    #[tokio::test]
    async fn of_a_removed_image_nothing_is_kept_unless_it_was_pulled_again() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(Verification::Pulled, dir.path());
        records.intend(IMAGE).unwrap().pulled(REF, Access::of(Some(login("a", "1"))));
        let hour = k8s_openapi::jiff::SignedDuration::from_hours(1);
        records.forget(REF, Timestamp::now() - hour);
        assert!(!admits(&records, &[]).await, "the removal is older than the pull");
        records.forget(REF, Timestamp::now() + hour);
        assert!(admits(&records, &[]).await, "nobody pulled what is there now");
        records.forget("sha256:other", Timestamp::now());
    }

    #[tokio::test]
    async fn what_an_earlier_daemon_left_is_made_to_fit() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(Verification::Pulled, dir.path());
        records.intend("gone:1").unwrap().pulled("sha256:gone", Access::of(None));
        // A daemon that is killed drops nothing.
        std::mem::forget(records.intend(IMAGE).unwrap());
        std::mem::forget(records.intend("unfinished:1").unwrap());
        let records = Records::new(Verification::Pulled, dir.path());
        let image =
            Image { id: REF.to_owned(), repo_tags: vec![IMAGE.to_owned()], ..Image::default() };
        records.recover(&[image]);
        assert!(!admits(&records, &[]).await, "it was pulled, by nobody known");
        assert_eq!(all::<Pulled>(&records.pulled).len(), 1);
        let intents = all::<Intent>(&records.pulling);
        assert_eq!(intents.len(), 1);
        assert_eq!(intents[0].image, "unfinished:1");
        // Nobody gets to a private image by a file that is broken.
        records.intend(IMAGE).unwrap().pulled(REF, Access::of(None));
        assert!(admits(&records, &[]).await);
        std::fs::write(records.pulled.join(file_name(REF)), "{").unwrap();
        assert!(!admits(&records, &[]).await);
    }
}

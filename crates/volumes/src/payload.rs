//! The files of a configmap, secret, downward API or projected volume, collected before the volume
//! is written.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, DownwardAPIVolumeFile, DownwardAPIVolumeSource, KeyToPath,
    Pod, PodCertificateProjection, ProjectedVolumeSource, Secret, SecretVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_client::objects::Objects;
use longshore_client::pod_certificates::Credentials;
use longshore_pod::{downward, spec};

use crate::error::Error;
use crate::kind::kind_of;

/// The API's default mode.
const DEFAULT_MODE: i32 = 0o644;
/// Maximum total size of a volume's files: thousands of paths can name the same key. Upstream has
/// no limit.
const MAX_SIZE: usize = 128 << 20;
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

/// One file of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) data: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: Option<u32>,
}

/// The files of a volume by their path in it, which is relative and stays inside.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Payload {
    files: BTreeMap<PathBuf, File>,
    /// The bytes of all files.
    size: usize,
}

impl Payload {
    pub(super) fn files(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.files.iter().map(|(path, file)| (path.as_path(), file))
    }

    pub(super) fn add(
        &mut self,
        path: &str,
        data: Vec<u8>,
        mode: i32,
        owner: Option<u32>,
    ) -> Result<(), Error> {
        let mode = u32::try_from(mode).unwrap_or_default() & 0o7777;
        self.size += data.len();
        let before = self.files.insert(file_path(path)?, File { data, mode, owner });
        self.size -= before.map_or(0, |before| before.data.len());
        if self.size > MAX_SIZE { Err(Error::LargePayload(MAX_SIZE)) } else { Ok(()) }
    }
}

/// Checks and cleans the path of a file in a volume.
pub(super) fn file_path(path: &str) -> Result<PathBuf, Error> {
    let invalid = |reason| Err(Error::InvalidPath { what: "path", path: path.to_owned(), reason });
    if path.len() > LONGEST_PATH {
        return invalid("must not be longer than 4096 bytes");
    }
    if path.contains('\0') {
        return invalid("must not contain NUL");
    }
    let mut clean = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if name.len() > LONGEST_NAME => {
                return invalid("names in it must not be longer than 255 bytes");
            }
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => return invalid("must not contain '..'"),
            Component::RootDir | Component::Prefix(_) => return invalid("must be a relative path"),
        }
    }
    if clean.as_os_str().is_empty() {
        return invalid("must not be empty");
    }
    // Such names are those of the volume's own directories.
    if clean.as_os_str().as_encoded_bytes().starts_with(b"..") {
        return invalid("must not start with '..'");
    }
    Ok(clean)
}

/// The sources of a pod's volumes.
pub(super) struct Sources<'a> {
    pub(super) pod: &'a Pod,
    pub(super) objects: &'a Objects,
    pub(super) allocatable: &'a BTreeMap<String, Quantity>,
}

impl Sources<'_> {
    pub(super) async fn secret_volume(
        &self,
        source: &SecretVolumeSource,
    ) -> Result<Payload, Error> {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::default();
        self.secret(&mut payload, name, source.items.as_deref(), mode, source.optional).await?;
        Ok(payload)
    }

    pub(super) async fn config_map_volume(
        &self,
        source: &ConfigMapVolumeSource,
    ) -> Result<Payload, Error> {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::default();
        self.config_map(&mut payload, &source.name, source.items.as_deref(), mode, source.optional)
            .await?;
        Ok(payload)
    }

    pub(super) fn downward_api_volume(
        &self,
        source: &DownwardAPIVolumeSource,
    ) -> Result<Payload, Error> {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::default();
        self.downward_api(&mut payload, source.items.as_deref(), mode)?;
        Ok(payload)
    }

    /// All sources in one payload; later ones override earlier ones. All sources are tried, so that
    /// all errors are reported.
    pub(super) async fn projected_volume(
        &self,
        volume: &str,
        source: &ProjectedVolumeSource,
    ) -> Result<Payload, Error> {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::default();
        let mut errors = Vec::new();
        for (index, projection) in source.sources.iter().flatten().enumerate() {
            let place = (volume, index);
            if let Err(error) = self.projection(&mut payload, projection, place, mode).await {
                errors.push(error);
            }
        }
        match errors.len() {
            0 => Ok(payload),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    async fn projection(
        &self,
        payload: &mut Payload,
        projection: &VolumeProjection,
        (volume, index): (&str, usize),
        mode: i32,
    ) -> Result<(), Error> {
        if let Some(source) = &projection.secret {
            self.secret(payload, &source.name, source.items.as_deref(), mode, source.optional).await
        } else if let Some(source) = &projection.config_map {
            self.config_map(payload, &source.name, source.items.as_deref(), mode, source.optional)
                .await
        } else if let Some(source) = &projection.downward_api {
            self.downward_api(payload, source.items.as_deref(), mode)
        } else if let Some(source) = &projection.service_account_token {
            self.token(payload, source, mode).await
        } else if let Some(source) = &projection.cluster_trust_bundle {
            let anchors = self.objects.trust_anchors(source).await?;
            self.add_private(payload, &source.path, anchors, mode)
        } else if let Some(source) = &projection.pod_certificate {
            let credentials = self.objects.pod_certificate(self.pod, volume, index)?;
            self.certificate(payload, source, &credentials, mode)
        } else {
            Err(Error::UnsupportedPart(format!("projected source {}", kind_of(projection))))
        }
    }

    async fn secret(
        &self,
        payload: &mut Payload,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<(), Error> {
        let optional = optional == Some(true);
        match self.objects.secret(spec::namespace(self.pod), name).await {
            Ok(secret) => add_keys(payload, &*secret, items, mode, optional),
            Err(error) if optional && error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn config_map(
        &self,
        payload: &mut Payload,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<(), Error> {
        let optional = optional == Some(true);
        match self.objects.config_map(spec::namespace(self.pod), name).await {
            Ok(config_map) => add_keys(payload, &*config_map, items, mode, optional),
            Err(error) if optional && error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn downward_api(
        &self,
        payload: &mut Payload,
        items: Option<&[DownwardAPIVolumeFile]>,
        default_mode: i32,
    ) -> Result<(), Error> {
        for item in items.unwrap_or_default() {
            let value = if let Some(field) = &item.field_ref {
                downward::metadata_value(self.pod, &field.field_path)?.into_owned()
            } else if let Some(selector) = &item.resource_field_ref {
                downward::resource_field_value(self.pod, None, selector, self.allocatable)?
            } else {
                String::new()
            };
            payload.add(&item.path, value.into_bytes(), item.mode.unwrap_or(default_mode), None)?;
        }
        Ok(())
    }

    async fn token(
        &self,
        payload: &mut Payload,
        source: &ServiceAccountTokenProjection,
        mode: i32,
    ) -> Result<(), Error> {
        let token = self.objects.service_account_token(self.pod, source).await?;
        self.add_private(payload, &source.path, token.as_bytes().to_vec(), mode)
    }

    /// Adds the files that the source names, with the key first in the one that has both.
    fn certificate(
        &self,
        payload: &mut Payload,
        source: &PodCertificateProjection,
        credentials: &Credentials,
        mode: i32,
    ) -> Result<(), Error> {
        let Credentials { key, certificates, .. } = credentials;
        let files = [
            (&source.credential_bundle_path, [key.as_str(), certificates].concat()),
            (&source.key_path, key.clone()),
            (&source.certificate_chain_path, certificates.clone()),
        ];
        for (path, content) in files {
            if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
                self.add_private(payload, path, content.into_bytes(), mode)?;
            }
        }
        Ok(())
    }

    /// Adds a file that belongs to the pod's user.
    fn add_private(
        &self,
        payload: &mut Payload,
        path: &str,
        data: Vec<u8>,
        mode: i32,
    ) -> Result<(), Error> {
        let owner = common_user(self.pod);
        // With a known user or group, nobody else may read it.
        let mode = if owner.is_some() || fs_group(self.pod).is_some() { 0o600 } else { mode };
        payload.add(path, data, mode, owner)
    }
}

/// An object whose keys become files.
trait Keys {
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])>;
    fn get(&self, key: &str) -> Option<&[u8]>;
    fn missing(key: &str) -> Error;
}

impl Keys for Secret {
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.data.iter().flatten().map(|(key, data)| (key.as_str(), data.0.as_slice()))
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        self.data.as_ref()?.get(key).map(|data| data.0.as_slice())
    }

    fn missing(key: &str) -> Error {
        Error::NoSecretKey(key.to_owned())
    }
}

impl Keys for ConfigMap {
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let text = self.data.iter().flatten().map(|(key, text)| (key.as_str(), text.as_bytes()));
        let binary = self.binary_data.iter().flatten();
        text.chain(binary.map(|(key, data)| (key.as_str(), data.0.as_slice())))
    }

    fn get(&self, key: &str) -> Option<&[u8]> {
        let text = self.data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
        let binary = || Some(self.binary_data.as_ref()?.get(key)?.0.as_slice());
        text.or_else(binary)
    }

    fn missing(key: &str) -> Error {
        Error::NoConfigMapKey(key.to_owned())
    }
}

/// Adds every key under its own name, or those of `items` at their paths.
fn add_keys<K: Keys>(
    payload: &mut Payload,
    object: &K,
    items: Option<&[KeyToPath]>,
    default_mode: i32,
    optional: bool,
) -> Result<(), Error> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return object
            .all()
            .try_for_each(|(key, data)| payload.add(key, data.to_vec(), default_mode, None));
    };
    for item in items {
        match object.get(&item.key) {
            Some(data) => {
                payload.add(&item.path, data.to_vec(), item.mode.unwrap_or(default_mode), None)?;
            }
            None if optional => {}
            None => return Err(K::missing(&item.key)),
        }
    }
    Ok(())
}

/// The group that the pod's volumes belong to.
pub(super) fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// The user that all containers of the pod run as, if it is the same.
pub(super) fn common_user(pod: &Pod) -> Option<u32> {
    let pod_spec = pod.spec.as_ref()?;
    let of_pod = pod_spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let regular = spec::containers(pod_spec).map(|(_, c)| c.security_context.as_ref());
    let ephemeral =
        spec::ephemeral_containers(pod_spec).iter().map(|c| c.security_context.as_ref());
    let mut users = regular
        .chain(ephemeral)
        .map(|context| context.and_then(|context| context.run_as_user).or(of_pod));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

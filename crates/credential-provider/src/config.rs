//! `CredentialProviderConfig`: a file, or the files of a directory in the order of their names.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use longshore_config::{GoDuration, decode_strict, parse_document};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

const GROUP: &str = "kubelet.config.k8s.io/";
const KIND: &str = "CredentialProviderConfig";
const VERSIONS: [&str; 3] = ["v1", "v1alpha1", "v1beta1"];
/// Maximum size of a configuration file (bytes).
const MAX_BYTES: u64 = 3 << 20;

/// Why plugins cannot be used. The words are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of plugins without a configuration.
    #[error("credential provider config path is empty")]
    NoConfig,
    /// The configuration does not exist.
    #[error("unable to access path {0:?}: {1}")]
    Access(PathBuf, io::Error),
    /// The directory of configurations cannot be read.
    #[error("unable to read directory {0:?}: {1}")]
    Directory(PathBuf, io::Error),
    /// A directory without configurations.
    #[error("no configuration files found in directory {0:?}")]
    NoFiles(PathBuf),
    /// A configuration cannot be read.
    #[error("unable to read file {0:?}: {1}")]
    Read(PathBuf, io::Error),
    /// A configuration is not one.
    #[error("error decoding config {0:?}: {1}")]
    Decode(PathBuf, String),
    /// Two plugins have one name.
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    /// The configuration is not valid.
    #[error("failed to validate credential provider config: {0}")]
    Invalid(String),
    /// The directory of plugins does not exist.
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoBinDir(PathBuf),
    /// The directory of plugins cannot be looked at.
    #[error("error inspecting binary directory {path}: {1}", path = .0.display())]
    BinDir(PathBuf, io::Error),
    /// There is no such plugin.
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoBinary(PathBuf),
    /// The plugin cannot be run.
    #[error("error inspecting binary executable {path}: {1}", path = .0.display())]
    Binary(PathBuf, io::Error),
}

/// A plugin, as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Provider {
    pub(crate) name: String,
    pub(crate) match_images: Vec<String>,
    pub(crate) default_cache_duration: Option<GoDuration>,
    pub(crate) api_version: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<EnvVar>,
    pub(crate) token_attributes: Option<TokenAttributes>,
}

/// An environment variable. Its value may be a secret.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EnvVar {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl std::fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvVar").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Which service account tokens a plugin is given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TokenAttributes {
    pub(crate) service_account_token_audience: String,
    pub(crate) cache_type: String,
    pub(crate) require_service_account: Option<bool>,
    pub(crate) required_service_account_annotation_keys: Vec<String>,
    pub(crate) optional_service_account_annotation_keys: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    providers: Vec<Provider>,
}

/// The plugins of a configuration, and its hash: `sha256:` of the length and the text of each file.
pub(crate) fn read(path: &Path) -> Result<(Vec<Provider>, String), Error> {
    let (mut providers, mut hasher) = (Vec::<Provider>::new(), Sha256::new());
    let mut names = BTreeSet::new();
    for file in files(path)? {
        let text = read_text(&file).map_err(|error| Error::Read(file.clone(), error))?;
        hasher.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(&text);
        for provider in decode(&text).map_err(|why| Error::Decode(file.clone(), why))? {
            if !names.insert(provider.name.clone()) {
                return Err(Error::Duplicate(provider.name));
            }
            providers.push(provider);
        }
    }
    let mut hash = "sha256:".to_owned();
    for byte in hasher.finalize() {
        let _ = write!(hash, "{byte:02x}");
    }
    Ok((providers, hash))
}

fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let metadata = path.metadata().map_err(|error| Error::Access(path.to_owned(), error))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error| Error::Directory(path.to_owned(), error);
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_dir = entry.file_type().map_err(unreadable)?.is_dir();
        let extension = entry.path().extension().map(ToOwned::to_owned);
        let is_config = extension.is_some_and(|own| own == "json" || own == "yaml" || own == "yml");
        if is_config && !is_dir {
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(Error::NoFiles(path.to_owned()));
    }
    files.sort();
    Ok(files)
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES.saturating_add(1)).read_to_string(&mut text)?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= MAX_BYTES => Ok(text),
        _ => Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes"))),
    }
}

/// The plugins of a document. What is wrong with it is said without its values.
fn decode(text: &str) -> Result<Vec<Provider>, String> {
    let (mut tree, duplicates) = parse_document(text)?;
    if let Some(fault) = duplicates.first() {
        return Err(format!("strict decoding error: {fault} void"));
    }
    let mut header = |name: &str| match tree.as_object_mut().and_then(|tree| tree.remove(name)) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    let kind = header("kind").ok_or("Object 'Kind' is missing")?;
    let api_version = header("apiVersion").ok_or("Object 'apiVersion' is missing")?;
    let version = api_version.strip_prefix(GROUP).filter(|version| VERSIONS.contains(version));
    let Some(version) = version.filter(|_| kind == KIND) else {
        if api_version == "kubelet.config.k8s.io/v1beta1" && kind == "KubeletConfiguration" {
            return Err(format!("failed to decode {kind:?} (wrong Kind)"));
        }
        return Err(format!("no kind {kind:?} is registered for version {api_version:?}"));
    };
    let document: Document =
        decode_strict(tree).map_err(|why| format!("strict decoding error: {why}"))?;
    // only the newest version has that field
    let newer = document.providers.iter().position(|provider| provider.token_attributes.is_some());
    if let Some(index) = newer.filter(|_| version != "v1") {
        let field = format!("providers[{index}].tokenAttributes");
        return Err(format!("strict decoding error: unknown field {field:?}"));
    }
    Ok(document.providers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: one
  matchImages: ["*.example"]
  defaultCacheDuration: 10m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [--verbose]
  env: [{name: A, value: b}]
  tokenAttributes:
    serviceAccountTokenAudience: reg
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example.com/role]
"#;

    fn error_of(text: &str) -> String {
        decode(text).unwrap_err()
    }

    #[test]
    fn credential_provider_config_has_every_field() {
        let one = decode(ONE).unwrap().remove(0);
        assert_eq!((one.name.as_str(), one.match_images), ("one", vec!["*.example".to_owned()]));
        assert_eq!(one.default_cache_duration.unwrap().to_string(), "10m0s");
        assert_eq!((one.args, one.env[0].value.as_str()), (vec!["--verbose".to_owned()], "b"));
        let tokens = one.token_attributes.unwrap();
        assert_eq!(tokens.require_service_account, Some(true));
        assert_eq!(tokens.required_service_account_annotation_keys, ["example.com/role"]);
        let nulls = ONE.replace("[--verbose]", "null");
        assert!(decode(&nulls).unwrap()[0].args.is_empty());
    }

    #[test]
    fn credential_provider_config_is_decoded_strictly() {
        for (from, to, expected) in [
            (
                "args:",
                "arguments:",
                r#"strict decoding error: unknown field "providers[0].arguments""#,
            ),
            (
                "config.k8s.io/v1",
                "config.k8s.io/v1beta1",
                r#"strict decoding error: unknown field "providers[0].tokenAttributes""#,
            ),
            (
                "config.k8s.io/v1",
                "config.k8s.io/v2",
                r#"no kind "CredentialProviderConfig" is registered for version "kubelet.config.k8s.io/v2""#,
            ),
            ("kind: CredentialProviderConfig\n", "", "Object 'Kind' is missing"),
            ("apiVersion: kubelet.config.k8s.io/v1\n", "", "Object 'apiVersion' is missing"),
        ] {
            assert_eq!(error_of(&ONE.replace(from, to)), expected);
        }
        let other = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        assert_eq!(error_of(other), r#"failed to decode "KubeletConfiguration" (wrong Kind)"#);
        let twice = ONE.replace("- name: one", "- name: one\n  name: two");
        assert!(error_of(&twice).starts_with("strict decoding error: "), "{}", error_of(&twice));
        let wrong = ONE.replace("[--verbose]", "{secret: s3cret}");
        assert!(!error_of(&wrong).contains("s3cret"), "{}", error_of(&wrong));
    }

    #[test]
    fn credential_provider_config_of_a_directory_is_merged() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let error = |path: &Path| read(path).unwrap_err().to_string();
        assert!(error(dir.path()).starts_with("no configuration files found in directory"));
        put("b.yaml", ONE);
        put(
            "a.json",
            &serde_json::to_string(&serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": KIND,
            "providers": [{"name": "zero", "matchImages": ["a.b"], "defaultCacheDuration": "0s",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]}))
            .unwrap(),
        );
        put("ignored.txt", "x");
        std::fs::create_dir(dir.path().join("c.yaml")).unwrap();
        let (providers, hash) = read(dir.path()).unwrap();
        assert_eq!(
            providers.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
            ["zero", "one"]
        );
        assert!(hash.starts_with("sha256:") && hash.len() == 71, "{hash}");
        put("d.yml", ONE);
        assert_eq!(
            error(dir.path()),
            r#"duplicate provider name "one" found in configuration file(s)"#
        );
        let missing = dir.path().join("missing");
        assert!(error(&missing).starts_with("unable to access path"), "{}", error(&missing));
    }

    #[test]
    fn credential_provider_config_hash_is_of_lengths_and_texts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, ONE).unwrap();
        let mut expected = Sha256::new();
        expected.update((ONE.len() as u64).to_be_bytes());
        expected.update(ONE);
        let expected: String = expected.finalize().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(read(&file).unwrap().1, format!("sha256:{expected}"));
    }
}

//! Registry credentials: from a pod's pull secrets, then from the node's docker config, then from
//! credential provider plugins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use longshore_credential_provider::{AccountReference, Given, matches_image};
use longshore_cri::v1::AuthConfig;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

/// The registry of names without a host, in docker configs.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// A credential that matches an image. No `Debug`: it must not be logged.
pub(super) struct Credential {
    pub login: Login,
    pub source: Source,
}

/// Where a credential is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The node, for all of its pods.
    Node,
    /// A pull secret.
    Secret(SecretLogin),
    /// A plugin, for a service account.
    Account(AccountLogin),
}

/// A service account's coordinates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountLogin {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// What a pod has to prove that it may use an image.
#[derive(Clone, Debug, Default)]
pub(super) struct PodLogins {
    pub secrets: Vec<SecretLogin>,
    /// Its service account, if a plugin has given a credential for it.
    pub account: Option<AccountLogin>,
}

impl PodLogins {
    pub(super) fn of(credentials: &[Credential]) -> Self {
        let mut logins = Self::default();
        for credential in credentials {
            match &credential.source {
                Source::Node => {}
                Source::Secret(secret) => logins.secrets.push(secret.clone()),
                Source::Account(account) => {
                    logins.account.get_or_insert_with(|| account.clone());
                }
            }
        }
        logins
    }
}

/// A secret's coordinates, and the hash of its credential.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct SecretLogin {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    #[serde(rename = "credentialHash")]
    pub hash: String,
}

/// User name and password.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Login {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    password: String,
    /// Base64 of both; takes precedence.
    #[serde(skip_serializing)]
    auth: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    email: String,
}

impl Login {
    /// As a CRI message. The server is left out: the image has it, and runtimes take the name for a
    /// URL.
    pub(super) fn config(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            ..AuthConfig::default()
        }
    }

    /// The hash of the Go kubelet, which is stored on nodes: of its JSON as Go formats it.
    fn hash(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        for (plain, escaped) in [
            ('<', "\\u003c"),
            ('>', "\\u003e"),
            ('&', "\\u0026"),
            ('\u{2028}', "\\u2028"),
            ('\u{2029}', "\\u2029"),
        ] {
            text = text.replace(plain, escaped);
        }
        hex(&Sha256::digest(text))
    }

    /// The credential with `auth` decoded; `None` if that is invalid.
    fn resolved(mut self) -> Option<Self> {
        if !self.auth.is_empty() {
            let padded = self.auth.trim().ends_with('=');
            let engine = if padded { &STANDARD } else { &STANDARD_NO_PAD };
            let text = String::from_utf8(engine.decode(&self.auth).ok()?).ok()?;
            let (username, password) = text.split_once(':')?;
            (self.username, self.password) = (username.to_owned(), password.to_owned());
        }
        Some(self)
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Logins = BTreeMap<String, Login>;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: Logins,
}

/// The credentials of secrets, and then of the node, that match an image; of each the most specific
/// first.
pub(super) fn matching<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
    root_dir: &Path,
    source: &str,
) -> Vec<Credential> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        let metadata = &secret.metadata;
        let coordinates = SecretLogin {
            uid: metadata.uid.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            hash: String::new(),
        };
        match of_secret(secret) {
            Some(logins) => keyring.add(logins, &Source::Secret(coordinates)),
            None => warn!(name = coordinates.name, "secret has no registry credentials"),
        }
    }
    let mut found = keyring.matching(source);
    let mut node = Keyring::default();
    node.add(of_node(root_dir), &Source::Node);
    found.extend(node.matching(source));
    found
}

/// The credentials that plugins have given that match an image, the most specific first; of the same
/// pattern in the order of the plugins.
pub(super) fn of_plugins(given: impl IntoIterator<Item = Given>, source: &str) -> Vec<Credential> {
    let mut keyring = Keyring::default();
    for Given { logins, account } in given {
        let account = account.map_or(Source::Node, |account| {
            let AccountReference { uid, namespace, name } = account;
            Source::Account(AccountLogin { uid, namespace, name })
        });
        let login = |(pattern, login): (&String, &longshore_credential_provider::Login)| {
            let (username, password) = (login.username.clone(), login.password.clone());
            (pattern.clone(), Login { username, password, ..Login::default() })
        };
        keyring.add(logins.iter().map(login).collect(), &account);
    }
    keyring.matching(source)
}

fn of_secret(secret: &Secret) -> Option<Logins> {
    let data = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        Some(bytes.as_slice())
    };
    match secret.type_.as_deref()? {
        "kubernetes.io/dockerconfigjson" => config_json(data(".dockerconfigjson")?),
        "kubernetes.io/dockercfg" => serde_json::from_slice(data(".dockercfg")?).ok(),
        _ => None,
    }
}

fn config_json(text: &[u8]) -> Option<Logins> {
    serde_json::from_slice::<DockerConfig>(text).ok().map(|config| config.auths)
}

/// The first docker config with credentials, in the locations that Docker uses.
fn of_node(root_dir: &Path) -> Logins {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let (here, top) = (Path::new("."), Path::new("/"));
    let read = |dir: &Path, file: &str| std::fs::read(dir.join(file)).ok();
    let new = [root_dir, here, &home.join(".docker"), &top.join(".docker")];
    let old = [root_dir, here, &home, top];
    let new = new.iter().find_map(|dir| config_json(&read(dir, "config.json")?));
    new.or_else(|| {
        old.iter().find_map(|dir| serde_json::from_slice(&read(dir, ".dockercfg")?).ok())
    })
    .unwrap_or_default()
}

/// Credentials by registry.
#[derive(Default)]
struct Keyring(BTreeMap<String, Vec<Credential>>);

impl Keyring {
    fn add(&mut self, logins: Logins, source: &Source) {
        for (key, login) in logins {
            let Some(login) = login.resolved() else {
                warn!(key, "cannot decode registry credentials");
                continue;
            };
            let mut source = source.clone();
            if let Source::Secret(secret) = &mut source {
                secret.hash = login.hash();
            }
            self.0.entry(registry(&key)).or_default().push(Credential { login, source });
        }
    }

    fn matching(mut self, source: &str) -> Vec<Credential> {
        let default = self.0.remove(DEFAULT_REGISTRY);
        let matching = self.0.into_iter().rev().filter(|(key, _)| matches_image(key, source));
        let found: Vec<_> = matching.flat_map(|(_, credentials)| credentials).collect();
        match default {
            Some(default) if found.is_empty() && source.starts_with("docker.io/") => default,
            _ => found,
        }
    }
}

/// The registry of a key of a docker config, without scheme and API version.
fn registry(key: &str) -> String {
    let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = match key.split_once('/') {
        Some((host, path)) => (host, path),
        None => (key, ""),
    };
    let path = path.strip_prefix("v1/").or(path.strip_prefix("v2/")).unwrap_or(path);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn image_credential_keys_are_registries() {
        for (key, source, expected) in [
            ("https://reg.example/v2/", "reg.example/a", true),
            ("http://reg.example/v1/team", "reg.example/team/a", true),
            ("reg.example/team", "reg.example/other/a", false),
        ] {
            assert_eq!(matches_image(&registry(key), source), expected, "{key} {source}");
        }
    }

    fn secret(name: &str, key: &str, auths: &serde_json::Value) -> Secret {
        let (kind, text) = match key {
            ".dockercfg" => ("kubernetes.io/dockercfg", auths.to_string()),
            _ => ("kubernetes.io/dockerconfigjson", json!({"auths": auths}).to_string()),
        };
        let mut secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": name}, "type": kind})).unwrap();
        secret.data = Some([(key.to_owned(), ByteString(text.into_bytes()))].into());
        secret
    }

    fn users(secrets: &[Secret], source: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let found = matching(secrets, dir.path(), source);
        found.iter().map(|found| found.login.username.clone()).collect()
    }

    #[test]
    fn image_credentials_most_specific_first() {
        let login = |user: &str| json!({"username": user, "password": "p"});
        let auths = json!({"reg.example": login("wide"), "reg.example/team": login("near")});
        let one = secret("one", ".dockerconfigjson", &auths);
        let two = secret("two", ".dockercfg", &json!({"reg.example": login("old")}));
        let both = [one, two];
        assert_eq!(users(&both, "reg.example/team/app"), ["near", "wide", "old"]);
        assert_eq!(users(&both, "reg.example/app"), ["wide", "old"]);
        assert!(users(&both, "other.example/app").is_empty());

        let hub = json!({"https://index.docker.io/v1/": login("hub")});
        let hub = [secret("hub", ".dockerconfigjson", &hub)];
        assert_eq!(users(&hub, "docker.io/library/busybox"), ["hub"]);
        assert!(users(&hub, "reg.example/busybox").is_empty());

        let encoded = json!({"a.b": {"auth": STANDARD.encode("ada:x:y")}, "c.d": {"auth": "?"}});
        let encoded = [secret("encoded", ".dockerconfigjson", &encoded)];
        assert_eq!(users(&encoded, "a.b/c"), ["ada"]);
        assert!(users(&encoded, "c.d/e").is_empty());
        let mut opaque = secret("opaque", ".dockerconfigjson", &auths);
        opaque.type_ = Some("Opaque".to_owned());
        assert!(users(&[opaque], "reg.example/app").is_empty());
    }

    #[test]
    fn image_credentials_of_the_node_come_last() {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"auths": {"reg.example": {"username": "node", "password": "p"}}});
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let auths = json!({"reg.example": {"username": "pod", "password": "p"}});
        let secrets = [secret("s", ".dockerconfigjson", &auths)];
        let found = matching(&secrets, dir.path(), "reg.example/a");
        let found = found.iter().map(|c| (c.login.username.as_str(), c.source != Source::Node));
        assert_eq!(found.collect::<Vec<_>>(), [("pod", true), ("node", false)]);
    }

    #[test]
    fn image_credentials_of_plugins_are_ordered_by_pattern_and_plugin() {
        let login = |user: &str| longshore_credential_provider::Login {
            username: user.to_owned(),
            password: "p".to_owned(),
        };
        let given = |logins: &[(&str, &str)], account: Option<&str>| Given {
            logins: std::sync::Arc::new(
                logins.iter().map(|(key, user)| ((*key).to_owned(), login(user))).collect(),
            ),
            account: account.map(|name| AccountReference {
                uid: format!("uid-{name}"),
                namespace: "ns".to_owned(),
                name: name.to_owned(),
            }),
        };
        let both = [
            given(&[("*.example", "wide"), ("reg.example/team", "near")], None),
            given(&[("reg.example/team", "account"), ("other.example", "other")], Some("x")),
        ];
        let found = of_plugins(both, "reg.example/team/app");
        let users: Vec<&str> = found.iter().map(|own| own.login.username.as_str()).collect();
        assert_eq!(users, ["near", "account", "wide"]);
        let logins = PodLogins::of(&found);
        assert!(logins.secrets.is_empty());
        assert_eq!(logins.account.map(|own| own.name).as_deref(), Some("x"));
    }

    #[test]
    fn image_credential_hashes_equal_the_go_kubelets() {
        let login = |username: &str, password: &str, email: &str| Login {
            username: username.to_owned(),
            password: password.to_owned(),
            email: email.to_owned(),
            auth: "not part of it".to_owned(),
        };
        assert_eq!(
            login("ada", "smash", "ada@example.com").hash(),
            "353258b53f5e9a57b059eab3f05312fc35bbeb874f08ce101e7bf0bf46977423"
        );
        assert_eq!(
            login("grace", "squash", "grace@example.com").hash(),
            "f949b3837a1eb733a951b6aeda0b3327c09ec50c917de9ca35818e8fbf567e29"
        );
    }
}

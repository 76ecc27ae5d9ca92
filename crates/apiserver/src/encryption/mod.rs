//! Encryption at rest, as an EncryptionConfiguration says: values are encrypted on their way into the store and
//! decrypted on their way out, with prefixes and bytes as upstream's, so that one server reads what the other
//! has written.
//!
//! Of the providers of a resource, the first writes and all read; what another than the first one has written is
//! stale, and written again with the next update. `ciphers` has keys of its own, `kms` those of a plugin.

mod ciphers;
mod config;
mod kms;
mod metrics;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use longshore_store::{Store, Transformed, Transformer, with_transformer};
use parking_lot::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::ciphers::{AesKey, Cipher, GcmKey};
use self::config::{Configuration, GroupResource, Key};
use self::kms::Kms;
use self::metrics::{Direction, Metrics};
use crate::config_file::{FollowedFile, Rejected};
use crate::kinds;

/// What every encrypted value begins with.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// How often the file is read again, and how soon after it could not be used.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// In health checks.
const HEALTH_CHECK: &str = "kms-providers";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct EncryptionError {
    /// Of the configuration.
    path: PathBuf,
    reason: String,
}

/// The encryption of a store.
pub struct Encryption {
    /// Followed when it is to be reloaded.
    file: Option<FollowedFile>,
    loaded: RwLock<Arc<Loaded>>,
    metrics: Arc<Metrics>,
}

/// A configuration in force.
struct Loaded {
    resources: HashMap<GroupResource, Arc<Providers>>,
    plugins: Vec<Arc<Kms>>,
}

/// Those of a resource, in order.
struct Providers(Vec<Provider>);

enum Provider {
    Identity,
    /// The prefix, and keys by name with a colon.
    Keyed(&'static str, Vec<(String, Cipher)>),
    /// The prefix with the plugin's name.
    Kms(String, Arc<Kms>),
}

impl Encryption {
    /// Reads a configuration. Plugins are called, and need not be there yet.
    pub async fn load(path: &Path, reload: bool) -> Result<Arc<Encryption>, EncryptionError> {
        let metrics = Arc::new(Metrics::default());
        let failed = |reason| EncryptionError { path: path.to_owned(), reason };
        let text = config::read(path).map_err(failed)?;
        let loaded = Loaded::new(&text, &metrics).map_err(failed)?;
        for plugin in &loaded.plugins {
            if let Err(error) = plugin.check().await {
                tracing::error!(
                    name = plugin.name(),
                    error,
                    "kms plugin failed health check probe"
                );
            }
        }
        let loaded = RwLock::new(Arc::new(loaded));
        let followed =
            || FollowedFile::new(path.to_owned(), &text, RELOAD_INTERVAL, RETRY_INTERVAL);
        Ok(Arc::new(Encryption { file: reload.then(followed), loaded, metrics }))
    }

    /// The store, with its values encrypted. `prefix`: what its keys begin with.
    pub fn encrypt(self: &Arc<Encryption>, store: Arc<dyn Store>, prefix: &str) -> Arc<dyn Store> {
        let prefix = format!("/{}/", prefix.trim_matches('/'));
        with_transformer(store, Arc::new(Values { encryption: self.clone(), prefix }))
    }

    fn loaded(&self) -> Arc<Loaded> {
        self.loaded.read().clone()
    }

    /// The name of the health check of plugins, if there are any or may be.
    pub(crate) fn health_check(&self) -> Option<&'static str> {
        let has_plugins = !self.loaded().plugins.is_empty() || self.file.is_some();
        has_plugins.then_some(HEALTH_CHECK)
    }

    /// What is wrong with the plugins, which are asked.
    pub(crate) async fn health(&self) -> Result<(), String> {
        self.loaded().check().await
    }

    pub(crate) fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Keeps an eye on plugins and on the file until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        loop {
            let loaded = self.loaded();
            let watching = join_all(loaded.plugins.iter().map(|plugin| plugin.watch()));
            let watching = async {
                watching.await;
                // there are none
                std::future::pending::<()>().await
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = watching => {}
                () = self.reloaded() => {}
            }
        }
    }

    /// Returns when another configuration is in force; never if the file is not followed.
    async fn reloaded(&self) {
        let Some(file) = &self.file else { return std::future::pending().await };
        loop {
            let result = match file.changed().await {
                Ok(text) => file.noted(&text, self.apply(&text).await.map_err(Rejected::NotYet)),
                Err(reason) => Err(reason),
            };
            let Err(reason) = result else { return };
            self.metrics.reloaded(false);
            tracing::error!(reason, "error processing encryption config file");
        }
    }

    /// Puts a text in force, once its plugins are well.
    async fn apply(&self, text: &str) -> Result<(), String> {
        let loaded = Loaded::new(text, &self.metrics)?;
        loaded.check().await?;
        *self.loaded.write() = Arc::new(loaded);
        self.metrics.reloaded(true);
        tracing::info!("another encryption config is in force");
        Ok(())
    }
}

impl Loaded {
    fn new(text: &str, metrics: &Arc<Metrics>) -> Result<Loaded, String> {
        let configuration =
            Configuration::parse(text).map_err(|why| format!("error while parsing file: {why}"))?;
        let mut lists: HashMap<GroupResource, Vec<Arc<Vec<Provider>>>> = HashMap::new();
        let mut plugins = Vec::new();
        for entry in configuration.resources {
            let mut providers = Vec::new();
            for provider in &entry.providers {
                providers.push(Provider::new(provider, metrics, &mut plugins)?);
            }
            let providers = Arc::new(providers);
            for resource in entry.resources {
                let any = |group: &str| GroupResource { group: group.into(), resource: "*".into() };
                for earlier in [any(&resource.group), any("*")] {
                    if lists.contains_key(&earlier) {
                        return Err(format!(
                            "error while building transformers: resource \"{resource}\" is masked by earlier rule \
                             \"{earlier}\""
                        ));
                    }
                }
                lists.entry(resource).or_default().push(providers.clone());
            }
        }
        // the providers of a resource that several entries name are those of all, in order
        let joined = |lists: Vec<Arc<Vec<Provider>>>| {
            let all = lists.iter().flat_map(|list| list.iter().map(Provider::copy));
            Arc::new(Providers(all.collect()))
        };
        let resources =
            lists.into_iter().map(|(resource, lists)| (resource, joined(lists))).collect();
        Ok(Loaded { resources, plugins })
    }

    /// Those of a resource; `None`: its values are stored as they are.
    fn providers(&self, group: &str, resource: &str) -> Option<Arc<Providers>> {
        let find = |group: &str, resource: &str| {
            let key = GroupResource { group: group.to_owned(), resource: resource.to_owned() };
            self.resources.get(&key).cloned()
        };
        find(group, resource).or_else(|| find(group, "*")).or_else(|| find("*", "*"))
    }

    async fn check(&self) -> Result<(), String> {
        let mut faults = Vec::new();
        for (i, plugin) in self.plugins.iter().enumerate() {
            if let Err(error) = plugin.check().await {
                faults.push(format!("kms-provider-{i}: {error}"));
            }
        }
        joined(faults)
    }
}

/// One error of many.
fn joined(faults: Vec<String>) -> Result<(), String> {
    match faults.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

impl Provider {
    fn new(
        provider: &config::Provider,
        metrics: &Arc<Metrics>,
        plugins: &mut Vec<Arc<Kms>>,
    ) -> Result<Provider, String> {
        let keyed = |prefix, keys: &[Key], cipher: fn(&[u8]) -> Result<Cipher, ciphers::Error>| {
            let key = |Key { name, secret }: &Key| match cipher(secret) {
                Ok(cipher) => Ok((format!("{name}:"), cipher)),
                Err(error) => {
                    Err(format!("error while creating cipher for named key {name}: {error}"))
                }
            };
            let keys = keys.iter().map(key).collect::<Result<Vec<_>, String>>()?;
            Ok(Provider::Keyed(prefix, keys))
        };
        match provider {
            config::Provider::Identity => Ok(Provider::Identity),
            config::Provider::AesGcm(keys) => {
                keyed("k8s:enc:aesgcm:v1:", keys, |key| GcmKey::new(key).map(Cipher::Gcm))
            }
            config::Provider::AesCbc(keys) => {
                keyed("k8s:enc:aescbc:v1:", keys, |key| AesKey::new(key).map(Cipher::Cbc))
            }
            config::Provider::Secretbox(keys) => {
                keyed("k8s:enc:secretbox:v1:", keys, Cipher::secretbox)
            }
            config::Provider::Kms { name, endpoint, timeout } => {
                let kms = Arc::new(Kms::new(name, endpoint, *timeout, metrics.clone())?);
                plugins.push(kms.clone());
                Ok(Provider::Kms(format!("k8s:enc:kms:v2:{name}:"), kms))
            }
        }
    }

    fn copy(&self) -> Provider {
        match self {
            Provider::Identity => Provider::Identity,
            Provider::Keyed(prefix, keys) => Provider::Keyed(prefix, keys.clone()),
            Provider::Kms(prefix, kms) => Provider::Kms(prefix.clone(), kms.clone()),
        }
    }

    /// What the values that it writes begin with, without the name of a key.
    fn prefix(&self) -> &str {
        match self {
            Provider::Identity => "",
            Provider::Keyed(prefix, _) => prefix,
            Provider::Kms(prefix, _) => prefix,
        }
    }

    async fn write(&self, value: Bytes, key: &str) -> Result<Bytes, String> {
        match self {
            Provider::Identity => Ok(value),
            Provider::Keyed(prefix, keys) => {
                let (name, cipher) = keys.first().ok_or("there is no key")?;
                let text = cipher.encrypt(&value, key.as_bytes()).map_err(|e| e.to_string())?;
                Ok([prefix.as_bytes(), name.as_bytes(), &text].concat().into())
            }
            Provider::Kms(prefix, kms) => {
                let text = kms.encrypt(&value, key.as_bytes())?;
                Ok([prefix.as_bytes(), &text].concat().into())
            }
        }
    }

    /// `None`: it did not write this.
    async fn read(&self, stored: &Bytes, key: &str) -> Option<Result<Transformed, String>> {
        match self {
            Provider::Identity if stored.starts_with(ENCRYPTED) => None,
            Provider::Identity => Some(Ok(Transformed { value: stored.clone(), is_stale: false })),
            Provider::Keyed(prefix, keys) => {
                let rest = stored.strip_prefix(prefix.as_bytes())?;
                Some(read_keyed(keys, rest, key))
            }
            Provider::Kms(prefix, kms) => {
                let rest = stored.strip_prefix(prefix.as_bytes())?;
                let read = kms.decrypt(rest, key.as_bytes()).await;
                Some(read.map(|(value, is_stale)| Transformed { value: value.into(), is_stale }))
            }
        }
    }
}

fn read_keyed(keys: &[(String, Cipher)], rest: &[u8], key: &str) -> Result<Transformed, String> {
    let mut faults = Vec::new();
    for (i, (name, cipher)) in keys.iter().enumerate() {
        let Some(text) = rest.strip_prefix(name.as_bytes()) else { continue };
        match cipher.decrypt(text, key.as_bytes()) {
            Ok(value) => return Ok(Transformed { value: value.into(), is_stale: i > 0 }),
            Err(error) => faults.push(error.to_string()),
        }
    }
    joined(faults)?;
    Err("no matching key was found for the provided AES transformer".to_owned())
}

impl Providers {
    /// The value with the prefix of what has read it, for metrics.
    async fn read(&self, stored: Bytes, key: &str) -> Result<(Transformed, &str), String> {
        let mut faults = Vec::new();
        for (i, provider) in self.0.iter().enumerate() {
            match provider.read(&stored, key).await {
                None => {}
                Some(Ok(Transformed { value, is_stale })) => {
                    let read = Transformed { value, is_stale: is_stale || i > 0 };
                    let prefix = match provider {
                        Provider::Identity => "identity",
                        provider => provider.prefix(),
                    };
                    return Ok((read, prefix));
                }
                Some(Err(error)) => faults.push(error),
            }
        }
        joined(faults)?;
        Err("no matching prefix found".to_owned())
    }
}

/// The values of a store whose keys begin with a prefix.
struct Values {
    encryption: Arc<Encryption>,
    prefix: String,
}

impl Values {
    /// The group and resource of a key, which need not be served now.
    fn resource<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        resource_of(key.strip_prefix(&self.prefix)?)
    }

    fn providers(&self, key: &str) -> Option<(Arc<Providers>, String)> {
        let (group, resource) = self.resource(key)?;
        let providers = self.encryption.loaded().providers(group, resource)?;
        let name = match group {
            "" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        Some((providers, name))
    }
}

/// What only servers read and write: by upstream's names, which wildcards match.
const ALLOCATIONS: [(&str, (&str, &str)); 2] = [
    ("ranges/servicenodeports", ("", "servicenodeportallocations")),
    ("masterleases", ("", "apiServerIPInfo")),
];

/// The group and resource of what lies below each path of built-in kinds.
fn stored_resources() -> &'static HashMap<&'static str, (&'static str, &'static str)> {
    static STORED: OnceLock<HashMap<&str, (&str, &str)>> = OnceLock::new();
    STORED.get_or_init(|| {
        let mut stored = HashMap::from(ALLOCATIONS);
        for resource in kinds::built_in().filter(|resource| !resource.storage.is_empty()) {
            let names = (resource.group, resource.plural);
            let known = stored.entry(resource.storage).or_insert(names);
            // events are of the core group, in whatever group they are served
            if resource.group.is_empty() {
                *known = names;
            }
        }
        stored
    })
}

/// The group and resource of a path below the prefix: `secrets/NS/NAME`, or `GROUP/PLURAL/…` of custom resources.
fn resource_of(path: &str) -> Option<(&str, &str)> {
    let (first, rest) = path.split_once('/')?;
    let second = rest.split('/').next().unwrap_or_default();
    let both = path.get(..first.len() + 1 + second.len()).unwrap_or_default();
    let stored = stored_resources();
    if let Some(known) = stored.get(both).or_else(|| stored.get(first)) {
        return Some(*known);
    }
    // what else has no dot is no resource
    (first.contains('.') && !second.is_empty()).then_some((first, second))
}

#[async_trait]
impl Transformer for Values {
    fn is_plain(&self, _: &str, _: &[u8]) -> bool {
        false
    }

    async fn encode(&self, key: &str, value: Bytes) -> Result<Bytes, String> {
        let Some((providers, resource)) = self.providers(key) else { return Ok(value) };
        let provider = providers.0.first().ok_or("there is no provider")?;
        let began = Instant::now();
        let stored = provider.write(value, key).await;
        let metrics = &self.encryption.metrics;
        let (direction, is_ok) = (Direction::ToStorage, stored.is_ok());
        metrics.transformed(&resource, direction, provider.prefix(), began.elapsed(), is_ok);
        stored
    }

    async fn decode(&self, key: &str, stored: Bytes) -> Result<Transformed, String> {
        let Some((providers, resource)) = self.providers(key) else {
            return unencrypted(stored);
        };
        let began = Instant::now();
        let read = providers.read(stored, key).await;
        let prefix = read.as_ref().map_or("unknown", |(_, prefix)| prefix);
        let metrics = &self.encryption.metrics;
        let (direction, is_ok) = (Direction::FromStorage, read.is_ok());
        metrics.transformed(&resource, direction, prefix, began.elapsed(), is_ok);
        read.map(|(value, _)| value)
    }
}

/// A value that is stored as it is.
fn unencrypted(stored: Bytes) -> Result<Transformed, String> {
    match stored.starts_with(ENCRYPTED) {
        true => Err("identity transformer tried to read encrypted data".to_owned()),
        false => Ok(Transformed { value: stored, is_stale: false }),
    }
}

/// Encrypted values are refused where there is no configuration: they would be taken for damaged objects.
#[must_use]
pub fn refuse_encrypted(store: Arc<dyn Store>) -> Arc<dyn Store> {
    struct Plain;

    #[async_trait]
    impl Transformer for Plain {
        fn is_plain(&self, _: &str, stored: &[u8]) -> bool {
            !stored.starts_with(ENCRYPTED)
        }

        async fn encode(&self, _: &str, value: Bytes) -> Result<Bytes, String> {
            Ok(value)
        }

        async fn decode(&self, _: &str, stored: Bytes) -> Result<Transformed, String> {
            unencrypted(stored)
        }
    }

    with_transformer(store, Arc::new(Plain))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use longshore_store::{EmbeddedStore, Expect, PREFIX};

    use super::*;

    const KEY: &str = "/registry/secrets/a/b";
    const GCM: &str = "aesgcm: {keys: [{name: g1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}";
    const CBC: &str = "aescbc: {keys: [{name: c1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}";
    const BOX: &str =
        "secretbox: {keys: [{name: s1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}";

    fn text(resources: &[(&str, &[&str])]) -> String {
        let entry = |(resources, providers): &(&str, &[&str])| {
            let providers: String = providers.iter().map(|p| format!("  - {p}\n")).collect();
            format!("- resources: [{resources}]\n  providers:\n{providers}")
        };
        let entries: String = resources.iter().map(entry).collect();
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{entries}"
        )
    }

    struct Fixture {
        dir: tempfile::TempDir,
        raw: Arc<dyn Store>,
    }

    impl Fixture {
        async fn new() -> Fixture {
            let dir = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(dir.path().join("store")).await.unwrap();
            Fixture { dir, raw: Arc::new(store) }
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join("encryption.yaml")
        }

        async fn load(&self, resources: &[(&str, &[&str])]) -> Arc<Encryption> {
            std::fs::write(self.file(), text(resources)).unwrap();
            Encryption::load(&self.file(), true).await.unwrap()
        }

        async fn store(&self, resources: &[(&str, &[&str])]) -> Arc<dyn Store> {
            self.load(resources).await.encrypt(self.raw.clone(), PREFIX)
        }

        async fn raw(&self, key: &str) -> Bytes {
            self.raw.get(key).await.unwrap().unwrap().value
        }
    }

    async fn write(store: &Arc<dyn Store>, key: &str, value: &'static [u8]) {
        let expect = match store.get(key).await.unwrap() {
            Some(found) => Expect::Revision(found.mod_revision),
            None => Expect::Absent,
        };
        store.put(key, Bytes::from_static(value), expect, None).await.unwrap();
    }

    #[tokio::test]
    async fn encryption_by_the_first_provider_is_read_by_all() {
        let fixture = Fixture::new().await;
        for (provider, prefix) in [
            (GCM, "k8s:enc:aesgcm:v1:g1:"),
            (CBC, "k8s:enc:aescbc:v1:c1:"),
            (BOX, "k8s:enc:secretbox:v1:s1:"),
            ("identity: {}", "{"),
        ] {
            let store =
                fixture.store(&[("secrets", &[provider, GCM, CBC, BOX, "identity: {}"])]).await;
            if let Some(found) = store.get(KEY).await.unwrap() {
                assert_eq!(found.value, "{\"v\":1}");
                assert!(found.is_stale, "{provider}");
            }
            write(&store, KEY, b"{\"v\":1}").await;
            let found = store.get(KEY).await.unwrap().unwrap();
            assert_eq!(
                (&found.value[..], found.is_stale),
                (&b"{\"v\":1}"[..], false),
                "{provider}"
            );
            assert!(fixture.raw(KEY).await.starts_with(prefix.as_bytes()), "{provider}");
        }
        let store = fixture.store(&[("secrets", &[GCM])]).await;
        let error = store.get(KEY).await.unwrap_err().to_string();
        assert_eq!(error, format!("unable to transform key {KEY:?}: no matching prefix found"));
    }

    /// Values that kube-apiserver 1.36 has written, under their keys.
    #[tokio::test]
    async fn encryption_of_upstream_is_read() {
        const VALUES: &str = include_str!("../../tests/data/encrypted-1.36.txt");
        let fixture = Fixture::new().await;
        let aes = "key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
        let store = fixture
            .store(&[
                ("secrets", &[&format!("aescbc: {{keys: [{{name: {aes}}}]}}")]),
                ("limitranges", &[&format!("secretbox: {{keys: [{{name: {aes}}}]}}")]),
                (
                    "configmaps",
                    &["aesgcm: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3}]}"],
                ),
                (
                    "'*.coordination.k8s.io'",
                    &["aesgcm: {keys: [{name: key16, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}"],
                ),
            ])
            .await;
        let mut kinds = Vec::new();
        for line in VALUES.lines() {
            use base64::Engine;
            let (key, value) = line.split_once(' ').unwrap();
            let value = base64::engine::general_purpose::STANDARD.decode(value).unwrap();
            fixture.raw.put(key, value.into(), Expect::Absent, None).await.unwrap();
            let found = store.get(key).await.unwrap().unwrap();
            assert!(!found.is_stale);
            let object: serde_json::Value = serde_json::from_slice(&found.value).unwrap();
            kinds.push(object["kind"].as_str().unwrap().to_owned());
        }
        assert_eq!(kinds, ["Secret", "ConfigMap", "LimitRange", "Lease"]);
    }

    #[tokio::test]
    async fn encryption_keys_are_rotated_within_a_provider() {
        let fixture = Fixture::new().await;
        let keys = |names: &[&str]| {
            let key = |name: &&str| {
                let secret = format!("{name}0123456789abcdef");
                use base64::Engine;
                let secret = base64::engine::general_purpose::STANDARD.encode(&secret[..16]);
                format!("{{name: {name}, secret: {secret}}}")
            };
            let keys: Vec<String> = names.iter().map(key).collect();
            format!("aesgcm: {{keys: [{}]}}", keys.join(", "))
        };
        let store = fixture.store(&[("secrets", &[&keys(&["k1"])])]).await;
        write(&store, KEY, b"{}").await;
        let store = fixture.store(&[("secrets", &[&keys(&["k2", "k1"])])]).await;
        assert!(store.get(KEY).await.unwrap().unwrap().is_stale);
        let store = fixture.store(&[("secrets", &[&keys(&["k2"]), &keys(&["k1"])])]).await;
        assert!(store.get(KEY).await.unwrap().unwrap().is_stale);
        write(&store, KEY, b"{}").await;
        assert!(fixture.raw(KEY).await.starts_with(b"k8s:enc:aesgcm:v1:k2:"));
        let store = fixture.store(&[("secrets", &[&keys(&["k1"])])]).await;
        assert!(
            store.get(KEY).await.unwrap_err().to_string().contains("no matching key was found")
        );
    }

    #[tokio::test]
    async fn encryption_of_resources_is_by_group_and_wildcard() {
        let fixture = Fixture::new().await;
        let store = fixture
            .store(&[
                ("configmaps", &[GCM]),
                ("'*.apps'", &[CBC]),
                ("'*.'", &[BOX]),
                ("'*.*'", &["identity: {}"]),
            ])
            .await;
        for (key, prefix) in [
            ("/registry/configmaps/a/b", "k8s:enc:aesgcm"),
            ("/registry/deployments/a/b", "k8s:enc:aescbc"),
            ("/registry/secrets/a/b", "k8s:enc:secretbox"),
            ("/registry/events/a/b", "k8s:enc:secretbox"),
            ("/registry/leases/a/b", "{"),
            ("/registry/stable.example.com/crontabs/a/b", "{"),
        ] {
            write(&store, key, b"{}").await;
            assert!(fixture.raw(key).await.starts_with(prefix.as_bytes()), "{key}");
        }
        let store = fixture.store(&[("crontabs.stable.example.com", &[GCM])]).await;
        let key = "/registry/stable.example.com/crontabs/a/c";
        write(&store, key, b"{}").await;
        assert!(fixture.raw(key).await.starts_with(b"k8s:enc:aesgcm"));
        // without a provider, what is encrypted is refused
        assert!(store.get(KEY).await.is_err());
        assert!(refuse_encrypted(fixture.raw.clone()).get(KEY).await.is_err());
        std::fs::write(fixture.file(), text(&[("'*.*'", &[GCM]), ("secrets", &[CBC])])).unwrap();
        let error = Encryption::load(&fixture.file(), false).await.err().unwrap().to_string();
        assert!(
            error.contains("resource \"secrets\" is masked by earlier rule \"*.*\""),
            "{error}"
        );
    }

    #[tokio::test]
    async fn encryption_configuration_is_read_again() {
        let fixture = Fixture::new().await;
        let encryption = fixture.load(&[("secrets", &["identity: {}"])]).await;
        let store = encryption.encrypt(fixture.raw.clone(), PREFIX);
        write(&store, KEY, b"{}").await;
        encryption.apply(&text(&[("secrets", &[GCM, "identity: {}"])])).await.unwrap();
        assert!(store.get(KEY).await.unwrap().unwrap().is_stale);
        write(&store, KEY, b"{}").await;
        assert!(fixture.raw(KEY).await.starts_with(b"k8s:enc:aesgcm"));
        assert!(encryption.apply("nonsense").await.is_err());
        assert!(!store.get(KEY).await.unwrap().unwrap().is_stale, "the last one stays in force");
        assert_eq!(encryption.health_check(), Some("kms-providers"));
        assert_eq!(encryption.health().await, Ok(()));
    }

    #[tokio::test]
    async fn encryption_by_kms_is_part_of_health() {
        let fixture = Fixture::new().await;
        let socket = fixture.dir.path().join("kms.sock");
        let provider =
            format!("kms: {{apiVersion: v2, name: k, endpoint: 'unix://{}'}}", socket.display());
        let absent = fixture.load(&[("secrets", &[&provider])]).await;
        assert!(absent.health_check().is_some());
        let health = absent.health().await;
        assert!(
            health.unwrap_err().starts_with("kms-provider-0: failed to perform status section")
        );
        let store = absent.encrypt(fixture.raw.clone(), PREFIX);
        let put = store.put(KEY, Bytes::from_static(b"{}"), Expect::Absent, None).await;
        assert!(put.is_err() && fixture.raw.get(KEY).await.unwrap().is_none());

        let plugin = kms::tests::Plugin::serve(socket);
        let store = fixture.store(&[("secrets", &[&provider, "identity: {}"])]).await;
        write(&store, KEY, b"{}").await;
        assert!(fixture.raw(KEY).await.starts_with(b"k8s:enc:kms:v2:k:"));
        assert_eq!(store.get(KEY).await.unwrap().unwrap().value, "{}");
        assert!(!plugin.calls.lock().contains(&"Decrypt"));
    }
}

//! Registry credentials from a pod's pull secrets.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use longshore_cri::v1::AuthConfig;
use longshore_pod::spec;
use serde::Deserialize;
use tracing::warn;

use crate::objects::Objects;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

// No Debug: nothing here may reach a log.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

/// The credentials that fit an image, the most specific first. A secret that is not there or not
/// readable is skipped: the pull says what is missing.
pub(super) async fn of_pod(objects: &Objects, pod: &Pod, image: &str) -> Vec<AuthConfig> {
    let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let mut found = Vec::new();
    for name in names.map(|reference| reference.name.as_str()).filter(|name| !name.is_empty()) {
        match objects.secret(spec::namespace(pod), name).await {
            Ok(secret) => {
                found.extend(entries(&secret).into_iter().filter(|(key, _)| fits(key, image)))
            }
            Err(error) => warn!(pod = spec::name(pod), %error, "pull secret is not to be had"),
        }
    }
    found.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    found.into_iter().map(|(_, entry)| auth(entry)).collect()
}

fn entries(secret: &Secret) -> BTreeMap<String, Entry> {
    let data = |key: &str| secret.data.as_ref()?.get(key);
    let parse = |ByteString(bytes): &ByteString| serde_json::from_slice::<DockerConfig>(bytes).ok();
    if let Some(config) = data(".dockerconfigjson").and_then(parse) {
        return config.auths;
    }
    data(".dockercfg")
        .and_then(|ByteString(bytes)| serde_json::from_slice(bytes).ok())
        .unwrap_or_default()
}

/// No server is named: the image says which, and runtimes take the name for a URL.
fn auth(entry: Entry) -> AuthConfig {
    AuthConfig {
        username: entry.username,
        password: entry.password,
        auth: entry.auth,
        identity_token: entry.identity_token,
        ..AuthConfig::default()
    }
}

/// Whether a credential's key, `host[:port][/path]` with an optional scheme, covers an image.
fn fits(key: &str, image: &str) -> bool {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    let key = key.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let (host, path) = match image.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
        _ => ("index.docker.io", image),
    };
    let hub = |host: &str| matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    let host_fits = host_matches(key_host, host) || hub(key_host) && hub(host);
    host_fits && (key_path.is_empty() || path.starts_with(key_path))
}

/// `*` stands for one label of a host name.
fn host_matches(pattern: &str, host: &str) -> bool {
    let (pattern, host): (Vec<_>, Vec<_>) =
        (pattern.split('.').collect(), host.split('.').collect());
    pattern.len() == host.len() && pattern.iter().zip(host).all(|(p, h)| *p == "*" || *p == h)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn keys_cover_their_registry_and_path_alone() {
        for (key, image, expected) in [
            ("https://index.docker.io/v1/", "busybox", true),
            ("docker.io", "library/busybox", true),
            ("reg.example:5000", "reg.example:5000/a", true),
            ("reg.example:5000", "reg.example/a", false),
            ("reg.example/team", "reg.example/team/a", true),
            ("reg.example/team", "reg.example/other/a", false),
            ("*.example", "reg.example/a", true),
            ("*.example", "a.b.example/a", false),
            ("reg.example", "busybox", false),
        ] {
            assert_eq!(fits(key, image), expected, "{key} {image}");
        }
    }
}

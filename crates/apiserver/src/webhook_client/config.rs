//! The `clientConfig` of a webhook.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use serde_json::Value;

use crate::schema::value::text;

/// The port of a service or a URL that names none.
const DEFAULT_PORT: u16 = 443;

/// Where a webhook is, and whose certificates it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientConfig {
    pub(super) target: Target,
    /// Certificates of authorities (PEM); `None`: those of the system.
    pub(super) ca_bundle: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// `authority` is host and port as they are written.
    Url {
        authority: String,
        host: String,
        port: u16,
        path: String,
    },
    Service {
        namespace: String,
        name: String,
        port: u16,
        path: String,
    },
}

impl ClientConfig {
    /// Reads a `clientConfig` that conforms to its type.
    pub(crate) fn of(config: &Value) -> Result<ClientConfig, String> {
        let ca_bundle = match text(&config["caBundle"]) {
            "" => None,
            bundle => Some(STANDARD.decode(bundle).map_err(|error| format!("caBundle: {error}"))?),
        };
        let ca_bundle = ca_bundle.filter(|bundle| !bundle.trim_ascii().is_empty());
        let service = &config["service"];
        let target = match (service.is_object(), text(&config["url"])) {
            (true, _) => Target::Service {
                namespace: text(&service["namespace"]).to_owned(),
                name: text(&service["name"]).to_owned(),
                port: service["port"]
                    .as_u64()
                    .and_then(|port| u16::try_from(port).ok())
                    .filter(|port| *port > 0)
                    .unwrap_or(DEFAULT_PORT),
                path: rooted(text(&service["path"])),
            },
            (false, "") => {
                return Err("webhook configuration must have either service or URL".to_owned());
            }
            (false, url) => {
                let url: Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
                let authority = url.authority().ok_or("the URL has no host")?;
                Target::Url {
                    authority: authority.to_string(),
                    host: authority.host().trim_matches(['[', ']']).to_owned(),
                    port: authority.port_u16().unwrap_or(DEFAULT_PORT),
                    path: rooted(url.path()),
                }
            }
        };
        Ok(ClientConfig { target, ca_bundle })
    }

    /// The name in the webhook's certificate.
    pub(super) fn server_name(&self) -> String {
        match &self.target {
            Target::Url { host, .. } => host.clone(),
            Target::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// The port that is called.
    pub(super) fn port(&self) -> u16 {
        let (Target::Url { port, .. } | Target::Service { port, .. }) = &self.target;
        *port
    }

    /// Host and port as they are called, whatever is dialled for them.
    pub(super) fn authority(&self) -> String {
        match &self.target {
            Target::Url { authority, .. } => authority.clone(),
            Target::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// The path, with the time that the webhook has.
    pub(super) fn path_and_query(&self, limit: Duration) -> String {
        let (Target::Url { path, .. } | Target::Service { path, .. }) = &self.target;
        format!("{path}?timeout={}s", limit.as_secs())
    }

    /// Where it is called.
    pub(crate) fn url(&self, limit: Duration) -> String {
        format!("https://{}{}", self.authority(), self.path_and_query(limit))
    }
}

fn rooted(path: &str) -> String {
    match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("/{path}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn webhook_client_config_becomes_a_url() {
        let second = Duration::from_secs(1);
        for (config, url, name) in [
            (
                json!({"url": "https://127.0.0.1:9443/hook"}),
                "https://127.0.0.1:9443/hook?timeout=1s",
                "127.0.0.1",
            ),
            (
                json!({"url": "https://example.com"}),
                "https://example.com/?timeout=1s",
                "example.com",
            ),
            (json!({"url": "https://[::1]:1/a"}), "https://[::1]:1/a?timeout=1s", "::1"),
            (
                json!({"service": {"namespace": "n", "name": "s"}}),
                "https://s.n.svc:443/?timeout=1s",
                "s.n.svc",
            ),
            (
                json!({"service": {"namespace": "n", "name": "s", "port": 8443, "path": "/a/b"}}),
                "https://s.n.svc:8443/a/b?timeout=1s",
                "s.n.svc",
            ),
        ] {
            let config = ClientConfig::of(&config).unwrap();
            assert_eq!((config.url(second).as_str(), config.server_name().as_str()), (url, name));
        }
        assert!(ClientConfig::of(&json!({})).unwrap_err().contains("either service or URL"));
        assert!(ClientConfig::of(&json!({"url": "https://h", "caBundle": "%"})).is_err());
        assert!(ClientConfig::of(&json!({"url": "/path"})).is_err());
    }
}

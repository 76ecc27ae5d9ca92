//! Servers that kubeconfigs name: that of the current context, with the credentials of its user.
//!
//! Current limitations: no proxy, no plugins for credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;

use super::{Authorization, Origin, Remote, bearer};
use crate::config_file;
use crate::http_client::tls;

/// Where a pod finds what its service account may show.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(crate) struct Error {
    path: PathBuf,
    reason: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    certificate_authority: String,
    certificate_authority_data: String,
    insecure_skip_tls_verify: bool,
    tls_server_name: String,
    proxy_url: String,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: Option<serde_json::Value>,
    auth_provider: Option<serde_json::Value>,
}

impl Remote {
    /// The server of a kubeconfig's current context. Its files are read now.
    pub(crate) fn of_kubeconfig(path: &Path) -> Result<Remote, Error> {
        let invalid = |reason| Error { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
        let kubeconfig: Kubeconfig = config_file::parse(&text).map_err(invalid)?;
        let base = path.parent().unwrap_or(Path::new(""));
        kubeconfig.remote(base).map_err(invalid)
    }

    /// The apiserver of the cluster whose pod this runs in, at that path.
    pub(crate) fn of_pod(path: &str) -> Result<Remote, String> {
        let variable = |name: &str| match std::env::var(name) {
            Ok(value) if !value.is_empty() => Ok(value),
            _ => Err("unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and \
                      KUBERNETES_SERVICE_PORT must be defined"
                .to_owned()),
        };
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let url = format!("https://{host}:{}{path}", variable("KUBERNETES_SERVICE_PORT")?);
        let authority = format!("{SERVICE_ACCOUNT}/ca.crt");
        let authority =
            std::fs::read(&authority).map_err(|error| format!("{authority}: {error}"))?;
        let tls = Arc::new(tls::client(Some(&authority), false, None)?);
        let token = Authorization::TokenFile(format!("{SERVICE_ACCOUNT}/token").into());
        Remote::new(&url, None, tls, token)
    }
}

impl Kubeconfig {
    fn remote(self, base: &Path) -> Result<Remote, String> {
        let Kubeconfig { current_context, contexts, clusters, users } = self;
        let context = contexts.into_iter().find(|named| named.name == current_context);
        let context = context.ok_or_else(|| {
            format!(
                "invalid configuration: there is no context {current_context:?}, its current one"
            )
        })?;
        let Context { cluster, user } = context.context;
        let found = clusters.into_iter().find(|named| named.name == cluster);
        let cluster = found.ok_or_else(|| format!("there is no cluster {cluster:?}"))?.cluster;
        let user = match user.as_str() {
            "" => User::default(),
            name => {
                let found = users.into_iter().find(|named| named.name == name);
                found.ok_or_else(|| format!("there is no user {name:?}"))?.user
            }
        };
        if !cluster.proxy_url.is_empty() {
            return Err("proxy-url is not implemented".to_owned());
        }
        if user.exec.is_some() || user.auth_provider.is_some() {
            return Err("plugins of credentials are not supported: use a certificate, a token or \
                        a file with a token"
                .to_owned());
        }
        let (Origin { is_tls, .. }, _) = Origin::of(&cluster.server)?;
        if !is_tls && !user.is_nobody() {
            return Err(format!("{}: credentials would be sent in plain text", cluster.server));
        }
        let authority = content(
            base,
            "certificate-authority",
            &cluster.certificate_authority,
            &cluster.certificate_authority_data,
        )?;
        let insecure = cluster.insecure_skip_tls_verify;
        if insecure && authority.is_some() {
            return Err("insecure-skip-tls-verify is set, and a certificate authority too".into());
        }
        let identity = user.identity(base)?;
        // a system without certificate authorities can do plain HTTP, which uses none
        let tls = tls::client_with(authority.as_deref(), insecure || !is_tls, identity)?;
        let name = Some(cluster.tls_server_name).filter(|name| !name.is_empty());
        Remote::new(&cluster.server, name, Arc::new(tls), user.authorization(base)?)
    }
}

impl User {
    fn is_nobody(&self) -> bool {
        let parts = [&self.client_certificate, &self.client_certificate_data, &self.token];
        let others = [&self.token_file, &self.username];
        parts.iter().chain(&others).all(|part| part.is_empty())
    }

    fn identity(
        &self,
        base: &Path,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, String> {
        let (file, data) = (&self.client_certificate, &self.client_certificate_data);
        let Some(chain) = content(base, "client-certificate", file, data)? else { return Ok(None) };
        let key = content(base, "client-key", &self.client_key, &self.client_key_data)?;
        let key = key.ok_or("the user has a client certificate and no key")?;
        let chain = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("client-certificate: {error}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(&key).map_err(|error| format!("client-key: {error}"))?;
        Ok(Some((chain, key)))
    }

    fn authorization(&self, base: &Path) -> Result<Authorization, String> {
        if !self.token_file.is_empty() {
            return Ok(Authorization::TokenFile(base.join(&self.token_file)));
        }
        if !self.token.is_empty() {
            return bearer(&self.token).map(Authorization::Header);
        }
        if self.username.is_empty() {
            return Ok(Authorization::Nothing);
        }
        let both = STANDARD.encode(format!("{}:{}", self.username, self.password));
        let mut value =
            HeaderValue::try_from(format!("Basic {both}")).map_err(|e| e.to_string())?;
        value.set_sensitive(true);
        Ok(Authorization::Header(value))
    }
}

/// What a field `…-data` holds, or the file.
fn content(base: &Path, name: &str, file: &str, data: &str) -> Result<Option<Vec<u8>>, String> {
    match (file, data) {
        ("", "") => Ok(None),
        (file, "") => {
            let path = base.join(file);
            std::fs::read(&path).map(Some).map_err(|e| format!("{name} {}: {e}", path.display()))
        }
        (_, data) => {
            let data = STANDARD.decode(data.trim());
            data.map(Some).map_err(|error| format!("{name}-data: {error}"))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn remote(cluster: &str, user: &str) -> Result<Remote, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\npreferences: {{}}\n\
             clusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        Remote::of_kubeconfig(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn remote_kubeconfig_names_server_and_credentials() {
        let found = remote(
            "{server: 'https://h:1/authorize', insecure-skip-tls-verify: true, tls-server-name: n}",
            "{token: t}",
        )
        .unwrap();
        assert_eq!((found.path.as_str(), found.server_name.as_str()), ("/authorize", "n"));
        assert_eq!(
            found.authorization,
            Authorization::Header(HeaderValue::from_static("Bearer t"))
        );
        let plain = remote("{server: 'http://127.0.0.1:1'}", "{}").unwrap();
        assert_eq!(plain.authorization, Authorization::Nothing);
        let query = remote("{server: 'http://[::1]/audit?x=1'}", "{}").unwrap();
        assert_eq!((query.path.as_str(), query.origin.host.as_str()), ("/audit?x=1", "::1"));
        let basic = remote(
            "{server: 'https://h', insecure-skip-tls-verify: true}",
            "{username: a, password: b}",
        );
        assert_eq!(
            basic.unwrap().authorization,
            Authorization::Header(HeaderValue::from_static("Basic YTpi"))
        );
        for (cluster, user, why) in [
            ("{server: 'http://h'}", "{token: t}", "plain text"),
            ("{server: 'HTTP://h'}", "{token: t}", "plain text"),
            ("{server: 'http://h', proxy-url: 'http://p'}", "{}", "proxy-url is not implemented"),
            ("{server: 'ftp://h'}", "{}", "no URL of http"),
            (
                "{server: 'https://h', insecure-skip-tls-verify: true}",
                "{token: \"a\\nb\"}",
                "not valid in a header",
            ),
            ("{server: 'https://h', certificate-authority: none.crt}", "{}", "none.crt"),
            ("{server: 'https://h', certificate-authority-data: '%'}", "{}", "authority-data"),
            ("{server: 'http://h'}", "{exec: {command: x}}", "plugins"),
            ("{server: ''}", "{}", "not a URL"),
            (
                "{server: 'https://h', insecure-skip-tls-verify: true}",
                "{client-certificate-data: eA==}",
                "no key",
            ),
        ] {
            let error = remote(cluster, user).err().unwrap();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn remote_kubeconfig_faults_quote_no_secrets() {
        for (cluster, user) in [
            ("{server: 'https://h'}", "{token: [s3cret]}"),
            ("{server: 'https://h'}", "{token: \"s3cret}"),
            ("{server: 'https://h'}", "{token: s3cret, client-key-data: {}}"),
            ("{server: 'https://a:s3cret@h'}", "{}"),
            ("{server: 'https://h', insecure-skip-tls-verify: true}", "{token: \"s3cret\\n\"}"),
            ("{server: 'http://h'}", "{username: a, password: s3cret}"),
        ] {
            let error = remote(cluster, user).err().unwrap();
            assert!(!error.contains("s3cret"), "{cluster} {user}: {error}");
        }
    }
}

//! Servers that kubeconfigs name: that of the current context, with the credentials of its user.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use longshore_exec_credentials::{ClusterInfo, ExecConfig, ExecPlugin};
use serde::Deserialize;

use super::credentials::{Authorization, Content, TlsSource, bearer};
use super::hosts::Shown;
use super::{Origin, Remote};
use crate::config_file;
use crate::http_client::proxy::Proxy;

/// Where a pod finds what its service account may show.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const NO_AUTH_PROVIDER: &str = "auth-provider is not supported any more: use exec";

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
    /// Nothing asks servers to compress their answers.
    disable_compression: bool,
    extensions: Vec<Extension>,
}

#[derive(Deserialize)]
struct Extension {
    name: String,
    #[serde(default)]
    extension: serde_json::Value,
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
    exec: Option<ExecConfig>,
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
        let tls = TlsSource {
            authority: Content::File(format!("{SERVICE_ACCOUNT}/ca.crt").into()),
            insecure: false,
            certificate: Content::Nothing,
            key: Content::Nothing,
        };
        let token = Authorization::TokenFile(format!("{SERVICE_ACCOUNT}/token").into());
        Remote::new(&url, None, None, tls, token)
    }
}

/// What the users of a kubeconfig have to show, by their names; and that of its current context.
pub(super) fn users(path: &Path) -> Result<(HashMap<String, Shown>, Option<String>), Error> {
    let invalid = |reason| Error { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    let kubeconfig: Kubeconfig = config_file::parse(&text).map_err(invalid)?;
    let base = path.parent().unwrap_or(Path::new(""));
    let Kubeconfig { current_context, contexts, users, .. } = kubeconfig;
    let current = contexts.into_iter().find(|named| named.name == current_context);
    let shown = |NamedUser { name, user }: NamedUser| {
        if user.auth_provider.is_some() {
            return Err(format!("user {name:?}: {NO_AUTH_PROVIDER}"));
        }
        let (certificate, key) = user.identity(base)?;
        // a file that is not there is a mistake now, and not at the first call
        certificate.read("client-certificate")?;
        key.read("client-key")?;
        let authorization = user.authorization(base, || Ok(ClusterInfo::default()))?;
        Ok((name, Shown { authorization, certificate, key }))
    };
    let users = users.into_iter().map(shown).collect::<Result<HashMap<_, _>, String>>();
    Ok((users.map_err(invalid)?, current.map(|named| named.context.user)))
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
        if user.auth_provider.is_some() {
            return Err(NO_AUTH_PROVIDER.to_owned());
        }
        let (Origin { is_tls, .. }, _) = Origin::of(&cluster.server)?;
        if !is_tls && !user.is_nobody() {
            return Err(format!("{}: credentials would be sent in plain text", cluster.server));
        }
        let authority = Content::of(
            base,
            "certificate-authority",
            &cluster.certificate_authority,
            &cluster.certificate_authority_data,
        )?;
        let insecure = cluster.insecure_skip_tls_verify;
        if insecure && authority != Content::Nothing {
            return Err("insecure-skip-tls-verify is set, and a certificate authority too".into());
        }
        let (certificate, key) = user.identity(base)?;
        let authorization = user.authorization(base, || cluster.info(&authority))?;
        // a system without certificate authorities can do plain HTTP, which uses none
        let tls = TlsSource { authority, insecure: insecure || !is_tls, certificate, key };
        let name = Some(cluster.tls_server_name).filter(|name| !name.is_empty());
        let proxy = Some(cluster.proxy_url).filter(|url| !url.is_empty());
        let proxy = proxy.map(|url| Proxy::of(&url)).transpose()?;
        Remote::new(&cluster.server, name, proxy, tls, authorization)
    }
}

impl Cluster {
    /// What a plugin receives.
    fn info(&self, authority: &Content) -> Result<ClusterInfo, String> {
        let extensions = self.extensions.iter().map(|one| (one.name.as_str(), &one.extension));
        Ok(ClusterInfo {
            server: self.server.clone(),
            tls_server_name: self.tls_server_name.clone(),
            insecure_skip_tls_verify: self.insecure_skip_tls_verify,
            certificate_authority: authority.read("certificate-authority")?.unwrap_or_default(),
            proxy_url: self.proxy_url.clone(),
            disable_compression: self.disable_compression,
            config: ClusterInfo::config_of(extensions),
        })
    }
}

impl User {
    fn is_nobody(&self) -> bool {
        let parts = [&self.client_certificate, &self.client_certificate_data, &self.token];
        let others = [&self.token_file, &self.username];
        self.exec.is_none() && parts.iter().chain(&others).all(|part| part.is_empty())
    }

    /// The client certificate and its key.
    fn identity(&self, base: &Path) -> Result<(Content, Content), String> {
        let (file, data) = (&self.client_certificate, &self.client_certificate_data);
        let certificate = Content::of(base, "client-certificate", file, data)?;
        let key = Content::of(base, "client-key", &self.client_key, &self.client_key_data)?;
        Ok((certificate, key))
    }

    /// A plugin is called only if nothing else is there to be shown.
    fn authorization(
        self,
        base: &Path,
        cluster: impl FnOnce() -> Result<ClusterInfo, String>,
    ) -> Result<Authorization, String> {
        let has_certificate =
            !self.client_certificate.is_empty() || !self.client_certificate_data.is_empty();
        if !self.token_file.is_empty() {
            return Ok(Authorization::TokenFile(base.join(&self.token_file)));
        }
        if !self.token.is_empty() {
            return bearer(&self.token).map(Authorization::Header);
        }
        if self.username.is_empty() {
            let Some(exec) = self.exec.filter(|_| !has_certificate) else {
                return Ok(Authorization::Nothing);
            };
            let plugin = ExecPlugin::new(exec, base, cluster()?);
            let plugin = plugin.map_err(|error| error.to_string())?;
            return Ok(Authorization::Plugin(Arc::new(plugin)));
        }
        let both = STANDARD.encode(format!("{}:{}", self.username, self.password));
        let mut value =
            HeaderValue::try_from(format!("Basic {both}")).map_err(|e| e.to_string())?;
        value.set_sensitive(true);
        Ok(Authorization::Header(value))
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
        let shown = |remote: &Remote| match &remote.access.authorization {
            Authorization::Header(value) => value.to_str().unwrap().to_owned(),
            Authorization::Plugin(_) => "plugin".to_owned(),
            _ => String::new(),
        };
        assert_eq!(shown(&found), "Bearer t");
        let plain = remote("{server: 'http://127.0.0.1:1'}", "{}").unwrap();
        assert_eq!(shown(&plain), "");
        let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: x, \
            interactiveMode: Never}";
        let tls = "{server: 'https://h', insecure-skip-tls-verify: true, \
            proxy-url: 'socks5://p', disable-compression: true}";
        let plugin = remote(tls, &format!("{{{exec}}}")).unwrap();
        assert!(shown(&plugin) == "plugin" && plugin.proxy.is_some());
        let beside = remote(tls, &format!("{{token: t, {exec}}}")).unwrap();
        assert_eq!(shown(&beside), "Bearer t");
        let query = remote("{server: 'http://[::1]/audit?x=1'}", "{}").unwrap();
        assert_eq!((query.path.as_str(), query.origin.host.as_str()), ("/audit?x=1", "::1"));
        let basic = remote(
            "{server: 'https://h', insecure-skip-tls-verify: true}",
            "{username: a, password: b}",
        );
        assert_eq!(shown(&basic.unwrap()), "Basic YTpi");
        for (cluster, user, why) in [
            ("{server: 'http://h'}", "{token: t}", "plain text"),
            ("{server: 'HTTP://h'}", "{token: t}", "plain text"),
            ("{server: 'http://h', proxy-url: 'ftp://p'}", "{}", "invalid proxy-url"),
            ("{server: 'ftp://h'}", "{}", "no URL of http"),
            (
                "{server: 'https://h', insecure-skip-tls-verify: true}",
                "{token: \"a\\nb\"}",
                "not valid in a header",
            ),
            ("{server: 'https://h', certificate-authority: none.crt}", "{}", "none.crt"),
            ("{server: 'https://h', certificate-authority-data: '%'}", "{}", "authority-data"),
            ("{server: 'http://h'}", "{exec: {command: x}}", "plain text"),
            (
                "{server: 'https://h', insecure-skip-tls-verify: true}",
                "{exec: {command: x}}",
                "exec plugin: invalid apiVersion",
            ),
            ("{server: 'http://h'}", "{auth-provider: {name: x}}", "auth-provider"),
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

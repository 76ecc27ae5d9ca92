//! A webhook that a kubeconfig names: the server of its current context, with the credentials of its user.
//!
//! Current limitations: no proxy, no plugins for credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{Sender, go_words, refusal, tls};

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Connections that are kept for the next call.
const MAX_IDLE: usize = 4;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: UserEntry,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    tls_server_name: String,
    insecure_skip_tls_verify: bool,
    certificate_authority: String,
    certificate_authority_data: String,
    proxy_url: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UserEntry {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
    exec: serde_json::Value,
    #[serde(rename = "auth-provider")]
    auth_provider: serde_json::Value,
}

/// How requests prove who sends them, beside a certificate.
#[derive(Debug)]
enum Authorization {
    None,
    Header(HeaderValue),
    /// A file with a token, which may change.
    TokenFile(PathBuf),
}

/// Calls the server of a kubeconfig.
pub(crate) struct KubeconfigClient {
    uri: Uri,
    host: String,
    port: u16,
    server_name: String,
    /// `None` for plain HTTP.
    tls: Option<Arc<rustls::ClientConfig>>,
    authorization: Authorization,
    idle: Mutex<Vec<Sender>>,
}

impl KubeconfigClient {
    /// Reads a kubeconfig and the files that it names; their paths are relative to its own.
    pub(crate) fn open(path: &Path) -> Result<KubeconfigClient, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let dir = path.parent().unwrap_or(Path::new("."));
        KubeconfigClient::parse(&text, dir)
    }

    fn parse(text: &str, dir: &Path) -> Result<KubeconfigClient, String> {
        let config: Kubeconfig = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let Kubeconfig { current_context, clusters, users, contexts } = config;
        let missing = |what: &str, name: &str| format!("{what} {name:?} does not exist");
        let context = contexts
            .into_iter()
            .find(|context| context.name == current_context)
            .ok_or_else(|| missing("context", &current_context))?
            .context;
        let cluster = clusters.into_iter().find(|cluster| cluster.name == context.cluster);
        let cluster = cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
        let user = match context.user.as_str() {
            "" => UserEntry::default(),
            name => {
                let user = users.into_iter().find(|user| user.name == name);
                user.ok_or_else(|| missing("user", name))?.user
            }
        };
        if !cluster.proxy_url.is_empty() {
            return Err("proxy-url is not implemented".to_owned());
        }
        if !user.exec.is_null() || !user.auth_provider.is_null() {
            return Err("exec and auth-provider are not implemented".to_owned());
        }
        let uri: Uri =
            cluster.server.parse().map_err(|error| format!("{:?}: {error}", cluster.server))?;
        let authority = uri.authority().ok_or("the server's URL has no host")?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let (is_tls, default_port) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(format!("{:?}: expected https://… or http://…", cluster.server)),
        };
        let port = authority.port_u16().unwrap_or(default_port);
        let tls = match is_tls {
            true => Some(Arc::new(tls_config(&cluster, &user, dir)?)),
            false => None,
        };
        let server_name = match cluster.tls_server_name.as_str() {
            "" => host.clone(),
            name => name.to_owned(),
        };
        let authorization = authorization(&user, dir)?;
        Ok(KubeconfigClient {
            uri,
            host,
            port,
            server_name,
            tls,
            authorization,
            idle: Mutex::default(),
        })
    }

    /// POSTs a JSON document to the server, and returns the body of an answer with a status of success.
    pub(crate) async fn post(&self, body: Bytes, limit: Duration) -> Result<Bytes, String> {
        let failed = |reason: &str| format!("Post {:?}: {reason}", self.uri.to_string());
        let exchange = async {
            let (response, sender) = self.exchange(body).await.map_err(|why| failed(&why))?;
            let code = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|error| failed(&error.to_string()))?.to_bytes();
            self.keep(sender);
            match code {
                code if code.is_success() => Ok(body),
                code => Err(refusal(code, &body)),
            }
        };
        let late = |_| Err(failed("context deadline exceeded"));
        timeout(limit, exchange).await.unwrap_or_else(late)
    }

    async fn exchange(
        &self,
        body: Bytes,
    ) -> Result<(hyper::Response<hyper::body::Incoming>, Sender), String> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(self.request(body.clone())?).await {
                Ok(response) => return Ok((response, sender)),
                // It was closed before anything of the request was sent.
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(error.error().to_string()),
            }
        }
        let mut sender = self.connect().await?;
        let request = self.request(body)?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Ok((response, sender))
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, concat!("longshore-apiserver/", env!("CARGO_PKG_VERSION")));
        match &self.authorization {
            Authorization::None => {}
            Authorization::Header(value) => request = request.header(AUTHORIZATION, value.clone()),
            Authorization::TokenFile(path) => {
                let token = std::fs::read_to_string(path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                request =
                    request.header(AUTHORIZATION, secret(format!("Bearer {}", token.trim()))?);
            }
        }
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let failed = |error: std::io::Error| {
            format!("dial tcp {}:{}: {}", self.host, self.port, go_words(&error))
        };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let Some(tls) = &self.tls else {
            let (sender, connection) =
                handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
            // Ends when the sender is dropped, or the webhook closes it.
            tokio::spawn(async move { drop(connection.await) });
            return Ok(sender);
        };
        let name =
            ServerName::try_from(self.server_name.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(tls.clone())
            .connect(name, stream)
            .await
            .map_err(|error| format!("tls: failed to verify certificate: {error}"))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// A header that no log shows.
fn secret(text: String) -> Result<HeaderValue, String> {
    let value = HeaderValue::try_from(text);
    let mut value = value.map_err(|_| "the credentials are no header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn authorization(user: &UserEntry, dir: &Path) -> Result<Authorization, String> {
    if !user.token_file.is_empty() {
        return Ok(Authorization::TokenFile(dir.join(&user.token_file)));
    }
    if !user.token.is_empty() {
        return Ok(Authorization::Header(secret(format!("Bearer {}", user.token))?));
    }
    if !user.username.is_empty() {
        let pair = STANDARD.encode(format!("{}:{}", user.username, user.password));
        return Ok(Authorization::Header(secret(format!("Basic {pair}"))?));
    }
    Ok(Authorization::None)
}

/// What stands in the kubeconfig, or else in a file that it names; `None`: in neither.
fn content(data: &str, path: &str, dir: &Path) -> Result<Option<Vec<u8>>, String> {
    match (data, path) {
        ("", "") => Ok(None),
        ("", path) => {
            let path = dir.join(path);
            let read = std::fs::read(&path);
            read.map(Some).map_err(|error| format!("{}: {error}", path.display()))
        }
        (data, _) => {
            let decoded = STANDARD.decode(data.trim());
            decoded.map(Some).map_err(|error| format!("data of a certificate or key: {error}"))
        }
    }
}

fn tls_config(
    cluster: &Cluster,
    user: &UserEntry,
    dir: &Path,
) -> Result<rustls::ClientConfig, String> {
    let authority =
        content(&cluster.certificate_authority_data, &cluster.certificate_authority, dir)?;
    let certificate = content(&user.client_certificate_data, &user.client_certificate, dir)?;
    let key = content(&user.client_key_data, &user.client_key, dir)?;
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let unreadable = |error: &dyn std::fmt::Display| format!("client certificate: {error}");
            let chain = CertificateDer::pem_slice_iter(&certificate)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| unreadable(&error))?;
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unreadable(&error))?;
            Some((chain, key))
        }
        (None, None) => None,
        _ => return Err("a client certificate needs its key".to_owned()),
    };
    tls::client_with(authority.as_deref(), cluster.insecure_skip_tls_verify, identity)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(cluster: &str, user: &str) -> Result<KubeconfigClient, String> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]"
        );
        KubeconfigClient::parse(&text, Path::new("/nowhere"))
    }

    #[test]
    fn webhook_kubeconfig_names_server_and_credentials() {
        let client = parse("server: 'http://127.0.0.1:8080/audit?x=1'", "token: abc").unwrap();
        let request = client.request(Bytes::new()).unwrap();
        assert_eq!(request.uri(), "/audit?x=1");
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer abc");
        assert_eq!((client.host.as_str(), client.port), ("127.0.0.1", 8080));
        let client =
            parse("server: 'http://[::1]'", "{username: a, password: b}".trim_matches(['{', '}']));
        let client = client.unwrap();
        let request = client.request(Bytes::new()).unwrap();
        assert_eq!(request.headers()[AUTHORIZATION], "Basic YTpi");
        assert_eq!((request.uri().path(), client.host.as_str(), client.port), ("/", "::1", 80));
        let cluster = "server: 'https://h', insecure-skip-tls-verify: true, tls-server-name: n";
        let client = parse(cluster, "").unwrap();
        assert_eq!((client.port, client.server_name.as_str()), (443, "n"));
    }

    #[test]
    fn webhook_kubeconfig_faults_are_named() {
        for (cluster, user, fault) in [
            ("server: 'ftp://h'", "", "expected https://"),
            ("server: ''", "", "expected https://"),
            ("server: 'https://h', certificate-authority: ca.crt", "", "/nowhere/ca.crt"),
            ("server: 'https://h', certificate-authority-data: '%'", "", "data of a certificate"),
            (
                "server: 'https://h', insecure-skip-tls-verify: true",
                "client-key-data: aGk=",
                "needs its key",
            ),
            ("server: 'http://h', proxy-url: 'http://p'", "", "proxy-url"),
            ("server: 'http://h'", "exec: {command: x}", "exec"),
            ("server: 'http://h'", "token: \"a\\nb\"", "no header"),
        ] {
            let error = parse(cluster, user).err().unwrap();
            assert!(error.contains(fault) || cluster == "server: ''", "{cluster} {user}: {error}");
        }
        let error = KubeconfigClient::parse("kind: Config", Path::new(".")).err().unwrap();
        assert_eq!(error, "context \"\" does not exist");
    }
}

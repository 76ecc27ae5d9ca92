//! Calls of servers that the configuration of this one names: webhooks of authentication, authorization
//! and the audit by kubeconfigs, and issuers of tokens by URLs.
//!
//! What a server does is bounded: the time until its answer is read, the size of the answer, and how many
//! calls there are at once. Redirects are not followed.

mod credentials;
mod hosts;
mod kubeconfig;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, PROXY_AUTHORIZATION,
    USER_AGENT,
};
use hyper::{Request, Response, Uri};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use longshore_exec_credentials::Credential;

pub(crate) use self::credentials::Connections;
use self::credentials::{Authorization, Content, CurrentConnections, TlsSource, bearer};
pub(crate) use self::hosts::HostCredentials;
pub(crate) use self::hosts::Shown;
pub(crate) use self::kubeconfig::Error as KubeconfigError;
use crate::http_client::proxy::{self, Proxy};
use crate::http_client::{self, Sender, Tls, refusal};

/// The most calls of one server at once.
const MAX_CALLS: usize = 64;
/// The largest answer.
const MAX_ANSWER: usize = 1 << 20;
/// The pauses between tries, as upstream's back-off has them.
const RETRIES: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(750),
    Duration::from_millis(1125),
    Duration::from_millis(1688),
];
const AGENT: &str = "kube-apiserver";

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_tls: bool,
    /// Host and port as they are written.
    authority: String,
    host: String,
    port: u16,
}

impl Origin {
    /// The origin of a URL, and its path with the query.
    fn of(url: &str) -> Result<(Origin, String), String> {
        // a user in it may have a password, which no message quotes
        let shown = if url.contains('@') { "the address".to_owned() } else { format!("{url:?}") };
        let uri: Uri = url.parse().map_err(|error| format!("{shown} is not a URL: {error}"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("{shown} is no URL of http or https")),
        };
        let authority = uri.authority().ok_or_else(|| format!("{shown} has no host"))?;
        if authority.as_str().contains('@') {
            return Err("the URL has a user".to_owned());
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let origin = Origin {
            is_tls,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: authority.to_string(),
        };
        Ok((origin, path))
    }

    /// The proxy that the environment names for it.
    fn proxy(&self) -> Option<Arc<Proxy>> {
        proxy::of_environment(self.is_tls, &self.host, self.port)
    }

    /// What a request is sent for, and what a proxy is shown: one on the way to a plain server is sent the
    /// whole URL.
    fn target<'t>(
        &self,
        proxy: Option<&Proxy>,
        url: &'t str,
        path: &'t str,
    ) -> (&'t str, Option<String>) {
        match proxy.filter(|proxy| !self.is_tls && proxy.takes_requests()) {
            Some(proxy) => (url, proxy.authorization()),
            None => (path, None),
        }
    }

    async fn connect(
        &self,
        proxy: Option<&Proxy>,
        tls: &Tls,
        server_name: &str,
    ) -> Result<Sender, String> {
        let tls = self.is_tls.then_some((tls, server_name));
        http_client::connect_through(proxy, &self.host, self.port, tls).await
    }
}

/// An answer, whatever its status is.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) code: u16,
    /// The body.
    pub(crate) body: Bytes,
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Result<Answer, String> {
        let code = response.status().as_u16();
        Ok(Answer { code, body: http_client::read(response, MAX_ANSWER, None).await? })
    }
}

/// GETs a URL once, with a token if there is one. `limit` is for all of it, until the last byte of the answer.
pub(crate) async fn get(
    url: &str,
    token: Option<&str>,
    tls: &Tls,
    limit: Duration,
) -> Result<Answer, String> {
    let (origin, path) = Origin::of(url)?;
    let proxy = origin.proxy();
    let once = async {
        let (target, shown) = origin.target(proxy.as_deref(), url, &path);
        let mut request = Request::get(target)
            .header(HOST, origin.authority.as_str())
            .header(ACCEPT, "application/json")
            .header(CACHE_CONTROL, "no-cache")
            .header(USER_AGENT, AGENT);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, bearer(token)?);
        }
        if let Some(value) = shown {
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        let mut sender = origin.connect(proxy.as_deref(), tls, &origin.host).await?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Answer::read(response).await
    };
    let answer = timeout(limit, once).await.unwrap_or_else(|_| Err("timeout".to_owned()));
    answer.map_err(|reason| format!("Get {url:?}: {reason}"))
}

/// A connection for one call of a server that shows what the server is to be shown.
pub(crate) struct Prepared {
    /// The connections with the certificates that are in force.
    pub(crate) connections: Arc<Connections>,
    /// The header of the call.
    pub(crate) header: Option<HeaderValue>,
    credential: Option<Arc<Credential>>,
}

/// What a server is shown, and the connections to it.
pub(crate) struct Access {
    authorization: Authorization,
    connections: CurrentConnections,
}

impl Access {
    /// Reads the files.
    fn new(tls: TlsSource, authorization: Authorization) -> Result<Access, String> {
        Ok(Access { authorization, connections: CurrentConnections::new(tls)? })
    }

    /// That of a server whose certificate is verified by a bundle (PEM), or by those of the system.
    pub(crate) fn verified_by(ca_bundle: Option<&[u8]>, shown: Shown) -> Result<Access, String> {
        let Shown { authorization, certificate, key } = shown;
        let authority = ca_bundle.map_or(Content::Nothing, |bundle| Content::Data(bundle.to_vec()));
        let tls = TlsSource { authority, insecure: false, certificate, key };
        Access::new(tls, authorization)
    }

    /// What the next call is made with.
    pub(crate) async fn prepare(&self) -> Result<Prepared, String> {
        let credential = self.authorization.credential().await?;
        let header = self.authorization.header(credential.as_deref()).await?;
        let connections = self.connections.get(credential.as_deref())?;
        Ok(Prepared { connections, header, credential })
    }

    /// Notes the status of its answer.
    pub(crate) async fn answered(&self, prepared: &Prepared, code: u16) {
        if code == 401 {
            self.authorization.refused(prepared.credential.as_ref()).await;
        }
    }
}

/// A server that JSON is posted to.
pub(crate) struct Remote {
    url: String,
    origin: Origin,
    path: String,
    server_name: String,
    proxy: Option<Arc<Proxy>>,
    access: Access,
    calls: Semaphore,
}

impl Remote {
    fn new(
        url: &str,
        server_name: Option<String>,
        proxy: Option<Proxy>,
        tls: TlsSource,
        authorization: Authorization,
    ) -> Result<Remote, String> {
        let (origin, path) = Origin::of(url)?;
        Ok(Remote {
            url: url.to_owned(),
            server_name: server_name.unwrap_or_else(|| origin.host.clone()),
            proxy: proxy.map(Arc::new).or_else(|| origin.proxy()),
            origin,
            path,
            access: Access::new(tls, authorization)?,
            calls: Semaphore::new(MAX_CALLS),
        })
    }

    /// POSTs a JSON document. `limit` is for all of it, from the wait for a slot to the last byte.
    async fn post(&self, body: Bytes, limit: Duration) -> Result<Answer, String> {
        let whole = async {
            let _slot = self.calls.acquire().await;
            let prepared = self.access.prepare().await?;
            let Connections { tls, pool } = &*prepared.connections;
            let exchange = pool.exchange(
                || self.request(body.clone(), prepared.header.as_ref()),
                || self.origin.connect(self.proxy.as_deref(), tls, &self.server_name).boxed(),
            );
            let (response, sender) = exchange.await?;
            let answer = Answer::read(response).await?;
            pool.keep(sender);
            self.access.answered(&prepared, answer.code).await;
            Ok(answer)
        };
        let answer = timeout(limit, whole).await;
        let answer = answer.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()));
        answer.map_err(|reason: String| format!("Post {:?}: {reason}", self.url))
    }

    /// POSTs a JSON document once. An answer that is not one of success is an error, in the words of
    /// upstream's client.
    pub(crate) async fn post_once(&self, body: Bytes, limit: Duration) -> Result<Bytes, String> {
        let Answer { code, body } = self.post(body, limit).await?;
        if matches!(code, 200..=299) { Ok(body) } else { Err(refusal(code, &body)) }
    }

    /// POSTs a JSON document until the answer is one of success, a few times if an error may pass. `limit`
    /// is for all of it.
    pub(crate) async fn post_patiently(
        &self,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, String> {
        let tries = async {
            let mut pauses = RETRIES.into_iter();
            loop {
                let failure = match self.post(body.clone(), limit).await {
                    Ok(Answer { code: 200..=299, body }) => return Ok(body),
                    Ok(Answer { code, .. }) => {
                        let why = format!("Post {:?}: status {code}", self.url);
                        if !matches!(code, 429 | 500 | 504) {
                            return Err(why);
                        }
                        why
                    }
                    Err(why) => why,
                };
                match pauses.next() {
                    Some(pause) => sleep(pause).await,
                    None => return Err(failure),
                }
            }
        };
        timeout(limit, tries)
            .await
            .unwrap_or_else(|_| Err(format!("Post {:?}: context deadline exceeded", self.url)))
    }

    fn request(
        &self,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let (target, shown) = self.origin.target(self.proxy.as_deref(), &self.url, &self.path);
        let mut request = Request::post(target)
            .header(HOST, self.origin.authority.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, AGENT);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(value) = shown {
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn remote_urls_become_origins() {
        for (url, is_tls, host, port, path) in [
            ("https://a.example", true, "a.example", 443, "/"),
            ("https://[::1]:6443/hook?x=1", true, "::1", 6443, "/hook?x=1"),
            ("http://127.0.0.1/a", false, "127.0.0.1", 80, "/a"),
        ] {
            let (origin, found) = Origin::of(url).unwrap();
            assert_eq!((origin.is_tls, origin.host.as_str(), origin.port), (is_tls, host, port));
            assert_eq!(found, path);
        }
        for url in ["", "/a", "ftp://a", "https://u:p@a/", "a.example"] {
            assert!(Origin::of(url).is_err(), "{url}");
        }
        for url in ["https://u:secret@a/", "ftp://u:secret@a/", "https://u:secret@", "u:secret@a b"]
        {
            let error = Origin::of(url).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn remote_posts_once_and_words_refusals_like_upstream() {
        let kubeconfig = testing::serve_json(|body| match body["code"].as_u64() {
            Some(200) => (200, serde_json::json!({"done": true})),
            code => (code.unwrap().try_into().unwrap(), serde_json::json!("why")),
        })
        .await;
        let remote = Remote::of_kubeconfig(&kubeconfig).unwrap();
        for (code, expected) in [
            (200, Ok(r#"{"done":true}"#)),
            (404, Err("the server could not find the requested resource")),
            (
                500,
                Err(
                    r#"an error on the server ("\"why\"") has prevented the request from succeeding"#,
                ),
            ),
        ] {
            let body = Bytes::from(format!(r#"{{"code":{code}}}"#));
            let answer = remote.post_once(body, Duration::from_secs(30)).await;
            let answer = answer.as_ref().map(|body| std::str::from_utf8(body).unwrap());
            assert_eq!(answer.map_err(String::as_str), expected);
        }
    }

    /// A server with TLS that answers each request with the name in its client's certificate and its
    /// `authorization`, and 401 while that is `refused`. Its port.
    async fn mirror(authority: &longshore_tls::testing::Authority) -> u16 {
        use rustls::server::WebPkiClientVerifier;
        let roots = Arc::new(longshore_tls::roots(&authority.path()).unwrap());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, crate::pki::provider())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let (certificate, key) = authority.issue(&[], rcgen::ExtendedKeyUsagePurpose::ServerAuth);
        let config = rustls::ServerConfig::builder_with_provider(crate::pki::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = |names: String| {
            hyper::service::service_fn(move |request: Request<Incoming>| {
                let shown = request.headers().get(AUTHORIZATION);
                let shown = shown.map_or("", |value| value.to_str().unwrap()).to_owned();
                let code = if shown == "Bearer t1" { 401 } else { 200 };
                let body = Full::new(Bytes::from(format!("{names}|{shown}")));
                let response = Response::builder().status(code).body(body).unwrap();
                async { Ok::<_, std::convert::Infallible>(response) }
            })
        };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let shown = stream.get_ref().1.peer_certificates();
                    let names = shown.map(|chain| longshore_tls::names_of(&chain[0]).join(","));
                    let io = hyper_util::rt::TokioIo::new(stream);
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(io, service(names.unwrap_or_default())).await;
                });
            }
        });
        port
    }

    fn pem(kind: &str, der: &[u8]) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
    }

    fn kubeconfig(dir: &std::path::Path, cluster: &str, user: &str) -> Remote {
        let path = dir.join("config");
        let text = format!(
            "current-context: c\nclusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        Remote::of_kubeconfig(&path).unwrap()
    }

    async fn answer(remote: &Remote) -> String {
        let answer = remote.post(Bytes::from("{}"), Duration::from_secs(30)).await;
        match answer {
            Ok(Answer { code, body }) => format!("{code} {}", String::from_utf8_lossy(&body)),
            Err(why) => why,
        }
    }

    #[tokio::test]
    async fn remote_client_certificates_are_read_again() {
        let authority = longshore_tls::testing::Authority::default();
        let port = mirror(&authority).await;
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let (certificate, key) = authority.client(name, "g");
            let text = pem("CERTIFICATE", &certificate) + &pem("PRIVATE KEY", key.secret_der());
            let path = dir.path().join("pair.pem");
            std::fs::write(&path, text).unwrap();
            path
        };
        let pair = write("one");
        let cluster = format!("server: 'https://127.0.0.1:{port}', insecure-skip-tls-verify: true");
        let remote =
            kubeconfig(dir.path(), &cluster, "client-certificate: pair.pem, client-key: pair.pem");
        assert_eq!(answer(&remote).await, "200 one|");
        let before = pair.metadata().unwrap().modified().unwrap();
        write("two");
        let later = before.checked_add(Duration::from_secs(5)).unwrap();
        std::fs::File::open(&pair).unwrap().set_modified(later).unwrap();
        remote.access.connections.expire();
        assert_eq!(answer(&remote).await, "200 two|");
        std::fs::write(&pair, "nonsense").unwrap();
        remote.access.connections.expire();
        assert_eq!(answer(&remote).await, "200 two|", "the old one stays");
    }

    #[tokio::test]
    async fn remote_credentials_come_from_plugins() {
        let authority = longshore_tls::testing::Authority::default();
        let port = mirror(&authority).await;
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = authority.client("plugged", "g");
        let status = serde_json::json!({
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1",
            "status": {
                "token": "t2",
                "clientCertificateData": pem("CERTIFICATE", &certificate),
                "clientKeyData": pem("PRIVATE KEY", key.secret_der()),
            },
        });
        std::fs::write(dir.path().join("answer"), status.to_string()).unwrap();
        let cluster = format!("server: 'https://127.0.0.1:{port}', insecure-skip-tls-verify: true");
        let exec = |arguments: &str| {
            format!(
                "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
                 command: cat, args: [{arguments}]}}"
            )
        };
        let path = dir.path().join("answer");
        let remote = kubeconfig(dir.path(), &cluster, &exec(path.to_str().unwrap()));
        assert_eq!(answer(&remote).await, "200 plugged|Bearer t2");
        let none = kubeconfig(dir.path(), &cluster, &exec("/none"));
        let error = answer(&none).await;
        assert!(error.contains("getting credentials: exec: executable cat failed"), "{error}");
    }

    #[tokio::test]
    async fn remote_servers_are_reached_through_proxies() {
        let authority = longshore_tls::testing::Authority::default();
        let port = mirror(&authority).await;
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = proxy.local_addr().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cluster = |server: &str| {
            format!(
                "server: '{server}', insecure-skip-tls-verify: true, proxy-url: 'http://a:b@{address}'"
            )
        };
        // the name is nowhere but in the request of the tunnel
        let tunnelled =
            kubeconfig(dir.path(), &cluster("https://webhook.example:8443/x"), "token: t");
        let serve = async {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                head.push(char::from(client.read_u8().await.unwrap()));
            }
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let pipe = tokio::io::copy_bidirectional(&mut client, &mut server);
            (head, pipe.await)
        };
        let call = async {
            let answer = answer(&tunnelled).await;
            drop(tunnelled);
            answer
        };
        let (answered, (head, _)) = tokio::join!(call, serve);
        assert_eq!(answered, "200 |Bearer t");
        assert!(head.starts_with("CONNECT webhook.example:8443 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nProxy-Authorization: Basic YTpi\r\n"), "{head}");
        let plain = kubeconfig(dir.path(), &cluster("http://webhook.example/x"), "");
        let serve = async {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n{}") {
                head.push(char::from(client.read_u8().await.unwrap()));
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            client.write_all(answer).await.unwrap();
            head
        };
        let (answered, head) = tokio::join!(answer(&plain), serve);
        assert_eq!(answered, "200 ok");
        assert!(head.starts_with("POST http://webhook.example/x HTTP/1.1\r\n"), "{head}");
        assert!(head.to_lowercase().contains("proxy-authorization: basic ytpi"), "{head}");
    }
}

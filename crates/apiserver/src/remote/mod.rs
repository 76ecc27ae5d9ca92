//! Calls of servers that the configuration of this one names: webhooks of authentication, authorization
//! and the audit by kubeconfigs, and issuers of tokens by URLs.
//!
//! What a server does is bounded: the time until its answer is read, the size of the answer, and how many
//! calls there are at once. Redirects are not followed.

mod kubeconfig;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT,
};
use hyper::{Request, Response, Uri};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

pub(crate) use self::kubeconfig::Error as KubeconfigError;
use crate::http_client::{self, Pool, Sender, Tls, refusal};

/// The most calls of one server at once.
const MAX_CALLS: usize = 64;
/// Idle connections that are kept of one server.
const MAX_IDLE: usize = 16;
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

    async fn connect(&self, tls: &Tls, server_name: &str) -> Result<Sender, String> {
        let tls = self.is_tls.then_some((tls, server_name));
        http_client::connect(&self.host, self.port, tls).await
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

/// GETs a URL once. `limit` is for all of it, until the last byte of the answer.
pub(crate) async fn get(url: &str, tls: &Tls, limit: Duration) -> Result<Answer, String> {
    let (origin, path) = Origin::of(url)?;
    let once = async {
        let mut sender = origin.connect(tls, &origin.host).await?;
        let request = Request::get(path)
            .header(HOST, origin.authority.as_str())
            .header(ACCEPT, "application/json")
            .header(CACHE_CONTROL, "no-cache")
            .header(USER_AGENT, AGENT)
            .body(Full::default())
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Answer::read(response).await
    };
    let answer = timeout(limit, once).await.unwrap_or_else(|_| Err("timeout".to_owned()));
    answer.map_err(|reason| format!("Get {url:?}: {reason}"))
}

/// How a server knows this one, besides a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Authorization {
    Nothing,
    /// A header that does not change.
    Header(HeaderValue),
    /// A token in a file, which is read for each call.
    TokenFile(PathBuf),
}

/// A server that JSON is posted to.
pub(crate) struct Remote {
    url: String,
    origin: Origin,
    path: String,
    server_name: String,
    tls: Tls,
    authorization: Authorization,
    calls: Semaphore,
    connections: Pool,
}

impl Remote {
    fn new(
        url: &str,
        server_name: Option<String>,
        tls: Tls,
        authorization: Authorization,
    ) -> Result<Remote, String> {
        let (origin, path) = Origin::of(url)?;
        Ok(Remote {
            url: url.to_owned(),
            server_name: server_name.unwrap_or_else(|| origin.host.clone()),
            origin,
            path,
            tls,
            authorization,
            calls: Semaphore::new(MAX_CALLS),
            connections: Pool::new(MAX_IDLE),
        })
    }

    /// POSTs a JSON document. `limit` is for all of it, from the wait for a slot to the last byte.
    async fn post(&self, body: Bytes, limit: Duration) -> Result<Answer, String> {
        let whole = async {
            let _slot = self.calls.acquire().await;
            let authorization = self.authorization().await?;
            let exchange = self.connections.exchange(
                || self.request(body.clone(), authorization.as_ref()),
                self.origin.connect(&self.tls, &self.server_name),
            );
            let (response, sender) = exchange.await?;
            let answer = Answer::read(response).await?;
            self.connections.keep(sender);
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

    async fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        match &self.authorization {
            Authorization::Nothing => Ok(None),
            Authorization::Header(value) => Ok(Some(value.clone())),
            Authorization::TokenFile(path) => {
                let token = tokio::fs::read_to_string(path).await;
                let token = token.map_err(|error| format!("{}: {error}", path.display()))?;
                bearer(token.trim()).map(Some)
            }
        }
    }

    fn request(
        &self,
        body: Bytes,
        authorization: Option<&HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::post(&self.path)
            .header(HOST, self.origin.authority.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, */*")
            .header(USER_AGENT, AGENT);
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::new(body)).map_err(|error| error.to_string())
    }
}

fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token is not valid in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
}

//! Static pods from a manifest behind a URL, a pod or a list of pods, which is polled. On errors
//! the last state is kept; an invalid item of a list does not affect the others.
//!
//! Current limitations: proxies of the environment are not used.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use axum::http::{Request, Uri};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use kube::{Client, Config};
use longshore_pod::spec;
use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use super::manifest::{self, BadItem, Origin};
use super::{Invalid, ReportInvalid, Source, Update};

/// Timeout of a request with its redirects.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of redirects.
const REDIRECTS: usize = 10;

/// Why the URL could not be read.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0:?} is not an http or https URL")]
    Url(String),
    #[error(transparent)]
    Header(#[from] axum::http::Error),
    #[error("no response: {0}")]
    Request(Box<kube::Error>),
    #[error("response with status {0}")]
    Status(axum::http::StatusCode),
    #[error("response is incomplete or larger than {} bytes", manifest::MAX_BYTES)]
    Body,
    #[error("no response within {DEADLINE:?}")]
    Late,
    #[error("more than {REDIRECTS} redirects")]
    Redirects,
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Request(Box::new(error))
    }
}

/// Poll the manifest behind a URL until the receiver is closed.
pub async fn poll_url(
    url: String,
    header: BTreeMap<String, Vec<String>>,
    node_name: String,
    period: Duration,
    report: ReportInvalid,
    updates: Sender<(Source, Update)>,
) {
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let header = headers(&header, &report, &url);
    let mut polled = PolledUrl { url: url.clone(), header, client: None };
    let mut known: Option<Vec<u8>> = None;
    let mut last_pods: Vec<Pod> = Vec::new();
    let mut failing = false;
    loop {
        ticks.tick().await;
        let content = match timeout(DEADLINE, polled.read()).await.unwrap_or(Err(Error::Late)) {
            Ok(content) => content,
            Err(error) => {
                // Logged once for each outage.
                if !failing {
                    warn!(url, %error, "cannot read pods from the URL, will retry");
                }
                failing = true;
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            info!(url, "reading pods from the URL again");
        }
        if known.as_ref() == Some(&content) {
            continue;
        }
        let first = known.is_none();
        let pods = manifest::pods(&content, Origin::Url(&url), &node_name);
        let empty = content.is_empty();
        known = Some(content);
        let pods = match pods {
            Ok(pods) => {
                let pods = with_known(pods, &last_pods, &report, &url);
                without_duplicates(pods, &report, &url)
            }
            Err(error) => {
                report(&Invalid::at(&url, &error.to_string()));
                // No pod is known that could stay: the source is synced.
                match first && empty {
                    true => Vec::new(),
                    false => continue,
                }
            }
        };
        last_pods.clone_from(&pods);
        if updates.send((Source::Http, Update::Snapshot(pods))).await.is_err() {
            return;
        }
    }
}

/// The pods of a list; an invalid item is replaced by its last known pod.
fn with_known(
    items: Vec<Result<Pod, BadItem>>,
    last_pods: &[Pod],
    report: &ReportInvalid,
    url: &str,
) -> Vec<Pod> {
    let known = |bad: &BadItem| {
        let is_it = |pod: &&Pod| {
            (spec::namespace(pod), spec::name(pod)) == (bad.name.0.as_str(), bad.name.1.as_str())
        };
        last_pods.iter().find(is_it).cloned()
    };
    let pod = |item: Result<Pod, BadItem>| match item {
        Ok(pod) => Some(pod),
        Err(bad) => {
            report(&Invalid::at(url, &bad.error.to_string()));
            known(&bad)
        }
    };
    items.into_iter().filter_map(pod).collect()
}

/// The pods without later ones of the same name.
fn without_duplicates(pods: Vec<Pod>, report: &ReportInvalid, url: &str) -> Vec<Pod> {
    let mut kept: Vec<Pod> = Vec::with_capacity(pods.len());
    for (index, pod) in pods.into_iter().enumerate() {
        match kept.iter().any(|other| super::is_duplicate(other, &pod)) {
            true => report(&Invalid {
                location: url,
                reason: &format!("items[{index}].{}", super::DUPLICATE),
                duplicate: Some((&pod, Source::Http)),
            }),
            false => kept.push(pod),
        }
    }
    kept
}

fn headers(fields: &BTreeMap<String, Vec<String>>, report: &ReportInvalid, url: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in fields {
        for value in values {
            let header = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let added = header.and_then(|(name, value)| headers.try_append(name, value).ok());
            if added.is_none() {
                // The value may be a secret.
                let reason = format!("staticPodURLHeader[{name}]: not an HTTP header");
                report(&Invalid::at(url, &reason));
            }
        }
    }
    headers
}

/// A URL that is polled.
struct PolledUrl {
    url: String,
    header: HeaderMap,
    /// The client of a server, kept for its connection.
    client: Option<(Uri, Client)>,
}

impl PolledUrl {
    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut url = parse(&self.url)?;
        let server = server(&url)?;
        for _ in 0..REDIRECTS {
            let at = self::server(&url)?;
            let path = url.path_and_query().map_or("/", |path| path.as_str());
            let mut request = Request::get(path).body(Body::empty())?;
            // The configured headers are for the configured server only.
            if at == server {
                *request.headers_mut() = self.header.clone();
            }
            let response = self.client(at)?.send(request).await?;
            let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            match location.filter(|_| response.status().is_redirection()) {
                Some(to) => url = resolve(&url, to)?,
                None if response.status().as_u16() == 200 => {
                    let limit = usize::try_from(manifest::MAX_BYTES).unwrap_or(usize::MAX);
                    let body = axum::body::Body::new(response.into_body());
                    let content = to_bytes(body, limit).await.map_err(|_| Error::Body)?;
                    return Ok(content.into());
                }
                None => return Err(Error::Status(response.status())),
            }
        }
        Err(Error::Redirects)
    }

    fn client(&mut self, server: Uri) -> Result<Client, Error> {
        if let Some((_, client)) = self.client.as_ref().filter(|(of, _)| *of == server) {
            return Ok(client.clone());
        }
        let mut config = Config::new(server.clone());
        config.connect_timeout = Some(DEADLINE);
        let client = Client::try_from(config)?;
        self.client = Some((server, client.clone()));
        Ok(client)
    }
}

fn parse(url: &str) -> Result<Uri, Error> {
    url.parse().map_err(|_| Error::Url(url.to_owned()))
}

/// The URL without its path.
fn server(url: &Uri) -> Result<Uri, Error> {
    let wrong = || Error::Url(url.to_string());
    let authority = url.authority().ok_or_else(wrong)?.as_str();
    let scheme = url.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
    parse(&format!("{}://{authority}", scheme.ok_or_else(wrong)?))
}

/// The target of a redirect.
fn resolve(from: &Uri, to: &str) -> Result<Uri, Error> {
    if to.contains("://") {
        return parse(to);
    }
    let base = server(from)?.to_string();
    let base = base.trim_end_matches('/');
    match to.strip_prefix('/') {
        Some(path) => parse(&format!("{base}/{path}")),
        None => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            parse(&format!("{base}{folder}/{to}"))
        }
    }
}

#[cfg(test)]
mod tests;

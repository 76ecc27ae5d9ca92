//! A manifest behind a URL, a pod or a list of pods, looked at from time to time. Whatever goes
//! wrong, what it said last stays; an item of a list that gives no pod leaves the others.
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

use super::manifest::{self, BadItem, Place};
use super::{Complain, Source, Update};

/// How long one look may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often one look may be sent elsewhere.
const REDIRECTS: usize = 10;

/// Why a look at the URL gave nothing.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0:?} is no URL of http or https")]
    Url(String),
    #[error(transparent)]
    Header(#[from] axum::http::Error),
    #[error("no answer: {0}")]
    Request(Box<kube::Error>),
    #[error("answer with status {0}")]
    Status(axum::http::StatusCode),
    #[error("answer without end, or larger than {} bytes", manifest::MAX_BYTES)]
    Body,
    #[error("no answer within {DEADLINE:?}")]
    Late,
    #[error("sent elsewhere more than {REDIRECTS} times")]
    Redirects,
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Request(Box::new(error))
    }
}

/// Follow the manifest behind a URL until nobody listens any more.
pub async fn poll_url(
    url: String,
    header: BTreeMap<String, Vec<String>>,
    node_name: String,
    period: Duration,
    complain: Complain,
    updates: Sender<(Source, Update)>,
) {
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let header = headers(&header, &complain, &url);
    let mut page = Page { url: url.clone(), header, client: None };
    let mut known: Option<Vec<u8>> = None;
    let mut told: Vec<Pod> = Vec::new();
    let mut failing = false;
    loop {
        ticks.tick().await;
        let content = match timeout(DEADLINE, page.read()).await.unwrap_or(Err(Error::Late)) {
            Ok(content) => content,
            Err(error) => {
                // Told once for each outage.
                if !failing {
                    warn!(url, %error, "pods cannot be read from the URL, trying again");
                }
                failing = true;
                continue;
            }
        };
        if std::mem::take(&mut failing) {
            info!(url, "pods are read from the URL again");
        }
        if known.as_ref() == Some(&content) {
            continue;
        }
        let first = known.is_none();
        let pods = manifest::pods(&content, Place::Url(&url), &node_name);
        let empty = content.is_empty();
        known = Some(content);
        let pods = match pods {
            Ok(pods) => {
                let pods = with_known(pods, &told, &complain, &url);
                without_twins(pods, &complain, &url)
            }
            Err(error) => {
                complain(&url, &error.to_string());
                // There is nothing yet that could stay: the node need not wait for more.
                match first && empty {
                    true => Vec::new(),
                    false => continue,
                }
            }
        };
        told.clone_from(&pods);
        if updates.send((Source::Http, Update::Snapshot(pods))).await.is_err() {
            return;
        }
    }
}

/// The pods of a list; in the place of an item that gives none, the pod that it was before.
fn with_known(
    items: Vec<Result<Pod, BadItem>>,
    told: &[Pod],
    complain: &Complain,
    url: &str,
) -> Vec<Pod> {
    let known = |bad: &BadItem| {
        let is_it = |pod: &&Pod| {
            (spec::namespace(pod), spec::name(pod)) == (bad.name.0.as_str(), bad.name.1.as_str())
        };
        told.iter().find(is_it).cloned()
    };
    let pod = |item: Result<Pod, BadItem>| match item {
        Ok(pod) => Some(pod),
        Err(bad) => {
            complain(url, &bad.error.to_string());
            known(&bad)
        }
    };
    items.into_iter().filter_map(pod).collect()
}

/// Of pods with one name, the first.
fn without_twins(pods: Vec<Pod>, complain: &Complain, url: &str) -> Vec<Pod> {
    let mut kept: Vec<Pod> = Vec::with_capacity(pods.len());
    for (index, pod) in pods.into_iter().enumerate() {
        match kept.iter().any(|other| super::is_twin(other, &pod)) {
            true => complain(url, &format!("items[{index}].{}", super::TWIN)),
            false => kept.push(pod),
        }
    }
    kept
}

fn headers(fields: &BTreeMap<String, Vec<String>>, complain: &Complain, url: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in fields {
        for value in values {
            let header = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
            let added = header.and_then(|(name, value)| headers.try_append(name, value).ok());
            if added.is_none() {
                // The value may be a secret.
                complain(url, &format!("staticPodURLHeader[{name}]: no header of HTTP"));
            }
        }
    }
    headers
}

/// A page that is read again and again.
struct Page {
    url: String,
    header: HeaderMap,
    /// The client for a server, kept for its connection.
    client: Option<(Uri, Client)>,
}

impl Page {
    async fn read(&mut self) -> Result<Vec<u8>, Error> {
        let mut url = parse(&self.url)?;
        let server = server(&url)?;
        for _ in 0..REDIRECTS {
            let at = self::server(&url)?;
            let path = url.path_and_query().map_or("/", |path| path.as_str());
            let mut request = Request::get(path).body(Body::empty())?;
            // What it is allowed to know is for the server that was named alone.
            if at == server {
                *request.headers_mut() = self.header.clone();
            }
            let answer = self.client(at)?.send(request).await?;
            let elsewhere = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            match elsewhere.filter(|_| answer.status().is_redirection()) {
                Some(to) => url = resolve(&url, to)?,
                None if answer.status().as_u16() == 200 => {
                    let limit = usize::try_from(manifest::MAX_BYTES).unwrap_or(usize::MAX);
                    let body = axum::body::Body::new(answer.into_body());
                    let content = to_bytes(body, limit).await.map_err(|_| Error::Body)?;
                    return Ok(content.into());
                }
                None => return Err(Error::Status(answer.status())),
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

/// Where a page sends its reader.
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

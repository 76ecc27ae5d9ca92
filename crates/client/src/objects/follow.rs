//! Follows one object by its name: lists it, then watches it from that resourceVersion. Not kube's
//! watcher: a node follows thousands of objects that hardly change, and each should take little
//! memory and no wakeups.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::http;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{Request, WatchEvent};
use kube::{Client, Error as KubeError, Resource};
use longshore_base::retry::Delays;
use tokio::sync::Notify;

use super::cache::{Key, Named};
use super::{Error, REQUEST_TIMEOUT, within};
use crate::{Item, field_selector};

/// Backoff after failures, as upstream's: it doubles.
const INITIAL_BACKOFF: Duration = Duration::from_millis(800);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this has failed, whatever the server says.
const MIN_WATCH: Duration = Duration::from_secs(1);
/// The least timeout of a watch in seconds, plus at most as much jitter, as the server does. It
/// sends nothing while nothing changes, because no bookmarks are requested.
const MIN_WATCH_TIMEOUT: u64 = 1800;
/// How long after its timeout a watch is given up.
const WATCH_GRACE: Duration = Duration::from_secs(60);
/// The longest line: larger than any object with its event.
const MAX_LINE: usize = 8 << 20;
/// The status code for a compacted resourceVersion.
const GONE: u16 = 410;

/// The object: `None` when there is none.
pub(super) type Found<K> = Result<Option<K>, Error>;

/// Reports the object and its changes until it is immutable, or this is dropped; `retry_now` ends a
/// backoff.
pub(super) async fn follow<K: Named>(
    client: Client,
    key: Key,
    retry_now: &Notify,
    report: impl Fn(Found<K>),
) {
    let followed = Followed { client, key };
    let mut delays = Delays::doubling(INITIAL_BACKOFF, MAX_BACKOFF);
    loop {
        match followed.list::<K>().await {
            Ok((item, version)) => {
                delays.reset();
                let found = read(&followed.key, item);
                let immutable = matches!(&found, Ok(Some(object)) if object.immutable());
                report(found);
                if immutable || followed.watch(version, retry_now, &report).await {
                    return;
                }
                backoff(INITIAL_BACKOFF, retry_now).await;
            }
            Err(error) => {
                report(Err(followed.error::<K>(error)));
                backoff(delays.next_delay(), retry_now).await;
            }
        }
    }
}

async fn backoff(delay: Duration, retry_now: &Notify) {
    // Jitter: watches that ended together do not reconnect together.
    let _ = tokio::time::timeout(delay.mul_f64(1.0 + fastrand::f64()), retry_now.notified()).await;
}

struct Followed {
    client: Client,
    key: Key,
}

/// Why a watch ended early.
enum WatchError {
    /// The resourceVersion was compacted.
    Gone,
    Failed(KubeError),
}

impl From<KubeError> for WatchError {
    fn from(error: KubeError) -> Self {
        match error {
            KubeError::Api(status) if status.code == GONE => Self::Gone,
            error => Self::Failed(error),
        }
    }
}

impl Followed {
    fn selector(&self) -> ListParams {
        ListParams::default().fields(&field_selector([("metadata.name", &*self.key.name)]))
    }

    fn error<K: Named>(&self, error: KubeError) -> Error {
        Error::request(self.key.action::<K>(), error)
    }

    /// The object, and the version from which to watch it.
    async fn list<K: Named>(&self) -> Result<(Option<Item<K>>, String), KubeError> {
        let api = K::api(self.client.clone(), &self.key.namespace);
        let list = within(REQUEST_TIMEOUT, api.list(&self.selector())).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let is_it = |item: &Item<K>| item.meta().name.as_deref() == Some(&*self.key.name);
        Ok((list.items.into_iter().find(is_it), version))
    }

    /// Watches from that version, and again when a watch ends. Returns whether the object is
    /// immutable now; otherwise it is to be listed again.
    async fn watch<K: Named>(
        &self,
        mut version: String,
        retry_now: &Notify,
        report: &impl Fn(Found<K>),
    ) -> bool {
        let mut delays = Delays::doubling(INITIAL_BACKOFF, MAX_BACKOFF);
        loop {
            let began = Instant::now();
            match self.watch_once(&mut version, report).await {
                Ok(true) => return true,
                Err(WatchError::Gone) => return false,
                Ok(false) if began.elapsed() > MIN_WATCH => {
                    delays.reset();
                    continue;
                }
                Ok(false) => {}
                Err(WatchError::Failed(error)) => {
                    let (namespace, name) = (&self.key.namespace, &self.key.name);
                    tracing::debug!(%namespace, %name, %error, "watch of a {} ended", K::NAME);
                    if began.elapsed() > MAX_BACKOFF {
                        delays.reset();
                    }
                }
            }
            backoff(delays.next_delay(), retry_now).await;
        }
    }

    /// One watch until its end; updates `version`.
    async fn watch_once<K: Named>(
        &self,
        version: &mut String,
        report: &impl Fn(Found<K>),
    ) -> Result<bool, WatchError> {
        let timeout = MIN_WATCH_TIMEOUT.saturating_add(fastrand::u64(..MIN_WATCH_TIMEOUT));
        let request = self.watch_request::<K>(version, timeout)?;
        let answer = self.client.send(request).await?;
        let status = answer.status();
        let mut body = answer.into_body();
        if !status.is_success() {
            let text = body.collect().await.map_err(service)?.to_bytes();
            return Err(refusal(status.as_u16(), &text).into());
        }
        let lines = async {
            let mut line = Vec::new();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.map_err(service)?.into_data() else { continue };
                for part in split_lines(&data) {
                    line.extend_from_slice(part);
                    if line.len() > MAX_LINE {
                        return Err(WatchError::Gone);
                    }
                    if line.ends_with(b"\n") {
                        let event = serde_json::from_slice(&std::mem::take(&mut line));
                        let event = event.map_err(KubeError::SerdeError)?;
                        if handle_event(&self.key, event, version, report)? {
                            return Ok(true);
                        }
                    }
                }
            }
            Ok(false)
        };
        let over = Duration::from_secs(timeout).saturating_add(WATCH_GRACE);
        // A server that has lost the watch sends nothing, not even its end.
        tokio::time::timeout(over, lines).await.unwrap_or(Ok(false))
    }

    fn watch_request<K: Named>(
        &self,
        version: &str,
        timeout: u64,
    ) -> Result<http::Request<Body>, KubeError> {
        let api = K::api(self.client.clone(), &self.key.namespace);
        let list = Request::new(api.resource_url()).list(&self.selector());
        let (mut parts, _) = list.map_err(KubeError::BuildRequest)?.into_parts();
        let uri =
            format!("{}&watch=true&resourceVersion={version}&timeoutSeconds={timeout}", parts.uri);
        parts.uri = uri.parse().map_err(service)?;
        Ok(http::Request::from_parts(parts, Body::empty()))
    }
}

/// Handles an event; returns whether the object is immutable.
fn handle_event<K: Named>(
    key: &Key,
    event: WatchEvent<Item<K>>,
    version: &mut String,
    report: &impl Fn(Found<K>),
) -> Result<bool, WatchError> {
    let (item, is_there) = match event {
        WatchEvent::Added(item) | WatchEvent::Modified(item) => (item, true),
        WatchEvent::Deleted(item) => (item, false),
        WatchEvent::Bookmark(bookmark) => {
            version.clone_from(&bookmark.metadata.resource_version);
            return Ok(false);
        }
        WatchEvent::Error(status) => return Err(KubeError::Api(status).into()),
    };
    if let Some(newer) = &item.meta().resource_version {
        version.clone_from(newer);
    }
    let found = read(key, is_there.then_some(item));
    let immutable = matches!(&found, Ok(Some(object)) if object.immutable());
    report(found);
    Ok(immutable)
}

/// The object, or an error when it does not decode: its watch goes on all the same.
fn read<K: Named>(key: &Key, item: Option<Item<K>>) -> Found<K> {
    let object = item.map(Item::read).transpose();
    object.map_err(|error| Error::Unreadable {
        action: key.action::<K>(),
        reason: error.to_string().into(),
    })
}

/// The lines of a piece of text, each with its end if that is there.
fn split_lines(data: &Bytes) -> impl Iterator<Item = &[u8]> {
    data.split_inclusive(|byte| *byte == b'\n')
}

fn service(error: impl Into<tower::BoxError>) -> KubeError {
    KubeError::Service(error.into())
}

/// What a server means that refuses a watch.
fn refusal(code: u16, text: &[u8]) -> KubeError {
    let status = serde_json::from_slice(text).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(text).into_owned();
        kube::core::Status::failure(&text, "Failed").with_code(code)
    });
    KubeError::Api(Box::new(status))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use tokio::sync::mpsc;

    use super::*;
    use crate::scripted::Scripted;

    fn secret(version: u32, data: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"s","namespace":"x","uid":"u","resourceVersion":"{version}",
            "managedFields":[{{"time":"9999-12-31T23:59:59Z"}}]}},"data":{data}}}"#
        )
        .replace('\n', "")
    }

    /// Finding 13: an object that cannot be decoded is an error, and its watch goes on.
    #[tokio::test]
    async fn undecodable_object_is_still_watched() {
        let api = Scripted::start(&[secret(1, r#"{"k":"no base64"}"#)], false).await;
        let (sender, mut reports) = mpsc::unbounded_channel();
        let report = |found: Found<Secret>| {
            let text = match found {
                Ok(Some(secret)) => format!("{}", secret.data.unwrap_or_default().len()),
                Ok(None) => "none".to_owned(),
                Err(error) => error.to_string(),
            };
            sender.send(text).unwrap();
        };
        let retry_now = Notify::new();
        let following = follow(api.client(), Key::new("x", "s"), &retry_now, report);
        let script = async {
            let mut next = async || reports.recv().await.unwrap();
            let error = next().await;
            assert!(error.starts_with("failed to get secret x/s: Secret x/s cannot be decoded"));
            api.send("MODIFIED", &secret(2, r#"{"k":"dg=="}"#));
            assert_eq!(next().await, "1");
            api.send("MODIFIED", &secret(3, "7"));
            assert!(next().await.contains("cannot be decoded"));
            api.send("DELETED", &secret(4, "7"));
            assert_eq!(next().await, "none");
            assert_eq!(api.asked(), (1, 1));
        };
        tokio::select! {
            () = following => unreachable!("it is followed for ever"),
            () = script => {}
        }
    }
}

//! Follows one object by its name: reads it, then hears of its changes by a watch that goes on where
//! the last one ended. A loop of its own and not kube's: a node follows thousands of objects that
//! hardly change, and each is to cost little memory and no waking up.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::http;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{Request, WatchEvent};
use kube::{Client, Error as KubeError, Resource};
use tokio::sync::Notify;

use super::cache::{Key, Named};
use super::{Error, REQUEST_TIMEOUT, within};
use crate::{Item, SharesConnection};

/// Pauses after failures, as upstream's: each twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this has failed, whatever the server says.
const SHORT: Duration = Duration::from_secs(1);
/// How long a watch lasts at least, and so much more at random, in seconds: the server's own
/// measure. It sends nothing while nothing changes, for no bookmarks are asked for.
const WATCH: u64 = 1800;
/// How much later than promised a watch may end before it is taken for lost.
const LATE: Duration = Duration::from_secs(60);
/// Longer than any object with its event.
const LONGEST_LINE: usize = 8 << 20;
/// The code of a server that does not know any more what happened since a version.
const GONE: u16 = 410;

/// What is known of the object now: `None` when there is none.
pub(super) type Found<K> = Result<Option<K>, Error>;

/// Tells what becomes of the object until it cannot change any more, or this is dropped; `hurry`
/// ends a pause.
pub(super) async fn follow<K: Named>(
    client: Client,
    key: Key,
    hurry: &Notify,
    tell: impl Fn(Found<K>),
) {
    let followed = Followed { client, key };
    let mut pause = FIRST_PAUSE;
    loop {
        match followed.list::<K>().await {
            Ok((item, version)) => {
                pause = FIRST_PAUSE;
                let found = read(&followed.key, item);
                let lasts = matches!(&found, Ok(Some(object)) if object.immutable());
                tell(found);
                if lasts || followed.watch(version, hurry, &tell).await {
                    return;
                }
                rest(pause, hurry).await;
            }
            Err(error) => {
                tell(Err(followed.error::<K>(error)));
                rest(pause, hurry).await;
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
            }
        }
    }
}

async fn rest(pause: Duration, hurry: &Notify) {
    // Watches that were cut off together do not come back together.
    let _ = tokio::time::timeout(pause.mul_f64(1.0 + random()), hurry.notified()).await;
}

/// A number from 0 to 1.
fn random() -> f64 {
    f64::from(RandomState::new().hash_one(()) as u32) / f64::from(u32::MAX)
}

struct Followed {
    client: Client,
    key: Key,
}

/// Why a watch ended, if not as it should.
enum Cut {
    /// What happened since is not known any more.
    Gone,
    Failed(KubeError),
}

impl From<KubeError> for Cut {
    fn from(error: KubeError) -> Self {
        match error {
            KubeError::Api(status) if status.code == GONE => Self::Gone,
            error => Self::Failed(error),
        }
    }
}

impl Followed {
    fn selector(&self) -> ListParams {
        ListParams::default().fields(&format!("metadata.name={}", escaped(&self.key.name)))
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

    /// Watches from that version, over the ends of single watches. Tells whether the object cannot
    /// change any more; otherwise it is to be listed anew.
    async fn watch<K: Named>(
        &self,
        mut version: String,
        hurry: &Notify,
        tell: &impl Fn(Found<K>),
    ) -> bool {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            match self.watch_once(&mut version, tell).await {
                Ok(true) => return true,
                Err(Cut::Gone) => return false,
                Ok(false) if began.elapsed() > SHORT => {
                    pause = FIRST_PAUSE;
                    continue;
                }
                Ok(false) => {}
                Err(Cut::Failed(error)) => {
                    let (namespace, name) = (&self.key.namespace, &self.key.name);
                    tracing::debug!(%namespace, %name, %error, "watch of a {} was cut off", K::NAME);
                    if began.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                }
            }
            rest(pause, hurry).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// One watch until its end; `version` goes along.
    async fn watch_once<K: Named>(
        &self,
        version: &mut String,
        tell: &impl Fn(Found<K>),
    ) -> Result<bool, Cut> {
        let lasts = WATCH.saturating_add((random() * WATCH as f64) as u64);
        let request = self.watch_request::<K>(version, lasts)?;
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
                    if line.len() > LONGEST_LINE {
                        return Err(Cut::Gone);
                    }
                    if line.ends_with(b"\n") {
                        let event = serde_json::from_slice(&std::mem::take(&mut line));
                        let event = event.map_err(KubeError::SerdeError)?;
                        if take_in(&self.key, event, version, tell)? {
                            return Ok(true);
                        }
                    }
                }
            }
            Ok(false)
        };
        let over = Duration::from_secs(lasts).saturating_add(LATE);
        // A server that forgets a watch sends nothing, not even its end.
        tokio::time::timeout(over, lines).await.unwrap_or(Ok(false))
    }

    fn watch_request<K: Named>(
        &self,
        version: &str,
        lasts: u64,
    ) -> Result<http::Request<Body>, KubeError> {
        let api = K::api(self.client.clone(), &self.key.namespace);
        let list = Request::new(api.resource_url()).list(&self.selector());
        let (mut parts, _) = list.map_err(KubeError::BuildRequest)?.into_parts();
        let uri =
            format!("{}&watch=true&resourceVersion={version}&timeoutSeconds={lasts}", parts.uri);
        parts.uri = uri.parse().map_err(service)?;
        parts.extensions.insert(SharesConnection);
        Ok(http::Request::from_parts(parts, Body::empty()))
    }
}

/// Takes in an event; whether it was the last.
fn take_in<K: Named>(
    key: &Key,
    event: WatchEvent<Item<K>>,
    version: &mut String,
    tell: &impl Fn(Found<K>),
) -> Result<bool, Cut> {
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
    let lasts = matches!(&found, Ok(Some(object)) if object.immutable());
    tell(found);
    Ok(lasts)
}

/// The object, or an error when it does not decode: its watch goes on all the same.
fn read<K: Named>(key: &Key, item: Option<Item<K>>) -> Found<K> {
    let object = item.map(Item::read).transpose();
    object.map_err(|error| Error::Unreadable {
        action: key.action::<K>(),
        reason: error.to_string().into(),
    })
}

/// A value in a field selector.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
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
#[allow(clippy::unwrap_used)]
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
    async fn an_object_that_cannot_be_decoded_is_watched_all_the_same() {
        let api = Scripted::start(&[secret(1, r#"{"k":"no base64"}"#)], false).await;
        let (sender, mut told) = mpsc::unbounded_channel();
        let tell = |found: Found<Secret>| {
            let text = match found {
                Ok(Some(secret)) => format!("{}", secret.data.unwrap_or_default().len()),
                Ok(None) => "none".to_owned(),
                Err(error) => error.to_string(),
            };
            sender.send(text).unwrap();
        };
        let hurry = Notify::new();
        let following = follow(api.client(), Key::new("x", "s"), &hurry, tell);
        let script = async {
            let mut next = async || told.recv().await.unwrap();
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

//! Changes of stored objects for any number of watchers: one watch of the store per resource,
//! fanned out. A short history lets a watcher resume; one that needs more reads the store's own
//! history until it has caught up. One that does not keep up is closed, so memory is bounded by
//! the history and not by the watchers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use longshore_store::{Event, KeyValue, Revision, Store, WatchItem};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::AbortHandle;

use super::{decode_raw, refusal, too_large};
use crate::api_types::Resource;
use crate::schema::protobuf;
use crate::status::StatusError;

/// Bounds of the history of one resource.
const HISTORY_EVENTS: usize = 1024;
const HISTORY_BYTES: usize = 1 << 20;
/// How many changes a watcher may be behind before it is cut off.
const LAG: usize = 512;
/// And how many bytes: what no slow watcher has read yet is kept no longer.
const LAG_BYTES: usize = 16 << 20;

/// One change of one object.
pub(crate) struct Change {
    pub(crate) revision: Revision,
    /// The object after the change; `None` when it was deleted.
    pub(crate) current: Option<Stored>,
    /// The object before the change; `None` when it was created.
    pub(crate) previous: Option<Stored>,
}

impl Change {
    /// About how many bytes there are to decode.
    pub(crate) fn size(&self) -> usize {
        let size = |stored: &Option<Stored>| stored.as_ref().map_or(0, |s| s.raw.value.len());
        size(&self.current).saturating_add(size(&self.previous))
    }
}

/// A stored object, decoded when the first watcher needs it.
pub(crate) struct Stored {
    raw: KeyValue,
    revision: Revision,
    value: OnceLock<Option<Value>>,
    json: OnceLock<Option<Bytes>>,
    protobuf: OnceLock<Option<Bytes>>,
    /// What a webhook made of it, by version.
    converted: Mutex<Vec<(&'static str, Converted)>>,
}

/// An object that a webhook converts when the first watcher needs it.
type Converted = Arc<OnceCell<Arc<Value>>>;

impl Stored {
    fn new(raw: KeyValue, revision: Revision) -> Stored {
        Stored {
            raw,
            revision,
            value: OnceLock::new(),
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
            converted: Mutex::default(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.raw.key
    }

    /// Namespace, empty for a resource of the cluster, and name.
    pub(crate) fn names(&self, resource: &Resource) -> (&str, &str) {
        let (rest, name) = self.raw.key.rsplit_once('/').unwrap_or_default();
        match resource.namespaced {
            true => (rest.rsplit_once('/').map_or("", |(_, namespace)| namespace), name),
            false => ("", name),
        }
    }

    /// The object, with the revision of the change as its resourceVersion. `None`: unreadable.
    pub(crate) fn value(&self) -> Option<&Value> {
        self.value.get_or_init(|| decode_raw(&self.raw.value, self.revision)).as_ref()
    }

    /// The place of the object as a version of its kind shows it that a webhook converts.
    pub(super) fn cell(&self, version: &'static str) -> Converted {
        let mut known = self.converted.lock();
        if let Some((_, cell)) = known.iter().find(|(known, _)| *known == version) {
            return cell.clone();
        }
        let cell = Converted::default();
        known.push((version, cell.clone()));
        cell
    }

    /// What is in that place: see [`super::Registry::convert_stored`].
    pub(crate) fn converted(&self, version: &str) -> Option<Arc<Value>> {
        let known = self.converted.lock();
        known.iter().find(|(known, _)| *known == version)?.1.get().cloned()
    }

    /// The same as JSON text, made once for all watchers.
    pub(crate) fn json(&self) -> Option<Bytes> {
        self.json.get_or_init(|| longshore_json::write(self.value()?).ok().map(Bytes::from)).clone()
    }
}

impl Stored {
    /// The same as protobuf, made once for all watchers. `None`: it is of a custom kind.
    pub(crate) fn protobuf(&self) -> Option<Bytes> {
        let encode = || protobuf::encode_any(self.value()?).map(Bytes::from);
        self.protobuf.get_or_init(encode).clone()
    }
}

impl From<Event> for Change {
    fn from(event: Event) -> Change {
        match event {
            Event::Put { current, previous } => {
                let revision = current.mod_revision;
                Change {
                    revision,
                    current: Some(Stored::new(current, revision)),
                    previous: previous.map(|previous| Stored::new(previous, revision)),
                }
            }
            Event::Delete { previous, revision } => {
                Change { revision, current: None, previous: Some(Stored::new(previous, revision)) }
            }
        }
    }
}

/// The feeds of all resources, each started by its first watcher.
pub(crate) struct Feeds {
    store: Arc<dyn Store>,
    feeds: tokio::sync::Mutex<HashMap<&'static str, Arc<Feed>>>,
}

impl Feeds {
    pub(super) fn new(store: Arc<dyn Store>) -> Feeds {
        Feeds { store, feeds: tokio::sync::Mutex::default() }
    }

    /// All changes of a resource after a revision.
    pub(crate) async fn subscribe(
        &self,
        resource: &Resource,
        after: Revision,
    ) -> Result<Subscription, StatusError> {
        let feed = self.feed(resource).await?;
        let source = match feed.subscribe(after) {
            Some(source) => source,
            None => {
                let prefix = prefix(resource.storage);
                Source::Store(self.store.watch(&prefix, after).await.map_err(refusal)?)
            }
        };
        // Only a revision that no feed has seen can be one from the future.
        if after > feed.lock().newest {
            let newest = self.store.revision().await.map_err(refusal)?;
            if after > newest {
                return Err(too_large(after, newest));
            }
        }
        Ok(Subscription { feed, position: after, source })
    }

    async fn feed(&self, resource: &Resource) -> Result<Arc<Feed>, StatusError> {
        let mut feeds = self.feeds.lock().await;
        if let Some(feed) = feeds.get(resource.storage).filter(|feed| feed.lock().live.is_some()) {
            return Ok(feed.clone());
        }
        let base = self.store.revision().await.map_err(refusal)?;
        let stream = self.store.watch(&prefix(resource.storage), base).await.map_err(refusal)?;
        let feed = Arc::new(Feed::new(base));
        feeds.insert(resource.storage, feed.clone());
        let task = tokio::spawn(follow(feed.clone(), resource.storage, stream));
        feed.lock().task = Some(task.abort_handle());
        Ok(feed)
    }

    /// Ends the feed of a resource that is not served any more, and with it all watches.
    pub(crate) async fn close(&self, resource: &Resource) {
        let Some(feed) = self.feeds.lock().await.remove(resource.storage) else { return };
        let mut state = feed.lock();
        state.live = None;
        if let Some(task) = state.task.take() {
            task.abort();
        }
    }
}

fn prefix(storage: &str) -> String {
    format!("/registry/{storage}/")
}

async fn follow(
    feed: Arc<Feed>,
    storage: &'static str,
    mut stream: BoxStream<'static, longshore_store::Result<WatchItem>>,
) {
    while let Some(item) = stream.next().await {
        match item {
            Ok(WatchItem::Event(event)) => feed.push(event),
            Ok(WatchItem::Progress(revision)) => feed.advance(revision),
            // the server ends
            Err(longshore_store::Error::Closed) => break,
            Err(error) => {
                tracing::warn!(storage, %error, "the watch of the store failed, watchers must resume");
                break;
            }
        }
    }
    feed.lock().live = None;
}

struct Feed {
    state: Mutex<State>,
}

struct State {
    /// Everything after this revision is in `history`.
    base: Revision,
    /// Everything up to this revision has been seen.
    newest: Revision,
    history: VecDeque<Event>,
    bytes: usize,
    /// `None` once the store's watch has ended.
    live: Option<broadcast::Sender<Arc<Unread>>>,
    /// What some watcher has not read yet, the oldest first, with its size.
    unread: VecDeque<(Weak<Unread>, usize)>,
    unread_bytes: usize,
    /// What reads the store.
    task: Option<AbortHandle>,
}

/// A change on its way to the watchers; it is gone once it would have them keep too much.
struct Unread(Mutex<Option<Arc<Change>>>);

impl Unread {
    fn change(&self) -> MutexGuard<'_, Option<Arc<Change>>> {
        self.0.lock()
    }
}

impl State {
    /// Sends a change to the watchers.
    fn send(&mut self, event: Event, size: usize) {
        let Some(live) = &self.live else { return };
        let unread = Arc::new(Unread(Mutex::new(Some(Arc::new(event.into())))));
        self.unread.push_back((Arc::downgrade(&unread), size));
        self.unread_bytes = self.unread_bytes.saturating_add(size);
        // No receivers are not an error.
        let _ = live.send(unread);
        while let Some((oldest, size)) = self.unread.front() {
            if let Some(oldest) = oldest.upgrade() {
                if self.unread_bytes <= LAG_BYTES {
                    return;
                }
                *oldest.change() = None;
            }
            self.unread_bytes = self.unread_bytes.saturating_sub(*size);
            self.unread.pop_front();
        }
    }
}

impl Feed {
    fn new(base: Revision) -> Feed {
        Feed {
            state: Mutex::new(State {
                base,
                newest: base,
                history: VecDeque::new(),
                bytes: 0,
                live: Some(broadcast::Sender::new(LAG)),
                unread: VecDeque::new(),
                unread_bytes: 0,
                task: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn push(&self, event: Event) {
        let mut state = self.lock();
        state.newest = state.newest.max(event.revision());
        let size = size_of_event(&event);
        state.bytes += size;
        state.history.push_back(event.clone());
        while state.history.len() > HISTORY_EVENTS || state.bytes > HISTORY_BYTES {
            let Some(oldest) = state.history.pop_front() else { break };
            state.bytes -= size_of_event(&oldest);
            state.base = oldest.revision();
        }
        state.send(event, size);
    }

    fn advance(&self, revision: Revision) {
        let mut state = self.lock();
        state.newest = state.newest.max(revision);
    }

    /// The history after a revision and what follows, without a gap; `None` when it does not reach so far back.
    fn subscribe(&self, after: Revision) -> Option<Source> {
        let state = self.lock();
        if after < state.base {
            return None;
        }
        let live = state.live.as_ref()?.subscribe();
        let first = state.history.partition_point(|event| event.revision() <= after);
        Some(Source::Feed { backlog: state.history.range(first..).cloned().collect(), live })
    }
}

fn size_of_event(event: &Event) -> usize {
    let size = |stored: &KeyValue| stored.key.len() + stored.value.len() + size_of::<Event>();
    match event {
        Event::Put { current, previous } => size(current) + previous.as_ref().map_or(0, size),
        Event::Delete { previous, .. } => size(previous),
    }
}

/// One watcher's place in the changes of a resource.
pub(crate) struct Subscription {
    feed: Arc<Feed>,
    /// Everything up to here has been yielded.
    position: Revision,
    source: Source,
}

enum Source {
    Feed { backlog: VecDeque<Event>, live: broadcast::Receiver<Arc<Unread>> },
    Store(BoxStream<'static, longshore_store::Result<WatchItem>>),
}

impl Subscription {
    /// The next change. `None`: the watcher was too slow, or the feed broke; it may resume.
    /// May be dropped while waiting without losing a change.
    pub(crate) async fn next(&mut self) -> Result<Option<Arc<Change>>, StatusError> {
        loop {
            let change: Arc<Change> = match &mut self.source {
                Source::Feed { backlog, live } => match backlog.pop_front() {
                    Some(event) => Arc::new(event.into()),
                    None => match live.recv().await {
                        Ok(unread) => match unread.change().clone() {
                            Some(change) => change,
                            None => return Ok(None),
                        },
                        Err(RecvError::Closed | RecvError::Lagged(_)) => return Ok(None),
                    },
                },
                Source::Store(stream) => match stream.next().await {
                    Some(Ok(WatchItem::Event(event))) => Arc::new(event.into()),
                    Some(Ok(WatchItem::Progress(revision))) => {
                        self.position = self.position.max(revision);
                        self.join_feed();
                        continue;
                    }
                    Some(Err(error)) => return Err(refusal(error)),
                    None => return Ok(None),
                },
            };
            if change.revision <= self.position {
                continue;
            }
            self.position = change.revision;
            self.join_feed();
            return Ok(Some(change));
        }
    }

    /// Whether it reads changes by itself, from the store, and not with all others.
    pub(crate) fn is_catching_up(&self) -> bool {
        matches!(self.source, Source::Store(_))
    }

    /// Switches from its own watch to the shared one as soon as that reaches back far enough.
    fn join_feed(&mut self) {
        if matches!(self.source, Source::Store(_))
            && let Some(source) = self.feed.subscribe(self.position)
        {
            self.source = source;
        }
    }

    /// The revision up to which nothing is left to yield, for bookmarks.
    pub(crate) fn progress(&self) -> Revision {
        // Read before looking whether something waits: what is sent later is newer.
        let newest = self.feed.lock().newest;
        match &self.source {
            Source::Feed { backlog, live } if backlog.is_empty() && live.is_empty() => {
                newest.max(self.position)
            }
            _ => self.position,
        }
    }
}

//! The revisioned key-value store behind the apiserver: one trait, two backends
//! (etcd v3 and an embedded single file), one contract for both.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

pub mod backup;
mod embedded;
mod etcd;
mod prefix;
mod pull;
mod transform;

pub use embedded::{Checked, EmbeddedStore, NewFile, check_file, defragment_file};
pub use etcd::{EtcdStore, EtcdTls};
pub use prefix::{PREFIX, with_prefix};
pub use transform::{Transformed, Transformer, with_transformer};

/// A point in the store's history. Every write makes the next one; 0 means "the newest".
pub type Revision = i64;

/// One key as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Full key, such as `/registry/pods/default/web`.
    pub key: Arc<str>,
    /// The stored bytes, opaque to the store.
    pub value: Bytes,
    /// Revision at which the key came into being (again, if it was deleted before).
    pub create_revision: Revision,
    /// Revision of the last write to the key.
    pub mod_revision: Revision,
    /// Whether a write of the same value would store other bytes, such as with a newer key of encryption.
    pub is_stale: bool,
}

/// A page ends with the value with which it has this many bytes, whatever its limit.
pub const PAGE_BYTES: usize = 4 << 20;

/// What to list: all keys with a prefix, in byte order, page by page.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Start at this key (inclusive) instead of at the prefix itself.
    pub start: Option<String>,
    /// At most so many items; 0 is no limit. There are fewer when they are large ([`PAGE_BYTES`]).
    pub limit: usize,
    /// Read as of this revision; 0 is the newest.
    pub revision: Revision,
    /// It is enough to know whether more follow: [`Page::remaining`] may be fewer than there are, but not
    /// 0. To count them takes a time in proportion to their number.
    pub uncounted: bool,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page {
    /// The items in byte order of their keys.
    pub items: Vec<KeyValue>,
    /// Revision that the page was read at.
    pub revision: Revision,
    /// How many items of the prefix follow after this page.
    pub remaining: u64,
}

/// What must be true of a key for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key does not exist.
    Absent,
    /// The key's `mod_revision` is this one.
    Revision(Revision),
}

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The key was created (`previous` is `None`) or changed.
    Put {
        /// The key after the change.
        current: KeyValue,
        /// The key before the change.
        previous: Option<KeyValue>,
    },
    /// The key was deleted.
    Delete {
        /// The key before it was deleted.
        previous: KeyValue,
        /// Revision of the deletion.
        revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    pub fn key(&self) -> &str {
        match self {
            Event::Put { current, .. } => &current.key,
            Event::Delete { previous, .. } => &previous.key,
        }
    }

    /// Revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put { current, .. } => current.mod_revision,
            Event::Delete { revision, .. } => *revision,
        }
    }
}

/// What a watch yields, in revision order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchItem {
    /// A change.
    Event(Event),
    /// Every change up to this revision has been yielded.
    Progress(Revision),
}

/// Why a call to the store failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`Expect`] did not hold; nothing was written.
    #[error("key {key:?} is not as expected")]
    Conflict {
        /// The key that was to be written.
        key: String,
        /// What the store holds under it.
        current: Option<KeyValue>,
    },
    /// The requested revision is compacted.
    #[error("revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can still be read.
        oldest: Revision,
    },
    /// The requested revision does not exist yet.
    #[error("revision {requested} is in the future, the newest is {newest}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The value cannot be brought into its stored form, or back.
    #[error("unable to transform key {key:?}: {reason}")]
    Transform {
        /// The key of the value.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The store has been closed, as it is when its process ends.
    #[error("store: it is closed")]
    Closed,
    /// The backend failed; whether a write happened is unknown.
    #[error("store: {0}")]
    Backend(String),
}

/// The result of a call to the store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A changing set of keys with a history.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// One key, at the newest revision.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>>;
    /// A page of the keys that start with `prefix`.
    async fn list(&self, prefix: &str, options: ListOptions) -> Result<Page>;
    /// Write a key if `expect` holds. With `ttl` the key goes by itself after that time.
    /// Returns when the write is durable.
    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<KeyValue>;
    /// Delete a key if its `mod_revision` is `expect`. Returns what was deleted and the revision of the deletion.
    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)>;
    /// Changes to keys that start with `prefix`, from `after` (exclusive) on; 0 is "from now on",
    /// and then the first item is the [`WatchItem::Progress`] that says where that is.
    /// The consumer drives a watch: one that is not polled blocks nothing and holds no memory.
    /// An error is the last item.
    /// A compacted `after` is [`Error::Compacted`], from the call or as the stream's last item.
    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchItem>>>;
    /// The newest revision.
    async fn revision(&self) -> Result<Revision>;
    /// Forget what is older than `revision` (values at `revision` itself stay readable), and give
    /// its space back. Compacting there once more is no error, further back is [`Error::Compacted`].
    async fn compact(&self, revision: Revision) -> Result<()>;
}

/// Opens the store at `location`: `etcd://host:port[,host:port…]`, `http://host:port[,…]`, or the
/// path of a file, which is made if it is not there.
pub async fn open(location: &str) -> Result<Arc<dyn Store>> {
    let endpoints = location.strip_prefix("etcd://").or_else(|| location.strip_prefix("http://"));
    match (endpoints, location.split_once("://")) {
        (Some(endpoints), _) => Ok(Arc::new(EtcdStore::connect(endpoints.split(',')).await?)),
        (None, Some((scheme, _))) => Err(Error::Backend(format!(
            "{location:?}: scheme {scheme:?} is not known; expected etcd://, http:// or a file path"
        ))),
        (None, None) => Ok(Arc::new(EmbeddedStore::open(location).await?)),
    }
}

//! What lists have read, so that the next one finds its values in memory. What was committed at a
//! revision never changes, so that nothing here is ever out of date.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::{KeyValue, Revision};

/// How much is kept, in bytes. A scan of more does not push out all that is there (S3-FIFO).
const CAPACITY: u64 = 16 << 20;
/// What an entry takes besides key and value.
const OVERHEAD: u64 = 128;
/// Objects of the usual size fill the cache.
const ITEMS: usize = (CAPACITY / 2048) as usize;

#[derive(Clone)]
struct Bytes;

impl Weighter<Revision, KeyValue> for Bytes {
    fn weight(&self, _: &Revision, stored: &KeyValue) -> u64 {
        (stored.key.len() as u64).saturating_add(stored.value.len() as u64).saturating_add(OVERHEAD)
    }
}

pub(super) struct RecordCache(Cache<Revision, KeyValue, Bytes>);

impl Default for RecordCache {
    fn default() -> Self {
        Self(Cache::with_weighter(ITEMS, CAPACITY, Bytes))
    }
}

impl RecordCache {
    pub(super) fn get(&self, revision: Revision) -> Option<KeyValue> {
        self.0.get(&revision)
    }

    pub(super) fn insert(&self, stored: &KeyValue) {
        self.0.insert(stored.mod_revision, stored.clone());
    }
}

//! Sizes of containers' layers, kept for a while.

use std::time::Duration;

use longshore_base::ttl_cache::TtlCache;

/// How long the size of a container's layer holds: the engine walks over its files for it.
const SIZE_AGE: Duration = Duration::from_secs(60);
/// Sizes that are kept.
const SIZES: usize = 4096;

/// LayerSizes of containers' layers, in bytes.
pub(crate) struct LayerSizes(TtlCache<String, u64>);

impl std::fmt::Debug for LayerSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LayerSizes")
    }
}

impl Default for LayerSizes {
    fn default() -> Self {
        Self(TtlCache::new(SIZES))
    }
}

impl LayerSizes {
    pub(crate) fn get(&self, id: &str) -> Option<u64> {
        self.0.get(id)
    }

    pub(crate) fn insert(&self, id: &str, bytes: u64) {
        self.0.insert(id.to_owned(), bytes, SIZE_AGE);
    }
}

//! A bounded cache with TTL, for decisions of others: who a token's user is, what a user may do.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// A bounded map whose entries expire.
pub struct TtlCache<K, V> {
    entries: Mutex<HashMap<K, (Instant, V)>>,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> TtlCache<K, V> {
    /// An empty cache of so many entries at most.
    pub fn new(capacity: usize) -> Self {
        Self { entries: Mutex::default(), capacity }
    }

    /// The value, if it is there and has not expired.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entries = self.entries();
        let (ends, value) = entries.get(key)?;
        (Instant::now() < *ends).then(|| value.clone())
    }

    /// Puts a value in for a time. Of a full cache, what expires first is dropped.
    pub fn insert(&self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        let mut entries = self.entries();
        if entries.len() >= self.capacity {
            entries.retain(|_, (ends, _)| now < *ends);
        }
        if entries.len() >= self.capacity {
            // none has expired: evict the one that expires first
            let first =
                entries.iter().min_by_key(|(_, (ends, _))| *ends).map(|(key, _)| key.clone());
            first.map(|first| entries.remove(&first));
        }
        entries.insert(key, (now.checked_add(ttl).unwrap_or(now), value));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        self.entries.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_cache_expires_and_is_bounded() {
        let cache: TtlCache<String, u32> = TtlCache::new(3);
        cache.insert("gone".into(), 0, Duration::ZERO);
        assert_eq!(cache.get("gone"), None);
        for n in 1..=5u32 {
            cache.insert(n.to_string(), n, Duration::from_secs(100 + u64::from(n)));
        }
        assert_eq!(
            ["1", "2", "3", "4", "5"].map(|key| cache.get(key)),
            [None, None, Some(3), Some(4), Some(5)]
        );
        assert_eq!(cache.entries().len(), 3);
    }
}

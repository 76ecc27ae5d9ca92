//! A map that is cheap to copy and to change: a copy shares all parts that were not changed since.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// Number of parts. A change of a map that is shared copies one of them.
const PARTS: usize = 256;

/// A map in [`PARTS`] parts by hash.
#[derive(Debug, Clone)]
pub(crate) struct Shards<K, V> {
    parts: Vec<Arc<HashMap<K, V>>>,
    hasher: RandomState,
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        let parts = (0..PARTS).map(|_| Arc::new(HashMap::new())).collect();
        Self { parts, hasher: RandomState::new() }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Shards<K, V> {
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.parts.get(self.part(key))?.get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let part = self.part(&key);
        if let Some(part) = self.parts.get_mut(part) {
            Arc::make_mut(part).insert(key, value);
        }
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let part = self.part(key);
        let part = self.parts.get_mut(part).filter(|part| part.contains_key(key))?;
        Arc::make_mut(part).remove(key)
    }

    fn part<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        self.hasher.hash_one(key) as usize % PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_copies_are_independent() {
        let mut map: Shards<String, usize> = Shards::default();
        for number in 0..1000 {
            map.insert(number.to_string(), number);
        }
        let before = map.clone();
        map.insert("7".to_owned(), 0);
        assert_eq!(map.remove("8"), Some(8));
        assert_eq!(map.remove("x"), None);
        assert_eq!((map.get("7"), map.get("8")), (Some(&0), None));
        assert_eq!((before.get("7"), before.get("8")), (Some(&7), Some(&8)));
        let shared = before.parts.iter().zip(&map.parts).filter(|(a, b)| Arc::ptr_eq(a, b));
        assert!(shared.count() >= PARTS - 2);
    }
}

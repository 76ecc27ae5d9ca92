//! The objects of a kind by key, with secondary indexes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::Object;

/// The key of an object: `namespace/name`, or the name alone for an object of the whole cluster.
pub fn key_of<K: Object>(object: &K) -> String {
    let metadata = k8s_openapi::Metadata::metadata(object);
    let name = metadata.name.as_deref().unwrap_or_default();
    object_key(metadata.namespace.as_deref().unwrap_or_default(), name)
}

/// The key of the object of that namespace and name; an empty namespace is that of the cluster.
pub fn object_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { [namespace, "/", name].concat() }
}

/// Namespace and name of a key; the namespace is empty for an object of the whole cluster.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// The values by which an index has an object.
type IndexBy<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// The objects of a kind by key.
///
/// Its informer is the only writer. All look-ups are consistent in themselves; objects are shared and
/// never changed.
pub struct Store<K>(RwLock<Inner<K>>);

struct Inner<K> {
    objects: BTreeMap<Arc<str>, Arc<K>>,
    indexes: HashMap<&'static str, Index<K>>,
}

struct Index<K> {
    by: IndexBy<K>,
    keys: HashMap<String, BTreeSet<Arc<str>>>,
}

impl<K: Object> Index<K> {
    fn insert(&mut self, key: &Arc<str>, object: &K) {
        for value in (self.by)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &str, object: &K) {
        for value in (self.by)(object) {
            if let Some(keys) = self.keys.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.keys.remove(&value);
                }
            }
        }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self(RwLock::new(Inner { objects: BTreeMap::new(), indexes: HashMap::new() }))
    }
}

impl<K: Object> FromIterator<K> for Store<K> {
    /// A store of these objects without an informer, which nothing changes.
    fn from_iter<T: IntoIterator<Item = K>>(objects: T) -> Self {
        let store = Self::default();
        for object in objects {
            store.insert(&crate::key_of(&object), Arc::new(object));
        }
        store
    }
}

impl<K: Object> Store<K> {
    /// The object of that key.
    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// The object of that namespace, empty for an object of the cluster, and name.
    pub fn get_named(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&object_key(namespace, name))
    }

    /// All objects, in the order of their keys.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects of a namespace, in the order of their names.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        // '0' is the character after '/'
        let (from, to) = ([namespace, "/"].concat(), [namespace, "0"].concat());
        let bounds = (Bound::Included(from.as_str()), Bound::Excluded(to.as_str()));
        let inner = self.read();
        inner.objects.range::<str, _>(bounds).map(|(_, object)| object.clone()).collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an index by the values that `by` has for an object, unless there is one of that name.
    /// `by` must depend on the object alone.
    pub fn add_index(
        &self,
        name: &'static str,
        by: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) {
        let mut inner = self.write();
        let Inner { objects, indexes } = &mut *inner;
        indexes.entry(name).or_insert_with(|| {
            let mut index = Index { by: Box::new(by), keys: HashMap::new() };
            objects.iter().for_each(|(key, object)| index.insert(key, object));
            index
        });
    }

    /// The objects that an index has under a value, in the order of their keys; none without the
    /// index.
    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let inner = self.read();
        let keys = inner.indexes.get(name).and_then(|index| index.keys.get(value));
        keys.into_iter().flatten().filter_map(|key| inner.objects.get(key).cloned()).collect()
    }

    /// The keys of all objects.
    pub(crate) fn keys(&self) -> Vec<Arc<str>> {
        self.read().objects.keys().cloned().collect()
    }

    /// Inserts or replaces an object; returns that before.
    pub(crate) fn insert(&self, key: &str, object: Arc<K>) -> Option<Arc<K>> {
        let mut inner = self.write();
        let Inner { objects, indexes } = &mut *inner;
        let shared = match objects.get_key_value(key) {
            Some((shared, _)) => shared.clone(),
            None => Arc::from(key),
        };
        let old = objects.insert(shared.clone(), object.clone());
        for index in indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(key, old);
            }
            index.insert(&shared, &object);
        }
        old
    }

    /// Removes an object; returns it.
    pub(crate) fn remove(&self, key: &str) -> Option<Arc<K>> {
        let mut inner = self.write();
        let old = inner.objects.remove(key)?;
        inner.indexes.values_mut().for_each(|index| index.remove(key, &old));
        Some(old)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner<K>> {
        self.0.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<K>> {
        self.0.write()
    }
}

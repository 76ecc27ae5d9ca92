//! A store whose keys begin with another prefix than [`PREFIX`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::{
    Error, Event, Expect, KeyValue, ListOptions, Page, Result, Revision, Store, WatchItem,
};

/// What the keys of all objects begin with, unless another prefix is chosen.
pub const PREFIX: &str = "/registry";

/// The store, with keys below `prefix` instead of [`PREFIX`].
pub fn with_prefix(store: Arc<dyn Store>, prefix: &str) -> Arc<dyn Store> {
    let prefix = format!("/{}", prefix.trim_matches('/'));
    match prefix.as_str() {
        PREFIX => store,
        _ => Arc::new(Prefixed { store, prefix: Arc::from(prefix) }),
    }
}

struct Prefixed {
    store: Arc<dyn Store>,
    prefix: Arc<str>,
}

/// `key` below `to` instead of `from`; one that is not below `from` stays.
fn moved(key: &str, from: &str, to: &str) -> String {
    match key.strip_prefix(from) {
        Some(rest) => format!("{to}{rest}"),
        None => key.to_owned(),
    }
}

impl Prefixed {
    fn inner(&self, key: &str) -> String {
        moved(key, PREFIX, &self.prefix)
    }

    fn outer(&self, kv: KeyValue) -> KeyValue {
        outer(&self.prefix, kv)
    }

    fn error(&self, error: Error) -> Error {
        outer_error(&self.prefix, error)
    }
}

fn outer(prefix: &str, kv: KeyValue) -> KeyValue {
    KeyValue { key: moved(&kv.key, prefix, PREFIX).into(), ..kv }
}

fn outer_error(prefix: &str, error: Error) -> Error {
    match error {
        Error::Conflict { key, current } => Error::Conflict {
            key: moved(&key, prefix, PREFIX),
            current: current.map(|kv| outer(prefix, kv)),
        },
        error => error,
    }
}

fn outer_item(prefix: &str, item: WatchItem) -> WatchItem {
    match item {
        WatchItem::Event(Event::Put { current, previous }) => WatchItem::Event(Event::Put {
            current: outer(prefix, current),
            previous: previous.map(|kv| outer(prefix, kv)),
        }),
        WatchItem::Event(Event::Delete { previous, revision }) => {
            WatchItem::Event(Event::Delete { previous: outer(prefix, previous), revision })
        }
        progress => progress,
    }
}

#[async_trait]
impl Store for Prefixed {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let found = self.store.get(&self.inner(key)).await;
        found.map(|kv| kv.map(|kv| self.outer(kv))).map_err(|error| self.error(error))
    }

    async fn list(&self, prefix: &str, options: ListOptions) -> Result<Page> {
        let start = options.start.as_deref().map(|start| self.inner(start));
        let options = ListOptions { start, ..options };
        let page = self.store.list(&self.inner(prefix), options).await;
        let page = page.map_err(|error| self.error(error))?;
        Ok(Page { items: page.items.into_iter().map(|kv| self.outer(kv)).collect(), ..page })
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<KeyValue> {
        let written = self.store.put(&self.inner(key), value, expect, ttl).await;
        written.map(|kv| self.outer(kv)).map_err(|error| self.error(error))
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        let deleted = self.store.delete(&self.inner(key), expect).await;
        deleted.map(|(kv, revision)| (self.outer(kv), revision)).map_err(|error| self.error(error))
    }

    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchItem>>> {
        let stream = self.store.watch(&self.inner(prefix), after).await;
        let stream = stream.map_err(|error| self.error(error))?;
        let prefix = self.prefix.clone();
        let outer = move |item: Result<WatchItem>| {
            item.map(|item| outer_item(&prefix, item)).map_err(|error| outer_error(&prefix, error))
        };
        Ok(stream.map(outer).boxed())
    }

    async fn revision(&self) -> Result<Revision> {
        self.store.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        self.store.compact(revision).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::EmbeddedStore;

    #[tokio::test]
    async fn store_prefix_is_that_of_all_keys() {
        let dir = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(dir.path().join("store")).await.unwrap());
        let store = with_prefix(inner.clone(), "/other/");
        let mut watch = store.watch("/registry/pods/", 0).await.unwrap();
        let put = |expect| store.put("/registry/pods/a", Bytes::from_static(b"1"), expect, None);
        let written = put(Expect::Absent).await.unwrap();
        assert_eq!(&*written.key, "/registry/pods/a");
        let Err(Error::Conflict { key, current }) = put(Expect::Absent).await else { panic!() };
        assert_eq!(
            (key.as_str(), &*current.unwrap().key),
            ("/registry/pods/a", "/registry/pods/a")
        );
        assert!(inner.get("/registry/pods/a").await.unwrap().is_none());
        assert!(inner.get("/other/pods/a").await.unwrap().is_some());
        assert_eq!(store.get("/registry/pods/a").await.unwrap().unwrap(), written);
        let options =
            ListOptions { start: Some("/registry/pods/a".into()), ..ListOptions::default() };
        assert_eq!(
            store.list("/registry/pods/", options).await.unwrap().items,
            std::slice::from_ref(&written)
        );
        store.delete("/registry/pods/a", written.mod_revision).await.unwrap();
        let mut keys = Vec::new();
        while keys.len() < 2 {
            if let WatchItem::Event(event) = watch.next().await.unwrap().unwrap() {
                keys.push(event.key().to_owned());
            }
        }
        assert_eq!(keys, ["/registry/pods/a", "/registry/pods/a"]);
        assert!(Arc::ptr_eq(&with_prefix(inner.clone(), "/registry"), &inner));
    }
}

//! A store whose values are stored in another form than they are worked with, such as encrypted.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::{
    Error, Event, Expect, KeyValue, ListOptions, Page, Result, Revision, Store, WatchItem,
};

/// A value in the form in which it is worked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transformed {
    /// The value.
    pub value: Bytes,
    /// Whether it would be stored in another form now.
    pub is_stale: bool,
}

/// Changes the form of values. Errors say why it cannot be done, without the value.
#[async_trait]
pub trait Transformer: Send + Sync + 'static {
    /// Whether a stored value is the value itself, and not stale, as far as that is known at once.
    fn is_plain(&self, key: &str, stored: &[u8]) -> bool;
    /// The form in which a value is stored under a key.
    async fn encode(&self, key: &str, value: Bytes) -> Result<Bytes, String>;
    /// The value that is stored in some form under a key.
    async fn decode(&self, key: &str, stored: Bytes) -> Result<Transformed, String>;
}

/// The store, with values in their stored form below it. Keys are those of `store` itself.
pub fn with_transformer(
    store: Arc<dyn Store>,
    transformer: Arc<dyn Transformer>,
) -> Arc<dyn Store> {
    Arc::new(Transforming { store, transformer })
}

struct Transforming {
    store: Arc<dyn Store>,
    transformer: Arc<dyn Transformer>,
}

fn unreadable(key: &str, reason: String) -> Error {
    Error::Transform { key: key.to_owned(), reason }
}

async fn outer(transformer: &dyn Transformer, stored: KeyValue) -> Result<KeyValue> {
    let KeyValue { key, value, .. } = &stored;
    if transformer.is_plain(key, value) {
        return Ok(stored);
    }
    let Transformed { value, is_stale } =
        transformer.decode(key, value.clone()).await.map_err(|reason| unreadable(key, reason))?;
    Ok(KeyValue { value, is_stale, ..stored })
}

async fn outer_option(
    transformer: &dyn Transformer,
    stored: Option<KeyValue>,
) -> Result<Option<KeyValue>> {
    match stored {
        Some(stored) => outer(transformer, stored).await.map(Some),
        None => Ok(None),
    }
}

async fn outer_item(transformer: &dyn Transformer, item: WatchItem) -> Result<WatchItem> {
    Ok(match item {
        WatchItem::Event(Event::Put { current, previous }) => WatchItem::Event(Event::Put {
            current: outer(transformer, current).await?,
            previous: outer_option(transformer, previous).await?,
        }),
        WatchItem::Event(Event::Delete { previous, revision }) => WatchItem::Event(Event::Delete {
            previous: outer(transformer, previous).await?,
            revision,
        }),
        progress => progress,
    })
}

impl Transforming {
    async fn error(&self, error: Error) -> Error {
        match error {
            Error::Conflict { key, current } => {
                match outer_option(&*self.transformer, current).await {
                    Ok(current) => Error::Conflict { key, current },
                    Err(error) => error,
                }
            }
            error => error,
        }
    }
}

#[async_trait]
impl Store for Transforming {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        outer_option(&*self.transformer, self.store.get(key).await?).await
    }

    async fn list(&self, prefix: &str, options: ListOptions) -> Result<Page> {
        let page = self.store.list(prefix, options).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for stored in page.items {
            items.push(outer(&*self.transformer, stored).await?);
        }
        Ok(Page { items, ..page })
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<KeyValue> {
        let stored = self.transformer.encode(key, value.clone()).await;
        let stored = stored.map_err(|reason| unreadable(key, reason))?;
        match self.store.put(key, stored, expect, ttl).await {
            Ok(written) => Ok(KeyValue { value, ..written }),
            Err(error) => Err(self.error(error).await),
        }
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        match self.store.delete(key, expect).await {
            Ok((deleted, revision)) => Ok((outer(&*self.transformer, deleted).await?, revision)),
            Err(error) => Err(self.error(error).await),
        }
    }

    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchItem>>> {
        let stream = self.store.watch(prefix, after).await?;
        let state = Some((stream, self.transformer.clone()));
        // an error is the last item, as those of the store are
        let next = |state: Option<(
            BoxStream<'static, Result<WatchItem>>,
            Arc<dyn Transformer>,
        )>| async move {
            let (mut stream, transformer) = state?;
            let item = match stream.next().await? {
                Ok(item) => outer_item(&*transformer, item).await,
                Err(error) => Err(error),
            };
            let rest = item.is_ok().then_some((stream, transformer));
            Some((item, rest))
        };
        Ok(futures::stream::unfold(state, next).boxed())
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

    /// Stores a value behind its key; values of another key cannot be read, those with `old:` are stale.
    struct Keyed;

    #[async_trait]
    impl Transformer for Keyed {
        fn is_plain(&self, _: &str, stored: &[u8]) -> bool {
            stored.starts_with(b"plain:")
        }

        async fn encode(&self, key: &str, value: Bytes) -> Result<Bytes, String> {
            Ok([key.as_bytes(), b":", &value].concat().into())
        }

        async fn decode(&self, key: &str, stored: Bytes) -> Result<Transformed, String> {
            let is_stale = stored.starts_with(b"old:");
            let text = stored.strip_prefix(b"old:").unwrap_or(&stored);
            let value = text.strip_prefix(key.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
            let value = value.map(Bytes::copy_from_slice).ok_or("no key")?;
            Ok(Transformed { value, is_stale })
        }
    }

    #[tokio::test]
    async fn store_values_have_another_form_below() {
        let dir = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(dir.path().join("store")).await.unwrap());
        let store = with_transformer(inner.clone(), Arc::new(Keyed));
        let mut watch = store.watch("/a/", 0).await.unwrap();
        let value = |text: &'static str| Bytes::from_static(text.as_bytes());
        let first = store.put("/a/b", value("1"), Expect::Absent, None).await.unwrap();
        assert_eq!((&first.value, first.is_stale), (&value("1"), false));
        assert_eq!(inner.get("/a/b").await.unwrap().unwrap().value, value("/a/b:1"));
        assert_eq!(store.get("/a/b").await.unwrap().unwrap(), first);
        let lost = store.put("/a/b", value("2"), Expect::Absent, None).await;
        let Err(Error::Conflict { current: Some(current), .. }) = lost else { panic!() };
        assert_eq!(current, first);
        let expect = Expect::Revision(first.mod_revision);
        let old = inner.put("/a/b", value("old:/a/b:2"), expect, None).await.unwrap();
        let found = store.list("/a/", ListOptions::default()).await.unwrap().items;
        assert_eq!((&found[0].value, found[0].is_stale), (&value("2"), true));
        let (deleted, _) = store.delete("/a/b", old.mod_revision).await.unwrap();
        assert_eq!(deleted.value, value("2"));
        let mut seen = Vec::new();
        while seen.len() < 3 {
            if let WatchItem::Event(event) = watch.next().await.unwrap().unwrap() {
                seen.push(match event {
                    Event::Put { current, previous } => (Some(current.value), previous),
                    Event::Delete { previous, .. } => (None, Some(previous)),
                });
            }
        }
        let values: Vec<_> = seen.iter().map(|(current, _)| current.clone()).collect();
        assert_eq!(values, [Some(value("1")), Some(value("2")), None]);
        assert_eq!(seen[1].1.as_ref().unwrap().value, value("1"));
    }

    #[tokio::test]
    async fn store_values_that_cannot_be_read_are_errors_and_end_watches() {
        let dir = tempfile::tempdir().unwrap();
        let inner: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(dir.path().join("store")).await.unwrap());
        let store = with_transformer(inner.clone(), Arc::new(Keyed));
        let mut watch = store.watch("/a/", 0).await.unwrap();
        inner.put("/a/b", Bytes::from_static(b"junk"), Expect::Absent, None).await.unwrap();
        inner.put("/b", Bytes::from_static(b"plain:1"), Expect::Absent, None).await.unwrap();
        assert_eq!(store.get("/b").await.unwrap().unwrap().value, "plain:1");
        let error = store.get("/a/b").await.unwrap_err();
        assert_eq!(error.to_string(), "unable to transform key \"/a/b\": no key");
        assert!(store.list("/a/", ListOptions::default()).await.is_err());
        let failed = loop {
            match watch.next().await.unwrap() {
                Ok(WatchItem::Progress(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(failed, Err(Error::Transform { .. })));
        assert!(watch.next().await.is_none());
    }
}

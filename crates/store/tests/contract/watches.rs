//! Watching.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use longshore_store::{Error, Event, Expect, Result, Revision, WatchItem};

use crate::contract::cases::{Shared, create, update};

type Watch = BoxStream<'static, Result<WatchItem>>;

async fn next(watch: &mut Watch) -> Option<Result<WatchItem>> {
    tokio::time::timeout(Duration::from_secs(20), watch.next())
        .await
        .expect("the watch yields nothing")
}

/// The next change; progress is passed over, but must not lie.
async fn event(watch: &mut Watch) -> Event {
    let mut progress = 0;
    loop {
        match next(watch).await.expect("the watch has ended").unwrap() {
            WatchItem::Progress(revision) => progress = revision,
            WatchItem::Event(event) => {
                assert!(event.revision() > progress, "{event:?} after progress {progress}");
                return event;
            }
        }
    }
}

async fn silent(watch: &mut Watch) {
    let until = tokio::time::Instant::now() + Duration::from_millis(300);
    while let Ok(item) = tokio::time::timeout_at(until, watch.next()).await {
        assert!(matches!(item, Some(Ok(WatchItem::Progress(_)))), "unexpected {item:?}");
    }
}

pub(crate) async fn watch_history_then_live(store: Shared) {
    let before = create(&store, "/other/0", "x").await.mod_revision;
    let one = create(&store, "/w/a", "1").await;
    create(&store, "/wx", "a neighbour").await;
    let two = update(&store, &one, "2").await;

    let mut watch = store.watch("/w/", before).await.unwrap();
    let mut late = store.watch("/w/", one.mod_revision).await.unwrap();
    assert_eq!(event(&mut watch).await, Event::Put { current: one.clone(), previous: None });
    let changed = Event::Put { current: two.clone(), previous: Some(one) };
    assert_eq!(event(&mut watch).await, changed);
    assert_eq!(event(&mut late).await, changed, "`after` is exclusive");

    let (deleted, revision) = store.delete("/w/a", two.mod_revision).await.unwrap();
    create(&store, "/other/1", "x").await;
    let three = create(&store, "/w/a", "3").await;
    for watch in [&mut watch, &mut late] {
        assert_eq!(event(watch).await, Event::Delete { previous: deleted.clone(), revision });
        assert_eq!(event(watch).await, Event::Put { current: three.clone(), previous: None });
        silent(watch).await;
    }
    // nothing has happened since, and that is no error
    let newest = store.revision().await.unwrap();
    silent(&mut store.watch("/w/", newest).await.unwrap()).await;
}

pub(crate) async fn watch_from_now_on(store: Shared) {
    create(&store, "/w/before", "x").await;
    let now = store.revision().await.unwrap();
    let mut watch = store.watch("/w/", 0).await.unwrap();
    match next(&mut watch).await {
        Some(Ok(WatchItem::Progress(revision))) => assert_eq!(revision, now),
        other => panic!("a watch from now says first where that is, not {other:?}"),
    }
    let after = create(&store, "/w/after", "x").await;
    assert_eq!(event(&mut watch).await, Event::Put { current: after, previous: None });
    let mut all = store.watch("", 0).await.unwrap();
    let other = create(&store, "elsewhere", "x").await;
    assert_eq!(event(&mut all).await, Event::Put { current: other, previous: None });
    silent(&mut watch).await;
}

pub(crate) async fn watch_of_compacted_history_ends(store: Shared) {
    let mut kv = create(&store, "/w/a", "0").await;
    let first = kv.mod_revision;
    for i in 1..10 {
        kv = update(&store, &kv, &i.to_string()).await;
    }
    let at = kv.mod_revision - 2;
    store.compact(at).await.unwrap();
    let error = match store.watch("/w/", first).await {
        Err(error) => error,
        Ok(mut watch) => {
            let last = next(&mut watch).await.unwrap().unwrap_err();
            assert!(next(&mut watch).await.is_none(), "the error is the last item");
            last
        }
    };
    assert!(matches!(error, Error::Compacted { oldest, .. } if oldest == at), "{error}");
    let mut watch = store.watch("/w/", at).await.unwrap();
    for expected in ["8", "9"] {
        match event(&mut watch).await {
            Event::Put { current, previous: Some(_) } => assert_eq!(current.value, expected),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn watch_slow_consumer_misses_nothing(store: Shared) {
    let start = store.revision().await.unwrap();
    let mut slow = store.watch("/w/", start).await.unwrap();
    // more than anybody buffers
    let value = Bytes::from(vec![b'x'; 100_000]);
    for i in 0..120 {
        store.put(&format!("/w/{i:03}"), value.clone(), Expect::Absent, None).await.unwrap();
    }
    for i in 0..120 {
        let event = event(&mut slow).await;
        assert_eq!((event.key(), event.revision()), (format!("/w/{i:03}").as_str(), start + 1 + i));
    }
    silent(&mut slow).await;
}

pub(crate) async fn watches_agree_under_concurrency(store: Shared) {
    const WRITERS: i64 = 8;
    const WRITES: i64 = 60;
    let start = store.revision().await.unwrap();
    let watcher = |after: Revision, store: Shared| async move {
        let mut watch = store.watch("/w/", after).await.unwrap();
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| *last < start + WRITERS * WRITES) {
            seen.push(event(&mut watch).await.revision());
        }
        seen
    };
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let writing = store.clone();
        tasks.push(tokio::spawn(async move {
            for i in 0..WRITES {
                create(&writing, &format!("/w/{writer}/{i}"), "some value").await;
            }
        }));
    }
    // they join in while it is going on, from the beginning and from where it is
    let mut watchers = Vec::new();
    for _ in 0..6 {
        let now = store.revision().await.unwrap();
        for after in [start, now] {
            watchers.push((after, tokio::spawn(watcher(after, store.clone()))));
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    for (after, watcher) in watchers {
        let expected: Vec<Revision> = (after + 1..=start + WRITERS * WRITES).collect();
        assert_eq!(watcher.await.unwrap(), expected);
    }
}

pub(crate) async fn watch_progress_follows_other_keys(store: Shared) {
    let seen = create(&store, "/w/a", "x").await;
    let mut watch = store.watch("/w/", seen.mod_revision - 1).await.unwrap();
    assert_eq!(event(&mut watch).await.revision(), seen.mod_revision);
    let elsewhere = create(&store, "/other", "x").await.mod_revision;
    loop {
        match next(&mut watch).await {
            Some(Ok(WatchItem::Progress(revision))) if revision == elsewhere => break,
            Some(Ok(WatchItem::Progress(revision))) if revision == seen.mod_revision => {}
            other => panic!("expected progress, got {other:?}"),
        }
    }
    // progress is a promise: what comes next is newer
    let next = create(&store, "/w/b", "x").await;
    assert_eq!(event(&mut watch).await, Event::Put { current: next, previous: None });
}

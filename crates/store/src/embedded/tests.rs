//! What cannot be seen through the store's face: how writes share a transaction, and what the feed
//! keeps.

use std::sync::{Arc, mpsc};

use tokio::sync::{Semaphore, oneshot};

use super::feed::Feed;
use super::file::StoreFile;
use super::transaction::Change;
use super::writer::{Command, Request, Writer};
use super::{READS, Shared};
use crate::{Error, Event, Expect, KeyValue};

#[tokio::test]
async fn embedded_queued_writes_share_one_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let file = StoreFile::open(&folder.path().join("store")).unwrap();
    let shared =
        Arc::new(Shared { file, feed: Feed::new(1), reads: Arc::new(Semaphore::new(READS)) });
    let (requests, received) = mpsc::channel();
    let mut writer = Writer::new(shared.clone(), received);
    let permits = Arc::new(Semaphore::new(100));
    let mut answers = Vec::new();
    for i in 0..100 {
        let (answer, answered) = oneshot::channel();
        let change = Change::Put { value: "x".into(), ttl: None };
        // every fourth is a conflict with the one before: it must not spoil the others
        let command = Command::Write {
            key: format!("/{}", i - i % 4 / 3),
            expect: Expect::Absent,
            change,
            answer,
        };
        let permit = permits.clone().acquire_owned().await.unwrap();
        requests.send(Request { command, permit }).unwrap();
        answers.push(answered);
    }
    let batch = writer.next_batch().unwrap();
    assert_eq!(batch.len(), 100, "all that wait");
    assert!(
        answers.iter_mut().all(|answer| answer.try_recv().is_err()),
        "no answer before the commit"
    );
    writer.commit_batch(batch);
    let mut revision = 1;
    for (i, mut answer) in answers.into_iter().enumerate() {
        match answer.try_recv().unwrap() {
            Ok(event) => {
                revision += 1;
                assert!(i % 4 != 3 && event.revision() == revision, "{i}: {event:?}");
            }
            Err(Error::Conflict { current: Some(_), .. }) => assert_eq!(i % 4, 3),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(permits.available_permits(), 100);
    assert_eq!(shared.feed.tip().newest, 76);
    drop(requests);
    assert!(writer.next_batch().is_none());
}

fn put(revision: i64, size: usize) -> Arc<Event> {
    let key = format!("/{}", if revision % 2 == 0 { "even" } else { "odd" }).into();
    let value = vec![0; size].into();
    let current =
        KeyValue { key, value, create_revision: revision, mod_revision: revision, is_stale: false };
    Arc::new(Event::Put { current, previous: None })
}

#[test]
fn embedded_feed_is_bounded_by_bytes() {
    let feed = Feed::new(10);
    assert!(feed.since("/", 9).is_none(), "before the feed began");
    assert_eq!(feed.since("/", 10), Some((Vec::new(), 10)));
    feed.publish((11..=110).map(|revision| put(revision, 100_000)));
    assert_eq!(feed.tip().newest, 110);
    let reaches_back = (10..=110).filter(|after| feed.since("/", *after).is_some()).count();
    assert!((10..=21).contains(&reaches_back), "100 x 100 kB in 2 MiB: {reaches_back}");
    let (events, up_to) = feed.since("/even", 105).unwrap();
    assert_eq!(events.iter().map(Event::revision).collect::<Vec<_>>(), [106, 108, 110]);
    assert_eq!(up_to, 110);
    // one that is larger than the bound: it leaves no gap
    feed.publish([put(111, 3 << 20)]);
    assert_eq!(feed.tip().newest, 111);
    assert!(feed.since("/", 110).is_none());
    feed.publish([put(112, 1)]);
    assert_eq!(feed.since("/", 111).unwrap().0.len(), 1);
    // a watcher that has read further in the file than the feed has got
    assert_eq!(feed.since("/", 200), Some((Vec::new(), 200)));
    feed.reset(150);
    assert!(feed.since("/", 149).is_none());
    assert_eq!(feed.since("/", 150), Some((Vec::new(), 150)));
}

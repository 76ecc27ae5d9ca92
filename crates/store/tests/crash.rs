//! SIGKILL while writing: a child writes and reports what was acknowledged, the parent kills it at
//! any moment and looks at what is in the file. Again and again on the same file.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use longshore_store::{
    EmbeddedStore, Error, Event, Expect, KeyValue, ListOptions, Revision, Store, WatchItem,
};

const FILE: &str = "LONGSHORE_CRASH_TEST_FILE";
const ROUNDS: usize = 24;
const WRITERS: u64 = 8;

/// Every so manieth write of a key deletes it.
const DELETE_EVERY: u64 = 7;

/// A value that knows whether it is whole: sequence number, padding, checksum over both.
fn value(key: &str, sequence: u64) -> Bytes {
    let size = (sequence * 37 % 3000) as usize;
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.resize(8 + size, sequence as u8);
    let sum = checksum(key, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes.into()
}

fn sequence(key: &str, value: &[u8]) -> u64 {
    let (bytes, sum) = value.split_at(value.len() - 8);
    assert_eq!(checksum(key, bytes).to_le_bytes(), sum, "{key} is half-written");
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn checksum(key: &str, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, bytes).hash(&mut hasher);
    hasher.finish()
}

/// Not a test of its own: what the child does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Ok(path) = std::env::var(FILE) else { return };
    let store = Arc::new(EmbeddedStore::open(&path).await.unwrap());
    say("open");
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        async move {
            let key = format!("/crash/{writer}");
            let mut current = store.get(&key).await.unwrap();
            let mut next = current.as_ref().map_or(0, |kv| sequence(&key, &kv.value)) + 1;
            loop {
                if let Some(kv) = current.take_if(|_| next.is_multiple_of(DELETE_EVERY)) {
                    let (_, revision) = store.delete(&key, kv.mod_revision).await.unwrap();
                    say(&format!("ack {key} {next} {revision}"));
                } else {
                    let expect =
                        current.map_or(Expect::Absent, |kv| Expect::Revision(kv.mod_revision));
                    let kv = store.put(&key, value(&key, next), expect, None).await.unwrap();
                    say(&format!("ack {key} {next} {}", kv.mod_revision));
                    current = Some(kv);
                }
                next += 1;
                if writer == 0 && next.is_multiple_of(40) {
                    let newest = store.revision().await.unwrap();
                    store.compact(newest - 100.min(newest - 1)).await.unwrap();
                }
            }
        }
    });
    let ends: Vec<Result<(), _>> = futures::future::join_all(writers.map(tokio::spawn)).await;
    panic!("a writer ended: {ends:?}");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// The acknowledged writes: by revision, the key and its sequence number.
type Acknowledged = BTreeMap<Revision, (String, u64)>;

/// Runs a child for a random while, kills it, and yields what it reported.
fn run_and_kill(path: &Path) -> Acknowledged {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture"])
        .env(FILE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (opened, open) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut acknowledged = Acknowledged::new();
        for line in output.lines() {
            match line.unwrap().split(' ').collect::<Vec<_>>()[..] {
                ["open"] => opened.send(()).unwrap(),
                ["ack", key, sequence, revision] => {
                    let of = (key.to_owned(), sequence.parse().unwrap());
                    let twice = acknowledged.insert(revision.parse().unwrap(), of);
                    assert_eq!(twice, None, "revision {revision} was given twice");
                }
                // what the test harness says
                _ => {}
            }
        }
        acknowledged
    });
    // some are killed while they open the file, most while they write
    if fastrand::u32(..5) != 0 {
        open.recv().expect("the child opens the file");
    }
    std::thread::sleep(Duration::from_micros(fastrand::u64(..200_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    // a line is one write to the pipe, so it is there whole or not at all
    reader.join().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_acknowledged_writes_survive_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let (mut newest, mut all) = (0, 0);
    let mut latest = Latest::new();
    for round in 0..ROUNDS {
        let acknowledged = run_and_kill(&path);
        all += acknowledged.len();
        if let Some((first, _)) = acknowledged.first_key_value() {
            assert!(*first > newest, "round {round}: revision {first} after {newest}");
        }
        for (revision, (key, sequence)) in &acknowledged {
            latest.insert(key.clone(), (*revision, *sequence));
        }
        if !path.exists() {
            continue;
        }
        let store = EmbeddedStore::open(&path).await.unwrap();
        let now = store.revision().await.unwrap();
        assert!(
            now >= newest && now >= acknowledged.keys().last().copied().unwrap_or(0),
            "round {round}"
        );
        // What was written without being acknowledged is not under way any more either.
        latest = check_latest(&store, &latest).await;
        check_history(&store, &acknowledged).await;
        // the file takes writes as before
        let expect = store
            .get("/round")
            .await
            .unwrap()
            .map_or(Expect::Absent, |kv| Expect::Revision(kv.mod_revision));
        newest = store.put("/round", Bytes::new(), expect, None).await.unwrap().mod_revision;
    }
    assert!(all > ROUNDS * 10, "only {all} writes in {ROUNDS} rounds");
}

/// What each key was last known to hold.
type Latest = BTreeMap<String, (Revision, u64)>;

/// Each key is as it was last acknowledged, or newer: the last write may have been under way. Yields
/// what is there.
async fn check_latest(store: &EmbeddedStore, latest: &Latest) -> Latest {
    let stored = store.list("/crash/", ListOptions::default()).await.unwrap();
    let stored: BTreeMap<_, _> =
        stored.items.into_iter().map(|kv| (kv.key.to_string(), kv)).collect();
    let found = |kv: &KeyValue| (kv.mod_revision, sequence(&kv.key, &kv.value));
    let now = stored.iter().map(|(key, kv)| (key.clone(), found(kv))).collect();
    for (key, (revision, expected)) in latest {
        match stored.get(key) {
            Some(kv) if kv.mod_revision == *revision => {
                assert_eq!(sequence(key, &kv.value), *expected)
            }
            Some(kv) => assert!(
                kv.mod_revision > *revision,
                "{key} went back to {} from {revision}",
                kv.mod_revision
            ),
            // deleted by that write, or by the one under way after it
            None => assert!(
                expected % DELETE_EVERY == 0 || (expected + 1) % DELETE_EVERY == 0,
                "{key} is lost"
            ),
        }
    }
    now
}

/// The history that is kept has no gap, and each acknowledged write at its revision.
async fn check_history(store: &EmbeddedStore, acknowledged: &Acknowledged) {
    let newest = store.revision().await.unwrap();
    let oldest = match store.list("/", ListOptions { revision: 1, ..ListOptions::default() }).await
    {
        Ok(_) => 1,
        Err(Error::Compacted { oldest, .. }) => oldest,
        Err(error) => panic!("{error}"),
    };
    let mut history = store.watch("", oldest).await.unwrap();
    for revision in oldest + 1..=newest {
        let event = match history.next().await.unwrap().unwrap() {
            WatchItem::Event(event) => event,
            WatchItem::Progress(_) => panic!("progress before the history was complete"),
        };
        assert_eq!(event.revision(), revision, "a gap");
        if let Event::Put { current, .. } = &event
            && current.key.starts_with("/crash/")
        {
            sequence(&current.key, &current.value);
        }
        if let Some((key, written)) = acknowledged.get(&revision) {
            match &event {
                Event::Put { current, .. } => {
                    assert_eq!(
                        (&*current.key, sequence(key, &current.value)),
                        (key.as_str(), *written)
                    );
                }
                Event::Delete { previous, .. } => {
                    assert_eq!(
                        (&*previous.key, sequence(key, &previous.value) + 1),
                        (key.as_str(), *written)
                    );
                }
            }
        }
    }
    assert!(history.next().now_or_never().is_none());
}

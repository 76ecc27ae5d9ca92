//! Clients create, update, read, list and delete a few objects through servers that are killed meanwhile, and
//! what they are answered must be possible if there was one copy of everything. `LINEARIZABILITY_ROUNDS`
//! has more servers killed.

use crate::common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::history::{
    Change, History, Input, Listed, Operation, Output, Time, Watched, is_linearizable,
};
use common::upstream::Etcd;
use common::{Client, Daemon};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const KEYS: usize = 3;
const CLIENTS: usize = 6;
/// The key that is written last.
const END: usize = KEYS;
/// A request without an answer by then has an unknown outcome.
const TIMEOUT: Duration = Duration::from_secs(10);

fn name(key: usize) -> String {
    format!("key-{key}")
}

fn key_of(object: &Value) -> Option<usize> {
    object["metadata"]["name"].as_str()?.strip_prefix("key-")?.parse().ok()
}

fn value_of(object: &Value) -> u32 {
    object["data"]["v"].as_str().unwrap().parse().unwrap()
}

fn revision_of(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A small generator of numbers: which servers and operations are chosen.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// The clients of the servers that are there now; `None` for one that is down.
struct Load {
    servers: Mutex<Vec<Option<Client>>>,
    began: Instant,
    values: AtomicU32,
    ends: AtomicBool,
    history: Mutex<History>,
}

impl Load {
    fn now(&self) -> Time {
        self.began.elapsed().as_nanos() as Time
    }

    async fn any_server(&self, random: &mut Random) -> Client {
        loop {
            let servers: Vec<Client> = self.servers.lock().iter().flatten().cloned().collect();
            if !servers.is_empty() {
                return servers[random.below(servers.len())].clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The answer to a request, if there is one.
    async fn ask(client: &Client, method: &str, path: &str, body: Value) -> Option<(u16, Value)> {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(bytes))
            .unwrap();
        let answer = async {
            let response = client.0.send(request).await.ok()?;
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            Some((code, serde_json::from_slice(&body).ok()?))
        };
        tokio::time::timeout(TIMEOUT, answer).await.ok().flatten()
    }

    /// Waits until so many more writes are acknowledged.
    async fn until_written(&self, more: usize) {
        let count = || {
            let history = self.history.lock();
            let is_write = |it: &&Operation| it.output == Output::Done;
            history.operations.iter().filter(is_write).count()
        };
        let enough = count() + more;
        common::eventually("the clients write", || async { count() >= enough }).await;
    }

    /// One operation of a client, which knows what it has seen of each key.
    async fn step(
        &self,
        client: usize,
        random: &mut Random,
        known: &mut HashMap<usize, (i64, u32)>,
    ) {
        let server = self.any_server(random).await;
        let key = random.below(KEYS);
        let path = format!("{CONFIG_MAPS}/{}", name(key));
        let object = |value: u32, version: Option<i64>| {
            let mut object = common::config_map(&name(key), json!({"v": value.to_string()}));
            if let Some(version) = version {
                object["metadata"]["resourceVersion"] = version.to_string().into();
            }
            object
        };
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let (input, method, path, body) = match (random.below(10), known.get(&key)) {
            (0..4, Some((version, before))) => {
                (Input::Update(*before, value), "PUT", path, object(value, Some(*version)))
            }
            (0..5, _) => {
                (Input::Create(value), "POST", CONFIG_MAPS.to_owned(), object(value, None))
            }
            (5, _) => (Input::Delete, "DELETE", path, Value::Null),
            (6 | 7, _) => return self.list(client, &server, known).await,
            _ => (Input::Read, "GET", path, Value::Null),
        };
        let called = self.now();
        let answer = Load::ask(&server, method, &path, body).await;
        let returned = self.now();
        let output = match (input, &answer) {
            (Input::Read, Some((200, object))) => Output::Found(Some(value_of(object))),
            (Input::Read, Some((404, _))) => Output::Found(None),
            (_, Some((200 | 201, _))) => Output::Done,
            (Input::Create(_) | Input::Update(..), Some((409, _))) => Output::Conflict,
            (_, Some((404, _))) => Output::NotFound,
            (_, Some((400..500, body))) => panic!("{method} {path}: {body}"),
            _ => Output::Unknown,
        };
        let mut history = self.history.lock();
        if let (true, Some((200 | 201, object))) = (input != Input::Delete, &answer) {
            let seen = (revision_of(object), value_of(object));
            known.insert(key, seen);
            history.revisions.insert(seen.1, seen.0);
        }
        history.operations.push(Operation { client, key, called, returned, input, output });
    }

    /// A list is a read of every key. It is never older than what the client has seen.
    async fn list(&self, client: usize, server: &Client, known: &mut HashMap<usize, (i64, u32)>) {
        let least = known.values().map(|(revision, _)| *revision).max().unwrap_or(1);
        let path =
            format!("{CONFIG_MAPS}?resourceVersion={least}&resourceVersionMatch=NotOlderThan");
        let called = self.now();
        let Some((200, list)) = Load::ask(server, "GET", &path, Value::Null).await else { return };
        let returned = self.now();
        let revision = revision_of(&list);
        assert!(revision >= least, "a list at {revision} after {least} was seen");
        let mut items = BTreeMap::new();
        let mut history = self.history.lock();
        for object in list["items"].as_array().unwrap() {
            if let Some(key) = key_of(object) {
                items.insert(key, value_of(object));
                known.insert(key, (revision_of(object), value_of(object)));
                history.revisions.insert(value_of(object), revision_of(object));
            }
        }
        for key in 0..KEYS {
            let output = Output::Found(items.get(&key).copied());
            let input = Input::Read;
            history.operations.push(Operation { client, key, called, returned, input, output });
        }
        history.lists.push(Listed { revision, items });
    }

    /// Watches from a revision until the last key is written, at another server whenever one ends.
    async fn watch(&self, after: i64, seed: u64) -> Watched {
        let mut watched = Watched { after, changes: Vec::new() };
        let (mut position, mut random) = (after, Random(seed));
        loop {
            let server = self.any_server(&mut random).await;
            let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={position}");
            let request = hyper::Request::get(path).body(Body::empty()).unwrap();
            let mut buffer = Vec::new();
            if let Ok(Ok(response)) = tokio::time::timeout(TIMEOUT, server.0.send(request)).await {
                let code = response.status().as_u16();
                // One is refused while etcd is down.
                assert!(code == 200 || code >= 500, "a watch is refused: {code}");
                let mut body = response.into_body();
                while code == 200
                    && let Some(Ok(frame)) = body.frame().await
                {
                    buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
                    while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = buffer.drain(..=end).collect();
                        let event: Value = serde_json::from_slice(&line).unwrap();
                        let object = &event["object"];
                        if event["type"] == "ERROR" {
                            assert!(object["code"].as_u64() >= Some(500), "{event}");
                            continue;
                        }
                        position = revision_of(object);
                        let Some(key) = key_of(object) else { continue };
                        let value = (event["type"] != "DELETED").then(|| value_of(object));
                        watched.changes.push(Change { revision: position, key, value });
                        if key == END {
                            return watched;
                        }
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// How many times a server is killed.
fn rounds() -> usize {
    let rounds = std::env::var("LINEARIZABILITY_ROUNDS").ok();
    rounds.map_or(2, |rounds| rounds.parse().unwrap())
}

/// Runs clients against servers that are started with these flags, and kills one after the other.
/// `between` does something else each round.
async fn run(flags: Vec<Vec<String>>, mut between: impl AsyncFnMut(usize)) {
    let start = |flags: &[String]| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Daemon::start(&flags)
    };
    let mut daemons: Vec<Option<Daemon>> =
        flags.iter().map(|flags| Some(tokio::task::block_in_place(|| start(flags)))).collect();
    let mut clients = Vec::new();
    for daemon in daemons.iter().flatten() {
        clients.push(Some(daemon.client().await));
    }
    let (_, list) = clients[0].as_ref().unwrap().get(CONFIG_MAPS).await;
    let after = revision_of(&list);
    let load = Arc::new(Load {
        servers: Mutex::new(clients),
        began: Instant::now(),
        values: AtomicU32::new(1),
        ends: AtomicBool::new(false),
        history: Mutex::default(),
    });
    let watches: Vec<_> = (0..3)
        .map(|seed| {
            let load = load.clone();
            tokio::spawn(async move { load.watch(after, seed).await })
        })
        .collect();
    let work: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let load = load.clone();
            tokio::spawn(async move {
                let (mut random, mut known) = (Random(client as u64 + 17), HashMap::new());
                while !load.ends.load(Ordering::Relaxed) {
                    load.step(client, &mut random, &mut known).await;
                    tokio::time::sleep(Duration::from_millis(2 + random.below(10) as u64)).await;
                }
            })
        })
        .collect();
    for round in 0..rounds() {
        load.until_written(10).await;
        let at = round % daemons.len();
        let mut daemon = daemons[at].take().unwrap();
        daemon.child.kill().unwrap();
        // Clients go on to ask it for a moment.
        tokio::time::sleep(Duration::from_millis(50)).await;
        load.servers.lock()[at] = None;
        between(round).await;
        let flags = flags[at].clone();
        let restarted = tokio::task::spawn_blocking(move || {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            daemon.restart(&flags)
        });
        let daemon = restarted.await.unwrap();
        let client = daemon.client().await;
        load.servers.lock()[at] = Some(client);
        daemons[at] = Some(daemon);
    }
    load.until_written(10).await;
    load.ends.store(true, Ordering::Relaxed);
    for work in work {
        work.await.unwrap();
    }
    let last = load.values.fetch_add(1, Ordering::Relaxed);
    let end = common::config_map(&name(END), json!({"v": last.to_string()}));
    common::eventually("the last key is written", || async {
        let server = load.any_server(&mut Random(1)).await;
        let answer = Load::ask(&server, "POST", CONFIG_MAPS, end.clone()).await;
        // Also where an earlier try was carried out and its answer was lost.
        matches!(answer, Some((201 | 409, _)))
    })
    .await;
    let log = load.watch(after, 99).await.changes;
    let mut history = std::mem::take(&mut *load.history.lock());
    for watch in watches {
        history.watches.push(watch.await.unwrap());
    }
    let done = history.operations.iter().filter(|it| it.output == Output::Done).count();
    println!("{} operations, {done} writes, {} changes", history.operations.len(), log.len());
    if let Err(error) = history.check(&log) {
        panic!("{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn linearizability_of_three_servers_that_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new("/usr/bin/etcd"), dir.path()).await;
    etcd.ready().await;
    let flags = (1..=3)
        .map(|server| {
            vec![
                format!("--etcd-servers={}", etcd.url),
                format!("--advertise-address=192.0.2.{server}"),
            ]
        })
        .collect();
    run(flags, async |_| ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn linearizability_of_an_embedded_store_that_is_killed() {
    run(vec![Vec::new()], async |_| ()).await;
}

/// With more rounds, etcd is killed too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn linearizability_of_an_etcd_that_is_killed() {
    if rounds() <= 2 {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(Path::new("/usr/bin/etcd"), dir.path()).await;
    etcd.ready().await;
    let server = |server: u8| {
        vec![
            format!("--etcd-servers={}", etcd.url),
            format!("--advertise-address=192.0.2.{server}"),
        ]
    };
    let flags = vec![server(1), server(2)];
    run(flags, async |_| {
        etcd.restart(Path::new("/usr/bin/etcd"), dir.path());
        etcd.ready().await;
    })
    .await;
}

fn operation(
    key: usize,
    (called, returned): (Time, Time),
    input: Input,
    output: Output,
) -> Operation {
    Operation { client: 0, key, called, returned, input, output }
}

/// What one key can and cannot have done.
#[test]
fn linearizability_checker_knows_bad_histories() {
    let op = |times, input, output| operation(0, times, input, output);
    let created = op((0, 1), Input::Create(1), Output::Done);
    let unknown = op((2, 3), Input::Create(2), Output::Unknown);
    let read = |times, found| op(times, Input::Read, Output::Found(found));
    for (what, expected, operations) in [
        ("nothing", true, vec![]),
        ("a read of what is written", true, vec![created.clone(), read((2, 3), Some(1))]),
        ("a stale read", false, vec![created.clone(), read((2, 3), None)]),
        ("a read at the same time", true, vec![created.clone(), read((0, 3), None)]),
        ("a value from nowhere", false, vec![created.clone(), read((2, 3), Some(7))]),
        (
            "a read before the write",
            false,
            vec![read((0, 1), Some(1)), op((2, 3), Input::Create(1), Output::Done)],
        ),
        ("two creates", false, vec![created.clone(), op((2, 3), Input::Create(2), Output::Done)]),
        (
            "a create that is refused",
            true,
            vec![created.clone(), op((2, 3), Input::Create(2), Output::Conflict)],
        ),
        (
            "a create that is refused for nothing",
            false,
            vec![op((2, 3), Input::Create(2), Output::Conflict)],
        ),
        (
            "a lost update",
            false,
            vec![
                created.clone(),
                op((2, 5), Input::Update(1, 2), Output::Done),
                op((3, 6), Input::Update(1, 3), Output::Done),
            ],
        ),
        (
            "one of two updates",
            true,
            vec![
                created.clone(),
                op((2, 5), Input::Update(1, 2), Output::Done),
                op((3, 6), Input::Update(1, 3), Output::Conflict),
                read((7, 8), Some(2)),
            ],
        ),
        (
            "reads that go back",
            false,
            vec![
                created.clone(),
                op((2, 9), Input::Update(1, 2), Output::Done),
                read((3, 4), Some(2)),
                read((5, 6), Some(1)),
            ],
        ),
        (
            "a delete that did nothing",
            false,
            vec![created.clone(), op((2, 3), Input::Delete, Output::Done), read((4, 5), Some(1))],
        ),
        (
            "a delete of nothing",
            false,
            vec![created.clone(), op((2, 3), Input::Delete, Output::NotFound)],
        ),
        ("an unknown write that is seen", true, vec![unknown.clone(), read((9, 10), Some(2))]),
        ("one that is not", true, vec![unknown.clone(), read((9, 10), None)]),
        (
            "one that is seen late",
            true,
            vec![unknown.clone(), read((4, 5), None), read((9, 10), Some(2))],
        ),
        (
            "one that is seen and not",
            false,
            vec![unknown.clone(), read((4, 5), Some(2)), read((9, 10), None)],
        ),
        ("one that is seen before it was called", false, vec![read((0, 1), Some(2)), unknown]),
    ] {
        assert_eq!(is_linearizable(&operations), expected, "{what}");
    }
}

#[test]
fn linearizability_checker_knows_bad_watches_and_lists() {
    let change = |revision, key, value| Change { revision, key, value };
    let log = vec![change(2, 0, Some(1)), change(3, 1, Some(2)), change(5, 0, None)];
    let watched = |after, changes: &[Change]| Watched { after, changes: changes.to_vec() };
    let list = |revision, items: &[(usize, u32)]| Listed {
        revision,
        items: items.iter().copied().collect(),
    };
    let history = |watches, lists, revisions: &[(u32, i64)]| History {
        operations: vec![operation(0, (0, 1), Input::Create(1), Output::Done)],
        watches,
        lists,
        revisions: revisions.iter().copied().collect(),
    };
    let good = [
        history(vec![watched(0, &log), watched(2, &log[1..]), watched(0, &log[..2])], vec![], &[]),
        history(
            vec![],
            vec![list(1, &[]), list(4, &[(0, 1), (1, 2)]), list(5, &[(1, 2)])],
            &[(2, 3)],
        ),
    ];
    for history in good {
        assert_eq!(history.check(&log), Ok(()));
    }
    let twice = [log[0].clone(), log[0].clone()];
    let swapped = [log[1].clone(), log[0].clone()];
    let gap = [log[0].clone(), log[2].clone()];
    for (what, history) in [
        ("out of order", history(vec![watched(0, &twice)], vec![], &[])),
        ("out of order", history(vec![watched(0, &swapped)], vec![], &[])),
        ("saw 2 changes and not 3", history(vec![watched(0, &gap)], vec![], &[])),
        ("saw 3 changes and not 2", history(vec![watched(2, &log)], vec![], &[])),
        ("a list is not what there was", history(vec![], vec![list(3, &[(0, 1)])], &[])),
        ("a list is not what there was", history(vec![], vec![list(5, &[(0, 1), (1, 2)])], &[])),
        ("value 2 was seen at 4", history(vec![], vec![], &[(2, 4)])),
    ] {
        let error = history.check(&log).unwrap_err();
        assert!(error.contains(what), "{what}: {error}");
    }
    let mut lost = history(vec![], vec![], &[]);
    lost.operations.push(operation(1, (0, 1), Input::Create(9), Output::Done));
    assert!(lost.check(&log).unwrap_err().contains("an acknowledged write is lost"));
    let swapped = [log[1].clone(), log[0].clone()];
    assert!(History::default().check(&swapped).unwrap_err().contains("the log is out of order"));
}

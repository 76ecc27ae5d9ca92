use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::Status;
use longshore_client::scripted::{Scripted, bad_objects};
use proptest::prelude::*;
use tokio::time::{Instant, advance, sleep};
use tokio_util::sync::CancellationToken;

use super::*;

fn config_map(name: &str, uid: &str, version: u64, value: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"x","uid":"{uid}","resourceVersion":"{version}"}},"data":{{"v":"{value}"}}}}"#
    )
}

fn by_value(map: &ConfigMap) -> Vec<String> {
    map.data.iter().flat_map(|data| data.values().cloned()).collect()
}

/// Waits for a condition that other tasks bring about.
async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(1)).await;
    }
}

fn recorded(informer: &Informer<ConfigMap>) -> Arc<Mutex<Vec<String>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    informer.subscribe({
        let log = log.clone();
        let informer = informer.clone();
        move |event| {
            let (word, object) = match event {
                Event::Added(object) => ("+", object),
                Event::Updated { new, .. } => ("*", new),
                Event::Deleted(object) => ("-", object),
            };
            let stored = informer.store().get(&key_of(&**object));
            assert_eq!(word == "-", stored.is_none(), "the store changes first");
            let value = by_value(object).concat();
            let name = object.metadata.name.clone().unwrap_or_default();
            log.lock().unwrap().push(format!("{word}{name}={value}"));
        }
    });
    log
}

#[tokio::test]
async fn informer_knows_what_was_written_before_the_watch_reports_it() {
    let server = Scripted::start(&[config_map("a", "1", 10, "1")], false).await;
    let informer = Informer::<ConfigMap>::start(&server.client(), Options::default());
    informer.synced().await;
    let log = recorded(&informer);
    log.lock().unwrap().clear();
    let written = |name: &str, uid: &str, version, value: &str| {
        let object = serde_json::from_str(&config_map(name, uid, version, value)).unwrap();
        informer.observe(object);
    };
    written("a", "1", 103, "3");
    written("a", "1", 102, "older");
    written("a", "2", 104, "of another life");
    written("b", "3", 105, "not there");
    server.send("MODIFIED", &config_map("a", "1", 101, "2"));
    server.send("MODIFIED", &config_map("a", "1", 103, "3"));
    server.send("MODIFIED", &config_map("a", "1", 106, "4"));
    until(|| log.lock().unwrap().len() >= 2).await;
    assert_eq!(*log.lock().unwrap(), ["*a=3", "*a=4"]);
    server.send("DELETED", &config_map("a", "1", 107, "4"));
    until(|| informer.store().is_empty()).await;
    written("a", "1", 108, "late answer");
    assert!(informer.store().is_empty());
}

#[tokio::test]
async fn informer_stores_and_delivers_changes_in_order() {
    let mut items = bad_objects("\"data\":{\"v\":\"0\"}");
    items.push(config_map("a", "1", 10, "1"));
    let server = Scripted::start(&items, false).await;
    let informer = Informer::<ConfigMap>::start(&server.client(), Options::default());
    informer.synced().await;
    informer.store().add_index("value", by_value);
    let log = recorded(&informer);
    let good = informer.store().len();
    assert!((1..7).contains(&good), "objects that do not decode are set aside: {good}");
    log.lock().unwrap().clear();
    server.send("MODIFIED", &config_map("a", "1", 101, "2"));
    server.send("ADDED", &config_map("b", "2", 102, "2"));
    server.send(
        "MODIFIED",
        r#"{"metadata":{"name":"b","namespace":"x","resourceVersion":"103"},"data":7}"#,
    );
    server.send("DELETED", &config_map("a", "1", 104, "2"));
    server.send("MODIFIED", &config_map("b", "3", 105, "3"));
    until(|| log.lock().unwrap().len() >= 5).await;
    assert_eq!(*log.lock().unwrap(), ["*a=2", "+b=2", "-a=2", "-b=2", "+b=3"]);
    assert!(informer.store().by_index("value", "2").is_empty());
    assert_eq!(informer.store().by_index("value", "3").len(), 1);
    assert_eq!(informer.store().list_namespace("x").len(), good);
    assert!(informer.store().list_namespace("").is_empty());
    let late = recorded(&informer);
    assert_eq!(late.lock().unwrap().len(), good, "a late subscriber gets all that is present");
}

#[tokio::test]
async fn informer_is_shared_by_kind() {
    let server = Scripted::start(&[config_map("a", "1", 10, "1")], false).await;
    let informers = Informers::new(server.client());
    let (one, two) = (informers.get::<ConfigMap>(), informers.get::<ConfigMap>());
    one.synced().await;
    assert_eq!(two.store().len(), 1);
    assert_eq!(server.asked().0, 1);
}

fn queue() -> WorkQueue<String> {
    WorkQueue::new("test", &QueueMetrics::unregistered())
}

#[tokio::test(start_paused = true)]
async fn workqueue_has_an_item_once() {
    let queue = queue();
    queue.add("a".into());
    queue.add("a".into());
    queue.add("b".into());
    assert_eq!(queue.len(), 2);
    let a = queue.get().await.unwrap();
    queue.add("a".into());
    assert_eq!(queue.len(), 1, "no two workers have the same item");
    queue.done(&a);
    assert_eq!(queue.get().await.unwrap(), "b");
    assert_eq!(queue.get().await.unwrap(), "a");
    queue.shutdown();
    queue.add("c".into());
    assert_eq!(queue.get().await, None);
}

#[tokio::test(start_paused = true)]
async fn workqueue_delays_and_backs_off() {
    let queue = queue();
    let start = Instant::now();
    queue.add_after("late".into(), Duration::from_secs(9));
    queue.add_after("a".into(), Duration::from_secs(5));
    queue.add_after("a".into(), Duration::from_secs(2));
    queue.add_after("a".into(), Duration::from_secs(7));
    assert_eq!(queue.get().await.unwrap(), "a");
    assert_eq!(start.elapsed().as_secs(), 2);
    queue.done(&"a".to_owned());
    assert_eq!(queue.get().await.unwrap(), "late");
    assert_eq!(start.elapsed().as_secs(), 9, "an item is delayed once");
    for (times, expected) in [5, 10, 20, 40].into_iter().enumerate() {
        let start = Instant::now();
        assert_eq!(queue.failures(&"f".to_owned()), u32::try_from(times).unwrap());
        queue.add_rate_limited("f".into());
        queue.get().await.unwrap();
        queue.done(&"f".to_owned());
        let waited = start.elapsed().as_millis();
        assert!((expected..=expected + 1).contains(&waited), "{waited}");
    }
    queue.forget(&"f".to_owned());
    assert_eq!(queue.failures(&"f".to_owned()), 0);
    for _ in 0..100 {
        queue.add_rate_limited("g".into());
    }
    let start = Instant::now();
    queue.get().await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(1), "the earliest counts");
}

#[tokio::test(start_paused = true)]
async fn workqueue_backs_off_as_its_retries_say() {
    let retries = Retries {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(3),
        limits_rate: false,
    };
    let queue: WorkQueue<String> =
        WorkQueue::with_retries("test", &QueueMetrics::unregistered(), retries);
    for expected in [1, 2, 3, 3] {
        let start = Instant::now();
        queue.add_rate_limited("f".into());
        queue.get().await.unwrap();
        queue.done(&"f".to_owned());
        assert_eq!(start.elapsed().as_secs(), expected);
    }
    let start = Instant::now();
    for number in 0..500 {
        queue.add_rate_limited(number.to_string());
    }
    for _ in 0..500 {
        queue.get().await.unwrap();
    }
    assert_eq!(start.elapsed().as_secs(), 1, "items do not wait for each other");
}

#[tokio::test(start_paused = true)]
async fn workqueue_delayed_item_finds_a_worker_while_others_work() {
    let queue = queue();
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            // waits without a delayed item in view
            let item = queue.get().await;
            sleep(Duration::from_secs(3600)).await;
            item
        }
    });
    let second = tokio::spawn({
        let queue = queue.clone();
        async move { (queue.get().await, Instant::now()) }
    });
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    queue.add_after("b".into(), Duration::from_secs(1));
    queue.add("a".into());
    let (item, at) = second.await.unwrap();
    assert!(at.duration_since(start) <= Duration::from_secs(1), "{item:?}");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn workers_retry_after_errors_and_panics() {
    let queue = queue();
    let stop = CancellationToken::new();
    let tries = AtomicUsize::new(0);
    queue.add("a".into());
    let work = run_workers("test", &queue, 3, &stop, |key| {
        let attempt = tries.fetch_add(1, Ordering::SeqCst);
        let stop = &stop;
        async move {
            assert_eq!(key, "a");
            match attempt {
                0 => Err("first"),
                1 => panic!("second"),
                _ => {
                    stop.cancel();
                    Ok(())
                }
            }
        }
    });
    work.await;
    assert_eq!(tries.load(Ordering::SeqCst), 3);
}

proptest! {
    /// Each item that was added is processed after its last addition, and never by two at once.
    #[test]
    fn workqueue_loses_nothing(additions in prop::collection::vec((0_u8..5, 0_u64..50, any::<bool>()), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let queue: WorkQueue<u8> = WorkQueue::new("test", &QueueMetrics::unregistered());
            let added = Arc::new(Mutex::new(HashMap::<u8, usize>::new()));
            let seen = Mutex::new(HashMap::<u8, usize>::new());
            let busy = Mutex::new(std::collections::HashSet::new());
            let stop = CancellationToken::new();
            let work = run_workers("test", &queue, 3, &stop, |item| {
                let version = added.lock().unwrap()[&item];
                let (seen, busy) = (&seen, &busy);
                async move {
                    assert!(busy.lock().unwrap().insert(item));
                    sleep(Duration::from_millis(7)).await;
                    busy.lock().unwrap().remove(&item);
                    seen.lock().unwrap().insert(item, version);
                    Ok::<(), &str>(())
                }
            });
            let add = async {
                for (index, (item, pause, delayed)) in additions.iter().copied().enumerate() {
                    added.lock().unwrap().insert(item, index);
                    if delayed {
                        queue.add_after(item, Duration::from_millis(pause));
                    } else {
                        queue.add(item);
                    }
                    sleep(Duration::from_millis(pause / 3)).await;
                }
                sleep(Duration::from_secs(60)).await;
                stop.cancel();
            };
            tokio::join!(work, add);
            assert_eq!(*seen.lock().unwrap(), *added.lock().unwrap());
        });
    }

    /// Whatever is observed, expectations end: by observation or by time.
    #[test]
    fn expectations_never_leak(creations in 0_usize..9, deletions in 0_usize..9, observed in 0_usize..9) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let expectations = Expectations::default();
            assert!(expectations.satisfied("k"));
            expectations.expect("k", creations, (0..deletions).map(|uid| uid.to_string()));
            assert_eq!(expectations.satisfied("k"), creations + deletions == 0);
            for uid in 0..observed {
                expectations.creation_observed("k");
                expectations.deletion_observed("k", &uid.to_string());
                expectations.deletion_observed("k", &uid.to_string());
            }
            assert_eq!(expectations.satisfied("k"), observed >= creations.max(deletions));
            advance(Duration::from_secs(301)).await;
            assert!(expectations.satisfied("k"));
        });
    }
}

/// A lease in memory, whose API fails while `down`.
#[derive(Clone, Default)]
struct MemoryLease(Arc<Mutex<Option<Lease>>>, Arc<AtomicBool>);

fn refused(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status::failure("refused", "Conflict").with_code(code)))
}

impl MemoryLease {
    fn answer(&self) -> kube::Result<()> {
        if self.1.load(Ordering::SeqCst) { Err(refused(500)) } else { Ok(()) }
    }

    fn stored(lease: &Lease, version: u64) -> Lease {
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }
}

impl LeaseStore for MemoryLease {
    async fn get(&self) -> kube::Result<Option<Lease>> {
        self.answer()?;
        Ok(self.0.lock().unwrap().clone())
    }

    async fn create(&self, lease: &Lease) -> kube::Result<Lease> {
        self.answer()?;
        let mut slot = self.0.lock().unwrap();
        if slot.is_some() {
            return Err(refused(409));
        }
        Ok(slot.insert(Self::stored(lease, 1)).clone())
    }

    async fn replace(&self, lease: &Lease) -> kube::Result<Lease> {
        self.answer()?;
        let mut slot = self.0.lock().unwrap();
        let known = slot.as_ref().and_then(|known| known.metadata.resource_version.clone());
        if known != lease.metadata.resource_version {
            return Err(refused(409));
        }
        let version: u64 = known.unwrap().parse().unwrap();
        Ok(slot.insert(Self::stored(lease, version + 1)).clone())
    }
}

/// Takes part in the election until `stop`.
async fn lead<W: Future>(
    store: MemoryLease,
    identity: &str,
    stop: Option<(CancellationToken, bool)>,
    work: impl FnOnce() -> W,
) -> Result<Option<W::Output>, ElectionError> {
    let mut config = LeaderConfig::new("kube-system", "test", identity);
    let (stop, releases) = stop.unwrap_or_default();
    config.releases_on_stop = releases;
    LeaderElector::new(store, config).run(&stop, work).await
}

#[tokio::test(start_paused = true)]
async fn leader_election_hands_over_when_a_leader_dies() {
    let store = MemoryLease::default();
    let leading = Arc::new(AtomicUsize::new(0));
    let work = |leading: Arc<AtomicUsize>| async move {
        assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "one leads");
        std::future::pending::<()>().await;
    };
    let one = tokio::spawn(lead(store.clone(), "one", None, {
        let leading = leading.clone();
        move || work(leading)
    }));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(leading.load(Ordering::SeqCst), 1);
    let two = tokio::spawn(lead(store.clone(), "two", None, {
        let leading = leading.clone();
        move || work(leading)
    }));
    sleep(Duration::from_secs(60)).await;
    one.abort();
    leading.store(0, Ordering::SeqCst);
    let died = Instant::now();
    until(|| leading.load(Ordering::SeqCst) == 1).await;
    assert!(died.elapsed() <= Duration::from_secs(17 + 2), "{:?}", died.elapsed());
    assert!(died.elapsed() >= Duration::from_secs(10), "{:?}", died.elapsed());
    let spec = store.0.lock().unwrap().clone().unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("two"));
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(1), Some(15)));
    two.abort();
}

#[tokio::test(start_paused = true)]
async fn leader_election_stops_the_work_when_the_lease_cannot_be_renewed() {
    let store = MemoryLease::default();
    let one = tokio::spawn(lead(store.clone(), "one", None, std::future::pending::<()>));
    sleep(Duration::from_secs(10)).await;
    store.1.store(true, Ordering::SeqCst);
    let down = Instant::now();
    let lost = one.await.unwrap();
    assert!(matches!(lost, Err(ElectionError::Lost(_))));
    assert!(down.elapsed() < Duration::from_secs(15), "before another may lead");
}

#[tokio::test(start_paused = true)]
async fn leader_election_reports_who_leads() {
    let registry = longshore_metrics::Registry::default();
    let metrics = LeaderMetrics::new(&registry);
    let store = MemoryLease::default();
    let config = LeaderConfig::new("kube-system", "test", "one");
    let elector = LeaderElector::new(store.clone(), config).with_metrics(metrics);
    let stop = CancellationToken::new();
    let until_stopped = stop.clone();
    let one = tokio::spawn(async move {
        elector.run(&until_stopped, std::future::pending::<()>).await.unwrap()
    });
    let leads = |value: u8| format!("leader_election_master_status{{name=\"test\"}} {value}\n");
    sleep(Duration::from_secs(5)).await;
    assert!(registry.text().contains(&leads(1)), "{}", registry.text());
    stop.cancel();
    one.await.unwrap();
    assert!(registry.text().contains(&leads(0)), "{}", registry.text());
}

#[tokio::test(start_paused = true)]
async fn leader_election_releases_the_lease_after_the_work() {
    let store = MemoryLease::default();
    assert_eq!(lead(store.clone(), "one", None, || async { 7 }).await.unwrap(), Some(7));
    let start = Instant::now();
    assert_eq!(lead(store.clone(), "two", None, || async { 8 }).await.unwrap(), Some(8));
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn leader_election_releases_the_lease_at_a_stop_if_it_is_to() {
    for releases in [false, true] {
        let store = MemoryLease::default();
        let stop = CancellationToken::new();
        let until_stopped = stop.clone();
        let work = || async move { until_stopped.cancelled_owned().await };
        let one = tokio::spawn(lead(store.clone(), "one", Some((stop.clone(), releases)), work));
        sleep(Duration::from_secs(10)).await;
        stop.cancel();
        one.await.unwrap().unwrap();
        let lease = store.0.lock().unwrap().clone().unwrap();
        let holder = lease.spec.unwrap().holder_identity.unwrap();
        assert_eq!(holder, if releases { "" } else { "one" });
        let start = Instant::now();
        lead(store, "two", None, || async {}).await.unwrap();
        assert_eq!(start.elapsed() < Duration::from_secs(2), releases);
    }
    let held = MemoryLease::default();
    let _one = tokio::spawn(lead(held.clone(), "one", None, std::future::pending::<()>));
    sleep(Duration::from_secs(1)).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let waiting = lead(held, "two", Some((stop, true)), std::future::pending::<()>).await;
    assert!(matches!(waiting, Ok(None)), "it was stopped before it led");
}

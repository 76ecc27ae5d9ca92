//! Measures the finished embedded store (or, given `etcd://…`, an etcd) through its own interface.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_store::{Expect, ListOptions, Store};

fn rss() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        status
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .to_string()
    };
    format!(
        "RssAnon {} KiB, RSS {} KiB, {} threads",
        field("RssAnon"),
        field("VmRSS"),
        field("Threads")
    )
}

async fn write(store: &Arc<dyn Store>, writers: usize, time: Duration) {
    let (stop, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..writers)
        .map(|w| {
            let (store, stop, total) = (store.clone(), stop.clone(), total.clone());
            tokio::spawn(async move {
                let key = format!("/registry/leases/{w:03}");
                let mut last = store.get(&key).await.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let expect =
                        last.map_or(Expect::Absent, |kv| Expect::Revision(kv.mod_revision));
                    last = Some(
                        store.put(&key, Bytes::from(vec![b'v'; 500]), expect, None).await.unwrap(),
                    );
                    total.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let started = Instant::now();
    let mut reads = Vec::new();
    while started.elapsed() < time {
        let t = Instant::now();
        store.get("/registry/leases/000").await.unwrap();
        reads.push(t.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    reads.sort();
    println!(
        "{writers:3} writers: {:6.0} writes/s, read beside them p50 {:?} p99 {:?}",
        total.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64(),
        reads[reads.len() / 2],
        reads[reads.len() * 99 / 100]
    );
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let location = std::env::args().nth(1).expect("usage: store FILE|etcd://…");
    let started = Instant::now();
    let store = longshore_store::open(&location).await.unwrap();
    println!("open {:?}: {}", started.elapsed(), rss());
    if store
        .list("/registry/pods/", ListOptions { limit: 1, ..Default::default() })
        .await
        .unwrap()
        .items
        .is_empty()
    {
        for i in 0..5000 {
            let key = format!("/registry/pods/ns{}/{i:06}", i % 5);
            store.put(&key, Bytes::from(vec![b'p'; 2048]), Expect::Absent, None).await.unwrap();
        }
    }
    println!("5000 x 2 KiB: {}", rss());
    for writers in [1, 16, 64] {
        write(&store, writers, Duration::from_secs(4)).await;
    }
    println!("after that: {}", rss());
    let mut times: Vec<_> = Vec::new();
    for _ in 0..50 {
        let t = Instant::now();
        assert_eq!(
            store.list("/registry/pods/ns3/", ListOptions::default()).await.unwrap().items.len(),
            1000
        );
        times.push(t.elapsed());
    }
    times.sort();
    println!("list of 1000 x 2 KiB: p50 {:?} p99 {:?}", times[25], times[49]);
    let size = || std::fs::metadata(&location).map_or(0.0, |m| m.len() as f64 / 1048576.0);
    let (before, t) = (size(), Instant::now());
    store.compact(0).await.unwrap();
    println!("compaction: {before:.1} MiB to {:.1} MiB in {:?}, {}", size(), t.elapsed(), rss());
    drop(store);
    let t = Instant::now();
    let store = longshore_store::open(&location).await.unwrap();
    println!("open again {:?}: {}", t.elapsed(), rss());
    std::process::exit(store.revision().await.map_or(1, |_| 0));
}

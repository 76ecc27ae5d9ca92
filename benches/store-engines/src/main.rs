//! Measures candidate engines for the embedded store, one per build (`--features redb|sqlite|fjall`;
//! none: a bare append + fdatasync, the floor). All carry the same two tables and the same
//! one-writer group commit as the store. See `docs/store-engine.md`.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

#[cfg_attr(feature = "redb", path = "redb_engine.rs")]
#[cfg_attr(feature = "sqlite", path = "sqlite_engine.rs")]
#[cfg_attr(feature = "fjall", path = "fjall_engine.rs")]
#[cfg_attr(not(any(feature = "redb", feature = "sqlite", feature = "fjall")), path = "floor.rs")]
mod engine;
use engine::Engine;

/// One new version of a key.
pub struct Write {
    pub revision: u64,
    pub key: String,
    pub value: Vec<u8>,
}

fn group_commit(engine: &Arc<Engine>, writers: usize, time: Duration, next: &Arc<AtomicU64>) {
    let (send, receive) = mpsc::sync_channel::<(String, Vec<u8>, mpsc::SyncSender<()>)>(256);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (engine, next) = (engine.clone(), next.clone());
        std::thread::spawn(move || {
            let mut commits = 0u64;
            while let Ok(first) = receive.recv() {
                let (mut batch, mut answers) = (Vec::new(), Vec::new());
                for (key, value, answer) in
                    std::iter::once(first).chain(receive.try_iter().take(255))
                {
                    batch.push(Write {
                        revision: next.fetch_add(1, Ordering::Relaxed),
                        key,
                        value,
                    });
                    answers.push(answer);
                }
                engine.commit(&batch);
                commits += 1;
                answers.iter().for_each(|a| a.send(()).unwrap());
            }
            commits
        })
    };
    let started = Instant::now();
    let threads: Vec<_> = (0..writers)
        .map(|w| {
            let (send, stop) = (send.clone(), stop.clone());
            std::thread::spawn(move || {
                let (answer, answered) = mpsc::sync_channel(1);
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("/registry/leases/{w:03}/{:06}", n % 50);
                    send.send((key, vec![b'v'; 500], answer.clone())).unwrap();
                    answered.recv().unwrap();
                    n += 1;
                }
                n
            })
        })
        .collect();
    drop(send);
    // a reader beside the writers: what does a point read cost while others wait for the disk?
    let mut reads = Vec::new();
    while started.elapsed() < time {
        let t = Instant::now();
        engine.list("/registry/leases/000/", 1);
        reads.push(t.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    let n: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    let elapsed = started.elapsed();
    let commits = writer.join().unwrap();
    reads.sort();
    println!(
        "{writers:3} writers: {:7.0} writes/s, {:5.0} commits/s, read beside them p50 {:?} p99 {:?} max {:?}",
        n as f64 / elapsed.as_secs_f64(),
        commits as f64 / elapsed.as_secs_f64(),
        reads[reads.len() / 2],
        reads[reads.len() * 99 / 100],
        reads[reads.len() - 1],
    );
}

fn size(path: &Path) -> u64 {
    let meta = std::fs::metadata(path).unwrap();
    if meta.is_dir() {
        std::fs::read_dir(path).unwrap().map(|e| size(&e.unwrap().path())).sum()
    } else {
        meta.len()
    }
}

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
        "RssAnon {} KiB, RSS {} KiB, peak {} KiB",
        field("RssAnon"),
        field("VmRSS"),
        field("VmHWM")
    )
}

fn main() {
    let folder = PathBuf::from(
        std::env::args().nth(1).expect("usage: store-engines FOLDER (on a real disk)"),
    );
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut engine = Arc::new(Engine::open(&folder.join("store")));
    let next = Arc::new(AtomicU64::new(1));
    println!("open: {}", rss());
    // 5000 objects of 2 KiB, the size of a small cluster
    for chunk in 0..50 {
        let batch: Vec<_> = (0..100)
            .map(|i| Write {
                revision: next.fetch_add(1, Ordering::Relaxed),
                key: format!("/registry/pods/ns{}/{:06}", chunk % 5, chunk * 100 + i),
                value: vec![b'p'; 2048],
            })
            .collect();
        engine.commit(&batch);
    }
    println!("loaded 5000 x 2 KiB: {:.1} MiB on disk, {}", size(&folder) as f64 / 1048576.0, rss());
    for writers in [1, 16, 64] {
        group_commit(&engine, writers, Duration::from_secs(5), &next);
    }
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let t = Instant::now();
            assert_eq!(engine.list("/registry/pods/ns3/", 1000), 1000);
            t.elapsed()
        })
        .collect();
    times.sort();
    println!("range of 1000 x 2 KiB: p50 {:?}, p99 {:?}", times[25], times[49]);
    // churn: each of 1000 pods rewritten 20 times
    for round in 0..200 {
        let batch: Vec<_> = (0..100)
            .map(|i| {
                let n = (round * 100 + i) % 1000;
                Write {
                    revision: next.fetch_add(1, Ordering::Relaxed),
                    key: format!("/registry/pods/ns{}/{:06}", n / 100 % 5, n),
                    value: vec![b'q'; 2048],
                }
            })
            .collect();
        engine.commit(&batch);
    }
    println!(
        "after churn: {} versions, {:.1} MiB on disk, {}",
        next.load(Ordering::Relaxed),
        size(&folder) as f64 / 1048576.0,
        rss()
    );
    let t = Instant::now();
    let dropped = engine.drop_history(next.load(Ordering::Relaxed));
    println!(
        "dropped {dropped} old versions in {:?}: {:.1} MiB on disk",
        t.elapsed(),
        size(&folder) as f64 / 1048576.0
    );
    let t = Instant::now();
    Arc::get_mut(&mut engine).unwrap().give_back();
    println!(
        "gave space back in {:?}: {:.1} MiB on disk, {}",
        t.elapsed(),
        size(&folder) as f64 / 1048576.0,
        rss()
    );
    let files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    println!("files while open: {files:?}");
}

//! Logs that are read while they are written and rotated.

use std::fs::File;
use std::io;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::chain::Chain;
use crate::files::Files;
use crate::rotation;
use crate::watch::{Awaited, Seen, Watch};

const SOON: Duration = Duration::from_secs(20);

struct Follower {
    input: mpsc::Receiver<io::Result<Bytes>>,
    /// Dropped when the container ends.
    runs: Option<oneshot::Sender<()>>,
    sending: JoinHandle<()>,
    text: String,
}

async fn follow(log: &Path, options: Options) -> Follower {
    let (output, input) = mpsc::channel(4);
    let (runs, ended) = oneshot::channel::<()>();
    let log = Log::open(log, &Options { follow: true, ..options }).await.unwrap();
    let ended = async { drop(ended.await) };
    let sending = tokio::spawn(log.send(ended, output));
    Follower { input, runs: Some(runs), sending, text: String::new() }
}

impl Follower {
    async fn expect(&mut self, text: &str) {
        while !self.text.contains(text) {
            let piece = timeout(SOON, self.input.recv()).await;
            let piece = piece.unwrap_or_else(|_| panic!("{text:?} never came: {:?}", self.text));
            self.text.push_str(std::str::from_utf8(&piece.unwrap().unwrap()).unwrap());
        }
    }

    /// The container ends; all that was sent.
    async fn end(mut self) -> String {
        drop(self.runs.take());
        while let Some(piece) = timeout(SOON, self.input.recv()).await.unwrap() {
            self.text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        self.sending.await.unwrap();
        self.text
    }
}

fn numbered(text: &str) -> Vec<u64> {
    text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

/// Writes as a runtime does: after a rotation it may take its time to leave the old file.
struct Writer {
    log: PathBuf,
    file: File,
    next: u64,
}

impl Writer {
    fn new(log: &Path) -> Self {
        Self { log: log.to_owned(), file: File::create(log).unwrap(), next: 0 }
    }

    fn write(&mut self, lines: u64) {
        for number in self.next..self.next + lines {
            self.file.write_all(plain(&format!("{number} of many")).as_bytes()).unwrap();
        }
        self.next += lines;
    }

    fn rotate(&mut self, late: u64, keep: usize) {
        rotation::testing::remove_excess(&self.log, keep);
        rotation::testing::rotate_file(&self.log);
        self.write(late);
        let new = File::create(&self.log).unwrap();
        self.write(late);
        self.file = new;
        rotation::testing::pack(&self.log);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_follow_loses_nothing_over_thirty_rotations() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut writer = Writer::new(&path);
    writer.write(10);
    let mut quick = follow(&path, Options::default()).await;
    let mut slow = follow(&path, Options::default()).await;
    let writing = tokio::task::spawn_blocking(move || {
        for _ in 0..30 {
            writer.write(3000);
            writer.rotate(7, 1);
            std::thread::sleep(Duration::from_millis(10));
        }
        writer.write(10);
        (writer.next, Files::list(&writer.log).unwrap())
    });
    quick.expect("\n100 of many\n").await;
    let (count, files) = writing.await.unwrap();
    assert_eq!((files.rotated.len(), files.leftovers.len()), (2, 0), "the others are gone");
    let expected: Vec<u64> = (0..count).collect();
    assert_eq!(numbered(&quick.end().await), expected);
    // nothing was taken by this one until now
    slow.expect("\n100 of many\n").await;
    assert_eq!(numbered(&slow.end().await), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_follow_reads_late_lines_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut old = File::create(&path).unwrap();
    let mut follower = follow(&path, Options::default()).await;
    old.write_all(plain("one").as_bytes()).unwrap();
    follower.expect("one\n").await;
    rotation::testing::rotate_file(&path);
    let mut new = File::create(&path).unwrap();
    new.write_all(plain("three").as_bytes()).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    old.write_all(plain("two").as_bytes()).unwrap();
    drop(old);
    follower.expect("three\n").await;
    assert_eq!(follower.end().await, "one\ntwo\nthree\n");
}

#[tokio::test]
async fn log_follow_reads_an_undone_rotation_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut log = File::create(&path).unwrap();
    let mut follower = follow(&path, Options::default()).await;
    log.write_all(plain("one").as_bytes()).unwrap();
    follower.expect("one\n").await;
    let rotated = rotation::testing::rotate_file(&path);
    log.write_all(plain("two").as_bytes()).unwrap();
    follower.expect("two\n").await;
    // a late notification shows it rotated, and then back again
    let mut chain = Chain::open(&path).unwrap();
    fs::rename(rotated, &path).unwrap();
    chain.extend().unwrap();
    assert_eq!(chain.segments.len(), 1);
    log.write_all(plain("three").as_bytes()).unwrap();
    follower.expect("three\n").await;
    rotation::testing::rotate_file(&path);
    log = File::create(&path).unwrap();
    log.write_all(plain("four").as_bytes()).unwrap();
    follower.expect("four\n").await;
    // cut short in place, as logrotate's copytruncate does
    log.set_len(0).unwrap();
    fs::write(&path, plain("5")).unwrap();
    follower.expect("5\n").await;
    assert_eq!(follower.end().await, "one\ntwo\nthree\nfour\n5\n");
}

#[tokio::test]
async fn log_follow_sends_final_and_partial_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    fs::write(&path, plain("zero") + &plain("one")).unwrap();
    let mut follower = follow(&path, Options { tail: Some(1), ..Options::default() }).await;
    follower.expect("one\n").await;
    let mut log = File::options().append(true).open(&path).unwrap();
    log.write_all(line(1, "stdout", "P", "two ").as_bytes()).unwrap();
    follower.expect("two ").await;
    log.write_all(line(1, "stdout", "F", "parts").as_bytes()).unwrap();
    assert_eq!(follower.end().await, "one\ntwo parts\n");
    // a limit ends it too
    let mut limited = follow(&path, Options { limit: Some(6), ..Options::default() }).await;
    limited.expect("zero\no").await;
    timeout(SOON, limited.sending).await.unwrap().unwrap();
}

#[tokio::test]
async fn log_follow_ends_with_its_reader() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    fs::write(&path, "").unwrap();
    let Follower { input, sending, runs, .. } = follow(&path, Options::default()).await;
    drop(input);
    timeout(SOON, sending).await.unwrap().unwrap();
    drop(runs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_follow_of_stalled_reader_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut writer = Writer::new(&path);
    let mut follower = follow(&path, Options::default()).await;
    writer.write(30_000);
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for _ in 0..80 {
        writer.rotate(1, 0);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(open() < before + 70, "files are held for ever");
    let mut outcome = Ok(());
    while let Some(piece) = timeout(SOON, follower.input.recv()).await.unwrap() {
        outcome = piece.map(drop);
    }
    assert_eq!(outcome.unwrap_err().to_string(), "the reader has fallen too far behind");
}

#[tokio::test]
async fn log_follow_is_idle_without_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    fs::write(&path, "").unwrap();
    let mut watch = Watch::new(&path);
    fs::write(directory.path().join("1.log"), "another's").unwrap();
    fs::write(directory.path().join("0.log.20240101-000010.tmp"), "a draft").unwrap();
    drop(File::open(&path).unwrap());
    assert!(timeout(Duration::from_secs(3), watch.next()).await.is_err());
    fs::write(&path, "new").unwrap();
    assert_eq!(watch.next().await, Seen::default());
    watch.expect(Awaited::Rotations);
    while timeout(Duration::from_millis(100), watch.next()).await.is_ok() {}
    fs::write(&path, "more").unwrap();
    assert!(timeout(Duration::from_secs(1), watch.next()).await.is_err());
    let log = File::options().append(true).open(&path).unwrap();
    let rotated = rotation::testing::rotate_file(&path);
    drop(log);
    let stamp = rotated.extension().unwrap().to_str().unwrap().to_owned();
    assert_eq!(watch.next().await, Seen { rotated: true, closed: vec![stamp] });
}

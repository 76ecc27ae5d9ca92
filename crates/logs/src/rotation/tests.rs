//! Rotation against a runtime that writes and fails on request.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;

use jiff::Zoned;

use super::*;
use crate::Options;
use crate::files::{Files, Rotated, next_stamp};
use crate::tests::{plain, read, write_rotated};

/// What a runtime makes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Refused,
    /// It has done so, and nobody heard.
    DoneUnheard,
}

struct FakeRuntime {
    log: PathBuf,
    file: Mutex<Option<File>>,
    answer: Mutex<Answer>,
    reopened: Mutex<usize>,
}

impl Containers for FakeRuntime {
    fn running(&self) -> Vec<Subject> {
        vec![Subject { id: "c".to_owned(), log: self.log.clone() }]
    }

    fn reopen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        *self.reopened.lock() += 1;
        let answer = *self.answer.lock();
        if answer != Answer::Refused {
            *self.file.lock() = Some(open(&self.log));
        }
        let outcome = if answer == Answer::Done { Ok(()) } else { Err("no".to_owned()) };
        Box::pin(async { outcome })
    }
}

fn open(log: &Path) -> File {
    File::options().append(true).create(true).open(log).unwrap()
}

struct Setup {
    directory: tempfile::TempDir,
    rotation: Rotation<FakeRuntime>,
    written: usize,
}

const MAX_SIZE: u64 = 2048;

impl Setup {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("0.log");
        let runtime = FakeRuntime {
            file: Mutex::new(Some(open(&log))),
            log,
            answer: Mutex::new(Answer::Done),
            reopened: Mutex::default(),
        };
        let interval = Duration::from_secs(10);
        let policy = Policy { max_size: MAX_SIZE, max_files: 4, workers: 1, interval };
        Self { directory, rotation: Rotation::new(runtime, policy), written: 0 }
    }

    fn log(&self) -> &Path {
        &self.rotation.containers.log
    }

    fn write(&mut self, lines: usize) {
        let mut file = self.rotation.containers.file.lock();
        for number in self.written..self.written + lines {
            file.as_mut().unwrap().write_all(plain(&number.to_string()).as_bytes()).unwrap();
        }
        self.written += lines;
    }

    fn answer(&self, answer: Answer) {
        *self.rotation.containers.answer.lock() = answer;
    }

    async fn round(&self) {
        self.rotation.round().await;
        while !self.rotation.packing.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn rotated(&self) -> Vec<Rotated> {
        let Files { rotated, leftovers } = Files::list(self.log()).unwrap();
        assert_eq!(leftovers, Vec::<PathBuf>::new());
        rotated
    }

    /// All lines from that one on are there, in order.
    async fn check(&self, from: usize) {
        let expected: String = (from..self.written).map(|number| format!("{number}\n")).collect();
        assert_eq!(read(self.log(), &Options::default()).await, expected);
    }
}

#[tokio::test]
async fn log_rotation_bounds_size_and_number() {
    let mut setup = Setup::new();
    setup.write(10);
    setup.round().await;
    assert_eq!(setup.names().len(), 1, "it is small");
    setup.write(90);
    setup.round().await;
    assert_eq!(fs::metadata(setup.log()).unwrap().len(), 0);
    setup.check(0).await;
    let mut packed = vec![false];
    for round in 2..9_usize {
        setup.write(100);
        setup.round().await;
        let rotated = setup.rotated();
        packed.insert(0, true);
        packed.truncate(3);
        *packed.last_mut().unwrap() = false;
        let are: Vec<bool> = rotated.iter().map(|rotated| rotated.packed).collect();
        assert_eq!(are, packed, "all but the newest");
        assert!(rotated.is_sorted());
        setup.check(100 * round.saturating_sub(3)).await;
    }
    assert_eq!(*setup.rotation.containers.reopened.lock(), 8);
}

#[tokio::test]
async fn log_rotation_is_undone_if_reopen_fails() {
    let mut setup = Setup::new();
    setup.write(100);
    setup.answer(Answer::Refused);
    for _ in 0..3 {
        setup.round().await;
        assert_eq!(setup.names(), BTreeSet::from(["0.log".to_owned()]));
        assert_eq!(setup.rotation.failing().len(), 1);
        setup.write(10);
    }
    // what was written after all is not written over
    setup.answer(Answer::DoneUnheard);
    setup.round().await;
    assert_eq!(setup.rotated().len(), 1);
    setup.write(10);
    setup.check(0).await;
    setup.answer(Answer::Done);
    setup.write(100);
    setup.round().await;
    assert_eq!(setup.rotated().len(), 2);
    assert!(setup.rotation.failing().is_empty());
    setup.check(0).await;
}

/// A daemon may be killed between any two steps of a rotation.
#[tokio::test]
async fn log_rotation_finishes_an_interrupted_one() {
    // the log was put away, and the runtime writes on to it
    let mut setup = Setup::new();
    setup.write(100);
    files::rotate_file(setup.log()).unwrap();
    setup.write(1);
    setup.rotation.recover().await;
    setup.round().await;
    setup.write(1);
    setup.check(0).await;
    assert_eq!(setup.rotated().len(), 1);

    // a file was being packed, another was packed and not removed yet
    let content: String = (0..10).map(|number| plain(&number.to_string())).collect();
    let mut setup = Setup::new();
    let log = setup.log().to_owned();
    write_rotated(&log, "20240101-000010", false, &content[..content.len() / 2]);
    write_rotated(&log, "20240101-000010", true, &content[..content.len() / 2]);
    write_rotated(&log, "20240101-000020", false, &content[content.len() / 2..]);
    fs::write(log.with_file_name("0.log.20240101-000020.tmp"), "half of it").unwrap();
    setup.written = 10;
    setup.check(0).await;
    write_rotated(&log, "20240101-000030", false, "");
    setup.rotation.recover().await;
    setup.round().await;
    let expected = ["10.gz", "20.gz", "30"].map(|end| format!("0.log.20240101-0000{end}"));
    assert_eq!(setup.names(), expected.into_iter().chain(["0.log".to_owned()]).collect());
    setup.check(0).await;
}

#[tokio::test]
async fn log_rotation_ignores_other_files() {
    let mut setup = Setup::new();
    let foreign = ["0.log.1", "0.log.old.gz", "0.log.20240101", "1.log.20240101-000000", "00.log"];
    foreign.iter().for_each(|name| fs::write(setup.directory.path().join(name), "x").unwrap());
    for _ in 0..6 {
        setup.write(100);
        setup.round().await;
    }
    let names = setup.names();
    assert!(foreign.iter().all(|name| names.contains(*name)), "{names:?}");

    // what a link leads to is somebody else's
    let target = setup.directory.path().join("large");
    fs::write(&target, vec![b'x'; 10_000]).unwrap();
    fs::remove_file(setup.log()).unwrap();
    symlink(&target, setup.log()).unwrap();
    setup.round().await;
    assert!(setup.log().is_symlink());
}

#[test]
fn log_rotation_timestamps_are_monotonic() {
    let now: Zoned = "2024-03-31T01:59:59[UTC]".parse().unwrap();
    for (newest, expected) in [
        (None, "20240331-015959"),
        (Some("20240330-235959"), "20240331-015959"),
        (Some("20240331-015959"), "20240331-020000"),
        // the clock has gone back
        (Some("20241231-235959"), "20250101-000000"),
        // no time at all
        (Some("20249999-999999"), "20240331-015959"),
    ] {
        let newest = newest.map(|stamp| Rotated { stamp: stamp.to_owned(), packed: true });
        assert_eq!(next_stamp(&now, newest.as_ref()), expected, "{newest:?}");
    }
}

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::links::Links;
use super::look::Look;
use super::*;

#[test]
fn this_machine_is_known() {
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let machine = Machine::read(&Hierarchies::find(unified)).unwrap();
    let total = machine.memory.limit.unwrap();
    let used = machine.memory.working_set;
    assert!(used > 0 && used < total && machine.memory.usage >= used, "{machine:?}");
    assert!(machine.pids.running > 1 && machine.pids.running < machine.pids.max, "{machine:?}");
    assert!(machine.figures.cpu > Some(0));
    let root = FileSystem::of(Path::new("/")).unwrap();
    assert!(root.capacity > root.available && root.available > 0, "{root:?}");
}

#[test]
fn processes_of_the_machine_are_not_counted_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("cgroup.clone_children", "0\n");
    write("cgroup.procs", "0\n1\n");
    let root = Cgroup::root(&Hierarchies::at(dir.path(), false));
    let (opened, links) = (Opened::default(), Links::default());
    let mut look = Look::new(Detail::Load, &opened, &links).unwrap();
    let mut count = |before: Option<&Group>| look.root(&root, before).unwrap();
    let mut before = count(None);
    assert_eq!(before.processes.count, 1, "not those of another namespace");
    write("cgroup.procs", "1\n2\n3\n");
    let same = count(Some(&before));
    assert_eq!(
        (same.processes.count, same.counted),
        (1, before.counted),
        "it holds, and gets older"
    );
    if let Some(long_ago) = before.counted.checked_sub(Duration::from_secs(301)) {
        before.counted = long_ago;
        assert_eq!(count(Some(&before)).processes.count, 3);
    }
    before.counted = Instant::now();
    before.path = "/another".to_owned();
    assert_eq!(count(Some(&before)).processes.count, 3, "they are another's");
}

#[tokio::test]
async fn those_who_ask_together_share_one_reading() {
    let (figure, count) = (Figure::<usize>::default(), Arc::new(AtomicUsize::new(0)));
    let read = || {
        let count = count.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(count.fetch_add(1, Ordering::SeqCst))
        }
    };
    let age = Duration::from_secs(60);
    let both = tokio::join!(figure.get(age, read), figure.get(age, read));
    assert_eq!((*both.0.unwrap(), *both.1.unwrap()), (0, 0));
    assert_eq!(*figure.get(age, read).await.unwrap(), 0, "not too old");
    assert_eq!(*figure.get(Duration::ZERO, read).await.unwrap(), 1, "too old");
    assert!(figure.cost() >= Duration::from_millis(20));
}

#[tokio::test]
async fn a_reading_that_hangs_is_not_begun_again_and_one_that_fails_is() {
    let (figure, count) = (Figure::<()>::default(), Arc::new(AtomicUsize::new(0)));
    let (release, gate) = tokio::sync::watch::channel(false);
    let read = || {
        let (count, mut gate) = (count.clone(), gate.clone());
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = gate.wait_for(|open| *open).await;
            Err(Error::of("no such disk"))
        }
    };
    for _ in 0..3 {
        let asked = figure.get(Duration::ZERO, read);
        assert!(tokio::time::timeout(Duration::from_millis(10), asked).await.is_err());
    }
    assert_eq!(count.load(Ordering::SeqCst), 1);
    release.send_replace(true);
    let error = figure.get(Duration::ZERO, read).await.unwrap_err();
    assert_eq!(error.to_string(), "no such disk");
    let tries = count.load(Ordering::SeqCst);
    figure.get(Duration::from_secs(60), read).await.unwrap_err();
    assert_eq!(count.load(Ordering::SeqCst), tries, "the error is young");
    figure.get(Duration::ZERO, read).await.unwrap_err();
    assert_eq!(count.load(Ordering::SeqCst), tries + 1);
}

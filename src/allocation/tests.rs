#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use longshore_pod::resize::PodResources;
use tokio::time::timeout;

use super::ledger::Ledger;
use super::*;

/// A directory of the test's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("longshore-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join(ALLOCATED)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn of(cpu: &str) -> PodResources {
    let pod_spec = serde_json::from_value(serde_json::json!({
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
    }));
    PodResources::asked(&pod_spec.unwrap(), Gates::default())
}

#[tokio::test]
async fn what_is_written_is_read_back() {
    let scratch = Scratch::new("ledger");
    let ledger = Arc::new(Ledger::open(scratch.file()).unwrap());
    let keeper = ledger.clone();
    let keeping = tokio::spawn(async move { keeper.keep().await });
    for cpu in ["1", "2", "3"] {
        ledger.set("u", of(cpu));
    }
    ledger.set("v", of("4"));
    timeout(RETRY, ledger.written()).await.expect("it is written");
    keeping.abort();
    let read = || Ledger::open(scratch.file()).unwrap();
    assert_eq!(read().get("u").as_deref(), Some(&of("3")));
    // What goes is not worth a write, and goes with the next.
    ledger.remove("v");
    assert!(ledger.write().await && read().get("v").is_some());
    ledger.set("u", of("5"));
    assert!(ledger.write().await && read().get("v").is_none());
    assert_eq!(read().get("u").as_deref(), Some(&of("5")));
}

#[tokio::test]
async fn a_disk_that_does_not_take_it_holds_nobody_up_and_gets_it_later() {
    let scratch = Scratch::new("full");
    let path = scratch.0.join("away").join(ALLOCATED);
    let ledger = Ledger::open(path.clone()).unwrap();
    ledger.set("u", of("1"));
    assert!(!ledger.write().await);
    timeout(RETRY, ledger.written()).await.expect("nobody waits for it");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert!(ledger.write().await);
    assert_eq!(Ledger::open(path).unwrap().get("u").as_deref(), Some(&of("1")));
}

#[test]
fn a_file_that_cannot_be_trusted_is_an_error_that_says_what_to_do() {
    let scratch = Scratch::new("damage");
    let cases = [("{}", "not a checkpoint"), (r#"{"data":"{}","checksum":1}"#, "is corrupted")];
    for (content, expected) in cases {
        std::fs::write(scratch.file(), content).unwrap();
        let Err(error) = Ledger::open(scratch.file()) else { panic!("{content} was taken") };
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("please drain this node and delete"), "{error}");
        assert!(error.contains(&scratch.file().display().to_string()), "{error}");
    }
    std::fs::remove_file(scratch.file()).unwrap();
    std::fs::create_dir(scratch.file()).unwrap();
    assert!(Ledger::open(scratch.file()).is_err(), "a directory is no checkpoint");
}

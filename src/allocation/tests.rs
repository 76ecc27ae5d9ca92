use std::path::PathBuf;

use longshore_pod::resize::PodResources;
use tokio::time::timeout;

use super::checkpoint::Checkpoint;
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
    PodResources::requested(&pod_spec.unwrap(), Gates::default())
}

#[tokio::test]
async fn allocation_checkpoint_is_written_and_restored() {
    let scratch = Scratch::new("checkpoint");
    let checkpoint = Arc::new(Checkpoint::open(scratch.file()).unwrap());
    let writer = checkpoint.clone();
    let keeping = tokio::spawn(async move { writer.keep().await });
    for cpu in ["1", "2", "3"] {
        checkpoint.set("u", of(cpu));
    }
    checkpoint.set("v", of("4"));
    timeout(RETRY, checkpoint.written()).await.expect("it is written");
    keeping.abort();
    let read = || Checkpoint::open(scratch.file()).unwrap();
    assert_eq!(read().get("u").as_deref(), Some(&of("3")));
    // What goes is not worth a write, and goes with the next.
    checkpoint.remove("v");
    assert!(checkpoint.write().await && read().get("v").is_some());
    checkpoint.set("u", of("5"));
    assert!(checkpoint.write().await && read().get("v").is_none());
    assert_eq!(read().get("u").as_deref(), Some(&of("5")));
}

#[tokio::test]
async fn allocation_checkpoint_write_failure_is_retried() {
    let scratch = Scratch::new("full");
    let path = scratch.0.join("away").join(ALLOCATED);
    let checkpoint = Checkpoint::open(path.clone()).unwrap();
    checkpoint.set("u", of("1"));
    assert!(!checkpoint.write().await);
    timeout(RETRY, checkpoint.written()).await.expect("it does not block");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert!(checkpoint.write().await);
    assert_eq!(Checkpoint::open(path).unwrap().get("u").as_deref(), Some(&of("1")));
}

#[test]
fn allocation_checkpoint_corruption_is_an_error() {
    let scratch = Scratch::new("damage");
    let cases = [("{}", "not a checkpoint"), (r#"{"data":"{}","checksum":1}"#, "is corrupted")];
    for (content, expected) in cases {
        std::fs::write(scratch.file(), content).unwrap();
        let Err(error) = Checkpoint::open(scratch.file()) else { panic!("{content} was taken") };
        let error = error.to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("please drain this node and delete"), "{error}");
        assert!(error.contains(&scratch.file().display().to_string()), "{error}");
    }
    std::fs::remove_file(scratch.file()).unwrap();
    std::fs::create_dir(scratch.file()).unwrap();
    assert!(Checkpoint::open(scratch.file()).is_err(), "a directory is no checkpoint");
}

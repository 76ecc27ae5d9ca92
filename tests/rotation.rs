//! Log rotation of containers that write a lot, on a real containerd: rotated, compressed, removed,
//! followed and read, through the apiserver and the port of the node.

use crate::common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{Cluster, TIMEOUT, phase, run_of, script, uid};
use futures::AsyncReadExt;
use kube::api::LogParams;
use longshore_testkit::fakecri::Fault;
use longshore_testkit::{Host, wait_until};
use serde_json::{Value, json};

const ROTATIONS: usize = 30;
/// More than are written in so many rotations.
const LINES: u64 = 110_000;

fn settings() -> Value {
    json!({
        "containerLogMaxSize": "16Ki",
        "containerLogMaxFiles": 3,
        "containerLogMonitorInterval": "3s",
    })
}

/// Writes numbered lines, about a thousand each second, until `go_on` is not true any more.
fn writer(go_on: &str) -> Value {
    script(&format!(
        "i=0; while {go_on}; do n=0; while [ $n -lt 50 ]; do \
         n=$((n+1)); i=$((i+1)); echo $i of so many lines; done; sleep 0.05; done"
    ))
}

/// That the lines of a log are those from `first` on, each once and in order; gives the last.
fn check(text: &str, first: u64) -> u64 {
    let mut expected = first;
    for line in text.lines() {
        assert_eq!(line, format!("{expected} of so many lines"));
        expected += 1;
    }
    assert!(text.is_empty() || text.ends_with('\n'));
    expected - 1
}

fn first_number(text: &str) -> u64 {
    text.split(' ').next().unwrap().parse().unwrap()
}

impl Cluster {
    fn log_dir(&self, name: &str, uid: &str) -> PathBuf {
        self.node.pod_logs().join(format!("default_{name}_{uid}")).join("c")
    }

    fn log_files(&self, name: &str, uid: &str) -> Vec<String> {
        let entries = fs::read_dir(self.log_dir(name, uid)).unwrap().flatten();
        let mut files: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }

    async fn logs(&self, name: &str, params: LogParams) -> String {
        self.pods().logs(name, &params).await.expect("a log")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_rotation_loses_nothing_for_followers() {
    let mut cluster = Cluster::start_with(settings()).await;
    let mut spec = writer(&format!("[ $i -lt {LINES} ]"));
    spec["restartPolicy"] = json!("Never");
    cluster.create("writer", spec).await;
    let pod = cluster.until("writer", "begun", |pod| match phase(pod) {
        "Running" | "Succeeded" => Ok(()),
        other => Err(other.to_owned()),
    });
    let uid = uid(&pod.await);
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut quick = cluster.pods().log_stream("writer", &follow).await.expect("followed");
    let mut slow = cluster.pods().log_stream("writer", &follow).await.expect("followed");
    let quick = tokio::spawn(async move {
        let mut text = String::new();
        quick.read_to_string(&mut text).await.map(|_| text)
    });
    let wait = Duration::from_secs(240);
    let mut most = 0;
    wait_until(wait, "the writer's end", async || {
        most = most.max(cluster.log_files("writer", &uid).len());
        // what is read back meanwhile has no gaps, wherever it begins
        let text = cluster.logs("writer", LogParams::default()).await;
        check(&text, first_number(&text));
        tokio::time::sleep(Duration::from_secs(2)).await;
        match phase(&cluster.pod("writer").await) {
            "Succeeded" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await
    .unwrap();
    assert!(most <= 4, "{most} files at a time"); // one of them may be being packed
    assert_eq!(check(&quick.await.unwrap().unwrap(), 1), LINES);
    // this one has taken nothing so far but what networks hold
    let mut text = String::new();
    slow.read_to_string(&mut text).await.unwrap();
    assert_eq!(check(&text, 1), LINES);

    let rotations = cluster.node.daemon().log().matches("a log is rotated").count();
    assert!(rotations >= ROTATIONS, "{rotations}");
    // the last rotation may be at work
    wait_until(wait, "the last rotation", async || {
        let files = cluster.log_files("writer", &uid);
        let packed: Vec<bool> = files.iter().map(|file| file.ends_with(".gz")).collect();
        if packed == [false, true, false] { Ok(()) } else { Err(format!("{files:?}")) }
    })
    .await
    .unwrap();
    let all = cluster.logs("writer", LogParams::default()).await;
    let first = first_number(&all);
    assert_eq!(check(&all, first), LINES);
    // the last lines lie in all three files
    let there = i64::try_from(LINES - first + 1).unwrap();
    for lines in [0, 1, 100, there / 2, there - 1, there, there + 1] {
        let tail = LogParams { tail_lines: Some(lines), ..LogParams::default() };
        let expected = LINES + 1 - u64::try_from(lines.min(there)).unwrap();
        assert_eq!(check(&cluster.logs("writer", tail).await, expected), LINES);
    }
    let limit = LogParams { limit_bytes: Some(1000), ..LogParams::default() };
    assert_eq!(cluster.logs("writer", limit).await, all[..1000]);
    let since = LogParams { since_seconds: Some(3600), ..LogParams::default() };
    assert_eq!(cluster.logs("writer", since).await, all);
    // the link of older collectors leads to what is written
    let links = fs::read_dir("/var/log/containers").unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    let log = cluster.log_dir("writer", &uid).join("0.log");
    assert_eq!(targets.filter(|target| *target == log).count(), 1);
    cluster.delete("writer").await;
    cluster.until_gone("writer").await;
    cluster.until_removed(&uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_rotation_interrupted_loses_nothing() {
    let host = Host::start().expect("a host");
    let mut settings = settings();
    settings["containerLogMaxFiles"] = json!(50);
    let (mut cluster, proxy) = Cluster::behind_proxy(host, settings).await;
    const REOPEN: &str = "ReopenContainerLog";
    // the runtime refuses twice: the log is taken back
    proxy.inject_times(REOPEN, Fault::Error(longshore_cri::Code::Internal, "no".to_owned()), 2);
    cluster.create("writer", writer("[ ! -e /tmp/stop ]")).await;
    let uid = uid(&cluster.until_ready("writer").await);
    wait_until(TIMEOUT, "a rotation after two that failed", async || {
        match (proxy.calls(REOPEN), cluster.log_files("writer", &uid).len()) {
            (3.., 2..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    check(&cluster.logs("writer", LogParams::default()).await, 1);

    // killed between the renaming and the runtime's new log
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut follower = cluster.pods().log_stream("writer", &follow).await.expect("followed");
    let log = cluster.log_dir("writer", &uid).join("0.log");
    proxy.inject(REOPEN, Fault::Hang);
    wait_until(TIMEOUT, "a rotation that hangs", async || match proxy.pending(REOPEN) {
        1.. => Ok(()),
        _ => Err("not yet".to_owned()),
    })
    .await
    .unwrap();
    assert!(!log.exists());
    let read = check(&cluster.logs("writer", LogParams::default()).await, 1);
    cluster.node.daemon().kill().expect("killed");
    let mut text = String::new();
    let cut = follower.read_to_string(&mut text).await;
    assert!(cut.is_err() || !text.is_empty());
    proxy.release_all();
    let draft = log.with_file_name("0.log.20200101-000000.tmp");
    fs::write(&draft, "of a file that was being packed").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "a new log", async || match (log.exists(), draft.exists()) {
        (true, false) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    cluster.until_ready("writer").await;
    let text = wait_until(TIMEOUT, "the log after the kill", async || {
        let text = cluster.pods().logs("writer", &LogParams::default()).await;
        text.map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    assert!(check(&text, 1) > read);

    // the log of the container before this one is read back over its files too
    let mut kubectl = cluster.apiserver.kubectl().command();
    kubectl.args(["exec", "writer", "-c", "c", "--", "touch", "/tmp/stop"]);
    let mut follower = cluster.pods().log_stream("writer", &follow).await.expect("followed");
    assert!(kubectl.status().unwrap().success());
    cluster
        .until("writer", "started again", |pod| match run_of(pod).0 {
            1 => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
    let mut followed = String::new();
    follower.read_to_string(&mut followed).await.unwrap();
    let last = check(&followed, 1);
    let previous = LogParams { previous: true, ..LogParams::default() };
    let text = wait_until(TIMEOUT, "the log before", async || {
        cluster.pods().logs("writer", &previous).await.map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    assert_eq!(check(&text, 1), last);
    check(&cluster.logs("writer", LogParams::default()).await, 1);
    cluster.delete("writer").await;
    cluster.until_gone("writer").await;
}

//! A node without an apiserver: standalone mode and `--runonce`.

use crate::common;

use std::fs;

use common::{FOREVER, TIMEOUT, container, get_json, manifest};
use longshore_testkit::{Host, Node, NodeOptions, wait_until};
use serde_json::json;

#[tokio::test]
async fn standalone_node_runs_manifests() {
    let host = Host::start().unwrap();
    let config = json!({"readOnlyPort": 10255}).as_object().cloned().unwrap();
    let options = NodeOptions { config, ..NodeOptions::default() };
    let node = Node::standalone(&host, options).unwrap();
    let mut probed = container("c", FOREVER);
    probed["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let file = node.manifests().join("web.yaml");
    fs::write(&file, manifest("web", "Always", json!([probed]))).unwrap();
    let pods = wait_until(TIMEOUT, "the pod is shown as ready", async || {
        let pods = get_json(host.node_ip(), "/pods").await?;
        let conditions = pods["items"][0]["status"]["conditions"].as_array().cloned();
        let ready =
            conditions.iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
        if ready { Ok(pods) } else { Err(pods.to_string()) }
    })
    .await
    .unwrap();
    let pod = &pods["items"][0];
    assert_eq!(pod["metadata"]["name"], format!("web-{}", host.name()));
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    fs::remove_file(&file).unwrap();
    wait_until(TIMEOUT, "no container is left", async || {
        match host.ctr(["containers", "ls", "-q"]).unwrap() {
            none if none.trim().is_empty() => Ok(()),
            some => Err(some),
        }
    })
    .await
    .unwrap();
    drop(node);
    host.assert_clean();
}

/// A single run: its exit code and what it said.
fn run_once(host: &Host) -> (Option<i32>, String) {
    let options = NodeOptions { args: vec!["--runonce".to_owned()], ..NodeOptions::default() };
    let mut node = Node::standalone(host, options).unwrap();
    let status = node.daemon().wait(TIMEOUT).unwrap();
    (status.code(), node.daemon().log())
}

#[tokio::test]
async fn run_once_starts_manifests_and_exits() {
    let host = Host::start().unwrap();
    let dir = Node::manifests_on(&host);
    fs::create_dir_all(&dir).unwrap();
    let mut probed = container("c", FOREVER);
    probed["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    fs::write(dir.join("web.yaml"), manifest("web", "Always", json!([probed]))).unwrap();
    let job = json!([container("c", "exit 0")]);
    fs::write(dir.join("job.yaml"), manifest("job", "OnFailure", job)).unwrap();
    let (code, said) = run_once(&host);
    assert_eq!(code, Some(0), "{said}");
    let (web, job) = (format!("web-{}", host.name()), format!("job-{}", host.name()));
    assert!(said.contains(&format!("pod default/{web}: running and ready")), "{said}");
    // It may be seen while it runs, and when it has ended.
    assert!(said.contains(&format!("pod default/{job}: ")), "{said}");
    let running = || host.ctr(["tasks", "ls"]).unwrap().matches("RUNNING").count();
    assert!(running() >= 2, "{}", host.ctr(["tasks", "ls"]).unwrap());

    // Never ready: on a busy machine a container is seen to run before it ends.
    let mut failing = container("c", "exit 3");
    failing["readinessProbe"] = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
    fs::write(dir.join("broken.yaml"), manifest("broken", "Never", json!([failing]))).unwrap();
    fs::write(dir.join("wrong.yaml"), ": {").unwrap();
    let (code, said) = run_once(&host);
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(
        last.contains(&format!("2 failed: manifest {}", dir.join("wrong.yaml").display())),
        "{last}"
    );
    assert!(
        last.contains(&format!("pod default/broken-{}: container c: exit code 3", host.name())),
        "{last}"
    );
    assert!(said.contains(&format!("pod default/{web}: running and ready")), "{said}");

    // What the single runs left is an ordinary node's to end.
    fs::remove_dir_all(&dir).unwrap();
    let node = Node::standalone(&host, NodeOptions::default()).unwrap();
    wait_until(TIMEOUT, "no container is left", async || {
        match host.ctr(["containers", "ls", "-q"]).unwrap() {
            none if none.trim().is_empty() => Ok(()),
            some => Err(some),
        }
    })
    .await
    .unwrap();
    drop(node);
    host.assert_clean();
}

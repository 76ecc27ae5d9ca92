//! Static pods from a directory of manifests, good and bad.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::time::Duration;

use common::{Cluster, FOREVER, PATIENCE, script, uid};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

fn manifest(name: &str, text: &str) -> String {
    let mut spec: Value = script(text);
    spec.as_object_mut().unwrap().remove("automountServiceAccountToken");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

#[tokio::test]
async fn a_manifest_runs_is_mirrored_follows_edits_and_goes() {
    let cluster = Cluster::start().await;
    let file = cluster.node.manifests().join("web.yaml");
    fs::write(&file, manifest("web", FOREVER)).unwrap();
    let name = format!("web-{}", cluster.host.name());
    let mirror = cluster.until_ready(&name).await;
    let annotations = mirror.metadata.annotations.clone().unwrap();
    assert!(annotations.contains_key("kubernetes.io/config.mirror"), "{annotations:?}");
    assert_eq!(annotations["kubernetes.io/config.source"], "file");

    let edited = manifest("web", FOREVER).replace("\"c\"", "\"edited\"");
    fs::write(&file, edited).unwrap();
    let remade = cluster
        .until(&name, "mirrors the edited manifest", |pod| {
            let statuses =
                pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
            match statuses.unwrap_or_default().first() {
                Some(status) if status.name == "edited" && status.ready => Ok(()),
                other => Err(format!("{:?}", other.map(|status| &status.name))),
            }
        })
        .await;
    assert_ne!(uid(&remade), uid(&mirror));

    // A mirror is only a picture: deleting it stops nothing, and it comes back.
    cluster.delete(&name).await;
    let again = cluster
        .until(&name, "is mirrored again", |pod| match uid(pod) == uid(&remade) {
            true => Err("still the old mirror".to_owned()),
            false => Ok(()),
        })
        .await;
    let again = cluster.until_ready(&again.metadata.name.unwrap()).await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone()
    };
    assert_eq!(id(&again), id(&remade), "the container was not touched");

    fs::remove_file(&file).unwrap();
    cluster.until_gone(&name).await;
    wait_until(PATIENCE, "no container is left", async || {
        match cluster.host.ctr(["containers", "ls", "-q"]).unwrap() {
            none if none.trim().is_empty() => Ok(()),
            some => Err(some),
        }
    })
    .await
    .unwrap();
    cluster.host.assert_clean();
}

#[tokio::test]
async fn edits_back_and_forth_end_with_the_last_and_one_of_it() {
    let cluster = Cluster::start().await;
    let file = cluster.node.manifests().join("web.yaml");
    // It takes its grace of a second to stop, so each edit comes while the last one's end lasts.
    let first = manifest("web", "trap '' TERM; while true; do sleep 1; done");
    let second = first.replace("\"c\"", "\"edited\"");
    let name = format!("web-{}", cluster.host.name());
    fs::write(&file, &first).unwrap();
    cluster.until_ready(&name).await;
    let ids = || cluster.host.ctr(["containers", "ls", "-q"]).unwrap();
    let before = ids();
    for text in [Some(&second), Some(&first), None, Some(&first)] {
        match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    wait_until(PATIENCE, "another run of the first manifest, alone", async || {
        let tasks = cluster.host.ctr(["tasks", "ls"]).unwrap();
        let old = ids().lines().any(|id| before.contains(id));
        match !old && tasks.matches("RUNNING").count() == 2 {
            true => Ok(()),
            false => Err(tasks),
        }
    })
    .await
    .unwrap();
    let mirror = cluster.until_ready(&name).await;
    assert_eq!(mirror.spec.unwrap().containers[0].name, "c");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn a_bad_manifest_is_told_and_stops_nobody() {
    let cluster = Cluster::start().await;
    let dir = cluster.node.manifests();
    fs::write(dir.join("a-broken.yaml"), ": {").unwrap();
    fs::write(dir.join("b-empty.yaml"), json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "empty"}, "spec": {"containers": []},
    }).to_string()).unwrap();
    let twice = manifest("twice", FOREVER).replace("[{", "[{\"name\":\"c\",\"image\":\"i\"},{");
    fs::write(dir.join("c-twice.yaml"), twice).unwrap();
    fs::write(dir.join("d-good.yaml"), manifest("good", FOREVER)).unwrap();
    fs::write(dir.join("e-same.yaml"), manifest("good", "sleep 1")).unwrap();
    cluster.until_ready(&format!("good-{}", cluster.host.name())).await;
    cluster.until_event("InvalidManifest", "a-broken.yaml").await;
    cluster.until_event("InvalidManifest", "b-empty.yaml: spec.containers").await;
    cluster.until_event("InvalidManifest", "c-twice.yaml: spec.containers[1].name").await;
    cluster.until_event("InvalidManifest", "e-same.yaml: metadata.name").await;
    cluster.host.assert_clean();
}

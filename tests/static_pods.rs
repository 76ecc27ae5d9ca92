//! Static pods from a directory and from a URL, valid and invalid, and their mirror pods.

use crate::common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use common::{Cluster, FOREVER, TIMEOUT, condition, script, uid};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use longshore_testkit::{BUSYBOX, Host, wait_until};
use parking_lot::Mutex;
use serde_json::{Value, json};

fn manifest(name: &str, text: &str) -> String {
    let mut spec: Value = script(text);
    spec.as_object_mut().unwrap().remove("automountServiceAccountToken");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

#[tokio::test]
async fn static_pod_is_run_mirrored_updated_and_removed() {
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
    wait_until(TIMEOUT, "no container is left", async || {
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
async fn static_pod_quick_edits_end_with_the_last() {
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
    wait_until(TIMEOUT, "another run of the first manifest, alone", async || {
        let tasks = cluster.host.ctr(["tasks", "ls"]).unwrap();
        // What has ended may be kept, as the last run of a container that was restarted.
        let running: Vec<&str> = tasks.lines().filter(|line| line.contains("RUNNING")).collect();
        let old = running.iter().filter_map(|line| line.split_whitespace().next());
        let old = old.into_iter().any(|id| before.contains(id));
        match !old && running.len() == 2 {
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
async fn static_pod_invalid_manifest_is_reported() {
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
    let same = "from file due to duplicate pod name";
    cluster.until_event("FailedValidation", same).await;
    cluster.host.assert_clean();
}

/// The ids of the containers of pods that are there, without their sandboxes.
fn containers(pod: &Pod) -> Vec<String> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.unwrap_or_default().into_iter().filter_map(|status| status.container_id).collect()
}

/// A pod of another UID that is ready.
async fn until_remade(cluster: &Cluster, name: &str, old: &Pod) -> Pod {
    cluster
        .until(name, "another mirror, Ready", |pod| {
            match (uid(pod) != uid(old), condition(pod, "Ready").as_str()) {
                (true, "True") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
}

#[tokio::test]
async fn static_pod_mirror_is_kept_in_sync() {
    let mut cluster = Cluster::start().await;
    let dir = cluster.node.manifests();
    let file = dir.join("web.yaml");
    let name = format!("web-{}", cluster.host.name());
    let labelled = manifest("web", FOREVER)
        .replace("{\"name\":\"web\"}", "{\"name\":\"web\",\"labels\":{\"a\":\"1\"}}");
    fs::write(&file, &labelled).unwrap();
    let first = cluster.until_ready(&name).await;
    let owner = first.metadata.owner_references.clone().unwrap();
    assert_eq!((owner[0].kind.as_str(), owner[0].controller), ("Node", Some(true)));

    // Who changes the mirror changes nothing: it is made again, and the container stays.
    let patch = json!({"spec": {"containers": [{"name": "c", "image": "other:1"}]}});
    cluster.pods().patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    let again = until_remade(&cluster, &name, &first).await;
    assert_eq!(again.spec.as_ref().unwrap().containers[0].image.as_deref(), Some(BUSYBOX));
    assert_eq!(containers(&again), containers(&first));

    // An edit that goes wrong stops nothing, and is reported.
    fs::write(&file, ": {").unwrap();
    cluster.until_event("InvalidManifest", "web.yaml").await;
    assert_eq!(containers(&cluster.until_ready(&name).await), containers(&first));

    // A manifest may be a link that is flipped, in any way of writing.
    let versions = cluster.host.dir().join("versions");
    fs::create_dir(&versions).unwrap();
    let given = |text: &str| {
        let with_uid = labelled.replace("\"name\":\"web\"", "\"name\":\"web\",\"uid\":\"given\"");
        with_uid.replace("sleep 1000", text)
    };
    fs::write(versions.join("1"), given("sleep 1001")).unwrap();
    fs::write(versions.join("2"), given("sleep 1002")).unwrap();
    let flip = |to: &str| {
        let link = dir.join(".link");
        std::os::unix::fs::symlink(versions.join(to), &link).unwrap();
        fs::rename(link, &file).unwrap();
    };
    flip("1");
    let one = until_remade(&cluster, &name, &again).await;
    assert_eq!(one.metadata.annotations.as_ref().unwrap()["kubernetes.io/config.hash"], "given");
    assert_ne!(containers(&one), containers(&first));

    // So does an edit under a UID that the manifest gives itself.
    flip("2");
    let two = until_remade(&cluster, &name, &one).await;
    assert_ne!(containers(&two), containers(&one));
    let command = two.spec.as_ref().unwrap().containers[0].command.clone().unwrap();
    assert!(command[2].contains("sleep 1002"), "{command:?}");

    // While the apiserver is away the manifest becomes another pod's.
    cluster.apiserver.daemon().kill().unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, manifest("renamed", FOREVER)).unwrap();
    cluster.apiserver.restart(&cluster.host).unwrap();
    cluster.until_ready(&format!("renamed-{}", cluster.host.name())).await;
    cluster.until_gone(&name).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn static_pod_mirror_name_conflict_is_reported() {
    let cluster = Cluster::start().await;
    let name = format!("web-{}", cluster.host.name());
    let rival: Pod = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": script(FOREVER),
    }))
    .unwrap();
    cluster.pods().create(&PostParams::default(), &rival).await.unwrap();
    fs::write(cluster.node.manifests().join("web.yaml"), manifest("web", FOREVER)).unwrap();
    cluster.until_event("FailedCreateMirrorPod", &name).await;
    wait_until(TIMEOUT, "the static pod runs", async || {
        let tasks = cluster.host.ctr(["tasks", "ls"]).unwrap();
        match tasks.matches("RUNNING").count() {
            2 => Ok(()),
            _ => Err(tasks),
        }
    })
    .await
    .unwrap();
    cluster.delete(&name).await;
    let mirror = cluster.until_ready(&name).await;
    assert!(mirror.metadata.annotations.unwrap().contains_key("kubernetes.io/config.mirror"));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn static_pods_from_a_url() {
    let host = Host::start().unwrap();
    let page = Arc::new(Mutex::new(manifest("one", FOREVER)));
    let listener = tokio::net::TcpListener::bind((host.machine_ip(), 0)).await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let shown = page.clone();
    let get = axum::routing::get(async move |headers: HeaderMap| match headers.get("x-token") {
        Some(token) if token == "secret" => (StatusCode::OK, shown.lock().clone()),
        _ => (StatusCode::FORBIDDEN, String::new()),
    });
    let router = axum::Router::new().route("/pods", get);
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let cluster = Cluster::on(
        host,
        json!({
            "staticPodURL": url,
            "staticPodURLHeader": {"X-Token": ["secret"]},
            "httpCheckFrequency": "200ms",
        }),
    )
    .await;
    let (one, two) =
        (format!("one-{}", cluster.host.name()), format!("two-{}", cluster.host.name()));
    let mirror = cluster.until_ready(&one).await;
    assert_eq!(mirror.metadata.annotations.unwrap()["kubernetes.io/config.source"], "http");
    *page.lock() = ": {".to_owned();
    cluster.until_event("InvalidManifest", &url).await;
    assert_eq!(common::phase(&cluster.pod(&one).await), "Running");
    *page.lock() =
        format!("{{apiVersion: v1, kind: PodList, items: [{}]}}", manifest("two", FOREVER));
    cluster.until_ready(&two).await;
    cluster.until_gone(&one).await;
    serving.abort();
    cluster.host.assert_clean();
}

//! Volumes with data of objects on a real containerd: changes arrive at once and atomically, missing
//! objects are waited for, and nothing else is written.

use crate::common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Cluster, FOREVER, condition, script, uid};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// How soon a change is to be in the container, on a machine that is busy.
const SOON: Duration = Duration::from_secs(10);

fn secrets(cluster: &Cluster) -> Api<Secret> {
    Api::namespaced(cluster.client.clone(), "default")
}

fn config_maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn put_secret(cluster: &Cluster, name: &str, data: Value) {
    let secret = json!({"metadata": {"name": name}, "stringData": data});
    let secret = serde_json::from_value(secret).unwrap();
    secrets(cluster).create(&PostParams::default(), &secret).await.expect("a secret");
}

async fn put_config_map(cluster: &Cluster, name: &str, data: Value) {
    let config_map = json!({"metadata": {"name": name}, "data": data});
    let config_map = serde_json::from_value(config_map).unwrap();
    config_maps(cluster).create(&PostParams::default(), &config_map).await.expect("a config map");
}

async fn change_secret(cluster: &Cluster, name: &str, data: Value) {
    let patch = Patch::Merge(json!({"stringData": data}));
    secrets(cluster).patch(name, &PatchParams::default(), &patch).await.expect("a change");
}

/// A pod whose container mounts each of these volumes at `/` and its name.
fn with_volumes(text: &str, volumes: Value) -> Value {
    let mut spec = script(text);
    let names = volumes.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap());
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    spec["containers"][0]["volumeMounts"] = mounts.collect();
    spec["volumes"] = volumes;
    spec
}

/// What a file holds in the container of a pod.
fn read(cluster: &Cluster, pod: &str, path: &str) -> String {
    let line = ["exec", pod, "-c", "c", "--", "cat", path];
    cluster.apiserver.kubectl().run(line).unwrap_or_else(|error| error.to_string())
}

async fn until_holds(cluster: &Cluster, pod: &str, path: &str, expected: &str) {
    wait_until(SOON, &format!("{pod}{path} holds {expected:?}"), async || {
        match read(cluster, pod, path) {
            text if text == expected => Ok(()),
            text => Err(text),
        }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
}

/// Where a volume of the pod lies on the host.
fn on_host(cluster: &Cluster, pod: &Pod, path: &str) -> PathBuf {
    cluster.node.root_dir().join("pods").join(uid(pod)).join("volumes").join(path)
}

#[tokio::test]
async fn volume_data_change_is_visible_at_once() {
    let cluster = Cluster::start().await;
    put_secret(&cluster, "s", json!({"k": "one"})).await;
    put_config_map(&cluster, "m", json!({"k": "one", "gone": "x"})).await;
    let volumes = json!([
        {"name": "key", "secret": {"secretName": "s"}},
        {"name": "conf", "configMap": {"name": "m"}},
        {"name": "later", "configMap": {"name": "later", "optional": true}},
        {"name": "all", "projected": {"sources": [
            {"secret": {"name": "s"}},
            {"configMap": {"name": "m", "items": [{"key": "k", "path": "dir/k"}]}},
            {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['a']"}}]}},
        ]}},
        {"name": "about", "downwardAPI": {"items": [
            {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['a']"}}]}},
    ]);
    let mut spec = with_volumes(FOREVER, volumes);
    let copy = json!({"name": "key", "mountPath": "/copy", "subPath": "k"});
    spec["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(copy);
    cluster.create("web", spec).await;
    let pod = cluster.until_ready("web").await;
    assert_eq!(read(&cluster, "web", "/key/k"), "one");
    let data =
        |kind: &str| std::fs::read_link(on_host(&cluster, &pod, kind).join("..data")).unwrap();
    let kinds =
        ["secret/key", "configmap/conf", "configmap/later", "projected/all", "downward-api/about"]
            .map(|kind| format!("kubernetes.io~{kind}"));
    let trees = || kinds.each_ref().map(|kind| data(kind));
    let written = |before: &[PathBuf; 5]| -> Vec<usize> {
        let after = trees();
        (0..5).filter(|index| before[*index] != after[*index]).collect()
    };

    let before = trees();
    let changed = Instant::now();
    change_secret(&cluster, "s", json!({"k": "two"})).await;
    until_holds(&cluster, "web", "/key/k", "two").await;
    until_holds(&cluster, "web", "/all/k", "two").await;
    println!("a change was there after {:?} at most", changed.elapsed());
    assert_eq!(written(&before), [0, 3], "the volumes that hold the secret");
    assert_eq!(read(&cluster, "web", "/copy"), "one", "a sub-path keeps what it was mounted with");

    let before = trees();
    let patch = Patch::Merge(json!({"data": {"k": "three", "gone": null}}));
    config_maps(&cluster).patch("m", &PatchParams::default(), &patch).await.expect("a change");
    until_holds(&cluster, "web", "/conf/k", "three").await;
    until_holds(&cluster, "web", "/all/dir/k", "three").await;
    assert!(read(&cluster, "web", "/conf/gone").contains("No such file"));
    assert_eq!(written(&before), [1, 3]);

    put_config_map(&cluster, "later", json!({"k": "here"})).await;
    until_holds(&cluster, "web", "/later/k", "here").await;

    let before = trees();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "note"}}}));
    cluster.pods().patch("web", &PatchParams::default(), &patch).await.expect("a change");
    until_holds(&cluster, "web", "/about/a", "note").await;
    until_holds(&cluster, "web", "/all/a", "note").await;
    assert_eq!(written(&before), [3, 4]);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn volume_data_missing_object_is_waited_for() {
    let cluster = Cluster::start().await;
    put_secret(&cluster, "half", json!({"other": "x"})).await;
    let missing = with_volumes(FOREVER, json!([{"name": "v", "secret": {"secretName": "none"}}]));
    let keyless = with_volumes(
        FOREVER,
        json!([{"name": "v", "secret": {"secretName": "half", "items": [{"key": "k", "path": "k"}]}}]),
    );
    let mut variable = script(FOREVER);
    variable["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "env"}}]);
    for (name, spec) in [("missing", missing), ("keyless", keyless), ("variable", variable)] {
        cluster.create(name, spec).await;
    }
    let says = |text: &str| format!("MountVolume.SetUp failed for volume \"v\" : {text}");
    cluster.until_event("FailedMount", &says("secret \"none\" not found")).await;
    cluster.until_event("FailedMount", &says("references non-existent secret key: k")).await;
    cluster.until_event("Failed", "configmap \"env\" not found").await;
    // Long enough for the pauses between attempts to be long.
    tokio::time::sleep(Duration::from_secs(4)).await;
    put_secret(&cluster, "none", json!({"k": "v"})).await;
    change_secret(&cluster, "half", json!({"k": "v"})).await;
    put_config_map(&cluster, "env", json!({"NAME": "value"})).await;
    for name in ["missing", "keyless", "variable"] {
        cluster.until_ready(name).await;
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn volume_data_is_followed_after_an_outage() {
    let mut cluster = Cluster::start().await;
    put_secret(&cluster, "s", json!({"k": "one"})).await;
    let spec = with_volumes(FOREVER, json!([{"name": "key", "secret": {"secretName": "s"}}]));
    cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    cluster.apiserver.daemon().kill().expect("the apiserver ends");
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.apiserver.restart(&cluster.host).expect("the apiserver is back");
    change_secret(&cluster, "s", json!({"k": "two"})).await;
    wait_until(common::TIMEOUT, "the change", async || match read(&cluster, "web", "/key/k") {
        text if text == "two" => Ok(()),
        text => Err(text),
    })
    .await
    .unwrap();
    assert_eq!(condition(&cluster.pod("web").await, "Ready"), "True");
    cluster.host.assert_clean();
}

/// A reader that looks all the time never sees half of a change.
#[tokio::test]
async fn volume_data_updates_are_atomic() {
    let cluster = Cluster::start().await;
    let data = |number: usize| {
        let all = (0..8).map(|key| (format!("k{key}"), json!(number.to_string())));
        Value::Object(all.collect())
    };
    put_config_map(&cluster, "m", data(0)).await;
    // `..data` is one directory for as long as it is open; files of an old one may go meanwhile.
    let command = "cd /m; while [ ! -e /tmp/stop ]; do \
        n=$(cd -P ..data && cat k0 k1 k2 k3 k4 k5 k6 k7 2>/dev/null | fold -w1 | sort -u | wc -l); \
        [ \"$n\" = 1 ] || [ \"$n\" = 0 ] || { echo torn $n; exit 1; }; done; echo whole";
    let text = format!("({command}) > /tmp/saw 2>&1; {FOREVER}");
    let mut spec = with_volumes(&text, json!([{"name": "m", "configMap": {"name": "m"}}]));
    spec["terminationGracePeriodSeconds"] = json!(1);
    cluster.create("web", spec).await;
    cluster.until_ready("web").await;
    for number in 1..10 {
        let patch = Patch::Merge(json!({"data": data(number)}));
        config_maps(&cluster).patch("m", &PatchParams::default(), &patch).await.expect("a change");
        until_holds(&cluster, "web", "/m/k7", &number.to_string()).await;
    }
    let stop = ["exec", "web", "-c", "c", "--", "touch", "/tmp/stop"];
    cluster.apiserver.kubectl().run(stop).expect("stop requested");
    until_holds(&cluster, "web", "/tmp/saw", "whole\n").await;
    cluster.host.assert_clean();
}

//! An etcd goes from kube-apiserver to this server and back, and each reads what the other has
//! written, as the other shows it. With `KUBE_APISERVER` and `ETCD` (paths of programs).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::upstream::{Etcd, apiserver, collection, documents};
use common::{Client, Cluster};
use longshore_apiserver::StorageMediaType;
use longshore_store::EtcdStore;
use serde_json::{Value, json};

/// Kinds that controllers of the servers themselves write to.
const CONTROLLED: [&str; 6] = [
    "APIService",
    "CustomResourceDefinition",
    "FlowSchema",
    "PriorityLevelConfiguration",
    "ServiceCIDR",
    "ValidatingAdmissionPolicy",
];

/// An object and its path.
type Kept = Vec<(String, Value)>;

/// As the other server shows it: Go has nulls where there is nothing.
fn comparable(mut object: Value) -> Value {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(clean);
            }
            Value::Array(list) => list.iter_mut().for_each(clean),
            _ => {}
        }
    }
    clean(&mut object);
    if CONTROLLED.contains(&object["kind"].as_str().unwrap_or_default()) {
        object.as_object_mut().unwrap().remove("status");
        for name in ["managedFields", "resourceVersion"] {
            object["metadata"].as_object_mut().unwrap().remove(name);
        }
    }
    object
}

async fn read(client: &Client, paths: impl Iterator<Item = &String>) -> Kept {
    let mut kept = Vec::new();
    for path in paths {
        let (code, object) = client.get(path).await;
        assert_eq!(code, 200, "{path}: {object}");
        kept.push((path.clone(), comparable(object)));
    }
    kept
}

async fn label(client: &Client, kept: &Kept, name: &str) {
    for (path, _) in kept {
        let change = json!({"metadata": {"labels": {name: "yes"}}});
        let (code, answer) = client.call("PATCH", path, Some(change)).await;
        assert_eq!(code, 200, "{path}: {answer}");
    }
}

fn check(who: &str, found: &Kept, expected: &Kept) {
    let wrong: Vec<String> = found
        .iter()
        .zip(expected)
        .filter(|(found, expected)| found != expected)
        .map(|((path, found), (_, expected))| format!("{path}: {found}\nand not {expected}"))
        .collect();
    assert!(wrong.is_empty(), "{who} reads otherwise:\n{}", wrong.join("\n"));
}

async fn ours(etcd: &str) -> Cluster {
    let store = Arc::new(EtcdStore::connect([etcd]).await.unwrap());
    Cluster::start_with(|config| {
        config.store = store;
        config.storage_media_type = StorageMediaType::Protobuf;
        config.service_range = "10.202.0.0/16".parse().unwrap();
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_of_an_etcd_and_back() {
    let paths = ["KUBE_APISERVER", "ETCD"].map(std::env::var_os);
    let [Some(program), Some(etcd)] = &paths else { return };
    let (program, etcd) = (Path::new(program), Path::new(etcd));
    // for the keys of tokens
    let other = Cluster::start().await;
    let (pki, dir) = (other.pki(), other.dir.path());
    let etcd = Etcd::start(etcd, dir).await;

    let (client, server) = apiserver(program, &etcd.url, &pki, dir).await;
    let mut objects = Vec::new();
    for object in documents() {
        let kind = object["kind"].as_str().unwrap();
        let name = object["metadata"]["name"].as_str();
        // whose address belongs to no service, and is taken back
        let Some(name) = name.filter(|_| !kind.ends_with("Review") && kind != "IPAddress") else {
            continue;
        };
        let path = collection(&client, &object).await;
        let (code, answer) = client.call("POST", &path, Some(object.clone())).await;
        assert!(code < 300, "{path}: {answer}");
        if kind != "Binding" {
            objects.push(format!("{path}/{name}"));
        }
    }
    assert!(objects.len() > 60, "{}", objects.len());
    let theirs = read(&client, objects.iter()).await;
    drop(server);

    let cluster = ours(&etcd.url).await;
    check("Longshore", &read(&cluster.admin, objects.iter()).await, &theirs);
    label(&cluster.admin, &theirs, "taken-over").await;
    let changed = read(&cluster.admin, objects.iter()).await;
    cluster.stop().await;

    let (client, server) = apiserver(program, &etcd.url, &pki, dir).await;
    check("kube-apiserver", &read(&client, objects.iter()).await, &changed);
    label(&client, &theirs, "given-back").await;
    let given_back = read(&client, objects.iter()).await;
    drop(server);

    let cluster = ours(&etcd.url).await;
    check("Longshore", &read(&cluster.admin, objects.iter()).await, &given_back);
    cluster.stop().await;
    other.stop().await;
}

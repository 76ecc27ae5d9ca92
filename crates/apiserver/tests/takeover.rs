//! What other servers have stored is read, and changed. An etcd goes from kube-apiserver to this
//! server and back with `KUBE_APISERVER` and `ETCD` (paths of programs): each reads what the other has
//! written, as the other shows it. Without, values that kube-apiserver 1.36 wrote are read.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::upstream::{Etcd, apiserver, collection, documents};
use common::{Client, Cluster};
use longshore_apiserver::Encryption;
use longshore_apiserver::StorageMediaType;
use longshore_store::{EmbeddedStore, EtcdStore, Expect, Store};
use serde_json::{Value, json};

const STORED: &str = include_str!("data/stored-1.36.jsonl");
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &[u8] = b"k8s\0";

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
        config.service_ranges = "10.202.0.0/16".parse().unwrap();
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

/// Both servers at once on one etcd: what one gives out the other does not, and what one releases
/// the other may give out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_shares_addresses_and_ports() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let paths = ["KUBE_APISERVER", "ETCD"].map(std::env::var_os);
    let [Some(program), Some(etcd)] = &paths else { return };
    // for the keys of tokens
    let other = Cluster::start().await;
    let (pki, dir) = (other.pki(), other.dir.path());
    let etcd = Etcd::start(Path::new(etcd), dir).await;
    let (client, server) = apiserver(Path::new(program), &etcd.url, &pki, dir).await;
    let cluster = ours(&etcd.url).await;
    let service = |name: &str, address: &Value, port: &Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {
            "type": "NodePort", "clusterIP": address, "ports": [{"port": 80, "nodePort": port}]}})
    };
    let none = Value::Null;
    let mut made = Vec::new();
    for round in 0..4 {
        for (who, admin) in [("theirs", &client), ("ours", &cluster.admin)] {
            let name = format!("{who}-{round}");
            made.push(admin.create(SERVICES, service(&name, &none, &none)).await);
        }
    }
    for service_of in &made {
        let spec = &service_of["spec"];
        let (address, port) = (&spec["clusterIP"], &spec["ports"][0]["nodePort"]);
        for admin in [&client, &cluster.admin] {
            let (code, error) =
                admin.call("POST", SERVICES, Some(service("again", address, &none))).await;
            let said = error["message"].as_str().unwrap();
            assert!(code == 422 && said.contains("provided IP is already allocated"), "{said}");
            let (code, error) =
                admin.call("POST", SERVICES, Some(service("again", &none, port))).await;
            let said = error["message"].as_str().unwrap();
            assert!(code == 422 && said.contains("provided port is already allocated"), "{said}");
        }
    }
    for (i, before) in made.iter().enumerate() {
        let spec = &before["spec"];
        let (address, port) = (&spec["clusterIP"], &spec["ports"][0]["nodePort"]);
        let (first, second) = match i % 4 {
            0 | 3 => (&client, &cluster.admin),
            _ => (&cluster.admin, &client),
        };
        let path = format!("{SERVICES}/{}", before["metadata"]["name"].as_str().unwrap());
        assert_eq!(first.call("DELETE", &path, None).await.0, 200);
        second.create(SERVICES, service(&format!("next-{i}"), address, port)).await;
    }
    let endpoints = "/api/v1/namespaces/default/endpoints/kubernetes";
    common::eventually("both are endpoints", || async {
        let (_, endpoints) = client.get(endpoints).await;
        let addresses = endpoints["subsets"][0]["addresses"].as_array().unwrap();
        addresses.iter().map(|it| it["ip"].as_str().unwrap()).collect::<Vec<_>>()
            == ["127.0.0.1", "192.0.2.1"]
    })
    .await;
    drop(server);
    cluster.stop().await;
    other.stop().await;
}

/// Where a stored object is served.
async fn path_of(client: &Client, object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let path = collection(client, object).await;
    let path = path.replace("/namespaces/default/", &format!("/namespaces/{namespace}/"));
    format!("{path}/{}", object["metadata"]["name"].as_str().unwrap())
}

async fn on(store: Arc<dyn Store>, media_type: StorageMediaType) -> Cluster {
    Cluster::start_with(|config| {
        config.store = store;
        config.storage_media_type = media_type;
        config.service_ranges = "10.202.0.0/16".parse().unwrap();
    })
    .await
}

async fn embedded(dir: &Path) -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::open(dir.join("objects")).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takeover_of_recorded_values() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded(dir.path()).await;
    let mut recorded = Vec::new();
    for line in STORED.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let value = STANDARD.decode(line["value"].as_str().unwrap()).unwrap();
        store.put(line["key"].as_str().unwrap(), value.into(), Expect::Absent, None).await.unwrap();
        recorded.push(line["object"].clone());
    }
    let cluster = on(store, StorageMediaType::Protobuf).await;
    for object in recorded {
        let path = path_of(&cluster.admin, &object).await;
        let (code, found) = cluster.admin.get(&path).await;
        assert_eq!(code, 200, "{path}: {found}");
        let without_version = |object: Value| {
            let mut object = comparable(object);
            object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            object
        };
        assert_eq!(without_version(found), without_version(object), "{path}");
        label(&cluster.admin, &vec![(path, Value::Null)], "taken-over").await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_form_changes_with_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded(dir.path()).await;
    let raw = async || {
        let found = store.get("/registry/configmaps/default/a").await.unwrap().unwrap();
        (found.value, found.mod_revision)
    };
    let cluster = on(store.clone(), StorageMediaType::Json).await;
    cluster.admin.create(CONFIG_MAPS, common::config_map("a", json!({"k": "v"}))).await;
    cluster.stop().await;
    assert!(raw().await.0.starts_with(b"{"));

    let cluster = on(store.clone(), StorageMediaType::Protobuf).await;
    let path = format!("{CONFIG_MAPS}/a");
    let (_, object) = cluster.admin.get(&path).await;
    assert!(raw().await.0.starts_with(b"{"), "reading changes nothing");
    // an update that changes nothing stores it anew, once
    let (_, first) = cluster.admin.call("PUT", &path, Some(object)).await;
    let (value, revision) = raw().await;
    assert!(value.starts_with(PROTOBUF));
    let mut same = first.clone();
    same["binaryData"] = json!({});
    let (code, second) = cluster.admin.call("PUT", &path, Some(same)).await;
    assert_eq!((code, &second), (200, &first));
    assert_eq!(raw().await.1, revision);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_form_below_encryption() {
    let dir = tempfile::tempdir().unwrap();
    let store = embedded(dir.path()).await;
    let file = dir.path().join("encryption.yaml");
    let config = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n\
        resources: [{resources: [configmaps], providers: [{aescbc: {keys: \
        [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}}, {identity: {}}]}]\n";
    std::fs::write(&file, config).unwrap();
    let encrypted = async || {
        let encryption = Encryption::load(&file, false).await.unwrap();
        encryption.encrypt(store.clone(), "/registry")
    };
    let cluster = on(encrypted().await, StorageMediaType::Protobuf).await;
    let made = cluster.admin.create(CONFIG_MAPS, common::config_map("a", json!({"k": "v"}))).await;
    cluster.stop().await;
    let raw = store.get("/registry/configmaps/default/a").await.unwrap().unwrap();
    assert!(raw.value.starts_with(b"k8s:enc:aescbc:v1:a:"));
    let inner = encrypted().await.get("/registry/configmaps/default/a").await.unwrap().unwrap();
    assert!(inner.value.starts_with(PROTOBUF));
    let cluster = on(encrypted().await, StorageMediaType::Json).await;
    assert_eq!(cluster.admin.get(&format!("{CONFIG_MAPS}/a")).await, (200, made));
    cluster.stop().await;
}

//! `longshore-apiserver snapshot` and `migrate`, on stores that have been served.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::upstream::Etcd;
use common::*;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Runs a command of the program: whether it succeeded, and what it said.
fn run(line: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore-apiserver"));
    let output = command.args(line.split(' ')).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn succeed(line: &str) -> String {
    let (done, said) = run(line);
    assert!(done, "{line}: {said}");
    said
}

fn fail(line: &str, why: &str) {
    let (done, said) = run(line);
    assert!(!done && said.contains(why), "{line}: {said}");
}

fn version_of(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Objects of several forms, and their list.
async fn fill(admin: &Client) -> Value {
    for i in 0..20 {
        admin.create(CONFIG_MAPS, config_map(&format!("c{i}"), json!({"a": "x".repeat(i)}))).await;
    }
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e1"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
    });
    admin.create("/api/v1/namespaces/default/events", event).await;
    admin.get(CONFIG_MAPS).await.1
}

/// The same objects, and a list that is not older.
async fn check(admin: &Client, before: &Value, same_versions: bool) -> Value {
    let (_, after) = admin.get(CONFIG_MAPS).await;
    assert!(version_of(&after) >= version_of(before));
    let items = |list: &Value| {
        let mut items = list["items"].as_array().unwrap().clone();
        for item in items.iter_mut().filter(|_| !same_versions) {
            item["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        }
        items
    };
    assert_eq!(items(&after), items(before));
    let made = admin.create(CONFIG_MAPS, config_map("new", json!({}))).await;
    assert!(version_of(&made) > version_of(&after));
    assert_eq!(admin.get("/api/v1/namespaces/default/events/e1").await.0, 200);
    let path = format!("{CONFIG_MAPS}/new");
    assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
    after
}

fn data_dir(path: &Path) -> String {
    format!("--data-dir={}", path.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_a_served_store_is_restored() {
    let mut daemon = Daemon::start(&[]);
    let before = fill(&daemon.client().await).await;
    let dir = daemon.dir.path().to_owned();
    let (old, file) = (data_dir(&dir.join("data")), dir.join("snapshot"));
    let file = file.display();
    let said = succeed(&format!("snapshot save {file} {old}"));
    assert!(said.contains("Saved"), "{said}");
    fail(&format!("snapshot save {file} {old}"), "is there already");
    fail(&format!("snapshot check {old}"), "is open in another process");
    fail(&format!("snapshot defrag {old}"), "is open in another process");
    succeed(&format!("snapshot check {file}"));
    daemon.terminate();
    assert!(!dir.join("data/snapshot.sock").exists());
    // as well without the apiserver
    succeed(&format!("snapshot save {file}-2 {old}"));
    succeed(&format!("snapshot check {old}"));
    succeed(&format!("snapshot defrag {old}"));

    let new = dir.join("restored");
    let flag = data_dir(&new);
    succeed(&format!("snapshot restore {file} {flag} --bump-revision=5000"));
    fail(&format!("snapshot restore {file} {flag}"), "is there already");
    succeed(&format!("snapshot check {flag}"));
    let mut bytes = std::fs::read(dir.join("snapshot")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(dir.join("damaged"), bytes).unwrap();
    fail(&format!("snapshot check {}", dir.join("damaged").display()), "cannot be used");

    std::fs::rename(dir.join("data"), dir.join("kept")).unwrap();
    std::fs::rename(&new, dir.join("data")).unwrap();
    let daemon = daemon.restart(&[]);
    let admin = daemon.client().await;
    let after = check(&admin, &before, true).await;
    assert!(version_of(&after) >= version_of(&before) + 5000);
    let old = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version_of(&before));
    let gone = admin.watch(&old).await.next().await.unwrap();
    assert_eq!((gone["type"].as_str(), &gone["object"]["code"]), (Some("ERROR"), &json!(410)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_to_etcd_and_back() {
    let mut daemon = Daemon::start(&[]);
    let before = fill(&daemon.client().await).await;
    let dir = daemon.dir.path().to_owned();
    let etcd = Etcd::start(Path::new("/usr/bin/etcd"), &dir).await;
    let servers = format!("--etcd-servers={}", etcd.url);
    let old = data_dir(&dir.join("data"));
    let to_etcd = format!("migrate --from=embedded --to=etcd {servers}");
    eventually("etcd serves", || async {
        !run(&format!("{to_etcd} --data-dir=/nowhere")).1.contains("etcd at")
    })
    .await;
    fail(&format!("{to_etcd} {old}"), "is open in another process");
    daemon.terminate();
    succeed(&format!("{to_etcd} {old}"));
    fail(&format!("{to_etcd} {old}"), "nothing is replaced");
    fail(&format!("migrate --from=etcd --to=etcd {servers}"), "the same kind");
    fail(&format!("migrate --from=etcd --to=embedded {servers} {old}"), "is there already");

    let mut daemon = daemon.restart(&[&servers]);
    let middle = check(&daemon.client().await, &before, false).await;
    daemon.terminate();
    let back = dir.join("back");
    succeed(&format!("migrate --from=etcd --to=embedded {servers} {}", data_dir(&back)));
    succeed(&format!("snapshot check {}", data_dir(&back)));
    std::fs::rename(dir.join("data"), dir.join("kept")).unwrap();
    std::fs::rename(&back, dir.join("data")).unwrap();
    let daemon = daemon.restart(&[]);
    check(&daemon.client().await, &middle, true).await;
}

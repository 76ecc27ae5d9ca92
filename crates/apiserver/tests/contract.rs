//! What is accepted and what is refused: one object of every kind (`data/objects.yaml`), as it is and
//! with each of its fields absent, null, of a wrong type, out of range, too long, doubled or unknown,
//! some 9,000 in all. Nothing is stored, as all are dry runs.
//!
//! Alone, the test sees to it that the objects themselves are accepted and that no variation is an
//! internal error. With `KUBE_APISERVER` and `ETCD` (paths of programs) it sends the same to
//! kube-apiserver and compares: whether an object is accepted, what is wrong with it, and warnings.
//! `CONTRACT_REPORT` names a file for all differences, as JSON lines.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use common::upstream::{Etcd, apiserver_with, collection, documents};
use common::{Client, Cluster};
use serde_json::{Value, json};

const LONG: usize = 300;

/// How a server answered.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: u16,
    /// Field and message of each cause, or the message alone.
    causes: BTreeSet<(String, String)>,
}

/// Everything that an object is changed to, with what was changed.
fn variations(object: &Value) -> Vec<(String, Value)> {
    let mut all = vec![("as it is".to_owned(), object.clone())];
    for place in places(object) {
        let mut without = object.clone();
        remove(&mut without, &place);
        all.push((format!("{place} absent"), without));
        for value in others(object.pointer(&place).unwrap()) {
            let mut changed = object.clone();
            *changed.pointer_mut(&place).unwrap() = value.clone();
            let mut text = value.to_string();
            text.truncate(text.floor_char_boundary(60));
            all.push((format!("{place} = {text}"), changed));
        }
    }
    all
}

/// JSON pointers to all that is in an object, but for the names of its type.
fn places(object: &Value) -> Vec<String> {
    let mut all = longshore_generators::pointers(object);
    all.retain(|place| !["/apiVersion", "/kind"].contains(&place.as_str()));
    all
}

fn remove(object: &mut Value, place: &str) {
    let (parent, last) = place.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent).unwrap() {
        Value::Object(map) => drop(map.remove(&last)),
        Value::Array(list) => drop(list.remove(last.parse().unwrap())),
        other => panic!("{other} has no parts"),
    }
}

/// What is off by default, and its feature gates.
const OPTIONAL: &str = "certificates.k8s.io/v1beta1/podcertificaterequests=true";
const OPTIONAL_GATES: &str = "PodCertificateRequest=true";

fn pod_certificate_request() -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1beta1",
        "kind": "PodCertificateRequest",
        "metadata": {"name": "web"},
        "spec": {
            "signerName": "example.com/s", "podName": "web", "podUID": "pod-uid",
            "serviceAccountName": "sa", "serviceAccountUID": "sa-uid", "nodeName": "n1",
            "nodeUID": "node-uid", "maxExpirationSeconds": 7200,
            "unverifiedUserAnnotations": {"example.com/a": "b"},
            "stubPKCS10Request": "MH8wMwIBADAAMCowBQYDK2VwAyEAOpAS605U03vEQJHw1AyUjvV0dYN/ye0d9srqrA+YkiSgADAFBgMrZXADQQCUIbA8+PAXRAprrJpDWqMBm0d2e36Hk5ycugRrgiRZSjRVjZMY29i2Yo/390DvL0oP3ICS0uKvZsQ7NHLo0XoP",
        },
    })
}

/// What may stand where a value is.
fn others(value: &Value) -> Vec<Value> {
    let mut others = match value {
        Value::Bool(given) => vec![json!(!given), json!("x")],
        Value::Number(_) => vec![json!(-1), json!(0), json!(1_u32 << 31), json!("x"), json!(1.5)],
        Value::String(_) => vec![json!(""), json!("Not Valid!"), json!("a".repeat(LONG)), json!(7)],
        Value::Array(list) => {
            let last = list.last().cloned().unwrap_or(json!(1));
            let doubled: Vec<Value> = list.iter().cloned().chain([last]).collect();
            vec![json!([]), json!(doubled), json!({})]
        }
        Value::Object(map) => {
            let mut more = map.clone();
            more.insert("bogus".to_owned(), json!("y"));
            vec![json!({}), Value::Object(more), json!([])]
        }
        Value::Null => Vec::new(),
    };
    others.push(Value::Null);
    others
}

async fn ask(client: &Client, path: &str, object: &Value) -> Answer {
    let path = format!("{path}?dryRun=All&fieldValidation=Strict");
    let (code, answer) = client.call("POST", &path, Some(object.clone())).await;
    if code < 300 {
        return Answer { code, causes: BTreeSet::new() };
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = answer["details"]["causes"].as_array().into_iter().flatten();
    let mut causes: BTreeSet<(String, String)> = causes
        .map(|cause| (without_indexes(&text(&cause["field"])), text(&cause["message"])))
        .collect();
    if causes.is_empty() {
        causes.insert((String::new(), text(&answer["message"])));
    }
    Answer { code, causes }
}

fn without_indexes(field: &str) -> String {
    let parts = field.split('[').enumerate();
    parts
        .map(|(i, part)| if i == 0 { part } else { part.split_once(']').map_or("", |p| p.1) })
        .collect()
}

#[tokio::test]
async fn contract_of_every_kind() {
    let cluster = Cluster::start_with(|config| {
        config.service_ranges = "10.202.0.0/16".parse().unwrap();
        config.gates = OPTIONAL_GATES.parse().unwrap();
        config.runtime_config = OPTIONAL.parse().unwrap();
    })
    .await;
    let paths = ["KUBE_APISERVER", "ETCD"].map(std::env::var_os);
    let upstream = match &paths {
        [Some(server), Some(etcd)] => {
            let (server, etcd) = (Path::new(server), Path::new(etcd));
            let dir = cluster.dir.path();
            let etcd = Etcd::start(etcd, dir).await;
            let more = [
                format!("--feature-gates={OPTIONAL_GATES}"),
                format!("--runtime-config={OPTIONAL}"),
            ];
            let pki = cluster.pki();
            let (client, server) = apiserver_with(server, &etcd.url, &pki, dir, &more).await;
            Some((client, [etcd.program, server]))
        }
        _ => None,
    };
    let mut report = std::env::var_os("CONTRACT_REPORT").map(|path| File::create(path).unwrap());
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for object in documents().into_iter().chain([pod_certificate_request()]) {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let path = collection(&cluster.admin, &object).await;
        for (what, variation) in variations(&object) {
            let ours = ask(&cluster.admin, &path, &variation).await;
            let is_itself = what == "as it is";
            if ours.code >= 500 || (is_itself && ours.code >= 300) {
                wrong.push(format!("{kind}: {what}: {ours:?}"));
            }
            let Some((client, _)) = &upstream else { continue };
            let (client, path) = (client.clone(), path.clone());
            let asked = tokio::spawn(async move { ask(&client, &path, &variation).await }).await;
            // It panics on some that are refused in words here, and closes the connection.
            let panicked = |_| Answer { code: 500, causes: BTreeSet::new() };
            let theirs = asked.unwrap_or_else(panicked);
            let differs = theirs.code < 500 && ours != theirs;
            let [all, differ] = counts.entry(kind.clone()).or_default();
            *all += 1;
            *differ += usize::from(differs);
            if let Some(report) = report.as_mut().filter(|_| differs) {
                let line = json!({
                    "kind": kind, "what": what,
                    "kube-apiserver": format!("{theirs:?}"), "longshore": format!("{ours:?}"),
                });
                writeln!(report, "{line}").unwrap();
            }
            if differs && ours.code < 300 {
                wrong.push(format!("{kind}: {what}: accepted, while upstream says {theirs:?}"));
            }
        }
    }
    for (kind, [all, differ]) in counts.iter().filter(|(_, [_, differ])| *differ > 0) {
        println!("{kind}: of {all} variations {differ} are answered otherwise");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.stop().await;
}

//! Answers to odd requests: some 1,400 of them, recorded from kube-apiserver 1.36 in
//! `data/answers-1.36.jsonl`, and compared with ours by code, media type, warnings, every field of a Status,
//! and the kind of everything else.
//!
//! With `KUBE_APISERVER` and `ETCD` (paths of programs) the same requests go to kube-apiserver, too, and have
//! to be answered as they are recorded; with `ANSWERS_RECORD` as well, they are recorded anew.
//!
//! A line of the file is a request with its `answer`. With `until` the request is repeated until it is
//! answered with that code; a `setup` is not compared. Where this server answers otherwise, `own` is its
//! answer and `why` says why.

use crate::common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::Cluster;
use common::upstream::{Etcd, TOKEN, start_apiserver};
use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response, header};
use hyper_util::client::legacy::Client as Connection;
use hyper_util::client::legacy::connect::Connect;
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt;
use serde_json::{Map, Value, json};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/answers-1.36.jsonl");
/// How long an answer may take, and a request be repeated.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of a text is compared, in characters.
const SHOWN: usize = 60;

/// A server to send requests to.
struct Server<C> {
    connection: Connection<C, Full<Bytes>>,
    url: String,
}

/// Connects with the certificate or the token of a configuration.
fn server(config: &kube::Config) -> Server<impl Connect + Clone + Send + Sync + 'static> {
    let connector = config.rustls_https_connector().unwrap();
    Server {
        connection: Connection::builder(TokioExecutor::new()).build(connector),
        url: config.cluster_url.to_string().trim_end_matches('/').to_owned(),
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> Server<C> {
    /// The answer to a request of the file.
    async fn answer(&self, request: &Value) -> Value {
        let started = Instant::now();
        loop {
            let answer = tokio::time::timeout(PATIENCE, self.send(request)).await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {request}"));
            let is_there = request.get("until").is_none_or(|code| answer["code"] == *code);
            if is_there || started.elapsed() > PATIENCE {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The answers to all requests, in their order. Watches that follow each other last together.
    async fn answers(&self, requests: &[Value]) -> Vec<Value> {
        let is_watch =
            |request: &Value| request["path"].as_str().unwrap().contains("timeoutSeconds=1");
        let mut answers = Vec::new();
        for group in requests.chunk_by(|one, next| is_watch(one) && is_watch(next)) {
            answers.extend(join_all(group.iter().map(|request| self.answer(request))).await);
        }
        answers
    }

    async fn send(&self, request: &Value) -> Value {
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        let method = Method::from_bytes(text("method").as_bytes()).unwrap();
        let mut builder =
            Request::builder().method(method).uri(format!("{}{}", self.url, text("path")));
        let given = request["headers"].as_object();
        for (name, value) in given.into_iter().flatten() {
            builder = builder.header(name, value.as_str().unwrap());
        }
        if given.is_none_or(|given| !given.contains_key("authorization")) {
            builder = builder.header(header::AUTHORIZATION, format!("Bearer {TOKEN}"));
        }
        let body = Full::new(Bytes::from(text("body")));
        let response = self.connection.request(builder.body(body).unwrap()).await;
        match response {
            Ok(response) => digest(response).await,
            // it panics on some
            Err(_) => json!({"code": 0}),
        }
    }
}

/// What is compared of an answer.
async fn digest(response: Response<hyper::body::Incoming>) -> Value {
    let (head, body) = response.into_parts();
    let text = |name: header::HeaderName| {
        head.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    let media_type = text(header::CONTENT_TYPE);
    let mut digest = json!({"code": head.status.as_u16(), "type": media_type});
    if let Some(value) = text(header::LOCATION) {
        digest["location"] = value.into();
    }
    let warnings = head.headers.get_all(header::WARNING).iter();
    let mut warnings: Vec<String> = warnings.map(|value| normal(value.to_str().unwrap())).collect();
    warnings.sort_unstable();
    if !warnings.is_empty() {
        digest["warnings"] = warnings.into();
    }
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    let media_type = media_type.unwrap_or_default();
    let object: Option<Value> = match media_type.as_str() {
        "application/yaml" => Some(serde_saphyr::from_str(&body).unwrap()),
        media_type if media_type.contains("protobuf") => None,
        _ => serde_json::from_str(&body).ok(),
    };
    match object {
        Some(object) if object["kind"] == "Status" => digest["status"] = status(object),
        Some(object) if object["type"].is_string() && object["object"].is_object() => {
            digest["events"] = events(&body);
        }
        Some(Value::Object(map)) => {
            let mut fields: Vec<&String> = map.keys().collect();
            fields.sort_unstable();
            digest["object"] = match map.get("kind") {
                Some(kind) => json!([kind, map.get("apiVersion")]),
                None if map.contains_key("swagger") || map.contains_key("openapi") => {
                    json!("OpenAPI")
                }
                None => json!(fields),
            };
        }
        _ if body.starts_with("{\"type\"") => digest["events"] = events(&body),
        // metrics have their own tests
        _ if media_type.contains("version=0.0.4") => {}
        _ if media_type.contains("protobuf") => digest["length"] = (!body.is_empty()).into(),
        _ => digest["text"] = body.chars().take(SHOWN).collect::<String>().into(),
    }
    digest
}

/// The kinds of events, each once.
fn events(lines: &str) -> Value {
    let mut events: Vec<Value> = Vec::new();
    for line in lines.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let event = json!([event["type"], event["object"]["kind"]]);
        if !events.contains(&event) {
            events.push(event);
        }
    }
    events.into()
}

/// A Status without what differs from run to run. The same cause is named twice where kube-apiserver checks
/// something twice: it counts once.
fn status(mut status: Value) -> Value {
    let map = status.as_object_mut().unwrap();
    map.remove("metadata");
    if let Some(message) = map.get_mut("message") {
        *message = normal(message.as_str().unwrap()).into();
    }
    let Some(details) = map.get_mut("details").and_then(Value::as_object_mut) else {
        return status;
    };
    for field in ["uid", "name"] {
        if let Some(value) = details.get_mut(field) {
            let text = normal(value.as_str().unwrap());
            *value = if text.starts_with("x_") { "x_RANDOM".into() } else { text.into() };
        }
    }
    if let Some(causes) = details.get_mut("causes").and_then(Value::as_array_mut) {
        let mut once: Vec<Value> = Vec::new();
        for cause in causes.iter() {
            let texts = cause.as_object().unwrap().iter();
            let cause: Map<String, Value> = texts
                .map(|(name, value)| (name.clone(), normal(value.as_str().unwrap()).into()))
                .collect();
            let cause = Value::Object(cause);
            if !once.contains(&cause) {
                once.push(cause);
            }
        }
        *causes = once;
    }
    status
}

/// A text without what differs from run to run.
fn normal(text: &str) -> String {
    let text = replaced(text, "Invalid value: \"{", "}\": ", "OBJECT", true);
    let text = replaced(&text, "Invalid value: {\"name\":\"x\",\"m", "}: ", "METADATA", true);
    // The words of the YAML reader are its own.
    let text = replaced(&text, "yaml: ", "", "FAULT", true);
    let text = replaced(&text, "current: ", "", "N", true);
    let text = replaced(&text, "in record (", ")", "N", false);
    let text = replaced(&text, "ResourceVersion in object meta: ", "", "N", true);
    let text = replaced(&text, "Key: ", ",", "KEY", false);
    let text = replaced(&text, "\"x_", "\"", "RANDOM", false);
    without_uids(&text)
}

/// The text with something else between `start` and `end`: the next one, or the last one if it is `greedy`.
fn replaced(text: &str, start: &str, end: &str, with: &str, greedy: bool) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(start) {
        let found = match (end, greedy) {
            ("", _) => Some(("", "")),
            (end, true) => after.rsplit_once(end),
            (end, false) => after.split_once(end),
        };
        let Some((_, after)) = found else { break };
        result.push_str(before);
        result.push_str(start);
        result.push_str(with);
        result.push_str(end);
        rest = after;
    }
    result + rest
}

fn without_uids(text: &str) -> String {
    let is_uid = |part: &[char]| {
        part.iter().enumerate().all(|(at, character)| match at {
            8 | 13 | 18 | 23 => *character == '-',
            _ => character.is_ascii_hexdigit(),
        })
    };
    let characters: Vec<char> = text.chars().collect();
    let (mut result, mut at) = (String::new(), 0);
    while at < characters.len() {
        match characters.get(at..at + 36) {
            Some(part) if is_uid(part) => {
                result.push_str("UID");
                at += 36;
            }
            _ => {
                result.push(characters[at]);
                at += 1;
            }
        }
    }
    result
}

/// How two answers differ, if they do.
fn difference(request: &Value, expected: &Value, found: &Value) -> Option<String> {
    let shown = |request: &Value| {
        let mut request = request.as_object().unwrap().clone();
        for field in ["answer", "own", "why"] {
            request.remove(field);
        }
        Value::Object(request)
    };
    (expected != found)
        .then(|| format!("{}\n  expected {expected}\n  found    {found}", shown(request)))
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_kube_apiserver() {
    let recorded = std::fs::read_to_string(RECORDED).unwrap();
    let requests: Vec<Value> =
        recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&tokens, format!("{TOKEN},admin,1,system:masters\n")).unwrap();
    let cluster = Cluster::start_with(|config| {
        config.service_ranges = "10.202.0.0/16".parse().unwrap();
        config.authentication.token_file = Some(tokens.path().to_owned());
    })
    .await;
    let mut config = common::config(&cluster.kubeconfig()).await;
    // the token has to do
    config.auth_info = kube::config::AuthInfo::default();
    let own = server(&config);
    let mut wrong = Vec::new();
    for (request, found) in requests.iter().zip(own.answers(&requests).await) {
        if request.get("setup").is_none() {
            let expected = request.get("own").unwrap_or(&request["answer"]);
            wrong.extend(difference(request, expected, &found));
        }
    }
    let paths = ["KUBE_APISERVER", "ETCD"].map(std::env::var_os);
    if let [Some(program), Some(etcd)] = &paths {
        let dir = cluster.dir.path();
        let etcd = Etcd::start(Path::new(etcd), dir).await;
        let pki = cluster.pki();
        let (config, _program) = start_apiserver(Path::new(program), &etcd.url, &pki, dir).await;
        let upstream = server(&config);
        let mut lines = String::new();
        for (request, found) in requests.iter().zip(upstream.answers(&requests).await) {
            let mut line = request.clone();
            if request.get("setup").is_none() {
                wrong.extend(difference(request, &request["answer"], &found));
                line["answer"] = found;
            }
            lines.push_str(&format!("{line}\n"));
        }
        if std::env::var_os("ANSWERS_RECORD").is_some() {
            std::fs::write(RECORDED, lines).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

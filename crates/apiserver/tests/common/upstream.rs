//! Upstream's programs, and the objects that both servers are given.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::Client;

const OBJECTS: &str = include_str!("../data/objects.yaml");
/// The token of an administrator.
pub const TOKEN: &str = "contract-test";
const LOG: &str = "upstream.log";

/// A program that ends with the test.
pub struct Program(Child);

impl Program {
    pub fn start(program: &Path, args: Vec<String>, dir: &Path) -> Program {
        let log = File::options().create(true).append(true).open(dir.join(LOG)).unwrap();
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Program(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of what the programs said.
fn log_of(dir: &Path) -> String {
    let text = std::fs::read_to_string(dir.join(LOG)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An etcd of its own.
pub struct Etcd {
    pub program: Program,
    pub url: String,
    peer: String,
}

impl Etcd {
    pub async fn start(program: &Path, dir: &Path) -> Etcd {
        let (client, peer) = (free_port(), free_port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (url, peer) = (url(client), url(peer));
        Etcd { program: Program::start(program, Etcd::args(&url, &peer, dir), dir), url, peer }
    }

    fn args(url: &str, peer: &str, dir: &Path) -> Vec<String> {
        vec![
            format!("--data-dir={}", dir.join("etcd").display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
        ]
    }

    /// Kills it and starts it again on the same data.
    pub fn restart(&mut self, program: &Path, dir: &Path) {
        self.program.kill();
        self.program = Program::start(program, Etcd::args(&self.url, &self.peer, dir), dir);
    }

    /// Waits until it answers.
    pub async fn ready(&self) {
        super::eventually("etcd answers", || async {
            longshore_store::EtcdStore::connect([self.url.as_str()]).await.is_ok()
        })
        .await;
    }
}

/// kube-apiserver on an etcd, as an administrator.
pub async fn apiserver(program: &Path, etcd: &str, pki: &Path, dir: &Path) -> (Client, Program) {
    apiserver_with(program, etcd, pki, dir, &[]).await
}

/// The same with further flags.
pub async fn apiserver_with(
    program: &Path,
    etcd: &str,
    pki: &Path,
    dir: &Path,
    more: &[String],
) -> (Client, Program) {
    let (config, server) = start_apiserver_with(program, etcd, pki, dir, more).await;
    let client = Client(kube::Client::try_from(config).unwrap());
    client.ensure_default_account("default").await;
    (client, server)
}

/// The same with what a client needs.
pub async fn start_apiserver(
    program: &Path,
    etcd: &str,
    pki: &Path,
    dir: &Path,
) -> (kube::Config, Program) {
    start_apiserver_with(program, etcd, pki, dir, &[]).await
}

async fn start_apiserver_with(
    program: &Path,
    etcd: &str,
    pki: &Path,
    dir: &Path,
    more: &[String],
) -> (kube::Config, Program) {
    let port = free_port();
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, format!("{TOKEN},admin,1,system:masters\n")).unwrap();
    let key = pki.join("sa.key");
    let mut args = vec![
        format!("--etcd-servers={etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=192.0.2.1".to_owned(),
        format!("--cert-dir={}", dir.join("certs").display()),
        format!("--token-auth-file={}", tokens.display()),
        format!("--service-account-key-file={}", pki.join("sa.pub").display()),
        format!("--service-account-signing-key-file={}", key.display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        "--service-cluster-ip-range=10.202.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
    ];
    args.extend_from_slice(more);
    let server = Program::start(program, args, dir);
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    config.accept_invalid_certs = true;
    config.proxy_url = None;
    config.auth_info.token = Some(TOKEN.to_owned().into());
    let client = Client(kube::Client::try_from(config.clone()).unwrap());
    let mut last = String::new();
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let request = hyper::Request::get("/readyz").body(Vec::new()).unwrap();
        match client.0.request_text(request).await {
            Ok(_) => return (config, server),
            Err(error) => last = format!("{error:?}"),
        }
    }
    panic!("kube-apiserver is not ready: {last}\n{}", log_of(dir));
}

/// One object of every kind.
pub fn documents() -> Vec<Value> {
    OBJECTS
        .split("\n---\n")
        .map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
        .collect()
}

/// The path that an object is created at, by the server's own discovery.
pub async fn collection(client: &Client, object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap();
    let base = match version {
        "v1" => "/api/v1".to_owned(),
        other => format!("/apis/{other}"),
    };
    let (_, list) = client.get(&base).await;
    let resource = list["resources"].as_array().into_iter().flatten().find(|resource| {
        resource["kind"] == object["kind"] && !resource["name"].as_str().unwrap().contains('/')
    });
    let resource = resource.unwrap_or_else(|| panic!("{version} {} is not served", object["kind"]));
    let name = resource["name"].as_str().unwrap();
    match resource["namespaced"] == true {
        true => format!("{base}/namespaces/default/{name}"),
        false => format!("{base}/{name}"),
    }
}

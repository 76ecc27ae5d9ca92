//! How many questions a second one core answers, and how long each takes: a server with so many
//! services on a thread of its own, and clients over loopback. `make bench-dns`.
#![allow(clippy::arithmetic_side_effects, clippy::cast_precision_loss, reason = "a tool of tests")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use hickory_server::proto::op::{Message, MessageType, OpCode, Query};
use hickory_server::proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use kube::{Api, Client};
use longshore_apiserver::args::Cli;
use longshore_client::{ConfigSource, Limits};
use longshore_dns::{Config, PodNames, Server};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

/// Measures the DNS server.
#[derive(Debug, Parser)]
struct Args {
    /// Services of the cluster.
    #[arg(long, default_value_t = 200)]
    services: usize,
    /// Questions.
    #[arg(long, default_value_t = 200_000)]
    count: usize,
    /// Clients, each with one question at a time.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Another server to measure, that has a name; no cluster is made.
    #[arg(long)]
    server: Option<SocketAddr>,
    /// The name to ask that server for.
    #[arg(long, default_value = "kubernetes.default.svc.cluster.local.")]
    name: String,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(server) = args.server {
        return load(&args, server, std::slice::from_ref(&args.name)).map(|report| report.print(0));
    }
    let dir = tempfile::tempdir()?;
    let stop = CancellationToken::new();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (path, stopped, services) = (dir.path().to_owned(), stop.clone(), args.services);
    let cluster = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(apiserver(&path, services, sender, stopped))
    });
    let client = receiver.recv().context("no apiserver")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let stopped = stop.clone();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(serve(client, sender, stopped))
    });
    let (address, thread) = receiver.recv().context("no server")?;
    let name = |at| format!("s{at}.default.svc.cluster.local.");
    let names: Vec<String> = (0..args.services).map(name).collect();
    wait_for(address, names.last().context("no services")?)?;
    let before = cpu(&thread)?;
    let report = load(&args, address, &names)?;
    report.print(cpu(&thread)?.saturating_sub(before));
    stop.cancel();
    let joined = [server.join(), cluster.join()];
    joined.into_iter().try_for_each(|end| end.unwrap_or(Ok(())))
}

async fn apiserver(
    dir: &std::path::Path,
    services: usize,
    to: std::sync::mpsc::Sender<Client>,
    stop: CancellationToken,
) -> Result<()> {
    let cli = Cli::try_parse_from([
        "longshore-apiserver",
        "--secure-port=0",
        "--bind-address=127.0.0.1",
        &format!("--data-dir={}", dir.join("data").display()),
        &format!("--cert-dir={}", dir.join("pki").display()),
    ])?;
    let server = longshore_apiserver::Server::start(cli.serve.config().await?).await?;
    let source = ConfigSource::Kubeconfig(server.admin_kubeconfig().to_owned());
    let limits = Limits { component: "bench", qps: 0, burst: 0, timeout: Duration::from_secs(15) };
    let metrics = longshore_metrics::RestClient::new(&longshore_metrics::Registry::default());
    let client = longshore_client::connect(&source.into(), limits, metrics).await?;
    let serving = tokio::spawn(server.run(stop));
    let api: Api<Service> = Api::namespaced(client.clone(), "default");
    for at in 0..services {
        let object = json!({"metadata": {"name": format!("s{at}")},
            "spec": {"ports": [{"name": "http", "port": 80}]}});
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    to.send(client)?;
    serving.await?;
    Ok(())
}

/// The address, and the file with the CPU time of the thread.
type Started = (SocketAddr, String);

async fn serve(
    client: Client,
    to: std::sync::mpsc::Sender<Started>,
    stop: CancellationToken,
) -> Result<()> {
    let config = Config {
        cluster_domain: "cluster.local".to_owned(),
        ttl: 30,
        pods: PodNames::Insecure,
        listen: vec!["127.0.0.1:0".parse()?],
        forward: Vec::new(),
        resolv_conf: None,
        metrics: None,
        health: None,
        ready: None,
        lameduck: Duration::ZERO,
    };
    let server = Server::bind(&config)?;
    let thread = format!("/proc/self/task/{}/schedstat", nix::unistd::gettid());
    to.send((server.addresses()[0], thread))?;
    server.run(client, stop).await;
    Ok(())
}

/// CPU time of a thread in nanoseconds.
fn cpu(schedstat: &str) -> Result<u64> {
    let text = std::fs::read_to_string(schedstat)?;
    Ok(text.split_whitespace().next().context("no CPU time")?.parse()?)
}

fn question(name: &str, id: u16) -> Result<Vec<u8>> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name)?, RecordType::A));
    Ok(message.to_vec()?)
}

fn wait_for(server: SocketAddr, name: &str) -> Result<()> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut buffer = [0; 4096];
    while Instant::now() < deadline {
        socket.send_to(&question(name, 1)?, server)?;
        let length = socket.recv(&mut buffer).unwrap_or_default();
        if Message::from_vec(&buffer[..length]).is_ok_and(|answer| !answer.answers.is_empty()) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("{name} has no address")
}

struct Report {
    took: Duration,
    latencies: Vec<Duration>,
    lost: usize,
}

impl Report {
    /// `cpu` is that of the server in nanoseconds, if it is known.
    fn print(mut self, cpu: u64) {
        self.latencies.sort();
        let count = self.latencies.len();
        let at = |part: f64| {
            let index = ((count as f64 * part) as usize).min(count.saturating_sub(1));
            self.latencies.get(index).copied().unwrap_or_default()
        };
        println!("questions answered   {count} ({} lost)", self.lost);
        println!("a second             {:.0}", count as f64 / self.took.as_secs_f64());
        if cpu > 0 {
            println!("a second of one core {:.0}", count as f64 / (cpu as f64 / 1e9));
        }
        println!("latency p50 {:?}  p99 {:?}  p99.9 {:?}", at(0.5), at(0.99), at(0.999));
    }
}

fn load(args: &Args, server: SocketAddr, names: &[String]) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let began = Instant::now();
        let each = args.count / args.clients.max(1);
        let client = |number: usize| async move {
            let socket = UdpSocket::bind("127.0.0.1:0").await?;
            socket.connect(server).await?;
            let (mut latencies, mut lost) = (Vec::with_capacity(each), 0);
            let mut buffer = [0; 4096];
            for at in 0..each {
                let name = &names[(number * 7919 + at) % names.len()];
                let query = question(name, (at % 65_536) as u16)?;
                let sent = Instant::now();
                socket.send(&query).await?;
                let answer = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut buffer));
                // a late answer to the question before counts for this one
                match answer.await.unwrap_or(Ok(0))? {
                    0 => lost += 1,
                    _ => latencies.push(sent.elapsed()),
                }
            }
            anyhow::Ok((latencies, lost))
        };
        let all = futures::future::join_all((0..args.clients).map(client)).await;
        let took = began.elapsed();
        let mut report = Report { took, latencies: Vec::new(), lost: 0 };
        for one in all {
            let (latencies, lost) = one?;
            report.latencies.extend(latencies);
            report.lost += lost;
        }
        Ok(report)
    })
}

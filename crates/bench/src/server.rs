//! `make bench-server`: what the node's ports cost with all pods on it, and what a flood leaves.
//!
//! Asks the read-only port, which serves results as 10250 does but without encryption and leave, so
//! that these are not what is measured.
mod scrape;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::PostParams;
use longshore_testkit::{BUSYBOX, Host, NodeOptions};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::scrape::Scrapes;
use crate::Args;
use crate::burst;
use crate::cluster::Cluster;
use crate::process::Memory;
use crate::statistics::Spread;

/// How often the summary is asked for.
const SUMMARIES: usize = 30;
/// Between two of these.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// Requests of the flood.
const FLOOD: usize = 100_000;
/// Lines that the followed container writes as fast as it can, of this length.
const LINES: usize = 600_000;
const LINE: usize = 1000;

/// What was found at the node's ports.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Server {
    pub(crate) pods: u16,
    /// Milliseconds that an answer of `/stats/summary` took.
    pub(crate) summary_ms: Spread,
    pub(crate) scrape: Scrapes,
    pub(crate) follow: Follow,
    pub(crate) flood: Flood,
}

/// `kubectl logs -f` of a container that writes as fast as it can.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Follow {
    pub(crate) mib_per_second: f64,
    /// Lines that did not come, or came twice.
    pub(crate) lost: usize,
    /// Of the node, in MiB.
    pub(crate) before: Memory,
    pub(crate) after: Memory,
}

/// Requests with distinct paths and labels.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Flood {
    pub(crate) requests: usize,
    pub(crate) before: Memory,
    pub(crate) after: Memory,
    /// Lines of `/metrics`.
    pub(crate) series_before: usize,
    pub(crate) series_after: usize,
}

/// Measures on a host of its own.
pub(crate) async fn run(args: &Args) -> Result<Server> {
    let mut host = Host::start()?;
    let server = measure(&mut host, args.pods).await?;
    host.teardown()?;
    Ok(server)
}

async fn measure(host: &mut Host, pods: u16) -> Result<Server> {
    let config = json!({"readOnlyPort": 10255, "maxPods": 200});
    let config = config.as_object().cloned().unwrap_or_default();
    let options = NodeOptions { config, ..NodeOptions::default() };
    let mut cluster = Cluster::start_with(host, options).await?;
    let names: Vec<String> = (0..pods).map(|n| format!("bench-{n}")).collect();
    burst::run(&mut cluster, &names, false).await?;

    let mut port = Port::open(&cluster).await?;
    let mut summaries = Vec::new();
    for _ in 0..SUMMARIES {
        let began = Instant::now();
        port.get("/stats/summary").await?;
        summaries.push(began.elapsed().as_secs_f64() * 1000.0);
        tokio::time::sleep(PAUSE).await;
    }
    let scrape = scrape::measure(&mut cluster, &mut port).await?;
    let follow = follow(&mut cluster).await?;
    let flood = flood(&mut cluster, &mut port).await?;
    cluster.stop()?;
    Ok(Server {
        pods,
        summary_ms: Spread::of(summaries).context("no summary")?,
        scrape,
        follow,
        flood,
    })
}

async fn follow(cluster: &mut Cluster<'_>) -> Result<Follow> {
    let script = format!(
        "sleep 2; awk 'BEGIN {{ s = sprintf(\"%{}s\", \"\"); for (i = 0; i < {LINES}; i++) print i s; \
         print \"end\" }}'; sleep 1000",
        LINE - 8
    );
    let pod = json!({
        "metadata": {"name": "writer"},
        "spec": {"nodeName": cluster.host.name(), "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
        }]},
    });
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let before = cluster.uses()?.node.memory;
    let mut command = cluster.kubectl().command();
    command.args(["logs", "-f", "--pod-running-timeout=60s", "writer"]);
    let reading = tokio::task::spawn_blocking(move || read_lines(command));
    let (seconds, bytes, lost) = reading.await??;
    let after = cluster.uses()?.node.memory;
    #[allow(clippy::cast_precision_loss, reason = "for display only")]
    let mib_per_second = bytes as f64 / f64::from(1 << 20) / seconds;
    Ok(Follow { mib_per_second, lost, before, after })
}

/// Seconds from the first line to the last, bytes, and the lines that are not in their place.
fn read_lines(mut command: std::process::Command) -> Result<(f64, usize, usize)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?);
        let (mut line, mut bytes, mut expected, mut wrong) = (String::new(), 0, 0, 0);
        let mut began = None;
        while lines.read_line(&mut line)? > 0 {
            began.get_or_insert_with(Instant::now);
            bytes += line.len();
            if line.trim() == "end" {
                break;
            }
            wrong += usize::from(line.trim().parse() != Ok(expected));
            expected += 1;
            line.clear();
        }
        let _ = child.kill();
        child.wait()?;
        match began {
            Some(began) => {
                let lost = wrong + LINES.abs_diff(expected);
                return Ok((began.elapsed().as_secs_f64(), bytes, lost));
            }
            None if Instant::now() > deadline => bail!("kubectl logs gives nothing"),
            // the container has yet to start
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

async fn flood(cluster: &mut Cluster<'_>, port: &mut Port) -> Result<Flood> {
    let series_before = port.get("/metrics").await?.lines().count();
    let before = cluster.uses()?.node.memory;
    for n in 0..FLOOD {
        port.request(&format!("/x{n}/y{}?label{n}={n}", n * 7), &format!("X-Label-{n}: {n}"))
            .await?;
    }
    let series_after = port.get("/metrics").await?.lines().count();
    let after = cluster.uses()?.node.memory;
    Ok(Flood { requests: FLOOD, before, after, series_before, series_after })
}

/// A connection to the node's read-only port.
pub(crate) struct Port(tokio::io::BufReader<TcpStream>);

impl Port {
    async fn open(cluster: &Cluster<'_>) -> Result<Self> {
        let socket = TcpStream::connect((cluster.host.node_ip(), 10255)).await?;
        socket.set_nodelay(true)?;
        Ok(Self(tokio::io::BufReader::new(socket)))
    }

    /// The body of that path's answer.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        match self.request(path, "Accept: */*").await? {
            (200, body) => Ok(body),
            (code, body) => bail!("GET {path}: {code}: {body}"),
        }
    }

    async fn request(&mut self, path: &str, header: &str) -> Result<(u16, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\n{header}\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).await?;
        let head = self.head().await?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.with_context(|| format!("no status in {head:?}"))?;
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let mut body = Vec::new();
        if header("transfer-encoding") == Some("chunked") {
            loop {
                let mut size = String::new();
                self.0.read_line(&mut size).await?;
                let start = body.len();
                let count = usize::from_str_radix(size.trim(), 16)?;
                body.resize(start + count + 2, 0);
                self.0.read_exact(&mut body[start..]).await?;
                body.truncate(start + count);
                if count == 0 {
                    break;
                }
            }
        } else {
            body.resize(header("content-length").unwrap_or("0").parse()?, 0);
            self.0.read_exact(&mut body).await?;
        }
        Ok((code, String::from_utf8(body)?))
    }

    async fn head(&mut self) -> Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).await? == 0 {
                bail!("the node ended the connection");
            }
        }
        Ok(head)
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pods, summary_ms, scrape, follow, flood } = self;
        writeln!(f, "{pods} pods")?;
        writeln!(
            f,
            "/stats/summary          p50 {:.1} ms, p99 {:.1} ms",
            summary_ms.p50, summary_ms.p99
        )?;
        scrape.fmt(f)?;
        writeln!(
            f,
            "logs -f                 {:.0} MiB/s, {} lines lost, node {:.1} -> {:.1} MiB",
            follow.mib_per_second, follow.lost, follow.before.rss, follow.after.rss
        )?;
        writeln!(
            f,
            "{} odd requests    node {:.1} -> {:.1} MiB, {} -> {} lines of metrics",
            flood.requests,
            flood.before.rss,
            flood.after.rss,
            flood.series_before,
            flood.series_after
        )
    }
}

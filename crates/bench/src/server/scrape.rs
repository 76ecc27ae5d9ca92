//! What a monitoring system's scrape costs a node, in CPU time.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::time::ClockId;
use serde::Serialize;

use super::{PAUSE, Port};
use crate::cluster::Cluster;

/// What is scraped.
const PATHS: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];
/// How often, when each shares its reading of the node with those just before.
const OFTEN: usize = 120;
/// How often, when each has one of its own...
const SELDOM: usize = 8;
/// ...because they are so far apart.
const APART: Duration = Duration::from_secs(11);
/// How long the idle node is watched: this is no scrape's.
const IDLE: Duration = Duration::from_secs(30);
/// What is left to do after an answer is done by then.
const SETTLED: Duration = Duration::from_millis(200);
/// Bytes that a server hands over at a time.
const WRITE: usize = 1 << 17;

/// Milliseconds of the node's CPU for one scrape of all endpoints.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Scrapes {
    /// The first.
    pub(crate) first_ms: f64,
    /// Of those that come each second.
    pub(crate) often_ms: f64,
    /// Of those that read the node for themselves.
    pub(crate) seldom_ms: f64,
    /// MiB of its answers, and the milliseconds to send so much through a socket.
    pub(crate) mib: f64,
    pub(crate) sending_ms: f64,
}

/// Scrapes a node that has not been scraped yet.
pub(crate) async fn measure(cluster: &mut Cluster<'_>, port: &mut Port) -> Result<Scrapes> {
    let began = cluster.uses()?.node.cpu_seconds;
    tokio::time::sleep(IDLE).await;
    let idle = (cluster.uses()?.node.cpu_seconds - began) / IDLE.as_secs_f64();
    let mut node = Node { cluster, port, idle };
    let (first, bytes) = node.cost(1, Duration::ZERO).await?;
    let (often, _) = node.cost(OFTEN, PAUSE).await?;
    tokio::time::sleep(APART).await;
    let mut seldom = 0.0;
    for _ in 0..SELDOM {
        seldom += node.cost(1, Duration::ZERO).await?.0;
        tokio::time::sleep(APART).await;
    }
    let sending = tokio::task::spawn_blocking(move || send(bytes)).await??;
    #[allow(clippy::cast_precision_loss, reason = "for display only")]
    Ok(Scrapes {
        first_ms: first,
        often_ms: often,
        seldom_ms: seldom / SELDOM as f64,
        mib: bytes as f64 / f64::from(1 << 20),
        sending_ms: sending.as_secs_f64() * 1000.0,
    })
}

struct Node<'a, 'b> {
    cluster: &'a mut Cluster<'b>,
    port: &'a mut Port,
    /// CPU seconds that it uses in a second without being asked anything.
    idle: f64,
}

impl Node<'_, '_> {
    /// The milliseconds of CPU of one of so many scrapes with this pause after each, and the bytes of
    /// one.
    async fn cost(&mut self, scrapes: usize, pause: Duration) -> Result<(f64, usize)> {
        let (began, before) = (Instant::now(), self.cluster.uses()?.node.cpu_seconds);
        let mut bytes = 0;
        for _ in 0..scrapes {
            for path in PATHS {
                bytes += self.port.get(path).await?.len();
            }
            tokio::time::sleep(pause).await;
        }
        tokio::time::sleep(SETTLED).await;
        let used = self.cluster.uses()?.node.cpu_seconds - before;
        let used = used - self.idle * began.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        Ok((used * 1000.0 / scrapes as f64, bytes / scrapes))
    }
}

/// CPU time of a thread that sends so many bytes through a socket of this machine, the median of some
/// times: what a page costs however it is made.
fn send(bytes: usize) -> Result<Duration> {
    const TIMES: usize = 9;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let reader = std::thread::spawn(move || std::io::copy(&mut other, &mut std::io::sink()));
    let page = vec![b'x'; bytes];
    let mut taken = Vec::new();
    for _ in 0..TIMES {
        let before = thread_time()?;
        page.chunks(WRITE).try_for_each(|chunk| socket.write_all(chunk))?;
        taken.push(thread_time()? - before);
    }
    drop(socket);
    reader.join().map_err(|_| anyhow!("the reader panicked"))??;
    taken.sort_unstable();
    Ok(taken[TIMES / 2])
}

/// CPU time of the calling thread.
fn thread_time() -> Result<Duration> {
    Ok(ClockId::CLOCK_THREAD_CPUTIME_ID.now()?.into())
}

impl std::fmt::Display for Scrapes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first_ms, often_ms, seldom_ms, mib, sending_ms } = self;
        writeln!(
            f,
            "scrape of all           {often_ms:.1} ms of CPU; to send its {mib:.1} MiB alone: \
             {sending_ms:.1} ms"
        )?;
        writeln!(f, "  11 s after another    {seldom_ms:.1} ms, and {first_ms:.0} ms the first")
    }
}

//! A host with an apiserver full of services, and a kube-proxy that follows them.
use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use longshore_testkit::{Apiserver, Host, KubeProxy, wait_until};
use nix::sched::{CloneFlags, setns};
use procfs::process::Process;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::process::{self, Memory};

/// The longest that anything may take: the Go proxy's cold start of 10,000 services, and more.
const TIMEOUT: Duration = Duration::from_secs(1200);
/// Requests to the apiserver at once.
const WRITERS: usize = 16;
const METRICS_PORT: u16 = 10249;
const LOCK: &str = "/run/xtables.lock";
const PROBE: &str = "probe";
const EXTRA: &str = "extra";

/// A variant of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Backend {
    Nft,
    Legacy,
}

impl Backend {
    pub(super) const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    fn name(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was used so far, or between two moments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) own: f64,
    pub(super) all: f64,
    pub(super) lock: Option<f64>,
}

/// The chain of [`World::make_floor`].
const FLOOR: &str = "BENCH-FLOOR";

pub(super) struct World {
    backend: Backend,
    proxy: Option<KubeProxy>,
    lock: Option<LockWatch>,
    probe: Option<IpAddr>,
    extra: Option<IpAddr>,
    client: Client,
    apiserver: Apiserver,
    host: Host,
}

impl World {
    pub(super) async fn start(backend: Backend) -> Result<Self> {
        let host = Host::bare()?;
        let apiserver = Apiserver::start(&host)?;
        let kubeconfig = Kubeconfig::read_from(apiserver.admin_kubeconfig())?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        let client = Client::try_from(config)?;
        // The kubelet's chains show the proxy whose tables to use.
        for family in ["iptables", "ip6tables"] {
            let program = format!("{family}-{backend}");
            host.run(&program, ["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"])?;
        }
        let lock = (backend == Backend::Legacy).then(LockWatch::start);
        for number in 1..=4 {
            serve(&host, pod(number))?;
        }
        Ok(Self { backend, proxy: None, lock, probe: None, extra: None, client, apiserver, host })
    }

    pub(super) fn stop(self) -> Result<()> {
        let Self { proxy, apiserver, host, .. } = self;
        drop((proxy, apiserver));
        Ok(host.teardown()?)
    }

    /// The error with what the proxy said last.
    pub(super) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let tail = self.proxy.as_mut().map(|proxy| proxy.daemon().log_tail(5)).unwrap_or_default();
        error.context(format!("the proxy's log ends so:\n{tail}"))
    }

    pub(super) fn start_proxy(&mut self) -> Result<()> {
        // Programs that do not name their variant are of this one too.
        let bin = self.host.dir().join("bin");
        fs::create_dir_all(&bin)?;
        for family in ["iptables", "ip6tables"] {
            for suffix in ["", "-save", "-restore"] {
                let target = format!("/usr/sbin/{family}-{}{suffix}", self.backend);
                symlink(target, bin.join(format!("{family}{suffix}")))?;
            }
        }
        let fields: Map<String, Value> =
            json!({"bindAddress": self.host.node_ip()}).as_object().cloned().unwrap_or_default();
        let kubeconfig = self.apiserver.node_kubeconfig();
        self.proxy =
            Some(KubeProxy::start_at(&self.host, Some(&kubeconfig), fields, &[], Some(&bin))?);
        Ok(())
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Services with so many endpoints each, where nobody answers.
    pub(super) async fn create(&self, services: usize, endpoints: usize) -> Result<()> {
        let create = |number: usize| async move {
            let name = format!("service-{number}");
            self.create_one(&name, &addresses(number, endpoints)).await.map(|_| ())
        };
        futures::stream::iter((0..services).map(create))
            .buffer_unordered(WRITERS)
            .try_collect()
            .await
    }

    async fn create_one(&self, name: &str, endpoints: &[Ipv4Addr]) -> Result<IpAddr> {
        self.create_slice(name, endpoints).await?;
        self.create_service(name).await
    }

    async fn create_slice(&self, name: &str, endpoints: &[Ipv4Addr]) -> Result<()> {
        let slice = serde_json::from_value(slice(name, endpoints))?;
        self.slices().create(&PostParams::default(), &slice).await?;
        Ok(())
    }

    async fn create_service(&self, name: &str) -> Result<IpAddr> {
        let spec = json!({"ports": [{"name": "p", "port": 80, "targetPort": 8080}]});
        let service = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        let service: Service = self.services().create(&PostParams::default(), &service).await?;
        let ip = service.spec.and_then(|spec| spec.cluster_ip).context("no cluster IP")?;
        Ok(ip.parse()?)
    }

    /// The service whose endpoint becomes another, and the endpoint of the one that comes and goes.
    pub(super) async fn create_probe(&mut self) -> Result<()> {
        self.probe = Some(self.create_one(PROBE, &[pod(1)]).await?);
        self.create_slice(EXTRA, &[pod(4)]).await
    }

    /// Has the probe's service one endpoint, the pod of this number.
    pub(super) async fn set_probe(&mut self, number: usize) -> Result<()> {
        let endpoints = json!({"endpoints": slice(PROBE, &[pod(number)])["endpoints"]});
        let patch = Patch::Merge(&endpoints);
        self.slices().patch(PROBE, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(super) async fn create_extra(&mut self) -> Result<()> {
        self.extra = Some(self.create_service(EXTRA).await?);
        Ok(())
    }

    pub(super) async fn delete_extra(&mut self) -> Result<()> {
        self.services().delete(EXTRA, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Asks for a full sync in the way that a flush does.
    pub(super) fn remove_canary(&self) -> Result<()> {
        let program = format!("iptables-{}", self.backend);
        self.host.run(&program, ["-w", "-t", "mangle", "-X", "KUBE-PROXY-CANARY"])?;
        Ok(())
    }

    /// A chain that nothing leads to.
    pub(super) fn make_floor(&self) -> Result<()> {
        self.iptables(&["-N", FLOOR])
    }

    /// Adds a rule there by hand: what the kernel and iptables take for the least that can be done.
    pub(super) fn add_to_floor(&self, number: usize) -> Result<()> {
        self.iptables(&["-A", FLOOR, "-d", &format!("192.0.2.{number}/32"), "-j", "RETURN"])
    }

    fn iptables(&self, args: &[&str]) -> Result<()> {
        let program = format!("iptables-{}", self.backend);
        self.host.run(&program, [&["-w", "-t", "nat"], args].concat())?;
        Ok(())
    }

    pub(super) fn probe_answers(&self, number: usize) -> Result<bool> {
        Ok(self.request(self.probe.context("no probe")?).is_some_and(|ip| ip == pod(number)))
    }

    pub(super) fn extra_answers(&self) -> Result<bool> {
        Ok(self.request(self.extra.context("nothing extra")?).is_some())
    }

    /// Who answers at port 80 of an address, asked on the host.
    fn request(&self, ip: IpAddr) -> Option<Ipv4Addr> {
        let request = move || {
            let address = SocketAddr::new(ip, 80);
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            text.parse().ok()
        };
        on(&self.host, request).ok().flatten()
    }

    /// Waits for a sync of IPv4 that ended after a moment; when it did, in seconds since 1970.
    pub(super) async fn synced_after(&mut self, begin: f64) -> Result<f64> {
        let address = SocketAddr::from((self.host.node_ip(), METRICS_PORT));
        let daemon = self.proxy.as_mut().context("no proxy")?.daemon();
        let synced = wait_until(TIMEOUT, "a sync", async || {
            daemon.check_running()?;
            let at = last_sync(address)?;
            if at > begin { Ok(at) } else { Err(anyhow!("the last was at {at}")) }
        });
        Ok(synced.await?)
    }

    /// Before there is a proxy.
    pub(super) fn cost_of_none(&self) -> Result<Cost> {
        Ok(Cost { own: 0.0, all: 0.0, lock: self.lock.as_ref().map(LockWatch::seconds) })
    }

    #[allow(clippy::cast_precision_loss, reason = "for display only")]
    pub(super) fn cost(&mut self) -> Result<Cost> {
        let pid = self.proxy.as_mut().context("no proxy")?.daemon().pid();
        let stat = Process::new(i32::try_from(pid)?)?.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        let own = (stat.utime + stat.stime) as f64 / ticks;
        let programs = (stat.cutime + stat.cstime) as f64 / ticks;
        let lock = self.lock.as_ref().map(LockWatch::seconds);
        Ok(Cost { own, all: own + programs, lock })
    }

    pub(super) fn cost_since(&mut self, before: &Cost) -> Result<Cost> {
        let now = self.cost()?;
        let lock = now.lock.zip(before.lock).map(|(now, before)| now - before);
        Ok(Cost { own: now.own - before.own, all: now.all - before.all, lock })
    }

    pub(super) fn memory(&mut self) -> Result<Memory> {
        Ok(process::look(self.proxy.as_mut().context("no proxy")?.daemon().pid())?.memory)
    }
}

/// Where the endpoints of a service are.
pub(super) fn addresses(number: usize, endpoints: usize) -> Vec<Ipv4Addr> {
    let address = |at| Ipv4Addr::from_bits(0x0a64_0000 + (number * endpoints + at) as u32);
    (0..endpoints).map(address).collect()
}

pub(super) fn slice(service: &str, endpoints: &[Ipv4Addr]) -> Value {
    let endpoint = |ip| json!({"addresses": [ip], "conditions": {"ready": true}});
    json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
    })
}

/// The address of a pod that answers.
fn pod(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 201, 0, u8::try_from(number).unwrap_or(u8::MAX))
}

/// Runs something in the network of the host.
fn on<T: Send + 'static>(host: &Host, run: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let netns = File::open(host.netns())?;
    let thread = thread::spawn(move || setns(netns, CloneFlags::CLONE_NEWNET).map(|()| run()));
    Ok(thread.join().map_err(|_| anyhow!("a thread ended badly"))??)
}

/// An address on the host that is sent to whoever connects.
fn serve(host: &Host, ip: Ipv4Addr) -> Result<()> {
    host.run("ip", ["addr", "add", &format!("{ip}/32"), "dev", "lo"])?;
    let listener = on(host, move || TcpListener::bind((ip, 8080)))??;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(ip.to_string().as_bytes()));
        }
    });
    Ok(())
}

/// When rules of IPv4 were last in place, by the proxy's own word.
fn last_sync(address: SocketAddr) -> Result<f64> {
    const NAME: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} ";
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let value = page.lines().find_map(|line| line.strip_prefix(NAME)).context("no sync yet")?;
    Ok(value.trim().parse()?)
}

/// Looks each millisecond whether somebody holds the xtables lock.
struct LockWatch {
    nanos: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LockWatch {
    fn start() -> Self {
        let (nanos, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (held, end) = (Arc::clone(&nanos), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut last = Instant::now();
            while !end.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
                let passed = last.elapsed();
                last = Instant::now();
                if is_locked() {
                    let passed = u64::try_from(passed.as_nanos()).unwrap_or_default();
                    held.fetch_add(passed, Ordering::Relaxed);
                }
            }
        });
        Self { nanos, stop, thread: Some(thread) }
    }

    fn seconds(&self) -> f64 {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64()
    }
}

impl Drop for LockWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Those who wait have an arrow in their line.
fn is_locked() -> bool {
    let Ok(file) = fs::metadata(PathBuf::from(LOCK)) else { return false };
    let inode = format!(":{} ", file.st_ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks
        .lines()
        .any(|line| line.contains("FLOCK") && !line.contains("->") && line.contains(&inode))
}

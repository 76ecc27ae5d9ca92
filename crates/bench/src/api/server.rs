//! The servers that are measured: an apiserver and, where it has one, its etcd.
use std::fmt;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hyper::Request;
use kube::Client;
use longshore_testkit::{Daemon, Host, program};
use tempfile::TempDir;

use crate::process::{self, Use};

/// How long a server may take until it is ready.
const START: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(20);
const PORT: u16 = 6443;
const ETCD_PORT: u16 = 2379;
const TOKEN: &str = "bench";
/// Where a file system in memory is, if the machine has it.
const IN_MEMORY: &str = "/dev/shm";

/// Which programs serve.
#[derive(Debug, Clone)]
pub(super) enum Programs {
    /// Ours on its embedded store.
    Embedded,
    /// Ours on this etcd.
    OnEtcd(PathBuf),
    /// This kube-apiserver on this etcd.
    Upstream { apiserver: PathBuf, etcd: PathBuf },
}

impl fmt::Display for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "longshore",
            Self::OnEtcd(_) => "longshore on etcd",
            Self::Upstream { .. } => "upstream",
        })
    }
}

impl Programs {
    fn etcd(&self) -> Option<&Path> {
        match self {
            Self::Embedded => None,
            Self::OnEtcd(etcd) | Self::Upstream { etcd, .. } => Some(etcd),
        }
    }
}

/// What a server uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uses {
    pub(super) apiserver: Use,
    pub(super) etcd: Option<Use>,
}

impl Uses {
    /// CPU time of both since an earlier look, in seconds.
    pub(super) fn cpu_since(&self, before: &Self) -> f64 {
        let of = |uses: &Self| {
            uses.apiserver.cpu_seconds + uses.etcd.map_or(0.0, |etcd| etcd.cpu_seconds)
        };
        of(self) - of(before)
    }
}

/// A server that runs, with its data in memory: a disk's fsync is not what is compared.
pub(super) struct Server<'a> {
    host: &'a Host,
    programs: Programs,
    folder: TempDir,
    etcd: Option<Daemon>,
    apiserver: Daemon,
}

impl<'a> Server<'a> {
    /// Starts it on an empty store; also gives the seconds until it was ready.
    ///
    /// `keys` holds the pair of keys for the tokens of service accounts.
    pub(super) async fn start(
        host: &'a Host,
        programs: &Programs,
        keys: &Path,
    ) -> Result<(Self, f64)> {
        let folder = match Path::new(IN_MEMORY).is_dir() {
            true => tempfile::tempdir_in(IN_MEMORY)?,
            false => tempfile::tempdir_in(host.dir())?,
        };
        let tokens = format!("{TOKEN},admin,1,system:masters\n");
        fs::write(folder.path().join("tokens.csv"), tokens)?;
        fs::copy(keys.join("sa.key"), folder.path().join("sa.key"))?;
        fs::copy(keys.join("sa.pub"), folder.path().join("sa.pub"))?;
        let etcd = match programs.etcd() {
            Some(etcd) => Some(start_etcd(host, etcd, folder.path()).await?),
            None => None,
        };
        let began = Instant::now();
        let apiserver = start_apiserver(host, programs, folder.path())?;
        let mut own = Self { host, programs: programs.clone(), folder, etcd, apiserver };
        own.until_ready().await?;
        Ok((own, began.elapsed().as_secs_f64()))
    }

    /// Ends the apiserver and starts it on the same data; gives the seconds until it was ready.
    pub(super) async fn restart(&mut self) -> Result<f64> {
        self.apiserver.terminate(GRACE)?;
        let began = Instant::now();
        self.apiserver = start_apiserver(self.host, &self.programs, self.folder.path())?;
        self.until_ready().await?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// A client with a connection of its own.
    pub(super) fn client(&self) -> Result<Client> {
        let url = format!("https://{}:{PORT}", self.host.node_ip());
        let mut config = kube::Config::new(url.parse()?);
        config.accept_invalid_certs = true;
        config.proxy_url = None;
        config.auth_info.token = Some(TOKEN.to_owned().into());
        Ok(Client::try_from(config)?)
    }

    /// What its processes use now; errs when one of them has ended.
    pub(super) fn uses(&mut self) -> Result<Uses> {
        Ok(Uses {
            apiserver: process::look_at_daemon(&mut self.apiserver)?,
            etcd: self.etcd.as_mut().map(process::look_at_daemon).transpose()?,
        })
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.apiserver.terminate(GRACE)?;
        if let Some(mut etcd) = self.etcd {
            etcd.terminate(GRACE)?;
        }
        Ok(())
    }

    async fn until_ready(&mut self) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(2);
        let (client, began) = (self.client()?, Instant::now());
        loop {
            let request = Request::get("/readyz").body(Vec::new())?;
            let Err(error) = client.request_text(request).await else { return Ok(()) };
            self.apiserver.check_running()?;
            if began.elapsed() > START {
                bail!("{} is not ready: {error}\n{}", self.programs, self.apiserver.log_tail(10));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn start_etcd(host: &Host, etcd: &Path, folder: &Path) -> Result<Daemon> {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let (client, peer) = (url(ETCD_PORT), url(ETCD_PORT + 1));
    let mut command = host.command(etcd);
    command.arg(format!("--data-dir={}", folder.join("etcd").display()));
    command.arg(format!("--listen-client-urls={client},http://{}:{ETCD_PORT}", host.node_ip()));
    command.arg(format!("--advertise-client-urls={client}"));
    command.arg(format!("--listen-peer-urls={peer}"));
    command.arg(format!("--initial-advertise-peer-urls={peer}"));
    command.arg(format!("--initial-cluster=default={peer}"));
    command.args(["--unsafe-no-fsync", "--log-level=warn"]);
    let mut daemon = host.spawn("etcd", command)?;
    let began = Instant::now();
    while TcpStream::connect((host.node_ip(), ETCD_PORT)).is_err() {
        daemon.check_running()?;
        if began.elapsed() > START {
            bail!("etcd does not listen\n{}", daemon.log_tail(10));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(daemon)
}

/// With the same command line, whoever made it.
fn start_apiserver(host: &Host, programs: &Programs, folder: &Path) -> Result<Daemon> {
    let path = match programs {
        Programs::Upstream { apiserver, .. } => apiserver.clone(),
        Programs::Embedded | Programs::OnEtcd(_) => program("longshore-apiserver")?,
    };
    let file = |name: &str| folder.join(name).display().to_string();
    let mut command = host.command(path);
    match programs.etcd() {
        Some(_) => command.arg(format!("--etcd-servers=http://127.0.0.1:{ETCD_PORT}")),
        None => command.arg(format!("--data-dir={}", file("data"))),
    };
    command.arg(format!("--bind-address={}", host.node_ip()));
    command.arg(format!("--advertise-address={}", host.node_ip()));
    command.arg(format!("--secure-port={PORT}"));
    command.arg(format!("--cert-dir={}", file("certificates")));
    command.arg(format!("--token-auth-file={}", file("tokens.csv")));
    command.arg(format!("--service-account-key-file={}", file("sa.pub")));
    command.arg(format!("--service-account-signing-key-file={}", file("sa.key")));
    command.arg("--service-account-issuer=https://kubernetes.default.svc");
    command.arg("--service-cluster-ip-range=10.202.0.0/16");
    command.arg("--authorization-mode=Node,RBAC");
    Ok(host.spawn("apiserver", command)?)
}

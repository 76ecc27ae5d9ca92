//! The command line of kube-scheduler, and the program behind it.
//!
//! The secure port is served by the program that embeds this ([`Running`] says what is healthy); flags of
//! TLS and of delegated authentication are read for it.

mod flags;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use longshore_client::{ConfigSource, Limits};
use longshore_informer::{
    ElectionError, Informers, LeaderConfig, LeaderElector, LeaderMetrics, LeaseApi,
};
use longshore_metrics::RestClient;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::flags::{FlagError, Options, Parsed};
use crate::config::{ConfigError, Configuration, Policy, provider};
use crate::service::{Error as ServiceError, Service};
pub use crate::service::{Pages, READ_GATES};

/// The component, in user agents and leases.
const COMPONENT: &str = "kube-scheduler";
/// How long the apiserver may take to begin an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The credentials cannot be used.
    #[error(transparent)]
    Client(#[from] longshore_client::ClientError),
    /// The scheduler cannot run.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Another copy leads now.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// No random identity can be made.
    #[error("identity of this copy: {0}")]
    Identity(std::io::Error),
}

/// What the health endpoints of a program need to know.
#[derive(Debug, Clone, Default)]
pub struct Running {
    synced: Arc<AtomicBool>,
}

impl Running {
    /// Whether the caches are complete: `/readyz`. A copy that does not lead is not ready.
    pub fn is_ready(&self) -> bool {
        self.synced.load(Ordering::Relaxed)
    }

    fn set_synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }
}

/// The configuration that the options name, with what the flags set.
///
/// # Errors
/// A file cannot be read, or is not valid.
pub fn configuration(options: &Options) -> Result<Configuration, Error> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.clone(), source })
    };
    let mut own = if let Some(path) = &options.config {
        Configuration::parse(&read(path)?)?
    } else {
        let mut own = if let Some(path) = &options.policy {
            Policy::parse(&read(path)?)?.configuration()?
        } else if let Some(name) = &options.provider {
            provider(name)?
        } else {
            Configuration::default()
        };
        // these are ignored beside a file
        own.client_connection.kubeconfig = options.kubeconfig.clone().unwrap_or_default();
        own.client_connection.qps = options.qps.unwrap_or_default();
        own.client_connection.burst = options.burst.unwrap_or_default();
        own.enable_profiling = options.profiling;
        own
    };
    options.leader.apply(&mut own.leader_election);
    Ok(own)
}

/// A client as configuration and flags have it. Nothing is sent yet.
///
/// # Errors
/// The credentials cannot be used.
pub async fn connect(
    configuration: &Configuration,
    options: &Options,
    metrics: RestClient,
) -> Result<Client, Error> {
    let connection = &configuration.client_connection;
    let kubeconfig = Some(&connection.kubeconfig).filter(|path| !path.is_empty());
    let source = match (kubeconfig.map(PathBuf::from), options.master.clone()) {
        (Some(path), None) => ConfigSource::Kubeconfig(path),
        (Some(kubeconfig), Some(master)) => ConfigSource::Redirected { kubeconfig, master },
        (None, Some(master)) => ConfigSource::Master(master),
        (None, None) => ConfigSource::Pod,
    };
    #[allow(clippy::cast_possible_truncation, reason = "it saturates")]
    let qps = connection.qps.max(0.0).ceil() as i32;
    let limits =
        Limits { component: COMPONENT, qps, burst: connection.burst.max(qps), timeout: TIMEOUT };
    Ok(longshore_client::connect(&source.into(), limits, metrics).await?)
}

/// Runs the scheduler until `stop`: waits for the lease if it is to elect a leader, and works.
///
/// # Errors
/// The configuration cannot be used, or the lease is lost.
pub async fn run(
    configuration: Configuration,
    options: &Options,
    client: Client,
    pages: &Pages,
    running: Running,
    stop: CancellationToken,
) -> Result<(), Error> {
    // An invalid configuration ends the program before it leads.
    let election = configuration.leader_election.clone();
    let service = Service {
        max_unschedulable: options.max_unschedulable,
        ..Service::new(configuration, &options.feature_gates, pages)
    };
    service.check()?;
    let informers = Informers::new(client.clone());
    let lease_client = client.clone();
    let work = || service.run(client, &informers, || running.set_synced());
    let worked = async {
        if !election.leader_elect {
            return match stop.run_until_cancelled(work()).await {
                Some(worked) => Ok(worked?),
                None => Ok::<_, Error>(()),
            };
        }
        let mut config =
            LeaderConfig::new(&election.resource_namespace, &election.resource_name, &identity()?);
        config.lease_duration = election.lease_duration.get();
        config.renew_deadline = election.renew_deadline.get();
        config.retry_period = election.retry_period.get();
        config.releases_on_stop = true;
        let lease = LeaseApi::new(lease_client, &config);
        let metrics = LeaderMetrics::new(&pages.metrics);
        let elector = LeaderElector::new(lease, config).with_metrics(metrics);
        match elector.run(&stop, work).await? {
            Some(worked) => Ok(worked?),
            None => Ok(()),
        }
    };
    worked.await?;
    if stop.is_cancelled() {
        info!("stopping");
    }
    Ok(())
}

/// A name that no other copy has: host and a random number.
///
/// # Errors
/// The system does not give them. Without them, copies could take each other's lease for their own.
pub fn identity() -> Result<String, Error> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(Error::Identity)?;
    let random =
        std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(Error::Identity)?;
    Ok(format!("{}_{}", host.trim(), random.trim()))
}

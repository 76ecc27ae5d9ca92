//! The program: connects, serves, waits for the lease, and runs the controllers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use longshore_base::panics;
use longshore_client::{ClientError, Credentials, Limits, connect};
use longshore_informer::{ElectionError, Informers, LeaderElector, LeaseApi, QueueMetrics};
use longshore_metrics::{Registry, RestClient, register_process_metrics};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::args::{FlagError, Flags};
use crate::serving::{Endpoints, Serving, ServingError};
use crate::{Context, Controller};

/// How long the apiserver may take to begin its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the program ended.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The command line.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The connection to the apiserver.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The port.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The lease.
    #[error(transparent)]
    Election(#[from] ElectionError),
}

/// Runs until `stop`, or until the lease is lost.
///
/// # Errors
/// The program cannot start, or the lease was lost.
pub async fn run(flags: Flags, stop: CancellationToken) -> Result<(), ProgramError> {
    let controllers = flags.selected()?;
    let settings = flags.settings()?;
    let registry = Registry::default();
    register_process_metrics(&registry, Handle::current());
    // at most what the type can hold; 0 and less are no limit
    let qps = if flags.kube_api_qps >= 1.0 { flags.kube_api_qps.min(1e6) as i32 } else { 0 };
    let limits = Limits {
        component: "kube-controller-manager",
        qps,
        burst: flags.kube_api_burst,
        timeout: REQUEST_TIMEOUT,
    };
    let credentials = Credentials::from(flags.config_source());
    let client = connect(&credentials, limits, RestClient::new(&registry)).await?;
    let healthy = Arc::new(AtomicBool::new(true));
    if flags.secure_port != 0 {
        let files = flags.tls_cert_file.as_deref().zip(flags.tls_private_key_file.as_deref());
        let address = SocketAddr::new(flags.bind_address, flags.secure_port);
        let endpoints = Endpoints {
            client: client.clone(),
            registry: registry.clone(),
            configz: "{}".to_owned(),
            healthy: healthy.clone(),
        };
        tokio::spawn(Serving::open(address, files).await?.run(endpoints));
    }
    let context = Context {
        informers: Informers::new(client.clone()),
        client: client.clone(),
        queues: QueueMetrics::new(&registry),
        settings,
        stop: stop.clone(),
    };
    let work = || run_all(context, controllers);
    match flags.leader(&identity()) {
        None => work().await,
        Some(leader) => {
            let store = LeaseApi::new(Client::clone(&client), &leader);
            let elector = LeaderElector::new(store, leader);
            tokio::select! {
                done = elector.run(work) => {
                    healthy.store(done.is_ok(), Ordering::Relaxed);
                    done?;
                }
                // what this copy does is dropped; others take the lease over when it is not renewed
                () = stop.cancelled() => {}
            }
        }
    }
    Ok(())
}

/// Runs controllers until the context's stop. One that ends early, which none should, starts again.
pub async fn run_all(context: Context, controllers: Vec<Controller>) {
    let run = |controller: Controller| {
        let context = context.clone();
        async move {
            while !context.stop.is_cancelled() {
                info!(controller = controller.name, "starting");
                let work = panics::task((controller.run)(context.clone()));
                tokio::select! {
                    ended = work => if let Err(panicked) = ended {
                        error!(controller = controller.name, "{panicked}");
                    },
                    () = context.stop.cancelled() => return,
                }
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = context.stop.cancelled() => {}
                }
            }
        }
    };
    join_all(controllers.into_iter().map(run)).await;
}

/// This copy of the program: host name, `_` and a number unlike any other.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    format!("{}_{}", host.trim(), unique.trim())
}

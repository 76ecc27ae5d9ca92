//! What every controller is given.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use longshore_client::events::Recorder;
use longshore_client::{AccountClients, named};
use longshore_informer::{Informers, QueueMetrics};
use tokio_util::sync::CancellationToken;

use crate::{ClusterSettings, Metrics};

/// The program, as requests and metrics name it.
pub(crate) const MANAGER: &str = "kube-controller-manager";

/// The shared parts of the process. Clones are the same.
#[derive(Clone)]
pub struct Context {
    /// The client for writes and reads that bypass the informers.
    pub client: Client,
    /// Clients with which each controller acts as its service account; `None`: all use [`Self::client`].
    pub accounts: Option<Arc<AccountClients>>,
    /// One informer for each kind, with the credentials of the program.
    pub informers: Informers,
    /// The metrics of work queues.
    pub queues: QueueMetrics,
    /// The metrics of controllers.
    pub metrics: Arc<Metrics>,
    /// What the command line says.
    pub settings: Settings,
    /// Cancelled when the controllers are to end.
    pub stop: CancellationToken,
}

impl Context {
    /// A context around a client.
    pub fn new(client: Client, settings: Settings) -> Self {
        Self {
            informers: Informers::new(client.clone()),
            client,
            accounts: None,
            queues: QueueMetrics::unregistered(),
            metrics: Arc::new(Metrics::unregistered()),
            settings,
            stop: CancellationToken::new(),
        }
    }

    /// The context of one controller: with its own client, which acts as its service account where there
    /// are such clients.
    pub fn of(&self, controller: &Controller) -> Self {
        let client = match (&self.accounts, controller.account) {
            (_, "") => named(&self.client, MANAGER, "tokens-controller"),
            (Some(accounts), account) => accounts.client(account),
            (None, account) => named(&self.client, MANAGER, account),
        };
        Self { client, ..self.clone() }
    }

    /// A recorder of events of that component, such as `deployment-controller`.
    pub fn recorder(&self, component: &'static str) -> Recorder {
        Recorder::start_as(component, Some(self.client.clone()), "").0
    }
}

/// What the command line sets for controllers. One field for each flag, with upstream's default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--concurrent-deployment-syncs`
    pub deployment_workers: usize,
    /// `--concurrent-replicaset-syncs`
    pub replicaset_workers: usize,
    /// `--concurrent-rc-syncs`
    pub replication_controller_workers: usize,
    /// `--concurrent-daemonset-syncs`
    pub daemonset_workers: usize,
    /// `--concurrent-statefulset-syncs`
    pub statefulset_workers: usize,
    /// `--concurrent-job-syncs`
    pub job_workers: usize,
    /// `--concurrent-cron-job-syncs`
    pub cronjob_workers: usize,
    /// Those of the controllers of cluster objects.
    pub cluster: ClusterSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deployment_workers: 5,
            replicaset_workers: 5,
            replication_controller_workers: 5,
            daemonset_workers: 2,
            statefulset_workers: 5,
            job_workers: 5,
            cronjob_workers: 5,
            cluster: ClusterSettings::default(),
        }
    }
}

/// A controller, as `--controllers` names it.
#[derive(Clone, Copy)]
pub struct Controller {
    /// Its name, such as `deployment-controller`.
    pub name: &'static str,
    /// Its older name, such as `deployment`, which the flag takes too.
    pub alias: &'static str,
    /// Its service account in `kube-system`, as upstream has it; empty: it uses the credentials of the
    /// program in any case.
    pub account: &'static str,
    /// Whether `*` includes it.
    pub by_default: bool,
    /// Runs it until `stop` of the context.
    pub run: fn(Context) -> BoxFuture<'static, ()>,
}

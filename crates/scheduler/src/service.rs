//! A scheduler on an apiserver: what a program runs once it leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use longshore_client::events::Recorder;
use longshore_gates::{FeatureGates, NODE_DECLARED_FEATURES};
use longshore_informer::Informers;
use longshore_metrics::Slot;
use tokio::sync::mpsc;
use tracing::info;

use crate::config::{ConfigError, Configuration};
use crate::driver::{self, ApiExecutor, Extender, ExtenderError, Extenders, Follower};
use crate::metrics::Metrics;
use crate::plugins::Registry;
use crate::queue::Waits;
use crate::resource_metrics;
use crate::scheduler::{Scheduler, Settings};

/// Pods in backoff are tried early when there is nothing else to do.
const POP_FROM_BACKOFF: &str = "SchedulerPopFromBackoffQ";
/// Pods name their node in their status while volumes and devices are prepared.
const NOMINATE_EXPECTED: &str = "NominatedNodeNameForExpectation";
/// The feature gates that are read.
pub const READ_GATES: [&str; 3] = [NODE_DECLARED_FEATURES, NOMINATE_EXPECTED, POP_FROM_BACKOFF];

/// Why a scheduler does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An extender cannot be used.
    #[error(transparent)]
    Extender(#[from] ExtenderError),
}

/// The registries of a scheduler's metrics.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    /// The page `/metrics`.
    pub metrics: longshore_metrics::Registry,
    /// The page `/metrics/resources`.
    pub resources: longshore_metrics::Registry,
}

/// What a scheduler is made of.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its configuration.
    pub configuration: Configuration,
    /// Plugins by name.
    pub registry: Registry,
    /// Feature gates.
    pub gates: FeatureGates,
    /// How long a pod is unschedulable before it is tried without a reason.
    pub max_unschedulable: Duration,
    /// Its metrics.
    pub metrics: Metrics,
    /// The page about the resources of pods.
    pub resources: Slot,
    /// Whether others use the same informers, so that nothing is left out of objects.
    pub shares_informers: bool,
}

impl Service {
    /// A scheduler with all plugins, and metrics in these pages.
    pub fn new(configuration: Configuration, gates: &FeatureGates, pages: &Pages) -> Self {
        Self {
            configuration,
            registry: Registry::new(gates),
            gates: gates.clone(),
            max_unschedulable: Waits::default().max_unschedulable,
            metrics: Metrics::new(&pages.metrics),
            resources: pages.resources.slot(),
            shares_informers: false,
        }
    }

    /// One whose informers others use too.
    #[must_use]
    pub fn sharing_informers(self) -> Self {
        Self { shares_informers: true, ..self }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// As for [`Service::run`].
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.configuration.profiles(&self.registry).map(drop)?)
    }

    /// Runs until it is dropped. `synced` is called when everything that is there is known.
    ///
    /// # Errors
    /// The configuration or an extender cannot be used.
    pub async fn run(
        self,
        client: Client,
        informers: &Informers,
        synced: impl FnOnce(),
    ) -> Result<(), Error> {
        let profiles = self.configuration.profiles(&self.registry)?;
        let extenders = self.configuration.extenders.iter().cloned().map(Extender::new);
        let extenders: Vec<Extender> = extenders.collect::<Result<_, _>>()?;
        let (changes, received) = mpsc::unbounded_channel();
        let keeps_all = self.shares_informers || !extenders.is_empty();
        let (follower, all_sent) = Follower::start(informers, &changes, keeps_all);
        let mut recorders = HashMap::new();
        for profile in &profiles {
            // a name for each profile of the configuration, for as long as the process runs
            let name: &'static str = Box::leak(profile.name.to_string().into_boxed_str());
            let (recorder, _) = Recorder::start_as(name, Some(client.clone()), "");
            recorders.insert(profile.name.clone(), recorder);
        }
        self.resources.set({
            let pods = follower.pods_informer();
            move |text| resource_metrics::write(text, &pods.store().list())
        });
        let (initial_backoff, max_backoff) = self.configuration.backoff();
        let settings = Settings {
            waits: Waits {
                initial_backoff,
                max_backoff,
                pops_from_backoff: self.gates.enabled(POP_FROM_BACKOFF),
                max_unschedulable: self.max_unschedulable,
            },
            nominates_expected: self.gates.enabled(NOMINATE_EXPECTED),
            volumes_timeout: self.configuration.volumes_timeout(),
            assumed_ttl: None,
            has_extenders: !extenders.is_empty(),
            epoch: Timestamp::now(),
        };
        let metrics = self.metrics;
        let scheduler = Scheduler::new(profiles, settings, metrics.clone());
        all_sent.await;
        info!("the caches are complete");
        synced();
        let follower = Arc::new(follower);
        let extenders = Extenders::new(extenders, follower.clone());
        let executor = Arc::new(ApiExecutor::new(client, recorders, extenders.clone(), &metrics));
        driver::run(scheduler, received, executor, extenders).await;
        drop((changes, follower));
        Ok(())
    }
}

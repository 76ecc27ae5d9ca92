//! Leader election by a Lease, as client-go does it: of several copies of a program, one works.
//!
//! Only local clocks are compared: a copy takes the lease over when it has not seen it change for
//! the lease's duration.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use longshore_base::time;
use longshore_client::{Item, object, optional};
use longshore_metrics::{Counter, Family, Gauge, Registry};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// The lease and its times.
#[derive(Debug, Clone)]
pub struct LeaderConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This copy of the program, unlike any other: host name, `_` and a UUID.
    pub identity: String,
    /// How long others wait before they take over a lease that is not renewed.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it stops to work.
    pub renew_deadline: Duration,
    /// The pause between tries.
    pub retry_period: Duration,
    /// Whether a leader that is stopped releases the lease, so that others need not wait.
    pub releases_on_stop: bool,
}

impl LeaderConfig {
    /// With upstream's times: 15 s, 10 s and 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            releases_on_stop: false,
        }
    }
}

/// The metrics of elections, under client-go's names.
#[derive(Debug, Clone)]
pub struct LeaderMetrics {
    leads: Family<Gauge, 1>,
    slow: Family<Counter, 1>,
}

impl LeaderMetrics {
    /// Registers the families; once for a registry.
    pub fn new(registry: &Registry) -> Self {
        Self {
            leads: registry.gauges(
                "leader_election_master_status",
                "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
                ["name"],
            ),
            slow: registry.counters(
                "leader_election_slowpath_total",
                "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.",
                ["name"],
            ),
        }
    }

    fn set(&self, lease: &str, leads: bool) {
        self.leads.with([lease]).set(if leads { 1.0 } else { 0.0 });
    }
}

/// Why the work ended before it was done.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The lease could not be renewed in time, or is another's.
    #[error("leader election lost: lease {0}")]
    Lost(String),
}

/// Reads and writes one Lease.
pub trait LeaseStore: Send + Sync {
    /// The lease, if there is one.
    fn get(&self) -> impl Future<Output = kube::Result<Option<Lease>>> + Send;
    /// Creates it.
    fn create(&self, lease: &Lease) -> impl Future<Output = kube::Result<Lease>> + Send;
    /// Replaces it, if it is still of that version.
    fn replace(&self, lease: &Lease) -> impl Future<Output = kube::Result<Lease>> + Send;
}

/// The Lease of an apiserver.
#[derive(Debug, Clone)]
pub struct LeaseApi {
    api: Api<Item<Lease>>,
    name: String,
}

impl LeaseApi {
    /// The lease that the configuration names.
    pub fn new(client: kube::Client, config: &LeaderConfig) -> Self {
        Self { api: Api::namespaced(client, &config.namespace), name: config.name.clone() }
    }
}

impl LeaseStore for LeaseApi {
    async fn get(&self) -> kube::Result<Option<Lease>> {
        optional(self.api.get_opt(&self.name)).await
    }

    async fn create(&self, lease: &Lease) -> kube::Result<Lease> {
        object(self.api.create(&PostParams::default(), &lease.clone().into())).await
    }

    async fn replace(&self, lease: &Lease) -> kube::Result<Lease> {
        let replaced = lease.clone().into();
        object(self.api.replace(&self.name, &PostParams::default(), &replaced)).await
    }
}

/// Takes part in the election.
pub struct LeaderElector<S> {
    store: S,
    config: LeaderConfig,
    metrics: Option<LeaderMetrics>,
    /// The lease as it was last seen, and when it was first seen so.
    observed: Option<(Lease, Instant)>,
}

impl<S: LeaseStore> LeaderElector<S> {
    /// Nothing is read or written yet.
    pub fn new(store: S, config: LeaderConfig) -> Self {
        Self { store, config, metrics: None, observed: None }
    }

    /// With metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: LeaderMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    fn report(&self, leads: bool) {
        if let Some(metrics) = &self.metrics {
            metrics.set(&self.config.name, leads);
        }
    }

    /// Waits until this copy leads, then does the work until `stop`. The lease is released when the
    /// work is done, and after a stop as the configuration says. `None`: it was stopped before.
    ///
    /// # Errors
    /// The lease was lost: the work was dropped before.
    pub async fn run<W: Future>(
        mut self,
        stop: &CancellationToken,
        work: impl FnOnce() -> W,
    ) -> Result<Option<W::Output>, ElectionError> {
        let name = format!("{}/{}", self.config.namespace, self.config.name);
        info!(lease = name, identity = self.config.identity, "waiting for the lease");
        self.report(false);
        let acquired = async {
            while !self.attempt().await {
                sleep(self.config.retry_period).await;
            }
        };
        if stop.run_until_cancelled(acquired).await.is_none() {
            return Ok(None);
        }
        info!(lease = name, "this copy leads");
        self.report(true);
        let done = tokio::select! {
            done = work() => Some(done),
            () = stop.cancelled() => None,
            () = self.lost() => {
                self.report(false);
                return Err(ElectionError::Lost(name));
            }
        };
        self.report(false);
        // work that is done may be so because it was stopped
        if !stop.is_cancelled() || self.config.releases_on_stop {
            self.release().await;
        }
        Ok(done)
    }

    /// Renews until that fails for too long.
    async fn lost(&mut self) {
        loop {
            sleep(self.config.retry_period).await;
            let deadline = time::after(self.config.renew_deadline);
            let renewed = async {
                while !self.attempt().await {
                    sleep(self.config.retry_period).await;
                }
            };
            if timeout_at(deadline, renewed).await.is_err() {
                return;
            }
        }
    }

    /// Tries once to acquire or renew the lease; whether it is this copy's now.
    async fn attempt(&mut self) -> bool {
        match timeout(self.config.renew_deadline, self.acquire_or_renew()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                warn!(lease = self.config.name, "cannot acquire or renew the lease: {error}");
                false
            }
            Err(_) => {
                warn!(lease = self.config.name, "no answer about the lease");
                false
            }
        }
    }

    async fn acquire_or_renew(&mut self) -> kube::Result<bool> {
        // the leader's version is mostly the last
        if let Some((lease, since)) = &self.observed
            && self.holds(lease)
            && since.elapsed() < self.config.lease_duration
        {
            match self.store.replace(&self.renewed(lease)).await {
                Ok(lease) => return Ok(self.observe(lease)),
                Err(error) => {
                    debug!("the lease has changed: {error}");
                    if let Some(metrics) = &self.metrics {
                        metrics.slow.with([&self.config.name]).inc();
                    }
                }
            }
        }
        let Some(lease) = self.store.get().await? else {
            let mut lease = Lease::default();
            lease.metadata.namespace = Some(self.config.namespace.clone());
            lease.metadata.name = Some(self.config.name.clone());
            let created = self.store.create(&self.renewed(&lease)).await?;
            return Ok(self.observe(created));
        };
        let is_known = self.observed.as_ref().is_some_and(|(known, _)| known.spec == lease.spec);
        match &mut self.observed {
            Some((known, _)) if is_known => known.clone_from(&lease),
            observed => *observed = Some((lease.clone(), Instant::now())),
        }
        let since = self.observed.as_ref().map(|(_, since)| *since);
        let is_valid = since.is_some_and(|since| since.elapsed() < self.config.lease_duration);
        if is_valid && !self.holds(&lease) && !holder(&lease).is_empty() {
            debug!(holder = holder(&lease), "the lease is held");
            return Ok(false);
        }
        let lease = self.store.replace(&self.renewed(&lease)).await?;
        Ok(self.observe(lease))
    }

    fn observe(&mut self, lease: Lease) -> bool {
        self.observed = Some((lease, Instant::now()));
        true
    }

    fn holds(&self, lease: &Lease) -> bool {
        holder(lease) == self.config.identity
    }

    /// The lease as this copy holds it from now on.
    fn renewed(&self, lease: &Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = lease.spec.clone().unwrap_or_default();
        let (acquired, transitions) = match before.holder_identity.as_deref() {
            Some(holder) if holder == self.config.identity => {
                (before.acquire_time, before.lease_transitions.unwrap_or_default())
            }
            Some(_) => (None, before.lease_transitions.unwrap_or_default().saturating_add(1)),
            None => (None, before.lease_transitions.unwrap_or_default()),
        };
        let seconds = i32::try_from(self.config.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let spec = LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: acquired.or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..before
        };
        Lease { spec: Some(spec), ..lease.clone() }
    }

    /// Gives the lease up, so that others need not wait.
    async fn release(&mut self) {
        let Some((lease, _)) = self.observed.take().filter(|(lease, _)| self.holds(lease)) else {
            return;
        };
        let now = MicroTime(Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..lease.spec.clone().unwrap_or_default()
        };
        let released = Lease { spec: Some(spec), ..lease };
        match timeout(self.config.retry_period, self.store.replace(&released)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!("the lease is not released: {error}"),
            Err(_) => debug!("the lease is not released: no answer"),
        }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

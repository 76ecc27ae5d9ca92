//! The registered plugins of drivers. A driver may have several, as during a rolling update.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use longshore_base::clock;
use longshore_grpc::{Code, Connection, Endpoint, Failure};
use longshore_plugins::{Handler, Plugin as Registration, Refusal};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use crate::claims::Claims;
use crate::error::{Error, words};
use crate::health::{HealthCache, HealthFile, Report};
use crate::metrics::Metrics;
use crate::plugin::{Plugin, Service, watch_health};
use crate::slices::Slices;

/// The time that a driver has to come back before its ResourceSlices are deleted.
const WIPING_DELAY: Duration = Duration::from_secs(30);
/// Delay between streams of reports of health.
const HEALTH_DELAY: Duration = Duration::from_secs(5);
/// Maximum length of a driver's name.
const LONGEST_NAME: usize = 63;
/// Maximum number of plugins of one driver: more are not a rolling update.
const MOST_PLUGINS: usize = 16;

/// The drivers by name.
pub(crate) struct Drivers {
    known: Mutex<BTreeMap<String, Vec<Arc<Plugin>>>>,
    /// Deletions of the slices of drivers that are gone.
    wipes: Mutex<HashMap<String, AbortOnDropHandle<()>>>,
    slices: Option<Slices>,
    /// The health of devices, if it is reported.
    health: Option<Arc<Monitor>>,
    metrics: Metrics,
    /// For tasks, which must not keep it.
    own: Weak<Self>,
}

/// The health of devices, and who is to know of it.
pub(crate) struct Monitor {
    pub(crate) cache: Mutex<HealthCache>,
    pub(crate) file: HealthFile,
    pub(crate) claims: Arc<Mutex<Claims>>,
    /// Counts changes of the health of devices that pods use.
    pub(crate) changes: watch::Sender<u64>,
}

impl Drivers {
    pub(crate) fn new(
        slices: Option<Slices>,
        health: Option<Arc<Monitor>>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            known: Mutex::default(),
            wipes: Mutex::default(),
            slices,
            health,
            metrics,
            own: own.clone(),
        })
    }

    /// The plugin of a driver that is called: the newest that is connected, or else the newest.
    pub(crate) fn get(&self, driver: &str) -> Result<Arc<Plugin>, Error> {
        if driver.is_empty() {
            return Err(Error::NoDriver);
        }
        let known = self.known.lock();
        let plugins = known.get(driver).map_or(&[][..], Vec::as_slice);
        let connected = plugins.iter().rev().find(|plugin| plugin.connection.is_connected());
        let plugin = connected.or_else(|| plugins.last()).cloned();
        plugin.ok_or_else(|| Error::NotRegistered(words(driver)))
    }

    /// Adds a plugin.
    pub(crate) fn add(
        &self,
        driver: &str,
        endpoint: &str,
        service: Service,
        connection: Connection,
    ) -> Result<(), Refusal> {
        let mut known = self.known.lock();
        let plugins = known.get(driver).map_or(&[][..], Vec::as_slice);
        if plugins.iter().any(|plugin| plugin.endpoint == endpoint) {
            // One plugin cannot take the endpoint of another.
            return Err(Refusal::Failed(format!(
                "endpoint {endpoint} already registered for DRA driver plugin {driver}"
            )));
        }
        if plugins.len() >= MOST_PLUGINS {
            return Err(Refusal::Failed(format!(
                "DRA driver {driver} has {MOST_PLUGINS} plugins already"
            )));
        }
        let mut tasks = Vec::new();
        let (own, name, watched) = (self.own.clone(), driver.to_owned(), connection.clone());
        tasks.push(AbortOnDropHandle::new(tokio::spawn(follow(own, name, watched))));
        if let Some(monitor) = &self.health {
            let (monitor, name) = (monitor.clone(), driver.to_owned());
            let running = monitor.run(name, connection.clone());
            tasks.push(AbortOnDropHandle::new(tokio::spawn(running)));
        }
        let plugin = Plugin {
            driver: driver.to_owned(),
            endpoint: endpoint.to_owned(),
            service,
            connection,
            metrics: self.metrics.clone(),
            _tasks: tasks,
        };
        known.entry(driver.to_owned()).or_default().push(Arc::new(plugin));
        drop(known);
        self.update_wipe(driver);
        Ok(())
    }

    /// Removes a plugin.
    pub(crate) fn remove(&self, driver: &str, endpoint: &str) {
        let mut known = self.known.lock();
        if let Some(plugins) = known.get_mut(driver) {
            plugins.retain(|plugin| plugin.endpoint != endpoint);
            if plugins.is_empty() {
                known.remove(driver);
            }
        }
        drop(known);
        self.update_wipe(driver);
    }

    /// The slices of a driver without a connected plugin are deleted after a while, unless it comes back.
    fn update_wipe(&self, driver: &str) {
        let Some(slices) = &self.slices else { return };
        let is_usable = {
            let known = self.known.lock();
            let plugins = known.get(driver).map_or(&[][..], Vec::as_slice);
            plugins.iter().any(|plugin| plugin.connection.is_connected())
        };
        let mut wipes = self.wipes.lock();
        if is_usable {
            wipes.remove(driver);
            return;
        }
        wipes.retain(|_, wipe| !wipe.is_finished());
        if wipes.contains_key(driver) {
            return; // the earlier time holds
        }
        let (slices, name) = (slices.clone(), driver.to_owned());
        let wipe = tokio::spawn(async move {
            sleep(WIPING_DELAY).await;
            info!(driver = name, "the driver is gone, its ResourceSlices are deleted");
            slices.wipe(Some(&name)).await;
        });
        wipes.insert(driver.to_owned(), AbortOnDropHandle::new(wipe));
    }

    /// Deletes the slices of all drivers: none is registered when the daemon starts, and those that come back
    /// publish theirs again.
    pub(crate) async fn wipe_all(&self) {
        if let Some(slices) = &self.slices {
            slices.wipe(None).await;
        }
    }
}

/// Follows whether a plugin is connected.
async fn follow(drivers: Weak<Drivers>, driver: String, mut connection: Connection) {
    loop {
        connection.changed().await;
        let Some(drivers) = drivers.upgrade() else { return };
        debug!(driver, connected = connection.is_connected(), "connection changed");
        drivers.update_wipe(&driver);
    }
}

#[async_trait]
impl Handler for Drivers {
    async fn register(&self, plugin: &Registration) -> Result<(), Refusal> {
        let Registration { name, endpoint, versions, .. } = plugin;
        let invalid = |reason: String| {
            let (name, endpoint) = (words(name), words(endpoint));
            Refusal::Invalid(format!(
                "invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {reason}"
            ))
        };
        if !is_driver_name(name) {
            return Err(Refusal::Invalid(format!(
                "invalid name of a DRA driver {:?}: it must be a DNS subdomain of at most 63 characters",
                words(name)
            )));
        }
        let service = Service::choose(versions).map_err(|reason| invalid(words(&reason)))?;
        let parsed = Endpoint::parse(endpoint).map_err(|error| {
            Refusal::Failed(format!(
                "create gRPC connection to DRA driver {name} plugin at endpoint {}: {}",
                words(endpoint),
                error.reason
            ))
        })?;
        self.add(name, endpoint, service, Connection::open(parsed))
    }

    async fn unregister(&self, plugin: &Registration) {
        self.remove(&plugin.name, &plugin.endpoint);
    }
}

/// Whether it can be the driver of a device: a DNS subdomain.
fn is_driver_name(name: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

impl Monitor {
    /// Follows the reports of one plugin.
    async fn run(self: Arc<Self>, driver: String, mut connection: Connection) {
        loop {
            match watch_health(&connection).await {
                Ok(mut stream) => {
                    debug!(driver, "the health of devices is reported");
                    let ended = self.follow(&driver, &mut stream).await;
                    debug!(driver, ?ended, "reports of health have ended");
                    self.clear(&driver).await;
                }
                // It is not asked again before it has restarted.
                Err(Failure::Status(Code::Unimplemented, _)) => connection.changed().await,
                Err(failure) => debug!(driver, ?failure, "the health of devices is not reported"),
            }
            sleep(HEALTH_DELAY).await;
        }
    }

    async fn follow(
        &self,
        driver: &str,
        stream: &mut tonic::Streaming<crate::api::health::NodeWatchResourcesResponse>,
    ) -> Result<(), tonic::Status> {
        loop {
            let end = self.cache.lock().next_end(driver, clock::now());
            let message = tokio::select! {
                message = stream.message() => message?,
                () = clock::until(end) => {
                    self.notify();
                    continue;
                }
            };
            let Some(message) = message else { return Ok(()) };
            let reports = message.devices.into_iter().map(Report::new).collect();
            let changed = self.cache.lock().update(driver, reports, clock::now());
            if !changed.is_empty() {
                self.save().await;
                if self.is_used(driver, &changed) {
                    self.notify();
                }
            }
        }
    }

    /// Whether a pod uses one of these devices.
    fn is_used(&self, driver: &str, keys: &[String]) -> bool {
        let keys: std::collections::HashSet<&str> = keys.iter().map(String::as_str).collect();
        let claims = self.claims.lock();
        claims
            .iter()
            .filter_map(|claim| claim.drivers.get(driver))
            .flatten()
            .any(|device| keys.contains(format!("{}/{}", device.pool, device.name).as_str()))
    }

    async fn clear(&self, driver: &str) {
        if self.cache.lock().clear(driver) {
            self.save().await;
            self.notify();
        }
    }

    async fn save(&self) {
        self.file.write(&self.cache).await;
    }

    fn notify(&self) {
        self.changes.send_modify(|changes| *changes = changes.saturating_add(1));
    }
}

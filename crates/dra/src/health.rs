//! The health of devices, as drivers report it. A report is valid for a while.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, ResourceHealth, ResourceStatus};
use k8s_openapi::jiff::SignedDuration;
use longshore_pod::Timestamp;
use longshore_pod::spec;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::api::health as proto;
use crate::claims::{Claims, Device};
use crate::file::StateFile;
use crate::names::{self, is_for};

/// The file, in the node's root directory.
const FILE: &str = "dra_health_state";
/// How long a report is valid, unless the driver says otherwise.
const DEFAULT_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);
/// Maximum length of a message in bytes, as in the API.
const LONGEST_MESSAGE: usize = 1024;
/// Maximum number of devices of a driver whose health is kept.
const MOST_DEVICES: usize = 10_000;

/// Whether a device works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Health {
    Healthy,
    Unhealthy,
    #[default]
    #[serde(other)]
    Unknown,
}

impl Health {
    fn name(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a driver has reported of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) health: Health,
    pub(crate) timeout: SignedDuration,
    pub(crate) message: String,
}

impl Report {
    /// A report as it was received.
    pub(crate) fn new(received: proto::DeviceHealth) -> Self {
        let health = match received.health() {
            proto::HealthStatus::Healthy => Health::Healthy,
            proto::HealthStatus::Unhealthy => Health::Unhealthy,
            proto::HealthStatus::Unknown => Health::Unknown,
        };
        let timeout = match received.health_check_timeout_seconds {
            seconds if seconds > 0 => SignedDuration::from_secs(seconds),
            _ => DEFAULT_TIMEOUT,
        };
        let device = received.device.unwrap_or_default();
        let (pool, device) = (device.pool_name, device.device_name);
        Self { pool, device, health, timeout, message: shortened(received.message) }
    }
}

/// A message of the API's length.
fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE - 3));
        message.push_str("...");
    }
    message
}

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    report: Report,
    at: Timestamp,
}

impl Known {
    /// When the report ceases to be valid.
    fn until(&self) -> Timestamp {
        self.at.checked_add(self.report.timeout).unwrap_or(Timestamp::MAX)
    }
}

/// The health of devices, by driver and then by pool and device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HealthCache(BTreeMap<String, BTreeMap<String, Known>>);

/// The key of a device, as upstream's.
fn key(pool: &str, device: &str) -> String {
    format!("{pool}/{device}")
}

impl HealthCache {
    /// A driver has reported all its devices. Returns the keys of those that have changed.
    pub(crate) fn update(
        &mut self,
        driver: &str,
        reports: Vec<Report>,
        now: Timestamp,
    ) -> Vec<String> {
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut changed = Vec::new();
        let mut newer = BTreeMap::new();
        for report in reports.into_iter().take(MOST_DEVICES) {
            let key = key(&report.pool, &report.device);
            let is_same = |known: &Known| known.report == report && known.until() > now;
            if !known.get(&key).is_some_and(is_same) {
                changed.push(key.clone());
            }
            newer.insert(key, Known { report, at: now });
        }
        // What is not reported any more stays for as long as it was valid.
        for (key, old) in std::mem::take(known) {
            if newer.contains_key(&key) {
                continue;
            }
            if old.until() > now && newer.len() < MOST_DEVICES {
                newer.insert(key, old);
            } else {
                changed.push(key);
            }
        }
        *known = newer;
        changed
    }

    /// A driver's reports are not valid any more. Returns whether there were any.
    pub(crate) fn clear(&mut self, driver: &str) -> bool {
        self.0.remove(driver).is_some_and(|known| !known.is_empty())
    }

    /// When the next report of a driver ceases to be valid.
    pub(crate) fn next_end(&self, driver: &str, now: Timestamp) -> Option<Timestamp> {
        let known = self.0.get(driver).into_iter().flat_map(BTreeMap::values);
        known.map(Known::until).filter(|until| *until > now).min()
    }

    /// The health of a device and the message about it.
    fn get(&self, driver: &str, device: &Device, now: Timestamp) -> (Health, &str) {
        let known =
            self.0.get(driver).and_then(|known| known.get(&key(&device.pool, &device.name)));
        match known.filter(|known| known.until() > now) {
            Some(known) => (known.report.health, &known.report.message),
            None => (Health::Unknown, ""),
        }
    }

    /// Adds the health of the devices of a pod's containers to its status.
    pub(crate) fn set_status(
        &self,
        claims: &Claims,
        pod: &Pod,
        status: &mut PodStatus,
        messages: bool,
        now: Timestamp,
    ) {
        for container in status.container_statuses.iter_mut().flatten() {
            self.set_container_status(claims, pod, container, messages, now);
        }
    }

    fn set_container_status(
        &self,
        claims: &Claims,
        pod: &Pod,
        status: &mut ContainerStatus,
        messages: bool,
        now: Timestamp,
    ) {
        let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
        let Some(container) = containers.iter().find(|own| own.name == status.name) else { return };
        // Without a claim that is not generated yet, there is nothing to report.
        let uses = names::container_uses(pod, container, false).unwrap_or_default();
        for own in uses {
            let Some(claim) = claims.get(spec::namespace(pod), own.claim) else { continue };
            let entry = own.entry.unwrap_or_default();
            let name = match own.request {
                "" => format!("claim:{entry}"),
                request => format!("claim:{entry}/{request}"),
            };
            let mut resources: Vec<ResourceHealth> = Vec::new();
            let devices = claim.drivers.iter();
            let devices =
                devices.flat_map(|(driver, own)| own.iter().map(move |own| (driver, own)));
            for (driver, device) in
                devices.filter(|(_, device)| is_for(&device.requests, own.request))
            {
                let (health, message) = self.get(driver, device, now);
                let id = device.cdi.first().cloned();
                let id = id.unwrap_or_else(|| format!("{driver}/{}/{}", device.pool, device.name));
                if resources.iter().any(|known| known.resource_id == id) {
                    continue;
                }
                resources.push(ResourceHealth {
                    health: Some(health.name().to_owned()),
                    message: Some(message.to_owned()).filter(|text| messages && !text.is_empty()),
                    resource_id: id,
                });
            }
            if resources.is_empty() {
                continue;
            }
            let statuses = status.allocated_resources_status.get_or_insert_default();
            statuses.retain(|known| known.name != name);
            statuses.push(ResourceStatus { name, resources: Some(resources) });
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverEntry {
    #[serde(default)]
    devices: Option<BTreeMap<String, DeviceEntry>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceEntry {
    pool_name: String,
    device_name: String,
    health: Health,
    last_updated: String,
    /// In nanoseconds; zero for the default.
    #[serde(default)]
    health_check_timeout: i64,
    #[serde(default)]
    message: String,
}

/// The file with the health of devices, in upstream's format.
pub(crate) struct HealthFile(StateFile);

impl HealthFile {
    /// Opens the file, and reads it. One that cannot be read is ignored: drivers report again.
    pub(crate) fn open(root: &Path) -> (Self, HealthCache) {
        let path = root.join(FILE);
        let cache = match std::fs::read(&path) {
            Ok(content) => decode(&content).unwrap_or_else(|error| {
                warn!(path = %path.display(), %error, "the health of devices is not read");
                HealthCache::default()
            }),
            Err(_) => HealthCache::default(),
        };
        (Self(StateFile::new(path)), cache)
    }

    /// Writes the file. A failure is logged: drivers report again.
    pub(crate) async fn write(&self, cache: &Mutex<HealthCache>) {
        if let Err(error) = self.0.write(|| encode(&cache.lock())).await {
            let path = self.0.path().display();
            warn!(%path, error, "the health of devices is not written");
        }
    }
}

pub(crate) fn encode(cache: &HealthCache) -> Result<Vec<u8>, serde_json::Error> {
    let entry = |known: &Known| DeviceEntry {
        pool_name: known.report.pool.clone(),
        device_name: known.report.device.clone(),
        health: known.report.health,
        last_updated: known.at.to_string(),
        health_check_timeout: i64::try_from(known.report.timeout.as_nanos()).unwrap_or(i64::MAX),
        message: known.report.message.clone(),
    };
    let drivers: BTreeMap<&str, DriverEntry> = cache
        .0
        .iter()
        .map(|(driver, known)| {
            let devices = known.iter().map(|(key, known)| (key.clone(), entry(known)));
            (driver.as_str(), DriverEntry { devices: Some(devices.collect()) })
        })
        .collect();
    serde_json::to_vec(&drivers)
}

pub(crate) fn decode(content: &[u8]) -> Result<HealthCache, serde_json::Error> {
    let drivers: BTreeMap<String, DriverEntry> = serde_json::from_slice(content)?;
    let known = |entry: DeviceEntry| {
        let at = entry.last_updated.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        let timeout = match entry.health_check_timeout {
            nanos if nanos > 0 => SignedDuration::from_nanos(nanos),
            _ => DEFAULT_TIMEOUT,
        };
        let (pool, device) = (entry.pool_name, entry.device_name);
        let (health, message) = (entry.health, shortened(entry.message));
        Known { report: Report { pool, device, health, timeout, message }, at }
    };
    let devices = |entry: DriverEntry| {
        let devices = entry.devices.unwrap_or_default().into_values().take(MOST_DEVICES);
        let devices = devices.map(known);
        devices.map(|known| (key(&known.report.pool, &known.report.device), known)).collect()
    };
    Ok(HealthCache(drivers.into_iter().map(|(name, own)| (name, devices(own))).collect()))
}

//! The state of CSI volumes.

use std::collections::HashMap;
use std::time::Duration;

use kube::{Client, Error as KubeError};
use longshore_client::objects::root_cause;
use longshore_csi::Driver;
use longshore_metrics::Registry;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::error::Error as VolumeError;
use crate::error::csi::{self as error, Error};
use crate::plugins::Drivers;
use crate::selinux::LabelledVolumes;

/// Timeout of one request to the apiserver.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of attachments.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);
/// Initial backoff of failed unstaging.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The CSI plugin.
pub(crate) struct Csi {
    pub(crate) drivers: Drivers,
    pub(crate) client: Option<Client>,
    /// Poll interval of claims of volumes in use.
    pub(crate) claim_poll_interval: Duration,
    /// Timeout of attachments.
    pub(crate) attach_timeout: Duration,
    pub(crate) sizes: Sizes,
    /// Initial backoff of failed unstaging.
    pub(crate) pause: Duration,
    /// Volumes of drivers that support SELinux labels.
    pub(crate) labelled: LabelledVolumes,
    /// Background tasks of volumes in use, by pod and volume.
    background_tasks: Mutex<BackgroundTasks>,
}

type BackgroundTasks = HashMap<(String, String), HashMap<BackgroundTask, AbortHandle>>;

/// A background task of a volume in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BackgroundTask {
    /// Periodic republishing.
    Republish,
    /// Online expansion.
    Expand,
}

impl Csi {
    /// A plugin for these drivers.
    pub(crate) fn new(
        drivers: Drivers,
        client: Option<Client>,
        claim_poll_interval: Duration,
        registry: &Registry,
    ) -> Self {
        let (sizes, background_tasks) = Default::default();
        let attach_timeout = ATTACH_TIMEOUT;
        let pause = FIRST_PAUSE;
        Self {
            drivers,
            client,
            claim_poll_interval,
            attach_timeout,
            sizes,
            pause,
            labelled: LabelledVolumes::new(registry),
            background_tasks,
        }
    }

    /// The client of the apiserver, for that.
    pub(crate) fn client(&self, action: impl FnOnce() -> String) -> Result<&Client, Error> {
        self.client.as_ref().ok_or_else(|| Error::Api {
            action: action(),
            reason: "no apiserver is configured".to_owned(),
        })
    }

    pub(crate) fn node_name(&self) -> &str {
        self.drivers.node_name()
    }

    pub(crate) fn driver(&self, name: &str) -> Result<Driver, Error> {
        self.drivers.get(name).ok_or_else(|| Error::NotRegistered(name.to_owned()))
    }

    /// Registers a background task of a volume, replacing an earlier one.
    pub(crate) fn set_background_task(
        &self,
        uid: &str,
        volume: &str,
        kind: BackgroundTask,
        task: AbortHandle,
    ) {
        let key = (uid.to_owned(), volume.to_owned());
        let before = self.background_tasks().entry(key).or_default().insert(kind, task);
        before.iter().for_each(AbortHandle::abort);
    }

    /// Aborts all background tasks of a volume, whose lock is held, so that no call is in progress.
    pub(crate) fn abort_background_tasks(&self, uid: &str, volume: &str) {
        let background_tasks = self.background_tasks().remove(&(uid.to_owned(), volume.to_owned()));
        background_tasks.iter().flat_map(HashMap::values).for_each(AbortHandle::abort);
    }

    fn background_tasks(&self) -> MutexGuard<'_, BackgroundTasks> {
        self.background_tasks.lock()
    }

    /// Triggers an update of the CSINode if the driver's limit is reached.
    pub(crate) fn check_exhausted<T>(
        &self,
        driver: &str,
        outcome: Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        if outcome.as_ref().is_err_and(error::is_exhausted) {
            self.notify_exhausted(driver);
        }
        outcome
    }

    pub(crate) fn notify_exhausted(&self, driver: &str) {
        if let Some(exhausted) = self.drivers.exhausted(driver) {
            exhausted.notify_one();
        }
    }
}

/// A request's response, or why it failed.
pub(crate) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}")),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(KubeError::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(root_cause(&error)),
    }
}

/// The sizes that volumes have on this node, by their unique names.
#[derive(Default)]
pub(crate) struct Sizes(Mutex<HashMap<String, i128>>);

impl Sizes {
    pub(crate) fn get(&self, device: &str) -> i128 {
        self.known().get(device).copied().unwrap_or(0)
    }

    pub(crate) fn set(&self, device: &str, size: i128) {
        self.known().insert(device.to_owned(), size);
    }

    /// The initial size of a volume, unless it is known.
    pub(crate) fn insert_initial(&self, device: &str, size: i128) {
        self.known().entry(device.to_owned()).or_insert(size);
    }

    /// The volume was unstaged.
    pub(crate) fn forget(&self, device: &str) {
        self.known().remove(device);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, i128>> {
        self.0.lock()
    }
}

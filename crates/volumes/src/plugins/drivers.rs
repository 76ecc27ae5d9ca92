//! The registered CSI drivers. Written by registrations, read by the volumes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_csi::Driver;
use longshore_metrics::Registry;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::error::Error;
use super::metrics::Calls;
use super::version::Version;

/// The drivers by name. Cheap to clone.
#[derive(Clone)]
pub struct Drivers {
    node_name: Arc<str>,
    known: Arc<Mutex<HashMap<String, Registered>>>,
    calls: Arc<Calls>,
}

struct Registered {
    driver: Driver,
    version: Version,
    /// Its registration socket.
    socket: PathBuf,
    /// Notified when its attach limit is reached.
    exhausted: Arc<Notify>,
}

impl Drivers {
    /// No drivers yet on the node of that name; metrics of calls go to `registry`.
    pub fn new(node_name: &str, registry: &Registry) -> Self {
        let calls = Arc::new(Calls::new(registry));
        Self { node_name: node_name.into(), known: Arc::default(), calls }
    }

    /// The name of the node.
    pub(crate) fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The driver of that name, if it is registered.
    pub fn get(&self, name: &str) -> Option<Driver> {
        self.lock().get(name).map(|known| known.driver.clone())
    }

    /// The notification that the attach limit of a driver is reached.
    pub(crate) fn exhausted(&self, name: &str) -> Option<Arc<Notify>> {
        self.lock().get(name).map(|known| known.exhausted.clone())
    }

    /// A client for a driver.
    pub(super) fn client(&self, name: &str, endpoint: &str) -> Result<Driver, Error> {
        let observer: Arc<dyn longshore_csi::Observer> = self.calls.clone();
        let options = longshore_csi::Options {
            observer: Some(observer),
            ..longshore_csi::Options::new(endpoint)
        };
        Ok(Driver::new(name, options)?)
    }

    /// Checks that no other driver of that name and the same or a newer version is registered.
    pub(super) fn check(&self, name: &str, version: &Version, socket: &Path) -> Result<(), Error> {
        match self.lock().get(name) {
            Some(known) if known.socket != socket && known.version >= *version => {
                let (driver, version) = (name.to_owned(), known.version.to_string());
                Err(Error::Duplicate { driver, version })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn add(&self, driver: Driver, version: Version, socket: &Path) {
        let name = driver.name().to_owned();
        let (socket, exhausted) = (socket.to_owned(), Arc::default());
        let registered = Registered { driver, version, socket, exhausted };
        self.lock().insert(name, registered);
    }

    /// Removes a driver, unless it is registered at another socket. Returns whether it was removed.
    pub(super) fn remove(&self, name: &str, socket: &Path) -> bool {
        let mut known = self.lock();
        let is_own = known.get(name).is_some_and(|known| known.socket == socket);
        is_own && known.remove(name).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Registered>> {
        self.known.lock()
    }
}

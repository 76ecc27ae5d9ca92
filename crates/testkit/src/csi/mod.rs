//! A CSI driver for tests, on real sockets: a volume is a bind-mounted directory, or a file behind a
//! loop device. It records requests, injects faults, and can be killed and restarted.
//!
//! Current limitations: no controller service; volumes are created on first use.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_csi::v1::node_service_capability::rpc;
use longshore_csi::v1::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCondition,
    VolumeUsage,
};
use longshore_csi::{Server, serve_driver};
use longshore_plugins::registration::RegistrationStatus;
use longshore_plugins::serve_registration;
use tokio::net::UnixListener;

use crate::error::{AtPath, Result};
use crate::fakecri::Fault;
use node::Service;
use registration::Announcement;
use state::State;
pub use volume_log::VolumeLog;

mod mounts;
mod node;
mod registration;
mod state;
mod volume_log;

/// Settings of a driver.
#[derive(Debug, Clone)]
pub struct CsiOptions {
    /// Its name.
    pub name: String,
    /// `CSIPlugin`, unless the node is to reject it.
    pub plugin_type: String,
    /// Supported versions of CSI.
    pub versions: Vec<String>,
    /// The node id.
    pub node_id: String,
    /// The volume limit; 0: unlimited.
    pub max_volumes: i64,
    /// The topology of its volumes.
    pub topology: BTreeMap<String, String>,
    /// Its capabilities.
    pub capabilities: Vec<rpc::Type>,
    /// The reported volume usage; `None`: the actual one.
    pub usage: Option<Vec<VolumeUsage>>,
    /// The reported volume condition.
    pub condition: VolumeCondition,
}

impl CsiOptions {
    /// A driver with staging and volume stats.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            plugin_type: "CSIPlugin".to_owned(),
            versions: vec!["1.0.0".to_owned()],
            node_id: format!("{name}-node"),
            max_volumes: 0,
            topology: BTreeMap::new(),
            capabilities: vec![rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats],
            usage: None,
            condition: VolumeCondition { abnormal: false, message: "well".to_owned() },
        }
    }

    /// With these capabilities.
    #[must_use]
    pub fn with(self, capabilities: impl IntoIterator<Item = rpc::Type>) -> Self {
        Self { capabilities: capabilities.into_iter().collect(), ..self }
    }
}

/// A driver and its registrar.
#[derive(Debug)]
pub struct CsiDriver {
    state: Arc<State>,
    dir: PathBuf,
    registration: PathBuf,
    driver: Option<Server>,
    registrar: Option<Server>,
}

impl CsiDriver {
    /// Starts a driver with its socket and volumes in `dir`, and registers it in `registry`, the node's
    /// `plugins_registry` directory. Creates both. Does not wait for the node.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(options: CsiOptions, dir: &Path, registry: &Path) -> Result<Self> {
        let registration = registry.join(format!("{}-reg.sock", options.name));
        for folder in [dir, registry, &dir.join("volumes")] {
            fs::create_dir_all(folder).at(folder)?;
        }
        let state = Arc::new(State::new(options, dir));
        let dir = dir.to_owned();
        let mut driver = Self { state, dir, registration, driver: None, registrar: None };
        driver.resume()?;
        driver.announce()?;
        Ok(driver)
    }

    /// The socket of its services.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.state.socket()
    }

    /// The socket of its registration.
    #[must_use]
    pub fn registration(&self) -> &Path {
        &self.registration
    }

    /// The directory with the content of a volume.
    #[must_use]
    pub fn volume(&self, handle: &str) -> PathBuf {
        self.state.volume(handle)
    }

    /// Kills the driver: its sockets are closed, and their files stay.
    pub fn die(&mut self) {
        self.driver = None;
        self.registrar = None;
    }

    /// Restarts the services of the driver on a new socket, without a new registration.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn resume(&mut self) -> Result<()> {
        self.driver = None;
        let listener = listen(&self.socket())?;
        let service = Service(self.state.clone());
        self.driver = Some(serve_driver(listener, service.clone(), service));
        Ok(())
    }

    /// Registers, on a new socket.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn announce(&mut self) -> Result<()> {
        self.registrar = None;
        let listener = listen(&self.registration)?;
        self.registrar = Some(serve_registration(listener, Announcement(self.state.clone())));
        Ok(())
    }

    /// Deregisters.
    ///
    /// # Errors
    /// When the socket cannot be removed.
    pub fn withdraw(&mut self) -> Result<()> {
        self.registrar = None;
        fs::remove_file(&self.registration).at(&self.registration)
    }

    /// Changes the settings of the driver.
    pub fn change(&self, change: impl FnOnce(&mut CsiOptions)) {
        change(&mut self.state.lock().options);
    }

    /// Injects this fault into all calls of `method` (such as `NodePublishVolume`).
    pub fn inject(&self, method: &str, fault: Fault) {
        self.state.inject(method, fault, None);
    }

    /// Injects this fault into the next `times` calls of `method`.
    pub fn inject_times(&self, method: &str, fault: Fault, times: usize) {
        self.state.inject(method, fault, Some(times));
    }

    /// Removes the fault of these calls; hanging ones continue.
    pub fn release(&self, method: &str) {
        self.state.lock().faults.remove(method);
    }

    /// Removes all faults.
    pub fn release_all(&self) {
        self.state.lock().faults.clear();
    }

    /// The volumes of the driver.
    #[must_use]
    pub fn volume_log(&self) -> VolumeLog {
        self.state.lock().volume_log.clone()
    }

    /// Number of calls in progress that change a volume.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.state.lock().under_way.len()
    }

    /// The calls that change or measure volumes, in order: method and volume.
    #[must_use]
    pub fn calls(&self) -> Vec<(String, String)> {
        self.state.lock().calls.clone()
    }

    /// Number of calls of `method`.
    #[must_use]
    pub fn count(&self, method: &str) -> usize {
        self.state.lock().calls.iter().filter(|(called, _)| called == method).count()
    }

    /// The stage requests.
    #[must_use]
    pub fn stages(&self) -> Vec<NodeStageVolumeRequest> {
        self.state.lock().stages.clone()
    }

    /// The publish requests.
    #[must_use]
    pub fn publishes(&self) -> Vec<NodePublishVolumeRequest> {
        self.state.lock().publishes.clone()
    }

    /// The expand requests.
    #[must_use]
    pub fn expansions(&self) -> Vec<NodeExpandVolumeRequest> {
        self.state.lock().expansions.clone()
    }

    /// Registration results from the node.
    #[must_use]
    pub fn statuses(&self) -> Vec<RegistrationStatus> {
        self.state.lock().statuses.clone()
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        // After a failed test, volumes and loop devices may be left.
        mounts::detach_all_below(&self.dir);
    }
}

fn listen(socket: &Path) -> Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at(socket),
        _ => UnixListener::bind(socket).at(socket),
    }
}

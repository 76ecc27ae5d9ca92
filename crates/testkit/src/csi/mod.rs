//! A CSI driver of our own, on real sockets: a volume is a directory that is bound to where it is
//! wanted, or a file behind a loop device. It notes what it was asked for, does wrong what it is
//! told to, and dies and comes back as drivers do.
//!
//! Current limitations: no controller service; volumes come into being when they are first used.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_csi::registration::RegistrationStatus;
use longshore_csi::v1::node_service_capability::rpc;
use longshore_csi::v1::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCondition,
    VolumeUsage,
};
use longshore_csi::{Server, serve_driver, serve_registration};
use tokio::net::UnixListener;

use crate::error::{AtPath, Result};
use crate::fakecri::Fault;
use node::Service;
use registration::Announcement;
use state::State;

mod mounts;
mod node;
mod registration;
mod state;

/// What a driver says of itself.
#[derive(Debug, Clone)]
pub struct CsiOptions {
    /// Its name.
    pub name: String,
    /// `CSIPlugin`, unless the node is to refuse it.
    pub plugin_type: String,
    /// The versions of CSI that it speaks.
    pub versions: Vec<String>,
    /// What it calls the node.
    pub node_id: String,
    /// How many volumes it can have there; 0: any number.
    pub max_volumes: i64,
    /// From where its volumes can be reached.
    pub topology: BTreeMap<String, String>,
    /// What it can do.
    pub capabilities: Vec<rpc::Type>,
    /// How full it says that its volumes are; `None`: as they are.
    pub usage: Option<Vec<VolumeUsage>>,
    /// How it says that they are.
    pub condition: VolumeCondition,
}

impl CsiOptions {
    /// A driver that stages, and tells how full its volumes are.
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

    /// With these abilities in place of the usual.
    #[must_use]
    pub fn with(self, capabilities: impl IntoIterator<Item = rpc::Type>) -> Self {
        Self { capabilities: capabilities.into_iter().collect(), ..self }
    }
}

/// A driver, and the helper beside it that registers it.
#[derive(Debug)]
pub struct CsiDriver {
    state: Arc<State>,
    dir: PathBuf,
    registration: PathBuf,
    driver: Option<Server>,
    registrar: Option<Server>,
}

impl CsiDriver {
    /// Starts a driver that keeps its socket and its volumes in `dir`, and announces itself in
    /// `registry`, the node's `plugins_registry` directory. Both are made if they are absent. It is
    /// not awaited that a node takes it.
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

    /// Where its services are.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.state.socket()
    }

    /// Where it registers.
    #[must_use]
    pub fn registration(&self) -> &Path {
        &self.registration
    }

    /// The directory that is the content of a volume.
    #[must_use]
    pub fn volume(&self, handle: &str) -> PathBuf {
        self.state.volume(handle)
    }

    /// Ends the driver as a kill does: its sockets break and their files stay.
    pub fn die(&mut self) {
        self.driver = None;
        self.registrar = None;
    }

    /// Brings the driver's services back, on a socket made anew; it does not register again.
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

    /// Registers, on a socket made anew.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn announce(&mut self) -> Result<()> {
        self.registrar = None;
        let listener = listen(&self.registration)?;
        self.registrar = Some(serve_registration(listener, Announcement(self.state.clone())));
        Ok(())
    }

    /// Takes the registration back, as a helper does that is told to stop.
    ///
    /// # Errors
    /// When the socket cannot be removed.
    pub fn withdraw(&mut self) -> Result<()> {
        self.registrar = None;
        fs::remove_file(&self.registration).at(&self.registration)
    }

    /// Changes what the driver says of itself, from the next question on.
    pub fn change(&self, change: impl FnOnce(&mut CsiOptions)) {
        change(&mut self.state.lock().options);
    }

    /// Gives each further call of `method` (such as `NodePublishVolume`) this fault.
    pub fn inject(&self, method: &str, fault: Fault) {
        self.state.inject(method, fault);
    }

    /// Takes the fault from these calls; those that hang go on.
    pub fn release(&self, method: &str) {
        self.state.lock().faults.remove(method);
    }

    /// The calls that change or measure volumes, in the order in which they came, whatever became
    /// of them: method and volume.
    #[must_use]
    pub fn calls(&self) -> Vec<(String, String)> {
        self.state.lock().calls.clone()
    }

    /// How many calls of `method` have come, for whatever volume.
    #[must_use]
    pub fn count(&self, method: &str) -> usize {
        self.state.lock().calls.iter().filter(|(called, _)| called == method).count()
    }

    /// What it was asked to stage.
    #[must_use]
    pub fn stages(&self) -> Vec<NodeStageVolumeRequest> {
        self.state.lock().stages.clone()
    }

    /// What it was asked to publish.
    #[must_use]
    pub fn publishes(&self) -> Vec<NodePublishVolumeRequest> {
        self.state.lock().publishes.clone()
    }

    /// What it was asked to make larger.
    #[must_use]
    pub fn expansions(&self) -> Vec<NodeExpandVolumeRequest> {
        self.state.lock().expansions.clone()
    }

    /// What the node has told of its registrations.
    #[must_use]
    pub fn statuses(&self) -> Vec<RegistrationStatus> {
        self.state.lock().statuses.clone()
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        // Where a test has failed, volumes may be left; nobody else knows of the loop devices.
        mounts::detach_all_below(&self.dir);
    }
}

fn listen(socket: &Path) -> Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at(socket),
        _ => UnixListener::bind(socket).at(socket),
    }
}

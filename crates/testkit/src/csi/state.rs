//! State of a driver: capabilities, recorded requests, and faults to inject.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use longshore_csi::v1::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
};
use longshore_plugins::registration::RegistrationStatus;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::CsiOptions;
use super::volume_log::VolumeLog;
use crate::fakecri::Fault;

#[derive(Debug)]
pub(super) struct State {
    dir: PathBuf,
    ledger: Mutex<Ledger>,
}

#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) options: CsiOptions,
    pub(super) faults: HashMap<String, Planned>,
    pub(super) calls: Vec<(String, String)>,
    pub(super) volume_log: VolumeLog,
    /// Volumes that are being changed, with the calls.
    pub(super) under_way: Vec<(String, String)>,
    pub(super) stages: Vec<NodeStageVolumeRequest>,
    pub(super) publishes: Vec<NodePublishVolumeRequest>,
    pub(super) expansions: Vec<NodeExpandVolumeRequest>,
    pub(super) statuses: Vec<RegistrationStatus>,
}

/// A fault; hanging calls continue when it is dropped.
#[derive(Debug)]
pub(super) struct Planned {
    fault: Fault,
    /// `None`: unlimited.
    left: Option<usize>,
    released: CancellationToken,
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.released.cancel();
    }
}

/// What follows after the work of a call.
pub(super) enum Reply {
    AtOnce,
    When(CancellationToken),
    Never(Status),
}

impl Reply {
    /// Waits until the response may be sent, if at all.
    pub(super) async fn due(self) -> Result<(), Status> {
        match self {
            Self::AtOnce => Ok(()),
            Self::When(released) => {
                released.cancelled().await;
                Ok(())
            }
            Self::Never(failure) => Err(failure),
        }
    }
}

/// A call that changes a volume, until it is dropped.
pub(super) struct Turn<'a> {
    state: &'a State,
    call: (String, String),
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut ledger = self.state.lock();
        if let Some(at) = ledger.under_way.iter().position(|call| *call == self.call) {
            ledger.under_way.remove(at);
        }
    }
}

impl Ledger {
    pub(super) fn check_stage(&mut self, request: &NodeStageVolumeRequest) {
        self.volume_log.check_stage(request);
        self.stages.push(request.clone());
    }

    pub(super) fn check_publish(&mut self, request: &NodePublishVolumeRequest) {
        self.volume_log.check_publish(request, &self.options.capabilities);
        self.publishes.push(request.clone());
    }
}

impl State {
    pub(super) fn new(options: CsiOptions, dir: &Path) -> Self {
        let ledger = Ledger {
            options,
            faults: HashMap::new(),
            calls: Vec::new(),
            volume_log: VolumeLog::default(),
            under_way: Vec::new(),
            stages: Vec::new(),
            publishes: Vec::new(),
            expansions: Vec::new(),
            statuses: Vec::new(),
        };
        Self { dir: dir.to_owned(), ledger: Mutex::new(ledger) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    pub(super) fn volume(&self, handle: &str) -> PathBuf {
        // Drivers give paths and URLs as handles, too.
        self.dir.join("volumes").join(handle.replace('/', "~"))
    }

    pub(super) fn inject(&self, method: &str, fault: Fault, left: Option<usize>) {
        let planned = Planned { fault, left, released: CancellationToken::new() };
        self.lock().faults.insert(method.to_owned(), planned);
    }

    /// Records a call that changes a volume: only one at a time is allowed.
    pub(super) fn begin(&self, method: &str, volume: &str) -> Turn<'_> {
        let call = (method.to_owned(), volume.to_owned());
        let mut ledger = self.lock();
        let other = ledger.under_way.iter().find(|(_, other)| other == volume).cloned();
        if let Some((other, _)) = other {
            ledger.volume_log.overlaps(method, volume, &other);
        }
        ledger.under_way.push(call.clone());
        Turn { state: self, call }
    }

    /// Records a call about a volume, and applies its fault.
    pub(super) async fn enter(&self, method: &str, volume: &str) -> Result<Reply, Status> {
        self.lock().calls.push((method.to_owned(), volume.to_owned()));
        self.meet(method).await
    }

    /// Applies the fault of a call.
    pub(super) async fn meet(&self, method: &str) -> Result<Reply, Status> {
        match self.planned(method) {
            None => Ok(Reply::AtOnce),
            Some((Fault::Answer(_), _)) => {
                Err(Status::unimplemented("a driver has nobody behind it to stand in for"))
            }
            Some((Fault::Error(code, message), _)) => Err(Status::new(code, message)),
            Some((Fault::ErrorReply(code, message), _)) => {
                Ok(Reply::Never(Status::new(code, message)))
            }
            Some((Fault::Delay(delay), _)) => {
                tokio::time::sleep(delay).await;
                Ok(Reply::AtOnce)
            }
            Some((Fault::Hang, released)) => {
                released.cancelled().await;
                Ok(Reply::AtOnce)
            }
            Some((Fault::HangReply, released)) => Ok(Reply::When(released)),
        }
    }

    fn planned(&self, method: &str) -> Option<(Fault, CancellationToken)> {
        let mut ledger = self.lock();
        let planned = ledger.faults.get_mut(method)?;
        if let Some(left) = &mut planned.left {
            *left = left.checked_sub(1)?;
        }
        Some((planned.fault.clone(), planned.released.clone()))
    }
}

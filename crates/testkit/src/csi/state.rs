//! What a driver knows: what it says of itself, what it was asked for, and what it is to do wrong.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use longshore_csi::registration::RegistrationStatus;
use longshore_csi::v1::{
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::CsiOptions;
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
    pub(super) stages: Vec<NodeStageVolumeRequest>,
    pub(super) publishes: Vec<NodePublishVolumeRequest>,
    pub(super) expansions: Vec<NodeExpandVolumeRequest>,
    pub(super) statuses: Vec<RegistrationStatus>,
}

/// A fault; those that hang by it go on when it is dropped.
#[derive(Debug)]
pub(super) struct Planned {
    fault: Fault,
    released: CancellationToken,
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.released.cancel();
    }
}

/// What is to come after a call's work.
pub(super) struct Reply(Option<CancellationToken>);

impl Reply {
    /// Waits until the answer may be given.
    pub(super) async fn due(self) {
        if let Some(released) = self.0 {
            released.cancelled().await;
        }
    }
}

impl State {
    pub(super) fn new(options: CsiOptions, dir: &Path) -> Self {
        let ledger = Ledger {
            options,
            faults: HashMap::new(),
            calls: Vec::new(),
            stages: Vec::new(),
            publishes: Vec::new(),
            expansions: Vec::new(),
            statuses: Vec::new(),
        };
        Self { dir: dir.to_owned(), ledger: Mutex::new(ledger) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("csi.sock")
    }

    pub(super) fn volume(&self, handle: &str) -> PathBuf {
        self.dir.join("volumes").join(handle)
    }

    pub(super) fn inject(&self, method: &str, fault: Fault) {
        let planned = Planned { fault, released: CancellationToken::new() };
        self.lock().faults.insert(method.to_owned(), planned);
    }

    /// Notes a call about a volume, and has its fault happen.
    pub(super) async fn enter(&self, method: &str, volume: &str) -> Result<Reply, Status> {
        self.lock().calls.push((method.to_owned(), volume.to_owned()));
        self.meet(method).await
    }

    /// Has the fault of a call happen.
    pub(super) async fn meet(&self, method: &str) -> Result<Reply, Status> {
        let planned = self.lock().faults.get(method).map(|p| (p.fault.clone(), p.released.clone()));
        match planned {
            None => Ok(Reply(None)),
            Some((Fault::Answer(_), _)) => {
                Err(Status::unimplemented("a driver has nobody behind it to stand in for"))
            }
            Some((Fault::Error(code, message), _)) => Err(Status::new(code, message)),
            Some((Fault::Delay(delay), _)) => {
                tokio::time::sleep(delay).await;
                Ok(Reply(None))
            }
            Some((Fault::Hang, released)) => {
                released.cancelled().await;
                Ok(Reply(None))
            }
            Some((Fault::HangReply, released)) => Ok(Reply(Some(released))),
        }
    }
}

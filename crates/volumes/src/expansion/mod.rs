//! Expansion of volumes on the node: by their driver, or of their file system. The state is in the claim's
//! status, which is updated here.

mod file_system;
mod follow;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolumeClaim, PersistentVolumeClaimCondition,
    PersistentVolumeClaimStatus, Pod,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use longshore_client::{Item, object};
use longshore_csi::Code;
use longshore_pod::{qos, spec};
use serde_json::{Value, json};

use crate::error::{Error, csi as error};
use crate::persistent::Persistent;
use crate::state::State;
use crate::state::csi::within;
use crate::task::Task;

pub(super) use file_system::expand as expand_file_system;
pub(super) use follow::{Kind, start as follow};

/// The resource name of sizes.
pub(super) const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const FAILED: &str = "NodeResizeError";
/// Conditions that are removed from a claim after a resize.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];

/// A volume that can be made larger.
pub(super) trait Expand: Sync {
    /// Its unique name.
    fn device(&self) -> &str;

    /// Why it is not made larger on the node, if so.
    fn unsupported(&self) -> Option<String>;

    /// Makes it that large: it was of the size `old`, as far as that is known.
    fn expand(
        &self,
        task: &Task<'_>,
        size: &Quantity,
        old: Option<&Quantity>,
    ) -> impl Future<Output = Result<(), ExpandError>> + Send;
}

/// Why a volume was not made larger.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExpandError {
    /// The call to its driver failed.
    #[error(transparent)]
    Call(#[from] longshore_csi::Error),
    /// Something else failed, and is tried again.
    #[error(transparent)]
    Other(#[from] Error),
}

impl ExpandError {
    fn call(&self) -> Option<&longshore_csi::Error> {
        match self {
            Self::Call(error) => Some(error),
            Self::Other(_) => None,
        }
    }
}

/// The required expansion of a claim's volume.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// None on the node.
    None,
    /// Expand the volume to that size.
    Expand { size: Quantity, status_update: StatusUpdate },
}

/// Which updates of the claim's status are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusUpdate {
    /// Every step.
    Full,
    /// Only the final size: older controllers use nothing else.
    FinalOnly,
    /// None: another node that uses the volume has updated it.
    Nothing,
}

/// The outcome of an expansion.
#[derive(Debug, PartialEq)]
pub(super) enum Expansion {
    /// The volume has the required size.
    NotNeeded,
    /// Expanded to this size.
    Expanded(Quantity),
    /// The controller has yet to expand the volume.
    Pending,
    /// The driver supports offline expansion only.
    OfflineOnly,
}

/// Expands the volume if it should be larger than the size in the claim's status. Volumes that can
/// only be expanded offline are left as they are.
pub(super) async fn expand(task: &Task<'_>, volume: &impl Expand) -> Result<Expansion, Error> {
    let persistent = task.persistent;
    let Some(capacity) = &persistent.capacity else { return Ok(Expansion::NotNeeded) };
    if !is_less(persistent.claim_capacity.as_ref(), capacity) {
        return Ok(Expansion::NotNeeded);
    }
    match claim(task.node, task.pod, persistent).await? {
        Some(claim) => expand_to(task, volume, claim, None).await,
        None => Ok(Expansion::NotNeeded),
    }
}

/// Reads the claim of a volume.
pub(super) async fn claim(
    node: &State,
    pod: &Pod,
    persistent: &Persistent,
) -> Result<Option<PersistentVolumeClaim>, Error> {
    let Some(name) = &persistent.claim else { return Ok(None) };
    let namespace = spec::namespace(pod);
    let action = || format!("get PVC {namespace}/{name}");
    let client = node.csi.client(action)?.clone();
    let claims = Api::<Item<PersistentVolumeClaim>>::namespaced(client, namespace);
    let failed = |reason| error::Error::Api { action: action(), reason };
    Ok(Some(within(object(claims.get(name))).await.map_err(failed)?))
}

/// The same with a given claim and, for a volume in use, its size on the node.
pub(super) async fn expand_to(
    task: &Task<'_>,
    volume: &impl Expand,
    claim: PersistentVolumeClaim,
    node_size: Option<i128>,
) -> Result<Expansion, Error> {
    let Some(capacity) = &task.persistent.capacity else { return Ok(Expansion::NotNeeded) };
    let unknown = PersistentVolumeClaimStatus::default();
    let status = claim.status.as_ref().unwrap_or(&unknown);
    let Step::Expand { size, status_update } = required_step(status, capacity, node_size) else {
        let claim_size = storage_of(&status.capacity);
        return Ok(if is_less(claim_size.as_ref(), capacity) {
            Expansion::Pending
        } else {
            Expansion::NotNeeded
        });
    };
    if task.persistent.read_only {
        let message = "requested read-only file system";
        record_event(task, &claim, true, "FileSystemResizeFailed", &failure(task, message));
        return Ok(Expansion::Pending);
    }
    let namespace = spec::namespace(task.pod);
    let client = task.node.csi.client(|| format!("update PVCs of {namespace}"))?.clone();
    let work = Expander { task, volume, claims: Api::namespaced(client, namespace), claim };
    work.run(&size, status_update).await
}

fn storage_of(amounts: &Option<BTreeMap<String, Quantity>>) -> Option<Quantity> {
    amounts.as_ref()?.get(STORAGE).cloned()
}

/// The expansion that the claim requires, given the volume's size on the node, if known.
pub(super) fn required_step(
    status: &PersistentVolumeClaimStatus,
    capacity: &Quantity,
    node_size: Option<i128>,
) -> Step {
    let stage = status.allocated_resource_statuses.as_ref();
    let stage = stage.and_then(|statuses| statuses.get(STORAGE)).map(String::as_str);
    let allocated = storage_of(&status.allocated_resources);
    match (stage, allocated) {
        _ if !is_less(storage_of(&status.capacity).as_ref(), capacity) => match stage.is_none() {
            true if node_size.is_some_and(|node_size| node_size < bytes(capacity)) => {
                Step::Expand { size: capacity.clone(), status_update: StatusUpdate::Nothing }
            }
            _ => Step::None,
        },
        (Some(PENDING | IN_PROGRESS), size) => {
            let size = size.unwrap_or_else(|| capacity.clone());
            Step::Expand { size, status_update: StatusUpdate::Full }
        }
        (None, None) => {
            Step::Expand { size: capacity.clone(), status_update: StatusUpdate::FinalOnly }
        }
        // The controller has not reached the node's step yet, or has failed.
        _ => Step::None,
    }
}

fn is_less(known: Option<&Quantity>, capacity: &Quantity) -> bool {
    known.map_or(0, bytes) < bytes(capacity)
}

/// A size in bytes, for drivers; 0 for an invalid quantity.
pub(super) fn whole_bytes(quantity: &Quantity) -> i64 {
    i64::try_from(bytes(quantity) / 1000).unwrap_or_default()
}

/// A size in thousandths of bytes; 0 for an invalid quantity.
pub(super) fn bytes(quantity: &Quantity) -> i128 {
    qos::milli(quantity).unwrap_or(0)
}

struct Expander<'a, V> {
    task: &'a Task<'a>,
    volume: &'a V,
    claims: Api<Item<PersistentVolumeClaim>>,
    claim: PersistentVolumeClaim,
}

impl<V: Expand> Expander<'_, V> {
    async fn run(&self, size: &Quantity, status_update: StatusUpdate) -> Result<Expansion, Error> {
        let updates_all = status_update == StatusUpdate::Full;
        let node = self.task.node.csi.node_name();
        if let Some(why) = self.volume.unsupported() {
            // Nothing to do on the node, and nothing to wait for.
            if updates_all {
                let message = failure(self.task, &why);
                record_event(self.task, &self.claim, true, "VolumeResizeFailed", &message);
            }
            return Ok(Expansion::OfflineOnly);
        }
        if updates_all {
            self.patch_status(json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})).await?;
        }
        let old = storage_of(&self.claim.status.clone().unwrap_or_default().capacity);
        match self.volume.expand(self.task, size, old.as_ref()).await {
            Ok(()) => {
                let name = &self.task.persistent.spec_name;
                let message =
                    format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
                record_event(self.task, &self.claim, false, "FileSystemResizeSuccessful", &message);
                if status_update != StatusUpdate::Nothing {
                    self.patch_status(finished(&self.claim, size)).await?;
                }
                Ok(Expansion::Expanded(size.clone()))
            }
            Err(error) => {
                let message = failure(self.task, &error.to_string());
                record_event(self.task, &self.claim, true, "VolumeResizeFailed", &message);
                if let Some(error) = error.call().filter(|error| updates_all && error.is_final()) {
                    self.patch_status(refused(&self.claim, error)).await?;
                }
                match error {
                    // In use: it is expanded offline.
                    ExpandError::Call(error) if error.code() == Some(Code::FailedPrecondition) => {
                        Ok(Expansion::OfflineOnly)
                    }
                    ExpandError::Call(error) => Err(error::Error::Expand(error).into()),
                    ExpandError::Other(error) => Err(error),
                }
            }
        }
    }

    /// Patches the claim's status.
    async fn patch_status(&self, status: Value) -> Result<(), Error> {
        let name = self.claim.metadata.name.as_deref().unwrap_or_default();
        let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"status": status})));
        let patched = within(self.claims.patch_status(name, &params, &patch)).await;
        let action = format!("update the status of PVC {name}");
        patched.map(drop).map_err(|reason| error::Error::Api { action, reason }.into())
    }
}

/// The status of a claim after an expansion.
fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    json!({
        "capacity": {STORAGE: size},
        "allocatedResourceStatuses": {STORAGE: null},
        "conditions": other_conditions(claim),
    })
}

/// The status of a claim after a failed expansion.
fn refused(claim: &PersistentVolumeClaim, error: &longshore_csi::Error) -> Value {
    let never =
        matches!(error.code(), Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound));
    let known = claim.status.as_ref().and_then(|status| status.conditions.clone());
    let mut conditions = known.unwrap_or_default();
    conditions.retain(|condition| condition.type_ != FAILED);
    conditions.push(PersistentVolumeClaimCondition {
        type_: FAILED.to_owned(),
        status: "True".to_owned(),
        message: Some(format!("failed to expand pvc with {error}")),
        last_transition_time: Some(Time(Timestamp::now())),
        ..PersistentVolumeClaimCondition::default()
    });
    let mut status = json!({"conditions": conditions});
    if never {
        status["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    status
}

fn other_conditions(claim: &PersistentVolumeClaim) -> Vec<&PersistentVolumeClaimCondition> {
    let known = claim.status.as_ref().and_then(|status| status.conditions.as_deref());
    let known = known.unwrap_or_default().iter();
    known.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str())).collect()
}

fn failure(task: &Task<'_>, why: &str) -> String {
    let name = &task.persistent.spec_name;
    format!("MountVolume.NodeExpandVolume failed for volume {name:?} {why}")
}

/// Records an event about both the pod and the claim.
fn record_event(
    task: &Task<'_>,
    claim: &PersistentVolumeClaim,
    warning: bool,
    reason: &str,
    message: &str,
) {
    task.node.pod_events.pod(task.pod, warning, reason, message);
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    task.node.pod_events.about(about, warning, reason, message);
}

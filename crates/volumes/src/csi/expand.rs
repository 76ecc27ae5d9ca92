//! Volumes that were made larger, and whose file system has yet to follow. The claim says how far
//! that has come, and is told what became of it here.

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
use longshore_csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use longshore_pod::{qos, spec};
use serde_json::{Value, json};

use super::super::persistent::{Persistent, Task};
use super::super::{Error, Inner};
use super::api::within;
use super::error;
use super::paths::{BlockPlace, Place};
use super::request::Volume;

/// What claims and volumes have their size under.
pub(super) const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const FAILED: &str = "NodeResizeError";
/// What a claim says of its resizing, all of which is over once it is done.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];

/// What is to be done about a claim's size.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing, as far as the node is concerned.
    None,
    /// The volume is to have that many bytes.
    Expand { size: Quantity, account: Account },
}

/// What the claim is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// Each step.
    Steps,
    /// The end alone: older controllers keep account of nothing else.
    End,
    /// Nothing: another node, which has the volume too, has told it.
    Nothing,
}

/// How far a volume has come.
#[derive(Debug, PartialEq)]
pub(super) enum Grown {
    /// It had the size that it should have.
    Before,
    /// It has just got this size.
    Now(Quantity),
    /// The controller, or whoever looks after the claim, has yet to do their part.
    NotYet,
    /// The driver can do it only when no pod has the volume.
    InUse,
}

/// Has the driver make the volume as large as it should be, if it is to be larger than the claim
/// was told. A driver that can do that only to volumes out of use holds up nothing.
pub(super) async fn expand(task: &Task<'_>, volume: &Volume<'_>) -> Result<Grown, Error> {
    let persistent = task.persistent;
    let Some(capacity) = &persistent.capacity else { return Ok(Grown::Before) };
    if !is_less(persistent.claim_capacity.as_ref(), capacity) {
        return Ok(Grown::Before);
    }
    match claim(task.node, task.pod, persistent).await? {
        Some(claim) => expand_to(task, volume, claim, None).await,
        None => Ok(Grown::Before),
    }
}

/// The claim that leads to a volume, as it is now.
pub(super) async fn claim(
    node: &Inner,
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

/// The same with the claim at hand, and of a volume that pods use, with the size that it has here.
pub(super) async fn expand_to(
    task: &Task<'_>,
    volume: &Volume<'_>,
    claim: PersistentVolumeClaim,
    here: Option<i128>,
) -> Result<Grown, Error> {
    let Some(capacity) = &task.persistent.capacity else { return Ok(Grown::Before) };
    let unknown = PersistentVolumeClaimStatus::default();
    let status = claim.status.as_ref().unwrap_or(&unknown);
    let Step::Expand { size, account } = step(status, capacity, here) else {
        let told = of(&status.capacity);
        return Ok(if is_less(told.as_ref(), capacity) { Grown::NotYet } else { Grown::Before });
    };
    if task.persistent.read_only {
        let message = "requested read-only file system";
        say(task, &claim, true, "FileSystemResizeFailed", &failure(task, message));
        return Ok(Grown::NotYet);
    }
    let namespace = spec::namespace(task.pod);
    let client = task.node.csi.client(|| format!("update PVCs of {namespace}"))?.clone();
    let work = Work { task, volume, claims: Api::namespaced(client, namespace), claim };
    work.run(&size, account).await
}

fn of(amounts: &Option<BTreeMap<String, Quantity>>) -> Option<Quantity> {
    amounts.as_ref()?.get(STORAGE).cloned()
}

/// What a claim asks of the node, where the volume has the size `here` if that is known.
pub(super) fn step(
    status: &PersistentVolumeClaimStatus,
    capacity: &Quantity,
    here: Option<i128>,
) -> Step {
    let stage = status.allocated_resource_statuses.as_ref();
    let stage = stage.and_then(|statuses| statuses.get(STORAGE)).map(String::as_str);
    let allocated = of(&status.allocated_resources);
    match (stage, allocated) {
        _ if !is_less(of(&status.capacity).as_ref(), capacity) => match stage.is_none() {
            true if here.is_some_and(|here| here < bytes(capacity)) => {
                Step::Expand { size: capacity.clone(), account: Account::Nothing }
            }
            _ => Step::None,
        },
        (Some(PENDING | IN_PROGRESS), size) => {
            let size = size.unwrap_or_else(|| capacity.clone());
            Step::Expand { size, account: Account::Steps }
        }
        (None, None) => Step::Expand { size: capacity.clone(), account: Account::End },
        // The controller has not come to the node's part yet, or has given up.
        _ => Step::None,
    }
}

fn is_less(known: Option<&Quantity>, capacity: &Quantity) -> bool {
    known.map_or(0, bytes) < bytes(capacity)
}

/// A size in thousandths of bytes, as quantities may have them; what is no number is nothing.
pub(super) fn bytes(quantity: &Quantity) -> i128 {
    qos::milli(quantity).unwrap_or(0)
}

struct Work<'a> {
    task: &'a Task<'a>,
    volume: &'a Volume<'a>,
    claims: Api<Item<PersistentVolumeClaim>>,
    claim: PersistentVolumeClaim,
}

impl Work<'_> {
    async fn run(&self, size: &Quantity, account: Account) -> Result<Grown, Error> {
        let accounted = account == Account::Steps;
        let node = self.task.node.csi.node_name();
        if !self.volume.able.expand {
            // There is nothing that the node could do, and nothing that the pod could wait for.
            if accounted {
                let driver = self.volume.driver.name();
                let why = format!("NodeExpand is not supported by the CSI driver {driver}");
                let message = failure(self.task, &why);
                say(self.task, &self.claim, true, "VolumeResizeFailed", &message);
            }
            return Ok(Grown::InUse);
        }
        if accounted {
            self.tell(json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})).await?;
        }
        let request = self.request(size).await?;
        match self.volume.driver.expand(request).await {
            Ok(_) => {
                let name = &self.task.persistent.spec_name;
                let message =
                    format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
                say(self.task, &self.claim, false, "FileSystemResizeSuccessful", &message);
                if account != Account::Nothing {
                    self.tell(finished(&self.claim, size)).await?;
                }
                Ok(Grown::Now(size.clone()))
            }
            Err(error) => {
                let message = failure(self.task, &error.to_string());
                say(self.task, &self.claim, true, "VolumeResizeFailed", &message);
                if accounted && error.is_final() {
                    self.tell(refused(&self.claim, &error)).await?;
                }
                match error.code() {
                    // In use: it is done when no pod has it.
                    Some(Code::FailedPrecondition) => Ok(Grown::InUse),
                    _ => Err(error::Error::Expand(error).into()),
                }
            }
        }
    }

    async fn request(&self, size: &Quantity) -> Result<NodeExpandVolumeRequest, Error> {
        let (task, volume) = (self.task, self.volume);
        let (root, name) = (&task.node.root, &task.persistent.spec_name);
        let (path, staging) = if task.persistent.block {
            let place = BlockPlace::new(root, name);
            (place.maps.join(task.uid()), place.staging)
        } else {
            let staged = Place::staged(root, volume.driver.name(), &volume.handle);
            (Place::of_pod(root, task.uid(), name).mount, staged.mount)
        };
        let staging = Some(staging).filter(|_| volume.able.stage);
        let bytes = qos::milli(size).and_then(|milli| i64::try_from(milli / 1000).ok());
        Ok(NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: path.display().to_string(),
            capacity_range: Some(CapacityRange {
                required_bytes: bytes.unwrap_or_default(),
                limit_bytes: 0,
            }),
            staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
            volume_capability: Some(volume.capability(task)),
            secrets: task.node.csi.secret(volume.expand_secret.as_ref()).await?,
        })
    }

    /// Writes that part of the claim's status.
    async fn tell(&self, status: Value) -> Result<(), Error> {
        let name = self.claim.metadata.name.as_deref().unwrap_or_default();
        let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"status": status})));
        let told = within(self.claims.patch_status(name, &params, &patch)).await;
        let action = format!("update the status of PVC {name}");
        told.map(drop).map_err(|reason| error::Error::Api { action, reason }.into())
    }
}

/// The status of a claim that has the size it asked for.
fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    json!({
        "capacity": {STORAGE: size},
        "allocatedResourceStatuses": {STORAGE: null},
        "conditions": others(claim),
    })
}

/// The status of a claim whose volume the driver cannot make larger: never, or not now.
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

fn others(claim: &PersistentVolumeClaim) -> Vec<&PersistentVolumeClaimCondition> {
    let known = claim.status.as_ref().and_then(|status| status.conditions.as_deref());
    let known = known.unwrap_or_default().iter();
    known.filter(|condition| !CONDITIONS.contains(&condition.type_.as_str())).collect()
}

fn failure(task: &Task<'_>, why: &str) -> String {
    let name = &task.persistent.spec_name;
    format!("MountVolume.NodeExpandVolume failed for volume {name:?} {why}")
}

/// Tells pod and claim.
fn say(task: &Task<'_>, claim: &PersistentVolumeClaim, trouble: bool, reason: &str, message: &str) {
    task.node.pod_events.pod(task.pod, trouble, reason, message);
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    task.node.pod_events.about(about, trouble, reason, message);
}

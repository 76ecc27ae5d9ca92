//! Claims of pods: the PersistentVolumeClaim and the PersistentVolume bound to it, read one by one
//! as the Node authorizer allows. Nothing is kept: a pod whose claim is not ready asks again when
//! its worker tries again.

pub(crate) mod migrated;

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::api::Api;
use kube::{Client, Error as KubeError, Resource};
use longshore_client::{Item, object};
use longshore_pod::spec;
use serde::de::DeserializeOwned;

/// How long one request may take, so that a silent apiserver does not hold a pod's worker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Keeps a claim that is being deleted for as long as pods use it, this one maybe since before the
/// daemon started.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const BLOCK: &str = "Block";
const FILE_SYSTEM: &str = "Filesystem";

/// Why a claim of a pod, or a volume that it describes itself, leads to nothing that it can use yet.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The claim, or what it leads to, is not ready.
    #[error("error processing PVC {claim}: {why}")]
    NotReady {
        /// Namespace and name of the claim.
        claim: String,
        /// What is the matter with it.
        why: Why,
    },
    /// A claim of the name that a generic ephemeral volume has is somebody else's.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwned {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// It leads to a volume of a kind that Kubernetes has no more.
    #[error("failed to get Plugin from volumeSpec for volume {0:?} err=no volume plugin matched")]
    NoPlugin(String),
    /// A driver has taken over the volume's kind, and cannot know this one.
    #[error("failed to translate in-tree pv to CSI: {0}")]
    NotMigrated(String),
    /// A container uses the volume in a way that it is not made for.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    Mode {
        /// The volume's name in the pod.
        volume: String,
        /// `Block` or `Filesystem`.
        mode: &'static str,
        /// `volumeMounts` or `volumeDevices`.
        field: &'static str,
    },
}

/// What is the matter with a claim.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The claim could not be read.
    #[error("failed to fetch PVC from API server: {0}")]
    NoClaim(String),
    /// It is being deleted, and nothing keeps it: no pod may start with it any more.
    #[error("PVC is being deleted")]
    Deleted,
    /// It is not bound, or has lost its volume.
    #[error("PVC is not bound")]
    NotBound,
    /// It is bound, and does not say to what.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoName,
    /// The volume could not be read.
    #[error("failed to fetch PV {name} from API server: {reason}")]
    NoVolume {
        /// The volume's name.
        name: String,
        /// What the apiserver said.
        reason: String,
    },
    /// The volume does not know of any claim yet.
    #[error(
        "found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    NotClaimed(String),
    /// The volume is bound to another claim, perhaps an earlier one of the same name.
    #[error(
        "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {expected}"
    )]
    OtherClaim {
        /// The volume's name.
        name: String,
        /// The UID of the claim that has it.
        found: String,
        /// The UID of the pod's claim.
        expected: String,
    },
}

/// A claim and the volume bound to it.
pub(super) struct Bound {
    pub(super) claim: PersistentVolumeClaim,
    pub(super) volume: PersistentVolume,
    /// Whether the volume was of a kind that its driver has taken over.
    pub(super) migrated: bool,
    /// Whether the pod asks to only read it.
    pub(super) read_only: bool,
}

impl Bound {
    /// Whether the volume is given to containers as a device.
    pub(super) fn is_block(&self) -> bool {
        let spec = self.volume.spec.as_ref();
        spec.and_then(|spec| spec.volume_mode.as_deref()) == Some(BLOCK)
    }
}

/// Reads what the claim of a pod's volume leads to; `None` for a volume without a claim.
pub(super) async fn bound(
    client: Option<&Client>,
    pod: &Pod,
    volume: &Volume,
) -> Result<Option<Bound>, ClaimError> {
    let owned = volume.ephemeral.is_some();
    let (name, read_only) = match &volume.persistent_volume_claim {
        Some(source) => (source.claim_name.clone(), source.read_only.unwrap_or(false)),
        None if owned => (format!("{}-{}", spec::name(pod), volume.name), false),
        None => return Ok(None),
    };
    let namespace = spec::namespace(pod);
    let claim_name = format!("{namespace}/{name}");
    let not_ready = |why| ClaimError::NotReady { claim: claim_name.clone(), why };
    let client =
        client.ok_or_else(|| not_ready(Why::NoClaim("no apiserver is configured".to_owned())))?;
    let claims = Api::<Item<PersistentVolumeClaim>>::namespaced(client.clone(), namespace);
    let claim = get(claims, &name).await.map_err(|reason| not_ready(Why::NoClaim(reason)))?;
    let volume_name = check_claim(&claim).map_err(not_ready)?;
    if owned && !is_controlled_by(&claim, pod) {
        let pod = format!("{namespace}/{}", spec::name(pod));
        return Err(ClaimError::NotOwned { claim: claim_name, pod });
    }
    let persistent = get(Api::<Item<PersistentVolume>>::all(client.clone()), volume_name).await;
    let persistent = persistent
        .map_err(|reason| not_ready(Why::NoVolume { name: volume_name.to_owned(), reason }))?;
    check_volume(&persistent, &claim).map_err(not_ready)?;
    let translated = migrated::of_claim(&persistent)?;
    let migrated = translated.is_some();
    let bound = Bound { claim, volume: translated.unwrap_or(persistent), migrated, read_only };
    check_mode(pod, volume, bound.is_block())?;
    Ok(Some(bound))
}

async fn get<K>(api: Api<Item<K>>, name: &str) -> Result<K, String>
where
    K: k8s_openapi::Resource + Resource + DeserializeOwned + Clone + Debug + Default,
{
    match tokio::time::timeout(REQUEST_TIMEOUT, object(api.get(name))).await {
        Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}")),
        Ok(Ok(object)) => Ok(object),
        Ok(Err(KubeError::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(longshore_client::objects::root_cause(&error)),
    }
}

/// The name of the volume that the claim is bound to.
fn check_claim(claim: &PersistentVolumeClaim) -> Result<&str, Why> {
    let protected = || claim.metadata.finalizers.iter().flatten().any(|own| own == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected() {
        return Err(Why::Deleted);
    }
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(Why::NotBound);
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty()).ok_or(Why::NoName)
}

fn check_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), Why> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(reference) = reference else { return Err(Why::NotClaimed(name)) };
    let found = reference.uid.clone().unwrap_or_default();
    let expected = claim.metadata.uid.clone().unwrap_or_default();
    if found == expected { Ok(()) } else { Err(Why::OtherClaim { name, found, expected }) }
}

/// Checks that containers use the volume as what it is: a directory or a device.
fn check_mode(pod: &Pod, volume: &Volume, block: bool) -> Result<(), ClaimError> {
    let mismatch = |mode, field| ClaimError::Mode { volume: volume.name.clone(), mode, field };
    let Some(pod_spec) = &pod.spec else { return Ok(()) };
    for (_, container) in spec::containers(pod_spec) {
        let mut mounts = container.volume_mounts.iter().flatten();
        if block && mounts.any(|mount| mount.name == volume.name) {
            return Err(mismatch(BLOCK, "volumeMounts"));
        }
        let mut devices = container.volume_devices.iter().flatten();
        if !block && devices.any(|device| device.name == volume.name) {
            return Err(mismatch(FILE_SYSTEM, "volumeDevices"));
        }
    }
    Ok(())
}

fn is_controlled_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| owner.uid == spec::uid(pod))
}

//! Claims of pods: the PersistentVolumeClaim and the PersistentVolume bound to it, read one by one
//! as the Node authorizer allows. Nothing is cached: a pod whose claim is not ready reads it again
//! when its worker retries.

pub(crate) mod migrated;

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::api::Api;
use kube::{Client, Error as KubeError, Resource};
use longshore_client::{Item, object};
use longshore_pod::spec;
use serde::de::DeserializeOwned;

/// Timeout of one request, so that an unresponsive apiserver does not block a pod's worker.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The finalizer that keeps a claim under deletion for as long as pods use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const BLOCK: &str = "Block";
const FILE_SYSTEM: &str = "Filesystem";

/// Why a claim of a pod, or an inline volume, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The claim, or what it leads to, is not ready.
    #[error("error processing PVC {claim}: {why}")]
    NotReady {
        /// Namespace and name of the claim.
        claim: String,
        /// The reason.
        why: Why,
    },
    /// The claim with the name of a generic ephemeral volume is not owned by the pod.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwned {
        /// Namespace and name of the claim.
        claim: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// The volume is of a type that was removed from Kubernetes.
    #[error("failed to get Plugin from volumeSpec for volume {0:?} err=no volume plugin matched")]
    NoPlugin(String),
    /// The volume cannot be translated for CSI migration.
    #[error("failed to translate in-tree pv to CSI: {0}")]
    NotMigrated(String),
    /// A container uses the volume in another volume mode.
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

/// Why a claim is not ready.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The claim could not be read.
    #[error("failed to fetch PVC from API server: {0}")]
    NoClaim(String),
    /// It is being deleted without a finalizer: no pod may start with it.
    #[error("PVC is being deleted")]
    Deleted,
    /// It is not bound, or has lost its volume.
    #[error("PVC is not bound")]
    NotBound,
    /// It is bound, but has no volume name.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoName,
    /// The volume could not be read.
    #[error("failed to fetch PV {name} from API server: {reason}")]
    NoVolume {
        /// The volume's name.
        name: String,
        /// The apiserver's message.
        reason: String,
    },
    /// The volume has no claim reference yet.
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
    /// Whether the volume was translated for CSI migration.
    pub(super) migrated: bool,
    /// Whether the pod requests it read-only.
    pub(super) read_only: bool,
}

impl Bound {
    /// Whether the volume mode is `Block`.
    pub(super) fn is_block(&self) -> bool {
        let spec = self.volume.spec.as_ref();
        spec.and_then(|spec| spec.volume_mode.as_deref()) == Some(BLOCK)
    }
}

/// Reads the claim of a pod's volume and the volume bound to it; `None` for a volume without a
/// claim.
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

/// Checks that containers use the volume in its volume mode.
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

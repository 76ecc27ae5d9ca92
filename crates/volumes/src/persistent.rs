//! Persistent volumes as a pod uses them, whether through a claim or inline in the pod.

mod disk;
mod fibre;
mod flex;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, HostPathVolumeSource, LocalVolumeSource,
    NFSVolumeSource, NodeSelector, PersistentVolume, PersistentVolumeSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::claims::Bound;
use crate::error::{self, Error};
use crate::layout;
use crate::stats::CsiVolume;

pub(super) use disk::Disk;
pub(super) use fibre::{FibreDisk, Identifiers};
pub(super) use flex::FlexSource;

/// The annotation with mount options of a PersistentVolume, which takes precedence over the field.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
const READ_ONLY_MANY: &str = "ReadOnlyMany";

/// A persistent volume as one pod uses it.
#[derive(Clone, Debug)]
pub(super) struct Persistent {
    /// The PersistentVolume's name, or an inline volume's.
    pub(super) spec_name: String,
    pub(super) source: PersistentSource,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_options: Vec<String>,
    /// Whether the pod or the source is read-only.
    pub(super) read_only: bool,
    /// Whether the volume mode is `Block`.
    pub(super) block: bool,
    /// The nodes from which it is accessible, if restricted.
    pub(super) node_affinity: Option<NodeSelector>,
    /// The volume's capacity, and the capacity in its claim's status.
    pub(super) capacity: Option<Quantity>,
    pub(super) claim_capacity: Option<Quantity>,
    /// The supplemental group for its users.
    pub(super) group: Option<i64>,
    /// The name of the claim.
    pub(super) claim: Option<String>,
    /// The UID of the PersistentVolume, if it is one.
    pub(super) uid: Option<String>,
    /// Whether it was translated for CSI migration.
    pub(super) migrated: bool,
}

/// The volume source.
#[derive(Clone, Debug)]
pub(super) enum PersistentSource {
    HostPath(HostPathVolumeSource),
    Local(LocalVolumeSource),
    Nfs(NFSVolumeSource),
    Iscsi(Disk),
    Fc(FibreDisk),
    Flex(FlexSource),
    Csi(Box<CSIPersistentVolumeSource>),
    /// A CSI ephemeral volume.
    CsiInline(CSIVolumeSource),
}

impl Persistent {
    /// The volume that a claim is bound to.
    pub(super) fn of_claim(bound: &Bound) -> Result<Self, Error> {
        let volume = Self::of_volume(&bound.volume)?;
        let capacity = bound.claim.status.as_ref().and_then(|status| status.capacity.as_ref());
        Ok(Self {
            read_only: bound.read_only || volume.read_only,
            block: bound.is_block(),
            claim_capacity: storage(capacity),
            claim: bound.claim.metadata.name.clone(),
            migrated: bound.migrated,
            ..volume
        })
    }

    fn of_volume(volume: &PersistentVolume) -> Result<Self, Error> {
        let unknown = PersistentVolumeSpec::default();
        let spec = volume.spec.as_ref().unwrap_or(&unknown);
        let source = None
            .or(spec.host_path.clone().map(PersistentSource::HostPath))
            .or(spec.local.clone().map(PersistentSource::Local))
            .or(spec.nfs.clone().map(PersistentSource::Nfs))
            .or(spec.iscsi.as_ref().map(|source| PersistentSource::Iscsi(Disk::of_volume(source))))
            .or(spec.fc.as_ref().map(|source| PersistentSource::Fc(FibreDisk::of(source))))
            .or(spec
                .flex_volume
                .as_ref()
                .map(|source| PersistentSource::Flex(FlexSource::of_volume(source))))
            .or(spec.csi.clone().map(|source| PersistentSource::Csi(Box::new(source))));
        let of_source = match &source {
            Some(PersistentSource::Nfs(source)) => source.read_only,
            Some(PersistentSource::Iscsi(disk)) => Some(disk.read_only),
            Some(PersistentSource::Fc(disk)) => Some(disk.read_only),
            Some(PersistentSource::Flex(source)) => Some(source.read_only),
            _ => None,
        };
        let affinity = spec.node_affinity.as_ref();
        let name = volume.metadata.name.clone().unwrap_or_default();
        let annotated = volume.metadata.annotations.as_ref();
        let mount_options = match annotated.and_then(|all| all.get(MOUNT_OPTIONS)) {
            Some(options) => {
                options.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect()
            }
            None => spec.mount_options.clone().unwrap_or_default(),
        };
        let source = source.ok_or_else(|| unsupported(&name, spec))?;
        Ok(Self {
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options,
            read_only: of_source.unwrap_or(false),
            node_affinity: affinity.and_then(|affinity| affinity.required.clone()),
            capacity: storage(spec.capacity.as_ref()),
            group: group(volume),
            uid: volume.metadata.uid.clone(),
            ..Self::new(name, source)
        })
    }

    /// An inline volume; `None` if it is of another type.
    pub(super) fn of_pod(volume: &Volume) -> Option<Self> {
        let source = None
            .or(volume.nfs.clone().map(PersistentSource::Nfs))
            .or(volume.iscsi.as_ref().map(|source| PersistentSource::Iscsi(Disk::of_pod(source))))
            .or(volume.fc.as_ref().map(|source| PersistentSource::Fc(FibreDisk::of(source))))
            .or(volume
                .flex_volume
                .as_ref()
                .map(|source| PersistentSource::Flex(FlexSource::of_pod(source))))
            .or(volume.csi.clone().map(PersistentSource::CsiInline))?;
        let read_only = match &source {
            PersistentSource::Nfs(source) => source.read_only.unwrap_or(false),
            PersistentSource::Iscsi(disk) => disk.read_only,
            PersistentSource::Fc(disk) => disk.read_only,
            PersistentSource::Flex(source) => source.read_only,
            PersistentSource::CsiInline(source) => source.read_only.unwrap_or(false),
            _ => false,
        };
        Some(Self { read_only, ..Self::new(volume.name.clone(), source) })
    }

    /// An inline volume that was translated for CSI migration.
    pub(super) fn of_migrated(volume: &PersistentVolume) -> Result<Self, Error> {
        let persistent = Self::of_volume(volume)?;
        // There is no claim.
        let read_only = match &persistent.source {
            PersistentSource::Csi(source) => source.read_only.unwrap_or(false),
            _ => false,
        };
        let read_only = read_only || persistent.access_modes == [READ_ONLY_MANY];
        Ok(Self { read_only, migrated: true, ..persistent })
    }

    fn new(spec_name: String, source: PersistentSource) -> Self {
        Self {
            spec_name,
            source,
            access_modes: Vec::new(),
            mount_options: Vec::new(),
            read_only: false,
            block: false,
            node_affinity: None,
            capacity: None,
            claim_capacity: None,
            group: None,
            claim: None,
            uid: None,
            migrated: false,
        }
    }

    /// The name of its directory below the pod's.
    pub(super) fn dir_name(&self) -> String {
        layout::escaped(&self.spec_name)
    }

    /// A set-up error, with upstream's name of the operation.
    pub(super) fn set_up_error(&self, error: Error) -> Error {
        let operation = match (&error, self.block) {
            (Error::NotAttached, _) => error::VERIFY,
            (Error::OtherNodes, false) => error::NODE_AFFINITY,
            (Error::OtherNodes, true) => error::MAP_NODE_AFFINITY,
            (Error::NoLocal(_) | Error::NotLocal, false) => error::NEW_MOUNTER,
            (Error::MountOptions, false) => error::MOUNT_OPTION_SUPPORT,
            (Error::Unreached(_), false) => error::ATTACH,
            (Error::Unreached(_), true) => error::MAP_ATTACH,
            (Error::Unstaged(_), false) => error::STAGE,
            (Error::Csi(error), block) => error.operation(block),
            (_, true) => error::MAP,
            (_, false) => error::SET_UP,
        };
        error.of_volume(operation, &self.spec_name)
    }

    /// Whether it is a directory of the node.
    pub(super) fn is_host_path(&self) -> bool {
        matches!(self.source, PersistentSource::HostPath(_))
    }

    /// The CSI volume, if it is one.
    pub(super) fn csi_volume(&self) -> Option<CsiVolume> {
        let is_driven =
            matches!(self.source, PersistentSource::Csi(_) | PersistentSource::CsiInline(_));
        is_driven.then(|| CsiVolume { name: self.dir_name(), block: self.block })
    }

    /// The plugin's name in metrics.
    pub(super) fn plugin(&self) -> &'static str {
        match self.source {
            PersistentSource::HostPath(_) => "kubernetes.io/host-path",
            PersistentSource::Local(_) => layout::LOCAL_PLUGIN,
            PersistentSource::Nfs(_) => "kubernetes.io/nfs",
            PersistentSource::Iscsi(_) => layout::ISCSI_PLUGIN,
            PersistentSource::Fc(_) => layout::FC_PLUGIN,
            PersistentSource::Flex(_) => layout::FLEX_PLUGIN,
            PersistentSource::Csi(_) | PersistentSource::CsiInline(_) => "kubernetes.io/csi",
        }
    }
}

/// The annotation of a PersistentVolume that names the group which may use it.
const GROUP: &str = "pv.beta.kubernetes.io/gid";

fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> Option<Quantity> {
    amounts.and_then(|amounts| amounts.get("storage")).cloned()
}

/// The group in the annotation; values that are not numbers are ignored.
fn group(volume: &PersistentVolume) -> Option<i64> {
    volume.metadata.annotations.as_ref()?.get(GROUP)?.parse().ok()
}

/// Types that are still in the API, but removed from the kubelet.
pub(super) const REMOVED: [&str; 8] = [
    "cephfs",
    "flocker",
    "glusterfs",
    "photonPersistentDisk",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
];

fn unsupported(name: &str, spec: &PersistentVolumeSpec) -> Error {
    let fields = serde_json::to_value(spec).unwrap_or_default();
    let has = |kind: &str| fields.get(kind).is_some();
    if REMOVED.into_iter().any(has) {
        return Error::no_plugin(name);
    }
    Error::UnsupportedPart("persistent volume of kind unknown".to_owned())
}

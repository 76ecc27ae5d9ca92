//! The state that the volumes of all pods share.

pub(crate) mod csi;
pub(crate) mod ending;
pub(crate) mod flex;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::Objects;
use longshore_machine::projects::ProjectFiles;
use parking_lot::Mutex;
use tokio::sync::RwLock;

use crate::devices::Devices;
use crate::host::kernel::Kernel;
use crate::host::tools::Tools;
use crate::metrics::Metrics;
use crate::stats::PersistentMounts;
use csi::Csi;
use ending::Ending;
use flex::FlexDrivers;

/// What set-up and teardown of all volumes work with.
pub(crate) struct State {
    pub(crate) root: PathBuf,
    pub(crate) objects: Objects,
    pub(crate) allocatable: BTreeMap<String, Quantity>,
    pub(crate) pod_events: PodEventRecorder,
    pub(crate) devices: Devices,
    pub(crate) tools: Tools,
    pub(crate) kernel: Kernel,
    pub(crate) flex: FlexDrivers,
    pub(crate) projects: Option<Arc<ProjectFiles>>,
    pub(crate) csi: Csi,
    /// One lock per active pod: shared by set-ups, exclusive for teardown. It is held by the
    /// operation itself, which goes on when the caller is cancelled.
    pub(crate) locks: Mutex<HashMap<String, Weak<RwLock<()>>>>,
    pub(crate) ending: Ending,
    pub(crate) metrics: Metrics,
    pub(crate) persistent_mounts: PersistentMounts,
}

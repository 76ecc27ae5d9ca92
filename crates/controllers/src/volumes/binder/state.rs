//! What the binder decides from.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use longshore_informer::Store;

use crate::volumes::event::VolumeEvent;

/// The stores of the informers.
#[derive(Clone, Copy)]
pub(in crate::volumes) struct State<'a> {
    pub(in crate::volumes) volumes: &'a Store<PersistentVolume>,
    pub(in crate::volumes) claims: &'a Store<PersistentVolumeClaim>,
    pub(in crate::volumes) classes: &'a Store<StorageClass>,
    pub(in crate::volumes) pods: &'a Store<Pod>,
    /// Whether volumes are provisioned for claims.
    pub(in crate::volumes) provisions: bool,
}

/// A step and an event, if there are any.
pub(in crate::volumes) type Decision<S> = (Option<S>, Option<VolumeEvent>);

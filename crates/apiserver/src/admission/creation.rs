//! What an object has from its first moment, whatever its writer said.

use serde_json::Value;

use crate::api_types::Resource;
use crate::kinds;
use crate::managed::{self, Conversions};
use crate::object;
use crate::status::StatusError;

/// Begins the life of an object that a client makes: its UID, its time.
pub(crate) fn begin_life(resource: &Resource, object: &mut Value) -> Result<(), StatusError> {
    kinds::prepare_create(resource, object);
    let uid = object::new_uid().map_err(StatusError::internal)?;
    let metadata = object::metadata_mut(object);
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), object::now().to_string().into());
    if let Some(map) = object.as_object_mut() {
        (kinds::strategy(resource).identified)(map);
    }
    Ok(())
}

/// [`begin_life`] for an object of the cluster's own, with its defaults.
pub(crate) fn begin_own_life(resource: &Resource, object: &mut Value) -> Result<(), StatusError> {
    kinds::apply_defaults(resource, object);
    managed::record_create(resource, managed::APISERVER, object, &Conversions::default());
    begin_life(resource, object)
}

//! What the controllers of cluster objects share in their requests.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Error;
use longshore_informer::Object;

use crate::Context;

/// Whether the apiserver answered with that code.
pub(crate) fn has_code(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// Whether there is no such object.
pub(crate) fn is_not_found(error: &Error) -> bool {
    has_code(error, 404)
}

/// Whether the object was changed meanwhile, or exists already.
pub(crate) fn is_conflict(error: &Error) -> bool {
    has_code(error, 409)
}

/// Whether an object of that name exists already.
pub(crate) fn is_already_there(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.reason == "AlreadyExists")
}

/// Whether nothing can be created because the namespace is being deleted.
pub(crate) fn is_terminating(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice());
    causes.unwrap_or_default().iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Success if the object is gone.
pub(crate) fn unless_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Success if the object is gone, or another one of that name by now.
pub(crate) fn unless_replaced<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The reference of an event about the object.
pub(crate) fn reference<K: Object + k8s_openapi::Resource>(object: &K) -> ObjectReference {
    let metadata = k8s_openapi::Metadata::metadata(object);
    ObjectReference {
        api_version: Some(<K as k8s_openapi::Resource>::API_VERSION.into()),
        kind: Some(<K as k8s_openapi::Resource>::KIND.into()),
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// Waits for a future; `false`: the controllers are to end.
pub(crate) async fn unless_stopped(context: &Context, future: impl Future<Output = ()>) -> bool {
    tokio::select! {
        () = context.stop.cancelled() => false,
        () = future => true,
    }
}

//! Objects that are read from the apiserver for a driver, one by one by name, as the Node
//! authorizer allows.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::Api;
use kube::{Client, Error as KubeError};
use longshore_client::objects::root_cause;
use longshore_client::{Item, object, optional};
use tokio::time::timeout;

use super::policy::Policy;
use crate::error::csi::Error;
use crate::state::csi::Csi;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A secret reference of a volume, and its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretName {
    pub(super) field: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Csi {
    pub(super) fn client(&self, action: impl FnOnce() -> String) -> Result<&Client, Error> {
        self.client.as_ref().ok_or_else(|| Error::Api {
            action: action(),
            reason: "no apiserver is configured".to_owned(),
        })
    }

    /// The CSIDriver object of a driver.
    pub(super) async fn policy(&self, driver: &str) -> Result<Policy, Error> {
        let action = || format!("get CSIDriver {driver}");
        let api = Api::<Item<CSIDriver>>::all(self.client(action)?.clone());
        let object = within(optional(api.get_opt(driver))).await;
        let object = object.map_err(|reason| Error::Api { action: action(), reason })?;
        Ok(Policy(object.map(|object| object.spec)))
    }

    /// The content of a secret.
    pub(super) async fn secret(
        &self,
        secret: Option<&SecretName>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let Some(SecretName { field, namespace, name }) = secret else {
            return Ok(BTreeMap::new());
        };
        let failed = |reason| Error::Secret {
            field,
            namespace: namespace.clone(),
            name: name.clone(),
            reason,
        };
        let client = self.client(|| format!("get secret {namespace}/{name}"))?;
        let api = Api::<Item<Secret>>::namespaced(client.clone(), namespace);
        let found = within(object(api.get(name))).await.map_err(&failed)?;
        let entries =
            found.data.unwrap_or_default().into_iter().map(|(key, value)| match String::from_utf8(
                value.0,
            ) {
                Ok(value) => Ok((key, value)),
                Err(_) => Err(failed(format!("the value of {key:?} is not valid UTF-8"))),
            });
        entries.collect()
    }
}

/// A request's response, or why it failed.
pub(super) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}")),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(KubeError::Api(status))) => Err(status.message),
        Ok(Err(error)) => Err(root_cause(&error)),
    }
}

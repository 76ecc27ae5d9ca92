//! Objects that are read from the apiserver for a driver, one by one by name, as the Node
//! authorizer allows.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::Api;
use longshore_client::{Item, object, optional};

use super::policy::Policy;
use crate::error::csi::Error;
use crate::state::csi::{Csi, within};

/// A secret reference of a volume, and its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretName {
    pub(super) field: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Csi {
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

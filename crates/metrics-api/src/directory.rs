//! The nodes and pods that there are: metrics are served for those, with their labels.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client};

/// A node or a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// The namespace of a pod.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

impl From<ObjectMeta> for Identity {
    fn from(metadata: ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace,
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
        }
    }
}

/// Which objects are asked for, in the words of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// A label selector.
    pub label_selector: Option<String>,
    /// A field selector.
    pub field_selector: Option<String>,
}

/// Why the nodes or pods are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DirectoryError {
    /// The status code of HTTP.
    pub code: u16,
    /// As in a `Status`.
    pub reason: String,
    /// In words.
    pub message: String,
}

impl From<kube::Error> for DirectoryError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self {
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            },
            other => {
                Self { code: 500, reason: "InternalError".to_owned(), message: other.to_string() }
            }
        }
    }
}

/// Finds nodes and pods.
#[async_trait::async_trait]
pub trait Directory: Send + Sync + 'static {
    /// The selected nodes.
    async fn nodes(&self, selection: &Selection) -> Result<Vec<Identity>, DirectoryError>;

    /// The selected pods, of one namespace or of all.
    async fn pods(
        &self,
        namespace: Option<&str>,
        selection: &Selection,
    ) -> Result<Vec<Identity>, DirectoryError>;
}

/// The nodes and pods of an apiserver, which selects them itself.
#[derive(Clone)]
pub struct ApiDirectory(pub Client);

impl Selection {
    fn parameters(&self) -> ListParams {
        ListParams {
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            // what is known to it now is good enough
            resource_version: Some("0".to_owned()),
            ..ListParams::default()
        }
    }
}

#[async_trait::async_trait]
impl Directory for ApiDirectory {
    async fn nodes(&self, selection: &Selection) -> Result<Vec<Identity>, DirectoryError> {
        let api: Api<Node> = Api::all(self.0.clone());
        let list = api.list_metadata(&selection.parameters()).await?;
        Ok(list.items.into_iter().map(|item| item.metadata.into()).collect())
    }

    async fn pods(
        &self,
        namespace: Option<&str>,
        selection: &Selection,
    ) -> Result<Vec<Identity>, DirectoryError> {
        let api: Api<Pod> = match namespace {
            Some(namespace) => Api::namespaced(self.0.clone(), namespace),
            None => Api::all(self.0.clone()),
        };
        let list = api.list_metadata(&selection.parameters()).await?;
        Ok(list.items.into_iter().map(|item| item.metadata.into()).collect())
    }
}

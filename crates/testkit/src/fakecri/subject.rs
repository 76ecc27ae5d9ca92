//! The pod and container of a call, from its request or earlier ones.
use std::collections::HashMap;

use longshore_cri::v1::{
    CreateContainerRequest, CreateContainerResponse, PodSandboxConfig, PullImageRequest,
    RunPodSandboxRequest, RunPodSandboxResponse,
};
use prost::Message;

use super::message::decode;

/// The pod and container of a call; empty if unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) pod: String,
    pub(super) container: String,
}

/// Sandboxes and containers that were created through the proxy, by id.
#[derive(Debug, Default)]
pub(super) struct Subjects(HashMap<String, Subject>);

impl Subjects {
    /// From a request.
    pub(super) fn of(&self, method: &str, body: &[u8]) -> Subject {
        let pod_of = |sandbox: Option<PodSandboxConfig>| {
            let metadata = sandbox.and_then(|config| config.metadata);
            metadata.map(|metadata| metadata.name).unwrap_or_default()
        };
        let of_pod = |pod| Subject { pod, container: String::new() };
        let subject = match method {
            "RunPodSandbox" => {
                decode::<RunPodSandboxRequest>(body).map(|request| of_pod(pod_of(request.config)))
            }
            "PullImage" => decode::<PullImageRequest>(body)
                .map(|request| of_pod(pod_of(request.sandbox_config))),
            "CreateContainer" => decode::<CreateContainerRequest>(body).map(|request| Subject {
                pod: pod_of(request.sandbox_config),
                container: request
                    .config
                    .and_then(|config| config.metadata)
                    .map(|metadata| metadata.name)
                    .unwrap_or_default(),
            }),
            _ => decode::<Id>(body).and_then(|request| self.0.get(&request.id).cloned()),
        };
        subject.unwrap_or_default()
    }

    /// Whether the response of such a call is to be passed to [`learn`](Self::learn).
    pub(super) fn makes(method: &str) -> bool {
        ["RunPodSandbox", "CreateContainer"].contains(&method)
    }

    /// Records what was created.
    pub(super) fn learn(&mut self, method: &str, subject: &Subject, answer: &[u8]) {
        let id = match method {
            "RunPodSandbox" => {
                decode::<RunPodSandboxResponse>(answer).map(|answer| answer.pod_sandbox_id)
            }
            _ => decode::<CreateContainerResponse>(answer).map(|answer| answer.container_id),
        };
        if let Some(id) = id {
            self.0.insert(id, subject.clone());
        }
    }
}

/// In all requests about one sandbox or container, its id is the first field.
#[derive(Clone, PartialEq, Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

//! The volume context about the pod, if the driver requests it: pod info and tokens.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use k8s_openapi::jiff::Timestamp;
use longshore_pod::spec;
use serde_json::{Value, json};

use super::request::Volume;
use crate::error::Error;
use crate::task::Task;

impl Volume<'_> {
    /// The pod info (`podInfoOnMount`).
    pub(super) fn pod_info(&self, pod: &Pod) -> BTreeMap<String, String> {
        if !self.policy.pod_info_on_mount() {
            return BTreeMap::new();
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        [
            ("pod.name", spec::name(pod)),
            ("pod.namespace", spec::namespace(pod)),
            ("pod.uid", spec::uid(pod)),
            ("serviceAccount.name", account.unwrap_or_default()),
            ("ephemeral", if self.is_inline() { "true" } else { "false" }),
        ]
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
        .into()
    }

    /// Tokens of the pod's service account, by their audience.
    pub(super) async fn tokens(&self, task: &Task<'_>) -> Result<BTreeMap<String, String>, Error> {
        let mut tokens = BTreeMap::new();
        for request in self.policy.tokens() {
            let projection = ServiceAccountTokenProjection {
                audience: Some(request.audience.clone()),
                expiration_seconds: request.expiration_seconds,
                path: String::new(),
            };
            let token = task.node.objects.service_account_token(task.pod, &projection).await?;
            let expires = expiration(&token).map(|at| at.to_string());
            let entry = json!({"token": &*token, "expirationTimestamp": expires});
            tokens.insert(request.audience.clone(), entry);
        }
        if tokens.is_empty() {
            return Ok(BTreeMap::new());
        }
        let tokens = json!(tokens).to_string();
        Ok([("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), tokens)].into())
    }
}

/// The expiration of a token, from its claims.
pub(super) fn expiration(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims.get("exp")?.as_i64()?).ok()
}

//! Webhooks that decide: a SubjectAccessReview is posted to the server of a kubeconfig. Its answers are
//! cached; its failures are none of an opinion, or a denial, as the configuration says.

use std::time::Duration;

use bytes::Bytes;
use longshore_base::ttl_cache::TtlCache;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::conditions::{all_hold, compile};
use super::config::{Connection, WebhookConfig};
use super::metrics::Metrics;
use super::{Access, Target};
use crate::expressions::Expression;
use crate::remote::Remote;

/// The most answers that are cached.
const MAX_CACHED: usize = 8192;
/// What a client chooses of an access is not cached when it is longer than this (bytes).
const MAX_CACHED_ATTRIBUTES: usize = 10_000;

/// What a webhook says of an access. Texts may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opinion {
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    /// What went wrong.
    pub(super) error: Option<String>,
}

/// Yes, no, or whatever others say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Deny,
    NoOpinion,
}

impl Opinion {
    fn none() -> Opinion {
        Opinion { verdict: Verdict::NoOpinion, reason: String::new(), error: None }
    }
}

/// A webhook.
pub(super) struct Webhook {
    name: String,
    remote: Remote,
    version: String,
    timeout: Duration,
    authorized_ttl: Duration,
    unauthorized_ttl: Duration,
    denies_on_failure: bool,
    conditions: Vec<Expression>,
    /// By SHA-256 of the spec.
    cache: TtlCache<[u8; 32], Status>,
    metrics: Metrics,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    kind: String,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Deserialize, Default)]
#[serde(default)]
struct Status {
    allowed: bool,
    denied: bool,
    reason: String,
}

impl Webhook {
    pub(super) fn new(config: &WebhookConfig, metrics: Metrics) -> Result<Webhook, String> {
        let remote = match &config.connection {
            Connection::Kubeconfig(path) => {
                Remote::of_kubeconfig(path).map_err(|error| error.to_string())?
            }
            Connection::InCluster => {
                Remote::of_pod("/apis/authorization.k8s.io/v1/subjectaccessreviews")?
            }
        };
        let conditions = config.conditions.iter().map(|source| compile(source));
        Ok(Webhook {
            name: config.name.clone(),
            remote,
            version: config.version.clone(),
            timeout: config.timeout,
            authorized_ttl: config.authorized_ttl,
            unauthorized_ttl: config.unauthorized_ttl,
            denies_on_failure: config.denies_on_failure,
            conditions: conditions.collect::<Result<_, _>>()?,
            cache: TtlCache::new(MAX_CACHED),
            metrics,
        })
    }

    /// What the configuration calls it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn opinion(&self, access: &Access<'_>) -> Opinion {
        let failed = |error: String| Opinion {
            verdict: if self.denies_on_failure { Verdict::Deny } else { Verdict::NoOpinion },
            reason: String::new(),
            error: Some(error),
        };
        if !self.conditions.is_empty() {
            match all_hold(&self.conditions, &full_spec(access)) {
                Ok(true) => {}
                Ok(false) => return Opinion::none(),
                Err(why) => return failed(why),
            }
        }
        let spec = spec(access, &self.version);
        let key: [u8; 32] = Sha256::digest(spec.to_string()).into();
        let status = match self.cache.get(&key) {
            Some(known) => known,
            None => {
                let answer = self.review(spec).await;
                self.metrics.called(&self.name, answer.is_ok());
                let status = match answer {
                    Ok(status) => status,
                    Err(error) => {
                        tracing::error!(webhook = self.name, %error, "Failed to make webhook authorizer request");
                        return failed(error);
                    }
                };
                let ttl = if status.allowed { self.authorized_ttl } else { self.unauthorized_ttl };
                if !ttl.is_zero() && chosen(access) < MAX_CACHED_ATTRIBUTES {
                    self.cache.insert(key, status.clone(), ttl);
                }
                status
            }
        };
        let Status { allowed, denied, reason } = status;
        let both = "webhook subject access review returned both allow and deny response";
        let (verdict, error) = match (denied, allowed) {
            (true, true) => (Verdict::Deny, Some(both.to_owned())),
            (true, false) => (Verdict::Deny, None),
            (false, true) => (Verdict::Allow, None),
            (false, false) => (Verdict::NoOpinion, None),
        };
        Opinion { verdict, reason, error }
    }

    async fn review(&self, spec: Value) -> Result<Status, String> {
        let api_version = format!("authorization.k8s.io/{}", self.version);
        let review = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": api_version,
            "metadata": {"creationTimestamp": null},
            "spec": spec,
            "status": {"allowed": false},
        });
        let body = Bytes::from(review.to_string());
        let answer = self.remote.post_patiently(body, self.timeout).await?;
        let review: Review = serde_json::from_slice(&answer)
            .map_err(|error| format!("the answer is no SubjectAccessReview: {error}"))?;
        match review.kind == "SubjectAccessReview" && review.api_version == api_version {
            true => Ok(review.status),
            false => Err(format!("the answer is a {} of {}", review.kind, review.api_version)),
        }
    }
}

/// The bytes of an access that its client has chosen.
fn chosen(access: &Access<'_>) -> usize {
    let parts: &[&str] = match &access.target {
        Target::Path(path) => &[path],
        Target::Resource(target) => &[
            target.namespace,
            target.group,
            target.version,
            target.resource,
            target.subresource,
            target.name,
        ],
    };
    let fields = match &access.target {
        Target::Resource(target) => target.fields.iter().map(|(k, v)| k.len() + v.len()).sum(),
        Target::Path(_) => 0,
    };
    parts.iter().map(|part| part.len()).sum::<usize>() + access.verb.len() + fields
}

/// The spec as it is sent: without what is empty.
fn spec(access: &Access<'_>, version: &str) -> Value {
    let Value::Object(full) = full_spec(access) else { return Value::Null };
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let mut sent = Map::new();
    for (name, value) in full {
        let value = match value {
            Value::Object(attributes) if name.ends_with("Attributes") => {
                attributes.into_iter().filter(|(_, value)| !is_empty(value)).collect()
            }
            value => value,
        };
        // as the older version has it
        let name = if version == "v1beta1" && name == "groups" { "group".into() } else { name };
        if !is_empty(&value) || name.ends_with("Attributes") {
            sent.insert(name, value);
        }
    }
    Value::Object(sent)
}

/// The spec with all of its texts, as expressions see it.
fn full_spec(access: &Access<'_>) -> Value {
    let user = access.user;
    let mut spec = json!({
        "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
    });
    match &access.target {
        Target::Path(path) => {
            spec["nonResourceAttributes"] = json!({"path": path, "verb": access.verb});
        }
        Target::Resource(target) => {
            let mut attributes = json!({
                "namespace": target.namespace, "verb": access.verb, "group": target.group,
                "version": target.version, "resource": target.resource,
                "subresource": target.subresource, "name": target.name,
            });
            if !target.fields.is_empty() {
                let requirement = |(key, value): &(String, String)| json!({"key": key, "operator": "In", "values": [value]});
                let requirements: Vec<Value> = target.fields.iter().map(requirement).collect();
                attributes["fieldSelector"] = json!({"requirements": requirements});
            }
            spec["resourceAttributes"] = attributes;
        }
    }
    spec
}

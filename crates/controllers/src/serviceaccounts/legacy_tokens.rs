//! Tokens of service accounts in secrets that nobody has used for long: they are marked as invalid, and
//! deleted when nobody has asked for them for as long again. Only those that a service account lists
//! are, and none that a pod refers to.

use std::collections::HashSet;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use longshore_informer::{Informer, Options};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use crate::Context;
use crate::writes::{unless_gone, unless_replaced, unless_stopped};

const PERIOD: Duration = Duration::from_secs(24 * 3600);
const TYPE: &str = "kubernetes.io/service-account-token";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// The map in which the apiserver says since when it records the use of tokens.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// What becomes of a token.
#[derive(Debug, PartialEq)]
enum Step {
    Keep,
    /// It is marked as invalid from this day on.
    Mark(String),
    Delete,
}

fn day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d").to_string()
}

fn is_day(text: &str) -> bool {
    Date::strptime("%Y-%m-%d", text).is_ok()
}

/// PURE: decides on a token. `is_listed`: a service account lists it; `is_used`: a pod refers to it;
/// `limit`: what was used before then is unused.
fn decide(
    secret: &Secret,
    is_listed: bool,
    is_used: bool,
    now: Timestamp,
    limit: Timestamp,
) -> Step {
    let metadata = &secret.metadata;
    let label = |name| metadata.labels.as_ref().and_then(|labels| labels.get(name));
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    let limit_day = day(limit);
    let is_old = created.is_some_and(|created| created < limit);
    let unused = label(LAST_USED).is_none_or(|used| is_day(used) && *used < limit_day);
    let is_candidate = secret.type_.as_deref() == Some(TYPE)
        && metadata.deletion_timestamp.is_none()
        && is_old
        && unused
        && is_listed
        && !is_used;
    if !is_candidate {
        return Step::Keep;
    }
    match label(INVALID_SINCE).filter(|since| is_day(since)) {
        None => Step::Mark(day(now)),
        Some(since) if *since < limit_day => Step::Delete,
        Some(_) => Step::Keep,
    }
}

/// PURE: names of secrets that a part of a pod's spec may refer to: rather too many than too few.
fn secrets_in(part: &Value, names: &mut HashSet<String>) {
    match part {
        Value::Object(members) => {
            for (key, value) in members {
                if key == "secretName" {
                    names.extend(value.as_str().map(str::to_owned));
                } else if key.to_ascii_lowercase().contains("secret") {
                    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                    let named = list.iter().filter_map(|one| one["name"].as_str());
                    names.extend(named.map(str::to_owned));
                }
                secrets_in(value, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| secrets_in(item, names)),
        _ => {}
    }
}

struct Cleaner {
    client: Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    pods: Informer<Pod>,
    period: Duration,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let fields = Some(format!("type={TYPE}"));
    let cleaner = Cleaner {
        client: context.client.clone(),
        secrets: Informer::start(
            context.informers.client(),
            Options { fields, ..Options::default() },
        ),
        accounts: context.informers.get(),
        pods: context.informers.get(),
        period: context.settings.cluster.legacy_token_period,
    };
    let synced = async {
        cleaner.secrets.synced().await;
        cleaner.accounts.synced().await;
        cleaner.pods.synced().await;
    };
    if !unless_stopped(&context, synced).await {
        return;
    }
    unless_stopped(&context, async {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = cleaner.sweep(Timestamp::now()).await {
                warn!("cannot clean up tokens of service accounts: {error}");
            }
        }
    })
    .await;
}

impl Cleaner {
    async fn sweep(&self, now: Timestamp) -> Result<(), kube::Error> {
        let Ok(limit) = now.checked_sub(self.period) else { return Ok(()) };
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let map = maps.get_opt(TRACKING).await?;
        let since = map.and_then(|map| map.data?.remove("since")).unwrap_or_default();
        // use is recorded from the day after on
        if !is_day(&since) || since >= day(limit) {
            debug!(since, "the use of tokens is not recorded for long enough");
            return Ok(());
        }
        for secret in self.secrets.store().list() {
            let (is_listed, is_used) = (self.is_listed(&secret), self.is_used(&secret));
            let step = decide(&secret, is_listed, is_used, now, limit);
            self.carry_out(&secret, step).await?;
        }
        Ok(())
    }

    async fn carry_out(&self, secret: &Secret, step: Step) -> Result<(), kube::Error> {
        let metadata = &secret.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        match step {
            Step::Keep => Ok(()),
            Step::Mark(day) => {
                info!(namespace, name, "marking an unused token of a service account as invalid");
                let patch =
                    json!({"metadata": {"uid": metadata.uid, "labels": {INVALID_SINCE: day}}});
                let params = PatchParams::default();
                unless_replaced(api.patch(name, &params, &Patch::Merge(patch)).await).map(drop)
            }
            Step::Delete => {
                info!(namespace, name, "deleting an unused token of a service account");
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: None,
                        resource_version: metadata.resource_version.clone(),
                    }),
                    ..DeleteParams::default()
                };
                let deleted = api.delete(name, &params).await;
                unless_replaced(unless_gone(deleted)).map(drop)
            }
        }
    }

    fn is_listed(&self, secret: &Secret) -> bool {
        let annotation = |name| secret.metadata.annotations.as_ref()?.get(name);
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let account = annotation(ACCOUNT)
            .and_then(|account| self.accounts.store().get_named(namespace, account));
        let Some(account) = account else { return false };
        let uid = annotation(ACCOUNT_UID).filter(|uid| !uid.is_empty());
        (uid.is_none() || uid == account.metadata.uid.as_ref())
            && account.secrets.iter().flatten().any(|one| one.name == secret.metadata.name)
    }

    fn is_used(&self, secret: &Secret) -> bool {
        let namespace = secret.metadata.namespace.as_deref().unwrap_or_default();
        let mut names = HashSet::new();
        for pod in self.pods.store().list_namespace(namespace) {
            secrets_in(&serde_json::to_value(&pod.spec).unwrap_or_default(), &mut names);
        }
        secret.metadata.name.as_ref().is_none_or(|name| names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_tokens_are_marked_and_deleted() {
        let (now, limit): (Timestamp, Timestamp) =
            ("2026-06-01T10:00:00Z".parse().unwrap(), "2026-05-01T10:00:00Z".parse().unwrap());
        let decided = |created: &str, labels: Value, is_listed, is_used| {
            let secret = serde_json::from_value(json!({
                "type": TYPE,
                "metadata": {"name": "t", "creationTimestamp": created, "labels": labels},
            }))
            .unwrap();
            decide(&secret, is_listed, is_used, now, limit)
        };
        let old = "2026-01-01T00:00:00Z";
        let mark = Step::Mark("2026-06-01".to_owned());
        assert_eq!(decided(old, json!({}), true, false), mark);
        assert_eq!(decided(old, json!({INVALID_SINCE: "odd"}), true, false), mark);
        assert_eq!(decided(old, json!({LAST_USED: "2026-04-30"}), true, false), mark);
        let deleted = json!({INVALID_SINCE: "2026-04-30"});
        assert_eq!(decided(old, deleted.clone(), true, false), Step::Delete);
        for (created, labels, is_listed, is_used) in [
            ("2026-05-02T00:00:00Z", json!({}), true, false),
            (old, json!({LAST_USED: "2026-05-01"}), true, false),
            (old, json!({LAST_USED: "odd"}), true, false),
            (old, json!({INVALID_SINCE: "2026-05-01"}), true, false),
            (old, deleted.clone(), false, false),
            (old, deleted, true, true),
        ] {
            assert_eq!(
                decided(created, labels.clone(), is_listed, is_used),
                Step::Keep,
                "{labels}"
            );
        }
    }

    #[test]
    fn legacy_tokens_of_pods_are_found() {
        let mut names = HashSet::new();
        let spec = json!({
            "imagePullSecrets": [{"name": "a"}],
            "containers": [{
                "name": "c",
                "env": [{"valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "d"}}],
            }],
            "volumes": [
                {"name": "v", "secret": {"secretName": "e"}},
                {"name": "w", "projected": {"sources": [{"secret": {"name": "f"}}]}},
                {"name": "x", "csi": {"nodePublishSecretRef": {"name": "g"}}},
                {"name": "y", "azureFile": {"secretName": "h"}},
            ],
        });
        secrets_in(&spec, &mut names);
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        assert_eq!(names, ["a", "b", "d", "e", "f", "g", "h"]);
    }
}

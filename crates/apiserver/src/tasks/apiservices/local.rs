//! APIServices of what this server serves itself: they are made for each version of each group, and give
//! the groups their order in discovery.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::aggregator::{GROUP, resource};
use crate::api_types::Resource;
use crate::discovery;
use crate::kinds;
use crate::object;
use crate::operations::Api;
use crate::schema::value::{items, text};
use crate::status::StatusError;

/// The label of APIServices that this server manages: without it, one belongs to somebody else.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Its value for built-in groups, and for those of custom resources.
const ON_START: &str = "onstart";
const ALWAYS: &str = "true";
/// The pause after a failure, and after changes, which often come together.
const PAUSE: Duration = Duration::from_millis(500);
/// The priorities of groups of custom resources.
const CUSTOM: (i64, i64) = (1000, 100);

/// Versions and their priorities.
type Versions = &'static [(&'static str, i64)];

/// Priorities of groups and versions (`cmd/kube-apiserver/app/aggregator.go` and
/// `pkg/controlplane/apiserver/aggregator.go`).
const PRIORITIES: [(&str, i64, Versions); 20] = [
    ("", 18000, &[("v1", 1)]),
    ("admissionregistration.k8s.io", 16700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("apiextensions.k8s.io", 16700, &[("v1", 15)]),
    ("apps", 17800, &[("v1", 15)]),
    ("authentication.k8s.io", 17700, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization.k8s.io", 17600, &[("v1", 15)]),
    ("autoscaling", 17500, &[("v1", 15), ("v2", 30)]),
    ("batch", 17400, &[("v1", 15)]),
    ("certificates.k8s.io", 17300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("coordination.k8s.io", 16500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12)]),
    ("discovery.k8s.io", 16200, &[("v1", 15)]),
    ("events.k8s.io", 17750, &[("v1", 15)]),
    ("flowcontrol.apiserver.k8s.io", 16100, &[("v1", 21)]),
    ("networking.k8s.io", 17200, &[("v1", 15), ("v1beta1", 9)]),
    ("node.k8s.io", 16300, &[("v1", 15)]),
    ("policy", 17100, &[("v1", 15)]),
    ("rbac.authorization.k8s.io", 17000, &[("v1", 15)]),
    ("resource.k8s.io", 16200, &[("v1", 21), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1)]),
    ("scheduling.k8s.io", 16600, &[("v1", 15), ("v1alpha2", 2)]),
    ("storage.k8s.io", 16800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
];

fn priorities(group: &str, version: &str) -> Option<(i64, i64)> {
    let (_, priority, versions) = PRIORITIES.iter().find(|(known, ..)| *known == group)?;
    versions.iter().find(|(known, _)| *known == version).map(|(_, own)| (*priority, *own))
}

/// Groups and versions.
type Served = BTreeSet<(String, String)>;

/// What this server serves now, without what it serves of aggregation itself.
fn served(custom: &[&'static Resource]) -> Served {
    let groups = discovery::groups(custom);
    let named = items(&groups["groups"]).iter().flat_map(|group| {
        let name = text(&group["name"]).to_owned();
        items(&group["versions"])
            .iter()
            .map(move |version| (name.clone(), text(&version["version"]).to_owned()))
    });
    std::iter::once((String::new(), "v1".to_owned()))
        .chain(named)
        .filter(|(group, _)| group != GROUP)
        .collect()
}

/// Follows what is served, for ever.
pub(super) async fn run(api: &Api) {
    let mut done = Served::new();
    let mut definitions = api.definitions.follow();
    loop {
        let now = served(definitions.borrow_and_update().clone().resources());
        let reconciled = match now == done {
            true => Ok(()),
            false => reconcile(api, &now, true).await,
        };
        match reconciled {
            Ok(()) => {
                done = now;
                // The sender lives as long as the server.
                let _ = definitions.changed().await;
            }
            Err(error) => tracing::warn!(%error, "cannot write the local APIServices"),
        }
        sleep(PAUSE).await;
    }
}

/// Makes those that are missing, and, with `removes`, removes those of groups that are gone.
async fn reconcile(api: &Api, served: &Served, removes: bool) -> Result<(), StatusError> {
    let apiservices = resource()?;
    let mut existing = BTreeSet::new();
    for stored in api.registry.list_all(apiservices, "").await? {
        let name = object::name(&stored).to_owned();
        let spec = &stored["spec"];
        let key = (text(&spec["group"]).to_owned(), text(&spec["version"]).to_owned());
        let managed = text(&stored["metadata"]["labels"][MANAGED]);
        let is_managed = matches!(managed, ON_START | ALWAYS);
        if removes && is_managed && !served.contains(&key) && spec["service"].is_null() {
            let options = crate::operations::DeleteOptions::default();
            let user = crate::user::User::apiserver();
            api.delete(&user, apiservices, "", &name, &options).await?;
        }
        existing.insert(name);
    }
    for (group, version) in served {
        if !existing.contains(&format!("{version}.{group}")) {
            api.ensure(apiservices, local(group, version)).await?;
        }
    }
    Ok(())
}

/// Makes those that are missing of what is served now.
pub(super) async fn start(api: &Api) -> Result<(), StatusError> {
    // What is served is not all known yet.
    reconcile(api, &served(api.definitions.snapshot().resources()), false).await
}

fn local(group: &str, version: &str) -> Value {
    let known = priorities(group, version);
    let (group_priority, version_priority) = known.unwrap_or(CUSTOM);
    let managed = if known.is_some() { ON_START } else { ALWAYS };
    json!({
        "kind": "APIService",
        "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": {"name": format!("{version}.{group}"), "labels": {MANAGED: managed}},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": group_priority,
            "versionPriority": version_priority,
        },
        "status": {"conditions": [kinds::local_condition()]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregator_knows_the_priority_of_every_built_in_group() {
        assert!(PRIORITIES.is_sorted_by_key(|(group, ..)| *group));
        for (group, version) in served(&[]) {
            assert!(priorities(&group, &version).is_some(), "{group}/{version}");
        }
        let custom = local("example.com", "v1");
        assert_eq!(custom["metadata"]["labels"][MANAGED], "true");
        assert_eq!(custom["spec"]["groupPriorityMinimum"], 1000);
    }
}

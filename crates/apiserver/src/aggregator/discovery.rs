//! Discovery of this server and of aggregated ones in one document, ordered by the priorities of their
//! APIServices.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::service::ApiService;
use crate::schema::value::{items, text};

/// What the servers said of their resources (APIResourceList), by the names of the APIServices.
pub(super) type Documents = HashMap<String, Arc<Value>>;

/// Priority of a group, descending, and its name.
fn rank(services: &[Arc<ApiService>], group: &str) -> (Reverse<i64>, String) {
    // the group of APIServices themselves is the first, as it is with upstream
    let own = (group == super::GROUP).then_some(i64::MAX);
    let of_group = services.iter().filter(|service| service.group == group);
    let priority = own.or(of_group.map(|service| service.group_priority).max());
    (Reverse(priority.unwrap_or(0)), group.to_owned())
}

/// The aggregated versions of a group, the preferred one first.
fn remote<'a>(services: &'a [Arc<ApiService>], group: &str) -> Vec<&'a Arc<ApiService>> {
    let mut found: Vec<_> = services
        .iter()
        .filter(|service| service.group == group && service.backend.is_some())
        .collect();
    found.sort_by_key(|service| (Reverse(service.version_priority), service.version.clone()));
    found
}

/// The groups that only aggregated servers have, and those that they share.
fn remote_groups(services: &[Arc<ApiService>]) -> Vec<&str> {
    let mut groups: Vec<&str> = services
        .iter()
        .filter(|service| service.backend.is_some() && !service.group.is_empty())
        .map(|service| service.group.as_str())
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn version_priority(services: &[Arc<ApiService>], group: &str, version: &str) -> i64 {
    let found = services.iter().find(|s| s.group == group && s.version == version);
    found.map_or(0, |service| service.version_priority)
}

/// Adds aggregated versions to the group (an APIGroup without its kind), if there is one.
pub(super) fn group(
    services: &[Arc<ApiService>],
    name: &str,
    local: Option<Value>,
) -> Option<Value> {
    let remote = remote(services, name);
    if remote.is_empty() {
        return local;
    }
    let mut group = local.unwrap_or_else(|| json!({"name": name, "versions": []}));
    let mut versions: Vec<Value> = items(&group["versions"]).to_vec();
    for service in remote {
        let version = service.version.as_str();
        if !versions.iter().any(|own| own["version"] == version) {
            versions.push(json!({"groupVersion": format!("{name}/{version}"), "version": version}));
        }
    }
    versions.sort_by_key(|own| Reverse(version_priority(services, name, text(&own["version"]))));
    group["preferredVersion"] = versions.first().cloned().unwrap_or_default();
    group["versions"] = versions.into();
    Some(group)
}

/// An APIGroupList with the aggregated groups.
pub(super) fn groups(services: &[Arc<ApiService>], mut local: Value) -> Value {
    let mut merged: Vec<Value> = Vec::new();
    let own = items(&local["groups"]);
    for one in own {
        merged.extend(group(services, text(&one["name"]), Some(one.clone())));
    }
    for name in remote_groups(services) {
        if !own.iter().any(|one| one["name"] == name) {
            merged.extend(group(services, name, None));
        }
    }
    merged.sort_by_cached_key(|one| rank(services, text(&one["name"])));
    local["groups"] = merged.into();
    local
}

/// An APIGroupDiscoveryList with the aggregated groups.
pub(super) fn aggregated(
    services: &[Arc<ApiService>],
    documents: &Documents,
    mut local: Value,
) -> Value {
    let mut merged: Vec<Value> = items(&local["items"]).to_vec();
    for name in remote_groups(services) {
        let index = merged.iter().position(|own| own["metadata"]["name"] == name);
        let index = index.unwrap_or_else(|| {
            merged.push(json!({"metadata": {"name": name}, "versions": []}));
            merged.len() - 1
        });
        let Some(group) = merged.get_mut(index) else { continue };
        let mut versions = items(&group["versions"]).to_vec();
        for service in remote(services, name) {
            versions.retain(|own| own["version"] != service.version.as_str());
            versions.push(version(service, documents.get(&service.name).map(|d| &**d)));
        }
        versions
            .sort_by_key(|own| Reverse(version_priority(services, name, text(&own["version"]))));
        group["versions"] = versions.into();
    }
    merged.sort_by_cached_key(|one| rank(services, text(&one["metadata"]["name"])));
    local["items"] = merged.into();
    local
}

/// A version with the resources that its server listed last.
fn version(service: &ApiService, document: Option<&Value>) -> Value {
    let freshness = match service.is_available && document.is_some() {
        true => "Current",
        false => "Stale",
    };
    let mut resources: Vec<Value> = Vec::new();
    let listed = document.map_or(&[][..], |document| items(&document["resources"]));
    let (parents, below): (Vec<&Value>, Vec<&Value>) =
        listed.iter().partition(|resource| !text(&resource["name"]).contains('/'));
    for resource in parents {
        let mut shown = json!({
            "resource": resource["name"],
            "responseKind": kind(service, resource),
            "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": text(&resource["singularName"]),
            "verbs": items(&resource["verbs"]),
        });
        for field in ["shortNames", "categories"] {
            if !items(&resource[field]).is_empty() {
                shown[field] = resource[field].clone();
            }
        }
        resources.push(shown);
    }
    for resource in below {
        let Some((parent, name)) = text(&resource["name"]).split_once('/') else { continue };
        let shown = json!({
            "subresource": name,
            "responseKind": kind(service, resource),
            "verbs": items(&resource["verbs"]),
        });
        let Some(parent) = resources.iter_mut().find(|own| own["resource"] == parent) else {
            continue;
        };
        match parent["subresources"].as_array_mut() {
            Some(list) => list.push(shown),
            None => parent["subresources"] = json!([shown]),
        }
    }
    json!({"version": service.version, "resources": resources, "freshness": freshness})
}

fn kind(service: &ApiService, resource: &Value) -> Value {
    let or = |field: &str, own: &str| match text(&resource[field]) {
        "" => own.to_owned(),
        given => given.to_owned(),
    };
    json!({
        "group": or("group", &service.group),
        "version": or("version", &service.version),
        "kind": text(&resource["kind"]),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn service(
        name: &str,
        priority: i64,
        version_priority: i64,
        is_remote: bool,
    ) -> Arc<ApiService> {
        let (version, group) = name.split_once('.').unwrap();
        let mut api = json!({
            "metadata": {"name": name},
            "spec": {
                "group": group, "version": version,
                "groupPriorityMinimum": priority, "versionPriority": version_priority,
            },
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        });
        if is_remote {
            api["spec"]["service"] = json!({"namespace": "n", "name": "s"});
        }
        Arc::new(ApiService::of(&api))
    }

    fn names(list: &Value, path: &str) -> Vec<String> {
        let names = list.as_array().unwrap().iter();
        names.map(|one| one.pointer(path).and_then(Value::as_str).unwrap().to_owned()).collect()
    }

    #[test]
    fn aggregator_merges_discovery_by_priority() {
        let services = [
            service("v1.apps", 17800, 15, false),
            service("v1.batch", 17400, 15, false),
            service("v1.wardle.example.com", 2000, 10, true),
            service("v1alpha1.wardle.example.com", 2000, 200, true),
            service("v2.batch", 17400, 5, true),
        ];
        let local = json!({"groups": [
            {"name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}]},
            {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]},
            {"name": super::super::GROUP, "versions": [{"version": "v1"}]},
        ]});
        let merged = groups(&services, local);
        assert_eq!(
            names(&merged["groups"], "/name"),
            [super::super::GROUP, "apps", "batch", "wardle.example.com"]
        );
        let wardle = &merged["groups"][3];
        assert_eq!(names(&wardle["versions"], "/version"), ["v1alpha1", "v1"]);
        assert_eq!(wardle["preferredVersion"]["groupVersion"], "wardle.example.com/v1alpha1");
        assert_eq!(names(&merged["groups"][2]["versions"], "/version"), ["v1", "v2"]);
        assert_eq!(group(&services, "none", None), None);
    }

    #[test]
    fn aggregator_converts_resource_lists() {
        let services = [service("v1.wardle.example.com", 2000, 10, true)];
        let list = json!({"resources": [
            {"name": "flunders/status", "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
             "verbs": ["get", "list"], "shortNames": ["fl"]},
            {"name": "gone/status", "kind": "X", "verbs": []},
        ]});
        let documents = Documents::from([("v1.wardle.example.com".to_owned(), Arc::new(list))]);
        let merged = aggregated(&services, &documents, json!({"items": []}));
        let version = &merged["items"][0]["versions"][0];
        assert_eq!((&version["version"], &version["freshness"]), (&json!("v1"), &json!("Current")));
        let flunders = &version["resources"][0];
        assert_eq!(flunders["scope"], "Namespaced");
        assert_eq!(
            flunders["responseKind"],
            json!({"group": "wardle.example.com", "version": "v1", "kind": "Flunder"})
        );
        assert_eq!(flunders["subresources"][0]["subresource"], "status");
        assert_eq!(version["resources"].as_array().unwrap().len(), 1);
        let unknown = aggregated(&services, &Documents::new(), json!({"items": []}));
        assert_eq!(unknown["items"][0]["versions"][0]["freshness"], "Stale");
    }
}

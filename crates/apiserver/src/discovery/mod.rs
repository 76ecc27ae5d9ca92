//! Discovery: the documents from which clients learn what is served. All are made from the table
//! of resources on request.

use serde_json::{Value, json};

use crate::api_types::{Gvk, Resource, Subresource};
use crate::kinds;

/// The content type of aggregated discovery, which clients send in `Accept`.
pub const AGGREGATED_CONTENT_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The version of Kubernetes whose API this is.
pub const MINOR: u32 = 36;

/// `/version`.
#[must_use]
pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": MINOR.to_string(),
        "emulationMajor": "1",
        "emulationMinor": MINOR.to_string(),
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": MINOR.saturating_sub(1).to_string(),
        "gitVersion": format!("v1.{MINOR}.0+longshore.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// The machine's architecture by the name that Kubernetes uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// `/api`. `server_address` is `host:port`.
#[must_use]
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// The custom kinds that are served beside those of the table.
pub type Custom<'a> = &'a [&'static Resource];

/// Built-in kinds, then custom ones.
pub(crate) fn all(custom: Custom<'_>) -> impl Iterator<Item = &'static Resource> + Clone {
    kinds::resources().chain(custom.iter().copied())
}

/// The named groups, in order of their first resource, with their versions, the preferred one first.
fn named_groups(custom: Custom<'_>) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in all(custom).filter(|resource| !resource.group.is_empty()) {
        match groups.iter_mut().find(|(group, _)| *group == resource.group) {
            Some((_, versions)) if versions.contains(&resource.version) => {}
            Some((_, versions)) => versions.push(resource.version),
            None => groups.push((resource.group, vec![resource.version])),
        }
    }
    groups
}

fn group_value(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

/// `/apis`.
#[must_use]
pub fn groups(custom: Custom<'_>) -> Value {
    let groups: Vec<Value> =
        named_groups(custom).iter().map(|(group, versions)| group_value(group, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`; `None` when the group is not served.
#[must_use]
pub fn group(custom: Custom<'_>, group: &str) -> Option<Value> {
    let (name, versions) = named_groups(custom).into_iter().find(|(name, _)| *name == group)?;
    let mut value = group_value(name, &versions);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

/// `/api/v1` (empty group) and `/apis/GROUP/VERSION`; `None` when they are not served.
#[must_use]
pub fn resources(custom: Custom<'_>, group: &str, version: &str) -> Option<Value> {
    let served: Vec<&Resource> = served(custom, group, version).collect();
    let first = served.first()?;
    let mut list = json!({"kind": "APIResourceList", "groupVersion": first.gvk().api_version()});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list["resources"] = served
        .iter()
        .flat_map(|r| {
            std::iter::once(resource_value(r))
                .chain(r.subresources.iter().map(|s| subresource_value(r, s)))
        })
        .collect();
    Some(list)
}

pub(crate) fn served(
    custom: Custom<'_>,
    group: &str,
    version: &str,
) -> impl Iterator<Item = &'static Resource> {
    all(custom).filter(move |r| r.group == group && r.version == version)
}

fn resource_value(resource: &Resource) -> Value {
    let mut value = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": resource.verbs,
    });
    put_names(&mut value, resource);
    value
}

fn put_names(value: &mut Value, resource: &Resource) {
    for (field, names) in
        [("shortNames", resource.short_names), ("categories", resource.categories)]
    {
        if !names.is_empty() {
            value[field] = json!(names);
        }
    }
}

fn subresource_value(resource: &Resource, subresource: &Subresource) -> Value {
    let mut value = json!({
        "name": format!("{}/{}", resource.plural, subresource.name),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": subresource.gvk.kind,
        "verbs": subresource.verbs,
    });
    if subresource.gvk.group != resource.group {
        value["group"] = subresource.gvk.group.into();
        value["version"] = subresource.gvk.version.into();
    }
    value
}

/// Aggregated discovery of `/api` (`core`) or of `/apis`.
#[must_use]
pub fn aggregated(custom: Custom<'_>, core: bool) -> Value {
    let groups = if core { vec![("", vec!["v1"])] } else { named_groups(custom) };
    let items: Vec<Value> =
        groups.iter().map(|(group, versions)| aggregated_group(custom, group, versions)).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(custom: Custom<'_>, group: &str, versions: &[&str]) -> Value {
    let version = |version: &&str| {
        let resources: Vec<Value> =
            served(custom, group, version).map(aggregated_resource).collect();
        json!({"version": version, "resources": resources, "freshness": "Current"})
    };
    let versions: Vec<Value> = versions.iter().map(version).collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &'static Resource) -> Value {
    let mut value = json!({
        "resource": resource.plural,
        "responseKind": kind_value(resource.gvk()),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    put_names(&mut value, resource);
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(
            |s| json!({"subresource": s.name, "responseKind": kind_value(s.gvk), "verbs": s.verbs}),
        )
        .collect();
    if !subresources.is_empty() {
        value["subresources"] = subresources.into();
    }
    value
}

fn kind_value(gvk: Gvk) -> Value {
    json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn find<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
        list.as_array().and_then(|l| l.iter().find(|v| v[key] == name)).unwrap_or(&Value::Null)
    }

    #[test]
    fn discovery_lists_every_group_once() {
        let all = groups(&[]);
        let names: Vec<&str> =
            all["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "admissionregistration.k8s.io",
                "apiextensions.k8s.io",
                "apiregistration.k8s.io",
                "apps",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "autoscaling",
                "batch",
                "certificates.k8s.io",
                "coordination.k8s.io",
                "discovery.k8s.io",
                "events.k8s.io",
                "flowcontrol.apiserver.k8s.io",
                "networking.k8s.io",
                "node.k8s.io",
                "policy",
                "rbac.authorization.k8s.io",
                "resource.k8s.io",
                "scheduling.k8s.io",
                "storage.k8s.io"
            ]
        );
        for name in names {
            let one = group(&[], name).unwrap();
            let version = if name == "autoscaling" { "v2" } else { "v1" };
            let preferred = format!("{name}/{version}");
            assert_eq!(one["preferredVersion"]["groupVersion"], preferred);
            assert_eq!(resources(&[], name, version).unwrap()["groupVersion"], preferred);
        }
        let versions = &group(&[], "certificates.k8s.io").unwrap()["versions"];
        let versions: Vec<&str> =
            versions.as_array().unwrap().iter().map(|v| v["version"].as_str().unwrap()).collect();
        assert_eq!(versions, ["v1", "v1beta1"]);
        let beta = resources(&[], "certificates.k8s.io", "v1beta1").unwrap();
        assert_eq!(beta["resources"][0]["name"], "clustertrustbundles");
        assert_eq!(group(&[], "extensions"), None);
        assert_eq!(group(&[], ""), None);
        assert_eq!(resources(&[], "", "v2"), None);
    }

    #[test]
    fn core_resources() {
        let list = resources(&[], "", "v1").unwrap();
        let pods = find(&list["resources"], "name", "pods");
        assert_eq!(
            *pods,
            json!({
                "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
                "shortNames": ["po"], "categories": ["all"],
            })
        );
        let eviction = find(&list["resources"], "name", "pods/eviction");
        assert_eq!((&eviction["group"], &eviction["version"]), (&json!("policy"), &json!("v1")));
        assert_eq!(find(&list["resources"], "name", "pods/status")["kind"], "Pod");
        let exec = find(&list["resources"], "name", "pods/exec");
        assert_eq!(
            (&exec["kind"], &exec["verbs"]),
            (&json!("PodExecOptions"), &json!(["create", "get"]))
        );
    }

    #[test]
    fn discovery_aggregated_equals_unaggregated() {
        let core = aggregated(&[], true);
        let pods = find(&core["items"][0]["versions"][0]["resources"], "resource", "pods");
        assert_eq!(pods["responseKind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
        assert_eq!(pods["scope"], "Namespaced");
        assert_eq!(find(&pods["subresources"], "subresource", "log")["verbs"], json!(["get"]));
        let named = aggregated(&[], false);
        assert_eq!(named["items"].as_array().unwrap().len(), 20);
        let csr = &named["items"][8]["versions"];
        assert_eq!((&csr[0]["version"], &csr[1]["version"]), (&json!("v1"), &json!("v1beta1")));
        assert_eq!(named["items"][9]["metadata"]["name"], "coordination.k8s.io");
    }
}

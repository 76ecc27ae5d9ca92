//! The resources that the apiserver has, custom ones included.

use kube::core::ApiResource;
use kube::core::discovery::v2::APIGroupDiscoveryList;
use kube::{Client, Error};

/// A resource in the version that the apiserver prefers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Discovered {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

impl Discovered {
    /// Whether all of the verbs are possible.
    pub(crate) fn allows(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|own| own == verb))
    }

    /// As in `deployments.apps`.
    pub(crate) fn name(&self) -> String {
        match self.resource.group.is_empty() {
            true => self.resource.plural.clone(),
            false => format!("{}.{}", self.resource.plural, self.resource.group),
        }
    }
}

/// The answer of discovery.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    pub(crate) resources: Vec<Discovered>,
    /// The group versions whose servers do not answer, in `group/version`.
    pub(crate) failed: Vec<String>,
}

/// Asks the apiserver what it has.
pub(crate) async fn discover(client: &Client) -> Result<Discovery, Error> {
    let mut discovery = Discovery::default();
    for list in [
        client.list_core_api_versions_aggregated().await?,
        client.list_api_groups_aggregated().await?,
    ] {
        read(list, &mut discovery);
    }
    Ok(discovery)
}

/// Each resource of a group in the first version that has it.
fn read(list: APIGroupDiscoveryList, discovery: &mut Discovery) {
    for group in list.items {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let mut known: Vec<String> = Vec::new();
        for version in group.versions {
            let Some(number) = version.version else { continue };
            let api_version = match name.is_empty() {
                true => number.clone(),
                false => format!("{name}/{number}"),
            };
            if version.freshness.as_deref() == Some("Stale") {
                discovery.failed.push(api_version.clone());
            }
            for resource in version.resources {
                let kind = resource.response_kind.and_then(|kind| kind.kind);
                let (Some(plural), Some(kind)) = (resource.resource, kind) else { continue };
                if known.contains(&plural) {
                    continue;
                }
                known.push(plural.clone());
                discovery.resources.push(Discovered {
                    resource: ApiResource {
                        group: name.clone(),
                        version: number.clone(),
                        api_version: api_version.clone(),
                        kind,
                        plural,
                    },
                    namespaced: resource.scope.as_deref() == Some("Namespaced"),
                    verbs: resource.verbs,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Discovery, read};

    #[test]
    fn discovery_takes_each_resource_in_its_preferred_version() {
        let resource = |plural: &str, kind: &str| {
            json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced",
                "verbs": ["get", "list"]})
        };
        let list = serde_json::from_value(json!({"items": [
            {"metadata": {}, "versions": [{"version": "v1", "resources": [resource("pods", "Pod")]}]},
            {"metadata": {"name": "a.io"}, "versions": [
                {"version": "v2", "resources": [resource("ones", "One")]},
                {"version": "v1", "freshness": "Stale",
                    "resources": [resource("ones", "One"), resource("twos", "Two")]},
            ]},
        ]}))
        .unwrap();
        let mut discovery = Discovery::default();
        read(list, &mut discovery);
        let found: Vec<_> = discovery
            .resources
            .iter()
            .map(|found| (found.name(), found.resource.api_version.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("pods".to_owned(), "v1"),
                ("ones.a.io".to_owned(), "a.io/v2"),
                ("twos.a.io".to_owned(), "a.io/v1"),
            ]
        );
        assert_eq!(discovery.failed, ["a.io/v1"]);
        assert!(discovery.resources[0].allows(&["list"]));
        assert!(!discovery.resources[0].allows(&["list", "delete"]));
    }
}

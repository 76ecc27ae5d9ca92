use crate::api_types::*;
use crate::kinds::{built_in, lookup, resources};

#[test]
fn api_types_of_every_kind_and_list_exist() {
    for resource in built_in() {
        let ty =
            types().of(resource.gvk()).unwrap_or_else(|| panic!("no type for {}", resource.kind));
        assert_eq!(ty.short_name(), resource.kind);
        if resource.allows("list") {
            assert!(types().named(&format!("{}List", ty.name)).is_some(), "{}", resource.kind);
            let is_stored = !resource.storage.is_empty();
            assert!(is_stored || resource.kind == "ComponentStatus", "{}", resource.kind);
        }
        for subresource in resource.subresources {
            // options come in the query
            let has_body = !subresource.gvk.kind.ends_with("Options");
            let is_known = types().of(subresource.gvk).is_some();
            assert_eq!(is_known, has_body, "{}", subresource.gvk.kind);
        }
        assert_eq!(resource.has_status(), resource.subresource("status").is_some());
        assert!(resource.verbs.is_sorted() && resource.subresources.is_sorted_by_key(|s| s.name));
    }
    assert!(types().of(Gvk::DELETE_OPTIONS).is_some());
}

/// What calls out or hands on to servers that an object names has tests of its own: webhooks that see a
/// wrong old object (CVE-2021-25735) or redirect this server (CVE-2020-8561) in `tests/webhooks.rs`,
/// aggregated servers that redirect its clients (CVE-2022-3172) in `tests/aggregation.rs`. Conversion
/// webhooks of custom resources are refused. Other such groups are not served, so theirs cannot come back:
/// policies that miss a container list (CVE-2023-2727, CVE-2023-2728, CVE-2024-3177 are of plugins that
/// are absent and refused).
#[test]
fn api_resources_cause_no_outbound_calls() {
    for resource in resources() {
        assert_ne!(resource.group, "imagepolicy.k8s.io", "{}", resource.qualified());
    }
}

#[test]
fn names_are_unique_and_found() {
    let all: Vec<&Resource> = resources().collect();
    for (i, resource) in all.iter().enumerate() {
        let found = lookup(resource.group, resource.version, resource.plural).expect("found");
        assert!(std::ptr::eq(found, *resource));
        let again = all[i + 1..].iter().filter(|r| r.same_storage(resource)).collect::<Vec<_>>();
        assert!(
            again.iter().all(|r| matches!(r.kind, "Event" | "HorizontalPodAutoscaler")),
            "{} shares its storage",
            resource.plural
        );
    }
    assert!(lookup("", "v1", "replicasets").is_none());
    assert!(lookup("coordination.k8s.io", "v1", "pods").is_none());
}

#[test]
fn api_types_have_merge_keys() {
    let spec = types().named("io.k8s.api.core.v1.PodSpec").expect("there");
    let containers = spec.field("containers").expect("there");
    assert_eq!((containers.shape, containers.merge_key), (Shape::List, Some("name")));
    assert!(containers.patch_merge && !containers.patch_retain_keys);
    assert_eq!(
        (containers.list, containers.map_keys.as_slice()),
        (Some(ListKind::Map), &["name"][..])
    );
    let volumes = spec.field("volumes").expect("there");
    assert!(volumes.patch_merge && volumes.patch_retain_keys);
    assert!(spec.field("nodeSelector").expect("there").atomic_map);
    assert!(spec.field("nope").is_none());
    let meta = types().named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("there");
    let finalizers = meta.field("finalizers").expect("there");
    assert_eq!((finalizers.merge_key, finalizers.list), (None, Some(ListKind::Set)));
    let secret = types().named("io.k8s.api.core.v1.Secret").expect("there");
    let data = secret.field("data").expect("there");
    assert_eq!((data.shape, data.leaf), (Shape::Map, Leaf::Bytes));
    let token = types().named("io.k8s.api.authentication.v1.UserInfo").expect("there");
    assert_eq!(token.field("extra").expect("there").shape, Shape::MapOfLists);
}

/// Fields that hold any JSON.
const ANY: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "data",
    "default",
    "dependencies",
    "enum",
    "example",
    "fieldsV1",
    "items",
    "parameters",
    "raw",
];

#[test]
fn api_types_of_every_field_exist() {
    for resource in built_in() {
        let mut queue = vec![types().of(resource.gvk()).expect("there")];
        let mut seen = std::collections::HashSet::new();
        while let Some(ty) = queue.pop() {
            if !seen.insert(ty.name) {
                continue;
            }
            for field in &ty.fields {
                match field.leaf {
                    Leaf::Struct(index) => queue.push(types().get(index)),
                    Leaf::Any => assert!(
                        ANY.contains(&field.name),
                        "{}.{} is of an unknown type",
                        ty.name,
                        field.name
                    ),
                    _ => {}
                }
            }
        }
    }
}

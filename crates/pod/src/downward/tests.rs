use k8s_openapi::serde_json::{self, json};
use proptest::prelude::*;

use super::*;

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u-1",
            "labels": {"app": "web", "tier.example.com/level": "front", "z": ""},
            "annotations": {"note": "two\nlines \"and\" a \\ tab\t\u{7}\u{1}\u{e9}\u{200b}\u{301}", "Example.com/Case": "kept"}
        },
        "spec": {
            "nodeName": "node-a",
            "serviceAccountName": "robot",
            "initContainers": [{"name": "init", "resources": {"limits": {"memory": "10Mi"}}}],
            "containers": [
                {"name": "main", "resources": {
                    "requests": {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"},
                    "limits": {"cpu": "1500m", "memory": "128Mi", "hugepages-2Mi": "4Mi"}}},
                {"name": "bare"}
            ]
        }
    }))
    .unwrap()
}

#[test]
fn downward_api_fields() {
    let host = ["10.0.0.1".to_owned(), "fd00::1".to_owned()];
    let ips = ["10.1.0.2".to_owned(), "fd01::2".to_owned()];
    let both = Addresses { host: &host, pod: &ips };
    let cases = [
        ("metadata.name", Ok("web")),
        ("metadata.namespace", Ok("shop")),
        ("metadata.uid", Ok("u-1")),
        ("metadata.labels['app']", Ok("web")),
        ("metadata.labels['tier.example.com/level']", Ok("front")),
        ("metadata.labels['absent']", Ok("")),
        ("metadata.annotations['Example.com/Case']", Ok("kept")),
        ("metadata.labels", Ok("app=\"web\"\ntier.example.com/level=\"front\"\nz=\"\"")),
        (
            "metadata.annotations",
            Ok(
                "Example.com/Case=\"kept\"\nnote=\"two\\nlines \\\"and\\\" a \\\\ tab\\t\\a\\x01\u{e9}\\u200b\u{301}\"",
            ),
        ),
        ("spec.nodeName", Ok("node-a")),
        ("spec.host", Ok("node-a")),
        ("spec.serviceAccountName", Ok("robot")),
        ("status.hostIP", Ok("10.0.0.1")),
        ("status.hostIPs", Ok("10.0.0.1,fd00::1")),
        ("status.podIP", Ok("10.1.0.2")),
        ("status.podIPs", Ok("10.1.0.2,fd01::2")),
        ("spec.containers", Err("unsupported fieldPath: spec.containers")),
        ("metadata.name['x']", Err("fieldPath \"metadata.name['x']\" does not support subscript")),
        ("metadata.labels['']", Err("invalid key subscript in metadata.labels['']")),
        ("metadata.labels['a/b/c']", Err("invalid key subscript in metadata.labels['a/b/c']")),
        (
            "metadata.labels['Upper.com/x']",
            Err("invalid key subscript in metadata.labels['Upper.com/x']"),
        ),
        ("['x']", Err("unsupported fieldPath: ['x']")),
    ];
    let pod = pod();
    for (path, expected) in cases {
        let value = field_ref_value(&pod, path, both).map_err(|error| error.to_string());
        assert_eq!(value.as_deref(), expected.map_err(String::from).as_ref().map(|v| *v), "{path}");
    }
    assert_eq!(field_ref_value(&pod, "status.podIP", Addresses::default()).unwrap(), "");
    assert_eq!(
        field_ref_value(&pod, "status.hostIP", Addresses::default()),
        Err(Error::NoHostAddress)
    );
    assert_eq!(
        metadata_value(&pod, "spec.nodeName"),
        Err(Error::UnsupportedField("spec.nodeName".to_owned())),
        "volumes know metadata alone"
    );
}

fn resource(pod: &Pod, container: &str, resource: &str, divisor: &str) -> Result<String, String> {
    let allocatable = BTreeMap::from([
        ("cpu".to_owned(), Quantity("4".to_owned())),
        ("memory".to_owned(), Quantity("8Gi".to_owned())),
        ("ephemeral-storage".to_owned(), Quantity("100G".to_owned())),
        ("hugepages-2Mi".to_owned(), Quantity("1Gi".to_owned())),
    ]);
    let selector = ResourceFieldSelector {
        container_name: (!container.is_empty()).then(|| container.to_owned()),
        resource: resource.to_owned(),
        divisor: (!divisor.is_empty()).then(|| Quantity(divisor.to_owned())),
    };
    let own = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    resource_field_value(pod, own, &selector, &allocatable).map_err(|error| error.to_string())
}

#[test]
fn downward_api_resources() {
    let cases = [
        ("main", "limits.cpu", "", Ok("2")),
        ("main", "limits.cpu", "1m", Ok("1500")),
        ("main", "limits.cpu", "0", Ok("2")),
        ("main", "requests.cpu", "", Ok("1")),
        ("main", "requests.cpu", "100m", Ok("3")),
        ("main", "limits.memory", "", Ok("134217728")),
        ("main", "limits.memory", "1Mi", Ok("128")),
        ("main", "limits.memory", "1G", Ok("1")),
        ("main", "requests.ephemeral-storage", "1Ki", Ok("1048576")),
        ("main", "limits.ephemeral-storage", "1G", Ok("100")),
        ("main", "requests.hugepages-2Mi", "1Mi", Ok("4")),
        ("", "limits.cpu", "1m", Ok("1500")),
        ("bare", "limits.cpu", "", Ok("4")),
        ("bare", "limits.memory", "1Gi", Ok("8")),
        ("bare", "requests.cpu", "", Ok("0")),
        ("bare", "limits.hugepages-2Mi", "", Ok("0")),
        ("init", "limits.memory", "1Mi", Ok("10")),
        ("gone", "limits.cpu", "", Err("container gone not found")),
        ("main", "limits.gpu", "", Err("unsupported container resource : limits.gpu")),
        ("main", "cpu", "", Err("unsupported container resource : cpu")),
        ("main", "used.cpu", "", Err("unsupported container resource : used.cpu")),
        ("main", "limits.cpu", "x", Err("invalid divisor \"x\" of container resource limits.cpu")),
        (
            "main",
            "limits.cpu",
            "-1",
            Err("invalid divisor \"-1\" of container resource limits.cpu"),
        ),
    ];
    let pod = pod();
    for (container, name, divisor, expected) in cases {
        let value = resource(&pod, container, name, divisor);
        assert_eq!(
            value.as_deref().map_err(String::as_str),
            expected,
            "{name} of {container:?} by {divisor:?}"
        );
    }
}

#[test]
fn downward_api_uses_pod_level_limits_before_allocatable() {
    let mut pod = pod();
    pod.spec.as_mut().unwrap().resources =
        Some(serde_json::from_value(json!({"limits": {"cpu": "2", "memory": "1Gi"}})).unwrap());
    assert_eq!(resource(&pod, "bare", "limits.cpu", "").unwrap(), "2");
    assert_eq!(resource(&pod, "bare", "limits.memory", "1Mi").unwrap(), "1024");
    assert_eq!(resource(&pod, "main", "limits.memory", "1Mi").unwrap(), "128");
}

proptest! {
    #[test]
    fn downward_api_paths_and_divisors_never_panic(path in "\\PC{0,40}", key in "\\PC{0,20}", divisor in "\\PC{0,12}") {
        let pod = pod();
        let _ = field_ref_value(&pod, &path, Addresses::default());
        let _ = field_ref_value(&pod, &format!("metadata.labels['{key}']"), Addresses::default());
        let _ = resource(&pod, "main", "limits.memory", &divisor);
    }

    #[test]
    fn downward_api_quotes_values_on_one_line(value in any::<String>()) {
        let map = BTreeMap::from([("k".to_owned(), value)]);
        let text = format_map(Some(&map));
        prop_assert!(text.starts_with("k=\"") && text.ends_with('"'));
        prop_assert!(!text.chars().any(char::is_control));
    }
}

//! What needs no file system.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Volume;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::pod;
use crate::medium::Medium;
use crate::nested;
use crate::payload::{common_user, file_path, fs_group};
use crate::source::Source;

#[test]
fn payload_paths_stay_inside_the_volume() {
    let good = [
        ("a", "a"),
        ("a/b.txt", "a/b.txt"),
        ("./a//b/.", "a/b"),
        ("a..b", "a..b"),
        (".hidden", ".hidden"),
        ("a/..b", "a/..b"),
    ];
    for (path, clean) in good {
        assert_eq!(file_path(path).unwrap(), PathBuf::from(clean), "{path}");
    }
    let long_name = "n".repeat(256);
    let long_path = "d/".repeat(2100);
    let bad = [
        ("", "must not be empty"),
        (".", "must not be empty"),
        ("/etc/passwd", "must be a relative path"),
        ("..", "must not contain '..'"),
        ("a/../../b", "must not contain '..'"),
        ("..data", "must not start with '..'"),
        ("./..data/x", "must not start with '..'"),
        ("a\0b", "must not contain NUL"),
        (long_name.as_str(), "names in it must not be longer than 255 bytes"),
        (long_path.as_str(), "must not be longer than 4096 bytes"),
    ];
    for (path, reason) in bad {
        let error = file_path(path).unwrap_err().to_string();
        assert!(error.ends_with(reason), "{path:?}: {error}");
    }
}

#[test]
fn payload_tokens_are_owned_by_the_common_user() {
    let user = |id: i64| json!({"runAsUser": id});
    let cases = [
        (json!({}), vec![json!({}), json!({})], None),
        (user(7), vec![json!({}), json!({})], Some(7)),
        (user(7), vec![json!({}), user(8)], None),
        (user(7), vec![user(8), user(8)], Some(8)),
        (json!({}), vec![user(8), json!({})], None),
        (user(-1), vec![json!({}), json!({})], None),
    ];
    for (of_pod, containers, expected) in cases {
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|context| json!({"name": "c", "securityContext": context}))
            .collect();
        let spec = json!({
            "securityContext": of_pod,
            "initContainers": [containers[0]],
            "containers": [containers[1]],
        });
        assert_eq!(common_user(&pod(spec.clone())), expected, "{spec}");
    }
    assert_eq!(
        fs_group(&pod(json!({"containers": [], "securityContext": {"fsGroup": 9}}))),
        Some(9)
    );
}

#[test]
fn medium_memory_size_limit() {
    let limit = |memory: &str| json!({"name": "c", "resources": {"limits": {"memory": memory}}});
    let open = json!({"name": "c"});
    let sidecar = {
        let mut sidecar = limit("1Mi");
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    const MI: u64 = 1 << 20;
    let cases = [
        (json!({"containers": [open]}), None, 1024 * MI),
        (json!({"containers": [open]}), Some("64Mi"), 64 * MI),
        (json!({"containers": [open]}), Some("8Gi"), 1024 * MI),
        (json!({"containers": [limit("3Mi"), limit("5Mi")]}), None, 8 * MI),
        (json!({"containers": [limit("3Mi"), open]}), None, 1024 * MI),
        (json!({"containers": [limit("3Mi")], "initContainers": [limit("9Mi")]}), None, 9 * MI),
        (
            json!({"containers": [limit("3Mi")], "initContainers": [sidecar, limit("2Mi")]}),
            None,
            4 * MI,
        ),
        (json!({"containers": [limit("3Mi")], "overhead": {"memory": "1Mi"}}), None, 4 * MI),
        (
            json!({"containers": [open], "resources": {"limits": {"memory": "6Mi"}}}),
            Some("7Mi"),
            6 * MI,
        ),
    ];
    let allocatable = BTreeMap::from([("memory".to_owned(), Quantity("1Gi".to_owned()))]);
    for (spec, limit, size) in cases {
        let limit = limit.map(|text| Quantity(text.to_owned()));
        let medium = Medium::memory(limit.as_ref(), &pod(spec.clone()), &allocatable);
        assert_eq!(medium, Medium::Memory { size: Some(size) }, "{spec} {limit:?}");
    }
    let unknown = Medium::memory(None, &pod(json!({"containers": []})), &BTreeMap::new());
    assert_eq!(unknown, Medium::Memory { size: None });
}

#[test]
fn medium_huge_page_size() {
    let lacks = |medium: &str| {
        Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        ))
    };
    let with = |resources: &[&str]| {
        let requests: serde_json::Map<_, _> =
            resources.iter().map(|name| ((*name).to_owned(), json!("4Mi"))).collect();
        json!([{"name": "c", "resources": {"requests": requests}}])
    };
    let two_kinds = with(&["hugepages-2Mi", "hugepages-1Gi"]);
    for (medium, containers, expected) in [
        ("HugePages", with(&["hugepages-2Mi", "cpu"]), Ok(2 << 20)),
        ("HugePages-2Mi", with(&["hugepages-2Mi"]), Ok(2 << 20)),
        ("HugePages-1Gi", two_kinds.clone(), Ok(1 << 30)),
        ("HugePages", with(&["cpu"]), lacks("HugePages")),
        ("HugePages-1Gi", with(&["hugepages-2Mi"]), lacks("HugePages-1Gi")),
        (
            "HugePages",
            two_kinds,
            Err("medium: HugePages can't be used if container requests multiple huge page sizes"
                .to_owned()),
        ),
        (
            "HugePages-x",
            with(&[]),
            Err("medium HugePages-x: \"x\" is not a valid page size".to_owned()),
        ),
        ("Disk", with(&[]), Err("unknown storage medium \"Disk\"".to_owned())),
    ] {
        let source = serde_json::from_value(json!({"medium": medium, "sizeLimit": "6Mi"})).unwrap();
        let pod = pod(json!({"containers": containers}));
        let found = Medium::of(&source, &pod, &BTreeMap::new()).map_err(|e| e.to_string());
        let expected = expected.map(|page| Medium::HugePages { page, size: Some(6 << 20) });
        assert_eq!(found, expected, "{medium}");
    }
}

#[test]
fn nested_mount_points_are_found() {
    let mounts = |mounts: &[(&str, &str)]| {
        let mounts: Vec<Value> =
            mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect();
        json!({"name": "c", "volumeMounts": mounts})
    };
    type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);
    let cases: [Case; 6] = [
        (&[("v", "/dir"), ("x", "/other")], &[]),
        (&[("v", "/dir"), ("x", "/dir/nested"), ("y", "/dir/nested/deep")], &["nested"]),
        (
            &[
                ("v", "/dir"),
                ("x", "/dir/nested"),
                ("y", "/dir/nested-vol"),
                ("z", "/dir/nested/d"),
            ],
            &["nested", "nested-vol"],
        ),
        (&[("v", "/dir"), ("x", "/directory/a")], &[]),
        (&[("v", "/a/../dir/./"), ("x", "/dir/b/c")], &["b/c"]),
        (&[("v", "/one"), ("v", "/two"), ("x", "/one/a"), ("x", "/two/b")], &["a", "b"]),
    ];
    for (paths, expected) in cases {
        let pod = pod(json!({"containers": [{"name": "bare"}, mounts(paths)]}));
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(nested::mount_points(&pod, "v").unwrap(), expected, "{paths:?}");
    }
    let hostile = pod(json!({"containers": [mounts(&[("v", "../../etc")])]}));
    assert!(nested::mount_points(&hostile, "v").is_err());
}

#[test]
fn unsupported_volume_types_are_named() {
    let volume = |source: Value| -> Volume { serde_json::from_value(source).unwrap() };
    let cases = [
        (json!({"name": "x", "nfs": {"server": "s", "path": "/"}}), "nfs"),
        (
            json!({"name": "x", "persistentVolumeClaim": {"claimName": "c"}}),
            "persistentVolumeClaim",
        ),
        (json!({"name": "x", "flexVolume": {"driver": "d"}}), "flexVolume"),
        (json!({"name": "x"}), "unknown"),
    ];
    for (source, kind) in cases {
        let volume = volume(source);
        let error = Source::of(&volume, None).err().unwrap().to_string();
        assert_eq!(error, format!("volume \"x\": kind {kind} is not supported yet"));
    }
}

use serde_json::json;

use super::*;

const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: busybox}\n";

fn parsed(text: &str) -> Result<Pod, Error> {
    pod(text.as_bytes(), Origin::File(Path::new("/manifests/web.yaml")), "Node1")
}

#[test]
fn manifest_becomes_a_static_pod_of_this_node() {
    let pod = parsed(GOOD).expect("good");
    assert_eq!(spec::name(&pod), "web-node1");
    assert_eq!(spec::namespace(&pod), "default");
    assert_eq!(spec::uid(&pod).len(), 32);
    assert!(spec::is_static(&pod) && !spec::is_mirror(&pod));
    let again = parsed(GOOD).expect("good");
    assert_eq!(spec::uid(&again), spec::uid(&pod), "the same manifest is the same pod");
    let edited = parsed(&GOOD.replace("busybox", "busybox:2")).expect("good");
    assert_ne!(spec::uid(&edited), spec::uid(&pod), "an edited manifest is another pod");
}

#[test]
fn manifest_in_json_is_accepted() {
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}"#;
    assert!(parsed(json).is_ok());
}

#[test]
fn manifest_errors_name_field_and_reason() {
    for (text, expected) in [
        (": {", "is not a manifest"),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: web}", "kind"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {containers: [{name: c, image: i}]}",
            "metadata.name",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}",
            "spec.containers",
        ),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}", "containers"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}, {name: c, image: i}]}",
            "spec.containers[1].name: duplicate value",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}",
            "spec.containers[0].image",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: W_eb}\nspec: {containers: [{name: c, image: i}]}",
            "metadata.name",
        ),
    ] {
        let error = parsed(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}\n→ {error}\nwanted {expected}");
    }
}

#[test]
fn manifest_rejects_uids_that_are_paths() {
    for uid in ["..", "../../x", "a/b"] {
        let text = GOOD.replace("{name: web}", &format!("{{name: web, uid: {uid}}}"));
        let error = parsed(&text).expect_err(uid).to_string();
        assert!(error.contains("metadata.uid"), "{error}");
    }
}

#[test]
fn manifest_rejects_references_to_api_objects() {
    let with = |container: &str, pod: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: i{container}}}]{pod}}}"
        )
    };
    assert!(parsed(&with("", ", volumes: [{name: v, emptyDir: {}}]")).is_ok());
    for (container, pod, expected) in [
        ("", ", serviceAccountName: a", "spec.serviceAccountName"),
        ("", ", imagePullSecrets: [{name: s}]", "secret \"s\""),
        (", envFrom: [{configMapRef: {name: m}}]", "", "configmap \"m\""),
        ("", ", volumes: [{name: v, secret: {secretName: s}}]", "secret \"s\""),
        ("", ", volumes: [{name: v, csi: {driver: d}}]", "spec.volumes[0]"),
        (
            "",
            ", volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
            "spec.volumes[0]",
        ),
    ] {
        let error = parsed(&with(container, pod)).expect_err(expected).to_string();
        assert!(error.contains(expected), "{container}{pod} → {error}");
    }
}

#[test]
fn manifest_rejects_alias_bombs() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let refs = vec![format!("*a{}", level - 1); 9].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
    }
    assert!(parsed(&bomb).is_err());
}

/// In each place of a pod with every field, something of another type: the error is that of a deserializer that
/// keeps track of the path.
#[test]
fn errors_of_all_fields_have_their_path() {
    let mut pod: Value =
        serde_json::from_str(include_str!("../dump/testdata/every-field.json")).unwrap();
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    pod["metadata"]["managedFields"] = json!([{"time": "2026-01-01T00:00:00Z"}]);
    pod["status"] = json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "a",
        "status": "b", "lastProbeTime": "2026-01-01T00:00:00Z"}]});
    let mut places = longshore_generators::pointers(&pod);
    places.push(String::new());
    // Containers of all kinds are alike.
    places.retain(|place| {
        !place.starts_with("/spec/initC") && !place.starts_with("/spec/ephemeralC")
    });
    let wrong = [json!(null), json!(7.5), json!("x"), json!(["a"]), json!({"a": {"b": []}})];
    let mut errors = 0;
    // The other one does not name the two fields that say what an object is.
    for place in places.iter().filter(|place| !["/apiVersion", "/kind"].contains(&place.as_str())) {
        for wrong in &wrong {
            let right = std::mem::replace(pod.pointer_mut(place).unwrap(), wrong.clone());
            let expected = serde_path_to_error::deserialize::<_, Pod>(&pod).map_err(|error| {
                field(error.path().to_string(), first_line(&error.into_inner().to_string()))
            });
            errors += usize::from(expected.is_err());
            assert_eq!(decode(&pod), expected, "{wrong} in {place}");
            *pod.pointer_mut(place).unwrap() = right;
        }
    }
    assert!(errors > 2 * places.len(), "{errors} errors in {} places", places.len());
}

//! Hashes of templates, which name what is made of them: those of upstream's controllers, so that a
//! cluster whose controllers are replaced by others keeps its replica sets and revisions.

use std::fmt::Write;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use longshore_godump::{Fnv32, Fnv32a, Types, as_go, print, write_json};
use serde_json::{Value, json};

/// Letters and digits that make no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const TEMPLATE: &str = "v1.PodTemplateSpec";

/// Go's types of a template.
static TYPES: LazyLock<Types> = LazyLock::new(|| Types::parse(include_str!("pod_template.txt")));

/// The hash of a template and of the number of collisions before it: `pod-template-hash`, and that of
/// the revisions of daemon sets.
pub(crate) fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    hash_of(&serde_json::to_value(template).unwrap_or_default(), collisions)
}

fn hash_of(template: &Value, collisions: Option<i32>) -> String {
    let mut hash = Fnv32a::default();
    // writing to a hash does not fail
    let _ = print(&TYPES, TEMPLATE, &as_go(&TYPES, TEMPLATE, template), &mut hash);
    if let Some(collisions) = collisions {
        // a buffer of eight bytes, of which four are used
        hash.update(&u64::from(collisions.cast_unsigned()).to_le_bytes());
    }
    encoded_hash(hash.finish())
}

/// The hash of what a revision keeps, and of the number of collisions before it: that of the revisions
/// of stateful sets.
pub(crate) fn data_hash(data: &Value, collisions: Option<i32>) -> String {
    let mut hash = Fnv32::default();
    let _ = write_json(data, &mut hash);
    if let Some(collisions) = collisions {
        let _ = write!(hash, "{collisions}");
    }
    encoded_hash(hash.finish())
}

/// What a revision keeps of an object: a patch that restores its template.
pub(crate) fn revision_data(template: &PodTemplateSpec) -> Value {
    data_of(&serde_json::to_value(template).unwrap_or_default())
}

fn data_of(template: &Value) -> Value {
    let mut template = as_go(&TYPES, TEMPLATE, template);
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// A hash as part of a name.
pub(crate) fn encoded_hash(hash: u32) -> String {
    let letter = |digit: u8| ALPHABET.get(usize::from(digit) % ALPHABET.len()).copied();
    hash.to_string().bytes().filter_map(letter).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream's `controller.ComputeHash` and `history.HashControllerRevision` print them, of
    /// templates that were read from protobuf.
    #[test]
    fn template_hashes_are_upstreams() {
        for line in include_str!("testdata/hashes.json").lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let template = &case["template"];
            if let Some(dump) = case["dump"].as_str() {
                let mut text = String::new();
                print(&TYPES, TEMPLATE, &as_go(&TYPES, TEMPLATE, template), &mut text).unwrap();
                assert_eq!(text, dump);
                text.clear();
                write_json(&data_of(template), &mut text).unwrap();
                assert_eq!(text, case["data"].as_str().unwrap());
            }
            assert_eq!(hash_of(template, None), case["hash"], "{template}");
            assert_eq!(hash_of(template, Some(1)), case["hashOfCollision"], "{template}");
            let data = data_of(template);
            assert_eq!(data_hash(&data, None), case["revisionHash"], "{template}");
            assert_eq!(data_hash(&data, Some(1)), case["revisionHashOfCollision"], "{template}");
            // what is required there is never null in our types
            if line.contains("\"secretRef\":null") {
                continue;
            }
            let typed: PodTemplateSpec = serde_json::from_value(template.clone()).unwrap();
            assert_eq!(revision_data(&typed), data);
            assert_eq!(template_hash(&typed, None), case["hash"], "{template}");
        }
    }

    #[test]
    fn template_hash_ignores_how_nothing_is_written() {
        let hash = |template: Value| hash_of(&template, None);
        let plain = hash(json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}}));
        let odd = json!({
            "metadata": {"creationTimestamp": null, "labels": {}},
            "spec": {"hostNetwork": false, "volumes": [], "containers": [
                {"name": "c", "resources": {}, "image": "", "env": []},
            ]},
        });
        assert_eq!(hash(odd), plain);
        let with =
            json!({"metadata": {}, "spec": {"securityContext": {}, "containers": [{"name": "c"}]}});
        assert_ne!(hash(with), plain, "a structure that is there is not none");
    }

    #[test]
    fn hash_is_encoded_as_upstream() {
        assert_eq!(encoded_hash(1_234_567_890), "56789bcdf4");
    }
}

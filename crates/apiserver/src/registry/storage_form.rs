//! The form in which objects lie in the store. Upstream's apiserver writes most built-in kinds as
//! protobuf, and some of them under an older version than it serves them in; definitions of custom
//! resources and API services it writes as JSON. The same is done here, so that either takes over
//! what the other has written. What a value is in, its first bytes say: every form is always read.

use bytes::Bytes;
use serde_json::Value;

use crate::api_types::{Resource, types};
use crate::kinds;
use crate::kinds::custom_resource_definition::v1beta1 as definition_v1beta1;
use crate::schema::protobuf;
use crate::schema::value::text;
use crate::status::StatusError;

/// The groups of built-in kinds that are always JSON.
const JSON_GROUPS: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Kinds that are stored under another version than the one that they are served in, with the
/// same fields: group, kind, the version served and the one stored.
const OLD_VERSIONS: [(&str, &str, &str, &str); 2] = [
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", "v1", "v1beta1"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", "v1", "v1beta1"),
];

/// In which form objects of built-in kinds are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageMediaType {
    /// JSON, as custom objects always are.
    #[default]
    Json,
    /// Protobuf.
    Protobuf,
}

impl StorageMediaType {
    /// All of them.
    pub const ALL: [StorageMediaType; 2] = [StorageMediaType::Json, StorageMediaType::Protobuf];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StorageMediaType::Json => "application/json",
            StorageMediaType::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<StorageMediaType> {
        StorageMediaType::ALL.into_iter().find(|media_type| media_type.name() == name)
    }

    /// The form that objects of a resource are stored in.
    fn of(self, resource: &Resource) -> StorageMediaType {
        match resource.custom.is_some() || JSON_GROUPS.contains(&resource.group) {
            true => StorageMediaType::Json,
            false => self,
        }
    }
}

/// Whether bytes are in the form that the objects of a resource are stored in now.
pub(super) fn is_current(media_type: StorageMediaType, resource: &Resource, bytes: &[u8]) -> bool {
    protobuf::is_protobuf(bytes) == (media_type.of(resource) == StorageMediaType::Protobuf)
}

/// The bytes of an object.
pub(crate) fn encode(
    media_type: StorageMediaType,
    resource: &Resource,
    mut object: Value,
) -> Result<Bytes, StatusError> {
    let served = text(&object["apiVersion"]).to_owned();
    let stored = match resource.custom {
        Some(_) => served.clone(),
        None => {
            other_version(&served, text(&object["kind"]), |(_, _, served, stored)| (served, stored))
        }
    };
    if media_type.of(resource) == StorageMediaType::Protobuf {
        let kind = text(&object["kind"]);
        let index = types().of_kind(&served, kind).ok_or_else(|| {
            StatusError::internal(format!("no type for {kind} in version {served}"))
        })?;
        let bytes = protobuf::encode(index, &stored, &object);
        return bytes.map(Bytes::from).map_err(StatusError::internal);
    }
    if stored != served {
        object["apiVersion"] = stored.into();
    }
    if is_definition(&object) && resource.custom.is_none() {
        object = definition_v1beta1::to_storage(object);
    }
    longshore_json::write(&object).map(Bytes::from).map_err(StatusError::internal)
}

/// The object that bytes are. `None`: they are none, or of a kind that is not known.
pub(crate) fn decode(bytes: &[u8]) -> Option<Value> {
    let shown = |api_version: &str, kind: &str| {
        other_version(api_version, kind, |(_, _, served, stored)| (stored, served))
    };
    if protobuf::is_protobuf(bytes) {
        let kind_of = |api_version: &str, kind: &str| (shown(api_version, kind), kind.to_owned());
        let mut object = protobuf::decode_any(bytes, kind_of).ok()?;
        // As upstream does: what an older version wrote, or what a creation resets, may lack values.
        let resource = kinds::of_kind(text(&object["apiVersion"]), text(&object["kind"]));
        if let (Some(resource), Some(map)) = (resource, object.as_object_mut()) {
            (kinds::strategy(resource).default)(map);
        }
        return Some(object);
    }
    let mut object: Value = longshore_json::read(bytes).ok()?;
    if is_definition(&object) {
        return Some(definition_v1beta1::from_storage(object));
    }
    let kind = text(&object["kind"]);
    if is_old_kind(kind) {
        object["apiVersion"] = shown(text(&object["apiVersion"]), kind).into();
    }
    Some(object)
}

/// Whether bytes can be what an apiserver has stored. The error says why they cannot; encrypted values,
/// and objects of kinds that are not known here, are taken for what they are.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    const ENCRYPTED: &[u8] = b"k8s:enc:";
    if bytes.starts_with(ENCRYPTED) {
        return Ok(());
    }
    if protobuf::is_protobuf(bytes) {
        let (api_version, kind) = protobuf::kind_of(bytes)?;
        let shown = other_version(&api_version, &kind, |(_, _, served, stored)| (stored, served));
        if types().of_kind(&shown, &kind).is_none() {
            return Ok(());
        }
        return protobuf::decode_any(bytes, |_, _| (shown, kind)).map(drop);
    }
    match longshore_json::read(bytes) {
        Ok(Value::Object(_)) => Ok(()),
        Ok(_) => Err("not an object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn is_definition(object: &Value) -> bool {
    text(&object["kind"]) == "CustomResourceDefinition"
        && text(&object["apiVersion"]).starts_with("apiextensions.k8s.io/")
}

fn is_old_kind(kind: &str) -> bool {
    OLD_VERSIONS.iter().any(|(_, known, ..)| *known == kind)
}

/// The version to have in place of this one, if it is the first of those that `sides` takes of a row.
fn other_version<'a>(
    api_version: &str,
    kind: &str,
    sides: impl Fn((&'a str, &'a str, &'a str, &'a str)) -> (&'a str, &'a str),
) -> String {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let row = OLD_VERSIONS.iter().find(|(of, known, ..)| *of == group && *known == kind);
    match row.map(|row| sides(*row)).filter(|(from, _)| *from == version) {
        Some((_, to)) => format!("{group}/{to}"),
        None => api_version.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::kinds::{core, lookup};
    use crate::object;

    /// What kube-apiserver 1.36 had in etcd and what it answered, for one object of every kind.
    const STORED: &str = include_str!("../../tests/data/stored-1.36.jsonl");

    struct Recorded {
        key: String,
        bytes: Vec<u8>,
        shown: Value,
        resource: &'static Resource,
    }

    fn recorded() -> Vec<Recorded> {
        let lines = STORED.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let shown = line["object"].clone();
            let (api_version, kind) = (text(&shown["apiVersion"]), text(&shown["kind"]));
            Recorded {
                key: text(&line["key"]).to_owned(),
                bytes: STANDARD.decode(text(&line["value"])).unwrap(),
                resource: kinds::of_kind(api_version, kind).unwrap(),
                shown,
            }
        });
        lines.collect()
    }

    /// Without the nulls that Go shows for times and lists that are not there.
    fn without_nulls(value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let entries = map.into_iter().filter(|(_, value)| !value.is_null());
                entries.map(|(key, value)| (key, without_nulls(value))).collect()
            }
            Value::Array(list) => list.into_iter().map(without_nulls).collect(),
            other => other,
        }
    }

    #[test]
    fn storage_form_is_that_of_upstream() {
        let all = recorded();
        assert!(all.len() > 60, "{}", all.len());
        let mut wrong = Vec::new();
        for Recorded { key, bytes, shown, resource } in all {
            let mut read = decode(&bytes).unwrap_or_else(|| panic!("{key}"));
            read["metadata"]["resourceVersion"] = shown["metadata"]["resourceVersion"].clone();
            let (namespace, name) = (object::namespace(&shown), object::name(&shown));
            let expected = crate::registry::keys::object(resource, namespace, name).unwrap();
            assert_eq!(key, expected);
            let read = kinds::from_storage(resource, read);
            let wanted = without_nulls(shown.clone());
            if read != wanted {
                wrong.push(format!("{key}: read {read}\nnot {wanted}"));
                continue;
            }

            let mut object = shown;
            object::metadata_mut(&mut object).remove("resourceVersion");
            let stored = kinds::to_storage(resource, object);
            let written = encode(StorageMediaType::Protobuf, resource, stored).unwrap();
            assert!(is_current(StorageMediaType::Protobuf, resource, &written));
            // A text can have its fields in another order, and a phase that was left out is read.
            let has_default = resource.kind == "PersistentVolumeClaim";
            let is_other = !protobuf::is_protobuf(&bytes) || has_default;
            if is_other && decode(&written) == decode(&bytes) {
                continue;
            }
            if written != bytes {
                let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
                wrong.push(format!("{key}: wrote {}\nnot {}", text(&written), text(&bytes)));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn storage_form_by_resource() {
        let (json, protobuf) = (StorageMediaType::Json, StorageMediaType::Protobuf);
        let maps = core("configmaps").unwrap();
        let object = || {
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"},
                "data": {"a": "b"}})
        };
        for (media_type, other) in [(json, protobuf), (protobuf, json)] {
            let bytes = encode(media_type, maps, object()).unwrap();
            assert!(is_current(media_type, maps, &bytes));
            assert!(!is_current(other, maps, &bytes));
            assert_eq!(decode(&bytes).unwrap(), object());
        }
        let services = lookup("apiregistration.k8s.io", "v1", "apiservices").unwrap();
        let service = json!({"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1"});
        let bytes = encode(protobuf, services, service.clone()).unwrap();
        assert_eq!(&bytes[..1], b"{");
        assert!(is_current(protobuf, services, &bytes));
        let broken = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": 1});
        assert_eq!(encode(protobuf, maps, broken).unwrap_err().code, 500);
        for damaged in [&b""[..], b"k8s\0", b"k8s\0\xff", b"{", b"k8s:enc:aescbc:v1:a:b"] {
            assert_eq!(decode(damaged), None);
        }
        for name in ["application/json", "application/vnd.kubernetes.protobuf"] {
            assert_eq!(StorageMediaType::parse(name).unwrap().name(), name);
        }
        assert_eq!(StorageMediaType::parse("application/cbor"), None);
    }
}

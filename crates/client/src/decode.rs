//! Objects of the apiserver, each decoded on its own.
//!
//! A list that is decoded as one value fails as a whole when one of its objects does not decode, and
//! a watch begins again. So lists, watches and single answers are read as [`Item`]s: an item always
//! decodes, and says by [`Item::read`] whether its object did. Of one that did not, the metadata is
//! known as far as it can be read, so that its deletion is noticed.
//!
//! `managedFields` are cut out before decoding: the node does not use them, they are often the larger
//! part of an object, and they hold what any client wrote there (times that jiff cannot represent,
//! nesting past the limit of serde_json). A time past the year 9999-12-30 becomes the last one that
//! can be represented.
//!
//! Current limitations: nesting past the limit of serde_json still fails an event that has its
//! `object` before its `type`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use longshore_json::decode::{DecodeError, decode_value};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::warn;

/// Values of one object that are replaced before it is given up.
const MAX_REPAIRS: usize = 16;
/// The last second that a timestamp can hold.
const LAST_TIME: &str = "9999-12-30T22:00:00Z";
/// The one field that has to be there for k8s-openapi, and not for the API: of conditions.
const REQUIRED_TIME: &str = "lastTransitionTime";
/// What Go has for a time that is absent.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// The longest reason that is kept, in bytes.
const MAX_REASON: usize = 512;
/// How often the same object is reported.
const REPORT_PERIOD: Duration = Duration::from_secs(600);
/// Objects whose last report is remembered.
const MAX_REPORTED: usize = 1024;
/// Its values are not quoted in a reason.
const SECRET: &str = "Secret";

/// An object as it came, which may not have decoded.
#[derive(Clone, Debug)]
pub struct Item<K> {
    /// With its metadata alone, as far as that is known, where there is a fault.
    object: K,
    fault: Option<Box<str>>,
}

/// An object that does not decode.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind} {}{} cannot be decoded: {reason}", prefix(.metadata), .metadata.name.as_deref().unwrap_or_default())]
pub struct Unreadable {
    /// Its kind.
    pub kind: &'static str,
    /// What is known of its metadata: name, namespace, UID, version, labels and annotations.
    pub metadata: Box<ObjectMeta>,
    /// Why it does not decode, with the path of the field.
    pub reason: Box<str>,
}

fn prefix(metadata: &ObjectMeta) -> String {
    metadata.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default()
}

impl Unreadable {
    /// The UID; empty when it is not known.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The object, as events refer to it.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(self.kind.to_owned()),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            resource_version: self.metadata.resource_version.clone(),
            ..ObjectReference::default()
        }
    }
}

impl From<Unreadable> for kube::Error {
    fn from(error: Unreadable) -> Self {
        Self::Service(Box::new(error))
    }
}

impl<K: k8s_openapi::Resource + Resource> Item<K> {
    /// The object, if it decoded.
    pub fn read(self) -> Result<K, Unreadable> {
        match self.fault {
            None => Ok(self.object),
            Some(reason) => Err(Unreadable {
                kind: <K as k8s_openapi::Resource>::KIND,
                metadata: Box::new(self.object.meta().clone()),
                reason,
            }),
        }
    }

    /// What is known of the object: at least its name and UID, if those decoded. For deletions.
    pub fn known(self) -> K {
        self.object
    }
}

impl<K> From<K> for Item<K> {
    fn from(object: K) -> Self {
        Self { object, fault: None }
    }
}

impl<K: Resource> Resource for Item<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

impl<K: Serialize> Serialize for Item<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.object.serialize(serializer)
    }
}

impl<'de, K> Deserialize<'de> for Item<K>
where
    K: k8s_openapi::Resource + Resource + DeserializeOwned + Default,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(decode(&deserializer.deserialize_newtype_struct(RAW_VALUE, TextVisitor)?))
    }
}

/// By this name serde_json knows that the text of a value is wanted, which it passes over without
/// recursion, however deep it is. [`RawValue`] does so too, but fails where serde has kept the
/// value of a field in memory until it has seen the next one: an event with its `object` before its
/// `type`, which no apiserver sends, but any may.
pub(crate) const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Takes in the text of a value, or the value itself where there is no text.
pub(crate) struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
        map.next_key::<&str>()?;
        Ok(map.next_value::<Text<'_>>()?.0)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        Ok(Value::deserialize(value)?.to_string().into())
    }
}

/// An object's text as an item.
pub(crate) fn decode<K>(text: &str) -> Item<K>
where
    K: k8s_openapi::Resource + Resource + DeserializeOwned + Default,
{
    decode_lean(&lean(text).0)
}

/// An object's text, which has no `managedFields`, as an item.
pub(crate) fn decode_lean<K>(lean: &str) -> Item<K>
where
    K: k8s_openapi::Resource + Resource + DeserializeOwned + Default,
{
    if let Ok(object) = serde_json::from_str(lean) {
        return Item { object, fault: None };
    }
    match repaired(lean) {
        Ok(object) => Item { object, fault: None },
        Err(fault) => {
            let reason = match <K as k8s_openapi::Resource>::KIND {
                SECRET => format!("{}: not what the API has there", fault.path),
                _ => format!("{}: {}", fault.path, fault.reason),
            };
            let mut object = K::default();
            *object.meta_mut() = metadata(lean);
            Item { object, fault: Some(shortened(&reason).into()) }
        }
    }
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON)]
}

/// The object without `metadata.managedFields`, and what names it: of its metadata name, namespace, UID
/// and version.
pub(crate) fn lean(text: &str) -> (Cow<'_, str>, ObjectMeta) {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata<'a> {
        #[serde(borrow)]
        managed_fields: Option<&'a RawValue>,
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
    }
    let Ok(Object { metadata: found }) = serde_json::from_str(text) else {
        return (Cow::Borrowed(text), metadata(text));
    };
    let metadata = ObjectMeta {
        name: found.name,
        namespace: found.namespace,
        uid: found.uid,
        resource_version: found.resource_version,
        ..ObjectMeta::default()
    };
    let Some(managed) = found.managed_fields.map(RawValue::get) else {
        return (Cow::Borrowed(text), metadata);
    };
    let start = managed.as_ptr().addr() - text.as_ptr().addr();
    let text = [&text[..start], "null", &text[start + managed.len()..]].concat();
    (Cow::Owned(text), metadata)
}

/// The object, without its nulls, which are as good as absent in Go, and with times that are missing or
/// cannot be represented replaced.
fn repaired<K: DeserializeOwned>(text: &str) -> Result<K, DecodeError> {
    let mut value: Value = longshore_json::decode::decode(text)?;
    remove_nulls(&mut value);
    let mut repairs = 0;
    loop {
        let error = match decode_value(&value) {
            Ok(object) => return Ok(object),
            Err(error) => error,
        };
        repairs += 1;
        match error.path.find_in(&mut value) {
            Some(Value::String(time)) if repairs <= MAX_REPAIRS && is_past_last_time(time) => {
                LAST_TIME.clone_into(time);
            }
            Some(Value::Object(members)) if repairs <= MAX_REPAIRS && lacks_time(&error) => {
                members.insert(REQUIRED_TIME.to_owned(), ZERO_TIME.into());
            }
            _ => return Err(error),
        }
    }
}

/// Whether a required time is missing at the path of the error.
fn lacks_time(error: &DecodeError) -> bool {
    error.reason.starts_with(&format!("missing field `{REQUIRED_TIME}`"))
}

/// Removes the members of objects that are null.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Whether a text is a time that is later than any that can be represented. Go has larger years.
fn is_past_last_time(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (year, rest) = text.split_at(digits);
    let is_date = rest.len() >= "-12-31T23:59:59Z".len() && rest.as_bytes()[6] == b'T';
    is_date && digits < 10 && year.parse::<u32>().is_ok_and(|year| year >= 9999)
}

/// What can be read of an object's metadata, each field on its own.
fn metadata(text: &str) -> ObjectMeta {
    #[derive(Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        metadata: BTreeMap<String, &'a RawValue>,
    }
    let fields = serde_json::from_str::<Object<'_>>(text).map(|object| object.metadata);
    let fields = fields.unwrap_or_default();
    fn field<T: DeserializeOwned>(fields: &BTreeMap<String, &RawValue>, name: &str) -> Option<T> {
        fields.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
    }
    ObjectMeta {
        name: field(&fields, "name"),
        namespace: field(&fields, "namespace"),
        uid: field(&fields, "uid"),
        resource_version: field(&fields, "resourceVersion"),
        labels: field(&fields, "labels"),
        annotations: field(&fields, "annotations"),
        ..ObjectMeta::default()
    }
}

/// The object of an answer.
pub async fn object<K>(answer: impl Future<Output = kube::Result<Item<K>>>) -> kube::Result<K>
where
    K: k8s_openapi::Resource + Resource,
{
    Ok(answer.await?.read()?)
}

/// The object of an answer, if there is one.
pub async fn optional<K>(
    answer: impl Future<Output = kube::Result<Option<Item<K>>>>,
) -> kube::Result<Option<K>>
where
    K: k8s_openapi::Resource + Resource,
{
    Ok(answer.await?.map(Item::read).transpose()?)
}

/// Reports objects that do not decode, each once in ten minutes.
#[derive(Debug, Default)]
pub struct Reports {
    last: HashMap<String, Instant>,
}

impl Reports {
    /// Logs that an object is set aside; whether it was time to do so.
    pub fn log(&mut self, unreadable: &Unreadable) -> bool {
        let metadata = &unreadable.metadata;
        let key = match unreadable.uid() {
            "" => prefix(metadata) + metadata.name.as_deref().unwrap_or_default(),
            uid => uid.to_owned(),
        };
        let now = Instant::now();
        if self.last.get(&key).is_some_and(|last| now.duration_since(*last) < REPORT_PERIOD) {
            return false;
        }
        if self.last.len() >= MAX_REPORTED {
            self.last.retain(|_, last| now.duration_since(*last) < REPORT_PERIOD);
        }
        if self.last.len() >= MAX_REPORTED {
            return false;
        }
        self.last.insert(key, now);
        warn!(
            kind = unreadable.kind,
            namespace = metadata.namespace,
            name = metadata.name,
            uid = metadata.uid,
            resource_version = metadata.resource_version,
            reason = %unreadable.reason,
            "the object cannot be decoded and is set aside"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret, Service};
    use k8s_openapi::jiff::Timestamp;
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn good(name: &str) -> String {
        json!({"metadata": {"name": name, "namespace": "x", "uid": name, "resourceVersion": "7"},
            "spec": {"ports": [{"port": 80}]}})
        .to_string()
    }

    /// A service whose named field of the metadata is that text.
    fn with(field: &str, text: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"s","namespace":"x","uid":"u","resourceVersion":"9","{field}":{text}}},
            "spec":{{"ports":[{{"port":80}}]}}}}"#
        )
    }

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    /// Finding 13: what stood in `managedFields` failed the whole list.
    #[test]
    fn decode_ignores_managed_fields() {
        for managed in [
            r#"[{"manager":"m","time":"9999-12-31T23:59:59Z"}]"#.to_owned(),
            r#"[{"fieldsV1":{"f:x\"]}":[1,{}]}}]"#.to_owned(),
            "7".to_owned(),
            "null".to_owned(),
            format!(r#"[{{"fieldsV1":{}}}]"#, nested(100_000)),
        ] {
            let service = decode::<Service>(&with("managedFields", &managed)).read().unwrap();
            assert_eq!(service.metadata.name.as_deref(), Some("s"));
            assert_eq!(service.metadata.managed_fields, None);
            assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 80);
        }
    }

    #[test]
    fn decode_clamps_times_past_the_maximum() {
        for time in ["9999-12-31T23:59:59Z", "9999-12-31T00:00:00.5+01:00", "12345-01-01T00:00:00Z"]
        {
            let text = with("deletionTimestamp", &json!(time).to_string());
            let service = decode::<Service>(&text).read().unwrap();
            let last: Timestamp = LAST_TIME.parse().unwrap();
            assert_eq!(service.metadata.deletion_timestamp.unwrap().0, last, "{time}");
        }
        for time in ["", "soon", "2026-13-01T00:00:00Z", "9999", "é999-12-31T23:59:59Z"] {
            let text = with("deletionTimestamp", &json!(time).to_string());
            assert!(decode::<Service>(&text).read().is_err(), "{time}");
        }
    }

    /// The apiserver takes a condition without a time, and gives it as null.
    #[test]
    fn decode_treats_null_as_absent() {
        let text = json!({"metadata": {"name": "s", "labels": null},
        "spec": {"ports": [{"port": 80, "name": null}], "selector": {"a": null}},
        "status": {"conditions": [
            {"type": "T", "status": "True", "reason": null, "lastTransitionTime": null},
        ]}});
        let service = decode::<Service>(&text.to_string()).read().unwrap();
        let conditions = service.status.unwrap().conditions.unwrap();
        assert_eq!((conditions[0].type_.as_str(), conditions[0].reason.as_str()), ("T", ""));
        assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, 80);
    }

    #[test]
    fn undecodable_object_has_its_metadata() {
        let text = r#"{"metadata":{"name":"s","namespace":"x","uid":"u","resourceVersion":"9",
            "labels":{"a":"b"},"finalizers":7},"spec":{"ports":[{"port":"http"}]}}"#;
        let error = decode::<Service>(text).read().unwrap_err();
        assert_eq!((error.uid(), error.metadata.resource_version.as_deref()), ("u", Some("9")));
        assert_eq!(error.metadata.labels.as_ref().unwrap()["a"], "b");
        assert!(error.to_string().starts_with("Service x/s cannot be decoded: "), "{error}");
        for text in ["null", "7", "[]", "{}", r#"{"metadata":[]}"#, r#"{"metadata":{"name":7}}"#] {
            let item = decode::<Service>(text);
            assert_eq!(item.meta().name, None, "{text}");
        }
    }

    #[test]
    fn decode_errors_do_not_quote_secret_values() {
        let text = r#"{"metadata":{"name":"s"},"data":{"key":"no base64: hunter2"}}"#;
        let error = decode::<Secret>(text).read().unwrap_err().to_string();
        assert!(error.contains("data.key") && !error.contains("hunter2"), "{error}");
        let text = r#"{"metadata":{"name":"s"},"data":"hunter2"}"#;
        let error = decode::<Secret>(text).read().unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    /// Finding 13: one bad object failed the list and the watch that it was in.
    #[test]
    fn undecodable_object_leaves_the_others() {
        let bad = [
            with("managedFields", &nested(1000)),
            with("finalizers", &nested(1000)),
            with("finalizers", "7"),
            with("unknown", &nested(100_000)),
            "null".to_owned(),
        ];
        let items = bad.iter().flat_map(|bad| [good("a"), bad.clone(), good("b")]);
        let items: Vec<_> = items.collect();
        let list = format!(
            r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
            items.join(",")
        );
        let list: ObjectList<Item<Service>> = serde_json::from_str(&list).unwrap();
        let read = list.items.into_iter().map(Item::read).filter_map(Result::ok);
        // the unknown field and the managed fields are no reason to refuse the service
        assert_eq!(read.count(), 2 * bad.len() + 2);
        for bad in &bad[..4] {
            let line = format!(r#"{{"type":"MODIFIED","object":{bad}}}"#);
            let event: WatchEvent<Item<Service>> = serde_json::from_str(&line).unwrap();
            let WatchEvent::Modified(item) = event else { unreachable!("{line}") };
            assert_eq!(item.meta().uid.as_deref(), Some("u"));
        }
        // The order of fields says nothing.
        let line = format!(r#"{{"object":{},"type":"ADDED"}}"#, with("finalizers", "7"));
        let event: WatchEvent<Item<Service>> = serde_json::from_str(&line).unwrap();
        assert!(matches!(event, WatchEvent::Added(item) if item.clone().read().is_err()));
        let value: Value = serde_json::from_str(&good("a")).unwrap();
        let item: Item<Service> = serde_json::from_value(value).unwrap();
        assert_eq!(item.read().unwrap().metadata.name.as_deref(), Some("a"));
    }

    #[test]
    fn decode_of_valid_objects_is_unchanged() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"managedFields": "\"managedFields\":{}"}},
            "spec": {"containers": [{"name": "c", "args": ["\"managedFields\""]}]}});
        let read = decode::<Pod>(&pod.to_string()).read().unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), pod);
        assert_eq!(serde_json::to_value(Item::from(read)).unwrap(), pod);
    }

    #[test]
    fn decode_errors_are_logged_once_per_interval() {
        let mut reports = Reports::default();
        let bad = |uid: &str| {
            let text = json!({"metadata": {"uid": uid}, "spec": 7}).to_string();
            decode::<Service>(&text).read().unwrap_err()
        };
        assert!(reports.log(&bad("a")) && !reports.log(&bad("a")) && reports.log(&bad("b")));
        (0..2 * MAX_REPORTED).for_each(|uid| {
            reports.log(&bad(&uid.to_string()));
        });
        assert!(reports.last.len() <= MAX_REPORTED);
    }
}

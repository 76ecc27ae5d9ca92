//! Audit events (audit.k8s.io/v1) as they are written: JSON with upstream's fields in upstream's order, or one
//! line of text.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::user::{Extra, User};

/// The memory of an event without its texts and bodies, in bytes, about.
const KEPT: usize = 1 << 10;
/// The memory of a text beside its bytes: the `String`, and what its allocation takes.
const TEXT: usize = 48;
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Nothing.
    #[default]
    None,
    /// Who did what, when.
    Metadata,
    /// The same with the request's body.
    Request,
    /// The same with both bodies.
    RequestResponse,
}

impl Level {
    pub(super) const ALL: [Level; 4] =
        [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    pub(super) fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// When an event is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the request is handled.
    #[default]
    RequestReceived,
    /// The headers of a long-running response are about to be sent.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// Handling the request panicked.
    Panic,
}

impl Stage {
    const ALL: [Stage; 4] =
        [Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic];

    pub(super) fn parse(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Stage::RequestReceived => "RequestReceived",
            Stage::ResponseStarted => "ResponseStarted",
            Stage::ResponseComplete => "ResponseComplete",
            Stage::Panic => "Panic",
        }
    }
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) subresource: String,
}

impl ObjectReference {
    fn size(&self) -> usize {
        let ObjectReference {
            resource,
            namespace,
            name,
            uid,
            api_group,
            api_version,
            resource_version,
            subresource,
        } = self;
        let place = [resource, subresource, namespace, name, api_group, api_version];
        texts(place) + texts([uid, resource_version])
    }
}

/// The parts of a `Status` that an event has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) metadata: Metadata,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) details: Value,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) code: u16,
}

/// Always empty, and always written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Metadata {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

impl Outcome {
    fn size(&self) -> usize {
        texts([&self.status, &self.message, &self.reason]) + size_of_value(&self.details)
    }

    /// The outcome that a `Status` object says.
    pub(super) fn of(status: &Value) -> Outcome {
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        Outcome {
            metadata: Metadata {},
            status: text("status"),
            message: text("message"),
            reason: text("reason"),
            details: status["details"].clone(),
            code: status["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or(0),
        }
    }
}

#[derive(Serialize)]
struct UserInfo<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "Extra::is_empty")]
    extra: &'a Extra,
}

impl<'a> From<&'a User> for UserInfo<'a> {
    fn from(user: &'a User) -> Self {
        let User { name, uid, groups, extra } = user;
        UserInfo { username: name, uid, groups, extra }
    }
}

/// The memory of texts in bytes, about.
fn texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> usize {
    texts.into_iter().map(|text| TEXT + text.len()).sum()
}

fn size_of_user(user: &User) -> usize {
    let User { name, uid, groups, extra } = user;
    let extra = extra.iter().flat_map(|(key, values)| std::iter::once(key).chain(values));
    texts([name, uid]) + texts(groups) + texts(extra)
}

fn size_of_value(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => TEXT,
        Value::String(text) => texts([text]),
        Value::Array(items) => TEXT + items.iter().map(size_of_value).sum::<usize>(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| texts([key]) + size_of_value(value));
            TEXT + fields.sum::<usize>()
        }
    }
}

/// An event: what is known of a request in one stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Event {
    pub(super) level: Level,
    pub(super) audit_id: String,
    pub(super) stage: Stage,
    pub(super) request_uri: String,
    pub(super) verb: &'static str,
    pub(super) user: User,
    pub(super) impersonated: Option<User>,
    pub(super) source_ips: Vec<String>,
    pub(super) user_agent: String,
    pub(super) object: Option<ObjectReference>,
    pub(super) outcome: Option<Outcome>,
    /// JSON on one line.
    pub(super) request: Option<Bytes>,
    /// JSON on one line.
    pub(super) response: Option<Bytes>,
    pub(super) received: Timestamp,
    pub(super) reached: Timestamp,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Event {
    /// About how many bytes of memory it takes.
    pub(super) fn size(&self) -> usize {
        let length = |body: &Option<Bytes>| body.as_ref().map_or(0, Bytes::len);
        let annotations = self.annotations.iter().flat_map(|(key, value)| [key, value]);
        KEPT + length(&self.request)
            + length(&self.response)
            + texts([&self.audit_id, &self.request_uri, &self.user_agent])
            + texts(&self.source_ips)
            + size_of_user(&self.user)
            + self.impersonated.as_ref().map_or(0, size_of_user)
            + self.object.as_ref().map_or(0, ObjectReference::size)
            + self.outcome.as_ref().map_or(0, Outcome::size)
            + texts(annotations)
    }

    pub(super) fn has_bodies(&self) -> bool {
        self.request.is_some() || self.response.is_some()
    }

    /// The event without its bodies, marked as such.
    pub(super) fn truncated(&self) -> Event {
        let mut event = Event { request: None, response: None, ..self.clone() };
        event.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        event
    }

    /// Appends the event as JSON.
    pub(super) fn write_json(&self, text: &mut Vec<u8>) {
        let mut fields = Fields { text };
        fields.text.extend_from_slice(b"{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\"");
        fields.put("level", self.level.name());
        fields.put("auditID", &self.audit_id);
        fields.put("stage", self.stage.name());
        fields.put("requestURI", &self.request_uri);
        fields.put("verb", self.verb);
        fields.put("user", &UserInfo::from(&self.user));
        if let Some(user) = &self.impersonated {
            fields.put("impersonatedUser", &UserInfo::from(user));
        }
        if !self.source_ips.is_empty() {
            fields.put("sourceIPs", &self.source_ips);
        }
        if !self.user_agent.is_empty() {
            fields.put("userAgent", &self.user_agent);
        }
        if let Some(object) = &self.object {
            fields.put("objectRef", object);
        }
        if let Some(outcome) = &self.outcome {
            fields.put("responseStatus", outcome);
        }
        for (name, body) in [("requestObject", &self.request), ("responseObject", &self.response)] {
            if let Some(body) = body {
                fields.name(name);
                fields.text.extend_from_slice(body);
            }
        }
        fields.put("requestReceivedTimestamp", &micro_time(self.received));
        fields.put("stageTimestamp", &micro_time(self.reached));
        if !self.annotations.is_empty() {
            fields.put("annotations", &self.annotations);
        }
        fields.text.push(b'}');
    }

    /// The event as one line of text, without its end: upstream's format `legacy`.
    pub(super) fn line(&self) -> String {
        let quoted = |groups: &[String]| {
            groups.iter().map(|group| format!("{group:?}")).collect::<Vec<_>>().join(",")
        };
        let (user, groups) = match self.user.name.as_str() {
            "" => ("<none>", "<none>".to_owned()),
            name if self.user.groups.is_empty() => (name, "<none>".to_owned()),
            name => (name, quoted(&self.user.groups)),
        };
        let (as_user, as_groups) = match &self.impersonated {
            Some(user) if user.groups.is_empty() => (user.name.as_str(), "<lookup>".to_owned()),
            Some(user) => (user.name.as_str(), quoted(&user.groups)),
            None => ("<self>", "<lookup>".to_owned()),
        };
        let namespace = self.object.as_ref().map(|object| object.namespace.as_str());
        let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("<none>");
        let response = match &self.outcome {
            Some(outcome) => outcome.code.to_string(),
            None => "<deferred>".to_owned(),
        };
        let ip = self.source_ips.first().map_or("<unknown>", String::as_str);
        format!(
            "{} AUDIT: id={:?} stage={:?} ip={ip:?} method={:?} user={user:?} groups={groups:?} \
             as={as_user:?} asgroups={as_groups:?} user-agent={:?} namespace={namespace:?} uri={:?} \
             response=\"{response}\"",
            self.received,
            self.audit_id,
            self.stage.name(),
            self.verb,
            self.user_agent,
            self.request_uri,
        )
    }
}

/// Writes the fields of an object after its first.
struct Fields<'a> {
    text: &'a mut Vec<u8>,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) {
        self.text.extend_from_slice(b",\"");
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    fn put<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.name(name);
        // neither texts nor maps of texts can fail to be written
        let _ = serde_json::to_writer(&mut *self.text, value);
    }
}

/// A time with six digits of its second, as `MicroTime` has it.
fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Event {
        Event {
            level: Level::RequestResponse,
            audit_id: "id-1".into(),
            stage: Stage::ResponseComplete,
            request_uri: "/api/v1/namespaces/a/secrets?x=<y>".into(),
            verb: "create",
            user: User {
                name: "ann".into(),
                uid: "7".into(),
                groups: vec!["dev".into()],
                extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
            },
            source_ips: vec!["10.0.0.1".into()],
            user_agent: "kubectl".into(),
            object: Some(ObjectReference {
                resource: "secrets".into(),
                namespace: "a".into(),
                api_version: "v1".into(),
                ..ObjectReference::default()
            }),
            outcome: Some(Outcome { code: 201, ..Outcome::default() }),
            request: Some(Bytes::from_static(b"{\"a\":1}")),
            received: "2026-01-02T03:04:05.1Z".parse().unwrap(),
            reached: "2026-01-02T03:04:05.123456789Z".parse().unwrap(),
            annotations: [("authorization.k8s.io/decision".to_owned(), "allow".to_owned())].into(),
            ..Event::default()
        }
    }

    fn written(event: &Event) -> String {
        let mut text = Vec::new();
        event.write_json(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn audit_event_has_upstreams_fields_in_order() {
        assert_eq!(
            written(&event()),
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id-1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/secrets?x=<y>","verb":"create","user":{"username":"ann","uid":"7","groups":["dev"],"extra":{"k":["v"]}},"sourceIPs":["10.0.0.1"],"userAgent":"kubectl","objectRef":{"resource":"secrets","namespace":"a","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},"requestObject":{"a":1},"requestReceivedTimestamp":"2026-01-02T03:04:05.100000Z","stageTimestamp":"2026-01-02T03:04:05.123456Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#
        );
        let empty: Value = serde_json::from_str(&written(&Event::default())).unwrap();
        assert_eq!(empty["user"], json!({}));
        let cut = event().truncated();
        let cut: Value = serde_json::from_str(&written(&cut)).unwrap();
        assert!(cut.get("requestObject").is_none());
        assert_eq!(cut["annotations"]["audit.k8s.io/truncated"], "true");
    }

    #[test]
    fn audit_event_keeps_what_a_status_says() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {"continue": "c"},
            "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403,
            "details": {"kind": "pods"}});
        let outcome = serde_json::to_value(Outcome::of(&status)).unwrap();
        let expected = json!({"metadata": {}, "status": "Failure", "message": "no",
            "reason": "Forbidden", "code": 403, "details": {"kind": "pods"}});
        assert_eq!(outcome, expected);
    }

    #[test]
    fn audit_event_size_counts_whatever_clients_choose() {
        fn long() -> String {
            "x".repeat(10_000)
        }
        fn groups() -> Vec<String> {
            vec![String::new(); 1000]
        }
        type Change = fn(&mut Event);
        let cases: [(&str, usize, Change); 12] = [
            ("ID", 10_000, |event| event.audit_id = long()),
            ("URI", 10_000, |event| event.request_uri = long()),
            ("agent", 10_000, |event| event.user_agent = long()),
            ("addresses", 48_000, |event| event.source_ips = groups()),
            ("groups", 48_000, |event| event.user.groups = groups()),
            ("extra", 20_000, |event| event.user.extra = [(long(), vec![long()])].into()),
            ("impersonated", 48_000, |event| {
                event.impersonated = Some(User { groups: groups(), ..User::default() });
            }),
            ("object", 10_000, |event| event.object.get_or_insert_default().name = long()),
            ("message", 10_000, |event| event.outcome.get_or_insert_default().message = long()),
            ("details", 10_000, |event| {
                let details = json!({"causes": [{"message": long()}]});
                event.outcome.get_or_insert_default().details = details;
            }),
            ("annotations", 20_000, |event| event.annotations = [(long(), long())].into()),
            ("body", 10_000, |event| event.response = Some(long().into())),
        ];
        for (what, least, change) in cases {
            let mut event = Event::default();
            let before = event.size();
            change(&mut event);
            let more = event.size() - before;
            assert!((least..least + 1000).contains(&more), "{what}: {more}");
        }
    }

    #[test]
    fn audit_event_as_a_line_is_upstreams() {
        let line = event().line();
        let expected = "2026-01-02T03:04:05.1Z AUDIT: id=\"id-1\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" \
            method=\"create\" user=\"ann\" groups=\"\\\"dev\\\"\" as=\"<self>\" asgroups=\"<lookup>\" \
            user-agent=\"kubectl\" namespace=\"a\" uri=\"/api/v1/namespaces/a/secrets?x=<y>\" response=\"201\"";
        assert_eq!(line, expected);
        let line = Event::default().line();
        assert!(line.contains("user=\"<none>\" groups=\"<none>\"") && line.contains("<deferred>"));
        let odd = Event { user_agent: "a\nb".into(), ..Event::default() };
        assert!(!odd.line().contains('\n'));
    }
}

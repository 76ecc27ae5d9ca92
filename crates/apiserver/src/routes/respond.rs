//! Answers.

use std::sync::Arc;

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::negotiate::Form;
use super::yaml;
use crate::api_types::Resource;
use crate::kinds;
use crate::registry::Stored;
use crate::response_body::Body;
use crate::schema::protobuf;
use crate::status::StatusError;
use crate::table::{self, IncludeObject};
use crate::text::Text;

pub(super) type Answer = Response<Body>;
pub(super) type Result<T = Answer> = std::result::Result<T, StatusError>;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(super) const YAML: HeaderValue = HeaderValue::from_static("application/yaml");
pub(super) const PROTOBUF: HeaderValue = HeaderValue::from_static(protobuf::MEDIA_TYPE);

/// An extension of an answer that is a `Status` object.
#[derive(Clone)]
pub(super) struct StatusObject(pub(super) Value);

/// An answer with these bytes.
pub(super) fn raw(code: StatusCode, content_type: HeaderValue, body: Body) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(super) fn json_text(code: StatusCode, text: impl Into<Text>) -> Answer {
    raw(code, JSON, Body::from(text))
}

/// A whole body in protobuf.
pub(super) fn protobuf(code: StatusCode, bytes: Vec<u8>) -> Answer {
    raw(code, PROTOBUF, Body::from(bytes))
}

/// What a watch yields.
pub(super) fn watch_stream(body: Body, is_protobuf: bool) -> Answer {
    const PROTOBUF_STREAM: HeaderValue =
        HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch");
    raw(StatusCode::OK, if is_protobuf { PROTOBUF_STREAM } else { JSON }, body)
}

/// Has an object or a list that is there as JSON sent as protobuf, if it is of a built-in kind.
pub(super) fn to_protobuf(answer: &mut Answer) {
    if answer.headers().get(header::CONTENT_TYPE).is_none_or(|value| value != JSON) {
        return;
    }
    let Some(bytes) = answer.body_mut().whole().and_then(|text| {
        let object: Value = longshore_json::read(text).ok()?;
        protobuf::encode_any(&object)
    }) else {
        return;
    };
    answer.body_mut().replace(bytes.into());
    answer.headers_mut().insert(header::CONTENT_TYPE, PROTOBUF);
}

/// Has an object or a list that is there as JSON sent as YAML.
pub(super) fn to_yaml(answer: &mut Answer) {
    /// How many times its JSON text an object takes in memory as a value and as YAML, about.
    const GROWTH: usize = 6;
    if answer.headers().get(header::CONTENT_TYPE).is_none_or(|value| value != JSON) {
        return;
    }
    let Some(text) = answer.body_mut().whole().cloned() else { return };
    let has_memory =
        answer.body().memory().is_none_or(|memory| memory.grow(text.len().saturating_mul(GROWTH)));
    if !has_memory {
        *answer = refusal(&super::limits::too_many());
        return;
    }
    let object: Option<Value> = longshore_json::read(&text).ok();
    let Some(object) = object.filter(|object| object["kind"].is_string()) else { return };
    answer.body_mut().replace(yaml::write(&object).into());
    answer.headers_mut().insert(header::CONTENT_TYPE, YAML);
}

/// Has an answer of objects sent in gzip, if it is so long that this pays.
pub(super) fn compress(answer: &mut Answer) {
    const WORTHWHILE: usize = 128 << 10;
    let headers = answer.headers();
    let content_type = headers.get(header::CONTENT_TYPE);
    let has_objects = content_type.is_some_and(|value| [JSON, YAML, PROTOBUF].contains(value));
    let is_encoded = headers.contains_key(header::CONTENT_ENCODING);
    if !has_objects || is_encoded || answer.body().len() <= WORTHWHILE {
        return;
    }
    if answer.body_mut().compress() {
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// A document with an ETag; without its text for a client that has it already.
pub(super) fn tagged(
    request: &HeaderMap,
    content_type: HeaderValue,
    content: impl AsRef<[u8]> + Into<Body>,
) -> Answer {
    let hash: String =
        Sha256::digest(content.as_ref()).iter().map(|byte| format!("{byte:02X}")).collect();
    let tag = format!("\"{hash}\"");
    let known = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = known
        .flat_map(|tags| tags.split(','))
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == "*" || known == tag);
    let mut answer = match is_known {
        true => raw(StatusCode::NOT_MODIFIED, content_type, Body::from("")),
        false => raw(StatusCode::OK, content_type, content.into()),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    answer
}

pub(super) fn json(code: StatusCode, value: &Value) -> Answer {
    // a value can always be written
    json_text(code, longshore_json::write(value).unwrap_or_default())
}

pub(super) fn text(code: StatusCode, text: String) -> Answer {
    let mut response =
        raw(code, HeaderValue::from_static("text/plain; charset=utf-8"), Body::from(text));
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Metrics in the format of Prometheus.
pub(super) fn metrics(text: String) -> Answer {
    const METRICS: HeaderValue =
        HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    raw(StatusCode::OK, METRICS, Body::from(text))
}

/// An answer that is nothing but its code.
pub(super) fn empty(code: StatusCode) -> Answer {
    let mut response = Response::new(Body::from(""));
    *response.status_mut() = code;
    response
}

/// An error as a `Status` object.
pub(super) fn refusal(error: &StatusError) -> Answer {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if error.details.as_ref().is_some_and(|details| details.is_text) {
        return text(code, error.message.clone());
    }
    let status = error.to_value();
    let mut response = json(code, &status);
    response.extensions_mut().insert(StatusObject(status));
    let seconds = error.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// The same with warnings, which upstream gives with refusals, too.
pub(super) fn refused(error: StatusError, warnings: &[String]) -> Result {
    if warnings.is_empty() {
        return Err(error);
    }
    let mut answer = refusal(&error);
    warn(&mut answer, warnings);
    Ok(answer)
}

/// The answer to a request that got no seat, as upstream has it: a text, and not a `Status`.
pub(super) fn rejected(retry_after: u32) -> Answer {
    let text = "Too many requests, please try again later.\n";
    let mut response = self::text(StatusCode::TOO_MANY_REQUESTS, text.into());
    response.headers_mut().insert(header::RETRY_AFTER, retry_after.into());
    response
}

/// A `Status` object of success.
pub(super) fn success(code: StatusCode, details: Option<Value>) -> Answer {
    let mut status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    match details {
        Some(details) => status["details"] = details,
        None => status["code"] = code.as_u16().into(),
    }
    let mut response = json(code, &status);
    response.extensions_mut().insert(StatusObject(status));
    response
}

/// The form of objects in responses.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) resource: &'static Resource,
    pub(super) form: Form,
    /// Protobuf, and not JSON: what is one answer becomes that in the end ([`to_protobuf`]).
    pub(super) is_protobuf: bool,
    /// The version of what is not the object itself: `meta.k8s.io/v1`, or the beta before it.
    pub(super) api_version: &'static str,
    pub(super) include: IncludeObject,
}

impl View {
    /// One object in the wanted form. `headers`: with a table's column definitions.
    pub(super) fn render(&self, object: &Value, headers: bool) -> Value {
        match self.form {
            Form::Object => object.clone(),
            Form::Metadata => table::partial_metadata(object, self.api_version),
            Form::Table => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                self.table([object], meta, headers)
            }
        }
    }

    pub(super) fn table<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Value>,
        meta: Value,
        headers: bool,
    ) -> Value {
        let now = jiff::Timestamp::now();
        let Self { resource, include, api_version, .. } = *self;
        table::render(resource, objects, meta, include, api_version, headers, now)
    }

    pub(super) fn answer(&self, code: StatusCode, object: &Value) -> Answer {
        match self.form {
            Form::Object => json(code, object),
            _ => json(code, &self.render(object, true)),
        }
    }

    /// A stored object as this resource shows it, if it does not show it as it is stored. One that a webhook
    /// converts has been converted before.
    pub(super) fn converted(&self, stored: &Stored) -> Option<Arc<Value>> {
        if let Some(converted) = stored.converted(self.resource.version) {
            return Some(converted);
        }
        let object = stored.value()?;
        let owner = kinds::resources().find(|other| other.same_storage(self.resource));
        let is_shown_as_stored = match (self.resource.custom, owner) {
            (Some(_), _) => false,
            (None, Some(owner)) => std::ptr::eq(owner, self.resource),
            (None, None) => true,
        };
        (!is_shown_as_stored).then(|| Arc::new(kinds::from_storage(self.resource, object.clone())))
    }
}

/// Adds `Warning` headers.
pub(super) fn warn(response: &mut Answer, warnings: &[String]) {
    for warning in warnings {
        let quoted: String = warning
            .chars()
            .filter(|character| !character.is_control())
            .flat_map(|character| match character {
                '"' | '\\' => vec!['\\', character],
                _ => vec![character],
            })
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

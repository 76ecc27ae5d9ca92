//! Negotiation of the response's form.

use hyper::header::{self, HeaderMap};

use crate::schema::protobuf::MEDIA_TYPE;
use crate::status::StatusError;

/// The form of objects in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Object,
    /// `meta.k8s.io/v1` Table.
    Table,
    /// `meta.k8s.io/v1` PartialObjectMetadata, or a list of them.
    Metadata,
}

/// Whether the client takes gzip, as upstream reads its header: without a quality.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|token| token.trim() == "gzip"))
}

/// One clause of an `Accept` header.
struct Clause<'a> {
    media_type: &'a str,
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    stream: &'a str,
    quality: f32,
}

/// By quality, and what is more exact first.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .map(|text| {
            let mut parts = text.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut clause =
                Clause { media_type, group: "", version: "", kind: "", stream: "", quality: 1.0 };
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "g" => clause.group = value,
                    "v" => clause.version = value,
                    "as" => clause.kind = value,
                    "stream" => clause.stream = value,
                    "q" => clause.quality = value.parse().unwrap_or(0.0),
                    _ => {}
                }
            }
            clause
        })
        .collect();
    let wildcards = |clause: &Clause<'_>| clause.media_type.matches('*').count();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(wildcards(a).cmp(&wildcards(b))));
    clauses
}

fn is_json(media_type: &str) -> bool {
    matches!(media_type, "application/json" | "application/*" | "*/*")
}

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Yaml,
    Protobuf,
}

/// What an answer is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) form: Form,
    pub(super) media: Media,
    /// The kind that was requested; empty for objects as they are.
    pub(super) kind: &'static str,
    /// The version of that kind.
    pub(super) api_version: &'static str,
}

impl Accepted {
    /// Without the header.
    const PLAIN: Accepted = Accepted {
        form: Form::Object,
        media: Media::Json,
        kind: "",
        api_version: "meta.k8s.io/v1",
    };
}

/// What a route answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    Object,
    List,
    Watch,
}

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
/// What objects are sent as.
const PRODUCED: [&str; 3] = [JSON, YAML, MEDIA_TYPE];
/// What the events of a watch are sent as.
const STREAMED: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

impl Clause<'_> {
    /// How this clause is met; `None`: it cannot be.
    fn accepted(&self, has_protobuf: bool) -> Option<Accepted> {
        let api_version = match (self.group, self.version) {
            ("meta.k8s.io", "v1beta1") => "meta.k8s.io/v1beta1",
            _ => "meta.k8s.io/v1",
        };
        let is_plain = self.group.is_empty() && self.version.is_empty();
        let is_meta = self.group == "meta.k8s.io" && matches!(self.version, "v1" | "v1beta1");
        let (form, kind) = match self.kind {
            "" if is_plain => (Form::Object, ""),
            "Table" if is_meta => (Form::Table, "Table"),
            "PartialObjectMetadata" if is_meta => (Form::Metadata, "PartialObjectMetadata"),
            "PartialObjectMetadataList" if is_meta => (Form::Metadata, "PartialObjectMetadataList"),
            _ => return None,
        };
        let media = match self.media_type {
            media_type if is_json(media_type) => Media::Json,
            YAML => Media::Yaml,
            MEDIA_TYPE => Media::Protobuf,
            _ => return None,
        };
        let can_be = match (media, form) {
            (Media::Json | Media::Yaml, _) | (Media::Protobuf, Form::Metadata) => true,
            (Media::Protobuf, Form::Object) => has_protobuf,
            (Media::Protobuf, Form::Table) => false,
        };
        let is_streamed = match self.stream {
            "" => true,
            "watch" => media != Media::Yaml,
            _ => false,
        };
        (can_be && is_streamed).then_some(Accepted { form, media, kind, api_version })
    }
}

/// The first of those in `Accept` that can be produced; JSON without the header. `has_protobuf`: the
/// objects are of a built-in kind.
pub(super) fn accepted(
    accept: Option<&str>,
    has_protobuf: bool,
    answered: Answered,
) -> Result<Accepted, StatusError> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Ok(Accepted::PLAIN);
    };
    if has_protobuf {
        let streamed = if answered == Answered::Object { &[][..] } else { &STREAMED };
        routed(accept, &[&PRODUCED[..], streamed].concat())?;
    }
    let mut found = clauses(accept).into_iter().filter_map(|clause| clause.accepted(has_protobuf));
    match found.next() {
        None => Err(StatusError::not_acceptable(&PRODUCED)),
        Some(Accepted { media: Media::Yaml, .. }) if answered == Answered::Watch => {
            Err(StatusError::not_acceptable(&STREAMED))
        }
        Some(found) => Ok(found),
    }
}

/// Whether upstream's route for something produces what is accepted: it knows no wildcards but one.
fn routed(accept: &str, produced: &[&str]) -> Result<(), StatusError> {
    let mut accepted =
        accept.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim());
    match accepted.any(|media_type| media_type == "*/*" || produced.contains(&media_type)) {
        true => Ok(()),
        false => Err(StatusError::not_produced(produced)),
    }
}

/// What documents of discovery are sent as. `is_routed`: those of built-in groups.
pub(super) fn document(accept: Option<&str>, is_routed: bool) -> Result<(), StatusError> {
    let accepted = accepted(accept, is_routed, Answered::Object)?;
    match accepted.form {
        Form::Object => Ok(()),
        _ => Err(StatusError::not_acceptable(&PRODUCED)),
    }
}

/// The same of a document that is JSON only.
pub(super) fn json_document(accept: Option<&str>) -> Result<(), StatusError> {
    match accept.filter(|accept| !accept.trim().is_empty()) {
        Some(accept) => routed(accept, &[JSON]),
        None => Ok(()),
    }
}

/// What an OpenAPI document is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DocumentForm {
    Json,
    Message,
}

/// The form of an OpenAPI document whose message has that media type; `None`: the client accepts neither. Old
/// clients send the type with an `@`, which is not valid in a media type.
pub(super) fn document_form(accept: Option<&str>, message: &str) -> Option<DocumentForm> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Some(DocumentForm::Json);
    };
    clauses(accept).iter().find_map(|clause| match clause.media_type {
        json if is_json(json) => Some(DocumentForm::Json),
        other => (other.replace('@', ".") == message).then_some(DocumentForm::Message),
    })
}

/// What an answer is sent as that can be any of them. `is_status`: it is a Status, which has no other form.
pub(super) fn preferred(headers: &HeaderMap, is_status: bool) -> Media {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let Some(accept) = accept.filter(|text| text.contains("yaml") || text.contains(MEDIA_TYPE))
    else {
        return Media::Json;
    };
    let mut found = clauses(accept)
        .into_iter()
        .filter_map(|clause| clause.accepted(true))
        .filter(|found| !is_status || found.form == Form::Object);
    found.next().map_or(Media::Json, |found| found.media)
}

/// Whether the client prefers aggregated discovery.
pub(super) fn wants_aggregated_discovery(accept: Option<&str>) -> bool {
    let clauses = clauses(accept.unwrap_or_default());
    let first = clauses.iter().find(|clause| {
        is_json(clause.media_type)
            && (clause.kind.is_empty()
                || (clause.kind, clause.version) == ("APIGroupDiscoveryList", "v2"))
    });
    first.is_some_and(|clause| clause.group == "apidiscovery.k8s.io")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn openapi_documents_are_messages_for_who_prefers_them() {
        const TYPE: &str = crate::openapi::PROTOBUF;
        let old = TYPE.replace("v3.v1", "v3@v1");
        for (accept, expected) in [
            (None, Some(DocumentForm::Json)),
            (Some(" "), Some(DocumentForm::Json)),
            (Some("*/*"), Some(DocumentForm::Json)),
            (Some("application/json"), Some(DocumentForm::Json)),
            (Some(TYPE), Some(DocumentForm::Message)),
            (Some(&old), Some(DocumentForm::Message)),
            (Some(&format!("{TYPE},application/json")), Some(DocumentForm::Message)),
            (Some(&format!("{TYPE};q=0.5,application/json")), Some(DocumentForm::Json)),
            (Some(&format!("text/x, {TYPE}")), Some(DocumentForm::Message)),
            (Some(crate::openapi::v2::PROTOBUF), None),
            (Some("text/x"), None),
        ] {
            assert_eq!(document_form(accept, TYPE), expected, "{accept:?}");
        }
    }

    #[test]
    fn forms() {
        for (accept, expected) in [
            (None, Form::Object),
            (Some("*/*"), Form::Object),
            (Some("application/vnd.kubernetes.protobuf,application/json"), Form::Object),
            (Some("application/json;stream=watch"), Form::Object),
            (
                Some(
                    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                ),
                Form::Table,
            ),
            (
                Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                Form::Metadata,
            ),
            (
                Some("application/json;q=0.5, application/json;as=Table;g=meta.k8s.io;v=v1"),
                Form::Table,
            ),
            (Some("application/json;as=Unknown;g=meta.k8s.io;v=v1,application/json"), Form::Object),
        ] {
            let found = accepted(accept, false, Answered::List).unwrap();
            assert_eq!((found.form, found.media), (expected, Media::Json), "{accept:?}");
        }
        for accept in [MEDIA_TYPE, "application/json;as=Table;g=meta.k8s.io;v=v9"] {
            assert_eq!(accepted(Some(accept), false, Answered::List).unwrap_err().code, 406);
        }
    }

    #[test]
    fn forms_in_protobuf() {
        const METADATA: &str = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        const TABLE: &str = "as=Table;g=meta.k8s.io;v=v1";
        for (accept, built_in, custom) in [
            (MEDIA_TYPE.to_owned(), Some((Form::Object, true)), None),
            (
                format!("{MEDIA_TYPE},application/json"),
                Some((Form::Object, true)),
                Some((Form::Object, false)),
            ),
            (
                format!("application/json,{MEDIA_TYPE}"),
                Some((Form::Object, false)),
                Some((Form::Object, false)),
            ),
            (
                format!("{MEDIA_TYPE};q=0.5,application/json;q=0.4"),
                Some((Form::Object, true)),
                Some((Form::Object, false)),
            ),
            (format!("{MEDIA_TYPE};stream=watch"), Some((Form::Object, true)), None),
            (
                format!("{MEDIA_TYPE};{METADATA},application/json;{METADATA},application/json"),
                Some((Form::Metadata, true)),
                Some((Form::Metadata, true)),
            ),
            (
                format!("{MEDIA_TYPE};{TABLE},application/json;{TABLE}"),
                Some((Form::Table, false)),
                Some((Form::Table, false)),
            ),
            (format!("{MEDIA_TYPE};{TABLE}"), None, None),
        ] {
            for (has_protobuf, expected) in [(true, built_in), (false, custom)] {
                let found = accepted(Some(&accept), has_protobuf, Answered::List);
                let found = found.ok().map(|by| (by.form, by.media == Media::Protobuf));
                assert_eq!(found, expected, "{accept} {has_protobuf}");
            }
        }
    }

    #[test]
    fn discovery() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                       application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert!(wants_aggregated_discovery(Some(kubectl)));
        let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert!(!wants_aggregated_discovery(Some(old)));
        assert!(!wants_aggregated_discovery(Some("application/json")));
        assert!(!wants_aggregated_discovery(None));
    }
}

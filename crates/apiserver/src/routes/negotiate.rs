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
    quality: f32,
}

fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept
        .split(',')
        .map(|text| {
            let mut parts = text.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut clause = Clause { media_type, group: "", version: "", kind: "", quality: 1.0 };
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "g" => clause.group = value,
                    "v" => clause.version = value,
                    "as" => clause.kind = value,
                    "q" => clause.quality = value.parse().unwrap_or(0.0),
                    _ => {}
                }
            }
            clause
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

fn is_json(media_type: &str) -> bool {
    matches!(media_type, "application/json" | "application/*" | "*/*")
}

/// What an answer is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) form: Form,
    /// Protobuf, and not JSON.
    pub(super) is_protobuf: bool,
}

/// The first of those in `Accept` that can be produced; JSON without the header. `has_protobuf`: the
/// objects are of a built-in kind.
pub(super) fn accepted(accept: Option<&str>, has_protobuf: bool) -> Result<Accepted, StatusError> {
    let json = |form| Accepted { form, is_protobuf: false };
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Ok(json(Form::Object));
    };
    let found = clauses(accept).iter().find_map(|clause| {
        let form = match (clause.group, clause.version, clause.kind) {
            (_, _, "") => Form::Object,
            ("meta.k8s.io", "v1", "Table") => Form::Table,
            ("meta.k8s.io", "v1", "PartialObjectMetadata" | "PartialObjectMetadataList") => {
                Form::Metadata
            }
            _ => return None,
        };
        let is_protobuf = clause.media_type == MEDIA_TYPE;
        let can_be = match form {
            Form::Object => has_protobuf,
            Form::Metadata => true,
            Form::Table => false,
        };
        let is_accepted = is_json(clause.media_type) || (is_protobuf && can_be);
        is_accepted.then_some(Accepted { form, is_protobuf })
    });
    found.ok_or_else(|| match has_protobuf {
        true => StatusError::not_acceptable(&["application/json", MEDIA_TYPE]),
        false => StatusError::not_acceptable(&["application/json"]),
    })
}

/// Whether protobuf is to be preferred in an answer that can be either.
pub(super) fn prefers_protobuf(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| {
        accept.contains(MEDIA_TYPE) && accepted(Some(accept), true).is_ok_and(|by| by.is_protobuf)
    })
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
            let found = accepted(accept, false).unwrap();
            assert_eq!((found.form, found.is_protobuf), (expected, false), "{accept:?}");
        }
        for accept in [MEDIA_TYPE, "application/json;as=Table;g=meta.k8s.io;v=v9"] {
            assert_eq!(accepted(Some(accept), false).unwrap_err().code, 406);
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
                let found = accepted(Some(&accept), has_protobuf);
                let found = found.ok().map(|by| (by.form, by.is_protobuf));
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

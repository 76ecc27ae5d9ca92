//! Negotiation of the response's form.

use hyper::header::{self, HeaderMap};

use crate::status::StatusError;

/// The form of objects in an answer; all of them are JSON.
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

/// The first form in `Accept` that can be produced; JSON without the header.
pub(super) fn form(accept: Option<&str>) -> Result<Form, StatusError> {
    let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
        return Ok(Form::Object);
    };
    let clauses = clauses(accept);
    let mut forms =
        clauses.iter().filter(|clause| is_json(clause.media_type)).filter_map(|clause| {
            match (clause.group, clause.version, clause.kind) {
                (_, _, "") => Some(Form::Object),
                ("meta.k8s.io", "v1", "Table") => Some(Form::Table),
                ("meta.k8s.io", "v1", "PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    Some(Form::Metadata)
                }
                _ => None,
            }
        });
    forms.next().ok_or_else(|| StatusError::not_acceptable(&["application/json"]))
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
            assert_eq!(form(accept).unwrap(), expected, "{accept:?}");
        }
        assert_eq!(form(Some("application/vnd.kubernetes.protobuf")).unwrap_err().code, 406);
        assert_eq!(
            form(Some("application/json;as=Table;g=meta.k8s.io;v=v9")).unwrap_err().code,
            406
        );
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

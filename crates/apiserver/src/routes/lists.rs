//! `get` and `list`.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::Value;

use super::negotiate::Form;
use super::request::Query;
use super::respond::{self, Result, View};
use super::{Call, Router, limits};
use crate::api_types::{Resource, types};
use crate::audit;
use crate::object;
use crate::offload::LARGE;
use crate::registry::{ListRequest, VersionMatch, too_large};
use crate::response_body::Memory;
use crate::schema::protobuf::ListWriter;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::StatusError;
use crate::table::{self, Rows};

/// Which revisions a version means.
pub(super) const MATCH: &str = "resourceVersionMatch";

impl Router {
    pub(super) async fn get(&self, call: Call<'_>) -> Result {
        let view = call.view()?;
        let wanted = version(&call.line.query)?.unwrap_or(0);
        let object =
            self.api.registry.get(call.resource, call.namespace(), &call.path.name).await?;
        if wanted > 0 {
            self.check_not_older(wanted).await?;
        }
        Ok(view.answer(StatusCode::OK, &object))
    }

    /// Whatever is read now is newer than any revision that exists.
    pub(super) async fn check_not_older(&self, wanted: i64) -> Result<()> {
        let newest =
            self.api.registry.store().revision().await.map_err(crate::registry::refusal)?;
        if wanted > newest { Err(too_large(wanted, newest)) } else { Ok(()) }
    }

    pub(super) async fn list(&self, call: Call<'_>) -> Result {
        let mut view = call.view()?;
        // The audit has answers as JSON: such a one becomes protobuf after it.
        view.is_protobuf &= !audit::wants_response();
        let request = list_request(&call.line.query, call.resource, call.namespace())?;
        let _permit = self.limits.list_permit(&call.holder, call.resource).await;
        let mut list = ListText::new(&view, self.limits.memory(&call.holder, 0)?);
        let meta = self.api.registry.list(&request, |object| list.push(&object)).await?;
        list.finish(&meta.to_value())
    }
}

/// A list that is written as it is read: it is never held as values, and its text is counted.
pub(super) struct ListText<'a> {
    view: &'a View,
    rows: Option<Rows>,
    /// The list so far, if it is in protobuf.
    messages: Option<ListWriter>,
    text: Vec<u8>,
    is_empty: bool,
    memory: Arc<Memory>,
    counted: usize,
}

impl<'a> ListText<'a> {
    /// Text is counted in steps of this many bytes.
    const STEP: usize = LARGE;
    /// From this much on, what a text has reserved beyond its end is given back. To give back less
    /// costs more than it is worth: the next list would have to take it from the kernel again.
    const SPARE: usize = 1 << 20;

    pub(super) fn new(view: &'a View, memory: Arc<Memory>) -> ListText<'a> {
        let api_version = view.resource.gvk().api_version();
        let kind = view.resource.list_kind();
        let rows = (view.form == Form::Table)
            .then(|| Rows::new(view.resource, view.include, jiff::Timestamp::now()));
        let head = match (view.form, &rows) {
            (Form::Metadata, _) => {
                r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":["#
                    .into()
            }
            (_, Some(rows)) => format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":{},"rows":["#,
                rows.columns()
            ),
            _ => format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","items":["#),
        };
        let messages = view.is_protobuf.then(|| {
            let index = types().index_of(view.resource.gvk());
            ListWriter::new(index.filter(|_| view.form == Form::Object))
        });
        ListText {
            view,
            rows,
            messages,
            text: head.into_bytes(),
            is_empty: true,
            memory,
            counted: 0,
        }
    }

    pub(super) fn push(&mut self, object: &Value) -> Result<()> {
        if let Some(messages) = &mut self.messages {
            messages.push(object).map_err(StatusError::internal)?;
            let length = messages.len();
            return self.count(length);
        }
        if !std::mem::take(&mut self.is_empty) {
            self.text.push(b',');
        }
        let written = match (&self.rows, self.view.form) {
            (Some(rows), _) => longshore_json::append(&mut self.text, &rows.row(object)),
            (None, Form::Metadata) => {
                longshore_json::append(&mut self.text, &table::partial_metadata(object))
            }
            _ => longshore_json::append(&mut self.text, object),
        };
        written.map_err(StatusError::internal)?;
        self.count(self.text.len())
    }

    fn count(&mut self, length: usize) -> Result<()> {
        let more = length.saturating_sub(self.counted);
        if more >= Self::STEP {
            if !self.memory.grow(more) {
                return Err(limits::too_many());
            }
            self.counted = length;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, meta: &Value) -> Result {
        if let Some(messages) = self.messages.take() {
            let (api_version, kind) = match self.view.form {
                Form::Metadata => {
                    ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned())
                }
                _ => (self.view.resource.gvk().api_version(), self.view.resource.list_kind()),
            };
            let list = messages.finish(&api_version, &kind, meta).map_err(StatusError::internal)?;
            let answer = respond::protobuf(StatusCode::OK, list);
            return Ok(answer.map(|body| body.with_memory(self.memory)));
        }
        self.text.extend_from_slice(b"],\"metadata\":");
        longshore_json::append(&mut self.text, meta).map_err(StatusError::internal)?;
        self.text.push(b'}');
        if self.text.capacity().saturating_sub(self.text.len()) >= Self::SPARE {
            self.text.shrink_to_fit();
        }
        let answer = respond::json_text(StatusCode::OK, self.text);
        Ok(answer.map(|body| body.with_memory(self.memory)))
    }
}

/// `resourceVersion`, checked.
pub(super) fn version(query: &Query) -> Result<Option<i64>> {
    let Some(text) = query.get("resourceVersion") else {
        return Ok(None);
    };
    match text.parse::<i64>() {
        Ok(version) if version >= 0 => Ok(Some(version)),
        _ => Err(StatusError::bad_request(format!("invalid resource version: {text:?}"))),
    }
}

/// The selectors of a list, a watch or a deletecollection.
pub(super) fn selectors(
    query: &Query,
    resource: &Resource,
) -> Result<(LabelSelector, FieldSelector)> {
    let labels = query.get("labelSelector").map(LabelSelector::parse).transpose()?;
    let fields =
        query.get("fieldSelector").map(|text| FieldSelector::parse(resource, text)).transpose()?;
    Ok((labels.unwrap_or_default(), fields.unwrap_or_default()))
}

pub(super) fn list_request<'a>(
    query: &'a Query,
    resource: &'a Resource,
    namespace: &'a str,
) -> Result<ListRequest<'a>> {
    let (labels, fields) = selectors(query, resource)?;
    let limit = query.number::<i64>("limit")?.unwrap_or(0);
    // less than nothing is no limit
    let limit = usize::try_from(limit).unwrap_or(0);
    query.number::<i64>("timeoutSeconds")?;
    if query.has("sendInitialEvents") {
        let why = "sendInitialEvents is forbidden for list";
        return Err(forbidden("sendInitialEvents", why));
    }
    let continue_token = query.get("continue").unwrap_or_default();
    Ok(ListRequest {
        resource,
        namespace,
        labels,
        fields,
        limit,
        continue_token,
        version: version_match(query, limit, !continue_token.is_empty())?,
    })
}

fn version_match(query: &Query, limit: usize, is_continued: bool) -> Result<VersionMatch> {
    let version = version(query)?;
    let wanted = query.get(MATCH);
    if is_continued {
        return match (version.unwrap_or(0), wanted) {
            (0, None) => Ok(VersionMatch::Newest),
            (0, Some(_)) => {
                Err(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"))
            }
            _ => Err(StatusError::bad_request(
                "specifying resource version is not allowed when using continue",
            )),
        };
    }
    match (version, wanted) {
        (None, Some(_)) => Err(forbidden(
            MATCH,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        (Some(0), Some("Exact")) => Err(forbidden(
            MATCH,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (None | Some(0), _) => Ok(VersionMatch::Newest),
        (Some(version), Some("Exact")) => Ok(VersionMatch::Exact(version)),
        (Some(version), Some("NotOlderThan")) => Ok(VersionMatch::NotOlderThan(version)),
        // Without a word a limited list is exact, an unlimited one is not older: as ever.
        (Some(version), None) if limit > 0 => Ok(VersionMatch::Exact(version)),
        (Some(version), None) => Ok(VersionMatch::NotOlderThan(version)),
        (_, Some(other)) => Err(StatusError::unsupported_option(
            "ListOptions",
            MATCH,
            &format!("{other:?}"),
            &["Exact", "NotOlderThan", ""],
        )),
    }
}

/// An option of a list or a watch that may not be given.
pub(super) fn forbidden(field: &str, why: &str) -> StatusError {
    let message = format!("Forbidden: {why}");
    StatusError::invalid_option("ListOptions", field, "FieldValueForbidden", message)
}

/// `kind`, `apiVersion` and `metadata` of an object that has only a revision.
pub(super) fn bookmark(resource: &Resource, revision: i64, ends_initial_events: bool) -> Value {
    let mut bookmark = serde_json::json!({
        "kind": resource.kind,
        "apiVersion": resource.gvk().api_version(),
        "metadata": {"creationTimestamp": null},
    });
    object::set_resource_version(&mut bookmark, revision);
    if ends_initial_events {
        bookmark["metadata"]["annotations"] =
            serde_json::json!({"k8s.io/initial-events-end": "true"});
    }
    bookmark
}

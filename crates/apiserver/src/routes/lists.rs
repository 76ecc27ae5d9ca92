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
use crate::registry::{self, Items, ListRequest, ObjectText, VersionMatch, too_large};
use crate::response_body::Memory;
use crate::schema::protobuf::ListWriter;
use crate::schema::quoted;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{Cause, StatusError, unsupported};
use crate::table::{self, Rows};
use crate::text::TextBuilder;

/// Which revisions a version means.
pub(super) const MATCH: &str = "resourceVersionMatch";

impl Router {
    pub(super) async fn get(&self, call: Call<'_>) -> Result {
        let view = call.view()?;
        let wanted = exact_version(&call.line.query)?.unwrap_or(0);
        let registry = &self.api.registry;
        let (namespace, name) = (call.namespace(), &call.path.name);
        let answer = match view.form {
            Form::Object => {
                let text = registry.get_text(call.resource, namespace, name).await?;
                respond::json_text(StatusCode::OK, text)
            }
            _ => {
                let object = registry.get(call.resource, namespace, name).await?;
                view.answer(StatusCode::OK, &object)
            }
        };
        if wanted > 0 {
            self.check_not_older(wanted).await?;
        }
        Ok(answer)
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
        let meta = self.api.registry.list(&request, &mut list).await?;
        list.finish(&meta.to_value())
    }
}

/// A list that is written as it is read: it is never held as values, and its text is counted.
pub(super) struct ListText<'a> {
    view: &'a View,
    rows: Option<Rows>,
    /// The list so far, if it is in protobuf.
    messages: Option<ListWriter>,
    text: TextBuilder,
    is_empty: bool,
    memory: Arc<Memory>,
    counted: usize,
}

impl<'a> ListText<'a> {
    /// Text is counted in steps of this many bytes.
    const STEP: usize = LARGE;

    pub(super) fn new(view: &'a View, memory: Arc<Memory>) -> ListText<'a> {
        let api_version = view.resource.gvk().api_version();
        let kind = view.resource.list_kind();
        let rows = (view.form == Form::Table).then(|| {
            Rows::new(view.resource, view.include, view.api_version, jiff::Timestamp::now())
        });
        let head = match (view.form, &rows) {
            (Form::Metadata, _) => {
                let version = view.api_version;
                format!(
                    r#"{{"kind":"PartialObjectMetadataList","apiVersion":"{version}","items":["#
                )
            }
            (_, Some(rows)) => format!(
                r#"{{"kind":"Table","apiVersion":"{}","columnDefinitions":{},"rows":["#,
                view.api_version,
                rows.columns()
            ),
            _ => format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","items":["#),
        };
        let messages = view.is_protobuf.then(|| {
            let index = types().index_of(view.resource.gvk());
            ListWriter::new(index.filter(|_| view.form == Form::Object))
        });
        let mut text = TextBuilder::default();
        text.written().extend_from_slice(head.as_bytes());
        ListText { view, rows, messages, text, is_empty: true, memory, counted: 0 }
    }

    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.text.written().push(b',');
        }
    }

    pub(super) fn push(&mut self, object: &Value) -> Result<()> {
        if let Some(messages) = &mut self.messages {
            messages.push(object).map_err(StatusError::internal)?;
            let length = messages.len();
            return self.count(length);
        }
        self.separate();
        let written = match (&self.rows, self.view.form) {
            (Some(rows), _) => longshore_json::append(self.text.written(), &rows.row(object)),
            (None, Form::Metadata) => longshore_json::append(
                self.text.written(),
                &table::partial_metadata(object, self.view.api_version),
            ),
            _ => longshore_json::append(self.text.written(), object),
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
                    (self.view.api_version.to_owned(), "PartialObjectMetadataList".to_owned())
                }
                _ => (self.view.resource.gvk().api_version(), self.view.resource.list_kind()),
            };
            let list = messages.finish(&api_version, &kind, meta).map_err(StatusError::internal)?;
            let answer = respond::protobuf(StatusCode::OK, list);
            return Ok(answer.map(|body| body.with_memory(self.memory)));
        }
        self.text.written().extend_from_slice(b"],\"metadata\":");
        longshore_json::append(self.text.written(), meta).map_err(StatusError::internal)?;
        self.text.written().push(b'}');
        let answer = respond::json_text(StatusCode::OK, self.text.finish());
        Ok(answer.map(|body| body.with_memory(self.memory)))
    }
}

impl Items for &mut ListText<'_> {
    fn object(&mut self, object: Value) -> Result<()> {
        self.push(&object)
    }

    fn takes_text(&self) -> bool {
        self.messages.is_none() && self.rows.is_none() && self.view.form == Form::Object
    }

    fn text(&mut self, text: ObjectText) -> Result<()> {
        self.separate();
        text.append(&mut self.text);
        self.count(self.text.len())
    }
}

/// `resourceVersion`, or what is wrong with it.
fn version(query: &Query) -> std::result::Result<Option<i64>, String> {
    let Some(text) = query.get("resourceVersion") else {
        return Ok(None);
    };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<i64>() {
        Ok(version) if is_number => Ok(Some(version)),
        _ => {
            let why = if is_number { "value out of range" } else { "invalid syntax" };
            let quoted = quoted(text);
            Err(format!(
                "resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: {why}"
            ))
        }
    }
}

/// The same of a get or a watch, where upstream does not call it the client's fault.
pub(super) fn exact_version(query: &Query) -> Result<Option<i64>> {
    version(query).map_err(StatusError::internal_plain)
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
    check_list(query)?;
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
    let version = version(query)
        .map_err(|why| StatusError::bad_request(format!("invalid resource version: {why}")));
    if is_continued {
        // What is wrong with the token is said first, where it is read.
        return match version {
            Ok(None | Some(0)) => Ok(VersionMatch::Newest),
            _ if registry::is_continue_token(query.get("continue").unwrap_or_default()) => {
                Err(StatusError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ))
            }
            _ => Ok(VersionMatch::Newest),
        };
    }
    Ok(match (version?, query.get(MATCH)) {
        (None | Some(0), _) => VersionMatch::Newest,
        (Some(version), Some("Exact")) => VersionMatch::Exact(version),
        // Without a word a limited list is exact, an unlimited one is not older: as ever.
        (Some(version), None) if limit > 0 => VersionMatch::Exact(version),
        (Some(version), _) => VersionMatch::NotOlderThan(version),
    })
}

/// What can be wrong with the options of a list or a watch.
enum Fault {
    /// `resourceVersionMatch` may not be given.
    Match(&'static str),
    /// `resourceVersionMatch` is none of these.
    Unsupported(&'static [&'static str]),
    /// `sendInitialEvents` may not be given.
    InitialEvents,
}

impl Fault {
    fn cause(&self, wanted: &str) -> Cause {
        let forbidden = |field: &str, why: &str| Cause {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
            field: field.to_owned(),
        };
        match self {
            Fault::Match(why) => forbidden(MATCH, why),
            Fault::Unsupported(choices) => unsupported(MATCH, &quoted(wanted), choices),
            Fault::InitialEvents => {
                forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
            }
        }
    }
}

const WHEN_CONTINUED: Fault =
    Fault::Match("resourceVersionMatch is forbidden when continue is provided");

/// Refuses the options of a list or a watch with all that is wrong with them.
fn refuse(wanted: Option<&str>, faults: &[(bool, Fault)]) -> Result<()> {
    let found = faults.iter().filter(|(is_so, _)| *is_so);
    let causes: Vec<Cause> =
        found.map(|(_, fault)| fault.cause(wanted.unwrap_or_default())).collect();
    match causes.is_empty() {
        true => Ok(()),
        false => Err(StatusError::invalid_options("ListOptions", causes)),
    }
}

fn check_list(query: &Query) -> Result<()> {
    const UNLESS_VERSION: Fault =
        Fault::Match("resourceVersionMatch is forbidden unless resourceVersion is provided");
    const EXACT_ZERO: Fault =
        Fault::Match("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
    let (version, wanted) = (query.get("resourceVersion"), query.get(MATCH));
    let is_given = wanted.is_some();
    let is_known = matches!(wanted, Some("Exact" | "NotOlderThan"));
    let is_exact_zero = wanted == Some("Exact") && version == Some("0");
    refuse(
        wanted,
        &[
            (is_given && version.is_none(), UNLESS_VERSION),
            (is_given && query.get("continue").is_some(), WHEN_CONTINUED),
            (is_given && !is_known, Fault::Unsupported(&["Exact", "NotOlderThan", ""])),
            (is_exact_zero, EXACT_ZERO),
            (query.has("sendInitialEvents"), Fault::InitialEvents),
        ],
    )
}

pub(super) fn check_watch(query: &Query) -> Result<()> {
    const REQUIRES_MATCH: Fault =
        Fault::Match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    const UNLESS_INITIAL: Fault = Fault::Match(
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    );
    let (version, wanted) = (query.get("resourceVersion"), query.get(MATCH));
    let has_initial = query.has("sendInitialEvents");
    let is_known = wanted == Some("NotOlderThan");
    // A watch from the beginning is one with initial events.
    let has_match = wanted.is_some() || (!has_initial && matches!(version, None | Some("0")));
    refuse(
        wanted,
        &[
            (has_initial && !is_known, REQUIRES_MATCH),
            (wanted.is_some() && !has_initial, UNLESS_INITIAL),
            (wanted.is_some() && !is_known, Fault::Unsupported(&["NotOlderThan"])),
            (has_match && query.get("continue").is_some(), WHEN_CONTINUED),
        ],
    )
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

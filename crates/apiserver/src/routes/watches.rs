//! `watch`: what is there, then what changes, then bookmarks, until the time is up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use longshore_base::time::after;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::negotiate::Form;
use super::respond::{self, Result, View};
use super::{Call, Router, limits, lists};
use crate::object;
use crate::registry::{self, Change, ListRequest, Stored, Subscription, VersionMatch};
use crate::response_body::{Body, Memory};
use crate::status::StatusError;
use crate::table;

const BOOKMARKS: Duration = Duration::from_secs(50);
/// The timeout of a watch without one, and up to twice as long (jitter).
const DEFAULT_WATCH_TIMEOUT: Duration = Duration::from_secs(1800);

/// The memory of a watch without its objects and selectors, in bytes.
const KEPT: usize = 4 << 10;
/// How many times its length in the query a selector takes at most.
const SELECTOR_GROWTH: usize = 16;

impl Router {
    pub(super) async fn watch(&self, call: Call<'_>) -> Result {
        let view = call.view()?;
        let query = &call.line.query;
        let (labels, fields) = lists::selectors(query, call.resource)?;
        let timeout = match query.number::<u64>("timeoutSeconds")?.unwrap_or(0) {
            0 => {
                let part = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
                DEFAULT_WATCH_TIMEOUT.mul_f64(1.0 + part)
            }
            seconds => Duration::from_secs(seconds),
        };
        let version = lists::version(query)?;
        let sends_initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
        check_initial(sends_initial, query.get("resourceVersionMatch"))?;

        let namespace = call.namespace();
        let prefix = match namespace {
            "" => format!("/registry/{}/", call.resource.storage),
            namespace => format!("/registry/{}/{namespace}/", call.resource.storage),
        };
        let request = ListRequest {
            resource: call.resource,
            namespace,
            labels: labels.clone(),
            fields: fields.clone(),
            limit: 0,
            continue_token: "",
            version: version
                .filter(|version| *version > 0)
                .map_or(VersionMatch::Newest, VersionMatch::NotOlderThan),
        };
        let kept = KEPT + SELECTOR_GROWTH * call.head.uri.query().map_or(0, str::len);
        let mut watcher = Watcher {
            view,
            memory: self.limits.memory(&call.holder, kept)?,
            initial: 0,
            filter: Filter { prefix, labels, fields },
            ready: VecDeque::new(),
            has_headers: false,
            changes: None,
            bookmarks: query.flag("allowWatchBookmarks").then(|| {
                let mut ticks = interval_at(after(BOOKMARKS), BOOKMARKS);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            }),
            deadline: after(timeout),
            stop: self.stop.clone(),
        };
        // Starts after the given resourceVersion, unless initial events are requested.
        let wants_initial = sends_initial.unwrap_or(version.unwrap_or(0) == 0);
        let after = match (wants_initial, version) {
            (false, Some(version)) if version > 0 => version,
            (false, _) => {
                self.api.registry.store().revision().await.map_err(crate::registry::refusal)?
            }
            (true, _) => {
                let _permit = self.limits.large_work_permit(&call.holder).await;
                let meta = self
                    .api
                    .registry
                    .list(&request, |object| watcher.push_initial(&object))
                    .await?;
                if sends_initial == Some(true) && watcher.bookmarks.is_some() {
                    watcher.push_bookmark(meta.revision, true);
                }
                meta.revision
            }
        };
        match self.api.registry.feeds().subscribe(call.resource, after).await {
            Ok(changes) => watcher.changes = Some(changes),
            // Reported within the watch, where clients expect it.
            Err(error) if error.code == 410 => watcher.push_error(&error),
            Err(error) => return Err(error),
        }
        let memory = watcher.memory.clone();
        let frames = stream::unfold(watcher, |mut watcher| async {
            let frame = watcher.next().await?;
            Some((Ok(frame), watcher))
        });
        Ok(respond::json_stream(Body::stream(frames).with_memory(memory)))
    }
}

fn check_initial(sends_initial: Option<bool>, version_match: Option<&str>) -> Result<()> {
    let why = match (sends_initial, version_match) {
        (None, None) | (Some(_), Some("NotOlderThan")) => return Ok(()),
        (None, Some(_)) => {
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        }
        (Some(_), _) => "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    };
    Err(StatusError::bad_request(why))
}

/// Which objects a watch is about.
struct Filter {
    prefix: String,
    labels: crate::selector::LabelSelector,
    fields: crate::selector::FieldSelector,
}

impl Filter {
    fn selects(&self, view: &View, stored: &Stored) -> bool {
        if !stored.key().starts_with(&self.prefix) {
            return false;
        }
        if self.labels.is_empty() && self.fields.is_empty() {
            return true;
        }
        let matches = |object: &Value| self.labels.matches(object) && self.fields.matches(object);
        let Some(object) = stored.value() else {
            return false;
        };
        match view.converted(object) {
            Some(shown) => matches(&shown),
            None => matches(object),
        }
    }

    /// What a change is to this watch: an object that begins to match is new, one that ceases to is gone.
    fn event<'a>(&self, view: &View, change: &'a Change) -> Option<(&'static str, &'a Stored)> {
        let selected = |stored: &'a Option<Stored>| {
            stored.as_ref().filter(|stored| self.selects(view, stored))
        };
        match (selected(&change.previous), selected(&change.current)) {
            (None, None) => None,
            (None, Some(current)) => Some(("ADDED", current)),
            (Some(_), Some(current)) => Some(("MODIFIED", current)),
            (Some(previous), None) => Some(("DELETED", previous)),
        }
    }
}

/// One client's watch. Frames are made only as fast as the client takes them.
struct Watcher {
    view: View,
    filter: Filter,
    /// Frames for the client, counted until it reads them.
    memory: Arc<Memory>,
    ready: VecDeque<Bytes>,
    /// How many frames of `ready` are of the objects that were there at the start.
    initial: usize,
    /// Whether the column definitions of tables have been sent.
    has_headers: bool,
    /// `None` once nothing can follow any more.
    changes: Option<Subscription>,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stop: CancellationToken,
}

impl Watcher {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                if self.initial > 0 {
                    self.initial -= 1;
                    self.memory.shrink(frame.len());
                }
                return Some(frame);
            }
            let changes = self.changes.as_mut()?;
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                () = sleep_until(self.deadline) => return None,
                change = changes.next() => match change {
                    Ok(Some(change)) => self.push_change(&change),
                    Ok(None) => return None,
                    Err(error) => {
                        self.changes = None;
                        self.push_error(&error);
                    }
                },
                () = tick(&mut self.bookmarks) => {
                    let revision = changes.progress();
                    self.push_bookmark(revision, false);
                }
            }
        }
    }

    /// An object that was there at the start; all of them are kept at once.
    fn push_initial(&mut self, object: &Value) -> Result<()> {
        self.push("ADDED", object);
        self.initial = self.ready.len();
        let length = self.ready.back().map_or(0, Bytes::len);
        if self.memory.grow(length) { Ok(()) } else { Err(limits::too_many()) }
    }

    fn push_change(&mut self, change: &Change) {
        let Some((kind, stored)) = self.filter.event(&self.view, change) else {
            return;
        };
        let Some(object) = stored.value() else {
            // Its changes are nothing that a client could read, but its end is.
            if kind == "DELETED" {
                let (namespace, name) = stored.names(self.view.resource);
                let mut stub = registry::stub(self.view.resource, namespace, name);
                object::set_resource_version(&mut stub, change.revision);
                self.push(kind, &stub);
            }
            return;
        };
        match (self.view.converted(object), self.view.form) {
            (Some(shown), _) => self.push(kind, &shown),
            (None, Form::Object) => {
                // The same text for all watchers.
                if let Some(text) = stored.json() {
                    self.push_shared(kind, text);
                }
            }
            (None, _) => self.push(kind, object),
        }
    }

    fn push(&mut self, kind: &str, object: &Value) {
        let shown = match self.view.form {
            Form::Object => object.to_string(),
            Form::Metadata => table::partial_metadata(object).to_string(),
            Form::Table => {
                let headers = !std::mem::replace(&mut self.has_headers, true);
                self.view.render(object, headers).to_string()
            }
        };
        self.push_raw(kind, shown.as_bytes());
    }

    fn push_bookmark(&mut self, revision: i64, ends_initial_events: bool) {
        let bookmark = lists::bookmark(self.view.resource, revision, ends_initial_events);
        let shown = match self.view.form {
            Form::Object => bookmark,
            Form::Metadata => table::partial_metadata(&bookmark),
            Form::Table => {
                let headers = !std::mem::replace(&mut self.has_headers, true);
                self.view.table([], bookmark["metadata"].clone(), headers)
            }
        };
        self.push_raw("BOOKMARK", shown.to_string().as_bytes());
    }

    fn push_error(&mut self, error: &StatusError) {
        self.push_raw("ERROR", error.to_value().to_string().as_bytes());
    }

    /// A large object is not copied: clients that read slowly wait with one text in common.
    fn push_shared(&mut self, kind: &'static str, object: Bytes) {
        const WORTH_SHARING: usize = 4 << 10;
        if object.len() < WORTH_SHARING {
            return self.push_raw(kind, &object);
        }
        let head = format!("{{\"type\":\"{kind}\",\"object\":");
        self.ready.extend([head.into(), object, Bytes::from_static(b"}\n")]);
    }

    fn push_raw(&mut self, kind: &str, object: &[u8]) {
        let mut frame = BytesMut::with_capacity(object.len() + 40);
        frame.put_slice(b"{\"type\":\"");
        frame.put_slice(kind.as_bytes());
        frame.put_slice(b"\",\"object\":");
        frame.put_slice(object);
        frame.put_slice(b"}\n");
        self.ready.push_back(frame.freeze());
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

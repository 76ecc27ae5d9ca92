//! `watch`: what is there, then what changes, then bookmarks, until the time is up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::try_join_all;
use futures::{FutureExt, stream};
use longshore_base::budget::Holder;
use longshore_base::fair_queue::FairQueue;
use longshore_base::time::after;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;

use super::negotiate::Form;
use super::respond::{self, Result, View};
use super::{Call, Router, limits, lists};
use crate::object;
use crate::offload::{self, LARGE};
use crate::registry::{self, Change, ListRequest, Registry, Stored, Subscription, VersionMatch};
use crate::response_body::{Body, Memory};
use crate::schema::protobuf;
use crate::status::StatusError;
use crate::table;

const BOOKMARKS: Duration = Duration::from_secs(50);
/// The timeout of a watch without one, and up to twice as long (jitter).
const DEFAULT_WATCH_TIMEOUT: Duration = Duration::from_secs(1800);

/// The memory of a watch without its objects and selectors, in bytes.
const KEPT: usize = 4 << 10;
/// A frame that is shorter is part of [`KEPT`].
const COUNTED_FROM: usize = 16 << 10;
/// How many changes of one watch are converted at a time, where a webhook does that.
const MAX_CONVERSIONS: usize = 16;
/// How many times its length in the query a selector takes at most.
const SELECTOR_GROWTH: usize = 16;

impl Router {
    pub(super) async fn watch(&self, call: Call<'_>) -> Result {
        let view = call.view()?;
        let query = &call.line.query;
        let (labels, fields) = lists::selectors(query, call.resource)?;
        let seconds = query.number::<i64>("timeoutSeconds")?.unwrap_or(0);
        let timeout = match u64::try_from(seconds).unwrap_or(0) {
            0 => {
                let part = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
                DEFAULT_WATCH_TIMEOUT.mul_f64(1.0 + part)
            }
            seconds => Duration::from_secs(seconds),
        };
        query.number::<i64>("limit")?;
        lists::check_watch(query)?;
        let version = lists::exact_version(query)?;
        let has_initial = query.has("sendInitialEvents");
        let sends_initial = has_initial.then(|| query.flag("sendInitialEvents"));

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
            registry: self.api.registry.clone(),
            view,
            memory: self.limits.memory(&call.holder, kept)?,
            taken: 0,
            turn: (self.limits.large_work_queue(&call.holder), call.holder.clone()),
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
                let _permit = self.limits.list_permit(&call.holder, call.resource).await;
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
        Ok(respond::watch_stream(Body::stream(frames).with_memory(memory), view.is_protobuf))
    }
}

/// Which objects a watch is about.
struct Filter {
    prefix: String,
    labels: crate::selector::LabelSelector,
    fields: crate::selector::FieldSelector,
}

impl Filter {
    fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// What has to be looked at of a change: both objects where a selector decides, and one otherwise.
    fn relevant<'a>(&'a self, change: &'a Change) -> impl Iterator<Item = &'a Stored> {
        let previous = change.previous.as_ref();
        let previous = previous.filter(|_| change.current.is_none() || !self.selects_all());
        let both = [previous, change.current.as_ref()].into_iter().flatten();
        both.filter(|stored| stored.key().starts_with(&self.prefix))
    }

    fn selects(&self, view: &View, stored: &Stored) -> bool {
        if !stored.key().starts_with(&self.prefix) {
            return false;
        }
        if self.selects_all() {
            return true;
        }
        let matches = |object: &Value| self.labels.matches(object) && self.fields.matches(object);
        let Some(object) = stored.value() else {
            return false;
        };
        match view.converted(stored) {
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

/// A frame that waits for the client.
struct Ready {
    text: Bytes,
    /// How many bytes are counted for it until the client asks for the next one.
    counted: usize,
}

/// One client's watch. Frames are made only as fast as the client takes them.
struct Watcher {
    registry: Arc<Registry>,
    view: View,
    filter: Filter,
    /// Frames for the client, counted until it reads them.
    memory: Arc<Memory>,
    ready: VecDeque<Ready>,
    /// What is counted for the frame that the client is given.
    taken: usize,
    /// The slots for changes that only this watch reads, and whose they are.
    turn: (Arc<FairQueue>, Holder),
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
            self.memory.shrink(std::mem::take(&mut self.taken));
            if let Some(Ready { text, counted }) = self.ready.pop_front() {
                self.taken = counted;
                return Some(text);
            }
            let changes = self.changes.as_mut()?;
            let is_catching_up = changes.is_catching_up();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                () = sleep_until(self.deadline) => return None,
                change = changes.next() => {
                    let mut batch = Batch::of(change);
                    if self.view.resource.has_webhook() {
                        batch.fill(changes);
                    }
                    if !self.push_batch(batch, is_catching_up).await {
                        return None;
                    }
                }
                () = tick(&mut self.bookmarks) => {
                    let revision = changes.progress();
                    self.push_bookmark(revision, false);
                }
            }
        }
    }

    /// Pushes changes, in their order, and what comes after them. `false`: the watch ends at once.
    async fn push_batch(&mut self, batch: Batch, is_catching_up: bool) -> bool {
        let Batch { changes, end } = batch;
        let converted = tokio::select! {
            biased;
            () = self.stop.cancelled() => return false,
            () = sleep_until(self.deadline) => return false,
            converted = convert(&self.registry, &self.view, &self.filter, &changes) => converted,
        };
        if let Err(error) = converted {
            self.changes = None;
            self.push_error(&error);
            return true;
        }
        for change in changes {
            // Thousands of watches may catch up at a time.
            let turn = is_catching_up.then(|| self.turn.clone());
            let _permit = match &turn {
                Some((queue, holder)) => Some(queue.take(holder).await),
                None => None,
            };
            let before = self.ready.len();
            offload::run(change.size(), || self.push_change(&change));
            if !self.count(before) {
                return false;
            }
        }
        match end {
            Some(End::Slow) => self.changes = None,
            Some(End::Failed(error)) => {
                self.changes = None;
                self.push_error(&error);
            }
            None => {}
        }
        true
    }

    /// An object that was there at the start; all of them are kept at once.
    fn push_initial(&mut self, object: &Value) -> Result<()> {
        self.push("ADDED", object);
        let Some(frame) = self.ready.back_mut() else { return Ok(()) };
        frame.counted = frame.text.len();
        if self.memory.grow(frame.counted) { Ok(()) } else { Err(limits::too_many()) }
    }

    /// Counts the frames of a change, those after the first `before`: a client that reads slowly keeps them.
    /// `false` when there is too little memory left, which ends the watch; the client resumes it.
    fn count(&mut self, before: usize) -> bool {
        let new = self.ready.iter().skip(before);
        let counted = new.fold(0, |sum: usize, frame| sum.saturating_add(frame.counted));
        counted == 0 || self.memory.grow(counted)
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
        match (self.view.converted(stored), self.view.form) {
            (Some(shown), _) => self.push(kind, &shown),
            (None, Form::Object) if self.view.is_protobuf => {
                // The same for all watchers.
                if let Some(object) = stored.protobuf() {
                    self.push_raw(kind, &object);
                }
            }
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
        match self.view.form {
            Form::Object => self.push_shown(kind, object),
            Form::Metadata => {
                self.push_shown(kind, &table::partial_metadata(object, self.view.api_version))
            }
            Form::Table => {
                let headers = !std::mem::replace(&mut self.has_headers, true);
                self.push_shown(kind, &self.view.render(object, headers));
            }
        }
    }

    /// Pushes what is in the form that the client wants already.
    fn push_shown(&mut self, kind: &str, shown: &Value) {
        match self.view.is_protobuf {
            true => match protobuf::encode_any(shown) {
                Some(object) => self.push_raw(kind, &object),
                // it was read from the store, and so it can be written
                None => tracing::error!(kind, "an object cannot be sent as protobuf"),
            },
            false => self.push_raw(kind, shown.to_string().as_bytes()),
        }
    }

    fn push_bookmark(&mut self, revision: i64, ends_initial_events: bool) {
        let bookmark = lists::bookmark(self.view.resource, revision, ends_initial_events);
        let shown = match self.view.form {
            Form::Object => bookmark,
            Form::Metadata => table::partial_metadata(&bookmark, self.view.api_version),
            Form::Table => {
                let headers = !std::mem::replace(&mut self.has_headers, true);
                self.view.table([], bookmark["metadata"].clone(), headers)
            }
        };
        self.push_shown("BOOKMARK", &shown);
    }

    fn push_error(&mut self, error: &StatusError) {
        self.push_shown("ERROR", &error.to_value());
    }

    /// A large object is not copied: clients that read slowly wait with one text in common.
    fn push_shared(&mut self, kind: &'static str, object: Bytes) {
        const WORTH_SHARING: usize = 4 << 10;
        if object.len() < WORTH_SHARING {
            return self.push_raw(kind, &object);
        }
        let head = format!("{{\"type\":\"{kind}\",\"object\":");
        // However many share it, each is counted with enough to be closed when it reads nothing.
        let counted = if object.len() < COUNTED_FROM { 0 } else { object.len().min(LARGE) };
        let frames = [(head.into(), 0), (object, counted), (Bytes::from_static(b"}\n"), 0)];
        self.ready.extend(frames.map(|(text, counted)| Ready { text, counted }));
    }

    fn push_raw(&mut self, kind: &str, object: &[u8]) {
        if self.view.is_protobuf {
            return self.push_frame(protobuf::watch_frame(kind, object).into());
        }
        let mut frame = BytesMut::with_capacity(object.len() + 40);
        frame.put_slice(b"{\"type\":\"");
        frame.put_slice(kind.as_bytes());
        frame.put_slice(b"\",\"object\":");
        frame.put_slice(object);
        frame.put_slice(b"}\n");
        self.push_frame(frame.freeze());
    }

    fn push_frame(&mut self, text: Bytes) {
        let counted = if text.len() < COUNTED_FROM { 0 } else { text.len() };
        self.ready.push_back(Ready { text, counted });
    }
}

/// Has a webhook convert what a watch shows of changes, where the kind has one. Each object is converted once
/// for all watches.
async fn convert(
    registry: &Registry,
    view: &View,
    filter: &Filter,
    changes: &[Arc<Change>],
) -> Result<()> {
    if !view.resource.has_webhook() {
        return Ok(());
    }
    let relevant = changes.iter().flat_map(|change| filter.relevant(change));
    let conversions = relevant.map(|stored| registry.convert_stored(view.resource, stored));
    try_join_all(conversions).await.map(drop)
}

/// Changes that have come, and why none will follow.
struct Batch {
    changes: Vec<Arc<Change>>,
    end: Option<End>,
}

enum End {
    /// The watcher was too slow, or the feed broke.
    Slow,
    Failed(StatusError),
}

impl Batch {
    fn of(change: Result<Option<Arc<Change>>>) -> Batch {
        let mut batch = Batch { changes: Vec::new(), end: None };
        batch.push(change);
        batch
    }

    fn push(&mut self, change: Result<Option<Arc<Change>>>) {
        match change {
            Ok(Some(change)) => self.changes.push(change),
            Ok(None) => self.end = Some(End::Slow),
            Err(error) => self.end = Some(End::Failed(error)),
        }
    }

    /// Adds changes that have come already.
    fn fill(&mut self, from: &mut Subscription) {
        while self.end.is_none() && self.changes.len() < MAX_CONVERSIONS {
            match from.next().now_or_never() {
                Some(change) => self.push(change),
                None => return,
            }
        }
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use longshore_base::budget::{Budget, Priority};
    use longshore_store::{EmbeddedStore, Event, KeyValue};
    use serde_json::json;

    use super::*;
    use crate::kinds::core;
    use crate::table::IncludeObject;

    async fn registry() -> (tempfile::TempDir, Arc<Registry>) {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path().join("store")).await.unwrap();
        (directory, Arc::new(Registry::new(Arc::new(store))))
    }

    fn watcher(registry: &Arc<Registry>, form: Form, memory: u64) -> (Watcher, Arc<Budget>) {
        let budget = Budget::new(memory, 0);
        let share = budget.take(&Holder::new("a", Priority::Ordinary), 0).unwrap();
        let resource = core("configmaps").unwrap();
        let watcher = Watcher {
            registry: registry.clone(),
            view: View {
                resource,
                form,
                is_protobuf: false,
                api_version: "meta.k8s.io/v1",
                include: IncludeObject::Metadata,
            },
            filter: Filter {
                prefix: "/registry/configmaps/".into(),
                labels: Default::default(),
                fields: Default::default(),
            },
            memory: Memory::new(share),
            ready: VecDeque::new(),
            taken: 0,
            turn: (FairQueue::new(1), Holder::new("a", Priority::Ordinary)),
            has_headers: false,
            changes: None,
            bookmarks: None,
            deadline: after(Duration::from_secs(60)),
            stop: CancellationToken::new(),
        };
        (watcher, budget)
    }

    fn change(bytes: usize) -> Change {
        let filler = "x".repeat(bytes);
        let map = json!({
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": "m", "namespace": "d", "annotations": {"filler": filler}},
        });
        let current = KeyValue {
            key: "/registry/configmaps/d/m".into(),
            value: map.to_string().into(),
            create_revision: 1,
            mod_revision: 2,
            is_stale: false,
        };
        Change::from(Event::Put { current, previous: None })
    }

    /// Each of thousands of watches from an old version decodes what it reads.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn watch_that_catches_up_waits_for_its_turn() {
        let (_directory, registry) = registry().await;
        let old = registry.store().revision().await.unwrap();
        let maps = core("configmaps").unwrap();
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "m", "namespace": "d"}});
        registry.create(maps, map, None).await.unwrap();
        let (mut watcher, _budget) = watcher(&registry, Form::Object, 8 << 20);
        let changes = registry.feeds().subscribe(maps, old).await.unwrap();
        assert!(changes.is_catching_up());
        watcher.changes = Some(changes);
        let (queue, holder) = watcher.turn.clone();
        let turn = queue.take(&holder).await;
        let mut next = pin!(watcher.next());
        for _ in 0..50 {
            assert!(poll!(next.as_mut()).is_pending());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(turn);
        assert!(next.await.is_some());
    }

    /// A client may read a byte of each of thousands of watches, and no more.
    #[tokio::test]
    async fn watch_counts_large_frames_until_the_next_is_read() {
        const LENGTH: usize = 300 << 10;
        let (_directory, registry) = registry().await;
        for (form, counted) in
            [(Form::Metadata, LENGTH), (Form::Table, LENGTH), (Form::Object, LARGE)]
        {
            let (mut watcher, budget) = watcher(&registry, form, 8 << 20);
            let holder = Holder::new("b", Priority::Ordinary);
            let free = |bytes: usize| budget.take(&holder, bytes as u64).is_some();
            watcher.push_change(&change(LENGTH));
            assert!(watcher.count(0));
            while !watcher.ready.is_empty() {
                assert!(watcher.next().await.is_some());
                if watcher.taken > 0 {
                    assert!(watcher.taken >= counted, "{form:?}");
                    assert!(!free((8 << 20) - counted / 2), "{form:?}: it is not counted");
                }
            }
            assert!(watcher.next().await.is_none());
            assert_eq!(watcher.taken, 0);
            let (mut small, _) = super::tests::watcher(&registry, form, 100);
            small.push_change(&change(100));
            assert!(small.count(0), "{form:?}: small frames are not counted");
            small.push_change(&change(LENGTH));
            assert!(!small.count(0), "{form:?}: more than there is");
        }
    }
}

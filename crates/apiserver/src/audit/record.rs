//! What is known of one request for its audit events. The request's task has it as a task-local, so that
//! whatever takes part in the answer can add to it; without an audit there is none.
//!
//! A record ends with its last holder, and with it comes the last event: the handler drops it with an
//! answer that is complete, a body or an upgraded connection later.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::Handle;

use super::event::{Event, Level, ObjectReference, Outcome, Stage};
use super::policy::Decision;
use super::{Audit, managed_fields};
use crate::authz::{ResourceTarget, Target};
use crate::status::StatusError;
use crate::user::User;
use crate::{object, offload};

tokio::task_local! {
    static CURRENT: Option<Arc<Record>>;
}

/// Runs the work on a request whose audit this is.
pub(crate) fn scope<T>(
    record: Option<Arc<Record>>,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    CURRENT.scope(record, work)
}

/// The record of the request that is being worked on.
pub(crate) fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

fn with_current(change: impl FnOnce(&mut State)) {
    let _ = CURRENT.try_with(|record| {
        if let Some(record) = record {
            change(&mut record.state.lock());
        }
    });
}

/// Whether the text of the response is recorded.
pub(crate) fn wants_response() -> bool {
    current().is_some_and(|record| record.state.lock().is_at_least(Level::RequestResponse))
}

/// Adds an annotation to the events that follow. The first value of a key stays.
pub(crate) fn annotate(key: impl Into<String>, value: impl Into<String>) {
    with_current(|state| {
        if state.is_wanted() {
            state.event.annotations.entry(key.into()).or_insert_with(|| value.into());
        }
    });
}

/// Whether bodies of requests are recorded of what is being worked on.
pub(crate) fn records_bodies() -> bool {
    let mut records = false;
    with_current(|state| records = state.is_at_least(Level::Request));
    records
}

/// The caller acts as another user.
pub(crate) fn impersonated(user: &User) {
    with_current(|state| state.event.impersonated = Some(user.clone()));
}

/// Work on the request has panicked.
pub(crate) fn panicked(panic: &dyn std::fmt::Display) {
    let message = format!("APIServer panic'd: {panic}");
    with_current(|state| state.panic = Some(message));
}

/// The object in the request's body, as it was decoded.
pub(crate) fn request_object(object: &Value) {
    with_current(|state| state.note_request(object));
}

/// The patch in the request's body.
pub(crate) fn request_patch(patch: &[u8]) {
    with_current(|state| {
        if state.is_at_least(Level::Request) {
            state.event.request = one_line(patch);
        }
    });
}

/// JSON on one line, if it is any.
fn one_line(text: &[u8]) -> Option<Bytes> {
    let value: Value = longshore_json::read(text).ok()?;
    longshore_json::write(&value).ok().map(Bytes::from)
}

/// The audit of one request.
pub(crate) struct Record {
    audit: Arc<Audit>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    event: Event,
    /// `None` before the policy is evaluated.
    decision: Option<Decision>,
    phase: Phase,
    is_long_running: bool,
    panic: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// There is no event to end with.
    #[default]
    New,
    /// The last event is to come.
    Begun,
    /// The response has begun.
    Started,
    /// The caller is not known: there is one event alone, that of the response.
    Refused,
    /// The last event was made.
    Ended,
}

/// A request as it came.
pub(crate) struct Received<'a> {
    /// `None`: not authenticated.
    pub(crate) user: Option<&'a User>,
    /// Such as `list`.
    pub(crate) verb: &'static str,
    /// On what.
    pub(crate) target: Target<'a>,
    /// Of the resource.
    pub(crate) version: &'a str,
    /// Whether it lasts as long as its client likes.
    pub(crate) is_long_running: bool,
}

/// The policy is evaluated for a request that was authenticated, and its first event made.
///
/// # Errors
/// The event could not be stored, and must be.
pub(crate) async fn begin(request: Received<'_>) -> Result<(), StatusError> {
    let Some(record) = current() else { return Ok(()) };
    record.note(&request, Phase::Begun);
    if record.emit(Stage::RequestReceived).await {
        return Ok(());
    }
    record.state.lock().phase = Phase::Ended;
    record.audit.metrics.rejected();
    Err(StatusError::internal("failed to store audit event"))
}

/// The same for a request that is refused since its caller could not be authenticated.
pub(crate) fn refuse(request: &Received<'_>, attempted: &str) {
    let Some(record) = current() else { return };
    record.note(request, Phase::Refused);
    let outcome = Outcome { message: attempted.to_owned(), ..Outcome::default() };
    record.state.lock().event.outcome = Some(outcome);
}

impl Record {
    pub(super) fn new(audit: Arc<Audit>, event: Event) -> Arc<Record> {
        Arc::new(Record { audit, state: Mutex::new(State { event, ..State::default() }) })
    }

    fn note(&self, request: &Received<'_>, phase: Phase) {
        let Received { user, verb, target, version, is_long_running } = request;
        let decision = self.audit.evaluate(*user, verb, target);
        let mut state = self.state.lock();
        state.decision = Some(decision);
        let event = &mut state.event;
        event.level = decision.level;
        event.verb = verb;
        event.user = user.cloned().unwrap_or_default();
        event.object = match target {
            Target::Resource(target) => Some(reference(target, version)),
            Target::Path(_) => None,
        };
        state.is_long_running = *is_long_running;
        state.phase = if decision.level == Level::None { Phase::Ended } else { phase };
    }

    /// The response is there: its code, the `Status` that it is, and its text if that is an object as JSON.
    /// Returns the record if the response goes on, and is to hold it.
    pub(crate) async fn respond(
        self: &Arc<Self>,
        code: u16,
        status: Option<&Value>,
        text: Option<&Bytes>,
    ) -> Option<Arc<Record>> {
        let phase = {
            let mut state = self.state.lock();
            state.note_response(code, status, text);
            match state.phase {
                // its response is one for the events, as upstream has it
                Phase::Begun if state.is_long_running && state.panic.is_none() => {
                    state.phase = Phase::Started;
                    Phase::Started
                }
                Phase::Refused => {
                    state.phase = Phase::Ended;
                    Phase::Started
                }
                phase => phase,
            }
        };
        match phase {
            Phase::Started => {
                self.emit(Stage::ResponseStarted).await;
                Some(self.clone())
            }
            Phase::Begun => {
                let events = self.state.lock().finish();
                self.audit.clone().deliver(events).await;
                None
            }
            Phase::New | Phase::Refused | Phase::Ended => None,
        }
    }

    /// Makes the event of a stage, unless the policy omits it. `false`: it could not be stored, and must be.
    async fn emit(&self, stage: Stage) -> bool {
        let event = self.state.lock().event(stage);
        self.audit.clone().deliver(event.into_iter().collect()).await
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let events = self.state.get_mut().finish();
        if events.is_empty() {
            return;
        }
        // without a runtime the process is ending
        if let Ok(runtime) = Handle::try_current() {
            let audit = self.audit.clone();
            runtime.spawn(async move { audit.deliver(events).await });
        }
    }
}

impl State {
    /// Whether anything is recorded, as far as it is known.
    fn is_wanted(&self) -> bool {
        self.decision.is_none_or(|decision| decision.level > Level::None)
    }

    fn is_at_least(&self, level: Level) -> bool {
        self.decision.is_some_and(|decision| decision.level >= level)
    }

    fn omits_managed_fields(&self) -> bool {
        self.decision.is_some_and(|decision| decision.omit_managed_fields)
    }

    fn event(&mut self, stage: Stage) -> Option<Event> {
        let decision = self.decision?;
        if decision.level == Level::None || decision.omitted.contains(stage) {
            return None;
        }
        self.event.stage = stage;
        self.event.reached = match stage {
            Stage::RequestReceived => self.event.received,
            _ => Timestamp::now(),
        };
        Some(self.event.clone())
    }

    /// The last events, once.
    fn finish(&mut self) -> Vec<Event> {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        if !matches!(phase, Phase::Begun | Phase::Started) {
            return Vec::new();
        }
        if let Some(message) = self.panic.take() {
            self.event.outcome = Some(Outcome {
                status: "Failure".to_owned(),
                reason: "InternalError".to_owned(),
                message,
                code: 500,
                ..Outcome::default()
            });
            return self.event(Stage::Panic).into_iter().collect();
        }
        let mut events = Vec::new();
        if self.event.outcome.is_none() {
            self.event.outcome = Some(Outcome {
                status: "Success".to_owned(),
                message: "Connection closed early".to_owned(),
                code: 200,
                ..Outcome::default()
            });
            if self.is_long_running {
                events.extend(self.event(Stage::ResponseStarted));
            }
        }
        events.extend(self.event(Stage::ResponseComplete));
        events
    }

    fn note_request(&mut self, object: &Value) {
        if !self.is_at_least(Level::Metadata) {
            return;
        }
        let reference = self.event.object.get_or_insert_default();
        for (field, found) in [
            (&mut reference.namespace, object::namespace(object)),
            (&mut reference.name, object::name(object)),
            (&mut reference.uid, object::uid(object)),
            (&mut reference.resource_version, object::resource_version(object)),
        ] {
            if field.is_empty() {
                found.clone_into(field);
            }
        }
        if self.is_at_least(Level::Request) {
            let text = match self.omits_managed_fields() {
                true => longshore_json::write(&managed_fields::removed(object.clone())),
                false => longshore_json::write(object),
            };
            self.event.request = text.ok().map(Bytes::from);
        }
    }

    fn note_response(&mut self, code: u16, status: Option<&Value>, text: Option<&Bytes>) {
        if !self.is_at_least(Level::Metadata) {
            return;
        }
        if let Some(status) = status {
            self.event.outcome = Some(Outcome::of(status));
        }
        self.event.outcome.get_or_insert_default().code = code;
        let Some(text) = text else { return };
        if !self.is_at_least(Level::RequestResponse) || self.event.object.is_none() {
            return;
        }
        let without = || offload::run(text.len(), || managed_fields::without(text));
        let without = self.omits_managed_fields().then(without).flatten();
        self.event.response = Some(without.unwrap_or_else(|| text.clone()));
    }
}

fn reference(target: &ResourceTarget<'_>, version: &str) -> ObjectReference {
    ObjectReference {
        resource: target.resource.to_owned(),
        namespace: target.namespace.to_owned(),
        name: target.name.to_owned(),
        api_group: target.group.to_owned(),
        api_version: version.to_owned(),
        subresource: target.subresource.to_owned(),
        ..ObjectReference::default()
    }
}

//! The event recorder: writes Event objects about pods and the node.
//!
//! [`Recorder`] is a cheap handle that never waits. One task behind it folds repetitions together
//! ([`correlator`]) and writes to the apiserver, or to the log alone when there is none.

mod correlator;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error as KubeError};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::correlator::{Correlator, Written};
pub use self::pod::PodEventRecorder;
use crate::Item;

/// Events waiting to be written; more are dropped.
const QUEUE: usize = 1000;
/// How often writing one event is tried.
const MAX_ATTEMPTS: u32 = 12;
/// The longest pause between tries.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The name that the node goes by in its events.
const KUBELET: &str = "kubelet";
/// The longest message kept, which bounds what the queue can hold.
const MAX_MESSAGE: usize = 4096;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// Normal operation.
    Normal,
    /// A problem.
    Warning,
}

impl EventType {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Records events. Cheap to clone; never waits, never fails.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<PendingEvent>,
}

/// An event that is waiting to be written.
#[derive(Debug, Clone)]
struct PendingEvent {
    about: ObjectReference,
    kind: EventType,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
    at: Timestamp,
}

impl Recorder {
    /// Starts the task that writes events of the node `host`; it ends when the last handle is
    /// dropped or `finish` is called, after the queued events are written. Without a client, events
    /// are only logged.
    pub fn start(client: Option<Client>, host: &str) -> (Self, RecorderTask) {
        Self::start_as(KUBELET, client, host)
    }

    /// The same for events of another component than the kubelet.
    pub fn start_as(
        component: &'static str,
        client: Option<Client>,
        host: &str,
    ) -> (Self, RecorderTask) {
        let (queue, pending) = mpsc::channel(QUEUE);
        let (host, correlator) = (host.to_owned(), Correlator::default());
        let writer = Writer { component, client, host, correlator };
        let stop = CancellationToken::new();
        let task = tokio::spawn(writer.run(pending, stop.clone()));
        (Self { queue }, RecorderTask { task, stop })
    }

    /// Records an event about an object.
    pub fn event(&self, about: ObjectReference, kind: EventType, reason: &str, message: &str) {
        self.annotated_event(about, kind, reason, message, BTreeMap::new());
    }

    /// Records an event about an object, with annotations.
    pub fn annotated_event(
        &self,
        about: ObjectReference,
        kind: EventType,
        reason: &str,
        message: &str,
        annotations: BTreeMap<String, String>,
    ) {
        let mut message = message.to_owned();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        let (reason, at) = (reason.to_owned(), Timestamp::now());
        let pending = PendingEvent { about, kind, reason, message, annotations, at };
        if let Err(error) = self.queue.try_send(pending) {
            debug!("event dropped: {error}");
        }
    }
}

/// The reference to this node that events about it carry.
///
/// Its UID is the name, as the node object may not exist yet; consumers rely on that.
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// The task that writes events. It goes on when this is dropped.
#[derive(Debug)]
pub struct RecorderTask {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl RecorderTask {
    /// Waits until all queued events are written; later ones are dropped. The error is a panic of
    /// the task.
    pub async fn finish(self) -> Result<(), JoinError> {
        self.stop.cancel();
        self.task.await
    }
}

/// The task behind the handles.
struct Writer {
    component: &'static str,
    client: Option<Client>,
    host: String,
    correlator: Correlator,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<PendingEvent>, stop: CancellationToken) {
        loop {
            let pending = tokio::select! {
                pending = queue.recv() => pending,
                () = stop.cancelled(), if !queue.is_closed() => {
                    queue.close();
                    continue;
                }
            };
            let Some(pending) = pending else { return };
            let about = &pending.about;
            let name = about.name.as_deref().unwrap_or_default();
            let namespace = about.namespace.as_deref().unwrap_or_default();
            let (kind, object) = (pending.kind.as_str(), about.kind.as_deref().unwrap_or_default());
            info!(kind, object, namespace, name, reason = pending.reason, "{}", pending.message);
            if self.client.is_some()
                && let Some((key, event)) =
                    self.correlator.fold(self.event(pending), Instant::now())
            {
                self.write(key, event).await;
            }
        }
    }

    fn event(&self, pending: PendingEvent) -> Event {
        let PendingEvent { about, kind, reason, message, annotations, at } = pending;
        let namespace = about.namespace.clone().filter(|namespace| !namespace.is_empty());
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(about.name.as_deref().unwrap_or_default(), at)),
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
                ..ObjectMeta::default()
            },
            involved_object: about,
            reason: Some(reason),
            message: Some(message),
            type_: Some(kind.as_str().to_owned()),
            source: Some(EventSource {
                component: Some(self.component.to_owned()),
                host: Some(self.host.clone()),
            }),
            reporting_component: Some(self.component.to_owned()),
            reporting_instance: Some(self.host.clone()),
            first_timestamp: Some(Time(at)),
            last_timestamp: Some(Time(at)),
            count: Some(1),
            ..Event::default()
        }
    }

    /// Writes one event; a server that is away is waited for, up to a point.
    async fn write(&mut self, key: u64, event: Event) {
        let Some(client) = self.client.clone() else { return };
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let api: Api<Item<Event>> = Api::namespaced(client, namespace);
        for attempt in 1..=MAX_ATTEMPTS {
            match write_once(&api, &event).await {
                Ok(name) => {
                    let count = event.count.unwrap_or(1);
                    self.correlator.written(key, Written { name, count });
                    return;
                }
                Err(KubeError::Api(status)) if status.code < 500 && status.code != 429 => {
                    debug!(reason = event.reason, "event rejected: {status}");
                    return;
                }
                Err(error) => debug!(attempt, "cannot write event: {error}"),
            }
            if attempt < MAX_ATTEMPTS {
                tokio::time::sleep(MAX_BACKOFF.min(Duration::from_millis(100 << attempt))).await;
            }
        }
        warn!(reason = event.reason, "event dropped after {MAX_ATTEMPTS} attempts");
    }
}

/// Increments the count of the event if it is a repetition, or creates it. Returns its name.
async fn write_once(api: &Api<Item<Event>>, event: &Event) -> Result<String, KubeError> {
    let name = event.metadata.name.clone().unwrap_or_default();
    if event.count > Some(1) {
        let change = serde_json::json!({
            "count": event.count,
            "lastTimestamp": event.last_timestamp,
            "message": event.message,
        });
        match api.patch(&name, &PatchParams::default(), &Patch::Strategic(change)).await {
            Ok(_) => return Ok(name),
            // it expired on the server: it is created again
            Err(KubeError::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    api.create(&PostParams::default(), &event.clone().into()).await.map(|_| name)
}

/// A name that no other event has: that of its object with the time in hexadecimal.
fn event_name(object: &str, at: Timestamp) -> String {
    format!("{object}.{:x}", at.as_nanosecond())
}

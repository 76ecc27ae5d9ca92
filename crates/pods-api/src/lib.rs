//! The Pods API, v1alpha1 (gate `PodsAPI`), on `pods-api/pods-api.sock` in the root directory: the pods of
//! the node with the status that it has of them, for programs that cannot or need not ask the apiserver.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

use std::path::Path;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use hyper::body::Incoming;
use hyper::service::service_fn;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_api_types::protobuf;
use longshore_grpc::{RequestLimit, Server, socket};
use longshore_metrics::{Counter, Registry};
use longshore_pod::spec;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::{Request, Response, Status};
use tower::Service as _;

/// Messages, client and server trait generated from `proto/pods/v1alpha1.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

use v1alpha1::pods_server::{Pods, PodsServer};
use v1alpha1::{
    EventType, GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};

/// The socket below the root directory.
const SOCKET: &str = "pods-api/pods-api.sock";
/// How many events a slow client may be behind before its watch ends.
const BACKLOG: usize = 100;

/// What happened to a pod.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// It has its first status.
    Added(Arc<Pod>),
    /// It or its status has changed.
    Modified(Arc<Pod>),
    /// Nothing of it runs any more.
    Deleted(Arc<Pod>),
}

/// Reports what happens to pods. Clones share the listeners.
#[derive(Clone, Debug)]
pub struct PodEvents(broadcast::Sender<PodEvent>);

impl Default for PodEvents {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl PodEvents {
    /// Whether anyone listens.
    #[must_use]
    pub fn are_watched(&self) -> bool {
        self.0.receiver_count() > 0
    }

    /// Reports an event. Never waits.
    pub fn send(&self, event: PodEvent) {
        // Fails where nobody listens.
        let _ = self.0.send(event);
    }

    /// All events from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<PodEvent> {
        self.0.subscribe()
    }
}

/// What the API reports.
pub trait Sources: Send + Sync + 'static {
    /// All pods of the node, each with the status that the node has of it.
    fn pods(&self) -> Vec<Arc<Pod>>;
    /// The pod with that UID, likewise.
    fn pod(&self, uid: &str) -> Option<Arc<Pod>>;
}

/// The server. Clones share everything.
#[derive(Clone)]
pub struct PodsApi(Arc<Inner>);

struct Inner {
    sources: Box<dyn Sources>,
    events: PodEvents,
    dropped: Counter,
    /// Watches do not count, as upstream.
    limit: RequestLimit,
}

/// Registers the metric of the API, which is there without it, too.
#[must_use]
pub fn dropped_events(registry: &Registry) -> Counter {
    let help = "[ALPHA] Cumulative number of pod watch events dropped.";
    registry.counter("kubelet_pod_watch_events_dropped_total", help)
}

impl PodsApi {
    /// A server that answers from these. `dropped` is [`dropped_events`].
    pub fn new(sources: impl Sources, events: PodEvents, dropped: Counter) -> Self {
        let (sources, limit) = (Box::new(sources), RequestLimit::default());
        Self(Arc::new(Inner { sources, events, dropped, limit }))
    }

    /// Serves the API below the root directory, forever.
    pub async fn run(self, root_dir: &Path) {
        let serve = |listener| {
            let server = PodsServer::new(self.clone());
            let dispatch =
                service_fn(move |request: hyper::Request<Incoming>| server.clone().call(request));
            Server::serve(listener, dispatch)
        };
        socket::keep(root_dir.join(SOCKET), serve).await;
    }

    /// All pods in the order of their UIDs.
    fn sorted(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.0.sources.pods();
        pods.sort_by(|a, b| spec::uid(a).cmp(spec::uid(b)));
        pods
    }
}

#[tonic::async_trait]
impl Pods for PodsApi {
    type WatchPodsStream = BoxStream<'static, Result<WatchPodsEvent, Status>>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        // Before the list, so that nothing is missed: a pod may be reported twice.
        let events = BroadcastStream::new(self.0.events.subscribe());
        let known = self.sorted().into_iter().map(|pod| event(EventType::Added, &pod));
        let complete =
            WatchPodsEvent { r#type: EventType::InitialSyncComplete.into(), pod: Vec::new() };
        let dropped = self.0.dropped.clone();
        let later = events.map(move |received| match received {
            Ok(PodEvent::Added(pod)) => event(EventType::Added, &pod),
            Ok(PodEvent::Modified(pod)) => event(EventType::Modified, &pod),
            Ok(PodEvent::Deleted(pod)) => event(EventType::Deleted, &identity(&pod)),
            Err(BroadcastStreamRecvError::Lagged(_)) => {
                dropped.inc();
                Err(Status::resource_exhausted("watch client channel closed"))
            }
        });
        let all = stream::iter(known).chain(stream::iter([Ok(complete)])).chain(later);
        Ok(Response::new(until_error(all).boxed()))
    }

    async fn list_pods(
        &self,
        _: Request<ListPodsRequest>,
    ) -> Result<Response<ListPodsResponse>, Status> {
        self.0.limit.admit()?;
        let pods = self.sorted().iter().map(|pod| encoded(pod)).collect::<Result<_, _>>()?;
        Ok(Response::new(ListPodsResponse { pods }))
    }

    async fn get_pod(
        &self,
        request: Request<GetPodRequest>,
    ) -> Result<Response<GetPodResponse>, Status> {
        self.0.limit.admit()?;
        let uid = request.into_inner().pod_uid;
        let pod = self.0.sources.pod(&uid);
        let pod = pod.ok_or_else(|| Status::not_found(format!("pod with UID {uid} not found")))?;
        Ok(Response::new(GetPodResponse { pod: encoded(&pod)? }))
    }
}

/// A stream that ends with its first error.
fn until_error<T>(
    stream: impl futures::Stream<Item = Result<T, Status>>,
) -> impl futures::Stream<Item = Result<T, Status>> {
    stream.scan(false, |failed, item| {
        let item = (!*failed).then_some(item);
        *failed |= matches!(item, Some(Err(_)));
        std::future::ready(item)
    })
}

fn event(kind: EventType, pod: &Pod) -> Result<WatchPodsEvent, Status> {
    Ok(WatchPodsEvent { r#type: kind.into(), pod: encoded(pod)? })
}

/// What is left of a pod that is deleted.
fn identity(pod: &Pod) -> Pod {
    let ObjectMeta { name, namespace, uid, .. } = pod.metadata.clone();
    Pod { metadata: ObjectMeta { name, namespace, uid, ..ObjectMeta::default() }, ..Pod::default() }
}

/// A pod as protobuf.
fn encoded(pod: &Pod) -> Result<Vec<u8>, Status> {
    let value = serde_json::to_value(pod).map_err(|error| error.to_string());
    let bytes = value.and_then(|value| protobuf::encode_bare("v1", "Pod", &value));
    bytes.map_err(|error| Status::internal(format!("failed to marshal pod: {error}")))
}

#[cfg(test)]
mod tests;

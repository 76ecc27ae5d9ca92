//! The client: connections, settings, and calls about the runtime as a whole.
//! Calls about pods, containers, images and stats are in the modules of those
//! names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt, future, stream};
use longshore_grpc::Failure;
use longshore_telemetry::{Kind, Span, Tracer};
use tonic::{Response, Status, Streaming};

use crate::call::{Call, Observer};
use crate::peer::{Peer, Transport};
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::v1::{
    ContainerEventResponse, GetEventsRequest, NetworkConfig, RuntimeConfig, RuntimeConfigRequest,
    RuntimeConfigResponse, StatusRequest, StatusResponse, UpdateRuntimeConfigRequest,
    VersionRequest, VersionResponse,
};
use crate::{Error, InProcess, MAX_MESSAGE, Result};

/// The version of the kubelet API in `Version` requests; runtimes ignore it.
const KUBELET_API: &str = "0.1.0";

/// Settings of a client.
#[derive(Clone)]
pub struct Options {
    /// `unix:///run/…`, the path of the socket, or the endpoint of a runtime in this process.
    pub runtime_endpoint: String,
    /// The endpoint of the image service, if it is another one.
    pub image_endpoint: Option<String>,
    /// Runtimes in this process.
    pub in_process: Vec<InProcess>,
    /// The timeout of most calls (`runtimeRequestTimeout`).
    pub request_timeout: Duration,
    /// Is called for each call.
    pub observer: Option<Arc<dyn Observer>>,
    /// Makes a span for each call, whose context the runtime is sent.
    pub tracer: Tracer,
    /// Whether containers, sandboxes and images are listed in parts, if the runtime can do that.
    pub stream_lists: bool,
}

impl Options {
    /// One endpoint for both services, a timeout of two minutes, no observer.
    pub fn new(runtime_endpoint: impl Into<String>) -> Self {
        Self {
            runtime_endpoint: runtime_endpoint.into(),
            image_endpoint: None,
            in_process: Vec::new(),
            request_timeout: Duration::from_secs(120),
            observer: None,
            tracer: Tracer::default(),
            stream_lists: false,
        }
    }
}

/// A client of one container runtime. Clones share its connections.
///
/// It connects with the first call, and reconnects with the next call after the
/// connection was lost. Dropping the future of a call cancels the call in the
/// runtime.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    runtime: RuntimeServiceClient<Transport>,
    runtime_peer: Peer,
    images: ImageServiceClient<Transport>,
    image_peer: Peer,
    request_timeout: Duration,
    observer: Option<Arc<dyn Observer>>,
    tracer: Tracer,
    /// Until the runtime says that it cannot.
    stream_lists: AtomicBool,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime({})", self.0.runtime_peer)
    }
}

impl Runtime {
    /// A client with these options. Must be created inside a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Endpoint`] for an endpoint that is neither a Unix socket nor in this process.
    pub fn new(options: Options) -> Result<Self> {
        let runtime = Peer::new(&options.runtime_endpoint, &options.in_process)?;
        let images = match options.image_endpoint.as_deref().unwrap_or_default() {
            "" => runtime.clone(),
            endpoint => Peer::new(endpoint, &options.in_process)?,
        };
        // One connection serves both.
        let images = if images.name == runtime.name { runtime.clone() } else { images };
        Ok(Self(Arc::new(Inner {
            runtime: RuntimeServiceClient::new(runtime.transport.clone())
                .max_decoding_message_size(MAX_MESSAGE),
            runtime_peer: runtime,
            images: ImageServiceClient::new(images.transport.clone())
                .max_decoding_message_size(MAX_MESSAGE),
            image_peer: images,
            request_timeout: options.request_timeout,
            observer: options.observer,
            tracer: options.tracer,
            stream_lists: options.stream_lists.into(),
        })))
    }

    /// A client of a runtime in this process, without a socket, for tests.
    #[cfg(feature = "testing")]
    pub fn in_memory(
        runtime: impl crate::v1::runtime_service_server::RuntimeService,
        images: impl crate::v1::image_service_server::ImageService,
        request_timeout: Duration,
    ) -> Result<Self> {
        const ENDPOINT: &str = "unix:///in-memory";
        Self::new(Options {
            in_process: vec![InProcess::new(ENDPOINT, runtime, images)],
            request_timeout,
            ..Options::new(ENDPOINT)
        })
    }

    /// Checks that both services are available and support CRI v1. Meant to be
    /// called once at the start, and repeated while
    /// [unavailable](Error::is_unavailable).
    ///
    /// # Errors
    /// [`Error::NoV1`] for a runtime that supports only an older protocol.
    pub async fn negotiate(&self) -> Result<VersionResponse> {
        let version = self.version().await.map_err(|e| no_v1(e, &self.0.runtime_peer))?;
        self.image_fs_info().await.map_err(|e| no_v1(e, &self.0.image_peer))?;
        Ok(version)
    }

    /// Name and versions of the runtime.
    pub async fn version(&self) -> Result<VersionResponse> {
        let call = self.call("Version", "version");
        let request = call.request(VersionRequest { version: KUBELET_API.to_owned() });
        let version = call.response(self.runtime().version(request)).await?;
        call.require(!version.version.is_empty(), "version")?;
        call.require(!version.runtime_name.is_empty(), "runtime_name")?;
        call.require(!version.runtime_version.is_empty(), "runtime_version")?;
        call.require(!version.runtime_api_version.is_empty(), "runtime_api_version")?;
        Ok(version)
    }

    /// The runtime's conditions, handlers and features; `verbose` adds `info`.
    /// At least two conditions are present: RuntimeReady and NetworkReady.
    pub async fn status(&self, verbose: bool) -> Result<StatusResponse> {
        let call = self.call("Status", "status");
        let request = call.request(StatusRequest { verbose });
        let status = call.response(self.runtime().status(request)).await?;
        let conditions = status.status.as_ref().map_or(0, |s| s.conditions.len());
        call.require(conditions >= 2, "RuntimeReady or NetworkReady condition")?;
        Ok(status)
    }

    /// The runtime's configuration: the cgroup driver. Older runtimes return
    /// [unimplemented](Error::is_unimplemented).
    pub async fn runtime_config(&self) -> Result<RuntimeConfigResponse> {
        let call = self.call("RuntimeConfig", "runtime_config");
        let request = call.request(RuntimeConfigRequest {});
        call.response(self.runtime().runtime_config(request)).await
    }

    /// Sends the pod CIDR of this node to the runtime.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let call = self.call("UpdateRuntimeConfig", "update_runtime_config");
        let request = call.request(UpdateRuntimeConfigRequest {
            runtime_config: Some(RuntimeConfig {
                network_config: Some(NetworkConfig { pod_cidr: pod_cidr.to_owned() }),
            }),
        });
        call.response(self.runtime().update_runtime_config(request)).await?;
        Ok(())
    }

    /// Container events from now on. The stream is opened when first polled, has no
    /// deadline, and ends after an error or when the runtime closes it. A runtime
    /// without events returns [unimplemented](Error::is_unimplemented) as the first
    /// item.
    pub fn container_events(
        &self,
    ) -> impl Stream<Item = Result<ContainerEventResponse>> + Send + use<> {
        let runtime = self.clone();
        // lazy, since a Go server sends no headers before the first event, so that
        // opening would wait for it
        stream::once(async move {
            let call = runtime.call("GetContainerEvents", "get_container_events").within(None);
            let request = call.request(GetEventsRequest {});
            let events = call.response(runtime.runtime().get_container_events(request)).await?;
            let (rpc, peer) = (call.rpc, call.peer.clone());
            Ok::<_, Error>(
                events.map_err(move |status| Error::from_failure(rpc, &peer, Failure::of(&status))),
            )
        })
        .try_flatten()
        .scan(false, |failed, item| {
            let end = *failed;
            *failed = item.is_err();
            future::ready((!end).then_some(item))
        })
    }

    /// A call to the runtime service, with the default deadline.
    pub(crate) fn call(&self, rpc: &'static str, operation: &'static str) -> Call<'_> {
        self.call_to("RuntimeService", rpc, operation, &self.0.runtime_peer)
    }

    /// A call to the image service, with the default deadline.
    pub(crate) fn image_call(&self, rpc: &'static str, operation: &'static str) -> Call<'_> {
        self.call_to("ImageService", rpc, operation, &self.0.image_peer)
    }

    fn call_to<'a>(
        &'a self,
        service: &str,
        rpc: &'static str,
        operation: &'static str,
        peer: &'a Peer,
    ) -> Call<'a> {
        let mut span = Span::default();
        if self.0.tracer.is_on() {
            span = self.0.tracer.span(&format!("runtime.v1.{service}/{rpc}"), Kind::Client);
            span.text("rpc.system", "grpc");
            span.text("rpc.service", format!("runtime.v1.{service}"));
            span.text("rpc.method", rpc);
        }
        Call {
            rpc,
            operation,
            deadline: Some(self.0.request_timeout),
            peer,
            observer: self.0.observer.as_deref(),
            span: span.into(),
        }
    }

    /// Whether lists are asked for in parts.
    pub(crate) fn streams_lists(&self) -> bool {
        self.0.stream_lists.load(Ordering::Relaxed)
    }

    /// A list in parts, all within the deadline of the call; `None`: the runtime has no
    /// parts.
    pub(crate) async fn list_in_parts<T, I>(
        &self,
        call: Call<'_>,
        parts: impl Future<Output = std::result::Result<Response<Streaming<T>>, Status>>,
        items: fn(T) -> Vec<I>,
    ) -> Result<Option<Vec<I>>> {
        let gathered = async {
            let mut parts = parts.await?.into_inner();
            let mut list = Vec::new();
            while let Some(part) = parts.message().await? {
                list.extend(items(part));
            }
            Ok(Response::new(list))
        };
        match call.response(gathered).await {
            Err(error) if error.is_unimplemented() => {
                self.0.stream_lists.store(false, Ordering::Relaxed);
                Ok(None)
            }
            listed => listed.map(Some),
        }
    }

    /// What makes the spans of calls.
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    pub(crate) fn runtime(&self) -> RuntimeServiceClient<Transport> {
        self.0.runtime.clone()
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Transport> {
        self.0.images.clone()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.0.request_timeout
    }
}

fn no_v1(error: Error, peer: &Peer) -> Error {
    match error {
        Error::Status { code: tonic::Code::Unimplemented, message, .. } => {
            Error::NoV1 { endpoint: peer.to_string(), message }
        }
        other => other,
    }
}

//! A collector for tests: it hands on the spans that it is sent.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::export::METHOD;
use crate::otlp::{
    self, ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, ResourceSpans, Value,
};
use crate::{Kind, SpanContext};

/// A span as a collector has it.
#[derive(Clone, Debug)]
pub struct Collected {
    /// What is said of the program.
    pub resource: BTreeMap<String, String>,
    /// Its name.
    pub name: String,
    /// Its role.
    pub kind: Kind,
    /// Its identity.
    pub context: SpanContext,
    /// The span that it is within.
    pub parent: Option<[u8; 8]>,
    /// Spans that it is linked to.
    pub links: Vec<[u8; 8]>,
    /// What is said of it; numbers as text.
    pub attributes: BTreeMap<String, String>,
    /// Whether it has failed.
    pub failed: bool,
    /// In nanoseconds since 1970.
    pub begins: u64,
    /// The same.
    pub ends: u64,
}

/// A collector on a socket, until it is dropped.
pub struct Collector {
    endpoint: String,
    requests: mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
    _server: longshore_grpc::Server,
}

#[derive(Clone)]
struct Service(mpsc::UnboundedSender<ExportTraceServiceRequest>);

impl UnaryService<ExportTraceServiceRequest> for Service {
    type Response = ExportTraceServiceResponse;
    type Future = BoxFuture<'static, Result<Response<Self::Response>, Status>>;

    fn call(&mut self, request: Request<ExportTraceServiceRequest>) -> Self::Future {
        let _ = self.0.send(request.into_inner());
        std::future::ready(Ok(Response::new(ExportTraceServiceResponse {}))).boxed()
    }
}

impl Collector {
    /// Serves one on that socket.
    ///
    /// # Panics
    /// The socket cannot be made.
    #[must_use]
    #[allow(clippy::unwrap_used)]
    pub fn start(socket: &Path) -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            assert_eq!(request.uri().path(), METHOD);
            let service = Service(sender.clone());
            async move {
                let codec =
                    ProstCodec::<ExportTraceServiceResponse, ExportTraceServiceRequest>::default();
                let response = tonic::server::Grpc::new(codec).unary(service, request).await;
                Ok::<_, Infallible>(response)
            }
        });
        let server = longshore_grpc::Server::serve(UnixListener::bind(socket).unwrap(), service);
        Self { endpoint: format!("unix://{}", socket.display()), requests, _server: server }
    }

    /// What spans are sent to.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The spans of the next export.
    pub async fn spans(&mut self) -> Vec<Collected> {
        let Some(request) = self.requests.recv().await else { return Vec::new() };
        request.resource_spans.into_iter().flat_map(of_resource).collect()
    }
}

fn of_resource(all: ResourceSpans) -> Vec<Collected> {
    let resource = texts(&all.resource.unwrap_or_default().attributes);
    let spans = all.scope_spans.into_iter().flat_map(|scope| scope.spans);
    spans.map(|span| collected(&resource, span)).collect()
}

fn collected(resource: &BTreeMap<String, String>, span: otlp::Span) -> Collected {
    let id = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).ok();
    Collected {
        resource: resource.clone(),
        name: span.name,
        kind: match span.kind {
            otlp::SERVER => Kind::Server,
            otlp::CLIENT => Kind::Client,
            _ => Kind::Internal,
        },
        context: SpanContext {
            trace: span.trace_id.as_slice().try_into().unwrap_or_default(),
            span: id(&span.span_id).unwrap_or_default(),
            sampled: true,
        },
        parent: id(&span.parent_span_id),
        links: span.links.iter().filter_map(|link| id(&link.span_id)).collect(),
        attributes: texts(&span.attributes),
        failed: span.status.is_some_and(|status| status.code == otlp::ERROR),
        begins: span.start_time_unix_nano,
        ends: span.end_time_unix_nano,
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::Text(text) => text.clone(),
        Value::Number(number) => number.to_string(),
    };
    let value = |one: &KeyValue| one.value.as_ref()?.value.as_ref().map(text);
    attributes.iter().map(|one| (one.key.clone(), value(one).unwrap_or_default())).collect()
}

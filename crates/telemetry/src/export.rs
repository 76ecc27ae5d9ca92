//! Spans in batches to a collector.

use std::time::Duration;

use futures::FutureExt;
use longshore_base::time;
use longshore_grpc::{Failure, InvalidEndpoint, await_response, request};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use tracing::{info, warn};

use crate::Settings;
use crate::context::Finished;
use crate::otlp::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Resource, ResourceSpans,
    Scope, ScopeSpans,
};

/// How long a span waits for others.
const PERIOD: Duration = Duration::from_secs(5);
/// How many are sent together at most.
const BATCH: usize = 512;
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No collector can have that address.
    #[error("invalid endpoint of traces {0:?}: {1}")]
    Endpoint(String, String),
    /// It is no socket.
    #[error("invalid endpoint of traces {0}")]
    Socket(#[from] InvalidEndpoint),
}

/// Exports the spans of a tracer.
#[derive(Debug)]
pub struct Exporter {
    channel: Channel,
    resource: Resource,
    spans: mpsc::Receiver<Finished>,
    /// Whether the last export has failed.
    failing: bool,
}

impl Exporter {
    pub(crate) fn new(settings: &Settings, spans: mpsc::Receiver<Finished>) -> Result<Self, Error> {
        let service = KeyValue::text("service.name", settings.service.to_owned());
        let others =
            settings.attributes.iter().map(|(key, value)| KeyValue::text(key, value.clone()));
        let attributes = std::iter::once(service).chain(others).collect();
        let channel = channel(&settings.endpoint)?;
        Ok(Self { channel, resource: Resource { attributes }, spans, failing: false })
    }

    /// Exports spans until there is no tracer. What a collector does not take is lost.
    pub async fn run(self) {
        self.run_until(std::future::pending()).await;
    }

    /// The same, but after `stop` exports what has ended, and returns.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop.fuse());
        let mut batch = Vec::new();
        loop {
            let first = tokio::select! {
                first = self.spans.recv() => first,
                () = &mut stop => {
                    self.spans.close();
                    continue;
                }
            };
            let Some(first) = first else { return };
            batch.push(*first);
            let due = time::after(PERIOD);
            let mut open = true;
            while batch.len() < BATCH {
                tokio::select! {
                    next = self.spans.recv() => match next {
                        Some(span) => batch.push(*span),
                        None => {
                            open = false;
                            break;
                        }
                    },
                    () = sleep_until(due) => break,
                    () = &mut stop => self.spans.close(),
                }
            }
            self.export(std::mem::take(&mut batch)).await;
            if !open {
                return;
            }
        }
    }

    async fn export(&mut self, spans: Vec<crate::otlp::Span>) {
        let count = spans.len();
        let scope = Scope { name: "longshore".to_owned() };
        let message = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        };
        let mut client = Grpc::new(self.channel.clone());
        let sent = async {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec =
                ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
            let method = PathAndQuery::from_static(METHOD);
            client.unary(request(message, Some(TIMEOUT)), method, codec).await
        };
        let outcome = await_response(Some(TIMEOUT), sent).await;
        self.note(count, outcome.err());
    }

    /// Logs the first of several failures, and their end.
    fn note(&mut self, count: usize, failure: Option<Failure>) {
        match failure {
            Some(failure) if !self.failing => {
                self.failing = true;
                let error = match failure {
                    Failure::Deadline(why)
                    | Failure::Unavailable(why)
                    | Failure::Status(_, why) => why,
                };
                warn!(count, %error, "cannot export traces; they are lost until it succeeds");
            }
            None if self.failing => {
                self.failing = false;
                info!("traces are exported again");
            }
            _ => {}
        }
    }
}

/// A channel that connects with the first call.
fn channel(endpoint: &str) -> Result<Channel, Error> {
    if endpoint.starts_with("unix:") {
        return Ok(longshore_grpc::Endpoint::parse(endpoint)?.channel());
    }
    let host = endpoint.strip_prefix("dns:").map_or(endpoint, |rest| rest.trim_start_matches('/'));
    let invalid = |why: String| Error::Endpoint(endpoint.to_owned(), why);
    if host.contains("//") {
        return Err(invalid("unsupported scheme".to_owned()));
    }
    let http = Endpoint::from_shared(format!("http://{host}"));
    let http = http.map_err(|error| invalid(error.to_string()))?;
    Ok(http.connect_timeout(TIMEOUT).connect_lazy())
}

#[cfg(test)]
mod tests;

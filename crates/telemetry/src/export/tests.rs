use std::convert::Infallible;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::UnixListener;
use tonic::server::UnaryService;
use tonic::{Request, Response};

use super::*;
use crate::otlp::{self, Value};
use crate::{Kind, SpanContext, Tracer, current, within};

/// A collector that hands on what it is sent.
#[derive(Clone)]
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

impl UnaryService<ExportTraceServiceRequest> for Collector {
    type Response = ExportTraceServiceResponse;
    type Future = BoxFuture<'static, Result<Response<Self::Response>, Status>>;

    fn call(&mut self, request: Request<ExportTraceServiceRequest>) -> Self::Future {
        let _ = self.0.send(request.into_inner());
        std::future::ready(Ok(Response::new(ExportTraceServiceResponse {}))).boxed()
    }
}

/// Serves a collector on that socket.
fn serve(listener: UnixListener, collector: Collector) -> longshore_grpc::Server {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        assert_eq!(request.uri().path(), METHOD);
        let collector = collector.clone();
        async move {
            let codec =
                ProstCodec::<ExportTraceServiceResponse, ExportTraceServiceRequest>::default();
            let response = tonic::server::Grpc::new(codec).unary(collector, request).await;
            Ok::<_, Infallible>(response)
        }
    });
    longshore_grpc::Server::serve(listener, service)
}

fn settings(endpoint: String, rate_per_million: u32) -> Settings {
    Settings { endpoint, rate_per_million, service: "kubelet", host: "n".to_owned() }
}

#[tokio::test]
async fn trace_spans_reach_the_collector() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("otlp.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let _serving = serve(listener, Collector(sender));

    let (tracer, exporter) =
        Tracer::new(&settings(format!("unix://{}", path.display()), 1_000_000)).unwrap();
    let mut outer = tracer.span("syncPod", Kind::Internal);
    outer.text("k8s.pod.name", "web");
    let sent = within(outer.context(), async {
        let mut inner = tracer.span("runtime.v1.RuntimeService/RunPodSandbox", Kind::Client);
        inner.number("rpc.grpc.status_code", 2);
        inner.fail("no such image");
        assert_eq!(current(), outer.context());
        inner.context().unwrap()
    })
    .await;
    assert_eq!(Some(sent.trace), outer.context().map(|outer| outer.trace));
    let client = SpanContext { sampled: false, ..sent };
    drop(tracer.request("/pods", Some(&client.traceparent())));
    drop(outer);
    // without a tracer the exporter sends what is left, and ends
    drop(tracer);
    exporter.run().await;

    let request = received.recv().await.unwrap();
    let resource = &request.resource_spans[0];
    let attributes = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(attributes[0], KeyValue::text("service.name", "kubelet".to_owned()));
    let spans = &resource.scope_spans[0].spans;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["runtime.v1.RuntimeService/RunPodSandbox", "/pods", "syncPod"]);
    let (inner, pods, outer) = (&spans[0], &spans[1], &spans[2]);
    assert_eq!((inner.kind, &inner.parent_span_id), (otlp::CLIENT, &outer.span_id));
    assert_eq!(inner.status.as_ref().unwrap().code, otlp::ERROR);
    let number = inner.attributes[0].value.as_ref().unwrap().value.clone();
    assert_eq!(number, Some(Value::Number(2)));
    assert!(inner.start_time_unix_nano <= inner.end_time_unix_nano);
    assert!(pods.parent_span_id.is_empty() && pods.trace_id != outer.trace_id);
    assert_eq!(pods.links[0].span_id, inner.span_id);
}

#[tokio::test]
async fn trace_sampling_is_by_rate_and_by_the_parent() {
    let sampled = |rate: u32, parent: Option<&str>| {
        let (finished, mut spans) = mpsc::channel(1000);
        let tracer = Tracer::sampling(rate, finished);
        let parent = parent.and_then(SpanContext::parse);
        for _ in 0..1000 {
            let span = tracer.begin("x", Kind::Internal, parent);
            assert!(span.context().is_some());
        }
        let mut count = 0;
        while spans.try_recv().is_ok() {
            count += 1;
        }
        count
    };
    let (yes, no) = (
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
    );
    assert_eq!((sampled(1_000_000, None), sampled(0, None)), (1000, 0));
    assert_eq!((sampled(0, Some(yes)), sampled(1_000_000, Some(no))), (1000, 0));
    let half = sampled(500_000, None);
    // 1000 throws of a coin: less than one in 10^20 is outside
    assert!((350..650).contains(&half), "{half}");
}

#[tokio::test]
async fn trace_queue_is_bounded_and_off_costs_nothing() {
    let off = Tracer::default();
    let span = off.span("x", Kind::Internal);
    assert!(!off.is_on() && !span.is_recorded() && span.context().is_none());
    let (finished, mut spans) = mpsc::channel(2);
    let tracer = Tracer::sampling(1_000_000, finished);
    for _ in 0..10 {
        drop(tracer.span("x", Kind::Internal));
    }
    assert!(spans.try_recv().is_ok() && spans.try_recv().is_ok() && spans.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn trace_exporter_survives_a_collector_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = format!("unix://{}", dir.path().join("missing.sock").display());
    let (tracer, exporter) = Tracer::new(&settings(endpoint, 1_000_000)).unwrap();
    for _ in 0..BATCH * 2 {
        drop(tracer.span("x", Kind::Internal));
    }
    drop(tracer);
    exporter.run().await;
}

#[tokio::test]
async fn trace_endpoints_are_checked() {
    for endpoint in
        ["localhost:4317", "dns:///otel.example:4317", "unix:///run/x.sock", "[::1]:4317"]
    {
        assert!(channel(endpoint).is_ok(), "{endpoint}");
    }
    for endpoint in ["http://x:1", "a b", "unix://relative", ""] {
        assert!(channel(endpoint).is_err(), "{endpoint}");
    }
}

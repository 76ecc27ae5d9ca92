use super::*;
use crate::testing::Collector;
use crate::{Kind, SpanContext, Tracer, child, current, within};

fn settings(endpoint: String, rate_per_million: u32) -> Settings {
    Settings {
        endpoint,
        rate_per_million,
        service: "kubelet",
        attributes: vec![("host.name", "n".to_owned())],
    }
}

#[tokio::test]
async fn trace_spans_reach_the_collector() {
    let dir = tempfile::tempdir().unwrap();
    let mut collector = Collector::start(&dir.path().join("otlp.sock"));
    let (tracer, exporter) = Tracer::new(&settings(collector.endpoint(), 1_000_000)).unwrap();
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

    let spans = collector.spans().await;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["runtime.v1.RuntimeService/RunPodSandbox", "/pods", "syncPod"]);
    let (inner, pods, outer) = (&spans[0], &spans[1], &spans[2]);
    assert_eq!(inner.resource["service.name"], "kubelet");
    assert_eq!(inner.resource["host.name"], "n");
    assert_eq!((inner.kind, inner.parent), (Kind::Client, Some(outer.context.span)));
    assert!(inner.failed && !outer.failed && inner.begins <= inner.ends);
    assert_eq!(inner.attributes["rpc.grpc.status_code"], "2");
    assert_eq!(outer.attributes["k8s.pod.name"], "web");
    assert!(pods.parent.is_none() && pods.context.trace != outer.context.trace);
    assert_eq!(pods.links, [inner.context.span]);
}

#[tokio::test]
async fn trace_children_go_where_their_parents_go() {
    let (finished, mut spans) = mpsc::channel(10);
    let tracer = Tracer::sampling(0, finished);
    assert!(child("x", Kind::Internal).context().is_none());
    // a client that is trusted decides
    let client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut request = tracer.continued("KubernetesAPI", Some(client));
    request.began(std::time::Duration::from_secs(5));
    let inner = request.enter(async { child("Get", Kind::Internal) }).await;
    assert!(request.is_recorded() && inner.is_recorded());
    let ids = [&inner, &request].map(|span| span.context().unwrap().span.to_vec());
    drop((inner, request));
    let (inner, request) = (spans.try_recv().unwrap(), spans.try_recv().unwrap());
    assert_eq!([&inner.span_id, &request.span_id], [&ids[0], &ids[1]]);
    assert_eq!(inner.parent_span_id, request.span_id);
    assert_eq!(request.parent_span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert!(inner.start_time_unix_nano - request.start_time_unix_nano > 4_000_000_000);
    // what is not sampled is told to others all the same
    let request = tracer.continued("KubernetesAPI", None);
    let inner = request.enter(async { child("Get", Kind::Internal) }).await;
    assert!(!inner.is_recorded());
    assert_eq!(inner.context().unwrap().trace, request.context().unwrap().trace);
    drop((inner, request));
    assert!(spans.try_recv().is_err());
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

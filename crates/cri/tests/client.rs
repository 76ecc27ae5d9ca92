//! The client against a small server in this process, on a real socket.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::{Fake, Serve};
use futures::{StreamExt, pin_mut};
use longshore_cri::v1::{
    AuthConfig, ContainerEventType, ContainerFilter, ImageSpec, PodSandboxConfig,
};
use longshore_cri::{Code, Error, Observer, Options, Runtime};
use parking_lot::Mutex;

const SOON: Duration = Duration::from_secs(10);

fn options(fake: &Fake) -> Options {
    Options::new(format!("unix://{}", fake.socket().display()))
}

fn client(fake: &Fake) -> Runtime {
    Runtime::new(options(fake)).unwrap()
}

async fn over_a_socket() -> (Runtime, Fake) {
    let fake = Fake::start(Serve::Both).await;
    (client(&fake), fake)
}

async fn in_process() -> (Runtime, Fake) {
    let fake = Fake::start(Serve::Both).await;
    let endpoint = "docker:///run/docker.sock";
    let in_process = vec![fake.in_process(endpoint)];
    (Runtime::new(Options { in_process, ..Options::new(endpoint) }).unwrap(), fake)
}

#[tokio::test]
async fn endpoint_must_be_a_unix_socket() {
    for good in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
        let runtime = Runtime::new(Options::new(good)).unwrap();
        assert_eq!(format!("{runtime:?}"), "Runtime(unix:///run/a.sock)");
    }
    let long = format!("/{}", "a".repeat(107));
    for (bad, why) in [
        ("tcp://127.0.0.1:1", "only unix:// sockets"),
        ("npipe:////./pipe/containerd", "only unix:// sockets"),
        ("http://localhost/run/a.sock", "only unix:// sockets"),
        ("", "no path"),
        ("unix://", "no path"),
        ("run/a.sock", "not absolute"),
        ("unix://run/a.sock", "not absolute"),
        ("/run/a\0.sock", "NUL"),
        (long.as_str(), "107 bytes"),
    ] {
        let error = Runtime::new(Options::new(bad)).unwrap_err();
        assert!(matches!(&error, Error::Endpoint { .. }), "{bad:?}: {error}");
        assert!(error.to_string().contains(why), "{bad:?}: {error}");
    }
    let images =
        Options { image_endpoint: Some("tcp://[::1]:1".into()), ..Options::new("/run/a.sock") };
    assert!(Runtime::new(images).is_err());
}

#[tokio::test]
async fn client_shares_one_connection_for_both_services() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    assert_eq!(runtime.negotiate().await.unwrap().runtime_name, "fake");
    let other = runtime.clone();
    tokio::spawn(async move { other.version().await }).await.unwrap().unwrap();
    assert_eq!(fake.connections(), 1);
}

#[tokio::test]
async fn image_service_endpoint() {
    let (runtimes, images) = (Fake::start(Serve::Runtime).await, Fake::start(Serve::Images).await);
    let runtime = Runtime::new(Options {
        image_endpoint: Some(images.socket().display().to_string()),
        ..options(&runtimes)
    })
    .unwrap();
    runtime.negotiate().await.unwrap();
    assert_eq!((runtimes.connections(), images.connections()), (1, 1));
}

#[tokio::test]
async fn runtime_without_v1_is_rejected() {
    for serve in [Serve::Images, Serve::Runtime] {
        let fake = Fake::start(serve).await;
        let error = client(&fake).negotiate().await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NoV1 { .. }), "{text}");
        assert!(text.contains("does not support CRI v1"), "{text}");
        assert!(text.contains(fake.socket().to_str().unwrap()), "{text}");
    }
}

#[tokio::test]
async fn errors_by_status_code() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    for code in 1..=16 {
        let code = Code::from_i32(code);
        let id = (code as i32).to_string();
        let error = runtime.container_status(&id).await.unwrap_err();
        assert_eq!(error.code(), Some(code), "{error}");
        assert_eq!(error.is_not_found(), code == Code::NotFound);
        assert_eq!(error.is_unimplemented(), code == Code::Unimplemented);
        assert_eq!(error.is_unavailable(), code == Code::Unavailable);
        assert_eq!(error.is_deadline_exceeded(), code == Code::DeadlineExceeded);
        let text = error.to_string();
        assert!(text.starts_with("ContainerStatus: "), "{text}");
        assert!(text.contains("as you asked"), "{text}");
    }
}

#[tokio::test]
async fn response_must_be_complete() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    let error = runtime.container_status("empty").await.unwrap_err();
    assert_eq!(error.to_string(), "ContainerStatus: the response has no status");
    let error = runtime.run_pod_sandbox(PodSandboxConfig::default(), "").await.unwrap_err();
    assert!(error.to_string().contains("no pod_sandbox_id"), "{error}");
}

#[tokio::test]
async fn call_deadline_applies_on_both_sides() {
    let fake = Fake::start(Serve::Both).await;
    let runtime =
        Runtime::new(Options { request_timeout: Duration::from_millis(200), ..options(&fake) })
            .unwrap();
    let error = runtime.container_status("hang").await.unwrap_err();
    assert!(error.is_deadline_exceeded(), "{error}");
    fake.cancelled(1).await;
    // the connection still works, and the grace period adds to the deadline
    runtime.version().await.unwrap();
    let stop = runtime.stop_container("slow", Duration::from_secs(3));
    stop.await.expect("200 ms and 3 s are enough for 500 ms");
}

#[tokio::test]
async fn call_deadline_applies_to_a_runtime_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("mute.sock");
    let _mute = tokio::net::UnixListener::bind(&socket).unwrap();
    let runtime = Runtime::new(Options {
        request_timeout: Duration::from_millis(100),
        ..Options::new(socket.display().to_string())
    })
    .unwrap();
    let error = runtime.version().await.unwrap_err();
    assert!(error.is_deadline_exceeded(), "{error}");
}

#[tokio::test]
async fn call_deadlines() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    let _ = runtime.version().await;
    let _ = runtime.run_pod_sandbox(PodSandboxConfig::default(), "").await;
    let _ = runtime.stop_container("x", Duration::from_secs(30)).await;
    let _ = runtime.stop_container("x", Duration::MAX).await;
    let _ = runtime.exec_sync("x", vec![], None).await;
    let _ = runtime.exec_sync("x", vec![], Some(Duration::from_millis(1500))).await;
    let _ = runtime.pull_image(ImageSpec::default(), None, None).await;
    assert_eq!(
        fake.deadlines(),
        [
            ("Version", Some(120)),
            ("RunPodSandbox", Some(240)),
            ("StopContainer", Some(150)),
            ("StopContainer", Some(366 * 24 * 3600)),
            ("ExecSync", None),
            ("ExecSync", Some(121)),
            ("PullImage", None),
        ]
        .map(|(rpc, seconds)| (rpc.to_owned(), seconds))
    );
    assert_eq!(fake.exec_timeouts(), [0, 2]);
}

#[tokio::test]
async fn call_that_is_dropped_is_cancelled_in_the_runtime() {
    for (runtime, fake) in [over_a_socket().await, in_process().await] {
        let call = runtime.container_status("hang");
        assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
        fake.cancelled(1).await;
        runtime.version().await.unwrap();
    }
}

#[tokio::test]
async fn call_whose_handler_or_stream_panics_fails_and_no_other() {
    // Ends the process after a panic that is not contained.
    longshore_base::panics::install();
    for (runtime, fake) in [over_a_socket().await, in_process().await] {
        let error = runtime.container_status("panic").await.unwrap_err();
        assert!(matches!(error, Error::Status { code: Code::Internal, .. }), "{error:?}");
        let events = runtime.container_events();
        pin_mut!(events);
        assert!(tokio::time::timeout(Duration::from_millis(100), events.next()).await.is_err());
        fake.event(ContainerEventType::ContainerStartedEvent);
        events.next().await.unwrap().unwrap();
        fake.event(ContainerEventType::ContainerDeletedEvent);
        assert!(events.next().await.unwrap().is_err());
        runtime.version().await.unwrap();
    }
}

#[tokio::test]
async fn runtime_that_is_absent_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let runtime = Runtime::new(Options::new(socket.display().to_string())).unwrap();
    for _ in 0..2 {
        let error = runtime.negotiate().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let text = error.to_string();
        assert!(text.contains(socket.to_str().unwrap()), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }
    let _fake = Fake::start_at(&socket, Serve::Both);
    runtime.negotiate().await.unwrap();
}

#[tokio::test]
async fn client_reconnects_to_a_restarted_runtime() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cri.sock");
    let runtime = Runtime::new(Options::new(socket.display().to_string())).unwrap();
    for _ in 0..3 {
        let fake = Fake::start_at(&socket, Serve::Both);
        runtime.version().await.unwrap();
        let pending = tokio::spawn({
            let runtime = runtime.clone();
            async move { runtime.container_status("hang").await }
        });
        fake.hanging(1).await;
        fake.stop().await;
        // the pending call fails as unavailable, not with some other code
        let error = pending.await.unwrap().unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let error = runtime.version().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
}

#[tokio::test]
async fn response_size_limit_is_16_mib() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    let mebibytes = |n: usize| Some(ContainerFilter { id: n.to_string(), ..Default::default() });
    let containers = runtime.list_containers(mebibytes(15)).await.unwrap();
    assert_eq!(containers.len(), 15);
    let error = runtime.list_containers(mebibytes(17)).await.unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn container_events_are_received() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = client(&fake);
    let events = runtime.container_events();
    pin_mut!(events);
    // there is no event yet, and the server sends no headers before one
    assert!(tokio::time::timeout(Duration::from_millis(100), events.next()).await.is_err());
    for kind in
        [ContainerEventType::ContainerStartedEvent, ContainerEventType::ContainerStoppedEvent]
    {
        fake.event(kind);
        let event = tokio::time::timeout(SOON, events.next()).await;
        let event = event.unwrap().unwrap().unwrap();
        assert_eq!(event.container_event_type(), kind);
    }
    fake.stop().await;
    assert!(events.next().await.unwrap().unwrap_err().is_unavailable());
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn container_events_unimplemented() {
    let fake = Fake::start(Serve::Images).await;
    let events = client(&fake).container_events();
    pin_mut!(events);
    let error = events.next().await.unwrap().unwrap_err();
    assert!(error.is_unimplemented(), "{error}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn observer_is_called_for_each_call() {
    #[derive(Default)]
    struct Log(Mutex<Vec<(&'static str, bool)>>);
    impl Observer for Log {
        fn observe(&self, operation: &'static str, took: Duration, error: Option<&Error>) {
            assert!(took < SOON);
            self.0.lock().push((operation, error.is_none()));
        }
    }
    let fake = Fake::start(Serve::Both).await;
    let log = Arc::new(Log::default());
    let runtime = Runtime::new(Options { observer: Some(log.clone()), ..options(&fake) }).unwrap();
    runtime.version().await.unwrap();
    runtime.container_status("5").await.unwrap_err();
    runtime.image_fs_info().await.unwrap();
    assert_eq!(
        *log.0.lock(),
        [("version", true), ("container_status", false), ("image_fs_info", true)]
    );
}

#[test]
fn auth_config_debug_has_no_secrets() {
    let auth = AuthConfig {
        username: "somebody".into(),
        password: "hush1".into(),
        auth: "hush2".into(),
        server_address: "registry.example".into(),
        identity_token: "hush3".into(),
        registry_token: "hush4".into(),
    };
    let shown = format!("{auth:?}");
    assert!(shown.contains("somebody") && !shown.contains("hush"), "{shown}");
}

#[tokio::test]
async fn lists_in_parts_have_no_limit() {
    let fake = Fake::start(Serve::Both).await;
    let runtime = Runtime::new(Options { stream_lists: true, ..options(&fake) }).unwrap();
    let list = async |id: &str| {
        let filter = ContainerFilter { id: id.to_owned(), ..ContainerFilter::default() };
        runtime.list_containers(Some(filter)).await.map(|list| list.len())
    };
    assert_eq!(list("20").await.unwrap(), 20, "more than fits into one response");
    assert_eq!(list("none").await.unwrap(), 0, "without parts as ever");
    assert!(list("20").await.is_err(), "and not asked for again");
    let calls = fake.deadlines();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls.iter().all(|call| *call == ("StreamContainers".to_owned(), Some(120))));
}

/// The W3C's context of the call's span.
#[tokio::test]
async fn calls_have_spans_whose_context_the_runtime_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let settings = longshore_telemetry::Settings {
        endpoint: format!("unix://{}", dir.path().join("none.sock").display()),
        rate_per_million: 1_000_000,
        service: "kubelet",
        attributes: Vec::new(),
    };
    let (tracer, _exporter) = longshore_telemetry::Tracer::new(&settings).unwrap();
    let fake = Fake::start(Serve::Both).await;
    let runtime = Runtime::new(Options { tracer: tracer.clone(), ..options(&fake) }).unwrap();
    let outer = tracer.span("syncPod", longshore_telemetry::Kind::Internal);
    longshore_telemetry::within(outer.context(), runtime.version()).await.unwrap();
    client(&fake).version().await.unwrap();
    let contexts = fake.contexts();
    let context = longshore_telemetry::SpanContext::parse(contexts[0].as_deref().unwrap());
    let (context, outer) = (context.unwrap(), outer.context().unwrap());
    assert!(context.sampled && context.trace == outer.trace && context.span != outer.span);
    assert_eq!(contexts[1], None, "without a tracer");
}

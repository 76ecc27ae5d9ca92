use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::jiff::SignedDuration;
use longshore_client::events::Recorder;
use longshore_cri::{Options, Runtime};
use longshore_pod::observed::Sandbox;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(400);

/// A probed pod on this machine, and its observed state.
struct Probed {
    probes: Probes,
    pod: Pod,
    observed: ObservedPod,
    results: watch::Receiver<Arc<ProbeResults>>,
}

impl Probed {
    /// A pod whose container has these fields.
    fn new(container: Value) -> Self {
        let handlers = Handlers::new(Runtime::new(Options::new("unix:///nowhere")).unwrap());
        let (recorder, _) = Recorder::start(None, "node");
        let probes =
            Probes::new(handlers, PodEventRecorder::new(recorder), &[], &Registry::default());
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c"}]},
        }))
        .unwrap();
        let mut own = container;
        own["name"] = json!("c");
        pod.spec.as_mut().unwrap().containers = vec![serde_json::from_value(own).unwrap()];
        let results = probes.subscribe("u");
        let sandbox = Sandbox { ips: vec!["127.0.0.1".to_owned()], ..Sandbox::default() };
        let observed = ObservedPod { sandboxes: vec![sandbox], ..ObservedPod::default() };
        Self { probes, pod, observed, results }
    }

    /// The only running container is this one, started that long ago.
    fn runs(&mut self, id: &str, age: Duration) {
        self.runs_with_status(id, age, &PodStatus::default());
    }

    fn runs_with_status(&mut self, id: &str, age: Duration, last_status: &PodStatus) {
        let started_at = Timestamp::now() - SignedDuration::try_from(age).unwrap();
        self.observed.containers = vec![observed::Container {
            id: id.to_owned(),
            name: "c".to_owned(),
            sandbox_id: String::new(),
            restart_count: 0,
            hash: None,
            created_at: started_at,
            image: String::new(),
            image_ref: String::new(),
            log_path: String::new(),
            user: None,
            stop_signal: None,
            resources: None,
            state: State::Running { started_at },
        }];
        self.probes.follow(&self.pod, &self.observed, &HashSet::new(), last_status);
    }

    fn follow(&self) {
        self.probes.follow(&self.pod, &self.observed, &HashSet::new(), &PodStatus::default());
    }

    fn result(&self, id: &str, kind: ProbeKind) -> ProbeResult {
        self.results.borrow().get(id, kind)
    }

    /// Wait for that result of the probe; returns how long it took.
    async fn until(&mut self, id: &str, kind: ProbeKind, result: ProbeResult) -> Duration {
        let start = Instant::now();
        let found = self.results.wait_for(|results| results.get(id, kind) == result);
        timeout(LONG, found).await.expect("in time").unwrap();
        start.elapsed()
    }
}

/// A server, and the number of its requests.
async fn server() -> (u16, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, serve(listener))
}

fn serve(listener: TcpListener) -> Arc<AtomicU32> {
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    requests
}

async fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

fn tcp(port: u16) -> Value {
    json!({"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 1})
}

fn status(id: &str, started: bool, ready: bool) -> PodStatus {
    let status = json!({"containerStatuses": [{
        "name": "c", "containerID": format!("containerd://{id}"), "started": started, "ready": ready,
        "image": "", "imageID": "", "restartCount": 0,
    }]});
    serde_json::from_value(status).unwrap()
}

#[tokio::test]
async fn probes_report_readiness_early() {
    let port = closed_port().await;
    let mut probe = tcp(port);
    probe["periodSeconds"] = json!(60);
    let mut probed = Probed::new(json!({"readinessProbe": probe}));
    probed.runs("1", Duration::ZERO);
    sleep(SHORT).await;
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Unknown);
    let requests = serve(TcpListener::bind(("127.0.0.1", port)).await.unwrap());
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took < Duration::from_millis(200), "{took:?}");
    sleep(SHORT).await;
    assert_eq!(requests.load(Ordering::Relaxed), 1, "once it is ready, there is no hurry");
}

#[tokio::test]
async fn probes_report_readiness_changes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut probe = tcp(port);
    probe["successThreshold"] = json!(2);
    let mut probed = Probed::new(json!({"readinessProbe": probe}));
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took > Duration::from_millis(900), "two successes are requests for: {took:?}");
    drop(listener);
    probed.until("1", ProbeKind::Readiness, ProbeResult::Failure).await;
    let _listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
}

#[tokio::test]
async fn probes_respect_the_initial_delay() {
    let port = closed_port().await;
    let mut probed = Probed::new(json!({"livenessProbe": tcp(port)}));
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    assert!(took > Duration::from_millis(900), "{took:?}");
    // After its initial delay, a failure counts.
    let mut probe = tcp(port);
    probe["initialDelaySeconds"] = json!(1);
    probe["periodSeconds"] = json!(60);
    let mut probed = Probed::new(json!({"livenessProbe": probe}));
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    let expected = Duration::from_millis(900)..Duration::from_millis(1500);
    assert!(expected.contains(&took), "{took:?}");
}

#[tokio::test]
async fn probes_wait_for_the_startup_probe() {
    let (port, requests) = server().await;
    let startup_port = closed_port().await;
    let mut probe = tcp(startup_port);
    probe["failureThreshold"] = json!(60);
    let mut probed = Probed::new(
        json!({"startupProbe": probe, "readinessProbe": tcp(port), "livenessProbe": tcp(port)}),
    );
    probed.runs("1", Duration::ZERO);
    sleep(SHORT).await;
    assert_eq!(requests.load(Ordering::Relaxed), 0);
    let startup = serve(TcpListener::bind(("127.0.0.1", startup_port)).await.unwrap());
    probed.until("1", ProbeKind::Startup, ProbeResult::Success).await;
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took < SHORT, "the others begin at once, and not after {took:?}");
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(startup.load(Ordering::Relaxed), 1, "it is up, startup probes are done");
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Success);
}

#[tokio::test]
async fn probes_start_again_for_a_new_run() {
    let port = closed_port().await;
    let mut probed = Probed::new(json!({"livenessProbe": tcp(port)}));
    probed.runs("1", LONG);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    let requests = serve(TcpListener::bind(("127.0.0.1", port)).await.unwrap());
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(requests.load(Ordering::Relaxed), 0, "nothing more is requests of one that must go");
    probed.runs("2", Duration::ZERO);
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Unknown);
    probed.until("2", ProbeKind::Liveness, ProbeResult::Success).await;
    assert_eq!(requests.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn probes_of_older_runs_start_with_the_last_status() {
    let port = closed_port().await;
    let mut probe = tcp(port);
    probe["failureThreshold"] = json!(2);
    let container = json!({"startupProbe": tcp(port), "readinessProbe": probe});
    for (id, age, last_status, startup, readiness) in [
        ("1", LONG, status("1", true, true), ProbeResult::Success, ProbeResult::Success),
        ("1", LONG, status("1", true, false), ProbeResult::Success, ProbeResult::Unknown),
        ("1", LONG, status("1", false, false), ProbeResult::Unknown, ProbeResult::Unknown),
        // Another run, or one that started after the daemon.
        ("2", LONG, status("1", true, true), ProbeResult::Unknown, ProbeResult::Unknown),
        ("1", Duration::ZERO, status("1", true, true), ProbeResult::Unknown, ProbeResult::Unknown),
    ] {
        let mut probed = Probed::new(container.clone());
        sleep(Duration::from_millis(1)).await;
        probed.runs_with_status(id, age, &last_status);
        assert_eq!(probed.result(id, ProbeKind::Startup), startup, "{id} {age:?} {last_status:?}");
        assert_eq!(
            probed.result(id, ProbeKind::Readiness),
            readiness,
            "{id} {age:?} {last_status:?}"
        );
    }
    let mut probed = Probed::new(container);
    probed.runs_with_status("1", LONG, &status("1", true, true));
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Failure).await;
    assert!(took > Duration::from_millis(900), "two failures are requests for: {took:?}");
    assert_eq!(probed.result("1", ProbeKind::Startup), ProbeResult::Success);
}

#[tokio::test]
async fn probes_of_a_terminating_pod_are_readiness_only() {
    let (port, requests) = server().await;
    let (live_port, lives) = server().await;
    let mut probed =
        Probed::new(json!({"readinessProbe": tcp(port), "livenessProbe": tcp(live_port)}));
    probed.runs("1", Duration::ZERO);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Success).await;
    probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    probed.probes.stop_liveness_and_startup("u");
    probed.follow();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!((requests.load(Ordering::Relaxed), lives.load(Ordering::Relaxed)), (2, 1));
    probed.observed.containers.clear();
    probed.follow();
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Unknown);
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(requests.load(Ordering::Relaxed), 2, "what does not run is not requests");
}

#[tokio::test]
async fn probes_that_hang_do_not_delay_others() {
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hung = hangs.local_addr().unwrap().port();
    let (port, requests) = server().await;
    let mut probed = Probed::new(json!({
        "livenessProbe": {"httpGet": {"port": hung}, "periodSeconds": 1, "timeoutSeconds": 30},
        "readinessProbe": tcp(port),
    }));
    probed.runs("1", Duration::ZERO);
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Success);
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    probed.probes.forget("u");
    // The probe that hung was dropped.
    let (stream, _) = hangs.accept().await.unwrap();
    let closed = async {
        let mut buffer = [0; 1024];
        while matches!(stream.readable().await.and_then(|()| stream.try_read(&mut buffer)), Ok(n) if n > 0)
        {
        }
    };
    timeout(LONG, closed).await.expect("the connection is closed");
}

#[tokio::test]
async fn probes_wait_for_post_start_hooks() {
    let (port, requests) = server().await;
    let mut probed = Probed::new(json!({"livenessProbe": tcp(port)}));
    probed.runs("1", Duration::ZERO);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Success).await;
    probed.observed.containers[0].id = "2".to_owned();
    let starting = HashSet::from(["c".to_owned()]);
    probed.probes.follow(&probed.pod, &probed.observed, &starting, &PodStatus::default());
    sleep(SHORT).await;
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    probed.follow();
    probed.until("2", ProbeKind::Liveness, ProbeResult::Success).await;
}

#[tokio::test]
async fn probe_tasks_are_small() {
    let probed = Probed::new(json!({}));
    let subject = Subject {
        pod: Pod::default(),
        kind: ContainerKind::Regular,
        container: Container::default(),
        id: String::new(),
        ip: String::new(),
        started_at: Timestamp::now(),
    };
    let task = Task {
        handlers: probed.probes.handlers.clone(),
        pod_events: probed.probes.pod_events.clone(),
        results: watch::Sender::default(),
        subject: Arc::new(subject),
        kind: ProbeKind::Liveness,
        metrics: Metrics::new(&Registry::default()),
    };
    let size = size_of_val(&task.run(Duration::ZERO));
    assert!(size <= 1024, "{size} bytes");
}

#[tokio::test]
async fn probes_close_their_connections() {
    const PODS: usize = 40;
    const SLACK: usize = 20;
    let app = axum::Router::new().fallback(async || "ok");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let http = json!({"httpGet": {"port": port, "path": "/"}, "periodSeconds": 1});
    let pods: Vec<Probed> = (0..PODS)
        .map(|_| {
            let container = json!({"readinessProbe": http, "livenessProbe": tcp(port)});
            let mut probed = Probed::new(container);
            probed.runs("1", LONG);
            probed
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    let before = open_files();
    sleep(Duration::from_secs(3)).await;
    let after = open_files();
    assert!(after < before + SLACK, "{before} open files became {after}");
    assert!(pods.iter().all(|pod| pod.result("1", ProbeKind::Readiness) == ProbeResult::Success));
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

//! Probes execute commands in a runtime in memory, under tokio's paused clock; what goes over the network
//! has tests of its own in `handlers`.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::jiff::SignedDuration;
use longshore_client::events::Recorder;
use longshore_cri::{Options, Runtime};
use longshore_pod::observed::Sandbox;
use longshore_testkit::scripted::{Fault, ScriptedRuntime};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const LONG: Duration = Duration::from_secs(10);
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A probed pod, and its observed state.
struct Probed {
    runtime: ScriptedRuntime,
    probes: Probes,
    pod: Pod,
    observed: ObservedPod,
    results: watch::Receiver<Arc<ProbeResults>>,
}

impl Probed {
    /// A pod whose container has these fields, in a runtime in memory.
    fn new(container: Value) -> Self {
        let runtime = ScriptedRuntime::default();
        let cri = Runtime::in_memory(runtime.clone(), runtime.clone(), CALL_TIMEOUT).unwrap();
        Self::on(cri, runtime, container)
    }

    fn on(cri: Runtime, runtime: ScriptedRuntime, container: Value) -> Self {
        let handlers = Handlers::new(cri);
        let (recorder, _) = Recorder::start(None, "node");
        let probes = Probes::new(
            handlers,
            PodEventRecorder::new(recorder),
            [].into(),
            false,
            &Registry::default(),
        );
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
        Self { runtime, probes, pod, observed, results }
    }

    /// The only running container is this one, started that long ago.
    fn runs(&mut self, id: &str, age: Duration) {
        self.runs_with_status(id, age, &PodStatus::default());
    }

    fn runs_with_status(&mut self, id: &str, age: Duration, last_status: &PodStatus) {
        let started_at = clock::now() - SignedDuration::try_from(age).unwrap();
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
            mounted_images: Default::default(),
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

    /// Wait for that result of the probe; returns after how many milliseconds it was there.
    async fn until(&mut self, id: &str, kind: ProbeKind, result: ProbeResult) -> u128 {
        let start = Instant::now();
        let found = self.results.wait_for(|results| results.get(id, kind) == result);
        timeout(LONG, found).await.expect("in time").unwrap();
        start.elapsed().as_millis()
    }

    /// From now on, that command succeeds, or fails.
    fn set(&self, command: &str, succeeds: bool) {
        let mut world = self.runtime.world();
        match succeeds {
            true => world.failing.remove(command),
            false => world.failing.insert(command.to_owned()),
        };
    }

    /// How often that command was executed.
    fn attempts(&self, command: &str) -> usize {
        self.runtime.count("ExecSync", command)
    }
}

/// A probe by a command each second, of which one failure counts.
fn exec(command: &str) -> Value {
    json!({"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": 1})
}

fn status(id: &str, started: bool, ready: bool) -> PodStatus {
    let status = json!({"containerStatuses": [{
        "name": "c", "containerID": format!("containerd://{id}"), "started": started, "ready": ready,
        "image": "", "imageID": "", "restartCount": 0,
    }]});
    serde_json::from_value(status).unwrap()
}

#[tokio::test(start_paused = true)]
async fn probes_of_readiness_keep_their_period() {
    for period in [1, 5] {
        let mut probe = exec("ready");
        (probe["periodSeconds"], probe["successThreshold"]) = (json!(period), json!(2));
        let mut probed = Probed::new(json!({"readinessProbe": probe}));
        probed.set("ready", false);
        probed.runs("1", Duration::ZERO);
        sleep(Duration::from_millis(3000 * period - 10)).await;
        assert_eq!(probed.attempts("ready"), 3, "period {period}");
        probed.set("ready", true);
        let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
        let expected = u128::from(period) * 1000;
        assert!((expected..expected + 100).contains(&took), "period {period}: {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn probes_ahead_of_their_period_count_only_where_one_success_is_enough() {
    let mut probe = exec("ready");
    (probe["periodSeconds"], probe["successThreshold"]) = (json!(5), json!(3));
    let mut probed = Probed::new(json!({"readinessProbe": probe}));
    probed.probes.early = true;
    probed.set("ready", false);
    probed.runs("1", Duration::ZERO);
    sleep(Duration::from_secs(1)).await;
    probed.set("ready", true);
    sleep(Duration::from_millis(3900)).await;
    assert!(probed.attempts("ready") > 5, "{}", probed.attempts("ready"));
    // Those at 5, 10 and 15 seconds count.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Unknown);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took <= 200, "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn probes_report_readiness_early_if_they_should() {
    let mut probe = exec("ready");
    probe["periodSeconds"] = json!(60);
    let mut probed = Probed::new(json!({"readinessProbe": probe}));
    probed.probes.early = true;
    probed.set("ready", false);
    probed.runs("1", Duration::ZERO);
    sleep(Duration::from_millis(700)).await;
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Unknown);
    let before = probed.attempts("ready");
    assert!(before >= 3, "{before}");
    probed.set("ready", true);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took <= 200, "{took} ms");
    sleep(Duration::from_secs(59)).await;
    assert_eq!(probed.attempts("ready"), before + 1, "once it is ready, there is no hurry");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(probed.attempts("ready"), before + 2);
}

#[tokio::test(start_paused = true)]
async fn probes_report_readiness_changes() {
    let mut probe = exec("ready");
    probe["successThreshold"] = json!(2);
    let mut probed = Probed::new(json!({"readinessProbe": probe}));
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!((1000..1100).contains(&took), "two successes are necessary: {took} ms");
    probed.set("ready", false);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Failure).await;
    assert!((900..=1000).contains(&took), "{took} ms");
    probed.set("ready", true);
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!((1900..=2000).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn probes_respect_the_initial_delay() {
    let mut probed = Probed::new(json!({"livenessProbe": exec("live")}));
    probed.set("live", false);
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    assert!(
        (1000..1100).contains(&took),
        "the failure of the first attempt does not count: {took}"
    );
    // After its initial delay, a failure counts.
    let mut probe = exec("live");
    probe["initialDelaySeconds"] = json!(3);
    probe["periodSeconds"] = json!(60);
    let mut probed = Probed::new(json!({"livenessProbe": probe}));
    probed.set("live", false);
    probed.runs("1", Duration::ZERO);
    let took = probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    assert!((3000..3100).contains(&took), "{took} ms");
    assert_eq!(probed.attempts("live"), 1);
}

#[tokio::test(start_paused = true)]
async fn probes_wait_for_the_startup_probe() {
    let mut probe = exec("started");
    probe["failureThreshold"] = json!(60);
    let mut probed = Probed::new(json!({
        "startupProbe": probe, "readinessProbe": exec("ready"), "livenessProbe": exec("live"),
    }));
    probed.set("started", false);
    probed.runs("1", Duration::ZERO);
    sleep(Duration::from_secs(30)).await;
    assert_eq!((probed.attempts("ready"), probed.attempts("live")), (0, 0));
    probed.set("started", true);
    probed.until("1", ProbeKind::Startup, ProbeResult::Success).await;
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    assert!(took < 10, "the others begin at once, and not after {took} ms");
    let before = probed.attempts("started");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(probed.attempts("started"), before, "it is up, startup probes are done");
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Success);
}

#[tokio::test(start_paused = true)]
async fn probes_start_again_for_a_new_run() {
    let mut probed = Probed::new(json!({"livenessProbe": exec("live")}));
    probed.set("live", false);
    probed.runs("1", LONG);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Failure).await;
    let before = probed.attempts("live");
    probed.set("live", true);
    sleep(LONG).await;
    assert_eq!(probed.attempts("live"), before, "a container that must go is not probed any more");
    probed.runs("2", Duration::ZERO);
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Unknown);
    probed.until("2", ProbeKind::Liveness, ProbeResult::Success).await;
    assert_eq!(probed.attempts("live"), before + 1);
}

#[tokio::test(start_paused = true)]
async fn probes_of_older_runs_start_with_the_last_status() {
    let mut probe = exec("ready");
    probe["failureThreshold"] = json!(2);
    let container = json!({"startupProbe": exec("started"), "readinessProbe": probe});
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
    probed.set("ready", false);
    probed.runs_with_status("1", LONG, &status("1", true, true));
    let took = probed.until("1", ProbeKind::Readiness, ProbeResult::Failure).await;
    assert!((1000..=2000).contains(&took), "two failures are necessary: {took} ms");
    assert_eq!(probed.attempts("ready"), 2);
    assert_eq!(probed.result("1", ProbeKind::Startup), ProbeResult::Success);
}

#[tokio::test(start_paused = true)]
async fn probes_of_a_terminating_pod_are_readiness_only() {
    let mut probed =
        Probed::new(json!({"readinessProbe": exec("ready"), "livenessProbe": exec("live")}));
    probed.runs("1", Duration::ZERO);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Success).await;
    probed.until("1", ProbeKind::Readiness, ProbeResult::Success).await;
    probed.probes.stop_liveness_and_startup("u");
    probed.follow();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!((probed.attempts("ready"), probed.attempts("live")), (2, 1));
    probed.observed.containers.clear();
    probed.follow();
    assert_eq!(probed.result("1", ProbeKind::Readiness), ProbeResult::Unknown);
    sleep(LONG).await;
    assert_eq!(probed.attempts("ready"), 2, "a container that does not run is not probed");
}

#[tokio::test(start_paused = true)]
async fn probes_that_hang_do_not_delay_others() {
    let mut live = exec("live");
    live["timeoutSeconds"] = json!(30);
    let mut probed = Probed::new(json!({"livenessProbe": live, "readinessProbe": exec("ready")}));
    probed.runtime.inject("ExecSync", Fault::Hangs);
    // The first attempt hangs, which counts only after a period, and so does the next one.
    let ready = probed.pod.spec.as_mut().unwrap().containers[0].readiness_probe.take();
    probed.runs("1", Duration::ZERO);
    sleep(Duration::from_millis(100)).await;
    probed.pod.spec.as_mut().unwrap().containers[0].readiness_probe = ready;
    probed.pod.spec.as_mut().unwrap().containers[0].name = "d".to_owned();
    let mut other = probed.observed.containers[0].clone();
    (other.id, other.name) = ("2".to_owned(), "d".to_owned());
    probed.observed.containers.push(other);
    probed.follow();
    sleep(Duration::from_millis(850)).await;
    probed.runtime.inject("ExecSync", Fault::Hangs);
    sleep(Duration::from_millis(1650)).await;
    assert_eq!(probed.result("2", ProbeKind::Readiness), ProbeResult::Success);
    assert_eq!(probed.attempts("ready"), 3);
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Unknown);
    // It has failed once its time is over.
    sleep(Duration::from_secs(31)).await;
    assert_eq!(probed.attempts("ready"), 34);
    assert_eq!(probed.result("1", ProbeKind::Liveness), ProbeResult::Failure);
}

/// A probe that is stopped closes its connection.
#[tokio::test]
async fn probes_that_are_forgotten_are_dropped() {
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hung = hangs.local_addr().unwrap().port();
    let runtime = Runtime::new(Options::new("unix:///nowhere")).unwrap();
    let probe = json!({"httpGet": {"port": hung}, "periodSeconds": 1, "timeoutSeconds": 600});
    let container = json!({"livenessProbe": probe});
    let mut probed = Probed::on(runtime, ScriptedRuntime::default(), container);
    probed.runs("1", Duration::ZERO);
    let (stream, _) = hangs.accept().await.unwrap();
    probed.probes.forget("u");
    let closed = async {
        let mut buffer = [0; 1024];
        while matches!(stream.readable().await.and_then(|()| stream.try_read(&mut buffer)), Ok(n) if n > 0)
        {
        }
    };
    timeout(LONG, closed).await.expect("the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn probes_wait_for_post_start_hooks() {
    let mut probed = Probed::new(json!({"livenessProbe": exec("live")}));
    probed.runs("1", Duration::ZERO);
    probed.until("1", ProbeKind::Liveness, ProbeResult::Success).await;
    probed.observed.containers[0].id = "2".to_owned();
    let starting = HashSet::from(["c".to_owned()]);
    probed.probes.follow(&probed.pod, &probed.observed, &starting, &PodStatus::default());
    sleep(LONG).await;
    assert_eq!(probed.attempts("live"), 1);
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
        started_at: clock::now(),
    };
    let task = Task {
        handlers: probed.probes.handlers.clone(),
        pod_events: probed.probes.pod_events.clone(),
        results: watch::Sender::default(),
        subject: Arc::new(subject),
        kind: ProbeKind::Liveness,
        early: false,
        metrics: Metrics::new(&Registry::default()),
    };
    let size = size_of_val(&task.run(Duration::ZERO));
    assert!(size <= 1024, "{size} bytes");
}

#[tokio::test]
async fn probes_close_their_connections() {
    const PODS: usize = 40;
    const SLACK: usize = 20;
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    let app = axum::Router::new().fallback(async move || {
        count.fetch_add(1, Ordering::Relaxed);
        "ok"
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let http = json!({"httpGet": {"port": port, "path": "/"}, "periodSeconds": 1});
    let tcp = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    let pods: Vec<Probed> = (0..PODS)
        .map(|_| {
            let container = json!({"readinessProbe": http, "livenessProbe": tcp});
            let runtime = Runtime::new(Options::new("unix:///nowhere")).unwrap();
            let mut probed = Probed::on(runtime, ScriptedRuntime::default(), container);
            probed.runs("1", LONG);
            probed
        })
        .collect();
    let rounds = async |number: usize| {
        while served.load(Ordering::Relaxed) < number * PODS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ready = |pod: &Probed| pod.result("1", ProbeKind::Readiness) == ProbeResult::Success;
    let all = async {
        rounds(1).await;
        let before = open_files();
        rounds(3).await;
        let after = open_files();
        assert!(after < before + SLACK, "{before} open files became {after}");
        assert!(pods.iter().all(ready));
    };
    timeout(Duration::from_secs(60), all).await.expect("three rounds of probes");
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

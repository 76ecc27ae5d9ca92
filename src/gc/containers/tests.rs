use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::jiff::Timestamp;
use longshore_client::events::node_reference;
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::{Options, v1};
use longshore_metrics::Registry;
use longshore_pod::observed::{Container, ObservedPod, Sandbox, State};
use longshore_podstate::observe;
use longshore_podstate::sources::{Source, Update};
use proptest::prelude::*;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::*;

const NOW: i64 = 1_000_000;

fn at(age: i64) -> Timestamp {
    Timestamp::from_second(NOW - age).unwrap()
}

fn run(id: &str, name: &str, sandbox: &str, age: i64, state: State) -> Container {
    Container {
        id: id.to_owned(),
        name: name.to_owned(),
        sandbox_id: sandbox.to_owned(),
        restart_count: 0,
        hash: None,
        created_at: at(age),
        image: String::new(),
        image_ref: String::new(),
        log_path: String::new(),
        user: None,
        mounted_images: Default::default(),
        stop_signal: None,
        resources: None,
        state,
    }
}

fn dead() -> State {
    State::Exited {
        started_at: None,
        finished_at: at(0),
        exit_code: 1,
        reason: "Error".to_owned(),
        message: String::new(),
    }
}

fn running() -> State {
    State::Running { started_at: at(0) }
}

fn sandbox(id: &str, age: i64, ready: bool) -> Sandbox {
    Sandbox { id: id.to_owned(), ready, created_at: at(age), ..Sandbox::default() }
}

/// `runs` as `name:age`, with a `+` behind one that runs and a `?` behind one that has yet to; all in sandbox `<uid>-0`, which stands.
fn subject(uid: &str, state: PodState, runs: &[&str]) -> Subject {
    let mut containers: Vec<Container> = runs
        .iter()
        .map(|text| {
            let (name, age) = text.trim_end_matches(['+', '?']).split_once(':').unwrap();
            let state = match text.chars().last() {
                Some('+') => running(),
                Some('?') => State::Created,
                _ => dead(),
            };
            let id = format!("{uid}/{name}:{age}");
            run(&id, name, &format!("{uid}-0"), age.parse().unwrap(), state)
        })
        .collect();
    containers.sort_by_key(|run| std::cmp::Reverse(run.created_at));
    let sandboxes = vec![sandbox(&format!("{uid}-0"), 10_000, state == PodState::Active)];
    let pod = ObservedPod {
        uid: uid.to_owned(),
        name: format!("pod-{uid}"),
        namespace: "ns".to_owned(),
        sandboxes,
        containers,
        partial: false,
    };
    Subject { pod: Arc::new(pod), state }
}

fn policy(min_age: u64, per_container: i32, total: i32) -> Policy {
    Policy {
        min_age: Duration::from_secs(min_age),
        per_container: usize::try_from(per_container).ok(),
        total: usize::try_from(total).ok(),
    }
}

fn ids(removals: &[Removal<'_>]) -> Vec<String> {
    let id = |removal: &Removal<'_>| match removal {
        Removal::Run(_, run) => run.id.clone(),
        Removal::Sandbox(_, sandbox) => sandbox.id.clone(),
    };
    removals.iter().map(id).collect()
}

#[test]
fn container_gc_follows_the_policy() {
    use PodState::{Active, Removable, Terminated};
    let pods = |list: &[(&str, PodState, &[&str])]| -> Vec<Subject> {
        list.iter().map(|(uid, state, runs)| subject(uid, *state, runs)).collect()
    };
    type Case<'a> = (&'a str, Policy, Vec<Subject>, &'a [&'a str]);
    let table: Vec<Case<'_>> = vec![
        (
            "the run before the one that runs is kept for its log",
            policy(0, 1, -1),
            pods(&[("a", Active, &["c:1+", "c:2", "c:3", "c:4"])]),
            &["a/c:4", "a/c:3"],
        ),
        (
            "one that waits for its next start shows its last run",
            policy(0, 1, -1),
            pods(&[("a", Active, &["c:1", "c:2", "d:5", "d:6"])]),
            &["a/c:2", "a/d:6"],
        ),
        (
            "one that is about to start does not cost the log of the one before",
            policy(0, 1, 1),
            pods(&[("a", Active, &["c:1?", "c:2", "c:3", "c:4"])]),
            &["a/c:4", "a/c:3"],
        ),
        (
            "nor does one that never will",
            policy(0, 1, -1),
            pods(&[("a", Active, &["c:1+", "c:2?", "c:3"]), ("b", Terminated, &["c:1", "c:2?"])]),
            &["a/c:2", "b/c:2"],
        ),
        ("no limits", policy(0, -1, -1), pods(&[("a", Active, &["c:1+", "c:2", "c:3"])]), &[]),
        (
            "the young stay",
            policy(3, 0, -1),
            pods(&[("a", Active, &["c:1+", "c:2", "c:3", "c:4"])]),
            &["a/c:4", "a/c:3"],
        ),
        (
            "none is kept, except the record that an init container ran",
            policy(0, 0, 0),
            pods(&[("a", Active, &["c:1+", "c:2", "init:9"]), ("b", Terminated, &["c:1", "c:2"])]),
            &["a/c:2", "b/c:2", "b/c:1"],
        ),
        (
            "an ended pod keeps its logs",
            policy(0, 1, -1),
            pods(&[("a", Terminated, &["c:1", "c:2", "debugger:7"])]),
            &["a/c:2"],
        ),
        (
            "of an evicted or deleted one nothing is kept, but what is young",
            policy(2, -1, -1),
            pods(&[("a", Removable, &["c:1", "c:2", "d:3"])]),
            &["a/c:2", "a/d:3"],
        ),
        (
            "an equal share for each",
            policy(0, -1, 4),
            pods(&[
                ("a", Active, &["c:1+", "c:2", "c:3", "c:4"]),
                ("b", Terminated, &["c:5", "c:6", "c:7"]),
            ]),
            &["a/c:4", "b/c:7"],
        ),
        (
            "shares that do not come out even",
            policy(0, -1, 3),
            pods(&[("a", Active, &["c:1+", "c:2", "c:3"]), ("b", Terminated, &["c:8", "c:9"])]),
            &["a/c:3", "b/c:9"],
        ),
        (
            "a share of one at least, then the oldest",
            policy(0, -1, 2),
            pods(&[
                ("a", Active, &["c:1+", "c:20", "c:30"]),
                ("b", Terminated, &["c:10"]),
                ("c", Terminated, &["c:40", "c:50"]),
            ]),
            &["a/c:30", "c/c:50", "c/c:40"],
        ),
    ];
    for (what, policy, pods, expected) in table {
        let removals = plan(&pods, &policy, at(0));
        assert_eq!(
            ids(&removals).into_iter().filter(|id| id.contains('/')).collect::<Vec<_>>(),
            expected,
            "{what}"
        );
    }
}

#[test]
fn container_gc_ignores_pods_with_partial_state() {
    let mut pod = subject("a", PodState::Removable, &["c:1", "c:2"]);
    Arc::make_mut(&mut pod.pod).partial = true;
    assert!(plan(&[pod], &policy(0, 0, 0), at(0)).is_empty());
}

#[test]
fn container_gc_removes_stopped_empty_sandboxes() {
    for (state, sandboxes, runs, expected) in [
        (PodState::Active, &["s1+", "s0"][..], &["s1:1+"][..], &["s0"][..]),
        // the newest stays, down or not
        (PodState::Active, &["s1", "s0"], &[], &["s0"]),
        (PodState::Terminated, &["s0"], &[], &[]),
        (PodState::Removable, &["s1", "s0"], &[], &["s1", "s0"]),
        // what still stands, or holds a log that is kept
        (PodState::Active, &["s1+", "s0+"], &[], &[]),
        (PodState::Active, &["s1+", "s0"], &["s1:1+", "s0:2"], &[]),
        // its last container goes with it
        (PodState::Active, &["s1+", "s0"], &["s1:1+", "s1:2", "s0:3"], &["s0:3", "s0"]),
        (PodState::Removable, &["s0"], &["s0:3"], &["s0:3", "s0"]),
    ] {
        let containers = runs.iter().map(|text| {
            let alive = text.ends_with('+');
            let text = text.trim_end_matches('+');
            let (sandbox, age) = text.split_once(':').unwrap();
            run(text, "c", sandbox, age.parse().unwrap(), if alive { running() } else { dead() })
        });
        let sandboxes_ = sandboxes.iter().enumerate().map(|(age, text)| {
            sandbox(text.trim_end_matches('+'), age.try_into().unwrap(), text.ends_with('+'))
        });
        let pod = ObservedPod {
            uid: "a".to_owned(),
            containers: containers.collect(),
            sandboxes: sandboxes_.collect(),
            ..ObservedPod::default()
        };
        let pods = [Subject { pod: Arc::new(pod), state }];
        let removals = plan(&pods, &policy(0, 1, -1), at(0));
        assert_eq!(ids(&removals), expected, "{state:?} {sandboxes:?} {runs:?}");
    }
}

fn subjects() -> impl Strategy<Value = Vec<Subject>> {
    let pod_state =
        prop_oneof![Just(PodState::Active), Just(PodState::Terminated), Just(PodState::Removable)];
    let state = prop_oneof![
        4 => Just(dead()),
        1 => Just(running()),
        1 => Just(State::Created),
        1 => Just(State::Unknown)
    ];
    let runs = prop::collection::vec((0..3_u8, 0..3_u8, 0..50_i64, state), 0..12);
    let sandboxes = prop::collection::vec((0..50_i64, any::<bool>()), 0..4);
    let pod = (pod_state, runs, sandboxes, prop::bool::weighted(0.1));
    prop::collection::vec(pod, 0..6).prop_map(|pods| {
        let pods =
            pods.into_iter().enumerate().map(|(uid, (pod_state, runs, sandboxes, partial))| {
                let runs = runs.into_iter().enumerate().map(|(id, (name, sandbox, age, state))| {
                    let id = format!("{uid}-c{id}");
                    run(&id, &format!("n{name}"), &format!("{uid}-s{sandbox}"), age, state)
                });
                let boxes = sandboxes.into_iter().enumerate();
                let boxes =
                    boxes.map(|(id, (age, ready))| sandbox(&format!("{uid}-s{id}"), age, ready));
                let (mut containers, mut sandboxes): (Vec<_>, Vec<_>) =
                    (runs.collect(), boxes.collect());
                containers.sort_by_key(|run| std::cmp::Reverse(run.created_at));
                sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
                let uid = uid.to_string();
                let pod =
                    ObservedPod { uid, containers, sandboxes, partial, ..ObservedPod::default() };
                Subject { pod: Arc::new(pod), state: pod_state }
            });
        pods.collect()
    })
}

/// What is left once all of that is gone.
fn after(pods: &[Subject], removals: &[Removal<'_>]) -> Vec<Subject> {
    let gone: BTreeSet<String> = ids(removals).into_iter().collect();
    let mut pods = pods.to_vec();
    for subject in &mut pods {
        let pod = Arc::make_mut(&mut subject.pod);
        pod.containers.retain(|run| !gone.contains(&run.id));
        pod.sandboxes.retain(|sandbox| !gone.contains(&sandbox.id));
    }
    pods
}

proptest! {
    #[test]
    fn container_gc_keeps_needed_containers_within_limits(
        pods in subjects(),
        min_age in 0..20_u64,
        per_container in -1..4_i32,
        total in -1..20_i32,
    ) {
        let policy = policy(min_age, per_container, total);
        let removals = plan(&pods, &policy, at(0));
        let young = |run: &Container| (NOW - run.created_at.as_second()) < i64::try_from(min_age).unwrap();
        let unique: BTreeSet<String> = ids(&removals).into_iter().collect();
        prop_assert_eq!(unique.len(), removals.len(), "nothing is removed twice");
        let left = after(&pods, &removals);
        for (removal, pod) in removals.iter().map(|removal| match removal {
            Removal::Run(pod, _) | Removal::Sandbox(pod, _) => (removal, *pod),
        }) {
            prop_assert!(!pod.partial);
            let state = pods.iter().find(|subject| subject.pod.uid == pod.uid).unwrap().state;
            match removal {
                Removal::Run(_, run) => {
                    prop_assert!(!run.is_running() && !young(run));
                    let newest = pod.newest(&run.name).unwrap();
                    prop_assert!(state != PodState::Active || newest.id != run.id);
                }
                Removal::Sandbox(_, sandbox) => {
                    prop_assert!(!sandbox.ready);
                    prop_assert!(state == PodState::Removable || pod.sandboxes[0].id != sandbox.id);
                    let mut runs = left.iter().flat_map(|subject| &subject.pod.containers);
                    prop_assert!(runs.all(|run| run.sandbox_id != sandbox.id));
                }
            }
        }
        // No more is kept than allowed, but for what is needed and what is young.
        let mut kept: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let mut needed = 0;
        for Subject { pod, state } in left.iter().filter(|subject| !subject.pod.partial) {
            for run in pod.containers.iter().filter(|run| !run.is_running() && !young(run)) {
                prop_assert!(*state != PodState::Removable);
                let newest = pod.newest(&run.name).unwrap();
                if run.state == State::Created {
                    prop_assert_eq!(&newest.id, &run.id);
                    if *state == PodState::Active {
                        continue;
                    }
                }
                *kept.entry((&pod.uid, &run.name)).or_default() += 1;
                needed += usize::from(*state == PodState::Active && newest.id == run.id);
            }
        }
        if let Some(most) = policy.per_container {
            prop_assert!(kept.values().all(|count| *count <= most.max(1)));
        }
        if let Some(most) = policy.total {
            let count = kept.values().sum::<usize>();
            prop_assert!(count <= most.max(needed), "{count} of {most}, {needed} needed");
        }
        prop_assert!(plan(&left, &policy, at(0)).is_empty(), "a second round finds nothing");
        // Of one container, the older go first.
        for subject in &left {
            for run in &subject.pod.containers {
                let older = removals.iter().filter_map(|removal| match removal {
                    Removal::Run(pod, gone) if pod.uid == subject.pod.uid && gone.name == run.name => Some(gone),
                    _ => None,
                });
                let dead = !run.is_running() && !young(run) && !subject.pod.partial;
                for gone in older.filter(|gone| dead && gone.state != State::Created) {
                    prop_assert!(gone.created_at <= run.created_at);
                }
            }
        }
    }
}

#[test]
fn container_gc_removes_each_object_once() {
    let removing = Mutex::default();
    let first = RemovalGuard::new(&removing, "a");
    assert!(first.is_some() && RemovalGuard::new(&removing, "a").is_none());
    assert!(RemovalGuard::new(&removing, "b").is_some());
    drop(first);
    assert!(RemovalGuard::new(&removing, "a").is_some());
}

#[test]
fn container_gc_plans_ten_thousand_containers() {
    let runs: Vec<String> =
        (0..100).map(|age| format!("c:{age}{}", if age == 0 { "+" } else { "" })).collect();
    let runs: Vec<&str> = runs.iter().map(String::as_str).collect();
    let pods: Vec<Subject> =
        (0..100).map(|uid| subject(&uid.to_string(), PodState::Active, &runs)).collect();
    assert_eq!(plan(&pods, &policy(0, 1, -1), at(0)).len(), 100 * 98);
    assert_eq!(plan(&pods, &policy(0, -1, 250), at(0)).len(), 100 * 99 - 200);
    assert_eq!(plan(&pods, &policy(0, -1, 50), at(0)).len(), 100 * 99 - 50);
}

#[test]
fn container_gc_removes_logs_of_deleted_pods() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, links) = (dir.path().join("pods"), dir.path().join("containers"));
    let keep = ["ns_live_1", "ns_gone", "lost+found", "a_b_c_d", "__x"];
    for name in keep.iter().chain(&["ns_gone_2", "ns_gone.x_3"]) {
        std::fs::create_dir_all(logs.join(name).join("c")).unwrap();
    }
    std::fs::create_dir(&links).unwrap();
    std::fs::write(logs.join("ns_file_4"), "").unwrap();
    std::fs::write(logs.join("ns_live_1/c/0.log"), "").unwrap();
    let link = |name: &str, target: PathBuf| symlink(target, links.join(name)).unwrap();
    link("live_ns_c-a.log", logs.join("ns_live_1/c/0.log"));
    link("rotating_ns_c-b.log", logs.join("ns_live_1/c/1.log"));
    link("gone_ns_c-d.log", logs.join("ns_gone_2/c/0.log"));
    link("others_ns_c-e.log", dir.path().join("elsewhere/0.log"));
    link("notes.txt", logs.join("ns_gone_2/c/0.log"));

    logs::remove_dirs(&logs, |uid| uid == "1").unwrap();
    logs::remove_links(&links, &logs, |id| id == "b");
    let names = |dir: &std::path::Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let mut left = owned(&keep);
    left.insert("ns_file_4".to_owned());
    assert_eq!(names(&logs), left);
    let links_left = ["live_ns_c-a.log", "rotating_ns_c-b.log", "others_ns_c-e.log", "notes.txt"];
    assert_eq!(names(&links), owned(&links_left));
    assert!(logs::remove_dirs(&dir.path().join("none"), |_| false).is_err());
    logs::remove_links(&dir.path().join("none"), &logs, |_| false);
}

#[tokio::test]
async fn container_gc_uses_the_reported_pod_status() {
    let dir = tempfile::tempdir().unwrap();
    let pod = |uid: &str, deleted: bool, status: serde_json::Value| {
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        let metadata = json!({"name": uid, "namespace": "ns", "uid": uid, "deletionTimestamp": at});
        json!({"metadata": metadata, "spec": {"containers": []}, "status": status})
    };
    let done = json!({"phase": "Succeeded"});
    let pods = [
        pod("new", false, json!({})),
        pod("runs", false, json!({"phase": "Running"})),
        pod("stops", true, json!({"phase": "Running"})),
        pod("done", false, done.clone()),
        pod("deleted", true, done.clone()),
        pod("evicted", false, json!({"phase": "Failed", "reason": "Evicted"})),
        pod("preempted", false, json!({"phase": "Failed", "reason": "Preempting"})),
        pod("evicting", false, json!({"phase": "Running", "reason": "Evicted"})),
        pod("reported", false, json!({"phase": "Running"})),
    ];
    let pods = pods.map(|pod| serde_json::from_value(pod).unwrap());
    let (collector, updates) = collector(dir.path(), "unix:///nonexistent");
    updates.send((Source::Api, Update::Snapshot(pods.to_vec()))).await.unwrap();
    let parts = &collector.shared.parts;
    parts.desired.synced().wait_for(|synced| *synced).await.unwrap();
    // The apiserver may not know yet.
    parts
        .status
        .set_status(&parts.desired.pod("reported").unwrap(), serde_json::from_value(done).unwrap());
    for (uid, expected) in [
        ("new", Some(PodState::Active)),
        ("runs", Some(PodState::Active)),
        ("stops", Some(PodState::Active)),
        ("done", Some(PodState::Terminated)),
        ("deleted", Some(PodState::Removable)),
        ("evicted", Some(PodState::Removable)),
        ("preempted", Some(PodState::Removable)),
        ("evicting", Some(PodState::Active)),
        ("reported", Some(PodState::Terminated)),
        ("unknown", None),
    ] {
        assert_eq!(pod_state(parts, uid), expected, "{uid}");
    }
}

/// One with its files in that directory and the policy of the flags' defaults; and the sender of its
/// pods.
fn collector(
    dir: &std::path::Path,
    endpoint: &str,
) -> (Containers, mpsc::Sender<(Source, Update)>) {
    let cri = Runtime::new(Options::new(endpoint)).unwrap();
    let (updates, merged) = mpsc::channel(10);
    let (changes, mut changed) = mpsc::channel(10);
    let desired = Desired::new([Source::Api]);
    tokio::spawn(desired.clone().run(merged, changes));
    tokio::spawn(async move { while changed.recv().await.is_some() {} });
    let (recorder, _) = Recorder::start(None, "node");
    let pod_logs_dir = dir.join("logs");
    std::fs::create_dir(&pod_logs_dir).unwrap();
    let collector = Containers::new(Parts {
        observer: Observer::new(cri.clone(), &Registry::default()),
        cri,
        desired,
        status: StatusWriter::default(),
        recorder,
        node: node_reference("node"),
        policy: policy(0, 1, -1),
        root_dir: dir.to_owned(),
        pod_logs_dir,
    });
    (collector, updates)
}

/// A runtime with so many dead containers of each of so many pods.
#[derive(Clone, Default)]
struct Fake(Arc<FakeState>);

#[derive(Default)]
struct FakeState {
    containers: Mutex<BTreeMap<String, v1::Container>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
    /// Not to be removed.
    stuck: Mutex<String>,
}

impl Fake {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, v1::Container>> {
        self.0.containers.lock()
    }
}

struct NoImages;
impl ImageService for NoImages {}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn list_pod_sandbox(
        &self,
        _: Request<v1::ListPodSandboxRequest>,
    ) -> Result<Response<v1::ListPodSandboxResponse>, Status> {
        Ok(Response::new(v1::ListPodSandboxResponse::default()))
    }

    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let containers = self.lock().values().cloned().collect();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let container = self.lock().get(&id).cloned().ok_or_else(|| Status::not_found(id))?;
        let v1::Container { id, metadata, state, created_at, labels, annotations, .. } = container;
        let status = v1::ContainerStatus {
            id,
            metadata,
            state,
            created_at,
            started_at: created_at,
            finished_at: created_at,
            image: Some(v1::ImageSpec { image: "i".to_owned(), ..v1::ImageSpec::default() }),
            image_ref: "i".to_owned(),
            labels,
            annotations,
            ..v1::ContainerStatus::default()
        };
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status), info: [].into() }))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Result<Response<v1::RemoveContainerResponse>, Status> {
        let under_way = self.0.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(under_way, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let id = request.into_inner().container_id;
        let stuck = *self.0.stuck.lock() == id;
        if !stuck {
            self.lock().remove(&id);
        }
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        match stuck {
            true => Err(Status::internal("removal refused")),
            false => Ok(Response::new(v1::RemoveContainerResponse::default())),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_gc_removes_thousands_of_containers_with_limited_parallelism() {
    const PODS: usize = 20;
    const RUNS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap();
    let add = |id: String, uid: Option<usize>, age: usize| {
        let mut labels = BTreeMap::new();
        if let Some(uid) = uid {
            let pair = |key: &str, value: String| (key.to_owned(), value);
            labels.extend([
                pair(longshore_pod::labels::POD_UID, format!("uid-{uid}")),
                pair(longshore_pod::labels::POD_NAME, format!("pod-{uid}")),
                pair(longshore_pod::labels::POD_NAMESPACE, "default".to_owned()),
                pair(longshore_pod::labels::CONTAINER_NAME, "c".to_owned()),
            ]);
        }
        let container = v1::Container {
            id: id.clone(),
            pod_sandbox_id: "sandbox".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
            state: v1::ContainerState::ContainerExited.into(),
            created_at: now - i64::try_from(age).unwrap() * 1_000_000_000,
            labels,
            ..v1::Container::default()
        };
        fake.lock().insert(id, container);
    };
    // Half of them are one pod's.
    for uid in 0..PODS {
        let runs = if uid == 0 { PODS * RUNS } else { RUNS };
        (0..runs).for_each(|age| add(format!("{uid}/{age}"), Some(uid), age));
    }
    // One of another's, and one of a pod that should not run: its worker's.
    add("foreign".to_owned(), None, 5);
    add("orphan".to_owned(), Some(PODS), 5);
    "7/90".clone_into(&mut fake.0.stuck.lock());

    let socket = dir.path().join("cri.sock");
    let _server =
        longshore_cri::serve(UnixListener::bind(&socket).unwrap(), fake.clone(), NoImages);
    let (collector, updates) = collector(dir.path(), &format!("unix://{}", socket.display()));
    let Parts { desired, observer, .. } = &collector.shared.parts;
    let pods = (0..PODS).map(|uid| {
        let metadata = json!({
            "name": format!("pod-{uid}"), "namespace": "default", "uid": format!("uid-{uid}"),
        });
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap()
    });
    let early = collector.delete_dead_containers().await;
    assert!(matches!(early, Err(Error::Early)), "{early:?}");
    updates.send((Source::Api, Update::Snapshot(pods.collect()))).await.unwrap();
    desired.synced().wait_for(|synced| *synced).await.unwrap();
    tokio::spawn(observe::run(observer.clone(), CancellationToken::new()));
    let started = std::time::Instant::now();
    let seen = || observer.all().iter().filter(|pod| !pod.partial).count();
    while seen() < PODS + 1 {
        assert!(started.elapsed() < Duration::from_secs(300), "only {} pods are seen", seen());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // One pod alone, as when its worker asks.
    collector.tidy("uid-5").await;
    let left = fake.lock().keys().filter(|id| id.starts_with("5/")).count();
    assert_eq!((left, fake.lock().len() > PODS * RUNS), (1, true));

    let done = collector.delete_dead_containers().await;
    let Err(Error::Left(errors)) = done else { panic!("one would not go: {done:?}") };
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("7/90") && errors[0].contains("removal refused"), "{errors:?}");
    let left: BTreeSet<String> = fake.lock().keys().cloned().collect();
    let mut kept: BTreeSet<String> = (0..PODS).map(|uid| format!("{uid}/0")).collect();
    kept.extend(["foreign", "orphan", "7/90"].map(str::to_owned));
    assert_eq!(left, kept);
    let most = fake.0.most.load(Ordering::SeqCst);
    assert!(most <= PARALLEL, "{most} at once");
    fake.0.stuck.lock().clear();
    collector.delete_dead_containers().await.unwrap();
    assert_eq!(fake.lock().len(), PODS + 2);
}

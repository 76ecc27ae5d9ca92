//! A container runtime in memory, whose answers are scripted. It keeps the rules of containerd (names
//! are reserved, a container stops with its sandbox), and records what no runtime should be asked for.
//! It is reached with `longshore_cri::Runtime::in_memory`, and runs under tokio's paused clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use longshore_base::clock;
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::v1::*;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

/// The label of the pod's UID.
const POD_UID: &str = "io.kubernetes.pod.uid";

/// What happens to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails without an effect.
    Fails,
    /// It has its effect, and fails.
    FailsAfter,
    /// It has its effect after this time, though its caller may have gone by then.
    Late(Duration),
    /// It has its effect at once, and is answered after this time.
    AnsweredLate(Duration),
    /// The runtime does not have it.
    Unimplemented,
    /// It has no effect, and fails once faults end.
    Hangs,
    /// It has its effect, and fails once faults end.
    HangsAfter,
}

/// How a container behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// After which time it exits by itself, and its exit code.
    pub exits: Option<(Duration, i32)>,
    /// How long it takes to stop after the stop signal.
    pub stops_in: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { exits: None, stops_in: Duration::from_millis(50) }
    }
}

/// A sandbox.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The UID of its pod.
    pub uid: String,
    config: PodSandboxConfig,
    /// Whether it is not stopped.
    pub ready: bool,
    created: Timestamp,
}

/// A container, which runs once.
#[derive(Clone, Debug)]
pub struct Run {
    /// The UID of its pod.
    pub uid: String,
    /// The name of the container in its pod.
    pub name: String,
    sandbox: String,
    /// As it was requested.
    pub config: ContainerConfig,
    created: Timestamp,
    started: Option<Timestamp>,
    /// When it exited, and its exit code.
    exited: Option<(Timestamp, i32)>,
    /// The grace period that it was given last: by which run of the daemon, when, and its end.
    deadline: Option<(u64, Instant, Instant)>,
}

impl Run {
    /// Whether it was started and has not exited.
    pub fn is_running(&self) -> bool {
        self.started.is_some() && self.exited.is_none()
    }

    fn state(&self) -> ContainerState {
        match (self.started, &self.exited) {
            (_, Some(_)) => ContainerState::ContainerExited,
            (Some(_), None) => ContainerState::ContainerRunning,
            (None, None) => ContainerState::ContainerCreated,
        }
    }
}

/// What a runtime has, and what happened to it.
#[derive(Default)]
pub struct World {
    count: u64,
    /// By id.
    pub sandboxes: BTreeMap<String, Sandbox>,
    /// By id.
    pub runs: BTreeMap<String, Run>,
    /// Names of images that were pulled.
    pub images: BTreeSet<String>,
    /// By container name.
    pub behaviours: HashMap<String, Behaviour>,
    /// Faults of the next calls, by method.
    faults: HashMap<&'static str, VecDeque<Fault>>,
    /// Ends calls that hang.
    faults_end: CancellationToken,
    /// Whether commands that are executed fail.
    pub unhealthy: bool,
    /// Commands that fail, by their first word.
    pub failing: BTreeSet<String>,
    /// Containers that cannot be started, by name.
    pub unstartable: BTreeSet<String>,
    /// How long commands run, by their first word; the others end at once.
    pub lasting: HashMap<String, Duration>,
    /// Which run of the daemon it serves, or of a worker in it.
    pub epoch: u64,
    /// Calls that had an effect: when, which, and the container, the pod, or the first word of the
    /// command.
    pub calls: Vec<(Instant, &'static str, String)>,
    /// Methods of all calls that came.
    pub requests: Vec<&'static str>,
    /// Whether no call reaches it.
    pub is_down: bool,
    /// Whether it reports that its network is not ready.
    pub network_down: bool,
    /// The ranges of pods that were sent to it.
    pub pod_cidrs: Vec<String>,
    /// What should never have been asked for.
    pub violations: Vec<String>,
    events: Vec<mpsc::UnboundedSender<ContainerEventResponse>>,
}

/// A handle of the runtime. Clones share it.
#[derive(Clone, Default)]
pub struct ScriptedRuntime(Arc<Mutex<World>>);

impl ScriptedRuntime {
    /// Its state, locked.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }

    /// The next calls of that method meet this fault.
    pub fn inject(&self, method: &'static str, fault: Fault) {
        self.world().faults.entry(method).or_default().push_back(fault);
    }

    /// No call meets a fault any more; those that hang fail.
    pub fn end_faults(&self) {
        let mut world = self.world();
        world.faults.clear();
        std::mem::take(&mut world.faults_end).cancel();
    }

    /// How containers of that name behave from their next start or stop on.
    pub fn set_behaviour(&self, name: &str, behaviour: Behaviour) {
        self.world().behaviours.insert(name.to_owned(), behaviour);
    }

    /// When calls of the method had an effect on that container or pod.
    pub fn calls(&self, method: &str, about: &str) -> Vec<Instant> {
        let world = self.world();
        let calls = world.calls.iter().filter(|(_, name, of)| *name == method && of == about);
        calls.map(|(at, ..)| *at).collect()
    }

    /// How often they had.
    pub fn count(&self, method: &str, about: &str) -> usize {
        self.calls(method, about).len()
    }

    /// Names of the running containers, sorted.
    pub fn running(&self) -> Vec<String> {
        let world = self.world();
        let mut names: Vec<String> = world
            .runs
            .values()
            .filter(|run| run.is_running())
            .map(|run| run.name.clone())
            .collect();
        names.sort();
        names
    }

    /// A sandbox of the pod with that UID, with running containers of these names, as if a node had made
    /// them. Returns the id of the sandbox, and those of the containers.
    pub fn add_pod(&self, uid: &str, containers: &[&str]) -> (String, Vec<String>) {
        let text = |text: &str| text.to_owned();
        let labels = [
            ("io.kubernetes.pod.name", uid),
            ("io.kubernetes.pod.namespace", "default"),
            (POD_UID, uid),
        ];
        let labels: BTreeMap<String, String> =
            labels.into_iter().map(|(key, value)| (text(key), text(value))).collect();
        let mut world = self.world();
        let metadata = PodSandboxMetadata {
            name: text(uid),
            uid: text(uid),
            namespace: text("default"),
            ..Default::default()
        };
        let config = PodSandboxConfig {
            metadata: Some(metadata),
            labels: labels.clone(),
            ..Default::default()
        };
        let sandbox = world.id("sandbox");
        let made = Sandbox { uid: text(uid), config, ready: true, created: clock::now() };
        world.sandboxes.insert(sandbox.clone(), made);
        let mut ids = Vec::new();
        for name in containers {
            let mut labels = labels.clone();
            labels.insert(text("io.kubernetes.container.name"), text(name));
            let metadata = ContainerMetadata { name: text(name), attempt: 0 };
            let image = ImageSpec { image: text("registry.test/image:1"), ..Default::default() };
            let config = ContainerConfig {
                metadata: Some(metadata),
                image: Some(image),
                labels,
                ..Default::default()
            };
            let run = Run {
                uid: text(uid),
                name: text(name),
                sandbox: sandbox.clone(),
                config,
                created: clock::now(),
                started: Some(clock::now()),
                exited: None,
                deadline: None,
            };
            let id = world.id("run");
            world.runs.insert(id.clone(), run);
            ids.push(id);
        }
        (sandbox, ids)
    }

    /// The pod with that UID is gone, with all that it had.
    pub fn remove_pod(&self, uid: &str) {
        let mut world = self.world();
        world.runs.retain(|_, run| run.uid != uid);
        world.sandboxes.retain(|_, sandbox| sandbox.uid != uid);
    }

    /// A running container of that name exits.
    pub fn exit(&self, name: &str, code: i32) {
        let mut world = self.world();
        let ids = world.runs.iter().filter(|(_, run)| run.is_running() && run.name == name);
        let ids: Vec<String> = ids.map(|(id, _)| id.clone()).collect();
        ids.iter().for_each(|id| world.exit(id, code));
    }

    /// The streams of events end.
    pub fn end_events(&self) {
        self.world().events.clear();
    }

    /// All sandboxes die, with their containers.
    pub fn lose_sandboxes(&self) {
        let mut world = self.world();
        let ids: Vec<String> = world.sandboxes.keys().cloned().collect();
        ids.iter().for_each(|id| world.stop_sandbox(id));
    }

    /// Applies the fault of a call, if it has one, around its effect.
    async fn call<T>(
        &self,
        method: &'static str,
        effect: impl FnOnce(&mut World) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
    {
        let (fault, end) = {
            let mut world = self.world();
            world.requests.push(method);
            if world.is_down {
                return Err(Status::unavailable("the scripted runtime is down"));
            }
            let fault = world.faults.get_mut(method).and_then(VecDeque::pop_front);
            (fault, world.faults_end.clone())
        };
        let failure = || Status::unknown(format!("scripted failure of {method}"));
        match fault {
            None => effect(&mut self.world()).map(Response::new),
            Some(Fault::Fails) => Err(failure()),
            Some(Fault::Unimplemented) => Err(Status::unimplemented(method)),
            Some(Fault::FailsAfter) => {
                effect(&mut self.world())?;
                Err(failure())
            }
            Some(Fault::Hangs) => {
                end.cancelled().await;
                Err(failure())
            }
            Some(Fault::HangsAfter) => {
                effect(&mut self.world())?;
                end.cancelled().await;
                Err(failure())
            }
            Some(Fault::AnsweredLate(delay)) => {
                let answer = effect(&mut self.world())?;
                sleep(delay).await;
                Ok(Response::new(answer))
            }
            Some(Fault::Late(delay)) => {
                let runtime = self.clone();
                let late = tokio::spawn(async move {
                    sleep(delay).await;
                    effect(&mut runtime.world())
                });
                late.await.map_err(|error| Status::internal(error.to_string()))?.map(Response::new)
            }
        }
    }
}

impl World {
    fn id(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}{}", self.count)
    }

    fn note(&mut self, method: &'static str, about: &str) {
        self.calls.push((Instant::now(), method, about.to_owned()));
    }

    fn exit(&mut self, id: &str, code: i32) {
        let Some(run) = self.runs.get_mut(id).filter(|run| run.is_running()) else { return };
        run.exited = Some((clock::now(), code));
        let metadata = PodSandboxMetadata { uid: run.uid.clone(), ..Default::default() };
        let event = ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: ContainerEventType::ContainerStoppedEvent.into(),
            pod_sandbox_status: Some(PodSandboxStatus {
                metadata: Some(metadata),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.events.retain(|events| events.send(event.clone()).is_ok());
    }

    fn stop_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        sandbox.ready = false;
        let inside = self.runs.iter().filter(|(_, run)| run.sandbox == id && run.is_running());
        let inside: Vec<String> = inside.map(|(id, _)| id.clone()).collect();
        inside.iter().for_each(|id| self.exit(id, 137));
    }

    fn run_sandbox(&mut self, config: PodSandboxConfig) -> Result<String, Status> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let (uid, attempt) = (metadata.uid, metadata.attempt);
        let same = self.sandboxes.values().filter(|sandbox| sandbox.uid == uid);
        for sandbox in same.clone() {
            if sandbox.config.metadata.as_ref().is_some_and(|other| other.attempt == attempt) {
                return Err(Status::unknown("failed to reserve sandbox name"));
            }
        }
        if same.clone().any(|sandbox| sandbox.ready) {
            self.violations.push(format!("a second sandbox of {uid}, attempt {attempt}"));
        }
        let id = self.id("sandbox");
        let created = clock::now();
        self.note("RunPodSandbox", &uid);
        self.sandboxes.insert(id.clone(), Sandbox { uid, config, ready: true, created });
        Ok(id)
    }

    fn create(&mut self, sandbox: String, config: ContainerConfig) -> Result<String, Status> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let Some(of) = self.sandboxes.get(&sandbox) else {
            return Err(Status::not_found("no such sandbox"));
        };
        if !of.ready {
            return Err(Status::unknown("sandbox is not running"));
        }
        let uid = of.uid.clone();
        let same = |run: &Run| {
            run.uid == uid && run.config.metadata.as_ref().is_some_and(|other| *other == metadata)
        };
        if self.runs.values().any(same) {
            return Err(Status::unknown("failed to reserve container name"));
        }
        let id = self.id("run");
        self.note("CreateContainer", &metadata.name);
        let run = Run {
            uid,
            name: metadata.name,
            sandbox,
            config,
            created: clock::now(),
            started: None,
            exited: None,
            deadline: None,
        };
        self.runs.insert(id.clone(), run);
        Ok(id)
    }

    /// Returns after which time it exits by itself, and its exit code.
    fn start(&mut self, id: &str) -> Result<Option<(Duration, i32)>, Status> {
        let Some(run) = self.runs.get(id).cloned() else {
            return Err(Status::not_found("no such container"));
        };
        if run.started.is_some() || run.exited.is_some() {
            return Err(Status::unknown("container is not in created state"));
        }
        if !self.sandboxes.get(&run.sandbox).is_some_and(|sandbox| sandbox.ready) {
            return Err(Status::unknown("sandbox is not running"));
        }
        let twin =
            |other: &Run| other.is_running() && other.uid == run.uid && other.name == run.name;
        if self.runs.values().any(twin) {
            self.violations.push(format!("two runs of container {}", run.name));
        }
        if let Some(run) = self.runs.get_mut(id) {
            run.started = Some(clock::now());
        }
        self.note("StartContainer", &run.name);
        Ok(self.behaviours.get(&run.name).and_then(|behaviour| behaviour.exits))
    }

    /// Sends the stop signal, which was asked for at `asked`. Returns after which time the container has
    /// exited, at the latest after its grace period; `None`: it does not run.
    fn signal(&mut self, id: &str, asked: Instant, grace: Duration) -> Option<Duration> {
        let epoch = self.epoch;
        let run = self.runs.get_mut(id).filter(|run| run.is_running())?;
        // The node means a period from when it asks: a call that is late is not its fault.
        let (name, end) = (run.name.clone(), asked + grace);
        // Grace periods are whole seconds in CRI, and two are left after any preStop hook.
        let allowed = Duration::from_secs(3);
        // A call that arrives late extends nothing: a later one may have shortened the period since.
        let of_epoch = run.deadline.filter(|(of, ..)| *of == epoch);
        let is_outdated = of_epoch.is_some_and(|(_, last, _)| asked < last);
        if let Some((.., before)) = of_epoch.filter(|_| !is_outdated)
            && end > before.max(asked) + allowed
        {
            let extended = end.duration_since(before);
            self.violations.push(format!("grace period of {name} extended by {extended:?}"));
        }
        if let Some(run) = self.runs.get_mut(id).filter(|_| !is_outdated) {
            run.deadline = Some((epoch, asked, end));
        }
        self.note("StopContainer", &name);
        let stops_in = self.behaviours.get(&name).cloned().unwrap_or_default().stops_in;
        Some(stops_in.min(grace))
    }

    fn status(&self, id: &str, run: &Run) -> ContainerStatus {
        let image = run.config.image.clone().unwrap_or_default();
        let nanos = |at: Option<Timestamp>| at.map_or(0, nanoseconds);
        ContainerStatus {
            id: id.to_owned(),
            metadata: run.config.metadata.clone(),
            state: run.state().into(),
            created_at: nanoseconds(run.created),
            started_at: nanos(run.started),
            finished_at: nanos(run.exited.map(|(at, _)| at)),
            exit_code: run.exited.map_or(0, |(_, code)| code),
            reason: match run.exited {
                None => String::new(),
                Some((_, 0)) => "Completed".to_owned(),
                Some(_) => "Error".to_owned(),
            },
            image_ref: image.image.clone(),
            image: Some(image),
            labels: run.config.labels.clone(),
            annotations: run.config.annotations.clone(),
            ..ContainerStatus::default()
        }
    }
}

fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl RuntimeService for ScriptedRuntime {
    async fn version(
        &self,
        _: Request<VersionRequest>,
    ) -> Result<Response<VersionResponse>, Status> {
        let version = |_: &mut World| {
            Ok(VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "scripted".to_owned(),
                runtime_version: "1".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        };
        self.call("Version", version).await
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let status = |world: &mut World| {
            let ready = |name: &str| RuntimeCondition {
                r#type: name.to_owned(),
                status: true,
                ..Default::default()
            };
            let network = match world.network_down {
                false => ready("NetworkReady"),
                true => RuntimeCondition {
                    status: false,
                    reason: "NetworkPluginNotReady".to_owned(),
                    message: "scripted".to_owned(),
                    ..ready("NetworkReady")
                },
            };
            let conditions = vec![ready("RuntimeReady"), network];
            let status = Some(RuntimeStatus { conditions });
            Ok(StatusResponse { status, ..Default::default() })
        };
        self.call("Status", status).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        let config = request.into_inner().runtime_config.unwrap_or_default();
        let update = move |world: &mut World| {
            world.pod_cidrs.push(config.network_config.unwrap_or_default().pod_cidr);
            Ok(UpdateRuntimeConfigResponse::default())
        };
        self.call("UpdateRuntimeConfig", update).await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let config = request.into_inner().config.unwrap_or_default();
        let run = |world: &mut World| {
            let pod_sandbox_id = world.run_sandbox(config)?;
            Ok(RunPodSandboxResponse { pod_sandbox_id })
        };
        self.call("RunPodSandbox", run).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let stop = move |world: &mut World| {
            let uid = world.sandboxes.get(&id).map(|sandbox| sandbox.uid.clone());
            world.note("StopPodSandbox", &uid.unwrap_or_default());
            world.stop_sandbox(&id);
            Ok(StopPodSandboxResponse {})
        };
        self.call("StopPodSandbox", stop).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let remove = move |world: &mut World| {
            if world.sandboxes.get(&id).is_some_and(|sandbox| sandbox.ready) {
                return Err(Status::unknown("sandbox is running"));
            }
            world.sandboxes.remove(&id);
            world.runs.retain(|_, run| run.sandbox != id);
            Ok(RemovePodSandboxResponse {})
        };
        self.call("RemovePodSandbox", remove).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let status = move |world: &mut World| {
            let Some(sandbox) = world.sandboxes.get(&id) else {
                return Err(Status::not_found("no such sandbox"));
            };
            let network =
                PodSandboxNetworkStatus { ip: "192.0.2.7".to_owned(), ..Default::default() };
            let linux = sandbox.config.linux.clone().unwrap_or_default();
            let options = linux.security_context.unwrap_or_default().namespace_options;
            let status = PodSandboxStatus {
                id,
                metadata: sandbox.config.metadata.clone(),
                state: sandbox_state(sandbox).into(),
                created_at: nanoseconds(sandbox.created),
                network: Some(network).filter(|_| sandbox.ready),
                labels: sandbox.config.labels.clone(),
                linux: Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options }) }),
                ..Default::default()
            };
            Ok(PodSandboxStatusResponse { status: Some(status), ..Default::default() })
        };
        self.call("PodSandboxStatus", status).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let selector = request.into_inner().filter.unwrap_or_default().label_selector;
        let uid = selector.get(POD_UID).cloned();
        let list = move |world: &mut World| {
            let wanted = world.sandboxes.iter();
            let wanted = wanted.filter(|(_, one)| uid.as_ref().is_none_or(|uid| *uid == one.uid));
            let items = wanted.map(|(id, sandbox)| PodSandbox {
                id: id.clone(),
                metadata: sandbox.config.metadata.clone(),
                state: sandbox_state(sandbox).into(),
                created_at: nanoseconds(sandbox.created),
                labels: sandbox.config.labels.clone(),
                ..Default::default()
            });
            Ok(ListPodSandboxResponse { items: items.collect() })
        };
        self.call("ListPodSandbox", list).await
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        let CreateContainerRequest { pod_sandbox_id, config, .. } = request.into_inner();
        let create = move |world: &mut World| {
            let container_id = world.create(pod_sandbox_id, config.unwrap_or_default())?;
            Ok(CreateContainerResponse { container_id })
        };
        self.call("CreateContainer", create).await
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        let (id, runtime) = (request.into_inner().container_id, self.clone());
        let start = move |world: &mut World| {
            let name = world.runs.get(&id).map(|run| run.name.as_str()).unwrap_or_default();
            if world.unstartable.contains(name) {
                return Err(Status::unknown(format!("no task for container {id:?}")));
            }
            if let Some((after, code)) = world.start(&id)? {
                tokio::spawn(async move {
                    sleep(after).await;
                    runtime.world().exit(&id, code);
                });
            }
            Ok(StartContainerResponse {})
        };
        self.call("StartContainer", start).await
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let StopContainerRequest { container_id: id, timeout } = request.into_inner();
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        let (of, runtime, asked) = (id.clone(), self.clone(), Instant::now());
        let signal = move |world: &mut World| {
            let stops_in = world.signal(&of, asked, grace);
            if let Some(stops_in) = stops_in.filter(|stops_in| *stops_in < grace) {
                // The stop signal stays sent, though the caller may go.
                tokio::spawn(async move {
                    sleep(stops_in).await;
                    runtime.world().exit(&of, 143);
                });
            }
            Ok(stops_in)
        };
        if let Some(stops_in) = self.call("StopContainer", signal).await?.into_inner() {
            sleep(stops_in).await;
            // If it is running still: as the signal has it, or killed.
            self.world().exit(&id, if stops_in < grace { 143 } else { 137 });
        }
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        let remove = move |world: &mut World| {
            if world.runs.get(&id).is_some_and(Run::is_running) {
                let name = world.runs[&id].name.clone();
                world.violations.push(format!("removal of {name}, which is running"));
                return Err(Status::unknown("container is running"));
            }
            world.runs.remove(&id);
            Ok(RemoveContainerResponse {})
        };
        self.call("RemoveContainer", remove).await
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let list = |world: &mut World| {
            let containers = world.runs.iter().map(|(id, run)| Container {
                id: id.clone(),
                pod_sandbox_id: run.sandbox.clone(),
                metadata: run.config.metadata.clone(),
                state: run.state().into(),
                created_at: nanoseconds(run.created),
                labels: run.config.labels.clone(),
                ..Default::default()
            });
            Ok(ListContainersResponse { containers: containers.collect() })
        };
        self.call("ListContainers", list).await
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let status = move |world: &mut World| {
            let Some(run) = world.runs.get(&id) else {
                return Err(Status::not_found("no such container"));
            };
            let status = Some(world.status(&id, run));
            Ok(ContainerStatusResponse { status, ..Default::default() })
        };
        self.call("ContainerStatus", status).await
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        let id = request.into_inner().container_id;
        let update = move |world: &mut World| {
            let name = world.runs.get(&id).map(|run| run.name.clone()).unwrap_or_default();
            world.note("UpdateContainerResources", &name);
            Ok(UpdateContainerResourcesResponse {})
        };
        self.call("UpdateContainerResources", update).await
    }

    async fn exec_sync(
        &self,
        request: Request<ExecSyncRequest>,
    ) -> Result<Response<ExecSyncResponse>, Status> {
        let command = request.into_inner().cmd.into_iter().next().unwrap_or_default();
        let exec = move |world: &mut World| {
            world.note("ExecSync", &command);
            let fails = world.unhealthy || world.failing.contains(&command);
            let exit_code = i32::from(fails);
            let lasts = world.lasting.get(&command).map(|time| (command, *time));
            Ok((ExecSyncResponse { exit_code, ..Default::default() }, lasts))
        };
        let (answer, lasts) = self.call("ExecSync", exec).await?.into_inner();
        if let Some((command, time)) = lasts {
            let _command = RunningCommand { runtime: self.clone(), command };
            sleep(time).await;
        }
        Ok(Response::new(answer))
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        let (events, received) = mpsc::unbounded_channel();
        self.call("GetContainerEvents", |world| {
            world.events.push(events);
            Ok(())
        })
        .await?;
        let events = futures::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|event| (Ok(event), received))
        });
        Ok(Response::new(events.boxed()))
    }
}

/// A command that lasts: its end is noted, also if the caller goes, with which it is killed.
struct RunningCommand {
    runtime: ScriptedRuntime,
    command: String,
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.runtime.world().note("EndOfExecSync", &self.command);
    }
}

fn sandbox_state(sandbox: &Sandbox) -> PodSandboxState {
    match sandbox.ready {
        true => PodSandboxState::SandboxReady,
        false => PodSandboxState::SandboxNotready,
    }
}

#[tonic::async_trait]
impl ImageService for ScriptedRuntime {
    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let info = |_: &mut World| {
            let usage = FilesystemUsage {
                timestamp: nanoseconds(clock::now()),
                fs_id: Some(FilesystemIdentifier { mountpoint: "/".to_owned() }),
                ..Default::default()
            };
            Ok(ImageFsInfoResponse {
                image_filesystems: vec![usage.clone()],
                container_filesystems: vec![usage],
            })
        };
        self.call("ImageFsInfo", info).await
    }

    async fn list_images(
        &self,
        _: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        let list = |world: &mut World| {
            let images = world.images.iter().map(|name| Image {
                id: name.clone(),
                repo_tags: vec![name.clone()],
                size: 1,
                ..Default::default()
            });
            Ok(ListImagesResponse { images: images.collect() })
        };
        self.call("ListImages", list).await
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let status = move |world: &mut World| {
            let image = world.images.contains(&name).then(|| Image {
                id: name.clone(),
                repo_tags: vec![name],
                size: 1,
                ..Default::default()
            });
            Ok(ImageStatusResponse { image, ..Default::default() })
        };
        self.call("ImageStatus", status).await
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let pull = move |world: &mut World| {
            world.note("PullImage", &name);
            world.images.insert(name.clone());
            Ok(PullImageResponse { image_ref: name })
        };
        self.call("PullImage", pull).await
    }
}

//! A driver for tests, in memory or on real sockets. It records calls, and answers as scripted.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use hyper::Request as HttpRequest;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use longshore_grpc::{Connection, Server, Stream as IoStream, service_of};
use longshore_plugins::registration::registration_server::Registration;
use longshore_plugins::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use longshore_plugins::{DRA_PLUGIN, serve_registration};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, async_trait};
use tower::Service as _;

use crate::Manager;
use crate::api::health::dra_resource_health_server::{
    self, DraResourceHealth, DraResourceHealthServer,
};
use crate::api::health::{DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use crate::api::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::api::v1::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use crate::api::v1beta1::dra_plugin_server::{
    self as earlier, DraPlugin as EarlierPlugin, DraPluginServer as EarlierServer,
};
use crate::plugin::Service;

/// The capacity of a pipe in memory, in bytes.
const PIPE: usize = 1 << 16;

/// What a driver does with a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Behaviour {
    /// It does what it is asked.
    #[default]
    Well,
    /// It never answers.
    Hangs,
    /// The call fails with this message.
    Fails(String),
    /// Each claim fails with this message.
    FailsClaims(String),
    /// It answers for a claim that it was not asked for, too.
    AnswersForOthers,
    /// It answers for no claim.
    AnswersNothing,
    /// Its answer is so many bytes long.
    IsLarge(usize),
}

#[derive(Default)]
struct State {
    /// Methods and the names of the claims.
    calls: Vec<(String, Vec<String>)>,
    prepare: Behaviour,
    unprepare: Behaviour,
    /// The devices of claims, by name; others have one device for all requests.
    devices: BTreeMap<String, Vec<Device>>,
    /// The names of claims that are prepared.
    prepared: Vec<String>,
    /// Of what its registration was notified.
    statuses: Vec<(bool, String)>,
}

/// A driver for tests. Clones share it.
#[derive(Clone)]
pub struct ScriptedDriver {
    name: String,
    state: Arc<Mutex<State>>,
    /// The devices that it reports; `None`: it does not report.
    health: watch::Sender<Option<Vec<DeviceHealth>>>,
    /// Its connections in memory, and whether it accepts new ones.
    connections: Arc<Mutex<Option<Vec<AbortOnDropHandle<()>>>>>,
}

/// A driver that listens on sockets, until this is dropped.
pub struct Listening {
    _driver: Server,
    registration: Option<(Server, PathBuf)>,
}

impl Listening {
    /// Removes the socket of its registration: the driver wants to be unregistered.
    pub fn withdraw(&mut self) {
        if let Some((_, socket)) = self.registration.take() {
            std::fs::remove_file(socket).unwrap();
        }
    }
}

impl ScriptedDriver {
    /// A driver of that name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: Arc::default(),
            health: watch::Sender::new(None),
            connections: Arc::new(Mutex::new(Some(Vec::new()))),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What it does when it is asked to prepare claims.
    pub fn on_prepare(&self, behaviour: Behaviour) {
        self.state().prepare = behaviour;
    }

    /// What it does when it is asked to unprepare claims.
    pub fn on_unprepare(&self, behaviour: Behaviour) {
        self.state().unprepare = behaviour;
    }

    /// The devices of the claim of that name.
    pub fn set_devices(&self, claim: &str, devices: Vec<Device>) {
        self.state().devices.insert(claim.to_owned(), devices);
    }

    /// A device for these requests, with these names for the runtime.
    pub fn device(name: &str, requests: &[&str], cdi: &[&str]) -> Device {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Device {
            request_names: owned(requests),
            pool_name: "pool".to_owned(),
            device_name: name.to_owned(),
            cdi_device_ids: owned(cdi),
            share_id: None,
        }
    }

    /// Reports this health of its devices.
    pub fn report(&self, devices: Vec<DeviceHealth>) {
        self.health.send_replace(Some(devices));
    }

    /// The calls so far: methods and the names of the claims.
    pub fn calls(&self) -> Vec<(String, Vec<String>)> {
        self.state().calls.clone()
    }

    /// The names of the claims that are prepared.
    pub fn prepared(&self) -> Vec<String> {
        self.state().prepared.clone()
    }

    /// Of what its registration was notified: whether it is registered, and the error.
    pub fn statuses(&self) -> Vec<(bool, String)> {
        self.state().statuses.clone()
    }

    /// Registers it with a manager, through pipes in memory.
    pub fn register(&self, manager: &Manager) {
        let driver = self.clone();
        let connection = Connection::dial(move || std::future::ready(driver.accept()));
        let endpoint = format!("memory:{}", self.name);
        manager.drivers().add(&self.name, &endpoint, Service::V1, connection).unwrap();
    }

    /// Unregisters it.
    pub fn unregister(&self, manager: &Manager) {
        manager.drivers().remove(&self.name, &format!("memory:{}", self.name));
    }

    /// Closes its connections in memory, and accepts none.
    pub fn stop(&self) {
        *self.connections.lock() = None;
    }

    /// Accepts connections in memory again.
    pub fn resume(&self) {
        *self.connections.lock() = Some(Vec::new());
    }

    pub(crate) fn accept(&self) -> io::Result<Box<dyn IoStream>> {
        let mut connections = self.connections.lock();
        let connections = connections.as_mut().ok_or(io::ErrorKind::ConnectionRefused)?;
        let (client, server) = tokio::io::duplex(PIPE);
        let driver = self.clone();
        let served = http2::Builder::new(TokioExecutor::new()).serve_connection(
            TokioIo::new(server),
            service_fn(move |request| driver.clone().serve(request)),
        );
        connections.push(AbortOnDropHandle::new(tokio::spawn(async move {
            let _ = served.await;
        })));
        Ok(Box::new(client))
    }

    /// Listens on a socket in `dir`, and registers in `registry`, the node's `plugins_registry` directory.
    /// Creates both.
    pub fn listen(&self, dir: &Path, registry: &Path, services: &[&str]) -> Listening {
        for dir in [dir, registry] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let endpoint = dir.join("dra.sock");
        let registration = registry.join(format!("reg-{}.sock", self.name.replace('/', "_")));
        for socket in [&endpoint, &registration] {
            let _ = std::fs::remove_file(socket);
        }
        let driver = self.clone();
        let listener = UnixListener::bind(&endpoint).unwrap();
        let served =
            Server::serve(listener, service_fn(move |request| driver.clone().serve(request)));
        let registrar = Registrar {
            driver: self.clone(),
            endpoint: endpoint.display().to_string(),
            services: services.iter().map(|name| (*name).to_owned()).collect(),
        };
        let listener = UnixListener::bind(&registration).unwrap();
        let registrar = serve_registration(listener, registrar);
        Listening { _driver: served, registration: Some((registrar, registration)) }
    }

    async fn serve(
        self,
        request: HttpRequest<Incoming>,
    ) -> Result<hyper::Response<tonic::body::Body>, std::convert::Infallible> {
        match service_of(request.uri().path()) {
            earlier::SERVICE_NAME => EarlierServer::new(self).call(request).await,
            dra_resource_health_server::SERVICE_NAME => {
                DraResourceHealthServer::new(self).call(request).await
            }
            _ => DraPluginServer::new(self).call(request).await,
        }
    }

    fn note(&self, method: &str, claims: &[Claim]) {
        let names = claims.iter().map(|claim| claim.name.clone()).collect();
        self.state().calls.push((method.to_owned(), names));
    }

    async fn prepare(
        &self,
        claims: Vec<Claim>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        self.note("prepare", &claims);
        let behaviour = self.state().prepare.clone();
        let mut answers = NodePrepareResourcesResponse::default();
        for claim in &claims {
            answers.claims.insert(claim.uid.clone(), self.prepare_claim(&claim.name));
        }
        match behaviour {
            Behaviour::Well => {}
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Fails(message) => return Err(Status::internal(message)),
            Behaviour::FailsClaims(message) => {
                for answer in answers.claims.values_mut() {
                    *answer = NodePrepareResourceResponse {
                        error: message.clone(),
                        ..NodePrepareResourceResponse::default()
                    };
                }
            }
            Behaviour::AnswersForOthers => {
                answers.claims.insert("of-others".to_owned(), self.prepare_claim("others"));
            }
            Behaviour::AnswersNothing => answers.claims.clear(),
            Behaviour::IsLarge(bytes) => {
                for answer in answers.claims.values_mut() {
                    answer.error = "x".repeat(bytes);
                }
            }
        }
        let names = claims.into_iter().map(|claim| claim.name);
        self.state().prepared.extend(names);
        Ok(Response::new(answers))
    }

    fn prepare_claim(&self, name: &str) -> NodePrepareResourceResponse {
        let devices = self.state().devices.get(name).cloned();
        let cdi = format!("example.com/device={name}");
        let devices = devices.unwrap_or_else(|| vec![Self::device(name, &[], &[&cdi])]);
        NodePrepareResourceResponse { devices, error: String::new() }
    }

    async fn unprepare(
        &self,
        claims: Vec<Claim>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        self.note("unprepare", &claims);
        let behaviour = self.state().unprepare.clone();
        let answer = |error: &str| NodeUnprepareResourceResponse { error: error.to_owned() };
        let mut answers = NodeUnprepareResourcesResponse::default();
        for claim in &claims {
            answers.claims.insert(claim.uid.clone(), answer(""));
        }
        match behaviour {
            Behaviour::Well => {}
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Fails(message) => return Err(Status::internal(message)),
            Behaviour::FailsClaims(message) => {
                answers.claims.values_mut().for_each(|own| *own = answer(&message));
            }
            Behaviour::AnswersForOthers => {
                answers.claims.insert("of-others".to_owned(), answer(""));
            }
            Behaviour::AnswersNothing => answers.claims.clear(),
            Behaviour::IsLarge(bytes) => {
                answers.claims.values_mut().for_each(|own| *own = answer(&"x".repeat(bytes)));
            }
        }
        let mut state = self.state();
        state.prepared.retain(|name| !claims.iter().any(|claim| claim.name == *name));
        Ok(Response::new(answers))
    }
}

#[async_trait]
impl DraPlugin for ScriptedDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        self.prepare(request.into_inner().claims).await
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        self.unprepare(request.into_inner().claims).await
    }
}

#[async_trait]
impl EarlierPlugin for ScriptedDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        self.note("v1beta1", &[]);
        self.prepare(request.into_inner().claims).await
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        self.note("v1beta1", &[]);
        self.unprepare(request.into_inner().claims).await
    }
}

type Reports = Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

#[async_trait]
impl DraResourceHealth for ScriptedDriver {
    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Reports>, Status> {
        let mut reports = self.health.subscribe();
        reports.mark_changed();
        let stream = futures::stream::unfold(reports, |mut reports| async {
            loop {
                reports.changed().await.ok()?;
                let devices = reports.borrow_and_update().clone();
                if let Some(devices) = devices {
                    return Some((Ok(NodeWatchResourcesResponse { devices }), reports));
                }
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// The registration of a driver.
struct Registrar {
    driver: ScriptedDriver,
    endpoint: String,
    services: Vec<String>,
}

#[async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: self.driver.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: self.services.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.driver.state().statuses.push((plugin_registered, error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

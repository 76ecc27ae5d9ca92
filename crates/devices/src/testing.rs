//! A device plugin for tests, which follows a script.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use longshore_grpc::{Endpoint, Server};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};
use tower::Service as _;

use crate::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::v1beta1::registration_client::RegistrationClient;
use crate::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};

/// What a plugin does.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Its options.
    pub options: DevicePluginOptions,
    /// Methods that fail with `no`.
    pub fails: BTreeSet<&'static str>,
    /// Methods that never answer.
    pub hangs: BTreeSet<&'static str>,
    /// Whether allocations are answered for no container.
    pub answers_for_none: bool,
    /// The devices that it prefers.
    pub prefers: Vec<String>,
    /// What a container gets, besides the variable `DEVICES` with the IDs.
    pub response: ContainerAllocateResponse,
}

/// A running plugin; it is gone when it is dropped.
#[derive(Debug)]
pub struct ScriptedPlugin {
    server: Server,
    socket: PathBuf,
    devices: watch::Sender<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
}

/// A device without a topology.
pub fn device(id: &str, health: &str) -> Device {
    Device { id: id.to_owned(), health: health.to_owned(), topology: None }
}

/// A healthy device on a NUMA node.
pub fn device_on(id: &str, node: i64) -> Device {
    let topology = Some(TopologyInfo { nodes: vec![NumaNode { id: node }] });
    Device { topology, ..device(id, crate::HEALTHY) }
}

impl ScriptedPlugin {
    /// Serves on a socket of that name in the folder, in place of one that is left there.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn start(
        folder: &Path,
        name: &str,
        devices: Vec<Device>,
        script: Script,
    ) -> io::Result<Self> {
        let socket = folder.join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let (devices, calls) = (watch::Sender::new(devices), Arc::default());
        let plugin = Plugin {
            script: Arc::new(script),
            devices: devices.clone(),
            calls: Arc::clone(&calls),
        };
        let service = DevicePluginServer::new(plugin).max_encoding_message_size(usize::MAX);
        let server = Server::serve(
            listener,
            service_fn(move |request: Request<Incoming>| service.clone().call(request)),
        );
        Ok(Self { server, socket, devices, calls })
    }

    /// Registers for a resource at the daemon whose folder it is.
    ///
    /// # Errors
    /// What the daemon answers.
    pub async fn register(&self, resource: &str) -> Result<(), Status> {
        let endpoint = self.socket.file_name().unwrap_or_default().to_string_lossy();
        let folder = self.socket.parent().unwrap_or(Path::new("/"));
        register(folder, "v1beta1", resource, &endpoint).await
    }

    /// Lists other devices.
    pub fn list(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    /// The methods that were called, with the IDs of devices.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    /// Its process ends.
    pub async fn stop(self) {
        self.server.stop().await;
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Registers anything.
///
/// # Errors
/// What the daemon answers.
pub async fn register(
    folder: &Path,
    version: &str,
    resource: &str,
    endpoint: &str,
) -> Result<(), Status> {
    let daemon = folder.join("kubelet.sock").display().to_string();
    let daemon =
        Endpoint::parse(&daemon).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    RegistrationClient::new(daemon.channel()).register(request).await.map(drop)
}

struct Plugin {
    script: Arc<Script>,
    devices: watch::Sender<Vec<Device>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Plugin {
    async fn call(&self, method: &'static str, ids: &[String]) -> Result<(), Status> {
        self.calls.lock().push(format!("{method} {}", ids.join(",")).trim_end().to_owned());
        if self.script.hangs.contains(method) {
            std::future::pending::<()>().await;
        }
        match self.script.fails.contains(method) {
            true => Err(Status::unknown("no")),
            false => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: tonic::Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.call("GetDevicePluginOptions", &[]).await?;
        Ok(Response::new(self.script.options))
    }

    async fn list_and_watch(
        &self,
        _: tonic::Request<Empty>,
    ) -> Result<Response<BoxStream<ListAndWatchResponse>>, Status> {
        self.call("ListAndWatch", &[]).await?;
        let lists = WatchStream::new(self.devices.subscribe());
        let lists = lists.map(|devices| Ok(ListAndWatchResponse { devices }));
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: tonic::Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let available = requests.first().map(|own| own.available_device_i_ds.clone());
        self.call("GetPreferredAllocation", &available.unwrap_or_default()).await?;
        let device_i_ds = self.script.prefers.clone();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: tonic::Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let ids: Vec<String> = requests.into_iter().flat_map(|own| own.devices_ids).collect();
        self.call("Allocate", &ids).await?;
        let mut response = self.script.response.clone();
        let own = BTreeMap::from([("DEVICES".to_owned(), ids.join(","))]);
        response.envs.extend(own);
        let container_responses =
            if self.script.answers_for_none { Vec::new() } else { vec![response] };
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: tonic::Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.call("PreStartContainer", &request.into_inner().devices_ids).await?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

//! The PodResources API, v1 and v1alpha1, on `pod-resources/kubelet.sock` in the root directory: which
//! CPUs, memory and devices each container has, and what the node has of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_grpc::{RequestLimit, Server, service_of, socket};
use longshore_pod::spec::{self, ContainerKind};
use tokio::net::UnixListener;
use tonic::{Response, Status};
use tower::Service as _;

use crate::manager::Devices;
use crate::metrics::Metrics;
use crate::state::Device;

/// Messages and server trait generated from `proto/podresources/v1.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("v1");
}

/// Messages and server trait generated from `proto/podresources/v1alpha1.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

use v1::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use v1alpha1::pod_resources_lister_server as alpha;

/// The socket below the root directory.
const SOCKET: &str = "pod-resources/kubelet.sock";
const V1: &str = "v1";
const V1ALPHA1: &str = "v1alpha1";

/// Memory of a container, or of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// `memory`, or huge pages such as `hugepages-2Mi`.
    pub resource: String,
    /// Bytes.
    pub size: u64,
    /// NUMA nodes.
    pub nodes: Vec<u32>,
}

/// What the API reports besides the devices of plugins.
pub trait Sources: Send + Sync + 'static {
    /// All pods of the node.
    fn pods(&self) -> Vec<Arc<Pod>>;
    /// Those that have not terminated.
    fn active_pods(&self) -> Vec<Arc<Pod>>;
    /// A pod by namespace and name.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
    /// The exclusive CPUs of a container of the pod with that UID.
    fn cpus(&self, uid: &str, container: &str) -> Vec<u32>;
    /// The CPUs that can be exclusive.
    fn allocatable_cpus(&self) -> Vec<u32>;
    /// The exclusive memory of a container.
    fn memory(&self, uid: &str, container: &str) -> Vec<Memory>;
    /// The memory that can be exclusive.
    fn allocatable_memory(&self) -> Vec<Memory>;
    /// The devices that a container has by resource claims.
    fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<v1::DynamicResource>;
}

/// The server's inputs.
#[derive(Clone)]
pub struct PodResources {
    inner: Arc<Inner>,
}

struct Inner {
    sources: Box<dyn Sources>,
    devices: Devices,
    metrics: Metrics,
    /// Whether terminated pods are left out (gate `KubeletPodResourcesListUseActivePods`).
    lists_active: bool,
    limit: RequestLimit,
}

impl PodResources {
    /// A server that answers from these.
    pub fn new(
        sources: impl Sources,
        devices: Devices,
        metrics: Metrics,
        lists_active: bool,
    ) -> Self {
        let sources = Box::new(sources);
        Self {
            inner: Arc::new(Inner {
                sources,
                devices,
                metrics,
                lists_active,
                limit: RequestLimit::default(),
            }),
        }
    }

    /// Serves the API below the root directory, forever.
    pub async fn run(self, root_dir: &Path) {
        socket::keep(root_dir.join(SOCKET), |listener| self.clone().serve(listener)).await;
    }

    fn serve(self, listener: UnixListener) -> Server {
        let new = PodResourcesListerServer::new(self.clone());
        let old = alpha::PodResourcesListerServer::new(self);
        let dispatch = service_fn(move |request: Request<Incoming>| {
            if service_of(request.uri().path()) == alpha::SERVICE_NAME {
                old.clone().call(request)
            } else {
                new.clone().call(request)
            }
        });
        Server::serve(listener, dispatch)
    }

    fn pod_resources(&self, pod: &Pod) -> v1::PodResources {
        let containers = pod.spec.iter().flat_map(spec::containers);
        // Init containers hold nothing once they have ended.
        let containers = containers.filter(|(kind, _)| *kind != ContainerKind::Init);
        v1::PodResources {
            name: spec::name(pod).to_owned(),
            namespace: spec::namespace(pod).to_owned(),
            containers: containers.map(|(_, own)| self.container(pod, own)).collect(),
        }
    }

    fn container(&self, pod: &Pod, container: &Container) -> v1::ContainerResources {
        let Inner { sources, devices, .. } = &*self.inner;
        let (uid, name) = (spec::uid(pod), &container.name);
        v1::ContainerResources {
            name: name.clone(),
            devices: container_devices(&devices.of_container(uid, name)),
            cpu_ids: ids(sources.cpus(uid, name)),
            memory: memory(sources.memory(uid, name)),
            dynamic_resources: sources.dynamic_resources(pod, container),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for PodResources {
    async fn list(
        &self,
        _: tonic::Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.inner.limit.admit()?;
        let Inner { sources, metrics, lists_active, .. } = &*self.inner;
        metrics.requests.with([V1]).inc();
        metrics.lists.with([V1]).inc();
        let pods = if *lists_active { sources.active_pods() } else { sources.pods() };
        let pod_resources = pods.iter().map(|pod| self.pod_resources(pod)).collect();
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.inner.limit.admit()?;
        let Inner { sources, metrics, devices, .. } = &*self.inner;
        metrics.requests.with([V1]).inc();
        metrics.allocatables.with([V1]).inc();
        Ok(Response::new(v1::AllocatableResourcesResponse {
            devices: container_devices(&devices.allocatable()),
            cpu_ids: ids(sources.allocatable_cpus()),
            memory: memory(sources.allocatable_memory()),
        }))
    }

    async fn get(
        &self,
        request: tonic::Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.inner.limit.admit()?;
        let Inner { sources, metrics, .. } = &*self.inner;
        metrics.requests.with([V1]).inc();
        metrics.gets.with([V1]).inc();
        let v1::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let Some(pod) = sources.pod(&pod_namespace, &pod_name) else {
            metrics.get_errors.with([V1]).inc();
            return Err(Status::unknown(format!(
                "pod {pod_name} in namespace {pod_namespace} not found"
            )));
        };
        let pod_resources = Some(self.pod_resources(&pod));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}

#[tonic::async_trait]
impl alpha::PodResourcesLister for PodResources {
    async fn list(
        &self,
        _: tonic::Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        self.inner.limit.admit()?;
        let Inner { sources, metrics, devices, .. } = &*self.inner;
        metrics.requests.with([V1ALPHA1]).inc();
        let container = |uid: &str, name: &str| v1alpha1::ContainerResources {
            name: name.to_owned(),
            devices: container_devices(&devices.of_container(uid, name))
                .into_iter()
                .map(|own| v1alpha1::ContainerDevices {
                    resource_name: own.resource_name,
                    device_ids: own.device_ids,
                })
                .collect(),
        };
        let pod = |pod: &Arc<Pod>| {
            let containers = pod.spec.iter().flat_map(|own| &own.containers);
            v1alpha1::PodResources {
                name: spec::name(pod).to_owned(),
                namespace: spec::namespace(pod).to_owned(),
                containers: containers.map(|own| container(spec::uid(pod), &own.name)).collect(),
            }
        };
        let pod_resources = sources.pods().iter().map(pod).collect();
        Ok(Response::new(v1alpha1::ListPodResourcesResponse { pod_resources }))
    }
}

/// An entry for each device and NUMA node, as upstream has it.
fn container_devices(
    resources: &BTreeMap<String, BTreeMap<String, Device>>,
) -> Vec<v1::ContainerDevices> {
    let mut entries = Vec::new();
    for (resource, devices) in resources {
        for (id, device) in devices {
            let entry = |node: Option<i64>| v1::ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
                topology: node.map(|id| v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] }),
            };
            match &device.nodes {
                None => entries.push(entry(None)),
                Some(nodes) => entries.extend(nodes.iter().map(|node| entry(Some(*node)))),
            }
        }
    }
    entries
}

fn ids(cpus: Vec<u32>) -> Vec<i64> {
    cpus.into_iter().map(i64::from).collect()
}

fn memory(blocks: Vec<Memory>) -> Vec<v1::ContainerMemory> {
    let block = |own: Memory| v1::ContainerMemory {
        memory_type: own.resource,
        size: own.size,
        topology: Some(v1::TopologyInfo {
            nodes: own.nodes.into_iter().map(|id| v1::NumaNode { id: id.into() }).collect(),
        }),
    };
    blocks.into_iter().map(block).collect()
}

#[cfg(test)]
mod tests;

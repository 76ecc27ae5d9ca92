use longshore_grpc::Endpoint;
use longshore_metrics::Registry;
use longshore_topology::DeviceProvider;
use serde_json::json;

use super::v1::pod_resources_lister_client::PodResourcesListerClient;
use super::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as OldClient;
use super::*;
use crate::manager::Settings;
use crate::select::Preferences;
use crate::testing::{Script, ScriptedPlugin, device, device_on};

const GPU: &str = "example.com/gpu";

struct Fixed;

fn pod(name: &str, phase: &str) -> Arc<Pod> {
    let own = |name: &str| json!({"name": name, "resources": {"limits": {GPU: 1}}});
    let mut sidecar = own("side");
    sidecar["restartPolicy"] = json!("Always");
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"initContainers": [own("init"), sidecar], "containers": [own("main")]},
            "status": {"phase": phase},
        }))
        .unwrap(),
    )
}

impl Sources for Fixed {
    fn pods(&self) -> Vec<Arc<Pod>> {
        vec![pod("runs", "Running"), pod("ended", "Succeeded")]
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        vec![pod("runs", "Running")]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods()
            .into_iter()
            .find(|pod| (spec::namespace(pod), spec::name(pod)) == (namespace, name))
    }

    fn cpus(&self, _: &str, container: &str) -> Vec<u32> {
        if container == "main" { vec![2, 3] } else { Vec::new() }
    }

    fn allocatable_cpus(&self) -> Vec<u32> {
        vec![1, 2, 3]
    }

    fn memory(&self, _: &str, container: &str) -> Vec<Memory> {
        let block = Memory { resource: "memory".to_owned(), size: 4096, nodes: vec![0, 1] };
        if container == "main" { vec![block] } else { Vec::new() }
    }

    fn allocatable_memory(&self) -> Vec<Memory> {
        vec![Memory { resource: "hugepages-2Mi".to_owned(), size: 2 << 20, nodes: vec![1] }]
    }

    fn dynamic_resources(&self, pod: &Pod, container: &Container) -> Vec<v1::DynamicResource> {
        let device = v1::ClaimResource {
            driver_name: "d".to_owned(),
            pool_name: "p".to_owned(),
            device_name: "x".to_owned(),
            share_id: None,
            cdi_devices: vec![v1::CdiDevice { name: "v/c=x".to_owned() }],
        };
        let claim = v1::DynamicResource {
            claim_name: "claim".to_owned(),
            claim_namespace: "ns".to_owned(),
            claim_resources: vec![device],
        };
        if (spec::uid(pod), &*container.name) == ("runs", "main") {
            vec![claim]
        } else {
            Vec::new()
        }
    }
}

struct Setup {
    root: tempfile::TempDir,
    server: PodResources,
    registry: Registry,
    running: tokio::task::JoinHandle<()>,
    _plugin: ScriptedPlugin,
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// A node whose pod `runs` holds a device for each of its containers that is not over.
async fn setup(lists_active: bool) -> Setup {
    let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
    let metrics = Metrics::new(&registry);
    let settings = Settings {
        root_dir: root.path().to_owned(),
        reports_health: true,
        waits_for_plugins: false,
        numa_nodes: || vec![0],
    };
    let devices = Devices::open(settings, metrics.clone());
    let running = tokio::spawn(devices.clone().run());
    let folder = root.path().join("device-plugins");
    while !folder.join("kubelet.sock").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let list = vec![device_on("a", 0), device("b", "Healthy"), device("c", "Unhealthy")];
    let plugin = ScriptedPlugin::start(&folder, "p.sock", list, Script::default()).unwrap();
    plugin.register(GPU).await.unwrap();
    devices.capacity().wait_for(|seen| seen.0.contains_key(GPU)).await.unwrap();
    let (own, preferences) = (pod("runs", "Running"), Preferences::default());
    let mut selection = devices.select(&own, &preferences);
    for container in ["init", "side", "main"] {
        selection.allocate(container, None).unwrap();
    }
    selection.commit();
    devices.allocate("runs").await.unwrap();
    let server = PodResources::new(Fixed, devices, metrics, lists_active);
    Setup { root, server, registry, running, _plugin: plugin }
}

fn entry(id: &str, node: Option<i64>) -> v1::ContainerDevices {
    v1::ContainerDevices {
        resource_name: GPU.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: node.map(|id| v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] }),
    }
}

#[tokio::test]
async fn pod_resources_are_listed() {
    let setup = setup(true).await;
    let request = tonic::Request::new(v1::ListPodResourcesRequest {});
    let listed = PodResourcesLister::list(&setup.server, request).await.unwrap().into_inner();
    let [own] = &*listed.pod_resources else { panic!("{listed:?}") };
    assert_eq!((&*own.name, &*own.namespace), ("runs", "ns"));
    let names: Vec<_> = own.containers.iter().map(|own| &*own.name).collect();
    assert_eq!(names, ["side", "main"], "no init containers");
    assert_eq!(own.containers[0].devices, [entry("a", Some(0))]);
    let main = &own.containers[1];
    assert_eq!(main.devices, [entry("b", None)]);
    assert_eq!(main.cpu_ids, [2, 3]);
    assert_eq!((main.memory[0].size, &*main.memory[0].memory_type), (4096, "memory"));
    assert_eq!(main.memory[0].topology.as_ref().unwrap().nodes.len(), 2);
    let claim = &main.dynamic_resources[0];
    assert_eq!(claim.claim_resources[0].cdi_devices[0].name, "v/c=x");

    let request = tonic::Request::new(v1alpha1::ListPodResourcesRequest {});
    let listed = alpha::PodResourcesLister::list(&setup.server, request).await.unwrap();
    let pods = listed.into_inner().pod_resources;
    assert_eq!(pods.len(), 2, "the old API lists all pods");
    let names: Vec<_> = pods[0].containers.iter().map(|own| &*own.name).collect();
    assert_eq!(names, ["main"]);
    assert_eq!(pods[0].containers[0].devices[0].device_ids, ["b"]);
}

#[tokio::test]
async fn pod_resources_of_all_pods_are_listed_where_that_is_configured() {
    let setup = setup(false).await;
    let request = tonic::Request::new(v1::ListPodResourcesRequest {});
    let listed = PodResourcesLister::list(&setup.server, request).await.unwrap().into_inner();
    assert_eq!(listed.pod_resources.len(), 2);
}

#[tokio::test]
async fn pod_resources_of_one_pod_and_of_the_node() {
    let setup = setup(true).await;
    let get = |name: &str| {
        let (pod_name, pod_namespace) = (name.to_owned(), "ns".to_owned());
        let request = v1::GetPodResourcesRequest { pod_name, pod_namespace };
        PodResourcesLister::get(&setup.server, tonic::Request::new(request))
    };
    let found = get("runs").await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!(found.containers.len(), 2);
    let error = get("other").await.unwrap_err();
    let expected = (tonic::Code::Unknown, "pod other in namespace ns not found");
    assert_eq!((error.code(), error.message()), expected);

    let request = tonic::Request::new(v1::AllocatableResourcesRequest {});
    let node = setup.server.get_allocatable_resources(request).await.unwrap().into_inner();
    assert_eq!(node.devices, [entry("a", Some(0)), entry("b", None)], "healthy ones");
    assert_eq!(node.cpu_ids, [1, 2, 3]);
    assert_eq!(node.memory[0].size, 2 << 20);

    let page = longshore_metrics::parse::parse(&setup.registry.text()).unwrap();
    for (name, expected) in [
        ("requests_total", 3.0),
        ("requests_get", 2.0),
        ("errors_get", 1.0),
        ("requests_get_allocatable", 1.0),
    ] {
        let name = format!("kubelet_pod_resources_endpoint_{name}");
        assert_eq!(page.sum(&name, &[("server_api_version", "v1")]), Some(expected), "{name}");
    }
}

#[tokio::test]
async fn pod_resources_are_served_on_a_socket() {
    let setup = setup(true).await;
    let (server, root) = (setup.server.clone(), setup.root.path().to_owned());
    let serving = tokio::spawn(async move { server.run(&root).await });
    let socket = setup.root.path().join(SOCKET);
    while tokio::net::UnixStream::connect(&socket).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let endpoint = Endpoint::parse(socket.to_str().unwrap()).unwrap();
    let mut client = PodResourcesListerClient::new(endpoint.channel());
    let request = v1::ListPodResourcesRequest {};
    assert_eq!(client.list(request).await.unwrap().into_inner().pod_resources.len(), 1);
    let mut old = OldClient::new(endpoint.channel());
    let request = v1alpha1::ListPodResourcesRequest {};
    assert_eq!(old.list(request).await.unwrap().into_inner().pod_resources.len(), 2);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn pod_resources_requests_are_rate_limited() {
    let devices = Devices::default();
    let metrics = Metrics::new(&Registry::default());
    let server = PodResources::new(Fixed, devices, metrics, true);
    let list = || async {
        let request = tonic::Request::new(v1::ListPodResourcesRequest {});
        PodResourcesLister::list(&server, request).await.map(drop)
    };
    for _ in 0..10 {
        assert!(list().await.is_ok());
    }
    let refused = list().await.unwrap_err();
    let expected = (tonic::Code::ResourceExhausted, "rejected by rate limit");
    assert_eq!((refused.code(), refused.message()), expected);
    tokio::time::advance(std::time::Duration::from_millis(10)).await;
    assert!(list().await.is_ok());
    assert!(list().await.is_err());
}

//! Real sockets, with a scripted plugin.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_metrics::Registry;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::state::Amount;
use crate::testing::{Script, ScriptedPlugin, device, device_on, register};
use crate::v1beta1::{self, DevicePluginOptions};

const GPU: &str = "example.com/gpu";

struct Node {
    root: TempDir,
    devices: Devices,
    registry: Registry,
    running: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn open(root: &Path, waits_for_plugins: bool, registry: &Registry) -> Devices {
    let settings = Settings {
        root_dir: root.to_owned(),
        reports_health: true,
        waits_for_plugins,
        numa_nodes: || vec![0, 1],
    };
    Devices::open(settings, Metrics::new(registry))
}

impl Node {
    async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), false).await
    }

    async fn start_in(root: TempDir, waits: bool) -> Self {
        let registry = Registry::default();
        let devices = open(root.path(), waits, &registry);
        let running = tokio::spawn(devices.clone().run());
        let node = Self { root, devices, registry, running };
        node.listens().await;
        node
    }

    fn folder(&self) -> PathBuf {
        self.root.path().join(FOLDER)
    }

    async fn listens(&self) {
        let socket = self.folder().join(SOCKET);
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn plugin(&self, name: &str, ids: &[&str], script: Script) -> ScriptedPlugin {
        let devices = ids.iter().map(|id| device(id, "Healthy")).collect();
        ScriptedPlugin::start(&self.folder(), name, devices, script).unwrap()
    }

    /// A registered plugin whose devices are known.
    async fn ready(&self, name: &str, ids: &[&str], script: Script) -> ScriptedPlugin {
        let plugin = self.plugin(name, ids, script);
        plugin.register(GPU).await.unwrap();
        self.has(ids.len(), ids.len()).await;
        plugin
    }

    /// Waits until the node has that capacity.
    async fn has(&self, capacity: usize, allocatable: usize) {
        let amount = Amount { capacity, allocatable };
        let mut seen = self.devices.capacity();
        seen.wait_for(|seen| seen.0.get(GPU) == Some(&amount)).await.unwrap();
    }

    /// Admits a pod as the node does.
    async fn admit(&self, pod: &Pod) -> Result<(), String> {
        let mut preferences = Preferences::default();
        loop {
            let query = {
                let mut selection = self.devices.select(pod, &preferences);
                let containers = spec::containers(pod.spec.as_ref().unwrap());
                let outcome = containers
                    .map(|(_, own)| own.name.clone())
                    .collect::<Vec<_>>()
                    .iter()
                    .try_for_each(|name| selection.allocate(name, None));
                match outcome {
                    Ok(()) => {
                        selection.commit();
                        None
                    }
                    Err(DeviceRefusal::Unanswered) => selection.query(),
                    Err(refusal) => return Err(refusal.to_string()),
                }
            };
            let Some(query) = query else { break };
            let preference = self.devices.prefer(&query).await;
            preferences.add(query, preference);
        }
        self.devices.allocate(spec::uid(pod)).await.map_err(|error| error.to_string())
    }

    async fn container(&self, pod: &Pod) -> Result<ContainerDevices, Error> {
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        self.devices.container(pod, &container).await
    }
}

fn pod(uid: &str, count: u32) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: count}}}]},
    }))
    .unwrap()
}

fn fails(method: &'static str) -> Script {
    Script { fails: BTreeSet::from([method]), ..Script::default() }
}

#[tokio::test]
async fn device_plugin_registers_lists_allocates_and_goes() {
    let node = Node::start().await;
    let response = ContainerAllocateResponse {
        mounts: vec![v1beta1::Mount { host_path: "/lib".to_owned(), ..Default::default() }],
        ..ContainerAllocateResponse::default()
    };
    let script = Script { response, ..Script::default() };
    let plugin = node.ready("gpu.sock", &["a", "b"], script).await;
    plugin.list(vec![device("a", "Healthy"), device("b", "Unhealthy")]);
    node.has(2, 1).await;
    node.admit(&pod("1", 1)).await.unwrap();
    let own = node.container(&pod("1", 1)).await.unwrap();
    assert_eq!(own.envs["DEVICES"], "a");
    assert_eq!(own.mounts[0].host_path, "/lib");
    assert!(node.admit(&pod("2", 1)).await.unwrap_err().contains("Requested: 1, Available: 0"));
    let calls = ["GetDevicePluginOptions", "ListAndWatch", "Allocate a"];
    assert_eq!(plugin.calls(), calls);
    plugin.stop().await;
    node.has(2, 0).await;
    assert_eq!(node.container(&pod("1", 1)).await.unwrap(), own, "it is started again as it was");
    let page = longshore_metrics::parse::parse(&node.registry.text()).unwrap();
    let labels = [("resource_name", GPU)];
    assert_eq!(page.sum("kubelet_device_plugin_registration_total", &labels), Some(1.0));
    assert_eq!(page.sum("kubelet_device_plugin_alloc_duration_seconds_count", &labels), Some(1.0));
    node.devices.release("1");
    assert!(node.devices.of_container("1", "c").is_empty());
}

#[tokio::test]
async fn device_allocations_outlive_the_daemon() {
    let node = Node::start().await;
    let plugin = node.ready("gpu.sock", &["a", "b"], Script::default()).await;
    plugin.list(vec![device_on("a", 1), device_on("b", 0)]);
    let is_known = || node.devices.allocatable()[GPU]["a"].nodes == Some(vec![1]);
    while !is_known() {
        sleep(Duration::from_millis(5)).await;
    }
    node.admit(&pod("1", 1)).await.unwrap();
    let own = node.container(&pod("1", 1)).await.unwrap();

    let again = open(node.root.path(), false, &Registry::default());
    assert!(!again.is_new());
    let none = Amount { capacity: 0, allocatable: 0 };
    assert_eq!(again.capacity().borrow().0, [(GPU.to_owned(), none)].into());
    assert_eq!(again.of_container("1", "c")[GPU]["a"].nodes, Some(vec![1]));
    assert!(again.concerns(&pod("1", 1)) && again.concerns(&pod("2", 1)));
    let container = pod("1", 1).spec.unwrap().containers.remove(0);
    assert_eq!(again.container(&pod("1", 1), &container).await, Ok(own));
    again.retain(|uid| uid != "1");
    assert!(again.of_container("1", "c").is_empty());
}

#[tokio::test]
async fn device_pods_wait_for_their_plugin_where_they_should() {
    let node = Node::start().await;
    let plugin = node.ready("gpu.sock", &["a"], Script::default()).await;
    node.admit(&pod("1", 1)).await.unwrap();
    let own = node.container(&pod("1", 1)).await.unwrap();
    plugin.stop().await;
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(FOLDER)).unwrap();
    let file = crate::store::FILE;
    std::fs::copy(node.folder().join(file), root.path().join(FOLDER).join(file)).unwrap();

    let again = Node::start_in(root, true).await;
    assert!(!again.devices.must_readmit(&pod("1", 1), false));
    let waiting = again.container(&pod("1", 1)).await;
    assert_eq!(waiting, Err(Error::Waiting(GPU.to_owned())));
    let _plugin = again.ready("gpu.sock", &["a"], Script::default()).await;
    assert_eq!(again.container(&pod("1", 1)).await, Ok(own));

    let usual = open(node.root.path(), false, &Registry::default());
    assert!(usual.must_readmit(&pod("1", 1), false));
    assert!(!usual.must_readmit(&pod("1", 1), true), "it runs");
}

#[tokio::test]
async fn device_pods_without_an_allocation_get_one_when_they_start() {
    let node = Node::start().await;
    let plugin = node.ready("gpu.sock", &["a"], Script::default()).await;
    let own = node.container(&pod("1", 1)).await.unwrap();
    assert_eq!(own.envs["DEVICES"], "a");
    assert_eq!(plugin.calls().last().unwrap(), "Allocate a");
    let error = node.container(&pod("2", 1)).await.unwrap_err();
    assert!(error.to_string().contains("Requested: 1, Available: 0"), "{error}");
}

#[tokio::test]
async fn device_plugin_that_fails_is_refused_or_refuses_pods() {
    let node = Node::start().await;
    let plugin = node.plugin("a.sock", &["a"], fails("GetDevicePluginOptions"));
    let error = plugin.register("example.com/a").await.unwrap_err();
    let expected = "failed to get device plugin options: rpc error: code = Unknown desc = no";
    assert_eq!((error.code(), error.message()), (tonic::Code::Unknown, expected));
    assert_eq!(plugin.calls(), ["GetDevicePluginOptions"], "it is not used");

    let failing = node.plugin("b.sock", &["a"], fails("ListAndWatch"));
    failing.register(GPU).await.unwrap();
    node.has(0, 0).await;

    let _refusing = node.ready("c.sock", &["a"], fails("Allocate")).await;
    let error = node.admit(&pod("1", 1)).await.unwrap_err();
    assert_eq!(error, "rpc error: code = Unknown desc = no");
    node.devices.release("1");

    let script = Script { answers_for_none: true, ..Script::default() };
    let _lying = node.ready("d.sock", &["a"], script).await;
    let error = node.admit(&pod("1", 1)).await.unwrap_err();
    assert_eq!(error, "no containers return in allocation response of example.com/gpu");
    node.devices.release("1");

    let good = node.ready("e.sock", &["a"], Script::default()).await;
    assert_eq!(node.admit(&pod("1", 1)).await, Ok(()));
    good.stop().await;
    node.has(1, 0).await;
    let error = node.admit(&pod("2", 1)).await.unwrap_err();
    assert!(error.contains("no healthy devices present"), "{error}");
}

#[tokio::test]
async fn device_plugin_that_hangs_holds_up_its_own_pod_only() {
    let node = Node::start().await;
    let script = Script { hangs: BTreeSet::from(["Allocate"]), ..Script::default() };
    let plugin = node.ready("gpu.sock", &["a", "b"], script).await;
    let other = node.plugin("nic.sock", &["n"], Script::default());
    other.register("example.com/nic").await.unwrap();
    let mut capacity = node.devices.capacity();
    capacity.wait_for(|seen| seen.0.contains_key("example.com/nic")).await.unwrap();
    let (devices, own) = (node.devices.clone(), pod("1", 1));
    let preferences = Preferences::default();
    let mut selection = devices.select(&own, &preferences);
    selection.allocate("c", None).unwrap();
    selection.commit();
    let hanging = tokio::spawn(async move { devices.allocate("1").await });
    while plugin.calls().last().is_none_or(|call| !call.starts_with("Allocate")) {
        sleep(Duration::from_millis(5)).await;
    }
    let mut nic = pod("2", 0);
    let limits = json!({"limits": {"example.com/nic": 1}});
    nic.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(limits).unwrap();
    assert_eq!(node.admit(&nic).await, Ok(()));
    assert!(!hanging.is_finished());
    tokio::time::pause();
    let error = hanging.await.unwrap().unwrap_err().to_string();
    assert_eq!(error, "rpc error: code = DeadlineExceeded desc = no response in time");
}

#[tokio::test]
async fn device_plugin_is_asked_before_containers_start() {
    let node = Node::start().await;
    let options = DevicePluginOptions { pre_start_required: true, ..Default::default() };
    let script = Script { options, ..Script::default() };
    let plugin = node.ready("gpu.sock", &["a"], script.clone()).await;
    let error = node.container(&pod("1", 1)).await.unwrap_err().to_string();
    let expected = "no devices found allocated in local cache for pod 1, container c, resource \
                    example.com/gpu";
    assert_eq!(error, expected);
    node.admit(&pod("1", 1)).await.unwrap();
    node.container(&pod("1", 1)).await.unwrap();
    assert_eq!(plugin.calls().last().unwrap(), "PreStartContainer a");
    plugin.stop().await;
    node.has(1, 0).await;
    let stopped = node.container(&pod("1", 1)).await;
    assert_eq!(stopped, Err(Error::Stopped(GPU.to_owned())));
    let script = Script { fails: BTreeSet::from(["PreStartContainer"]), ..script };
    let _plugin = node.ready("gpu.sock", &["a"], script).await;
    let error = node.container(&pod("1", 1)).await.unwrap_err().to_string();
    let expected =
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = no";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn device_plugin_chooses_where_it_wants_to() {
    let node = Node::start().await;
    let options =
        DevicePluginOptions { get_preferred_allocation_available: true, ..Default::default() };
    let script = Script { options, prefers: vec!["c".to_owned()], ..Script::default() };
    let plugin = node.ready("gpu.sock", &["a", "b", "c"], script).await;
    node.admit(&pod("1", 1)).await.unwrap();
    assert_eq!(plugin.calls()[2..], ["GetPreferredAllocation a,b,c", "Allocate c"]);
}

#[tokio::test]
async fn device_plugin_that_registers_twice_is_replaced() {
    let node = Node::start().await;
    let first = node.ready("first.sock", &["a", "b"], Script::default()).await;
    let second = node.ready("second.sock", &["x"], Script::default()).await;
    first.stop().await;
    node.admit(&pod("1", 1)).await.unwrap();
    assert_eq!(second.calls().last().unwrap(), "Allocate x");
    second.register(GPU).await.unwrap();
    second.list(vec![device("x", "Healthy"), device("y", "Healthy")]);
    node.has(2, 2).await;
}

#[tokio::test]
async fn device_registrations_of_hostile_plugins_are_refused() {
    let node = Node::start().await;
    let folder = node.folder();
    let huge = "x".repeat(3 << 20);
    for (version, resource, endpoint, expected) in [
        ("v1alpha", GPU, "a.sock", "requested API version \"v1alpha\" is not supported"),
        ("v1beta1", "gpu", "a.sock", "the ResourceName \"gpu\" is invalid"),
        ("v1beta1", "example.com/a/b", "a.sock", "the ResourceName \"example.com/a/b\" is invalid"),
        (
            "v1beta1",
            "example.com/a\0",
            "a.sock",
            "the ResourceName \"example.com/a\\0\" is invalid",
        ),
        ("v1beta1", &*huge, "a.sock", "the ResourceName"),
        ("v1beta1", GPU, "../../a.sock", "the Endpoint \"../../a.sock\" is invalid"),
        ("v1beta1", GPU, "a\0b", "the Endpoint"),
        ("v1beta1", GPU, &*huge, "failed to dial device plugin"),
        ("v1beta1", GPU, "kubelet.sock", "failed to get device plugin options"),
    ] {
        let error = register(&folder, version, resource, endpoint).await.unwrap_err();
        let message = error.message();
        assert!(message.starts_with(expected) && message.len() < 1000, "{message:.300}");
    }
    let too_large = "x".repeat(5 << 20);
    assert!(register(&folder, "v1beta1", &too_large, "a.sock").await.is_err());
    let _good = node.ready("good.sock", &["a"], Script::default()).await;
}

#[tokio::test]
async fn device_lists_of_any_size_are_survived() {
    let node = Node::start().await;
    let many = |count: usize, length: usize| -> Vec<v1beta1::Device> {
        (0..count).map(|number| device(&format!("{number:0length$}"), "Healthy")).collect()
    };
    let plugin = node.plugin("gpu.sock", &[], Script::default());
    plugin.list(many(10_000, 40));
    plugin.register(GPU).await.unwrap();
    node.has(10_000, 10_000).await;
    node.admit(&pod("1", 3)).await.unwrap();
    // More than a message may have: the plugin is given up.
    plugin.list(many(10_000, 500));
    node.has(10_000, 0).await;
    let _again = node.ready("again.sock", &["a"], Script::default()).await;
}

#[tokio::test]
async fn device_health_that_flaps_is_taken_at_a_limited_rate() {
    let node = Node::start().await;
    let plugin = node.ready("gpu.sock", &["a"], Script::default()).await;
    node.admit(&pod("1", 1)).await.unwrap();
    let changes = node.devices.subscribe("1");
    let began = Instant::now();
    for number in 0..400 {
        let health = if number % 2 == 0 { "Unhealthy" } else { "Healthy" };
        plugin.list(vec![device("a", health)]);
        sleep(Duration::from_millis(1)).await;
    }
    plugin.list(vec![device("a", "Unhealthy"), device("last", "Healthy")]);
    while !node.devices.allocatable()[GPU].contains_key("last") {
        sleep(Duration::from_millis(5)).await;
    }
    let most = 12 + began.elapsed().as_secs();
    assert!(*changes.borrow() <= most, "{} changes, {most} allowed", *changes.borrow());
    let mut status: PodStatus =
        serde_json::from_value(json!({"containerStatuses": [{"name": "c"}, {"name": "d"}]}))
            .unwrap();
    let mut last = status.clone();
    node.devices.add_health("1", &mut last, &status);
    node.devices.release("1");
    node.devices.add_health("1", &mut status, &last);
    assert_eq!(status, last, "it stays once the devices are released");
    let found = serde_json::to_value(&status.container_statuses).unwrap();
    let expected =
        json!([{"name": GPU, "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]);
    assert_eq!(found[0]["allocatedResourcesStatus"], expected);
    assert_eq!(found[1].get("allocatedResourcesStatus"), None);
}

#[tokio::test]
async fn device_socket_is_made_again_and_old_sockets_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join(FOLDER);
    std::fs::create_dir(&folder).unwrap();
    let _old = std::os::unix::net::UnixListener::bind(folder.join("old.sock")).unwrap();
    std::os::unix::fs::symlink(folder.join("old.sock"), folder.join("link")).unwrap();
    std::fs::write(folder.join("file"), "").unwrap();
    let node = Node::start_in(root, false).await;
    assert!(node.devices.is_new());
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["file", "kubelet.sock"]);
    std::fs::remove_file(folder.join(SOCKET)).unwrap();
    node.listens().await;
    let _plugin = node.ready("gpu.sock", &["a"], Script::default()).await;
    // The socket may be made again while the directory is emptied.
    while let Err(error) = std::fs::remove_dir_all(&folder) {
        assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    }
    node.listens().await;
}

#[tokio::test]
async fn device_checkpoint_that_is_broken_is_as_if_it_were_empty() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(FOLDER)).unwrap();
    std::fs::write(root.path().join(FOLDER).join(crate::store::FILE), "{\"Data\"").unwrap();
    let node = Node::start_in(root, false).await;
    assert!(!node.devices.is_new());
    let _plugin = node.ready("gpu.sock", &["a"], Script::default()).await;
    node.admit(&pod("1", 1)).await.unwrap();
    node.container(&pod("1", 1)).await.unwrap();
    let again = open(node.root.path(), false, &Registry::default());
    assert_eq!(again.of_container("1", "c").len(), 1);
}

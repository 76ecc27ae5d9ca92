//! `/stats/summary`: the node, its daemons, its pods and their containers and volumes.

mod convert;
mod runtime;
mod types;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use longshore_pod::observed::{Container, ObservedPod};
use longshore_pod::spec;
use longshore_pod::usage::{Space, is_on_disk};
use longshore_resources::stats::{
    Detail, Error, FileSystems, Group, Layers, PodDisk, PodGroup, RuntimeFileSystems, RuntimePod,
    Snapshot,
};

use self::convert::{file_system, network, used, whole};
pub(super) use self::types::Summary;
use self::types::{
    ClaimReference, ContainerStats, FsStats, NodeStats, PodReference, PodStats, ProcessStats,
    RlimitStats, RuntimeStats, VolumeHealthStats, VolumeStats,
};
use super::volumes::{Reading, VolumeSample};
use super::{CHANGED_MAX_AGE, RuntimePods, StatsEndpoints};

/// CPU and memory only.
pub(super) async fn cpu_and_memory(endpoints: &StatsEndpoints) -> Result<Summary, Error> {
    let (snapshot, runtime) =
        tokio::try_join!(endpoints.snapshot(Detail::Usage), endpoints.runtime_pods())?;
    let pods = measured(&snapshot, runtime.pods()).into_iter().map(|pod| {
        // The snapshot may have more detail.
        PodStats { network: None, process_stats: None, ..pod.stats }
    });
    let pods = pods.collect();
    Ok(Summary { node: of_node(endpoints, &snapshot), pods })
}

/// Everything.
pub(super) async fn full(endpoints: &StatsEndpoints) -> Result<Summary, Error> {
    let shared = &endpoints.shared;
    let pods = shared.desired.pods();
    let file_systems = async {
        shared.stats.refresh_runtime_storage(shared.disks).await;
        shared.stats.file_systems(CHANGED_MAX_AGE).await
    };
    let (snapshot, file_systems, disks, (runtime, layers), persistent_volumes) = tokio::join!(
        endpoints.snapshot(Detail::Load),
        file_systems,
        shared.stats.disks(&pods, shared.disks),
        async {
            let runtime = endpoints.runtime_pods().await;
            let layers = match runtime.as_ref().map(RuntimePods::pods) {
                Ok(Some(pods)) => Some(Arc::new(RuntimePod::layers(pods))),
                _ => shared.stats.layers(shared.disks).await,
            };
            (runtime, layers)
        },
        endpoints.persistent_volumes(&pods),
    );
    let (snapshot, runtime) = (snapshot?, runtime?);
    let file_systems = file_systems
        .inspect_err(|error| tracing::debug!(%error, "failed to read file systems for the summary"))
        .ok();
    let specs = pods.iter().map(|pod| (spec::uid(pod), pod)).collect();
    let storage = Storage {
        file_systems: file_systems.as_deref(),
        disks,
        persistent_volumes,
        layers,
        specs,
        volumes: shared.reports_volumes,
    };
    let pods = measured(&snapshot, runtime.pods());
    let pods = pods.into_iter().map(|pod| pod.with_storage(&storage)).collect();
    let mut node = of_node(endpoints, &snapshot);
    let (now, machine) = (time(snapshot.node.reading.at), &snapshot.machine);
    node.start_time = time(shared.facts.booted);
    node.network = Some(network(&snapshot.node)).filter(|network| !network.interfaces.is_empty());
    node.fs = file_systems.as_ref().map(|known| whole(&known.node, snapshot.node.reading.at));
    node.runtime = file_systems.as_ref().and_then(|known| known.runtime).map(of_runtime);
    node.rlimit =
        Some(RlimitStats { time: now, maxpid: machine.pids.max, curproc: machine.pids.running });
    Ok(Summary { node, pods })
}

/// A pod without its storage, and the IDs of its containers, in their order.
struct Measured<'a> {
    stats: PodStats,
    ids: Vec<&'a str>,
}

/// The pods as the runtime reports them, or by their cgroups.
fn measured<'a>(snapshot: &'a Snapshot, runtime: Option<&'a [RuntimePod]>) -> Vec<Measured<'a>> {
    match runtime {
        Some(pods) => pods.iter().map(runtime::of_pod).collect(),
        None => {
            let pods = snapshot.latest_pods().filter(|pod| !pod.containers.is_empty());
            pods.map(of_pod).collect()
        }
    }
}

/// Disk usage.
#[derive(Default)]
struct Storage<'a> {
    file_systems: Option<&'a FileSystems>,
    disks: HashMap<String, Arc<PodDisk>>,
    /// Persistent volumes, by the UID of their pod.
    persistent_volumes: HashMap<String, Vec<VolumeSample>>,
    layers: Option<Arc<Layers>>,
    /// Pods by UID.
    specs: HashMap<&'a str, &'a Arc<k8s_openapi::api::core::v1::Pod>>,
    /// Whether volume stats are reported.
    volumes: bool,
}

fn time(at: Timestamp) -> Time {
    Time(at)
}

fn of_node(endpoints: &StatsEndpoints, snapshot: &Snapshot) -> NodeStats {
    let facts = &endpoints.shared.facts;
    let machine = &snapshot.machine;
    let mut usage = convert::usage(&snapshot.node);
    if let Some(memory) = &mut usage.memory {
        let both = machine.memory.limit.zip(memory.working_set_bytes);
        memory.available_bytes = both.map(|(capacity, used)| capacity.saturating_sub(used));
    }
    if let Some(swap) = &mut usage.swap {
        swap.swap_available_bytes = Some(machine.swap_free);
        swap.swap_usage_bytes = Some(machine.swap_total.saturating_sub(machine.swap_free));
    }
    let created = |group: &Group| group.created.unwrap_or(facts.booted);
    let system = |name: &str, group: &Group, started| ContainerStats {
        name: name.to_owned(),
        start_time: time(started),
        usage: convert::usage(group),
        rootfs: None,
        logs: None,
    };
    let daemons = snapshot.system.iter().map(|(name, group)| match *name {
        "kubelet" => system(name, group, facts.started),
        _ => system(name, group, created(group)),
    });
    let pods = snapshot.levels.first().map(|group| system("pods", group, created(group)));
    NodeStats {
        node_name: endpoints.shared.node_name.clone(),
        system_containers: daemons.chain(pods).collect(),
        start_time: time(facts.booted),
        usage,
        network: None,
        fs: None,
        runtime: None,
        rlimit: None,
    }
}

fn of_runtime(known: RuntimeFileSystems) -> RuntimeStats {
    let images = file_system(&known.images, Some(known.used.images), known.used.at);
    let containers = known.used.containers.unwrap_or(known.used.images);
    let containers = file_system(&known.containers, Some(containers), known.used.at);
    RuntimeStats { image_fs: Some(images), container_fs: Some(containers) }
}

fn of_pod(pod: &PodGroup) -> Measured<'_> {
    let containers = pod
        .newest()
        .map(|(container, run)| (container.id.as_str(), of_container(container, &run.group)));
    let (ids, containers) = containers.unzip();
    let sandbox = pod.sandboxes.first();
    let created = pod.pod.sandboxes.first().map(|sandbox| sandbox.created_at);
    let running = pod.sandboxes.iter().chain(&pod.containers);
    let processes: u64 = running.map(|run| run.group.processes.count).sum();
    let stats = PodStats {
        pod_ref: reference(&pod.pod),
        start_time: time(created.unwrap_or_default()),
        usage: pod.own.as_ref().map(convert::usage).unwrap_or_default(),
        network: sandbox
            .map(|run| network(&run.group))
            .filter(|network| !network.interfaces.is_empty()),
        volumes: Vec::new(),
        ephemeral_storage: None,
        process_stats: Some(ProcessStats { process_count: processes })
            .filter(|stats| stats.process_count > 0),
        containers,
    };
    Measured { stats, ids }
}

fn reference(pod: &ObservedPod) -> PodReference {
    PodReference { name: pod.name.clone(), namespace: pod.namespace.clone(), uid: pod.uid.clone() }
}

impl Measured<'_> {
    fn with_storage(self, storage: &Storage<'_>) -> PodStats {
        let Self { mut stats, ids } = self;
        let uid = stats.pod_ref.uid.as_str();
        let disk = storage.disks.get(uid);
        if let Some(known) = storage.file_systems {
            for (container, id) in stats.containers.iter_mut().zip(ids) {
                let layer = storage.layers.as_ref();
                let layer = layer.and_then(|layers| Some((*layers.used.get(id)?, layers.at)));
                let on = known.runtime.map(|runtime| runtime.containers);
                container.rootfs =
                    on.zip(layer).map(|(on, (used, at))| file_system(&on, Some(used), at));
                let logs = disk.and_then(|disk| Some((*disk.logs.get(&container.name)?, disk.at)));
                container.logs = logs.map(|(used, at)| file_system(&known.node, Some(used), at));
            }
        }
        let own = disk.filter(|_| storage.volumes).map(|disk| volumes(disk)).unwrap_or_default();
        let persistent_volumes = storage.persistent_volumes.get(uid).into_iter().flatten();
        let persistent_volumes =
            persistent_volumes.map(|sample| of_persistent_volume(&stats.pod_ref.namespace, sample));
        let volumes = own.into_iter().chain(persistent_volumes).collect();
        let ephemeral_storage = ephemeral_storage(uid, disk, &stats.containers, storage);
        PodStats { volumes, ephemeral_storage, ..stats }
    }
}

fn of_container(container: &Container, group: &Group) -> ContainerStats {
    ContainerStats {
        name: container.name.clone(),
        start_time: time(container.created_at),
        usage: convert::usage(group),
        rootfs: None,
        logs: None,
    }
}

fn volumes(disk: &PodDisk) -> Vec<VolumeStats> {
    let one = |(name, volume): (&String, &longshore_resources::stats::VolumeUse)| VolumeStats {
        fs: file_system(&volume.file_system, Some(volume.used), disk.at),
        name: name.clone(),
        pvc_ref: None,
        volume_health_stats: None,
    };
    disk.volumes.iter().map(one).collect()
}

fn of_persistent_volume(namespace: &str, sample: &VolumeSample) -> VolumeStats {
    let (volume, Reading { at, stats }) = (&sample.volume, &*sample.reading);
    let claim = volume.claim.as_ref();
    VolumeStats {
        fs: FsStats {
            time: time(*at),
            available_bytes: Some(stats.available),
            capacity_bytes: Some(stats.capacity),
            used_bytes: Some(stats.used),
            inodes_free: Some(stats.inodes_free),
            inodes: Some(stats.inodes),
            inodes_used: Some(stats.inodes_used),
        },
        name: volume.name.clone(),
        pvc_ref: claim
            .map(|name| ClaimReference { name: name.clone(), namespace: namespace.to_owned() }),
        volume_health_stats: stats
            .condition
            .as_ref()
            .map(|condition| VolumeHealthStats { abnormal: condition.abnormal }),
    }
}

/// The pod's ephemeral storage.
fn ephemeral_storage(
    uid: &str,
    disk: Option<&Arc<PodDisk>>,
    containers: &[ContainerStats],
    storage: &Storage<'_>,
) -> Option<FsStats> {
    let node = &storage.file_systems?.node;
    let disk = disk?;
    let mut total = disk.own;
    let of_containers =
        containers.iter().flat_map(|container| [&container.rootfs, &container.logs]);
    of_containers.flatten().for_each(|stats| total += used(stats));
    let spec = storage.specs.get(uid).and_then(|pod| pod.spec.as_ref());
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    for volume in volumes.iter().filter(|volume| is_on_disk(volume)) {
        let known = disk.volumes.get(&volume.name);
        total += known.map_or(Space::default(), |volume| volume.used);
    }
    Some(file_system(node, Some(total), disk.at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use longshore_machine::FileSystem;
    use longshore_resources::stats::fixture::{
        AT, amount, any_snapshot, container, file_system as any_file_system, name, pod,
        time as any_time,
    };

    use super::*;
    use longshore_volumes::{Condition, PersistentMount, VolumeStats};

    #[test]
    fn summary_has_all_pod_stats() {
        let on = |device| FileSystem {
            device,
            capacity: 1000,
            available: 400,
            used: 500,
            inodes: 100,
            inodes_free: 70,
        };
        let space = |bytes| Space { bytes, inodes: 1 };
        let file_systems = FileSystems {
            node: on(1),
            runtime: Some(RuntimeFileSystems {
                images: on(2),
                containers: on(2),
                used: Default::default(),
            }),
        };
        let volume = |bytes| longshore_resources::stats::VolumeUse {
            used: space(bytes),
            file_system: on(1),
        };
        let disk = PodDisk {
            at: Timestamp::new(AT, 0).unwrap(),
            volumes: [("v".to_owned(), volume(10)), ("s".to_owned(), volume(5))].into(),
            logs: [("c".to_owned(), space(7))].into(),
            own: space(1),
        };
        let spec = json!({
            "metadata": {"name": "a"},
            "spec": {
                "containers": [],
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "s", "secret": {"secretName": "s"}},
                ],
            },
        });
        let spec = Arc::new(serde_json::from_value(spec).unwrap());
        let layers = Layers { at: disk.at, used: [("c1".to_owned(), space(3))].into() };
        let storage = Storage {
            file_systems: Some(&file_systems),
            disks: [("1".to_owned(), Arc::new(disk))].into(),
            persistent_volumes: HashMap::new(),
            layers: Some(Arc::new(layers)),
            specs: [("1", &spec)].into(),
            volumes: true,
        };
        let known = pod("a", "1", AT - 9, vec![container("c1", "c", AT - 5)]);
        let sample = serde_json::to_value(of_pod(&known).with_storage(&storage)).unwrap();
        let psi = json!({"total": 2_500_000, "avg10": 1.5, "avg60": 0.5, "avg300": 0.1});
        let psi = json!({"full": psi, "some": psi});
        let now = "2023-11-14T22:13:20Z";
        let cpu = json!({
            "time": now, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 2_500_000_000_u64,
            "psi": psi,
        });
        assert_eq!(sample["cpu"], cpu);
        assert_eq!(sample["podRef"], json!({"name": "a", "namespace": "ns", "uid": "1"}));
        assert_eq!(sample["startTime"], "2023-11-14T22:13:11Z");
        let container = &sample["containers"][0];
        assert_eq!((&container["name"], &container["cpu"]), (&json!("c"), &cpu));
        let memory = json!({
            "time": now, "availableBytes": 8000, "usageBytes": 3000, "workingSetBytes": 2000,
            "rssBytes": 1000, "pageFaults": 0, "majorPageFaults": 0, "psi": psi,
        });
        assert_eq!(container["memory"], memory);
        assert_eq!(container["swap"], json!({"time": now, "swapUsageBytes": 7}));
        assert_eq!(container["io"], json!({"time": now, "psi": psi}));
        let part = |bytes: u64, inodes: u64| {
            json!({
                "time": now, "availableBytes": 400, "capacityBytes": 1000, "usedBytes": bytes,
                "inodesFree": 70, "inodes": 100, "inodesUsed": inodes,
            })
        };
        assert_eq!((&container["rootfs"], &container["logs"]), (&part(3, 1), &part(7, 1)));
        // Volumes in memory are not counted.
        assert_eq!(sample["ephemeral-storage"], part(1 + 3 + 7 + 10, 4));
        assert_eq!(sample["volume"][1]["name"], "v");
        assert_eq!(sample["volume"][1]["usedBytes"], 10);
        assert_eq!(sample["process_stats"], json!({"process_count": 4}));
        let network = &sample["network"];
        assert_eq!((&network["name"], &network["rxBytes"]), (&json!("eth0"), &json!(100)));
        assert_eq!(network["interfaces"].as_array().unwrap().len(), 2);
    }

    /// Upstream's node suite requires it on cgroup v1, too.
    #[test]
    fn summary_has_pressure_of_zero_where_the_kernel_has_none() {
        let mut own = longshore_resources::stats::fixture::group("/pod");
        own.reading.pressure = Default::default();
        let usage = serde_json::to_value(convert::usage(&own)).unwrap();
        let none = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
        for resource in ["cpu", "memory"] {
            assert_eq!(usage[resource]["psi"], json!({"full": none, "some": none}));
        }
        assert_eq!(usage.get("io"), None);
    }

    #[test]
    fn summary_omits_unknown_values() {
        let known = pod("a", "1", AT, vec![container("c1", "c", AT)]);
        let sample =
            serde_json::to_value(of_pod(&known).with_storage(&Storage::default())).unwrap();
        let container = &sample["containers"][0];
        for (value, key) in [
            (&sample, "volume"),
            (&sample, "ephemeral-storage"),
            (container, "rootfs"),
            (container, "logs"),
        ] {
            assert!(value.get(key).is_none(), "{key}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

        /// Finding 1: extreme stats of the kernel, the runtime and volume drivers are serialized as
        /// valid JSON.
        #[test]
        fn extremes_of_summary_stats(
            snapshot in any_snapshot(),
            (node, images) in (any_file_system(), any_file_system()),
            sizes in prop::collection::vec(amount(), 8),
            at in any_time(),
            (volume, message) in (name(), name()),
        ) {
            let space = |at: usize| Space { bytes: sizes[at], inodes: sizes[at + 1] };
            let used = longshore_resources::stats::RuntimeUse { at, images: space(0), containers: Some(space(1)) };
            let runtime = RuntimeFileSystems { images, containers: images, used };
            let file_systems = FileSystems { node, runtime: Some(runtime) };
            let own = longshore_resources::stats::VolumeUse { used: space(2), file_system: node };
            let disk = PodDisk {
                at,
                volumes: [(volume.clone(), own), ("v".to_owned(), own)].into(),
                logs: [("c".to_owned(), space(3)), (volume.clone(), space(3))].into(),
                own: space(4),
            };
            let stats = VolumeStats {
                capacity: sizes[0],
                available: sizes[1],
                used: sizes[2],
                inodes: sizes[3],
                inodes_free: sizes[4],
                inodes_used: sizes[5],
                condition: Some(Condition { abnormal: true, message }),
            };
            let persistent_volumes = || VolumeSample {
                volume: PersistentMount::of_claim(&volume, &volume),
                reading: Arc::new(Reading { at, stats: stats.clone() }),
            };
            let spec = json!({"metadata": {}, "spec": {
                "containers": [], "volumes": [{"name": volume, "emptyDir": {}}],
            }});
            let spec = Arc::new(serde_json::from_value(spec).unwrap());
            let layers = Layers { at, used: [("c0".to_owned(), space(5))].into() };
            let storage = Storage {
                file_systems: Some(&file_systems),
                disks: [("0".to_owned(), Arc::new(disk))].into(),
                persistent_volumes: [("0".to_owned(), vec![persistent_volumes()])].into(),
                layers: Some(Arc::new(layers)),
                specs: [("0", &spec)].into(),
                volumes: true,
            };
            for pod in snapshot.latest_pods() {
                let sample = serde_json::to_vec(&of_pod(pod).with_storage(&storage)).unwrap();
                prop_assert!(sample.len() <= 64 << 10);
                let sample: Value = serde_json::from_slice(&sample).unwrap();
                prop_assert_eq!(sample["podRef"]["uid"].as_str(), Some(pod.pod.uid.as_str()));
            }
            serde_json::to_vec(&of_runtime(runtime)).unwrap();
            serde_json::to_vec(&convert::usage(&snapshot.node)).unwrap();
            serde_json::to_vec(&whole(&node, at)).unwrap();
        }
    }
}

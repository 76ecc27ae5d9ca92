//! `/stats/summary`: the node, its daemons, its pods and their containers and volumes.

mod convert;
mod types;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use longshore_pod::observed::Container;
use longshore_pod::spec;
use longshore_pod::usage::{Space, is_on_disk};

use self::convert::{file_system, network, used, whole};
pub(super) use self::types::Summary;
use self::types::{
    ContainerStats, FsStats, NodeStats, PodReference, PodStats, ProcessStats, RlimitStats,
    RuntimeStats, VolumeStats,
};
use super::{DISK_AGE, DISK_PATIENCE, FRESH, Figures};
use crate::stats::{
    Detail, Error, FileSystems, Group, Layers, PodDisk, PodGroup, RuntimeFileSystems, Snapshot,
};

/// CPU and memory alone.
pub(super) async fn brief(figures: &Figures) -> Result<Summary, Error> {
    let snapshot = figures.snapshot(Detail::Usage).await?;
    let pods = snapshot.living().filter(|pod| !pod.containers.is_empty());
    let pods = pods.map(|pod| of_pod(pod, &Storage::default()));
    let pods = pods.collect();
    Ok(Summary { node: of_node(figures, &snapshot), pods })
}

/// Everything.
pub(super) async fn full(figures: &Figures) -> Result<Summary, Error> {
    let shared = &figures.shared;
    let pods = shared.desired.pods();
    let age = shared.volumes_age.unwrap_or(DISK_AGE);
    let (snapshot, file_systems, (disks, layers)) = tokio::join!(
        figures.snapshot(Detail::Load),
        shared.stats.file_systems(FRESH),
        shared.stats.storage(&pods, age, DISK_PATIENCE),
    );
    let snapshot = snapshot?;
    let file_systems = file_systems
        .inspect_err(|error| tracing::debug!(%error, "a summary without file systems"))
        .ok();
    let specs = pods.iter().map(|pod| (spec::uid(pod), pod)).collect();
    let storage = Storage {
        file_systems: file_systems.as_deref(),
        disks,
        layers,
        specs,
        volumes: shared.volumes_age.is_some(),
    };
    let pods = snapshot.living().filter(|pod| !pod.containers.is_empty());
    let pods = pods.map(|pod| of_pod(pod, &storage)).collect();
    let mut node = of_node(figures, &snapshot);
    let (now, machine) = (time(snapshot.node.reading.at), &snapshot.machine);
    node.start_time = time(shared.facts.booted);
    node.network = Some(network(&snapshot.node)).filter(|network| !network.interfaces.is_empty());
    node.fs = file_systems.as_ref().map(|known| whole(&known.node, snapshot.node.reading.at));
    node.runtime = file_systems.as_ref().and_then(|known| known.runtime).map(of_runtime);
    node.rlimit =
        Some(RlimitStats { time: now, maxpid: machine.pids.max, curproc: machine.pids.running });
    Ok(Summary { node, pods })
}

/// What is known of disks.
#[derive(Default)]
struct Storage<'a> {
    file_systems: Option<&'a FileSystems>,
    disks: HashMap<String, Arc<PodDisk>>,
    layers: Option<Arc<Layers>>,
    /// Pods by UID.
    specs: HashMap<&'a str, &'a Arc<k8s_openapi::api::core::v1::Pod>>,
    /// Whether volumes are told of.
    volumes: bool,
}

fn time(at: Timestamp) -> Time {
    Time(at)
}

fn of_node(figures: &Figures, snapshot: &Snapshot) -> NodeStats {
    let facts = &figures.shared.facts;
    let machine = &snapshot.machine;
    let mut usage = convert::usage(&snapshot.node);
    if let Some(memory) = &mut usage.memory {
        memory.available_bytes = machine.memory.available();
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
        node_name: figures.shared.node_name.clone(),
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

fn of_pod(pod: &PodGroup, storage: &Storage<'_>) -> PodStats {
    let disk = storage.disks.get(&pod.pod.uid);
    let containers = pod.newest().map(|(container, run)| {
        let mut stats = of_container(container, &run.group);
        if let Some(known) = storage.file_systems {
            let layer = storage.layers.as_ref();
            let layer =
                layer.and_then(|layers| Some((*layers.used.get(&container.id)?, layers.at)));
            let on = known.runtime.map(|runtime| runtime.containers);
            stats.rootfs = on.zip(layer).map(|(on, (used, at))| file_system(&on, Some(used), at));
            let logs = disk.and_then(|disk| Some((*disk.logs.get(&container.name)?, disk.at)));
            stats.logs = logs.map(|(used, at)| file_system(&known.node, Some(used), at));
        }
        stats
    });
    let containers: Vec<ContainerStats> = containers.collect();
    let sandbox = pod.sandboxes.first();
    let created = pod.pod.sandboxes.first().map(|sandbox| sandbox.created_at);
    let running = pod.sandboxes.iter().chain(&pod.containers);
    let processes: u64 = running.map(|run| run.group.processes.count).sum();
    let volumes = match disk {
        Some(disk) if storage.volumes => volumes(disk),
        _ => Vec::new(),
    };
    PodStats {
        pod_ref: PodReference {
            name: pod.pod.name.clone(),
            namespace: pod.pod.namespace.clone(),
            uid: pod.pod.uid.clone(),
        },
        start_time: time(created.unwrap_or_default()),
        usage: pod.own.as_ref().map(convert::usage).unwrap_or_default(),
        network: sandbox
            .map(|run| network(&run.group))
            .filter(|network| !network.interfaces.is_empty()),
        volumes,
        ephemeral_storage: ephemeral_storage(pod, disk, &containers, storage),
        process_stats: Some(ProcessStats { process_count: processes })
            .filter(|stats| stats.process_count > 0),
        containers,
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
    let one = |(name, volume): (&String, &crate::stats::VolumeUse)| VolumeStats {
        fs: file_system(&volume.file_system, Some(volume.used), disk.at),
        name: name.clone(),
    };
    disk.volumes.iter().map(one).collect()
}

/// All of the node's storage that goes with the pod.
fn ephemeral_storage(
    pod: &PodGroup,
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
    let spec = storage.specs.get(pod.pod.uid.as_str()).and_then(|pod| pod.spec.as_ref());
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    for volume in volumes.iter().filter(|volume| is_on_disk(volume)) {
        let known = disk.volumes.get(&volume.name);
        total += known.map_or(Space::default(), |volume| volume.used);
    }
    Some(file_system(node, Some(total), disk.at))
}

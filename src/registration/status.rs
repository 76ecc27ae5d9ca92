//! The node's status as a pure function of what is known: facts in, `NodeStatus` out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus,
    NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_config::Config;
use longshore_machine::Machine;
use longshore_resources::allocatable;
use longshore_resources::allocatable::Amounts;
use longshore_resources::hugepages::binary;

use super::inputs::{Pressure, RuntimeHealth};

/// The most names that one image has in the status.
const IMAGE_NAMES: usize = 5;

/// Everything that the status is made of.
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    pub(super) machine: &'a Machine,
    /// Bytes of the disk under the root directory; `None`: not to be had.
    pub(super) disk: Option<u64>,
    /// `None`: not to be had, so those that were told before stay.
    pub(super) addresses: Option<&'a [IpAddr]>,
    pub(super) runtime: &'a RuntimeHealth,
    pub(super) pleg: Option<&'a str>,
    pub(super) storage: Option<&'a str>,
    pub(super) pressure: Pressure,
    pub(super) images: &'a [ContainerImage],
    pub(super) volumes_in_use: Vec<String>,
    pub(super) now: Timestamp,
}

/// The status to tell, over the one that was told before (by this daemon or an earlier one).
pub(super) fn node_status(old: &NodeStatus, facts: &Facts<'_>) -> NodeStatus {
    let capacity = capacity(old, facts);
    let allocatable = allocatable::allocatable(&capacity, &facts.config.reserved);
    NodeStatus {
        addresses: addresses(old, facts),
        conditions: Some(conditions(old, facts, &capacity)),
        allocatable: Some(quantities(allocatable)),
        capacity: Some(quantities(capacity)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: if facts.config.kubelet.enable_server {
                    facts.config.kubelet.port
                } else {
                    0
                },
            }),
        }),
        node_info: Some(node_info(facts)),
        images: Some(images(facts)),
        volumes_in_use: Some(facts.volumes_in_use.clone()).filter(|volumes| !volumes.is_empty()),
        runtime_handlers: Some(facts.runtime.handlers.clone()),
        features: facts.runtime.features.clone(),
        declared_features: declared_features(facts.config),
        ..old.clone()
    }
}

/// The abilities by which the control plane chooses what it asks of a node.
fn declared_features(config: &Config) -> Option<Vec<String>> {
    const KNOWN: [&str; 4] = [
        "ExtendWebSocketsToKubelet",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    let told = config.gates.enabled("NodeDeclaredFeatures");
    let features = KNOWN.into_iter().filter(|name| told && config.gates.enabled(name));
    let features: Vec<String> = features.map(str::to_owned).collect();
    (!features.is_empty()).then_some(features)
}

fn addresses(old: &NodeStatus, facts: &Facts<'_>) -> Option<Vec<NodeAddress>> {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let external = facts.config.external_cloud;
    if external && old.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty()) {
        // the cloud's controller is their owner from now on
        return old.addresses.clone();
    }
    let hostname = address("Hostname", facts.config.node_name.clone());
    if external && facts.config.node_ips.is_empty() {
        return Some(vec![hostname]);
    }
    let Some(ips) = facts.addresses else { return old.addresses.clone() };
    let internal = ips.iter().map(|ip| address("InternalIP", ip.to_string()));
    Some(internal.chain([hostname]).collect())
}

fn capacity(old: &NodeStatus, facts: &Facts<'_>) -> Amounts {
    let settings = &facts.config.kubelet;
    let machine = facts.machine;
    let max_pods = i128::from(settings.max_pods);
    let per_core = i128::from(settings.pods_per_core) * i128::from(machine.cpus);
    let mut amounts = Amounts::new();
    // what others have added, such as extended resources, is theirs
    for (resource, quantity) in
        old.capacity.iter().flatten().filter(|(name, _)| !name.starts_with("hugepages-"))
    {
        amounts
            .extend(longshore_pod::qos::milli(quantity).map(|amount| (resource.clone(), amount)));
    }
    let disk = facts.disk.filter(|_| settings.local_storage_capacity_isolation);
    amounts.extend(allocatable::capacity(machine, disk));
    let pods = if per_core > 0 { max_pods.min(per_core) } else { max_pods };
    amounts.insert("pods".to_owned(), pods * 1000);
    amounts
}

fn quantities(amounts: Amounts) -> BTreeMap<String, Quantity> {
    let text = |resource: &str, milli: i128| match resource {
        "cpu" if milli % 1000 != 0 => format!("{milli}m"),
        "memory" | "ephemeral-storage" => binary(milli / 1000),
        name if name.starts_with("hugepages-") => binary(milli / 1000),
        _ => (milli / 1000).to_string(),
    };
    amounts
        .into_iter()
        .map(|(resource, milli)| (resource.clone(), Quantity(text(&resource, milli))))
        .collect()
}

fn node_info(facts: &Facts<'_>) -> NodeSystemInfo {
    let machine = facts.machine;
    let version = &facts.runtime.version;
    NodeSystemInfo {
        architecture: go_arch().to_owned(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: if version.is_empty() {
            "Unknown".to_owned()
        } else {
            version.clone()
        },
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: KUBERNETES_VERSION.to_owned(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        swap: (machine.swap > 0).then(|| NodeSwapStatus {
            capacity: Some(i64::try_from(machine.swap).unwrap_or(i64::MAX)),
        }),
        system_uuid: machine.system_uuid.clone(),
    }
}

/// The largest images, with few names each.
fn images(facts: &Facts<'_>) -> Vec<ContainerImage> {
    let mut images: Vec<&ContainerImage> = facts.images.iter().collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.names.cmp(&b.names)));
    // -1 stands for all of them
    let most = usize::try_from(facts.config.kubelet.node_status_max_images).unwrap_or(usize::MAX);
    images
        .into_iter()
        .take(most)
        .map(|image| ContainerImage {
            names: image
                .names
                .as_ref()
                .map(|names| names.iter().take(IMAGE_NAMES).cloned().collect()),
            size_bytes: image.size_bytes,
        })
        .collect()
}

fn conditions(old: &NodeStatus, facts: &Facts<'_>, capacity: &Amounts) -> Vec<NodeCondition> {
    let pressure = facts.pressure;
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let mut set = |type_: &str, status: bool, reason: &str, message: &str| {
        let status = if status { "True" } else { "False" };
        let now = Some(Time(facts.now));
        let place = conditions.iter().position(|condition| condition.type_ == type_);
        let kept = place
            .map(|place| &conditions[place])
            .filter(|condition| condition.status == status)
            .and_then(|condition| condition.last_transition_time.clone());
        let condition = NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: now.clone(),
            last_transition_time: kept.or(now),
        };
        match place {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
    };
    match pressure.memory {
        true => set(
            "MemoryPressure",
            true,
            "KubeletHasInsufficientMemory",
            "kubelet has insufficient memory available",
        ),
        false => set(
            "MemoryPressure",
            false,
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
    }
    match pressure.disk {
        true => set("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure"),
        false => {
            set("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        }
    }
    match pressure.pid {
        true => set(
            "PIDPressure",
            true,
            "KubeletHasInsufficientPID",
            "kubelet has insufficient PID available",
        ),
        false => set(
            "PIDPressure",
            false,
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
    }
    match not_ready(facts, capacity) {
        Some(why) => set("Ready", false, "KubeletNotReady", &why),
        None => set("Ready", true, "KubeletReady", "kubelet is posting ready status"),
    }
    conditions
}

/// Why the node is not ready; several reasons stand in brackets.
fn not_ready(facts: &Facts<'_>, capacity: &Amounts) -> Option<String> {
    let pleg = facts.pleg.map(|why| format!("PLEG is not healthy: {why}"));
    let needed = ["cpu", "memory", "pods", "ephemeral-storage"];
    let isolation = facts.config.kubelet.local_storage_capacity_isolation;
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|resource| {
            !capacity.contains_key(*resource) && (isolation || *resource != "ephemeral-storage")
        })
        .collect();
    let missing = (!missing.is_empty())
        .then(|| format!("missing node capacity for resources: {}", missing.join(", ")));
    let (runtime, network) =
        (facts.runtime.runtime_error.clone(), facts.runtime.network_error.clone());
    let storage = facts.storage.map(str::to_owned);
    let reasons: Vec<String> =
        [pleg, runtime, network, storage, missing].into_iter().flatten().collect();
    match reasons.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

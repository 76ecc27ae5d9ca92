//! The node's status as a pure function of its inputs.

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
use longshore_devices::{Capacity, is_extended_resource};
use longshore_gates::DeclaredFeatures;
use longshore_machine::Machine;
use longshore_resources::allocatable;
use longshore_resources::allocatable::Amounts;
use longshore_resources::hugepages::binary;

use super::inputs::{Pressure, RuntimeHealth};

/// Maximum number of names per image.
const IMAGE_NAMES: usize = 5;

/// Inputs of the status.
pub(super) struct StatusInputs<'a> {
    pub(super) config: &'a Config,
    pub(super) machine: &'a Machine,
    /// Capacity of the root file system in bytes; `None`: unknown.
    pub(super) disk: Option<u64>,
    /// `None`: unknown, the reported ones are kept.
    pub(super) addresses: Option<&'a [IpAddr]>,
    pub(super) runtime: &'a RuntimeHealth,
    pub(super) pleg: Option<&'a str>,
    pub(super) storage: Option<&'a str>,
    /// Whether the machine shuts down.
    pub(super) shutting_down: bool,
    pub(super) pressure: Pressure,
    pub(super) images: &'a [ContainerImage],
    pub(super) volumes_in_use: Vec<String>,
    /// Extended resources of device plugins.
    pub(super) extended: &'a Capacity,
    /// Whether other extended resources are set to zero.
    pub(super) resets_extended: bool,
    pub(super) now: Timestamp,
}

/// The new status; `old` is the reported one.
pub(super) fn node_status(old: &NodeStatus, inputs: &StatusInputs<'_>) -> NodeStatus {
    let capacity = capacity(old, inputs);
    let mut allocatable = allocatable::allocatable(&capacity, &inputs.config.reserved);
    let extended = inputs.extended.0.iter();
    allocatable.extend(extended.map(|(name, own)| (name.clone(), whole(own.allocatable))));
    NodeStatus {
        addresses: addresses(old, inputs),
        conditions: Some(conditions(old, inputs, &capacity)),
        allocatable: Some(quantities(allocatable)),
        capacity: Some(quantities(capacity)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: if inputs.config.kubelet.enable_server {
                    inputs.config.kubelet.port
                } else {
                    0
                },
            }),
        }),
        node_info: Some(node_info(inputs)),
        images: Some(images(inputs)),
        volumes_in_use: Some(inputs.volumes_in_use.clone()).filter(|volumes| !volumes.is_empty()),
        runtime_handlers: Some(inputs.runtime.handlers.clone()),
        features: inputs.runtime.features.clone(),
        declared_features: declared_features(inputs),
        ..old.clone()
    }
}

/// Features that the node declares to the control plane.
fn declared_features(inputs: &StatusInputs<'_>) -> Option<Vec<String>> {
    let in_user_namespace = inputs.runtime.host_network_in_user_namespace;
    let declared = DeclaredFeatures::of_node(&inputs.config.gates, in_user_namespace);
    (!declared.is_empty()).then(|| declared.names().map(str::to_owned).collect())
}

fn addresses(old: &NodeStatus, inputs: &StatusInputs<'_>) -> Option<Vec<NodeAddress>> {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let external = inputs.config.external_cloud;
    if external && old.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty()) {
        // the cloud controller manager owns the addresses
        return old.addresses.clone();
    }
    let hostname = address("Hostname", inputs.config.node_name.clone());
    if external && inputs.config.node_ips.is_empty() {
        return Some(vec![hostname]);
    }
    let Some(ips) = inputs.addresses else { return old.addresses.clone() };
    let internal = ips.iter().map(|ip| address("InternalIP", ip.to_string()));
    Some(internal.chain([hostname]).collect())
}

fn capacity(old: &NodeStatus, inputs: &StatusInputs<'_>) -> Amounts {
    let settings = &inputs.config.kubelet;
    let machine = inputs.machine;
    let max_pods = i128::from(settings.max_pods);
    let per_core = i128::from(settings.pods_per_core) * i128::from(machine.cpus);
    let mut amounts = Amounts::new();
    // keep resources of others, such as extended resources
    for (resource, quantity) in
        old.capacity.iter().flatten().filter(|(name, _)| !name.starts_with("hugepages-"))
    {
        let amount = match inputs.resets_extended && is_extended_resource(resource) {
            true => Some(0),
            false => longshore_pod::qos::milli(quantity),
        };
        amounts.extend(amount.map(|amount| (resource.clone(), amount)));
    }
    let extended = inputs.extended.0.iter();
    amounts.extend(extended.map(|(name, own)| (name.clone(), whole(own.capacity))));
    let disk = inputs.disk.filter(|_| settings.local_storage_capacity_isolation);
    amounts.extend(allocatable::capacity(machine, disk));
    let pods = if per_core > 0 { max_pods.min(per_core) } else { max_pods };
    amounts.insert("pods".to_owned(), pods * 1000);
    amounts
}

/// A number of devices in thousandths.
fn whole(devices: usize) -> i128 {
    i128::try_from(devices).unwrap_or(0).saturating_mul(1000)
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

fn node_info(inputs: &StatusInputs<'_>) -> NodeSystemInfo {
    let machine = inputs.machine;
    let version = &inputs.runtime.version;
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

/// The largest images, with a limited number of names each.
fn images(inputs: &StatusInputs<'_>) -> Vec<ContainerImage> {
    let mut images: Vec<&ContainerImage> = inputs.images.iter().collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.names.cmp(&b.names)));
    // -1: no limit
    let most = usize::try_from(inputs.config.kubelet.node_status_max_images).unwrap_or(usize::MAX);
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

fn conditions(
    old: &NodeStatus,
    inputs: &StatusInputs<'_>,
    capacity: &Amounts,
) -> Vec<NodeCondition> {
    let pressure = inputs.pressure;
    let mut conditions = old.conditions.clone().unwrap_or_default();
    let mut set = |type_: &str, status: bool, reason: &str, message: &str| {
        let status = if status { "True" } else { "False" };
        let now = Some(Time(inputs.now));
        let index = conditions.iter().position(|condition| condition.type_ == type_);
        let kept = index
            .map(|index| &conditions[index])
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
        match index {
            Some(index) => conditions[index] = condition,
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
    match not_ready(inputs, capacity) {
        Some(why) => set("Ready", false, "KubeletNotReady", &why),
        None => set("Ready", true, "KubeletReady", "kubelet is posting ready status"),
    }
    conditions
}

/// Why the node is not ready; several reasons are in brackets.
fn not_ready(inputs: &StatusInputs<'_>, capacity: &Amounts) -> Option<String> {
    let pleg = inputs.pleg.map(|why| format!("PLEG is not healthy: {why}"));
    let needed = ["cpu", "memory", "pods", "ephemeral-storage"];
    let isolation = inputs.config.kubelet.local_storage_capacity_isolation;
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|resource| {
            !capacity.contains_key(*resource) && (isolation || *resource != "ephemeral-storage")
        })
        .collect();
    let missing = (!missing.is_empty())
        .then(|| format!("missing node capacity for resources: {}", missing.join(", ")));
    let down = inputs.runtime.down.map(str::to_owned);
    let (runtime, network) =
        (inputs.runtime.runtime_error.clone(), inputs.runtime.network_error.clone());
    let storage = inputs.storage.map(str::to_owned);
    let shutdown = inputs.shutting_down.then(|| "node is shutting down".to_owned());
    let reasons: Vec<String> =
        [down, pleg, runtime, network, storage, missing, shutdown].into_iter().flatten().collect();
    match reasons.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

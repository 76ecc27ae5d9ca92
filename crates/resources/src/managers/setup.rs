//! The configured resource managers.

use std::path::Path;

use longshore_config::Config;
use longshore_pod::qos;
use longshore_topology::{
    Allocator, Amounts, CpuSet, Machine, Topology, TopologyOptions, TopologyPolicy, cpu, memory,
};

use super::{Error, machine};

/// CPU and NUMA topology in sysfs.
pub(super) const SYSTEM: &str = "/sys/devices/system";

fn setting(field: &'static str, why: impl ToString) -> Error {
    Error::Setting { field, why: why.to_string() }
}

/// The configured managers, without allocations.
pub(super) fn allocator(config: &Config) -> Result<Allocator, Error> {
    let settings = &config.kubelet;
    let reserved = &settings.reserved_system_cpus;
    let wants_machine = settings.cpu_manager_policy == "static"
        || settings.memory_manager_policy == "Static"
        || settings.topology_manager_policy != "none"
        || !reserved.is_empty();
    if !wants_machine {
        return Ok(Allocator::default());
    }
    let machine = machine::read(Path::new(SYSTEM))
        .map_err(|source| Error::File { path: SYSTEM.into(), source })?;
    let reserved: CpuSet =
        reserved.parse().map_err(|error| setting("reservedSystemCPUs", error))?;
    let online = machine.cpus.all();
    if !reserved.is_subset(&online) {
        let why = format!("{reserved} is not a subset of online-cpus: {online}");
        return Err(setting("reservedSystemCPUs", why));
    }
    let cpu = match settings.cpu_manager_policy.as_str() {
        "static" => Some(cpu_policy(config, &machine, reserved)?),
        _ => None,
    };
    let memory = match settings.memory_manager_policy.as_str() {
        "Static" => Some(memory_policy(config, &machine)?),
        _ => None,
    };
    Ok(Allocator::new(topology(config, &machine)?, cpu, memory))
}

fn topology(config: &Config, machine: &Machine) -> Result<Topology, Error> {
    const FIELD: &str = "topologyManagerPolicy";
    let settings = &config.kubelet;
    let policy = match settings.topology_manager_policy.as_str() {
        "best-effort" => TopologyPolicy::BestEffort,
        "restricted" => TopologyPolicy::Restricted,
        "single-numa-node" => TopologyPolicy::SingleNumaNode,
        _ => return Ok(Topology::default()),
    };
    let options = TopologyOptions::parse(&settings.topology_manager_policy_options)
        .map_err(|error| setting("topologyManagerPolicyOptions", error))?;
    let lacks_distances = machine.nodes.iter().any(|node| node.distances.is_empty());
    if options.prefer_closest && lacks_distances {
        let why = "prefer-closest-numa-nodes: the kernel reports no distances of NUMA nodes";
        return Err(setting("topologyManagerPolicyOptions", why));
    }
    let whole_pods = settings.topology_manager_scope == "pod";
    Topology::new(policy, whole_pods, options, machine).ok_or_else(|| {
        let most = options.most_nodes;
        setting(FIELD, format!("unsupported on machines with more than {most} NUMA Nodes"))
    })
}

fn cpu_policy(config: &Config, machine: &Machine, reserved: CpuSet) -> Result<cpu::Policy, Error> {
    let settings = &config.kubelet;
    let options = cpu::Options::parse(&settings.cpu_manager_policy_options, |gate| {
        config.gates.enabled(gate)
    });
    let options = options.map_err(|error| setting("cpuManagerPolicyOptions", error))?;
    let capacity = 1000 * machine.cpus.len() as i128;
    let held = capacity - config.reserved.allocatable("cpu", capacity);
    let count = usize::try_from((held + 999) / 1000).unwrap_or(0);
    cpu::Policy::new(machine.cpus.clone(), options, Some(reserved), count)
        .map_err(|error| setting("cpuManagerPolicy", error))
}

fn memory_policy(config: &Config, machine: &Machine) -> Result<memory::Policy, Error> {
    const FIELD: &str = "reservedMemory";
    let mut reserved = memory::Reserved::new();
    for reservation in &config.kubelet.reserved_memory {
        let node = u32::try_from(reservation.numa_node)
            .map_err(|_| setting(FIELD, format!("no NUMA node {}", reservation.numa_node)))?;
        for (resource, quantity) in &reservation.limits {
            let bytes = qos::milli(quantity).filter(|milli| milli % 1000 == 0);
            let bytes = bytes.and_then(|milli| u64::try_from(milli / 1000).ok());
            let bytes = bytes.ok_or_else(|| {
                setting(FIELD, format!("{resource}: {:?} is not a number of bytes", quantity.0))
            })?;
            reserved.entry(node).or_default().insert(resource.clone(), bytes);
        }
    }
    let capacity = 1000 * i128::from(longshore_machine::Machine::read().memory);
    let held = (capacity - config.reserved.allocatable(memory::MEMORY, capacity)) / 1000;
    let held = u64::try_from(held).unwrap_or(0);
    let wanted = Amounts::from([(memory::MEMORY.to_owned(), held)]);
    memory::Policy::new(&machine.nodes, &reserved, &wanted).map_err(|error| setting(FIELD, error))
}

//! Machines for tests.

use crate::{CpuInfo, Cpus, Machine, Node};

/// NUMA nodes, sockets, cores, threads of a core, caches; and whether the threads of a core lie
/// apart in the numbering (1) or side by side (0).
pub(crate) fn cpus(shape: &str) -> Cpus {
    let numbers: Vec<u32> = shape.split(',').map(|number| number.parse().unwrap()).collect();
    let [nodes, sockets, cores, threads, caches, apart] = numbers[..] else { panic!("{shape}") };
    let cpu = |core, thread| match apart {
        1 => thread * cores + core,
        _ => core * threads + thread,
    };
    let all = (0..cores).flat_map(|core| (0..threads).map(move |thread| (core, thread)));
    let info = |(core, thread)| {
        let info = CpuInfo {
            core: cpu(core, 0),
            socket: i32::try_from(core * sockets / cores).unwrap(),
            numa: core * nodes / cores,
            uncore: i32::try_from(core * caches / cores).unwrap(),
        };
        (cpu(core, thread), info)
    };
    all.map(info).collect()
}

/// The same with memory (bytes) and huge pages of 2 MiB on each node.
pub(crate) fn machine(shape: &str, memory: u64, huge_pages: u64) -> Machine {
    let cpus = cpus(shape);
    let count: u32 = shape.split(',').next().unwrap().parse().unwrap();
    let node = |id: u32| Node {
        id,
        memory,
        huge_pages: if huge_pages > 0 { vec![(2 << 20, huge_pages)] } else { Vec::new() },
        distances: (0..count).map(|other| u64::from(10 + 11 * other.abs_diff(id))).collect(),
    };
    Machine { cpus, nodes: (0..count).map(node).collect() }
}

//! The machine's CPU and NUMA topology from sysfs, as read by cAdvisor.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use longshore_base::files::if_present;
use longshore_topology::{CpuInfo, CpuSet, Cpus, Machine, Node};

/// The highest cache level that is private to a core.
const CORE_CACHE: u32 = 2;

/// Reads `/sys/devices/system`.
pub(super) fn read(system: &Path) -> io::Result<Machine> {
    let all = system.join("cpu");
    let online: Option<CpuSet> = number_list(&all.join("online"));
    let mut found: BTreeMap<u32, Vec<Thread>> = BTreeMap::new();
    let mut nodes = Vec::new();
    for (id, dir) in numbered(&system.join("node"), "node")? {
        let node = found.entry(id).or_default();
        for (cpu, _) in numbered(&dir, "cpu")? {
            node.extend(thread(&all, cpu));
        }
        nodes.push(node_of(id, &dir));
    }
    if nodes.is_empty() {
        // A kernel without NUMA: each socket counts as a node.
        for (cpu, _) in numbered(&all, "cpu")? {
            if let Some(thread) = thread(&all, cpu) {
                let socket = u32::try_from(thread.socket).unwrap_or(0);
                found.entry(socket).or_default().push(thread);
            }
        }
        nodes = found.keys().map(|id| Node { id: *id, ..Node::default() }).collect();
    }
    let is_online = |cpu: u32| online.as_ref().is_none_or(|online| online.contains(cpu));
    let cpus = found.into_iter().flat_map(|(node, mut threads)| {
        threads.retain(|thread| is_online(thread.cpu));
        infos(&all, node, &threads)
    });
    let cpus: Cpus = cpus.collect();
    match cpus.is_empty() {
        true => Err(io::Error::other("could not detect number of cpus")),
        false => Ok(Machine { cpus, nodes }),
    }
}

/// A CPU with its core and socket IDs.
struct Thread {
    cpu: u32,
    core: i32,
    socket: i32,
}

fn thread(all: &Path, cpu: u32) -> Option<Thread> {
    let topology = all.join(format!("cpu{cpu}/topology"));
    let (core, socket) = (topology.join("core_id"), topology.join("physical_package_id"));
    Some(Thread { cpu, core: number(&core)?, socket: number(&socket)? })
}

/// The CPUs of a node. Core IDs are unique per socket only, so a core is identified by its lowest
/// CPU.
fn infos(all: &Path, node: u32, threads: &[Thread]) -> Vec<(u32, CpuInfo)> {
    let mut cores: BTreeMap<(i32, i32), Vec<u32>> = BTreeMap::new();
    for thread in threads {
        cores.entry((thread.socket, thread.core)).or_default().push(thread.cpu);
    }
    let mut infos = Vec::new();
    for ((socket, _), cpus) in &cores {
        let Some(core) = cpus.iter().min().copied() else { continue };
        let of_node = cores.len().saturating_mul(cpus.len());
        let uncore = uncore_cache(all, core, of_node).unwrap_or(*socket);
        let info = CpuInfo { core, socket: *socket, numa: node, uncore };
        infos.extend(cpus.iter().map(|cpu| (*cpu, info)));
    }
    infos
}

/// The ID of the uncore cache, if it is shared by some, but not all cores of the node.
fn uncore_cache(all: &Path, cpu: u32, of_node: usize) -> Option<i32> {
    let caches = numbered(&all.join(format!("cpu{cpu}/cache")), "index").ok()?;
    caches.into_iter().find_map(|(_, cache)| {
        let level: u32 = number(&cache.join("level"))?;
        let sharing = number_list(&cache.join("shared_cpu_list"))?;
        (level > CORE_CACHE && sharing.len() != of_node).then(|| number(&cache.join("id")))?
    })
}

fn node_of(id: u32, dir: &Path) -> Node {
    let meminfo = text(&dir.join("meminfo")).unwrap_or_default();
    let total = meminfo.split_once("MemTotal:").and_then(|(_, rest)| {
        rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let pages = |(name, dir): (String, PathBuf)| {
        let size: u64 = name.strip_suffix("kB")?.parse().ok()?;
        Some((size.checked_mul(1024)?, number(&dir.join("nr_hugepages"))?))
    };
    let sizes = named(&dir.join("hugepages"), "hugepages-").unwrap_or_default();
    let mut huge_pages: Vec<(u64, u64)> = sizes.into_iter().filter_map(pages).collect();
    huge_pages.sort_unstable();
    let distances = text(&dir.join("distance")).unwrap_or_default();
    let distances = distances.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Node { id, memory: total.unwrap_or(0), huge_pages, distances }
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.trim().parse().ok()
}

fn number_list(path: &Path) -> Option<CpuSet> {
    text(path)?.trim().parse().ok()
}

/// The entries of a directory whose names are `prefix` and a number; none if it does not exist.
fn numbered(dir: &Path, prefix: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let entries = named(dir, prefix)?.into_iter();
    let mut found: Vec<_> =
        entries.filter_map(|(number, path)| Some((number.parse().ok()?, path))).collect();
    found.sort_unstable();
    Ok(found)
}

/// Names that begin with `prefix`, without it.
fn named(dir: &Path, prefix: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in if_present(std::fs::read_dir(dir))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(prefix)) {
            found.push((rest.to_owned(), entry.path()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two nodes of one socket each with two cores, whose threads lie apart; CPU 7 is offline.
    fn tree(root: &Path, numa: bool) {
        put(root, "cpu/online", "0-6\n");
        put(root, "cpu/cpufreq/policy", "");
        for cpu in 0..8_u32 {
            let (core, node) = (cpu % 4 % 2, cpu % 4 / 2);
            put(root, &format!("cpu/cpu{cpu}/topology/core_id"), &format!("{core}\n"));
            put(root, &format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{node}\n"));
            let siblings = format!("{},{}", cpu % 4, cpu % 4 + 4);
            for (index, level, id) in [(0, "1", cpu), (1, "3", cpu % 4 + 10)] {
                let cache = format!("cpu/cpu{cpu}/cache/index{index}");
                put(root, &format!("{cache}/level"), level);
                put(root, &format!("{cache}/id"), &id.to_string());
                put(root, &format!("{cache}/shared_cpu_list"), &siblings);
            }
            if numa {
                put(root, &format!("node/node{node}/cpu{cpu}/online"), "1");
            }
        }
        for node in (0..2).filter(|_| numa) {
            let dir = format!("node/node{node}");
            let meminfo = "Node 0 MemTotal:        1024 kB\nNode 0 MemFree: 1 kB\n";
            put(root, &format!("{dir}/meminfo"), meminfo);
            put(root, &format!("{dir}/distance"), "10 21\n");
            put(root, &format!("{dir}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n");
        }
    }

    #[test]
    fn machine_topology_numa_nodes_cores_and_caches() {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), true);
        let machine = read(dir.path()).unwrap();
        assert_eq!(machine.cpus.all().to_string(), "0-6");
        let info = |cpu| machine.cpus.info(cpu).unwrap();
        assert_eq!(info(5), CpuInfo { core: 1, socket: 0, numa: 0, uncore: 11 });
        assert_eq!(info(2), CpuInfo { core: 2, socket: 1, numa: 1, uncore: 12 });
        let node = |id| Node {
            id,
            memory: 1 << 20,
            huge_pages: vec![(2 << 20, 3)],
            distances: vec![10, 21],
        };
        assert_eq!(machine.nodes, [node(0), node(1)]);
    }

    #[test]
    fn machine_topology_without_numa() {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path(), false);
        let machine = read(dir.path()).unwrap();
        assert_eq!(machine.cpus.info(6).unwrap().numa, 1);
        assert_eq!(machine.nodes.len(), 2);
        assert!(read(&dir.path().join("nothing")).is_err());
    }

    #[test]
    fn this_machine_is_known() {
        let machine = read(Path::new("/sys/devices/system")).unwrap();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        assert_eq!(machine.cpus.all().to_string(), online.trim());
    }
}

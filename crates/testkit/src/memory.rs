//! The machine's memory, as a node counts it.
use std::fs;
use std::path::{Path, PathBuf};

/// A file of a cgroup, in the tree of cgroup v2 or in a v1 controller's.
///
/// `name` is relative to the tree's root, such as `kubepods/memory.stat`.
pub fn cgroup_file(v1_controller: &str, name: &Path) -> PathBuf {
    let root = Path::new("/sys/fs/cgroup");
    match root.join("cgroup.controllers").exists() {
        true => root.join(name),
        false => root.join(v1_controller).join(name),
    }
}

/// All of the machine's memory, in bytes; `None` if unknown.
pub fn total_memory() -> Option<u64> {
    Some(value(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")? * 1024)
}

/// What the node counts as available, in bytes: all but what is in use and cannot just be dropped;
/// `None` if unknown.
pub fn available_memory() -> Option<u64> {
    let stat = fs::read_to_string(cgroup_file("memory", Path::new("memory.stat"))).ok()?;
    let usage = cgroup_file("memory", Path::new("memory.usage_in_bytes"));
    let (used, dropped) = match fs::read_to_string(usage) {
        Ok(usage) => (usage.trim().parse().ok()?, value(&stat, "total_inactive_file ")?),
        Err(_) => {
            let used = value(&stat, "anon ")?.checked_add(value(&stat, "file ")?)?;
            (used, value(&stat, "inactive_file ")?)
        }
    };
    total_memory()?.checked_sub(used)?.checked_add(dropped)
}

fn value(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(key));
    lines.find_map(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_machine_is_read() {
        let (total, available) = (total_memory().unwrap(), available_memory().unwrap());
        assert!(available > 0 && available < total, "{available} of {total}");
    }
}

//! Facts about this machine from /proc and /sys.

use std::fs;
use std::path::{Path, PathBuf};

use longshore_topology::CpuSet;
use procfs::Current;

/// Facts that do not change at run time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// Online CPUs.
    pub cpus: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Swap in bytes.
    pub swap: u64,
    /// Reserved huge pages: size in bytes and number.
    pub hugepages: Vec<(u64, u64)>,
    /// The machine id.
    pub machine_id: String,
    /// The system UUID, or the machine id without one.
    pub system_uuid: String,
    /// The boot id.
    pub boot_id: String,
    /// The kernel release.
    pub kernel: String,
    /// The OS image name.
    pub os_image: String,
}

impl Machine {
    /// Reads them; unknown values are empty or zero.
    pub fn read() -> Self {
        let memory = procfs::Meminfo::current().ok();
        let machine_id = first_line(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
        let uuid = first_line(&[
            "/sys/class/dmi/id/product_uuid",
            "/proc/device-tree/system-id",
            "/proc/device-tree/vm,uuid",
        ]);
        Self {
            cpus: online_cpus()
                .map(|cpus| cpus.len() as u64)
                .or_else(|| std::thread::available_parallelism().ok().map(|n| n.get() as u64))
                .unwrap_or(1),
            memory: memory.as_ref().map_or(0, |memory| memory.mem_total),
            swap: memory.as_ref().map_or(0, |memory| memory.swap_total),
            hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: first_line(&["/proc/sys/kernel/random/boot_id"]),
            kernel: first_line(&["/proc/sys/kernel/osrelease"]),
            os_image: os_image(&fs::read_to_string("/etc/os-release").unwrap_or_default()),
        }
    }
}

/// The online CPUs, if known.
pub fn online_cpus() -> Option<CpuSet> {
    let cpus: CpuSet = first_line(&["/sys/devices/system/cpu/online"]).parse().ok()?;
    (!cpus.is_empty()).then_some(cpus)
}

fn first_line(paths: &[&str]) -> String {
    let lines = paths.iter().filter_map(|path| fs::read_to_string(path).ok());
    let mut lines = lines.map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned());
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

fn hugepages(directory: &Path) -> Vec<(u64, u64)> {
    let pages = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let size: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = fs::read_to_string(path.join("nr_hugepages")).ok()?.trim().parse().ok()?;
        Some((size.checked_mul(1024)?, count))
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.filter_map(|entry| pages(entry.path())).collect();
    found.sort_unstable();
    found
}

fn os_image(os_release: &str) -> String {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.trim().trim_matches('"').to_owned())
    };
    value("PRETTY_NAME=").or_else(|| value("NAME=")).unwrap_or_else(|| "Linux".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_capacity;

    #[test]
    fn machine_facts_are_read() {
        let machine = Machine::read();
        assert!(machine.cpus >= 1 && machine.memory > 64 << 20, "{machine:?}");
        assert!(!machine.boot_id.is_empty() && !machine.kernel.contains('\n'));
        assert!(disk_capacity(Path::new("/nonexistent/below")).unwrap() > 0);
    }

    #[test]
    fn machine_os_release_is_parsed() {
        assert_eq!(
            os_image("A=1\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_image("NAME=Alpine\n"), "Alpine");
        assert_eq!(os_image(""), "Linux");
    }
}

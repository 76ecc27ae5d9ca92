//! Huge page sizes of the machine, and their names in cgroup files.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::qos;

/// The sizes of the machine's huge pages in bytes.
pub static SIZES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let entries = std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        Some(kib.parse::<u64>().ok()? << 10)
    });
    sizes.collect()
});

/// A size as the kernel and runtimes write it, such as `2MB`.
pub fn name(size: u64) -> String {
    let (unit, shift) = match size {
        size if size >= 1 << 30 => ("GB", 30),
        size if size >= 1 << 20 => ("MB", 20),
        _ => ("KB", 10),
    };
    format!("{}{unit}", size >> shift)
}

/// The name of the resource that pages of that size are, such as `hugepages-2Mi`.
pub fn resource(size: u64) -> String {
    format!("hugepages-{}", binary(size.into()))
}

/// Bytes with the largest binary suffix that leaves a whole number, as Kubernetes writes them.
pub fn binary(bytes: i128) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut number, mut suffix) = (bytes, 0);
    while number != 0 && number % 1024 == 0 && suffix + 1 < suffixes.len() {
        number /= 1024;
        suffix += 1;
    }
    format!("{number}{}", suffixes[suffix])
}

/// How many bytes a list gives of pages of that size; `None` if it does not name it.
pub fn amount(list: &BTreeMap<String, Quantity>, size: u64) -> Option<u64> {
    let of_size = list.iter().find(|(name, _)| {
        let bytes = name.strip_prefix("hugepages-").map(|size| Quantity(size.to_owned()));
        bytes.as_ref().and_then(qos::milli) == Some(i128::from(size) * 1000)
    });
    of_size.and_then(|(_, amount)| u64::try_from(qos::milli(amount)? / 1000).ok())
}

//! `protectKernelDefaults`: kernel settings that pods and node rely on.
//!
//! Current limitations: without that field, upstream sets them; here they are not changed.

use std::path::Path;

use super::KubeletConfiguration;

/// The required settings, by their paths under `/proc/sys`.
const WANTED: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// An error for each kernel setting, under `directory`, with a wrong value.
pub(super) fn faults(settings: &KubeletConfiguration, directory: &Path) -> Vec<String> {
    if !settings.protect_kernel_defaults {
        return Vec::new();
    }
    let fault = |(name, wanted): (&str, &str)| {
        let path = directory.join(name);
        match std::fs::read_to_string(&path) {
            Ok(value) if value.trim() == wanted => None,
            Ok(value) => Some(format!(
                "protectKernelDefaults: invalid kernel flag: {name}, expected value: {wanted}, actual value: {}",
                value.trim()
            )),
            Err(error) => Some(format!("protectKernelDefaults: {}: {error}", path.display())),
        }
    };
    WANTED.into_iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finding 6: the field was accepted and without effect.
    #[test]
    fn config_protect_kernel_defaults() {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in WANTED {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        let protected =
            KubeletConfiguration { protect_kernel_defaults: true, ..Default::default() };
        let found = |settings: &KubeletConfiguration| faults(settings, directory.path());
        assert_eq!(found(&protected), Vec::<String>::new());
        std::fs::write(directory.path().join("kernel/panic"), "0\n").unwrap();
        std::fs::remove_file(directory.path().join("vm/panic_on_oom")).unwrap();
        let faults = found(&protected);
        let expected = "protectKernelDefaults: invalid kernel flag: kernel/panic, expected value: 10, actual value: 0";
        assert_eq!(faults[0], expected);
        assert!(faults.len() == 2 && faults[1].contains("vm/panic_on_oom"), "{faults:?}");
        assert_eq!(found(&KubeletConfiguration::default()), Vec::<String>::new());
    }
}

//! Kernel settings that pods and node rely on: set when the node starts, or only checked
//! (`protectKernelDefaults`).

use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

/// Where the kernel has its settings.
pub const SYSCTLS: &str = "/proc/sys";

/// The settings, by their paths under [`SYSCTLS`], with the values that a node needs.
const WANTED: [(&str, i64); 6] = [
    ("kernel/keys/root_maxbytes", 25_000_000),
    ("kernel/keys/root_maxkeys", 1_000_000),
    // seconds until the machine restarts after a panic
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    // memory is always given: limits of pods are those of their cgroups
    ("vm/overcommit_memory", 1),
    // the OOM killer ends processes, not the machine
    ("vm/panic_on_oom", 0),
];

/// What happens to settings with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// They are set.
    Modify,
    /// They are set if the kernel lets this process do so, and left as they are otherwise: in a user
    /// namespace (gate KubeletInUserNamespace).
    ModifyIfAllowed,
    /// They are an error.
    Require,
}

/// One setting is not as it has to be.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It has another value.
    #[error("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}")]
    Value {
        /// Its path under `/proc/sys`.
        name: &'static str,
        /// The value that it needs.
        expected: i64,
        /// The value that it has.
        actual: i64,
    },
    /// It cannot be read or set.
    #[error("{action} {path}: {source}", path = .path.display())]
    Io {
        /// `open` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not a number.
    #[error("{path}: {text:?} is not a number", path = .path.display())]
    NotANumber {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
}

/// Kernel settings are not as they have to be.
#[derive(Debug, thiserror::Error)]
#[error("{}", aggregate(.0))]
pub struct Error(Vec<Fault>);

/// One message as it is, several in brackets.
fn aggregate(faults: &[Fault]) -> String {
    match faults {
        [one] => one.to_string(),
        several => {
            let texts: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}

/// Brings the settings under `directory` to the values that a node needs. All are attempted.
pub fn apply(directory: &Path, behaviour: Behaviour) -> Result<(), Error> {
    let outcomes = WANTED.map(|(name, expected)| one(directory, name, expected, behaviour));
    let faults: Vec<Fault> = outcomes.into_iter().filter_map(Result::err).collect();
    if faults.is_empty() { Ok(()) } else { Err(Error(faults)) }
}

fn one(
    directory: &Path,
    name: &'static str,
    expected: i64,
    behaviour: Behaviour,
) -> Result<(), Fault> {
    let path = directory.join(name);
    let failed = |action| {
        let path = path.clone();
        move |source| Fault::Io { action, path, source }
    };
    let text = std::fs::read_to_string(&path).map_err(failed("open"))?;
    let Ok(actual) = text.trim().parse::<i64>() else {
        return Err(Fault::NotANumber { path, text });
    };
    match behaviour {
        _ if actual == expected => Ok(()),
        Behaviour::Require => Err(Fault::Value { name, expected, actual }),
        Behaviour::Modify | Behaviour::ModifyIfAllowed => {
            info!(name, expected, actual, "changing kernel setting");
            match std::fs::write(&path, expected.to_string()) {
                Err(error) if behaviour == Behaviour::ModifyIfAllowed => {
                    warn!(name, expected, actual, %error, "kernel setting is not changed");
                    Ok(())
                }
                written => written.map_err(failed("write")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn machine(values: [(&str, i64); 6]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in values {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{value}\n")).unwrap();
        }
        directory
    }

    #[test]
    fn kernel_tunables_are_set_at_start() {
        let directory = machine(WANTED.map(|(name, value)| (name, value ^ 1)));
        apply(directory.path(), Behaviour::Modify).unwrap();
        for (name, expected) in WANTED {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            assert_eq!(text.trim(), expected.to_string(), "{name}");
        }
        std::fs::remove_file(directory.path().join("vm/panic_on_oom")).unwrap();
        let error = apply(directory.path(), Behaviour::Modify).unwrap_err().to_string();
        assert!(error.starts_with("open ") && error.contains("vm/panic_on_oom"), "{error}");
    }

    #[test]
    fn kernel_tunables_that_cannot_be_set_are_passed_over_in_a_user_namespace() {
        let directory = machine(WANTED);
        let path = directory.path().join("kernel/panic");
        std::fs::remove_file(&path).unwrap();
        // Nobody may write it.
        std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", path).unwrap();
        std::fs::write(directory.path().join("vm/panic_on_oom"), "1\n").unwrap();
        let error = apply(directory.path(), Behaviour::Modify).unwrap_err().to_string();
        assert!(error.starts_with("write ") && error.contains("kernel/panic"), "{error}");
        std::fs::write(directory.path().join("vm/panic_on_oom"), "1\n").unwrap();
        apply(directory.path(), Behaviour::ModifyIfAllowed).unwrap();
        let text = std::fs::read_to_string(directory.path().join("vm/panic_on_oom")).unwrap();
        assert_eq!(text, "0", "what can be set is");
        // What it cannot read is an error there, too.
        std::fs::remove_file(directory.path().join("vm/panic_on_oom")).unwrap();
        apply(directory.path(), Behaviour::ModifyIfAllowed).unwrap_err();
    }

    #[test]
    fn kernel_tunables_are_only_checked_when_they_are_protected() {
        let directory = machine(WANTED);
        apply(directory.path(), Behaviour::Require).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        let found = || apply(directory.path(), Behaviour::Require).unwrap_err().to_string();
        write("kernel/panic", "0\n");
        let panic = "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0";
        assert_eq!(found(), panic);
        write("vm/overcommit_memory", "2\n");
        let memory =
            "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 2";
        assert_eq!(found(), format!("[{panic}, {memory}]"));
        let kept = std::fs::read_to_string(directory.path().join("kernel/panic")).unwrap();
        assert_eq!(kept, "0\n", "it is not changed");
        write("kernel/panic", "many");
        assert!(found().contains("\"many\" is not a number"), "{}", found());
    }
}

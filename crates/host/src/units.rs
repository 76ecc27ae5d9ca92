//! The programs of a machine as units of systemd. `make install` brings the units; their arguments are in
//! files of environment, which `up` and `join` write.

use std::path::Path;
use std::process::Command;

use crate::error::At;
use crate::files::{Created, remove};
use crate::services::{NODE, Service, UNITS};
use crate::setup::run;
use crate::{Error, Paths, Result};

/// Whether systemd runs this machine, as `sd_booted` finds out.
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The units that the services need are there.
pub(crate) fn check_installed(services: &[Service]) -> Result<()> {
    for service in services {
        let mut command = Command::new("systemctl");
        command.args(["cat", service.unit]);
        if run(command).is_err() {
            return Err(Error::refused(format!(
                "systemd has no unit {}: make install brings it, and up --foreground needs none",
                service.unit
            )));
        }
    }
    Ok(())
}

/// PURE: the file of environment of a service.
///
/// # Errors
/// systemd would take an argument apart.
pub(crate) fn environment(service: &Service) -> Result<String> {
    let is_plain = |arg: &str| {
        !arg.chars().any(|letter| {
            letter.is_whitespace() || letter.is_control() || "\"'\\$%`".contains(letter)
        })
    };
    if let Some(odd) = service.args.iter().find(|arg| !is_plain(arg)) {
        return Err(Error::refused(format!(
            "{odd:?} cannot be an argument of a unit of systemd: it has a space, a quote or the like"
        )));
    }
    let args = service.args.join(" ");
    let head = "# Written by longshore up or join, and removed by longshore reset.\n";
    Ok(match service.name {
        // What administrators set for a kubelet comes after it, and so holds.
        NODE => format!(
            "{head}LONGSHORE_ROLE=node\nKUBELET_CONFIG_ARGS=\"\"\nKUBELET_KUBECONFIG_ARGS=\"{args}\"\n"
        ),
        _ => format!("{head}LONGSHORE_ARGS=\"{args}\"\n"),
    })
}

/// Writes the files of environment.
pub(crate) fn write(created: &mut Created, services: &[Service], paths: &Paths) -> Result<()> {
    for service in services {
        let file = paths.environment().join(format!("{}.env", service.name));
        created.file(&file, environment(service)?.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn systemctl(words: &[&str], units: &[&str]) -> Result<()> {
    let mut command = Command::new("systemctl");
    command.args(words).args(units);
    run(command).map(drop)
}

/// Starts a unit, now and at every boot; it counts as started when its program says so.
pub(crate) fn start(service: &Service) -> Result<()> {
    let started = systemctl(&["enable", "--quiet", "--now"], &[service.unit]);
    started.map_err(|error| {
        Error::refused(format!("{error}: journalctl -u {} says why", service.unit))
    })
}

/// The units that run, or are about to, those that stop first first.
pub(crate) fn running() -> Vec<&'static str> {
    if !is_booted() {
        return Vec::new();
    }
    UNITS.iter().rev().copied().filter(|unit| is_started(&state(unit))).collect()
}

fn state(unit: &str) -> String {
    let mut command = Command::new("systemctl");
    command.args(["show", "--property=ActiveState", "--value", unit]);
    run(command).unwrap_or_default()
}

/// PURE: whether a unit in this state has processes, or will have: one that has failed and is started
/// again in a while is `activating`.
fn is_started(state: &str) -> bool {
    !matches!(state.trim(), "" | "inactive" | "failed")
}

fn is(word: &str, unit: &str) -> bool {
    systemctl(&[word, "--quiet"], &[unit]).is_ok()
}

/// Stops all units, and no longer starts them at boot. Those that are not installed are no error. Returns
/// those that ran.
pub(crate) fn stop() -> Result<Vec<&'static str>> {
    if !is_booted() {
        return Ok(Vec::new());
    }
    let running = running();
    if !running.is_empty() {
        systemctl(&["stop"], &running)?;
    }
    let enabled: Vec<_> = UNITS.iter().copied().filter(|unit| is("is-enabled", unit)).collect();
    if !enabled.is_empty() {
        systemctl(&["disable", "--quiet"], &enabled)?;
    }
    Ok(running)
}

/// Removes the files of environment, and their directory if nothing else is in it.
pub(crate) fn forget(paths: &Paths) -> Result<()> {
    for name in ["apiserver", "controllers", "dns", "network", NODE] {
        let file = paths.environment().join(format!("{name}.env"));
        remove(&file).at("remove", &file)?;
    }
    let _ = std::fs::remove_dir(paths.environment());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::UpArgs;
    use crate::services::services;
    use crate::settings::tests::cluster;

    #[test]
    fn units_have_the_arguments_of_their_services() {
        let settings = cluster(&UpArgs::default()).unwrap();
        let all = services(&settings, &Paths::new(Path::new("/")));
        let text: Vec<String> = all.iter().map(|one| environment(one).unwrap()).collect();
        assert!(
            text[0]
                .contains("\nLONGSHORE_ARGS=\"--cert-dir=/etc/kubernetes/pki --secure-port=6443 ")
        );
        assert!(text[4].contains("\nLONGSHORE_ROLE=node\n"));
        assert!(
            text[4].contains("\nKUBELET_KUBECONFIG_ARGS=\"--config=/var/lib/kubelet/config.yaml ")
        );
    }

    #[test]
    fn units_refuse_arguments_that_systemd_would_take_apart() {
        for arg in ["a b", "a\"b", "a'b", "$HOME", "%n", "a\\b", "a\nb"] {
            let service =
                Service { name: "x", unit: "x", program: "x", args: vec![arg.into()], role: None };
            assert!(environment(&service).is_err(), "{arg:?}");
        }
    }

    #[test]
    fn units_that_wait_for_their_next_start_count_as_running() {
        for state in ["active\n", "reloading", "activating\n", "deactivating"] {
            assert!(is_started(state), "{state}");
        }
        for state in ["", "inactive\n", "failed\n"] {
            assert!(!is_started(state), "{state}");
        }
    }

    /// Each unit of the repository is started with what is written for it.
    #[test]
    fn units_of_the_repository_read_their_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd");
        for (unit, name) in UNITS.iter().zip(["apiserver", "controllers", "dns", "network", "node"])
        {
            let text = std::fs::read_to_string(folder.join(unit)).unwrap();
            assert!(
                text.contains(&format!("\nEnvironmentFile=-/etc/longshore/{name}.env\n")),
                "{unit}"
            );
            for line in ["Type=notify", "Restart=always", "[Install]", "RestartSec="] {
                assert!(text.contains(line), "{unit}: {line}");
            }
        }
    }
}

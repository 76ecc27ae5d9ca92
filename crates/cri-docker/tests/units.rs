//! The units of systemd, as `make install` installs them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

fn install(mode: &str, programs: &Path, destination: &Path) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut command = Command::new("sh");
    command.arg(script).arg(mode).arg(programs).arg(destination).arg("/opt/longshore");
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn units_of_cri_docker_are_installed_and_not_enabled() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (programs, destination) = (folder.path().join("bin"), folder.path().join("to"));
    std::fs::create_dir(&programs)?;
    let names = [
        "longshore",
        "longshore-host",
        "longshore-apiserver",
        "longshore-controllers",
        "longshore-dns",
    ];
    for name in names {
        std::fs::write(programs.join(name), "")?;
    }
    // Makes a file of each kind.
    let manual = "#!/bin/sh\nfor f in man8/a.8 bash/a.bash zsh/_a fish/a.fish; do\n\
                  mkdir -p \"$1/${f%/*}\" && : >\"$1/$f\"; done\n";
    let program = programs.join("longshore-manual");
    std::fs::write(&program, manual)?;
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;

    install("install", &programs, &destination)?;
    let units = destination.join("opt/longshore/lib/systemd/system");
    let read = |name: &str| {
        let path = units.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let service = read("longshore-cri-docker.service")?;
    ensure!(service.contains("ExecStart=/opt/longshore/bin/longshore cri-docker "), "{service}");
    let socket = read("longshore-cri-docker.socket")?;
    let listen = "/run/longshore-docker.sock";
    ensure!(socket.contains(&format!("ListenStream={listen}\n")), "{socket}");
    ensure!(service.contains(&format!("--listen=unix://{listen} ")), "{service}");
    let is_link = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.and_then(|entry| entry.file_type()).is_ok_and(|kind| !kind.is_file())
    };
    ensure!(!std::fs::read_dir(&units)?.any(is_link), "a unit is enabled");

    install("uninstall", &programs, &destination)?;
    assert_eq!(std::fs::read_dir(&units)?.count(), 0);
    Ok(())
}

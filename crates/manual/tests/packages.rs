//! What `make deb` and `make tarball` pack, with small programs in the place of ours: packages are in order,
//! install, update, and leave nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 5] = [
    "longshore",
    "longshore-host",
    "longshore-apiserver",
    "longshore-controllers",
    "longshore-dns",
];
const PACKAGES: [&str; 4] =
    ["longshore", "longshore-apiserver", "longshore-controllers", "longshore-cluster"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Whether the tools are there; packages are made on Debian and its descendants alone.
fn has(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
    });
    if let Some(tool) = missing {
        eprintln!("skipped: {tool} is not installed");
    }
    missing.is_none()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// A directory with programs to be packed: they are small, and the one that writes man pages is ours.
fn programs(dir: &Path) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    for program in PROGRAMS {
        fs::copy("/usr/bin/true", bin.join(program)).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_longshore-manual"), bin.join("longshore-manual")).unwrap();
    bin
}

/// Packs, and returns the files.
fn pack(kind: &str, bin: &Path, out: &Path) -> Vec<PathBuf> {
    let script = sources().join("scripts/package.sh");
    let said =
        run(Command::new(script).arg(kind).args([bin, out]).env("DEB_COMPRESSION", "-Zgzip"));
    said.lines().map(PathBuf::from).collect()
}

/// All files and links below a directory, as paths from there on.
fn files(root: &Path) -> Vec<String> {
    let said = run(Command::new("find").arg(root).args(["!", "-type", "d", "-printf", "/%P\n"]));
    let mut files: Vec<String> = said.lines().map(str::to_owned).collect();
    files.sort();
    files
}

/// dpkg on a root of its own. What maintainer scripts say to systemd goes to nobody: it would be this machine's.
fn dpkg(dir: &Path, arguments: &[&str], packages: &[PathBuf]) -> Command {
    let shims = dir.join("shims");
    fs::create_dir_all(&shims).unwrap();
    for program in ["systemctl", "deb-systemd-invoke"] {
        let shim = shims.join(program);
        fs::write(&shim, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let root = dir.join("root");
    fs::create_dir_all(&root).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("dpkg");
    command
        .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", shims.display()))
        .arg(format!("--root={}", root.display()))
        // Packages of the system are not in this root, and neither is a shell for the scripts.
        .args(["--force-depends", "--force-script-chrootless", "--force-confold"])
        .args(arguments)
        .args(packages);
    command
}

/// What is in the root and is not dpkg's own.
fn installed(root: &Path) -> Vec<String> {
    files(root).into_iter().filter(|path| !path.starts_with("/var/lib/dpkg/")).collect()
}

#[test]
fn packages_install_update_and_leave_nothing() {
    if !has(&["dh", "dpkg"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let packages = pack("deb", &programs(dir.path()), &dir.path().join("out"));
    assert_eq!(packages.len(), PACKAGES.len(), "{packages:?}");
    let root = dir.path().join("root");
    run(&mut dpkg(dir.path(), &["--install"], &packages));
    let found = installed(&root);
    let has = |path: &str| found.iter().any(|one| one == path);
    for program in PROGRAMS {
        assert!(has(&format!("/usr/bin/{program}")), "{program}");
        assert!(has(&format!("/usr/share/man/man8/{program}.8.gz")), "{program}");
    }
    for unit in fs::read_dir(sources().join("systemd")).unwrap() {
        let unit = unit.unwrap().file_name().into_string().unwrap();
        let in_any = ["/lib", "/usr/lib"].map(|dir| has(&format!("{dir}/systemd/system/{unit}")));
        assert!(unit.ends_with(".d") || in_any.contains(&true), "{unit} is in {found:#?}");
    }
    for path in [
        "/etc/default/longshore-cri-docker",
        "/usr/share/bash-completion/completions/longshore",
        "/usr/share/doc/longshore/changelog.gz",
        "/usr/share/fish/vendor_completions.d/longshore-dns.fish",
        "/usr/share/longshore/systemd/kubelet.service.d/20-longshore.conf",
        "/usr/share/zsh/site-functions/_longshore-apiserver",
    ] {
        assert!(has(path), "{path} is in {found:#?}");
    }
    // No unit is enabled: longshore up does that.
    assert!(!found.iter().any(|path| path.contains(".wants/")), "{found:#?}");

    // What an administrator has changed stays when the package comes again, and when it is removed.
    let settings = root.join("etc/default/longshore-cri-docker");
    fs::write(&settings, "CRI_DOCKER_ARGS=--v=4\n").unwrap();
    run(&mut dpkg(dir.path(), &["--install"], &packages));
    assert_eq!(fs::read_to_string(&settings).unwrap(), "CRI_DOCKER_ARGS=--v=4\n");
    run(dpkg(dir.path(), &["--remove"], &[]).args(PACKAGES));
    let left = installed(&root);
    let of_administrator =
        |path: &String| path.starts_with("/etc/default/") || path.starts_with("/var/lib/systemd/");
    assert!(left.iter().all(of_administrator), "{left:#?}");
    run(dpkg(dir.path(), &["--purge"], &[]).args(PACKAGES));
    assert_eq!(installed(&root), Vec::<String>::new());
}

#[test]
fn packages_please_lintian() {
    if !has(&["dh", "lintian"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let packages = pack("deb", &programs(dir.path()), &dir.path().join("out"));
    let said = run(Command::new("lintian")
        .args(["--allow-root", "--fail-on=error,warning"])
        .args(packages));
    assert!(!said.contains("E: ") && !said.contains("W: "), "{said}");
}

/// Files by name with their content.
fn content(paths: &[PathBuf]) -> BTreeMap<String, Vec<u8>> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), fs::read(path).unwrap())).collect()
}

#[test]
fn packages_of_the_same_programs_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let bin = programs(dir.path());
    let kinds: &[&str] = if has(&["dh"]) { &["deb", "tarball"] } else { &["tarball"] };
    for kind in kinds {
        let [one, other] = ["a", "b"].map(|out| content(&pack(kind, &bin, &dir.path().join(out))));
        assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for (name, bytes) in one {
            assert!(other.get(&name) == Some(&bytes), "{name} differs");
        }
    }
}

#[test]
fn packages_as_a_tarball_install_what_make_install_does() {
    let dir = tempfile::tempdir().unwrap();
    let bin = programs(dir.path());
    let tarball = pack("tarball", &bin, &dir.path().join("out")).remove(0);
    run(Command::new("tar").arg("-C").arg(dir.path()).arg("-xzf").arg(&tarball));
    let name = tarball.file_name().unwrap().to_string_lossy().into_owned();
    let tree = dir.path().join(name.strip_suffix(".tar.gz").unwrap());
    let of_tarball = tree.join("scripts/install.sh");
    let install = |script: &Path, mode: &str, bin: &Path, destdir: &Path| {
        run(Command::new(script).arg(mode).args([bin, destdir]).arg("/usr/local"));
        files(destdir)
    };
    let roots = ["one", "other"].map(|root| dir.path().join(root));
    let unpacked = install(&of_tarball, "install", &tree.join("bin"), &roots[0]);
    let built = install(&sources().join("scripts/install.sh"), "install", &bin, &roots[1]);
    assert!(unpacked.contains(&"/usr/local/bin/longshore".to_owned()), "{unpacked:#?}");
    assert_eq!(unpacked, built);
    assert!(install(&of_tarball, "uninstall", &tree.join("bin"), &roots[0]).is_empty());
}

//! Every command that README.md and docs/ tell people to type is accounted for.
//!
//! Each is read by the program that it is for, with its flags, or by make (`make -n`); commands about files are run
//! in a folder that is installed into. [`RULES`] says of each where it is run, or why it is not; a test that it names
//! must have the words of the command. A command without a rule fails, with its page and line.
//!
//! Current limitations: systemctl is checked by the names of units, where no test under systemd is named.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use longshore_config::Command as NodeCommand;
use longshore_guide::{Guide, Line, forms, sources, words};

/// Where a command is run.
#[derive(Debug, Clone, Copy)]
enum Runs {
    /// Here.
    Here,
    /// By a test, which has these texts: the file from the root of the repository.
    By(&'static str, &'static [&'static str]),
    /// Nowhere: why. It is read all the same.
    Nowhere(&'static str),
}
use Runs::{By, Here, Nowhere};

const HOST: &str = "crates/host/tests/host.rs";
const PACKAGES: &str = "crates/manual/tests/packages.rs";
const SNAPSHOTS: &str = "crates/apiserver/tests/snapshots.rs";
const BUILD: &str = "builds and takes minutes";
const SYSTEMD: &str = "no test under systemd has it yet";

/// What commands begin with. Of several that fit, the longest counts.
const RULES: &[(&str, Runs)] = &[
    ("make install", By(PACKAGES, &["scripts/package.sh"])),
    ("make uninstall", By("crates/cri-docker/tests/units.rs", &[r#"install("uninstall""#])),
    ("make deb", By(PACKAGES, &[r#"pack("deb""#])),
    ("make", Nowhere(BUILD)),
    ("longshore up", By(HOST, &[r#"&["up"]"#])),
    ("longshore join", By(HOST, &["join_words"])),
    ("longshore check", Here),
    ("longshore status", Here),
    ("longshore version", By("crates/config/src/tests.rs", &[r#"&["longshore", "version"]"#])),
    ("longshore top", By("tests/top.rs", &[r#""top", "#])),
    ("longshore node --dashboard", By("tests/top.rs", &[r#""--dashboard""#])),
    ("longshore kubelet", By("crates/testkit/src/node.rs", &[r#""kubelet".into()"#])),
    ("longshore proxy", By("crates/testkit/src/kube_proxy.rs", &[r#".arg("proxy")"#])),
    ("longshore node", By("crates/testkit/src/node.rs", &[r#""node".into()"#])),
    ("longshore cri-docker", By("tests/docker.rs", &[r#".arg("cri-docker")"#])),
    ("longshore-apiserver snapshot save", By(SNAPSHOTS, &["snapshot save {file} {old}"])),
    ("longshore-apiserver snapshot check", By(SNAPSHOTS, &["snapshot check {old}"])),
    ("longshore-apiserver snapshot restore", By(SNAPSHOTS, &["snapshot restore {file} {flag}"])),
    ("longshore-apiserver snapshot defrag", By(SNAPSHOTS, &["snapshot defrag {old}"])),
    (
        "longshore-apiserver migrate --from=etcd --to=embedded",
        By(SNAPSHOTS, &["migrate --from=etcd --to=embedded {servers}"]),
    ),
    (
        "longshore-apiserver migrate --from=embedded --to=etcd",
        By(SNAPSHOTS, &["migrate --from=embedded --to=etcd {servers}"]),
    ),
    ("kubectl", By("crates/apiserver/tests/kubectl.rs", &["kubectl_commands_of_the_guide"])),
    ("apt-get install", By(PACKAGES, &[r#"&["--install"]"#])),
    ("mkdir", Here),
    ("cp", Here),
    ("ln", Here),
    ("rm", Here),
    ("systemctl daemon-reload", By("scripts/vm/payload.sh", &["systemctl daemon-reload"])),
    ("systemctl", Nowhere(SYSTEMD)),
];

fn rule(words: &[String]) -> Option<Runs> {
    let line = words.join(" ") + " ";
    let fits = RULES.iter().filter(|(start, _)| line.starts_with(&format!("{start} ")));
    fits.max_by_key(|(start, _)| start.len()).map(|(_, runs)| *runs)
}

/// A problem with a command, in the words of who reads it.
type Checked = Result<(), String>;

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(text),
    }
}

/// A folder with what `make install PREFIX=/usr` installs, and the files that commands name.
struct Installed {
    folder: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for program in [
            "longshore",
            "longshore-host",
            "longshore-apiserver",
            "longshore-controllers",
            "longshore-dns",
        ] {
            fs::write(bin.join(program), "").unwrap();
            fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_longshore-manual"), bin.join("longshore-manual")).unwrap();
        let installed = Self { folder };
        let script = sources().join("scripts/install.sh");
        run(Command::new(script).arg("install").arg(bin).arg(installed.root()).arg("/usr"))
            .unwrap();
        // That this machine has cgroup v1 is no fault of a command.
        let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n";
        let proxy = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        fs::write(installed.file("kubelet.yaml"), kubelet).unwrap();
        fs::write(installed.file("kube-proxy.yaml"), proxy).unwrap();
        installed
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// Runs a command about files, whose paths are those of the root.
    fn run(&self, words: &[String]) -> Checked {
        let below = |word: &String| match word.strip_prefix('/') {
            Some(path) => self.root().join(path).display().to_string(),
            None => word.clone(),
        };
        let (program, rest) = words.split_first().ok_or("no command")?;
        // An end with a slash is a folder that must be there.
        let ends = rest.iter().map(|word| (below(word), word.ends_with('/')));
        let rest = ends.map(|(path, is_folder)| if is_folder { path + "/" } else { path });
        run(Command::new(program).args(rest)).map(drop)
    }

    /// Configurations that are there, in the place of those that a command names or has by default.
    fn with_files(&self, words: &[String]) -> Vec<String> {
        let command = words.get(1).map(String::as_str).unwrap_or_default();
        let own = if command == "proxy" { "kube-proxy.yaml" } else { "kubelet.yaml" };
        let flag = |flag: &str, file: &str| format!("{flag}={}", self.file(file).display());
        let mut given: Vec<String> = words
            .iter()
            .map(|word| match word.split_once('=') {
                Some(("--config", _)) => flag("--config", own),
                Some(("--proxy-config", _)) => flag("--proxy-config", "kube-proxy.yaml"),
                _ => word.clone(),
            })
            .collect();
        if ["kubelet", "node"].contains(&command)
            && !words.iter().any(|one| one.starts_with("--config="))
        {
            given.push(flag("--config", own));
        }
        given
    }
}

/// The program's own reading of its command line.
fn read_by_program(words: &[String], installed: &Installed) -> Checked {
    let text = |error: clap::Error| match error.kind() {
        clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => Ok(()),
        _ => Err(error.to_string()),
    };
    match words.first().map(String::as_str) {
        Some("longshore") => match longshore_config::from_args(installed.with_files(words)) {
            Ok(NodeCommand::Host(_)) => {
                longshore_host::args::Cli::try_parse_from(words).map(drop).or_else(text)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        },
        Some("longshore-apiserver") => {
            // A number in the place of its name.
            let words = words.iter().map(|word| if word == "COUNT" { "5" } else { word });
            longshore_apiserver::args::Cli::try_parse_from(words).map(drop).or_else(text)
        }
        Some("longshore-controllers") => {
            longshore_controllers::Flags::try_parse_from(words).map(drop).or_else(text)
        }
        Some("longshore-dns") => {
            longshore_dns::args::Args::try_parse_from(words).map(drop).or_else(text)
        }
        _ => Err("no program of ours".to_owned()),
    }
}

fn dry_run(arguments: &[&str]) -> Result<String, String> {
    run(Command::new("make")
        .current_dir(sources())
        .env_remove("MAKEFLAGS")
        .args(["--dry-run", "--no-print-directory"])
        .args(arguments))
}

/// The target is one of `make help`, and each variable has an effect on what is run.
fn read_by_make(words: &[String]) -> Checked {
    let (variables, targets): (Vec<&String>, Vec<&String>) =
        words.iter().skip(1).partition(|word| word.contains('='));
    let [target] = targets.as_slice() else { return Err(format!("not one target: {targets:?}")) };
    let makefile = fs::read_to_string(sources().join("Makefile")).unwrap();
    let is_shown = |line: &str| {
        line.strip_prefix(&format!("{target}:")).is_some_and(|rest| rest.contains("## "))
    };
    if !makefile.lines().any(is_shown) {
        return Err(format!("make help has no {target}"));
    }
    let given: Vec<&str> =
        variables.iter().map(|one| one.as_str()).chain([target.as_str()]).collect();
    dry_run(&given)?;
    let plain = dry_run(&[target])?;
    for variable in variables {
        let (name, _) = variable.split_once('=').unwrap_or_default();
        let is_in_recipe = dry_run(&[target, &format!("{name}=another-value")])? != plain;
        // The others are read by scripts that the recipe runs.
        let scripts = plain.split_whitespace().filter(|word| word.starts_with("scripts/"));
        let is_in_script = scripts
            .filter_map(|path| fs::read_to_string(sources().join(path)).ok())
            .any(|script| {
                [format!("${name}"), format!("${{{name}")]
                    .iter()
                    .any(|use_of| script.contains(use_of))
            });
        if !is_in_recipe && !is_in_script {
            return Err(format!("{name} has no effect on make {target}"));
        }
    }
    Ok(())
}

/// The units are ours, or have a drop-in of ours.
fn read_by_systemctl(words: &[String]) -> Checked {
    let mut rest = words.iter().skip(1).filter(|word| !word.starts_with("--"));
    let verb = rest.next().map(String::as_str).unwrap_or_default();
    if !["daemon-reload", "enable", "disable", "start", "stop", "restart", "status"].contains(&verb)
    {
        return Err(format!("systemctl has no {verb}"));
    }
    for unit in rest {
        let name = if unit.contains('.') { unit.clone() } else { format!("{unit}.service") };
        let known = [name.clone(), format!("{name}.d")];
        if !known.iter().any(|name| sources().join("systemd").join(name).exists()) {
            return Err(format!("there is no unit {name} in systemd/"));
        }
    }
    Ok(())
}

/// The files that a pattern of a shell fits have the names of our packages.
fn read_by_apt(words: &[String]) -> Checked {
    let control = fs::read_to_string(sources().join("packaging/debian/control")).unwrap();
    let packages = control.lines().filter_map(|line| line.strip_prefix("Package: "));
    for pattern in words.iter().skip(2) {
        let file =
            Path::new(pattern).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (start, end) = file.split_once('*').ok_or(format!("{pattern} is no pattern"))?;
        for package in packages.clone() {
            let file = format!("{package}_1_amd64.deb");
            if !(file.starts_with(start) && file.ends_with(end)) {
                return Err(format!("{pattern} leaves out {package}"));
            }
        }
    }
    Ok(())
}

fn read(words: &[String], installed: &Installed) -> Checked {
    match words.first().map(String::as_str).unwrap_or_default() {
        "make" => read_by_make(words),
        "systemctl" => read_by_systemctl(words),
        "apt-get" => read_by_apt(words),
        // Read by being run.
        "kubectl" | "mkdir" | "cp" | "ln" | "rm" => Ok(()),
        _ => forms(words).iter().try_for_each(|form| read_by_program(form, installed)),
    }
}

/// Runs a command that only looks, on an empty root: what it finds is not the matter.
fn looks(words: &[String], installed: &Installed) -> Checked {
    // Beside the tests; `make test` builds it before.
    let program =
        Path::new(env!("CARGO_BIN_EXE_longshore-manual")).with_file_name("longshore-host");
    if !program.is_file() {
        return Err(format!("{} is not built", program.display()));
    }
    let empty = installed.file("empty");
    let output = Command::new(program)
        .args(words.iter().skip(1))
        .arg("--root")
        .arg(empty)
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let is_json = words.iter().any(|word| word == "json");
    match output.status.code() {
        // check: this machine may not be fit.
        Some(0 | 1) if !said.is_empty() && (!is_json || said.starts_with('{')) => Ok(()),
        code => Err(format!("{code:?}: {said} {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn runs(words: &[String], installed: &Installed) -> Checked {
    match rule(words) {
        None => Err("no rule of crates/manual/tests/guide.rs says where it is run".to_owned()),
        Some(Here) if words.first().is_some_and(|program| program == "longshore") => {
            looks(words, installed)
        }
        Some(Here) => installed.run(words),
        Some(By(file, texts)) => {
            let test =
                fs::read_to_string(sources().join(file)).map_err(|e| format!("{file}: {e}"))?;
            match texts.iter().find(|text| !test.contains(**text)) {
                Some(text) => Err(format!("{file} does not have {text:?} any more")),
                None => Ok(()),
            }
        }
        Some(Nowhere(why)) => {
            println!("not run: {}: {why}", words.join(" "));
            Ok(())
        }
    }
}

#[test]
fn guide_commands_are_right_and_run_somewhere() {
    let guide = Guide::read().unwrap();
    let installed = Installed::new();
    let mut wrong: Vec<String> = guide
        .unnamed
        .iter()
        .map(|line| format!("{}: a block without a language", line.place))
        .collect();
    for Line { place, text } in &guide.commands {
        let words = words(text);
        let checked = read(&words, &installed).and_then(|()| runs(&words, &installed));
        wrong.extend(checked.err().map(|why| format!("{place}: {text}: {why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn guide_rules_each_have_a_command() {
    let guide = Guide::read().unwrap();
    let all: Vec<String> =
        guide.commands.iter().map(|line| words(&line.text).join(" ") + " ").collect();
    for (start, _) in RULES {
        assert!(all.iter().any(|line| line.starts_with(&format!("{start} "))), "{start}");
    }
}

/// Commands in prose are not run, but read as those of blocks: at least a subcommand, a target or a flag.
#[test]
fn guide_commands_of_prose_are_right() {
    let guide = Guide::read().unwrap();
    let installed = Installed::new();
    // Of upstream's sources.
    let foreign = BTreeSet::from([
        "make WHAT=\"test/e2e_node/e2e_node.test vendor/github.com/onsi/ginkgo/v2/ginkgo\"",
    ]);
    let ours = [
        "make",
        "longshore",
        "longshore-apiserver",
        "longshore-controllers",
        "longshore-dns",
        "systemctl",
    ];
    let mut wrong = Vec::new();
    let mut count = 0;
    for Line { place, text } in &guide.spans {
        let words = words(text);
        let is_command =
            words.len() > 1 && words.first().is_some_and(|one| ours.contains(&one.as_str()));
        let is_synopsis = words.iter().any(|word| word == "UNIT");
        if is_command && !is_synopsis && !foreign.contains(text.as_str()) {
            count += 1;
            let checked = read(&words, &installed);
            wrong.extend(checked.err().map(|why| format!("{place}: {text}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "{count} commands: the pages are read wrongly");
}

#[test]
fn guide_wrong_commands_are_found() {
    let installed = Installed::new();
    for line in [
        "make no-such-target",
        "make bench NO_SUCH=1",
        "longshore no-such",
        "longshore up --no-such",
        "longshore kubelet --no-such",
        "longshore-apiserver snapshot save",
        "longshore-apiserver snapshot save FILE [--no-such DIR]",
        "systemctl restart no-such",
        "systemctl no-such longshore",
        "apt-get install ./no-such*.deb",
    ] {
        assert!(read(&words(line), &installed).is_err(), "{line}");
    }
    for line in ["cp /usr/share/no-such /etc/", "reboot", "longshore reset"] {
        assert!(runs(&words(line), &installed).is_err(), "{line}");
    }
}

//! The checks: PURE functions of the facts.

use super::Outcome;
use super::facts::{Facts, Space};
use crate::runtime;

type Check = fn(&Facts) -> Outcome;

const ALL: [Check; 25] = [
    user,
    kernel,
    kernel_config,
    modules,
    cgroups,
    controllers,
    sysctls,
    swap,
    memory,
    ports,
    container_runtime,
    runtime_ready,
    driver,
    cni_config,
    cni_plugins,
    iptables,
    iptables_backend,
    programs,
    clock,
    disk,
    inodes,
    open_files,
    security_modules,
    certificates,
    apiserver,
];

/// All checks, those that compare with the apiserver last.
pub(super) fn all(facts: &Facts) -> Vec<Outcome> {
    ALL.iter()
        .map(|check| check(facts))
        .chain([clock_offset(facts), skew(facts), host_name(facts)])
        .collect()
}

fn user(facts: &Facts) -> Outcome {
    if facts.is_root {
        Outcome::ok("user", "root")
    } else {
        Outcome::warning("user", "not root: some things cannot be looked at", "run this as root")
    }
}

/// PURE: major and minor of a release such as 6.1.0-13-amd64, or of a version such as v1.36.2.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    };
    Some((number(parts.next()?)?, number(parts.next()?)?))
}

fn kernel(facts: &Facts) -> Outcome {
    let name = "kernel";
    match release(&facts.kernel) {
        None => Outcome::skipped(name, format!("its release {:?} cannot be read", facts.kernel)),
        Some(found) if found < (4, 19) => Outcome::failure(
            name,
            format!("Linux {} is too old", facts.kernel),
            "install Linux 4.19 or later, better 5.13 or later",
        ),
        Some(found) if found < (5, 13) => Outcome::warning(
            name,
            format!(
                "Linux {} lacks features of pods, such as seccomp's notifications and cgroup.kill",
                facts.kernel
            ),
            "install Linux 5.13 or later",
        ),
        Some(_) => Outcome::ok(name, format!("Linux {}", facts.kernel)),
    }
}

/// What containers need of the kernel.
const OPTIONS: [&str; 12] = [
    "NAMESPACES",
    "NET_NS",
    "PID_NS",
    "IPC_NS",
    "UTS_NS",
    "CGROUPS",
    "CGROUP_PIDS",
    "CGROUP_DEVICE",
    "CPUSETS",
    "MEMCG",
    "FAIR_GROUP_SCHED",
    "INET",
];
/// What some pods need.
const WANTED: [&str; 5] = ["SECCOMP_FILTER", "CFS_BANDWIDTH", "OVERLAY_FS", "USER_NS", "PSI"];

fn kernel_config(facts: &Facts) -> Outcome {
    let name = "kernel config";
    let Some(config) = &facts.kernel_config else {
        return Outcome::skipped(name, "neither /boot/config-* nor /proc/config.gz is there");
    };
    let is_set = |option: &str| {
        config.lines().any(|line| {
            let value = line.strip_prefix("CONFIG_").and_then(|rest| rest.strip_prefix(option));
            matches!(value, Some("=y" | "=m"))
        })
    };
    let missing = |options: &[&str]| -> Vec<String> {
        let absent = options.iter().filter(|option| !is_set(option));
        absent.map(|option| format!("CONFIG_{option}")).collect()
    };
    match (missing(&OPTIONS), missing(&WANTED)) {
        (needed, _) if !needed.is_empty() => Outcome::failure(
            name,
            format!("{} is not set", needed.join(", ")),
            "use the kernel of a distribution, or set this in yours",
        ),
        (_, wanted) if !wanted.is_empty() => Outcome::warning(
            name,
            format!("{} is not set", wanted.join(", ")),
            "use a kernel with it, or do without the features of pods that need it",
        ),
        _ => Outcome::ok(name, "all that pods need is set"),
    }
}

/// Modules that a node uses; a kernel loads most of them by itself.
const MODULES: [&str; 4] = ["overlay", "br_netfilter", "nf_conntrack", "xt_comment"];

fn modules(facts: &Facts) -> Outcome {
    let name = "modules";
    let missing: Vec<&str> =
        MODULES.into_iter().filter(|module| !facts.modules.contains(*module)).collect();
    let absent: Vec<&str> =
        missing.iter().copied().filter(|module| !facts.loadable.contains(*module)).collect();
    if missing.is_empty() {
        return Outcome::ok(name, MODULES.join(", "));
    }
    if absent.is_empty() {
        return Outcome::warning(
            name,
            format!("{} is not loaded yet", missing.join(", ")),
            format!(
                "run modprobe -a {0}, and put {0} into a file of /etc/modules-load.d",
                missing.join(" ")
            ),
        );
    }
    // A container, or a kernel that says nothing of what is built in.
    Outcome::warning(
        name,
        format!("{} is neither loaded nor to be found", absent.join(", ")),
        "install the modules of this kernel, unless it has them built in",
    )
}

fn cgroups(facts: &Facts) -> Outcome {
    if facts.is_unified {
        return Outcome::ok("cgroups", "v2");
    }
    Outcome::warning(
        "cgroups",
        "v1, which Kubernetes has given up: in-place resize of memory, swap of pods and PSI do not work, and a \
         kubelet does not start without failCgroupV1: false",
        "boot with systemd.unified_cgroup_hierarchy=1",
    )
}

fn controllers(facts: &Facts) -> Outcome {
    let name = "cgroup controllers";
    let (needed, wanted): (&[&str], &[&str]) = match facts.is_unified {
        true => (&["cpu", "memory", "pids", "cpuset"], &["io", "hugetlb"]),
        false => (
            &["cpu", "cpuacct", "memory", "pids", "cpuset", "devices", "freezer"],
            &["blkio", "hugetlb"],
        ),
    };
    let missing = |all: &[&str]| -> Vec<String> {
        let absent = all.iter().filter(|one| !facts.controllers.contains(**one));
        absent.map(|one| (*one).to_owned()).collect()
    };
    match (missing(needed), missing(wanted)) {
        (needed, _) if !needed.is_empty() => Outcome::failure(
            name,
            format!("{} is not there", needed.join(", ")),
            format!(
                "boot with {}",
                needed
                    .iter()
                    .map(|one| format!("cgroup_enable={one}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
        ),
        (_, wanted) if !wanted.is_empty() => Outcome::warning(
            name,
            format!("{} is not there", wanted.join(", ")),
            "use a kernel with it, if pods are to be limited in it",
        ),
        _ => Outcome::ok(name, "all are there"),
    }
}

fn sysctls(facts: &Facts) -> Outcome {
    let name = "sysctls";
    let value = |key: &str| facts.sysctls.get(key).map(String::as_str);
    let number = |key: &str| value(key).and_then(|text| text.parse::<u64>().ok());
    if value("net/ipv4/ip_forward").is_some_and(|value| value != "1") {
        // longshore sets it where it makes the network.
        return Outcome::warning(
            name,
            "net.ipv4.ip_forward is 0: pods would reach nothing outside of the node",
            "run sysctl -w net.ipv4.ip_forward=1, and put it into a file of /etc/sysctl.d",
        );
    }
    if value("net/bridge/bridge-nf-call-iptables").is_some_and(|value| value != "1") {
        return Outcome::failure(
            name,
            "net.bridge.bridge-nf-call-iptables is 0: a pod would not reach a service that is backed on its node",
            "run sysctl -w net.bridge.bridge-nf-call-iptables=1, and put it into a file of /etc/sysctl.d",
        );
    }
    for (key, least) in
        [("fs/inotify/max_user_instances", 128), ("fs/inotify/max_user_watches", 8192)]
    {
        if let Some(found) = number(key).filter(|found| *found < least) {
            let key = key.replace('/', ".");
            return Outcome::warning(
                name,
                format!("{key} is {found}: a node with many pods runs out of it"),
                format!("run sysctl -w {key}={least}"),
            );
        }
    }
    Outcome::ok(name, "as a node needs them")
}

fn swap(facts: &Facts) -> Outcome {
    let name = "swap";
    if facts.swaps.is_empty() {
        Outcome::ok(name, "off")
    } else if facts.is_swap_allowed {
        Outcome::ok(
            name,
            format!("on ({}), as the node's configuration allows", facts.swaps.join(", ")),
        )
    } else {
        Outcome::failure(
            name,
            format!("on ({}): a node does not start by default", facts.swaps.join(", ")),
            "run swapoff -a and take it out of /etc/fstab, or set failSwapOn: false in the node's configuration",
        )
    }
}

fn memory(facts: &Facts) -> Outcome {
    let mebibytes = facts.memory >> 20;
    match mebibytes {
        0 => Outcome::skipped("memory", "/proc/meminfo cannot be read"),
        1..400 => Outcome::warning(
            "memory",
            format!("{mebibytes} MiB"),
            "give the machine 512 MiB at least",
        ),
        _ => Outcome::ok("memory", format!("{mebibytes} MiB")),
    }
}

fn ports(facts: &Facts) -> Outcome {
    let name = "ports";
    if facts.is_running {
        return Outcome::ok(name, "the cluster's own services have them");
    }
    let taken: Vec<String> =
        facts.taken.iter().map(|(port, user)| format!("{port} ({user})")).collect();
    match facts.taken.first() {
        None => Outcome::ok(name, "free"),
        Some((port, _)) => Outcome::failure(
            name,
            format!("in use: {}", taken.join(", ")),
            format!("end the program that has it: ss -ltnp 'sport = {port}'"),
        ),
    }
}

fn container_runtime(facts: &Facts) -> Outcome {
    let name = "container runtime";
    let endpoint = facts.runtime_endpoint.as_deref().unwrap_or_default();
    match &facts.runtime {
        None => Outcome::failure(
            name,
            "no socket of containerd or CRI-O is there",
            "install containerd 1.7 or later and start it, or give its socket with --container-runtime-endpoint",
        ),
        Some(Err(why)) if runtime::is_docker(endpoint) => Outcome::failure(
            name,
            format!("{endpoint} is of no use: {why}"),
            "install Docker 19.03 or later (API 1.40) and start it, or give its socket with \
             --container-runtime-endpoint=docker:///path",
        ),
        Some(Err(why)) => Outcome::failure(
            name,
            format!("{endpoint} does not answer: {why}"),
            "start it; a containerd of Docker's packages needs disabled_plugins = [] in /etc/containerd/config.toml",
        ),
        Some(Ok(runtime)) if runtime.api != "v1" => Outcome::failure(
            name,
            format!("{} {} speaks CRI {}", runtime.name, runtime.version, runtime.api),
            "install one that speaks CRI v1, such as containerd 1.6 or later",
        ),
        Some(Ok(found)) if runtime::is_docker(endpoint) => Outcome::ok(
            name,
            format!("Docker {}, over which the node serves CRI itself", found.version),
        ),
        Some(Ok(runtime)) => {
            let found = format!("{} {}, CRI {}", runtime.name, runtime.version, runtime.api);
            let is_old = runtime.name == "containerd"
                && release(&runtime.version).is_some_and(|found| found < (1, 7));
            match is_old {
                true => Outcome::warning(name, found, "install containerd 1.7 or later"),
                false => Outcome::ok(name, found),
            }
        }
    }
}

fn runtime_ready(facts: &Facts) -> Outcome {
    let name = "runtime status";
    match &facts.runtime {
        Some(Ok(runtime)) => match &runtime.unready {
            None => Outcome::ok(name, "ready"),
            Some(why) => {
                Outcome::failure(name, format!("not ready: {why}"), "see the log of the runtime")
            }
        },
        _ => Outcome::skipped(name, "no runtime answers"),
    }
}

fn driver(facts: &Facts) -> Outcome {
    let name = "cgroup driver";
    let Some(Ok(runtime)) = &facts.runtime else {
        return Outcome::skipped(name, "no runtime answers");
    };
    match &facts.configured_driver {
        Some(own) if *own != runtime.driver => Outcome::failure(
            name,
            format!("the node's is {own}, and the runtime's is {}", runtime.driver),
            format!(
                "set cgroupDriver: {} in the node's configuration, or {} in the runtime's",
                runtime.driver,
                driver_setting(facts)
            ),
        ),
        _ => Outcome::ok(name, runtime.driver.clone()),
    }
}

/// What a runtime calls its cgroup driver.
fn driver_setting(facts: &Facts) -> &'static str {
    let endpoint = facts.runtime_endpoint.as_deref().unwrap_or_default();
    match runtime::is_docker(endpoint) {
        true => "native.cgroupdriver (exec-opts of daemon.json)",
        false => "SystemdCgroup",
    }
}

fn cni_config(facts: &Facts) -> Outcome {
    let name = "CNI configuration";
    match facts.cni_files.as_slice() {
        [] => Outcome::ok(
            name,
            format!("none in {}: longshore up and join write one", facts.cni_folder.display()),
        ),
        [one] => Outcome::ok(name, one.clone()),
        [first, ..] => Outcome::warning(
            name,
            format!(
                "{} of them in {}; runtimes use {first} alone",
                facts.cni_files.len(),
                facts.cni_folder.display()
            ),
            "remove those that are not used",
        ),
    }
}

fn cni_plugins(facts: &Facts) -> Outcome {
    let name = "CNI plugins";
    match facts.has_cni_plugins {
        true => Outcome::ok(name, "bridge is there"),
        false if !facts.cni_files.is_empty() => {
            Outcome::skipped(name, "none known, and another network is configured")
        }
        false => Outcome::failure(
            name,
            "the plugin bridge is in none of the usual folders",
            "install containernetworking-plugins, or cni-plugins into /opt/cni/bin",
        ),
    }
}

fn iptables(facts: &Facts) -> Outcome {
    let name = "iptables";
    match &facts.iptables {
        None => Outcome::failure(name, "it is not installed, or does not run", "install iptables"),
        Some(text) => {
            let line = text.lines().next().unwrap_or_default().trim().to_owned();
            let version = line.split_whitespace().nth(1).and_then(release);
            match version {
                Some(found) if found < (1, 8) => {
                    Outcome::warning(name, line, "install iptables 1.8 or later")
                }
                _ => Outcome::ok(name, line),
            }
        }
    }
}

fn iptables_backend(facts: &Facts) -> Outcome {
    let name = "iptables backend";
    let Some(text) = &facts.iptables else { return Outcome::skipped(name, "no iptables runs") };
    let backend = if text.contains("nf_tables") { "nf_tables" } else { "legacy" };
    if backend == "nf_tables" && facts.foreign_rules > 0 {
        return Outcome::warning(
            name,
            format!(
                "{} rules of Kubernetes are in the legacy tables, which nf_tables does not show",
                facts.foreign_rules
            ),
            "remove them with iptables-legacy, or use that backend: update-alternatives --set iptables",
        );
    }
    Outcome::ok(name, backend)
}

fn programs(facts: &Facts) -> Outcome {
    let name = "programs";
    match facts.missing_programs.as_slice() {
        [] => Outcome::ok(name, "all are there"),
        missing => Outcome::failure(
            name,
            format!("{} is not installed", missing.join(", ")),
            "install iproute2, iptables and util-linux",
        ),
    }
}

fn clock(facts: &Facts) -> Outcome {
    let name = "time synchronization";
    match facts.is_clock_synchronized {
        Some(true) => Outcome::ok(name, "the clock is kept"),
        Some(false) => Outcome::warning(
            name,
            "nothing keeps the clock: leases and certificates go wrong when it drifts",
            "install chrony, or run timedatectl set-ntp true",
        ),
        None => Outcome::skipped(name, "neither chrony nor systemd says"),
    }
}

fn worst(facts: &Facts, part: impl Fn(&Space) -> Option<u64>) -> Option<(&str, String, u64)> {
    let parts = facts
        .spaces
        .iter()
        .filter_map(|(what, path, space)| Some((*what, path.display().to_string(), part(space)?)));
    parts.min_by_key(|(_, _, percent)| *percent)
}

fn percent(free: u64, all: u64) -> Option<u64> {
    free.saturating_mul(100).checked_div(all)
}

/// The limits of eviction, by default.
fn disk(facts: &Facts) -> Outcome {
    let name = "disk";
    match worst(facts, |space| percent(space.free_bytes, space.bytes)) {
        None => Outcome::skipped(name, "no file system can be looked at"),
        Some((what, path, free @ ..10)) => Outcome::failure(
            name,
            format!("{free} % of {path}, for {what}, are free: pods are evicted"),
            "make room until 15 % are free",
        ),
        Some((what, path, free @ ..15)) => Outcome::warning(
            name,
            format!("{free} % of {path}, for {what}, are free"),
            "make room: below 15 % images are removed, below 10 % pods are evicted",
        ),
        Some((_, path, free)) => {
            Outcome::ok(name, format!("{free} % of {path} are free, and more of others"))
        }
    }
}

fn inodes(facts: &Facts) -> Outcome {
    let name = "inodes";
    match worst(facts, |space| percent(space.free_inodes, space.inodes)) {
        None => Outcome::skipped(name, "no file system counts them"),
        Some((what, path, free @ ..5)) => Outcome::failure(
            name,
            format!("{free} % of {path}, for {what}, are free: pods are evicted"),
            "remove small files there",
        ),
        Some((_, path, free)) => {
            Outcome::ok(name, format!("{free} % of {path} are free, and more of others"))
        }
    }
}

fn open_files(facts: &Facts) -> Outcome {
    let name = "file descriptors";
    match facts.max_files {
        None => Outcome::skipped(name, "fs.file-max cannot be read"),
        Some(limit @ ..65_536) => Outcome::warning(
            name,
            format!("the machine has {limit} in all"),
            "run sysctl -w fs.file-max=1048576, and put it into a file of /etc/sysctl.d",
        ),
        Some(limit) => Outcome::ok(name, format!("{limit} in all")),
    }
}

fn security_modules(facts: &Facts) -> Outcome {
    let name = "SELinux, AppArmor";
    match (facts.is_selinux_enforcing, facts.is_apparmor_enabled) {
        (Some(true), _) => Outcome::warning(
            name,
            "SELinux enforces: containers get no access to what is not labelled for them",
            "install container-selinux, and set enable_selinux in the runtime's configuration",
        ),
        (_, Some(true)) if !facts.has_apparmor_parser => Outcome::warning(
            name,
            "AppArmor is on, and its parser is not installed: containerd cannot load its profile",
            "install apparmor",
        ),
        (_, Some(true)) => Outcome::ok(name, "AppArmor is on"),
        (Some(false), _) => Outcome::ok(name, "SELinux is permissive"),
        _ => Outcome::ok(name, "neither is on"),
    }
}

const DAY: i64 = 86_400;

fn certificates(facts: &Facts) -> Outcome {
    let name = "certificates";
    let renew = "run longshore up, which renews those in kubeconfigs, and restart longshore-apiserver, which renews its own";
    if let Some((path, why)) = facts
        .certificates
        .iter()
        .find_map(|one| one.end.as_ref().err().map(|why| (one.path.display(), why)))
    {
        // A CA that is made anew is another cluster's.
        let remedy = match path.to_string().ends_with("ca.crt") {
            true => {
                "restore it from a backup: nothing that it has signed is valid under another one"
            }
            false => "remove it, run longshore up, and restart longshore-apiserver",
        };
        return Outcome::failure(name, format!("{path}: {why}"), remedy);
    }
    let ends = facts
        .certificates
        .iter()
        .filter_map(|one| Some((one.path.display(), *one.end.as_ref().ok()?)));
    match ends.min_by_key(|(_, end)| *end) {
        None => Outcome::skipped(name, "there are none yet"),
        Some((path, end)) => {
            let days = end.saturating_sub(facts.now).div_euclid(DAY);
            match days {
                ..0 => Outcome::failure(name, format!("{path} has expired"), renew),
                0..14 => Outcome::warning(name, format!("{path} ends in {days} days"), renew),
                _ => Outcome::ok(name, format!("the first to end, in {days} days, is {path}")),
            }
        }
    }
}

fn apiserver(facts: &Facts) -> Outcome {
    let name = "apiserver";
    match (&facts.kubeconfig, &facts.apiserver) {
        (Some(_), Some(Ok(found))) => Outcome::ok(name, found.version.clone()),
        (Some(path), Some(Err(why))) => Outcome::failure(
            name,
            format!("that of {} does not answer: {why}", path.display()),
            "check its address, the network between and the credentials in that file",
        ),
        _ => Outcome::skipped(name, "this machine is no node yet"),
    }
}

fn clock_offset(facts: &Facts) -> Outcome {
    let name = "clock";
    let Some(Ok(found)) = &facts.apiserver else {
        return Outcome::skipped(name, "no apiserver to compare with");
    };
    match found.offset.map(i64::saturating_abs) {
        None => Outcome::skipped(name, "the apiserver does not say its time"),
        Some(seconds @ 30..) => Outcome::failure(
            name,
            format!("it differs from the apiserver's by {seconds} s"),
            "synchronize the clocks of both machines",
        ),
        Some(seconds) => {
            Outcome::ok(name, format!("within {} s of the apiserver's", seconds.max(1)))
        }
    }
}

fn skew(facts: &Facts) -> Outcome {
    let name = "version skew";
    let Some(Ok(found)) = &facts.apiserver else {
        return Outcome::skipped(name, "no apiserver to compare with");
    };
    let (Some(theirs), Some(own)) = (release(&found.version), release(facts.own_version)) else {
        return Outcome::skipped(name, format!("{:?} is not a version", found.version));
    };
    if theirs.0 != own.0 || own.1 > theirs.1 {
        return Outcome::failure(
            name,
            format!(
                "the node ({}) is newer than the apiserver ({})",
                facts.own_version, found.version
            ),
            "upgrade the apiserver first",
        );
    }
    if theirs.1.saturating_sub(own.1) > 3 {
        return Outcome::failure(
            name,
            format!(
                "the node ({}) is more than three minor versions behind the apiserver ({})",
                facts.own_version, found.version
            ),
            "upgrade the node",
        );
    }
    Outcome::ok(name, format!("node {}, apiserver {}", facts.own_version, found.version))
}

fn host_name(facts: &Facts) -> Outcome {
    let name = "host name";
    let is_good = !facts.host_name.is_empty()
        && facts
            .host_name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    match is_good {
        true => Outcome::ok(name, facts.host_name.clone()),
        false => Outcome::failure(
            name,
            format!("{:?} cannot be the name of a node", facts.host_name),
            "run hostnamectl set-hostname, or give a name with --node-name",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::check::facts::{ApiserverFacts, CertificateFacts, RuntimeFacts};
    use crate::check::{Level, Report};

    fn words(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// A machine on which everything is as it should be.
    fn good() -> Facts {
        let config: String =
            OPTIONS.iter().chain(&WANTED).map(|one| format!("CONFIG_{one}=y\n")).collect();
        let space = Space { bytes: 100, free_bytes: 50, inodes: 100, free_inodes: 50 };
        Facts {
            is_root: true,
            kernel: "6.1.0-13-amd64".into(),
            kernel_config: Some(config),
            modules: words("overlay br_netfilter nf_conntrack xt_comment"),
            is_unified: true,
            controllers: words("cpu memory pids cpuset io hugetlb"),
            sysctls: [("net/ipv4/ip_forward", "1"), ("fs/inotify/max_user_watches", "8192")]
                .map(|(key, value)| (key, value.to_owned()))
                .into(),
            runtime_endpoint: Some("unix:///c".into()),
            runtime: Some(Ok(RuntimeFacts {
                name: "containerd".into(),
                version: "1.7.20".into(),
                api: "v1".into(),
                driver: "systemd".into(),
                unready: None,
            })),
            configured_driver: Some("systemd".into()),
            cni_files: vec!["10-longshore.conflist".into()],
            has_cni_plugins: true,
            iptables: Some("iptables v1.8.9 (nf_tables)".into()),
            is_clock_synchronized: Some(true),
            now: 1_000 * DAY,
            spaces: vec![("pods", "/var/lib/kubelet".into(), space)],
            max_files: Some(1 << 20),
            is_apparmor_enabled: Some(true),
            has_apparmor_parser: true,
            certificates: vec![certificate(Ok(1_300 * DAY))],
            kubeconfig: Some("/etc/kubernetes/kubelet.conf".into()),
            apiserver: Some(Ok(ApiserverFacts { version: "v1.36.1".into(), offset: Some(0) })),
            own_version: "v1.36.2",
            host_name: "box".into(),
            memory: 2 << 30,
            ..Facts::default()
        }
    }

    fn certificate(end: Result<i64, String>) -> CertificateFacts {
        CertificateFacts { path: "/pki/a.crt".into(), end }
    }

    #[test]
    fn check_of_a_good_machine_is_good() {
        let report = Report::of(&good());
        let odd: Vec<_> = report.checks.iter().filter(|one| one.level != Level::Ok).collect();
        assert!(odd.is_empty(), "{odd:#?}");
        assert!(!report.has_failed());
        assert!(report.table().ends_with("\n0 failures, 0 warnings\n"), "{}", report.table());
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["checks"].as_array().unwrap().len(), ALL.len() + 3);
    }

    #[test]
    fn check_of_unknown_facts_says_what_is_missing() {
        let report = Report::of(&Facts { own_version: "v1.36.2", ..Facts::default() });
        assert!(report.has_failed());
        for check in &report.checks {
            let is_mended = matches!(check.level, Level::Failure | Level::Warning);
            assert_eq!(is_mended, !check.remedy.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn check_names_are_unique() {
        let names: Vec<_> = all(&good()).into_iter().map(|one| one.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn check_finds_what_is_wrong() {
        use Level::{Failure, Ok as Fine, Skipped, Warning};
        type Change = fn(&mut Facts);
        fn runtime(facts: &mut Facts) -> &mut RuntimeFacts {
            facts.runtime.as_mut().unwrap().as_mut().unwrap()
        }
        fn space(facts: &mut Facts) -> &mut Space {
            &mut facts.spaces[0].2
        }
        let table: &[(&str, Level, &str, Change)] = &[
            ("user", Warning, "root", |f| f.is_root = false),
            ("kernel", Failure, "too old", |f| f.kernel = "3.10.0-1160.el7".into()),
            ("kernel", Failure, "too old", |f| f.kernel = "4.18.0".into()),
            ("kernel", Warning, "lacks", |f| f.kernel = "5.4.0".into()),
            ("kernel", Skipped, "cannot be read", |f| f.kernel = "x".into()),
            ("kernel config", Skipped, "/proc/config.gz", |f| f.kernel_config = None),
            ("kernel config", Failure, "CONFIG_MEMCG ", |f| {
                f.kernel_config = f
                    .kernel_config
                    .take()
                    .map(|c| c.replace("CONFIG_MEMCG=y", "# CONFIG_MEMCG is not set"));
            }),
            ("kernel config", Warning, "CONFIG_PSI ", |f| {
                f.kernel_config = f
                    .kernel_config
                    .take()
                    .map(|c| c.replace("CONFIG_PSI=y", "CONFIG_PSI_DEFAULT=y"));
            }),
            ("modules", Warning, "neither", |f| f.modules.retain(|one| one != "overlay")),
            ("modules", Warning, "modprobe -a overlay", |f| {
                f.modules.remove("overlay");
                f.loadable.insert("overlay".into());
            }),
            ("cgroups", Warning, "v1", |f| f.is_unified = false),
            ("cgroup controllers", Failure, "cgroup_enable=memory", |f| {
                f.controllers.remove("memory");
            }),
            ("cgroup controllers", Warning, "hugetlb", |f| {
                f.controllers.retain(|one| one != "hugetlb")
            }),
            ("cgroup controllers", Failure, "devices", |f| f.is_unified = false),
            ("sysctls", Warning, "ip_forward", |f| {
                drop(f.sysctls.insert("net/ipv4/ip_forward", "0".into()))
            }),
            ("sysctls", Failure, "bridge-nf", |f| {
                f.sysctls.insert("net/bridge/bridge-nf-call-iptables", "0".into());
            }),
            ("sysctls", Warning, "max_user_watches", |f| {
                f.sysctls.insert("fs/inotify/max_user_watches", "100".into());
            }),
            ("swap", Failure, "swapoff", |f| f.swaps = vec!["/dev/sda2".into()]),
            ("swap", Fine, "allows", |f| {
                f.swaps = vec!["/dev/sda2".into()];
                f.is_swap_allowed = true;
            }),
            ("memory", Warning, "128 MiB", |f| f.memory = 128 << 20),
            ("memory", Skipped, "meminfo", |f| f.memory = 0),
            ("ports", Failure, "6443 (apiserver)", |f| f.taken = vec![(6443, "apiserver")]),
            ("ports", Fine, "own", |f| f.is_running = true),
            ("container runtime", Failure, "no socket", |f| f.runtime = None),
            ("container runtime", Failure, "refused", |f| f.runtime = Some(Err("refused".into()))),
            ("container runtime", Failure, "v1alpha2", |f| runtime(f).api = "v1alpha2".into()),
            ("container runtime", Warning, "1.7", |f| runtime(f).version = "1.6.20~ds1".into()),
            ("container runtime", Fine, "v2.1.4", |f| runtime(f).version = "v2.1.4".into()),
            ("container runtime", Failure, "install Docker", |f| {
                f.runtime_endpoint = Some("docker:///d".into());
                f.runtime = Some(Err("the engine's API 1.39 is older than 1.40".into()));
            }),
            ("container runtime", Fine, "Docker 20.10.24", |f| {
                f.runtime_endpoint = Some("docker:///d".into());
                runtime(f).version = "20.10.24".into();
            }),
            ("runtime status", Failure, "not ready: x", |f| runtime(f).unready = Some("x".into())),
            ("runtime status", Skipped, "no runtime", |f| f.runtime = None),
            ("cgroup driver", Failure, "cgroupDriver: cgroupfs", |f| {
                runtime(f).driver = "cgroupfs".into()
            }),
            ("cgroup driver", Failure, "native.cgroupdriver", |f| {
                f.runtime_endpoint = Some("docker:///d".into());
                runtime(f).driver = "cgroupfs".into();
            }),
            ("cgroup driver", Fine, "systemd", |f| f.configured_driver = None),
            ("CNI configuration", Fine, "write one", |f| f.cni_files.clear()),
            ("CNI configuration", Warning, "2 of them", |f| f.cni_files.push("x.conf".into())),
            ("CNI plugins", Skipped, "another", |f| f.has_cni_plugins = false),
            ("CNI plugins", Failure, "install", |f| {
                f.has_cni_plugins = false;
                f.cni_files.clear();
            }),
            ("iptables", Failure, "install iptables", |f| f.iptables = None),
            ("iptables", Warning, "1.8", |f| f.iptables = Some("iptables v1.6.1".into())),
            ("iptables backend", Warning, "3 rules", |f| f.foreign_rules = 3),
            ("iptables backend", Fine, "legacy", |f| {
                f.iptables = Some("iptables v1.8.9 (legacy)".into())
            }),
            ("programs", Failure, "ip is not", |f| f.missing_programs = vec!["ip"]),
            ("time synchronization", Warning, "chrony", |f| f.is_clock_synchronized = Some(false)),
            ("disk", Failure, "9 %", |f| space(f).free_bytes = 9),
            ("disk", Warning, "14 %", |f| space(f).free_bytes = 14),
            ("disk", Skipped, "no file system", |f| f.spaces.clear()),
            ("inodes", Failure, "4 %", |f| space(f).free_inodes = 4),
            ("inodes", Skipped, "counts", |f| space(f).inodes = 0),
            ("file descriptors", Warning, "1024", |f| f.max_files = Some(1024)),
            ("SELinux, AppArmor", Warning, "container-selinux", |f| {
                f.is_selinux_enforcing = Some(true)
            }),
            ("SELinux, AppArmor", Warning, "parser", |f| f.has_apparmor_parser = false),
            ("host name", Failure, "hostnamectl", |f| f.host_name = "a_b".into()),
        ];
        for (name, level, part, change) in table {
            let mut facts = good();
            change(&mut facts);
            let outcome = all(&facts).into_iter().find(|one| one.name == *name).unwrap();
            assert_eq!(outcome.level, *level, "{outcome:?}");
            let text = format!("{} : {}", outcome.message, outcome.remedy);
            assert!(text.contains(*part), "{name}: {part}: {text}");
        }
    }

    #[test]
    fn check_certificates_and_the_apiserver() {
        let outcome = |facts: &Facts, name: &str| {
            all(facts).into_iter().find(|one| one.name == name).unwrap()
        };
        for (end, level) in [
            (Ok(999 * DAY), Level::Failure),
            (Ok(1_000 * DAY - 1), Level::Failure),
            (Ok(1_000 * DAY), Level::Warning),
            (Ok(1_013 * DAY), Level::Warning),
            (Ok(1_014 * DAY), Level::Ok),
            (Ok(i64::MIN), Level::Failure),
            (Ok(i64::MAX), Level::Ok),
            (Err("not PEM".to_owned()), Level::Failure),
        ] {
            let facts = Facts { certificates: vec![certificate(end)], ..good() };
            let found = outcome(&facts, "certificates");
            assert_eq!(found.level, level, "{found:?}");
        }
        let with = |version: &str, offset: Option<i64>| Facts {
            apiserver: Some(Ok(ApiserverFacts { version: version.into(), offset })),
            ..good()
        };
        for (version, level) in [
            ("v1.36.0", Level::Ok),
            ("v1.39.0", Level::Ok),
            ("v1.40.0", Level::Failure),
            ("v1.35.9", Level::Failure),
            ("v2.36.0", Level::Failure),
            ("v1.37+", Level::Ok),
            ("", Level::Skipped),
        ] {
            assert_eq!(outcome(&with(version, None), "version skew").level, level, "{version}");
        }
        for (offset, level) in [
            (Some(0), Level::Ok),
            (Some(-29), Level::Ok),
            (Some(30), Level::Failure),
            (Some(i64::MIN), Level::Failure),
            (None, Level::Skipped),
        ] {
            assert_eq!(outcome(&with("v1.36.0", offset), "clock").level, level, "{offset:?}");
        }
        let gone = Facts { apiserver: Some(Err("refused".into())), ..good() };
        assert_eq!(outcome(&gone, "apiserver").level, Level::Failure);
        assert_eq!(outcome(&gone, "clock").level, Level::Skipped);
        let none = Facts { apiserver: None, kubeconfig: None, ..good() };
        assert_eq!(outcome(&none, "apiserver").level, Level::Skipped);
    }
}

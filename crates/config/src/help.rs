//! The text of `--help`: flags in groups.

use std::fmt::Write as _;

use super::flags::{DOCKER_FLAGS, KUBELET_FLAGS};
use super::pflag::Flag;

/// Descriptions of flags without a configuration field.
static MEANINGS: &[(&str, &str)] = &[
    ("help", "print this"),
    ("version", "print the version; raw: more of it"),
    ("config", "file with a KubeletConfiguration"),
    ("config-dir", "directory of *.conf files, merged over that of --config in their order"),
    ("kubeconfig", "how to reach the apiserver; without it pods come from files alone"),
    ("bootstrap-kubeconfig", "how to request a first client certificate"),
    ("hostname-override", "the node's name, instead of the host's"),
    ("node-ip", "the node's address, or one of each family with a comma"),
    ("node-labels", "labels of the node when it registers"),
    ("cert-dir", "where the node keeps its certificates"),
    ("root-dir", "where the node keeps its state"),
    ("cloud-provider", "\"external\": a controller completes the node object"),
    ("lock-file", "held while the daemon runs"),
    ("exit-on-lock-contention", "leave when another process wants the lock file"),
    ("runtime-cgroups", "the cgroup of the container runtime"),
    ("image-credential-provider-config", "configuration of credential plugins"),
    ("image-credential-provider-bin-dir", "where those plugins are"),
    ("proxy-config", "KubeProxyConfiguration of `longshore node`, which runs kube-proxy too"),
    (
        "authorization-strict-streams",
        "exec, attach, run and port-forward take leave to create, also when a GET begins them",
    ),
    (
        "wait-for-device-plugins",
        "after a restart, admitted pods wait for their device plugin and do not fail",
    ),
    (
        "early-readiness-probes",
        "containers that are not ready are probed more often than their period",
    ),
    (
        "keep-kernel-tunables",
        "kernel settings are left as they are, unless protectKernelDefaults checks them",
    ),
    ("pod-infra-container-image", "the image of sandboxes"),
    ("cni-bin-dir", "folders of CNI's plugins, with commas"),
    ("cni-conf-dir", "CNI's configurations, of which the first by name is used"),
    ("cni-cache-dir", "where results of CNI's plugins are kept"),
    ("image-pull-progress-deadline", "a pull without progress for so long is ended"),
    ("cri-dockerd-root-directory", "where checkpoints of sandboxes are kept"),
    ("dashboard", "a page for browsers on this machine: IP:PORT, or 127.0.0.1:10247 (default off)"),
    ("cadvisor-port", "port of cAdvisor's own interface; 0: none"),
    ("seccomp-default", "RuntimeDefault is the default seccomp profile"),
    ("v", "verbosity of the log: 0 to 10"),
    ("logging-format", "text or json"),
    ("log-flush-frequency", "how long lines stay in a buffer at most"),
    ("log-text-split-stream", "information goes to stdout (alpha)"),
    ("log-json-split-stream", "information goes to stdout (alpha)"),
    ("log-text-info-buffer-size", "how much of that is buffered (alpha)"),
    ("log-json-info-buffer-size", "how much of that is buffered (alpha)"),
    ("vmodule", "verbosity of files by name, for text"),
];

/// The groups and their conditions; a flag is shown in the first one that matches.
type Group = (&'static str, fn(&FlagOf) -> bool);
type FlagOf = Flag<super::KubeletFlags>;

static GROUPS: [Group; 6] = [
    ("Accepted, without effect", |flag| flag.target.is_ignored()),
    ("Global", |flag| matches!(flag.name, "help" | "version")),
    ("Logging", |flag| matches!(flag.name, "v" | "vmodule") || flag.name.starts_with("log")),
    ("Fields of the file of --config, which they override (deprecated: set them there)", |flag| {
        flag.deprecated
    }),
    ("Docker, with an endpoint docker:///var/run/docker.sock", |flag| {
        DOCKER_FLAGS.contains(&flag.name)
    }),
    ("Node", |_| true),
];

/// The order of groups.
const ORDER: [usize; 6] = [5, 4, 1, 2, 3, 0];

/// The flags of another program, as in its table.
pub(super) fn table<T>(program: &str, about: &str, flags: &[Flag<T>]) -> String {
    let mut text = format!("{about}\n\nUsage:\n  {program} [flags]\n\nFlags:\n");
    for flag in flags {
        let kind = flag.target.type_name();
        let note = if flag.deprecated { "(config)" } else { "" };
        let dashes = if flag.name.len() == 1 { "-" } else { "--" };
        let shown = format!("{dashes}{} {kind}", flag.name);
        // writing to a String cannot fail
        let _ = writeln!(text, "  {}", format!("{shown:<54} {note}").trim_end());
    }
    text
}

pub(super) fn text() -> String {
    let mut text = String::from(
        "The kubelet: runs the pods of this node.\n\nUsage:\n  kubelet [flags]\n  longshore kubelet [flags]\n",
    );
    for group in ORDER {
        // writing to a String cannot fail
        let _ = writeln!(text, "\n{}:", GROUPS[group].0);
        let is_in =
            |flag: &&FlagOf| GROUPS.iter().position(|(_, takes)| takes(flag)) == Some(group);
        for flag in KUBELET_FLAGS.iter().filter(is_in) {
            let dashes = if flag.name.len() == 1 { "-" } else { "--" };
            let shown = format!("{dashes}{} {}", flag.name, flag.target.type_name());
            let meaning = MEANINGS.iter().find(|(name, _)| *name == flag.name);
            let meaning = meaning.map_or("", |(_, meaning)| meaning);
            let _ = writeln!(text, "  {}", format!("{shown:<54} {meaning}").trim_end());
        }
    }
    text
}

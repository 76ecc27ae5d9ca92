use std::fs;

use longshore_proxy::config::LocalMode;

use super::*;
use crate::from_args;

fn run(args: &[&str]) -> Result<Command, ConfigError> {
    from_args(["kube-proxy"].iter().chain(args).map(|arg| (*arg).to_owned()))
}

fn proxy(args: &[&str]) -> ProxyConfig {
    match run(args) {
        Ok(Command::Proxy(config, ProxyTask::Run)) => *config,
        other => panic!("{other:?}"),
    }
}

fn error(args: &[&str]) -> String {
    run(args).unwrap_err().to_string()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

const HEAD: &str = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\n";

#[test]
fn proxy_config_flags_are_settings() {
    let config = proxy(&[
        "--proxy-mode=iptables",
        "--kubeconfig=/k",
        "--kube-api-qps=7.5",
        "--iptables-min-sync-period=0s",
        "--iptables-sync-period=10s",
        "--nodeport-addresses=10.0.0.0/8,fd00::/8",
        "--detect-local-mode=NodeCIDR",
        "--oom-score-adj=-5",
        "--conntrack_max_per_core=0",
        "--healthz-bind-address=10.0.0.1",
        "--metrics-port=0",
        "--hostname-override=Node-A ",
        "-v=4",
    ]);
    let settings = &config.settings;
    assert_eq!(settings.mode, Mode::IpTables);
    assert_eq!(settings.detect_local_mode, LocalMode::NodeCidr);
    assert_eq!(settings.client_connection.kubeconfig, "/k");
    assert!((settings.client_connection.qps - 7.5).abs() < f32::EPSILON);
    assert_eq!(settings.iptables.sync_period.to_string(), "10s");
    assert_eq!(settings.node_port_addresses, ["10.0.0.0/8", "fd00::/8"]);
    assert_eq!((settings.oom_score_adj, settings.conntrack.max_per_core), (-5, 0));
    assert_eq!(settings.healthz_bind_address, "10.0.0.1:10256");
    assert_eq!(settings.metrics_bind_address, "");
    assert_eq!((config.node_name.as_str(), config.logging.verbosity), ("node-a", 4));
    assert_eq!(config.flags["proxy-mode"], "iptables");
}

#[test]
fn proxy_config_file_overrides_most_flags() {
    let file = file(&format!(
        "{HEAD}mode: iptables\nhostnameOverride: from-file\nnoSuchField: 1\nlogging: {{verbosity: 2}}\n"
    ));
    let path = format!("--config={}", file.path().display());
    let config =
        proxy(&[&path, "--proxy-mode=userspace", "--oom-score-adj=1", "--master=https://m"]);
    assert_eq!((config.settings.mode, config.settings.oom_score_adj), (Mode::IpTables, -999));
    assert_eq!((config.node_name.as_str(), config.logging.verbosity), ("from-file", 2));
    assert_eq!(config.master.as_deref(), Some("https://m"));
    let notes = config.notes.join("\n");
    for note in ["noSuchField: unknown field", "--proxy-mode is void", "--oom-score-adj is void"] {
        assert!(notes.contains(note), "{notes}");
    }
    let config = proxy(&[&path, "--hostname-override=flag", "-v3"]);
    assert_eq!((config.node_name.as_str(), config.logging.verbosity), ("flag", 3));
}

#[test]
fn proxy_config_tasks() {
    let task = |args: &[&str]| match run(args) {
        Ok(Command::Proxy(_, task)) => task,
        other => panic!("{other:?}"),
    };
    assert_eq!(task(&["--cleanup"]), ProxyTask::CleanUp);
    assert_eq!(task(&["--cleanup", "--proxy-mode=ipvs"]), ProxyTask::CleanUp);
    assert_eq!(task(&["--init-only"]), ProxyTask::Init);
    assert!(matches!(run(&["--version"]), Ok(Command::Print(text)) if text.contains("v1.36")));
    assert!(
        matches!(run(&["--help"]), Ok(Command::Print(text)) if text.contains("--cluster-cidr"))
    );
}

#[test]
fn proxy_config_round_trip() {
    let Ok(Command::Write { path, text }) =
        run(&["--write-config-to=/tmp/x", "--proxy-mode=iptables", "--cluster-cidr=10.0.0.0/8"])
    else {
        panic!("nothing to write");
    };
    assert_eq!(path, Path::new("/tmp/x"));
    assert!(text.contains("apiVersion: kubeproxy.config.k8s.io/v1alpha1"), "{text}");
    let file = file(&text);
    let config = proxy(&["--config", file.path().to_str().unwrap()]);
    assert_eq!((config.settings.cluster_cidr.as_str(), config.notes.len()), ("10.0.0.0/8", 0));
}

#[test]
fn proxy_config_errors_name_the_field() {
    for (args, fault) in [
        (&["--proxy-mode=ipvs"][..], "mode: \"ipvs\" is not one of longshore's"),
        (&["--proxy-mode=nftables"], "mode: \"nftables\" is not one of longshore's"),
        (&["--proxy-mode=ebpf"], "--proxy-mode: unknown variant `ebpf`"),
        (&["--bind-address=here"], "not a valid IP address"),
        (&["--kube-api-qps=fast"], "\"fast\" is not a number"),
        (&["--feature-gates=NoSuch=true"], "unrecognized feature gate: NoSuch"),
        (&["--cluster-cidr=pods"], "clusterCIDR: \"pods\" is not a CIDR"),
        (&["--no-such-flag"], "unknown flag: --no-such-flag"),
        (&["run"], "unknown command run"),
        (&["--config=/no/such"], "cannot read /no/such"),
    ] {
        let error = error(args);
        assert!(error.contains(fault), "{fault:?} is missing from {error}");
    }
    let file = file("kind: KubeletConfiguration\n");
    let error = error(&["--config", file.path().to_str().unwrap()]);
    assert!(error.contains("expected a KubeProxyConfiguration"), "{error}");
}

#[test]
fn flag_table_has_no_duplicates() {
    let mut names: Vec<_> = PROXY_FLAGS.iter().map(|flag| flag.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

/// Finding 6: each field has its place in the table, so that a new one is thought about.
#[test]
fn config_effects_table_has_every_field() {
    let tree = KubeProxyConfiguration::default().to_tree();
    let known = tree.as_object().unwrap().keys().map(String::as_str);
    let mut known: Vec<&str> =
        known.filter(|name| !["kind", "apiVersion"].contains(name)).collect();
    let mut listed: Vec<&str> = effects::EFFECTS.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known);
    let ignored = PROXY_FLAGS.iter().filter(|flag| flag.target.is_ignored());
    let ignored: Vec<&str> = ignored.map(|flag| flag.name).collect();
    let listed: Vec<&str> = effects::IGNORED_FLAGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(ignored, listed);
}

/// Finding 6: who asks for a protection that would not be in force learns it at the start.
#[test]
fn config_unsupported_protection_is_rejected() {
    let narrow = "--nodeport-addresses=192.0.2.0/24";
    let refused = error(&["--proxy-mode=userspace", narrow]);
    assert!(refused.contains("nodePortAddresses: in mode userspace"), "{refused}");
    assert_eq!(proxy(&[narrow]).settings.node_port_addresses, ["192.0.2.0/24"]);
    assert!(error(&["--proxy-mode=nftables"]).contains("mode: \"nftables\""));
    let shown = proxy(&["--show-hidden-metrics-for-version=1.35"]).notes;
    assert_eq!(
        shown,
        ["showHiddenMetricsForVersion is set and has no effect: no metric is hidden"]
    );
    assert_eq!(proxy(&[]).notes, Vec::<String>::new());
}

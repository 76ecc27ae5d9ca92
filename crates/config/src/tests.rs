use std::fs;
use std::path::Path;

use longshore_base::version::KUBERNETES_VERSION;

use super::*;

mod effects;
mod faults;

/// What kubeadm 1.36 writes on a node.
const KUBEADM: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: \"\"
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";

/// What an operator of a test cluster writes: flow style, a machine with cgroup v1.
const HAND_MADE: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
clusterDNS: [10.202.0.10]
clusterDomain: cluster.local
resolvConf: resolv.conf
containerRuntimeEndpoint: unix:///run/test/containerd.sock
staticPodPath: manifests
serializeImagePulls: false
readOnlyPort: 10255
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
tlsCertFile: /pki/node.crt
tlsPrivateKeyFile: /pki/node.key
";

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn load_text(text: &str) -> Result<KubeletConfiguration, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "config.yaml", text);
    file::load(Some(&path), None)
        .map(|(settings, warnings)| {
            assert!(warnings.is_empty(), "{warnings:?}");
            settings
        })
        .map_err(|error| error.to_string().replace(&format!("{}: ", path.display()), ""))
}

fn run(args: &[&str]) -> Result<Command, ConfigError> {
    from_args(args.iter().map(|arg| (*arg).to_owned()))
}

/// The configuration of a kubelet with these flags on any machine.
fn kubelet(args: &[&str]) -> Result<Config, String> {
    let args = [&["longshore", "kubelet", "--fail-cgroupv1=false", "--hostname-override=n1"], args]
        .concat();
    match run(&args) {
        Ok(Command::Kubelet(config)) => Ok(*config),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn config_zero_values_are_defaults() {
    let expected = KubeletConfiguration {
        authentication: Authentication {
            x509: X509Authentication { client_ca_file: "/etc/kubernetes/pki/ca.crt".into() },
            ..Authentication::default()
        },
        cgroup_driver: "systemd".into(),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: "cluster.local".into(),
        rotate_certificates: true,
        static_pod_path: "/etc/kubernetes/manifests".into(),
        ..KubeletConfiguration::default()
    };
    assert_eq!(load_text(KUBEADM).unwrap(), expected);
}

#[test]
fn config_relative_paths_are_resolved() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "kubelet.yaml", HAND_MADE);
    let mut settings = file::load(Some(&path), None).unwrap().0;
    settings.fill_gated(&FeatureGates::default());
    assert_eq!(settings.static_pod_path, directory.path().join("manifests").to_str().unwrap());
    assert_eq!(settings.resolv_conf, directory.path().join("resolv.conf").to_str().unwrap());
    assert_eq!(settings.eviction_hard.len(), 3);
    assert_eq!(
        (settings.read_only_port, settings.fail_swap_on, settings.serialize_image_pulls),
        (10255, false, false)
    );
    assert_eq!(validation::faults(&settings, &FeatureGates::default()), Vec::<String>::new());
}

#[test]
fn config_json_is_accepted() {
    let text = r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":7,"syncFrequency":"1m30s"}"#;
    let settings = load_text(text).unwrap();
    assert_eq!((settings.max_pods, settings.sync_frequency), (7, GoDuration::secs(90)));
}

#[test]
fn config_file_errors_name_the_field() {
    for (text, expected) in [
        (String::new(), "the file is empty"),
        ("- a\n- b\n".to_owned(), "expected a KubeletConfiguration object"),
        ("kind: KubeletConfiguration\n".to_owned(), "apiVersion: missing"),
        (
            "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n".to_owned(),
            "apiVersion: expected \"kubelet.config.k8s.io/v1beta1\", found \"kubelet.config.k8s.io/v1alpha1\"",
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n".to_owned(),
            "kind: expected \"KubeletConfiguration\"",
        ),
        (format!("{HEADER}maxPods: many\n"), "maxPods: invalid type: string \"many\""),
        (
            format!("{HEADER}syncFrequency: 10 minutes\n"),
            "syncFrequency: invalid duration \"10 minutes\"",
        ),
        (format!("{HEADER}syncFrequency: 10\n"), "syncFrequency: invalid type"),
        (
            format!("{HEADER}evictionHard: {{memory.available: 100}}\n"),
            "evictionHard.memory.available: invalid type",
        ),
        (format!("{HEADER}clusterDNS: 10.0.0.1\n"), "clusterDNS: invalid type"),
        (format!("{HEADER}clusterDNS: [\n"), ""),
    ] {
        let error = load_text(&text).expect_err(&text);
        assert!(error.contains(expected), "{text}\n gave {error}\n not {expected}");
    }
}

#[test]
fn config_alias_bomb_is_rejected() {
    let mut text = format!("{HEADER}clusterDNS: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("k{level}: &a{level} [{aliases}]\n"));
    }
    assert!(load_text(&text).is_err());
}

#[test]
fn config_defaults_that_follow_another_field() {
    let settings =
        load_text(&format!("{HEADER}nodeStatusUpdateFrequency: 30s\nmaxParallelImagePulls: 4\n"))
            .unwrap();
    assert_eq!(settings.node_status_report_frequency, GoDuration::secs(30));
    assert!(!settings.serialize_image_pulls);
    let merged = "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n";
    let settings = load_text(&format!("{HEADER}{merged}")).unwrap();
    assert_eq!(settings.eviction_hard["memory.available"], "1Gi");
    assert_eq!(settings.eviction_hard["imagefs.available"], "15%");
    assert!(load_text(&format!("{HEADER}evictionHard: {{}}\n")).unwrap().eviction_hard.is_empty());
}

#[test]
fn config_drop_ins_are_merged_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let main = write(
        directory.path(),
        "main.yaml",
        &format!("{HEADER}maxPods: 10\nport: 11000\nkubeReserved: {{cpu: 1, pid: '5'}}\n")
            .replace("cpu: 1", "cpu: '1'"),
    );
    let drop_ins = directory.path().join("conf.d");
    write(&drop_ins, "20-b.conf", &format!("{HEADER}maxPods: 30\n"));
    write(
        &drop_ins,
        "10-a.conf",
        &format!("{HEADER}maxPods: 20\nport: null\nkubeReserved: {{cpu: '2'}}\n"),
    );
    write(&drop_ins, "30-c/x.conf", &format!("{HEADER}podsPerCore: 3\n"));
    write(&drop_ins, "99.yaml", "no configuration, and not looked at");
    let settings = file::load(Some(&main), Some(&drop_ins)).unwrap().0;
    assert_eq!((settings.max_pods, settings.port, settings.pods_per_core), (30, 10250, 3));
    assert_eq!(
        (settings.kube_reserved["cpu"].as_str(), settings.kube_reserved["pid"].as_str()),
        ("2", "5")
    );

    let bad = write(&drop_ins, "40.conf", &format!("{HEADER}maxPods: none\n"));
    let error = file::load(Some(&main), Some(&drop_ins)).unwrap_err().to_string();
    assert!(error.contains(bad.to_str().unwrap()) && error.contains("maxPods"), "{error}");
    assert!(file::load(None, Some(&directory.path().join("none"))).is_err());
}

#[test]
fn config_flags_take_precedence_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(
        directory.path(),
        "c.yaml",
        &format!("{HAND_MADE}maxPods: 5\nfeatureGates: {{MemoryQoS: true}}\n"),
    );
    let config = kubelet(&[
        &format!("--config={}", path.display()),
        "--max-pods",
        "9",
        "--feature-gates=NodeSwap=true",
        "--read-only-port=0",
        "--eviction-hard=memory.available<5%,nodefs.available<1Gi",
        "--cluster-dns=10.0.0.1,10.0.0.2",
        "--cluster-dns=10.0.0.3",
        "--anonymous-auth",
        "--v=4",
        "--register_with_taints=a=b:NoSchedule,c:NoExecute",
        "--node-labels=x=1,y",
        "--node-ip=10.0.0.9,fd00::9",
        "--streaming-connection-idle-timeout=0",
        "--pod-infra-container-image=registry.k8s.io/pause:3.10",
    ])
    .unwrap();
    let settings = &config.kubelet;
    assert_eq!((settings.max_pods, settings.read_only_port, settings.logging.verbosity), (9, 0, 4));
    assert!(config.gates.enabled("MemoryQoS") && config.gates.enabled("NodeSwap"));
    assert_eq!(settings.eviction_hard.len(), 2);
    assert_eq!(settings.cluster_dns, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert!(settings.authentication.anonymous.enabled);
    assert_eq!(settings.streaming_connection_idle_timeout, GoDuration::ZERO);
    let taints: Vec<_> =
        settings.register_with_taints.iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect();
    assert_eq!(taints, [("a", "NoSchedule"), ("c", "NoExecute")]);
    assert_eq!(
        config.node_labels,
        BTreeMap::from([("x".into(), "1".into()), ("y".into(), String::new())])
    );
    assert_eq!(config.node_ips.len(), 2);
    let warned = |flag| config.warnings.iter().filter(|text| text.contains(flag)).count();
    assert_eq!((warned("--max-pods is deprecated"), warned("--cluster-dns is")), (1, 1));
    assert_eq!(warned("--node-ip"), 0);
    assert_eq!(warned("--pod-infra-container-image has no effect"), 1);
}

#[test]
fn flags_of_docker_count_with_an_endpoint_of_docker() {
    const IMAGE: &str = "--pod-infra-container-image=registry.example/pause:1";
    let warned = |config: &Config| config.warnings.iter().any(|text| text.contains("pod-infra"));
    for endpoint in ["--container-runtime-endpoint", "--image-service-endpoint"] {
        let endpoint = format!("{endpoint}=docker:///var/run/docker.sock");
        let config = kubelet(&[&endpoint, IMAGE, "--cni-bin-dir=/a,/b"]).unwrap();
        assert!(!warned(&config), "{:?}", config.warnings);
        let docker = config.docker.unwrap();
        assert_eq!(docker.sandbox_image, "registry.example/pause:1");
        assert_eq!(docker.cni_bin_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(docker.cni_conf_dir, PathBuf::from("/etc/cni/net.d"));
        assert!(kubelet(&[&endpoint, "--cni-conf-dir=net.d"]).unwrap_err().contains("net.d"));
    }
    let other = kubelet(&[IMAGE, "--cni-conf-dir=net.d"]).unwrap();
    assert!(other.docker.is_none() && warned(&other));
}

#[test]
fn config_defaults_without_a_file() {
    let config = kubelet(&[]).unwrap();
    assert!(
        config.kubelet.authentication.anonymous.enabled
            && !config.kubelet.authentication.webhook.enabled
    );
    assert_eq!(
        (config.kubelet.authorization.mode.as_str(), config.kubelet.read_only_port),
        ("AlwaysAllow", 10255)
    );
    assert_eq!((config.kubeconfig, config.node_name.as_str()), (None, "n1"));
    assert_eq!(config.cadvisor_port, 0, "it is shut unless it is asked for");
    assert_eq!(kubelet(&["--cadvisor-port=4194"]).unwrap().cadvisor_port, 4194);
    for (flag, expected) in [
        ("--dashboard", Some("127.0.0.1:10247")),
        ("--dashboard=true", Some("127.0.0.1:10247")),
        ("--dashboard=false", None),
        ("--dashboard=", None),
        ("--dashboard=127.0.0.2:80", Some("127.0.0.2:80")),
        ("--dashboard=[::1]:0", Some("[::1]:0")),
    ] {
        let address = kubelet(&[flag]).unwrap().dashboard.map(|address| address.to_string());
        assert_eq!(address.as_deref(), expected, "{flag}");
    }
    assert_eq!(config.dashboard, None, "it is shut unless it is asked for");
    assert_eq!(
        config.kubelet.crash_loop_back_off.max_container_restart_period,
        Some(GoDuration::secs(300))
    );
}

#[test]
fn config_eviction_fields_are_parsed() {
    let config = kubelet(&[
        "--eviction-hard=memory.available<100Mi,nodefs.available<10%",
        "--eviction-soft=memory.available<300Mi",
        "--eviction-soft-grace-period=memory.available=1m30s",
        "--eviction-minimum-reclaim=nodefs.available=1Gi",
        "--eviction-max-pod-grace-period=20",
        "--eviction-pressure-transition-period=1m",
    ])
    .unwrap();
    let eviction = &config.eviction;
    assert_eq!((eviction.max_pod_grace, eviction.transition.as_secs()), (20, 60));
    let show: Vec<_> = eviction
        .thresholds
        .iter()
        .map(|t| (t.signal.as_str(), t.grace.as_secs(), t.min_reclaim.is_some()))
        .collect();
    assert_eq!(
        show,
        [
            ("memory.available", 0, false),
            ("nodefs.available", 0, true),
            ("memory.available", 90, false),
            ("allocatableMemory.available", 0, false),
        ]
    );
    for flags in
        [&["--enforce-node-allocatable=none"][..], &["--experimental-allocatable-ignore-eviction"]]
    {
        let signals = |config: &Config| -> Vec<_> {
            config.eviction.thresholds.iter().map(|t| t.signal.as_str()).collect()
        };
        let flags = [flags, &["--eviction-hard=memory.available<100Mi"]].concat();
        assert_eq!(signals(&kubelet(&flags).unwrap()), ["memory.available"], "{flags:?}");
    }
    for (flags, fault) in [
        (
            &["--eviction-hard=nodefs.available<101%"][..],
            "evictionHard[nodefs.available]: \"101%\" must not be more than 100%",
        ),
        (
            &["--eviction-soft=pid.available<10%"],
            "evictionSoftGracePeriod: must give a period for the soft threshold of pid.available",
        ),
        (
            &["--eviction-soft-grace-period=pid.available=soon"],
            "evictionSoftGracePeriod[pid.available]: \"soon\"",
        ),
        (
            &["--eviction-pressure-transition-period=-1s"],
            "evictionPressureTransitionPeriod: -1s must not be negative",
        ),
    ] {
        let error = kubelet(flags).unwrap_err();
        assert!(error.contains(fault), "{fault} is missing from {error}");
    }
}

#[test]
fn config_role_follows_the_program_name() {
    for args in [
        &["/usr/bin/kubelet", "--version"][..],
        &["longshore", "kubelet", "--version"],
        &["longshore", "--version"],
        &["longshore", "version"],
    ] {
        assert!(
            matches!(run(args), Ok(Command::Print(text)) if text == format!("Kubernetes {KUBERNETES_VERSION}"))
        );
    }
    assert!(
        matches!(run(&["kubelet", "--version=raw"]), Ok(Command::Print(text)) if text.contains("Minor:\"36\""))
    );
    for flags in [&["-o", "json"][..], &["--output", "json"], &["-o=json"], &["--output=json"]] {
        let args = [&["longshore", "version"], flags].concat();
        let Ok(Command::Print(text)) = run(&args) else { panic!("{args:?}") };
        let version: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(version["clientVersion"]["gitVersion"], KUBERNETES_VERSION);
        assert_eq!(version["clientVersion"]["minor"], "36");
    }
    for args in [&["version", "-o", "json", "x"][..], &["version", "-o", "toml"], &["version", "x"]]
    {
        let args = [&["longshore"], args].concat();
        assert!(matches!(run(&args), Err(ConfigError::CommandLine(_))), "{args:?}");
    }
    let Ok(Command::Print(help)) = run(&["kubelet", "--help"]) else { panic!("no help") };
    let groups =
        ["\nNode:\n", "\nDocker", "\nGlobal:\n", "\nLogging:\n", "\nFields of", "\nAccepted"];
    let places: Vec<_> = groups.iter().map(|group| help.find(group).unwrap()).collect();
    assert!(places.is_sorted(), "{help}");
    let unexplained = KUBELET_FLAGS.iter().filter(|flag| {
        let line = help.lines().find(|line| line.contains(&format!("-{} ", flag.name)));
        !flag.deprecated && !flag.target.is_ignored() && line.is_none_or(|line| line.len() <= 57)
    });
    assert_eq!(unexplained.map(|flag| flag.name).collect::<Vec<_>>(), [""; 0], "{help}");
    for flag in KUBELET_FLAGS {
        let dashes = if flag.name.len() == 1 { "  -" } else { "  --" };
        let shown = format!("{dashes}{} ", flag.name);
        let lines = help.lines().filter(|line| format!("{line} ").starts_with(&shown));
        assert_eq!(lines.count(), 1, "{shown}");
    }
    assert!(kubelet(&["--version=v1.36.1-mine"]).unwrap().warnings[0].contains("--version"));
    assert!(kubelet(&["--version=maybe"]).unwrap_err().contains("--version"));
    let proxy = |args: &[&str]| matches!(run(args), Ok(Command::Proxy(..)));
    assert!(proxy(&["/usr/local/bin/kube-proxy"]) && proxy(&["longshore", "proxy"]));
    let beside = |role: &str| match run(&[
        "longshore",
        role,
        "--fail-cgroupv1=false",
        "--hostname-override=a",
    ]) {
        Ok(Command::Kubelet(config)) => config.proxy.map(|proxy| proxy.node_name),
        other => panic!("{other:?}"),
    };
    assert_eq!(beside("kubelet"), None);
    assert_eq!(beside("node").as_deref(), Some("a"));
    assert!(matches!(
        run(&["kubelet", "--proxy-config=x"]),
        Err(ConfigError::CommandLine(text)) if text.contains("longshore node")
    ));
    assert!(matches!(run(&["longshore", "sail"]), Err(ConfigError::CommandLine(_))));
    assert!(matches!(run(&["longshore"]), Err(ConfigError::CommandLine(_))));
}

#[test]
fn flag_table_has_no_duplicates() {
    let mut names: Vec<_> = KUBELET_FLAGS.iter().map(|flag| flag.name).collect();
    assert!(names.len() >= 150, "{}", names.len());
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn config_allocatable_excludes_reservations() {
    let config = kubelet(&[
        "--kube-reserved=cpu=200m,memory=1Gi",
        "--system-reserved=cpu=300m",
        "--eviction-hard=memory.available<10%",
    ])
    .unwrap();
    let gib = 1000i128 << 30;
    assert_eq!(config.reserved.allocatable("cpu", 2000), 1500);
    // To the byte as upstream, which counts parts in single precision.
    assert_eq!(config.reserved.allocatable("memory", 10 * gib), 8 * gib - 16_000);
    assert_eq!(config.reserved.allocatable("cpu", 100), 0);
    assert_eq!(config.reserved.allocatable("pods", 110_000), 110_000);
    let config = kubelet(&["--reserved-cpus=0-0", "--system-reserved=cpu=10"]).unwrap();
    assert_eq!(config.reserved.allocatable("cpu", 8000), 7000);
}

proptest::proptest! {
    /// Finding 1: numbers and durations of a file at their extremes are refused, or mean something.
    #[test]
    fn extremes_of_configurations_are_refused_or_taken(
        tree in longshore_generators::hostile(serde_json::to_value(KubeletConfiguration::default()).unwrap(), 8),
    ) {
        if let Ok(settings) = serde_json::from_value::<KubeletConfiguration>(tree) {
            let gates = FeatureGates::default();
            if validation::faults(&settings, &gates).is_empty() {
                let _ = eviction::Eviction::new(&settings, true);
            }
        }
    }
}

//! Fields that are not known, or that do nothing.

use super::*;
use crate::{effects, gates};

#[test]
fn config_unknown_fields_are_warnings() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "{HEADER}maxpods: 3\nmaxPods: 7\nmaxPods: 8\n\
         authentication: {{webhook: {{enable: true, cacheTTL: 5s}}}}\n\
         registerWithTaints: [{{key: a, effect: NoSchedule, colour: red}}]\n"
    );
    let path = write(directory.path(), "c.yaml", &text);
    let (settings, warnings) = file::load(Some(&path), None).unwrap();
    assert_eq!(settings.max_pods, 8, "of two the last one counts");
    assert_eq!(settings.authentication.webhook.cache_ttl, GoDuration::secs(5));
    assert_eq!(settings.register_with_taints[0].effect, "NoSchedule");
    for said in [
        "maxPods",
        "unknown field \"maxpods\"",
        "unknown field \"authentication.webhook.enable\"",
        "unknown field \"registerWithTaints[0].colour\"",
    ] {
        assert!(warnings.iter().any(|warning| warning.contains(said)), "{said}: {warnings:?}");
    }
    assert!(warnings.iter().all(|warning| warning.contains("c.yaml: ")), "{warnings:?}");

    let nonsense: String = (0..500).map(|n| format!("x{n}: 1\n")).collect();
    assert!(load_text(&format!("{HEADER}{nonsense}")).unwrap_err().contains("unknown field"));
    // one fault that may be passed over excuses no other
    let error = load_text(&format!("{HEADER}maxpods: 3\nport: ten\n")).unwrap_err();
    assert!(error.contains("port: invalid type"), "{error}");
}

/// The names that the decoder takes, as it lists them when it meets another.
fn known_fields() -> Vec<String> {
    let error = serde_json::from_str::<KubeletConfiguration>("{\"?\": 1}").unwrap_err().to_string();
    let list = error.split_once("expected one of ").unwrap().1;
    let names = list.split('`').skip(1).step_by(2).map(str::to_owned);
    names.collect()
}

#[test]
fn config_effects_table_has_every_field() {
    let known = known_fields();
    assert_eq!(known.len(), 125);
    let listed: Vec<_> = effects::EFFECTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed, known);
}

#[test]
fn config_field_without_effect_is_a_warning() {
    assert_eq!(effects::without_effect(&load_text(KUBEADM).unwrap()), Vec::<String>::new());
    let config = kubelet(&["--hairpin-mode=none", "--containerd=x"]).unwrap();
    let warned = |text| config.warnings.iter().any(|warning| warning.contains(text));
    assert!(warned("hairpinMode is set and has no effect: "), "{:?}", config.warnings);
    assert!(warned("--containerd has no effect"), "{:?}", config.warnings);
    assert!(!warned("volumeStatsAggPeriod") && !warned("maxPods"), "{:?}", config.warnings);
    assert!(!warned("authorization-strict-streams"), "{:?}", config.warnings);
}

#[test]
fn config_flag_without_effect_is_a_warning() {
    let config = kubelet(&["--container-hints=x"]).unwrap();
    let expected = "--container-hints has no effect";
    let warnings = config.warnings.iter().filter(|warning| warning.starts_with(expected)).count();
    assert_eq!(warnings, 1, "{:?}", config.warnings);
}

/// Finding 6: who asks for a protection that would not be in force learns it at the start.
#[test]
fn config_unsupported_protection_is_rejected() {
    const STRICT: &str = "--authorization-strict-streams";
    for (args, expected) in [
        (&[STRICT][..], "--authorization-strict-streams: authorization.mode must be Webhook"),
        (&["--feature-gates=SELinuxMount=true"], "featureGates: SELinuxMount=true is not"),
    ] {
        let error = kubelet(args).unwrap_err().to_string();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let config = kubelet(&[STRICT, "--authorization-mode=Webhook"]).unwrap();
    assert!(config.strict_streams);
}

/// What distributions write, in their manner: EKS, GKE, kind and k3s.
const DISTRIBUTIONS: [&str; 4] = [
    "address: 0.0.0.0
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 2m0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 5m0s, cacheUnauthorizedTTL: 30s}}
cgroupDriver: systemd
cgroupRoot: /
featureGates: {RotateKubeletServerCertificate: true}
hairpinMode: hairpin-veth
protectKernelDefaults: true
serializeImagePulls: false
serverTLSBootstrap: true
tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_AES_128_GCM_SHA256]
",
    "authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: /etc/srv/kubernetes/pki/ca-certificates.crt}}
authorization: {mode: Webhook}
cgroupRoot: /
enableDebuggingHandlers: true
eventRecordQPS: 50
memorySwap: {}
readOnlyPort: 10255
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 15s
staticPodPath: /etc/kubernetes/manifests
tlsCertFile: /var/lib/kubelet/pki/kubelet.crt
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
",
    "authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: systemd
cgroupRoot: /kubelet
evictionHard: {imagefs.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%}
failSwapOn: false
imageGCHighThresholdPercent: 100
",
    "address: 0.0.0.0
allowedUnsafeSysctls: [net.ipv4.ip_forward, net.ipv6.conf.all.forwarding]
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 2m0s, enabled: true}, x509: {clientCAFile: /var/lib/rancher/k3s/agent/client-ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/k3s/containerd/containerd.sock
evictionHard: {imagefs.available: 5%, nodefs.available: 5%}
evictionMinimumReclaim: {imagefs.available: 10%, nodefs.available: 10%}
failSwapOn: false
healthzBindAddress: 127.0.0.1
logging: {flushFrequency: 5s, format: text, verbosity: 0}
registerNode: true
resolvConf: /run/systemd/resolve/resolv.conf
serializeImagePulls: false
tlsCertFile: /var/lib/rancher/k3s/agent/serving-kubelet.crt
tlsPrivateKeyFile: /var/lib/rancher/k3s/agent/serving-kubelet.key
",
];

/// Finding 6: nothing that distributions set is refused. What of it is the machine's is not asked.
#[test]
fn config_of_distributions_is_accepted() {
    for fields in DISTRIBUTIONS {
        let settings = load_text(&format!("{HEADER}{fields}")).unwrap();
        let mut errors = Vec::new();
        let gates = gates::requested(&settings.feature_gates, &gates::MISSING, &mut errors);
        assert_eq!(errors, [""; 0], "{fields}");
        let mut settings = settings;
        settings.fill_gated(&gates);
        assert_eq!(validation::faults(&settings, &gates), Vec::<String>::new(), "{fields}");
        assert_eq!(effects::unprotected_flags(&KubeletFlags::over(settings)), None, "{fields}");
    }
}

/// Finding 6: a flag that does nothing stands in the table of those that protect nothing, so that a
/// new one is thought about.
#[test]
fn config_flags_without_effect_protect_nothing() {
    let ignored = KUBELET_FLAGS.iter().filter(|flag| flag.target.is_ignored());
    let ignored: Vec<&str> = ignored.map(|flag| flag.name).collect();
    let listed: Vec<&str> = effects::IGNORED_FLAGS.iter().map(|(name, _)| *name).collect();
    assert_eq!(ignored, listed);
}

#[test]
fn config_drop_in_keeps_other_eviction_signals() {
    let directory = tempfile::tempdir().unwrap();
    let main = write(directory.path(), "main.yaml", HEADER);
    let drop_ins = directory.path().join("conf.d");
    let text = format!("{HEADER}evictionHard: {{memory.available: 1Gi}}\n");
    write(&drop_ins, "10.conf", &text);
    let (settings, _) = file::load(Some(&main), Some(&drop_ins)).unwrap();
    assert_eq!(settings.eviction_hard["memory.available"], "1Gi");
    assert_eq!(settings.eviction_hard["nodefs.available"], "10%");
}

use longshore_gates::DeclaredFeatures;
use serde_json::{Value, json};

use super::super::*;
use super::{capabilities as node, pod};

const OS_LABEL: &str = "kubernetes.io/os";
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

fn verdict(pod: &Pod, capabilities: &NodeCapabilities) -> Option<(String, String)> {
    let node = super::node_with(json!({}), json!([]));
    let view = NodeView::new(&node, &node);
    let (ledger, pressure) = (Ledger::default(), NodePressure::default());
    match decide(
        pod,
        &AdmissionContext { capabilities, node: &view, ledger: &ledger, pressure },
        |_| Ok(()),
    ) {
        Decision::Admit { .. } => None,
        Decision::Reject { verdict, .. } => Some((verdict.reason, verdict.message)),
    }
}

fn sysctl(name: &str, host_network: bool, host_ipc: bool) -> Pod {
    pod(json!({
        "hostNetwork": host_network, "hostIPC": host_ipc,
        "securityContext": {"sysctls": [{"name": name, "value": "1"}]},
    }))
}

#[test]
fn sysctls_are_safe_or_allowed_or_forbidden() {
    let allowed = ["kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/eno2.100/rp_filter"];
    let allowed: Vec<String> = allowed.map(str::to_owned).into();
    let node = NodeCapabilities { sysctls: Sysctls::new(&allowed, (4, 5)).unwrap(), ..node() };
    for (name, net, ipc, expected) in [
        ("net.ipv4.tcp_syncookies", false, false, None),
        ("net/ipv4/tcp_syncookies", false, false, None),
        ("net.ipv4.tcp_keepalive_time", false, false, None),
        ("net.ipv4.tcp_rmem", false, false, Some("\"net.ipv4.tcp_rmem\" not allowlisted")),
        ("kernel.shm_rmid_forced", true, false, None),
        (
            "kernel.shm_rmid_forced",
            false,
            true,
            Some("\"kernel.shm_rmid_forced\" not allowed with host IPC enabled"),
        ),
        (
            "net.ipv4.tcp_syncookies",
            true,
            false,
            Some("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
        ),
        ("kernel.msgmax", false, false, None),
        ("kernel.msgmax", false, true, Some("\"kernel.msgmax\" not allowed with host IPC enabled")),
        ("net.core.somaxconn", false, false, None),
        ("net.core.somaxconn2", false, false, Some("\"net.core.somaxconn2\" not allowlisted")),
        ("net.ipv4.conf.eno2/100.rp_filter", false, false, None),
        ("kernel.hostname", false, false, Some("\"kernel.hostname\" not allowlisted")),
    ] {
        let expected =
            expected.map(|why| ("SysctlForbidden".to_owned(), format!("forbidden sysctl: {why}")));
        assert_eq!(verdict(&sysctl(name, net, ipc), &node), expected, "{name} {net} {ipc}");
    }
}

#[test]
fn sysctl_patterns_must_be_namespaced() {
    for (pattern, error) in [
        ("kernel.msg*", None),
        ("net.*", None),
        ("fs.mqueue.queues_max", None),
        ("net.ipv4.a-b_c", None),
        ("kernel.*", Some(Error::Shared("kernel.*".into()))),
        ("vm.swappiness", Some(Error::Shared("vm.swappiness".into()))),
        ("*", Some(Error::Shared("*".into()))),
        ("", Some(Error::Pattern(String::new()))),
        ("net.*.x", Some(Error::Pattern("net.*.x".into()))),
        (".net.x", Some(Error::Pattern(".net.x".into()))),
        ("net..x", Some(Error::Pattern("net..x".into()))),
        ("net.x.", Some(Error::Pattern("net.x.".into()))),
        ("net.X", Some(Error::Pattern("net.X".into()))),
        ("net.-x", Some(Error::Pattern("net.-x".into()))),
    ] {
        let result = Sysctls::new(&[pattern.to_owned()], (6, 1));
        assert_eq!(result.err(), error, "{pattern:?}");
    }
    let long = format!("net.{}", "x".repeat(250));
    assert!(matches!(Sysctls::new(&[long], (6, 1)), Err(Error::Pattern(_))));
}

#[test]
fn admission_rejects_pods_of_other_operating_systems() {
    assert_eq!(verdict(&pod(json!({"os": {"name": "linux"}})), &node()), None);
    let (reason, message) = verdict(&pod(json!({"os": {"name": "windows"}})), &node()).unwrap();
    assert_eq!(reason, "PodOSNotSupported");
    assert_eq!(message, "Failed to admit pod as the OS field doesn't match node OS");
    let mut labelled = pod(json!({}));
    let labels = [(OS_LABEL.to_owned(), "windows".to_owned())];
    labelled.metadata.labels = Some(labels.into());
    let (reason, _) = verdict(&labelled, &node()).unwrap();
    assert_eq!(reason, "PodOSSelectorNodeLabelDoesNotMatch");
}

#[test]
fn admission_rejects_strict_groups_without_runtime_support() {
    let pod = |policy| pod(json!({"securityContext": {"supplementalGroupsPolicy": policy}}));
    let able = NodeCapabilities { supplemental_groups_policy: true, ..node() };
    assert_eq!(verdict(&pod("Merge"), &node()), None);
    assert_eq!(verdict(&pod("Strict"), &able), None);
    let (reason, message) = verdict(&pod("Strict"), &node()).unwrap();
    assert_eq!(reason, "SupplementalGroupsPolicyNotSupported");
    assert_eq!(message, "SupplementalGroupsPolicy=Strict is not supported in this node");
}

#[test]
fn admission_rejects_app_armor_without_kernel_support() {
    let with = |profile: Value| pod(json!({"securityContext": {"appArmorProfile": profile}}));
    let able = NodeCapabilities { app_armor: true, ..node() };
    let none = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let refused = |message: &str| Some(("AppArmor".to_owned(), message.to_owned()));
    assert_eq!(verdict(&with(json!({"type": "Unconfined"})), &node()), None);
    let default = with(json!({"type": "RuntimeDefault"}));
    assert_eq!(verdict(&default, &node()), refused(none));
    assert_eq!(verdict(&default, &able), None);
    let nameless = with(json!({"type": "Localhost", "localhostProfile": " "}));
    let empty = "Cannot enforce AppArmor: invalid empty AppArmor profile name: \"Localhost\"";
    assert_eq!(verdict(&nameless, &able), refused(empty));

    let mut annotated = pod(json!({}));
    let key = format!("{APP_ARMOR_ANNOTATION}c");
    annotated.metadata.annotations = Some([(key.clone(), "localhost/".to_owned())].into());
    assert_eq!(verdict(&annotated, &node()), refused(none));
    assert_eq!(verdict(&annotated, &able), refused(empty));
    // An annotation with an unknown profile does not mean that there is none.
    annotated.metadata.annotations = Some([(key.clone(), "strict".to_owned())].into());
    let unknown = "Cannot enforce AppArmor: invalid AppArmor profile name: \"strict\"";
    assert_eq!(verdict(&annotated, &able), refused(unknown));
    annotated.metadata.annotations = Some([(key, "unconfined".to_owned())].into());
    assert_eq!(verdict(&annotated, &node()), None);

    let mut runs = default;
    runs.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    assert_eq!(verdict(&runs, &node()), None, "it was admitted before");
}

#[test]
fn admission_rejects_pod_level_resources_without_their_gate() {
    let with = pod(json!({"resources": {"requests": {"cpu": "1"}}}));
    let without = NodeCapabilities { pod_level_resources: false, ..node() };
    assert_eq!(verdict(&with, &node()), None);
    assert_eq!(verdict(&pod(json!({})), &without), None);
    let (reason, message) = verdict(&with, &without).unwrap();
    assert_eq!(reason, "PodLevelResourcesNotSupported");
    assert_eq!(message, "PodLevelResources feature gate is disabled");
}

#[test]
fn admission_rejects_a_pod_that_needs_a_feature_which_the_node_does_not_declare() {
    let with = pod(json!({"initContainers": [{"name": "i", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}},
    ]}]}));
    let name = "RestartAllContainersOnContainerExits";
    let declaring = |names: &[&str]| NodeCapabilities {
        declared_features: Some(DeclaredFeatures::from_names(names.iter().copied())),
        ..node()
    };
    assert_eq!(verdict(&with, &node()), None, "features are not checked");
    assert_eq!(verdict(&with, &declaring(&[name])), None);
    assert_eq!(verdict(&pod(json!({})), &declaring(&[])), None);
    let (reason, message) = verdict(&with, &declaring(&["ExtendWebSocketsToKubelet"])).unwrap();
    assert_eq!(reason, "PodFeatureUnsupported");
    assert_eq!(message, format!("Pod requires node features that are not available: {name}"));

    let [old, new] =
        ["1", "2"].map(|cpu| pod(json!({"resources": {"requests": {"cpu": cpu}}})).spec.unwrap());
    let resize = "InPlacePodLevelResourcesVerticalScaling";
    assert_eq!(declaring(&[]).lacking_for_update(&old, &new).to_string(), resize);
    assert!(declaring(&[resize]).lacking_for_update(&old, &new).is_empty());
    assert!(node().lacking_for_update(&old, &new).is_empty(), "features are not checked");
}

//! The feature gates of the node: crate `gates` has them; which of them the node reads, and of which
//! it lacks a protection, is said here.

use std::collections::BTreeMap;

pub use longshore_gates::FeatureGates;
use longshore_gates::Missing;

/// Gates that prevent the start of the kubelet.
pub(crate) const MISSING: [Missing; 1] =
    [("SELinuxMount", true, "only claims of one pod are mounted with its SELinux label")];

/// The gates that are asked for. Those that are unknown, locked or ask for a protection that is missing
/// are added to `errors`.
pub(crate) fn requested(
    gates: &BTreeMap<String, bool>,
    missing: &[Missing],
    errors: &mut Vec<String>,
) -> FeatureGates {
    let (gates, faults) = match FeatureGates::new(gates) {
        Ok(gates) => {
            let faults = gates.unprotected(missing);
            (gates, faults)
        }
        Err(faults) => (FeatureGates::default(), faults),
    };
    errors.extend(faults.into_iter().map(|fault| format!("featureGates: {fault}")));
    gates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gates that the node reads.
    const READ: [&str; 50] = [
        "AllowDNSOnlyNodeCSR",
        "AllowServiceExternalIPs",
        "CPUManagerPolicyAlphaOptions",
        "CRIListStreaming",
        "CSIVolumeHealth",
        "ClusterTrustBundleProjection",
        "ComponentFlagz",
        "ComponentStatusz",
        "ContainerCheckpoint",
        "ContainerRestartRules",
        "ContainerStopSignals",
        "CustomCPUCFSQuotaPeriod",
        "DRAExtendedResource",
        "DisableCPUQuotaWithExclusiveCPUs",
        "ExtendWebSocketsToKubelet",
        "GracefulNodeShutdown",
        "GracefulNodeShutdownBasedOnPodPriority",
        "ImageVolumeWithDigest",
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingExclusiveCPUs",
        "InPlacePodVerticalScalingExclusiveMemory",
        "InPlacePodVerticalScalingInitContainers",
        "KubeletCrashLoopBackOffMax",
        "KubeletEnsureSecretPulledImages",
        "KubeletInUserNamespace",
        "KubeletPodResourcesListUseActivePods",
        "KubeletServiceAccountTokenForCredentialProviders",
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
        "MemoryQoS",
        "NodeDeclaredFeatures",
        "NodeSwap",
        "PodAndContainerStatsFromCRI",
        "PodCertificateRequest",
        "PodLevelResourceManagers",
        "PodLevelResources",
        "PodLogsQuerySplitStreams",
        "PodsAPI",
        "QOSReserved",
        "ReduceDefaultCrashLoopBackOffDecay",
        "ReloadKubeletClientCAFile",
        "ReloadKubeletServerCertificateFile",
        "ResourceHealthStatus",
        "ResourceHealthStatusMessage",
        "RestartAllContainersOnContainerExits",
        "RotateKubeletServerCertificate",
        "RuntimeClassInImageCriApi",
        "TaintTolerationComparisonOperators",
        "UserNamespacesHostNetworkSupport",
    ];

    /// The crates that read gates, besides the package of the node.
    const LAYERS: [&str; 11] = [
        "base",
        "config",
        "credential-provider",
        "client",
        "logs",
        "podstate",
        "resources",
        "volumes",
        "runtime",
        "server",
        "kube-proxy",
    ];

    /// The text of all other source files of the node, without tests.
    fn sources() -> String {
        fn gather(directory: &std::path::Path, text: &mut String) {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                if name.starts_with("tests") || path.ends_with("config/src/gates.rs") {
                } else if path.is_dir() {
                    gather(&path, text);
                } else if name.ends_with(".rs") {
                    let source = std::fs::read_to_string(&path).unwrap();
                    text.push_str(source.split("#[cfg(test)]\n#[allow").next().unwrap());
                }
            }
        }
        let mut text = String::new();
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        gather(&crates.parent().unwrap().join("src"), &mut text);
        for layer in LAYERS {
            gather(&crates.join(layer).join("src"), &mut text);
        }
        let declared = std::fs::read_to_string(crates.join("gates/src/declared.rs")).unwrap();
        text.push_str(declared.split("#[cfg(test)]").next().unwrap());
        text
    }

    /// Finding 6: a gate that is read is marked so, and one that is marked is read.
    #[test]
    fn gate_effects_match_the_sources() {
        let sources = sources();
        let named = FeatureGates::names().filter(|name| sources.contains(&format!("\"{name}\"")));
        assert_eq!(named.collect::<Vec<_>>(), READ);
    }

    /// Finding 6: a protection that is asked for and not there is refused, however it is asked for.
    #[test]
    fn gate_of_a_missing_protection_is_rejected() {
        let faults = |gates: &[(&str, bool)]| {
            let gates = gates.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let mut errors = Vec::new();
            requested(&gates, &MISSING, &mut errors);
            errors
        };
        assert_eq!(faults(&[]), [""; 0]);
        assert_eq!(faults(&[("AllAlpha", true)]), [""; 0]);
        let label = "SELinuxMount";
        for (asked, named) in [(label, &[label][..]), ("AllBeta", &[label])] {
            let found = faults(&[(asked, true)]);
            assert_eq!(found.len(), named.len(), "{found:?}");
            for (fault, name) in found.iter().zip(named) {
                let begins = format!("featureGates: {name}=true is not implemented: ");
                assert!(fault.starts_with(&begins), "{fault}");
            }
        }
        assert_eq!(
            faults(&[("NoSuch", true)]),
            ["featureGates: unrecognized feature gate: NoSuch"]
        );
    }
}

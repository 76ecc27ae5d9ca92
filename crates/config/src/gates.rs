//! The feature gates of Kubernetes 1.36: their names, defaults and stages, as data.
//!
//! All upstream gates are accepted, except those that ask for a protection which is not supported: they
//! prevent the start of the kubelet.

use std::collections::BTreeMap;

use longshore_metrics::{Kind, Labels, Registry, Text};

/// Stage of a gate; `AllAlpha` and `AllBeta` refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}
use Stage::{Alpha, Beta, Deprecated, Ga};

/// Effect of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// As in upstream's documentation.
    Read,
    /// None, and no protection depends on it: it is locked, or of another component, or about features,
    /// compatibility and performance.
    Unused,
    /// None, though the gate with this value asks for a protection; and which one.
    Missing(bool, &'static str),
}
use Effect::{Missing, Read, Unused};

/// Name, default, stage, whether the default is locked, and the effect.
type Gate = (&'static str, bool, Stage, bool, Effect);

/// The effective gates: upstream's defaults, overridden by flags and files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Applies requested gates; the error lists all unknown or locked ones.
    pub fn new(requested: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let errors: Vec<String> = requested
            .iter()
            .filter_map(|(name, &value)| match known(name) {
                None if name == "AllAlpha" || name == "AllBeta" => None,
                None => Some(format!("featureGates: unrecognized feature gate: {name}")),
                Some((_, default, _, true, _)) if *default != value => Some(format!(
                    "featureGates: cannot set feature gate {name} to {value}, feature is locked to {default}"
                )),
                Some(_) => None,
            })
            .collect();
        if errors.is_empty() { Ok(Self(requested.clone())) } else { Err(errors) }
    }

    /// Whether the gate is on; unknown gates are off.
    pub fn enabled(&self, name: &str) -> bool {
        if let Some(&set) = self.0.get(name) {
            return set;
        }
        let Some(&(_, default, stage, locked, _)) = known(name) else { return false };
        let all = match stage {
            Alpha => self.0.get("AllAlpha"),
            Beta => self.0.get("AllBeta"),
            Ga | Deprecated => None,
        };
        all.copied().filter(|_| !locked).unwrap_or(default)
    }

    /// An error for each gate that asks for an unsupported protection.
    pub(super) fn unprotected(&self) -> Vec<String> {
        let fault = |(name, _, _, _, effect): &Gate| match effect {
            Missing(value, why) if self.enabled(name) == *value => {
                Some(format!("featureGates: {name}={value} is not implemented: {why}"))
            }
            _ => None,
        };
        GATES.iter().filter_map(fault).collect()
    }

    /// Registers `kubernetes_feature_enabled`.
    pub fn register_metrics(&self, registry: &Registry) {
        let gates = self.clone();
        registry.collect(move |text| gates.write(text));
    }

    fn write(&self, text: &mut Text) {
        let help =
            "Whether a feature gate is on, and how far it has come: nothing for what is done.";
        let mut samples = text.family("kubernetes_feature_enabled", help, Kind::Gauge);
        for (name, _, stage, ..) in GATES {
            let labels = Labels::new(&[("name", name), ("stage", stage.name())]);
            samples.add(&labels, f64::from(u8::from(self.enabled(name))));
        }
    }
}

impl Stage {
    /// The label in metrics.
    fn name(self) -> &'static str {
        match self {
            Alpha => "ALPHA",
            Beta => "BETA",
            Ga => "",
            Deprecated => "DEPRECATED",
        }
    }
}

fn known(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by_key(&name, |gate| gate.0).ok().map(|at| &GATES[at])
}

/// Sorted by name.
#[rustfmt::skip]
static GATES: &[Gate] = &[
    ("APIResponseCompression", true, Beta, false, Unused),
    ("APIServerIdentity", true, Beta, false, Unused),
    ("APIServerTracing", true, Ga, true, Unused),
    ("APIServingWithRoutine", false, Alpha, false, Unused),
    ("AggregatedDiscoveryRemoveBetaType", true, Deprecated, true, Unused),
    ("AllowDNSOnlyNodeCSR", false, Deprecated, false, Read),
    ("AllowInsecureKubeletCertificateSigningRequests", false, Deprecated, false, Unused),
    ("AllowOverwriteTerminationGracePeriodSeconds", false, Deprecated, true, Unused),
    ("AllowParsingUserUIDFromCertAuth", true, Beta, false, Unused),
    ("AllowServiceExternalIPs", true, Ga, false, Read),
    ("AllowUnsafeMalformedObjectDeletion", false, Alpha, false, Unused),
    ("AnonymousAuthConfigurableEndpoints", true, Ga, true, Unused),
    ("AnyVolumeDataSource", true, Ga, true, Unused),
    ("AtomicFIFO", true, Beta, false, Unused),
    ("AuthorizeNodeWithSelectors", true, Ga, true, Unused),
    ("AuthorizePodWebsocketUpgradeCreatePermission", true, Beta, false, Unused),
    ("AuthorizeWithSelectors", true, Ga, true, Unused),
    ("BtreeWatchCache", true, Ga, true, Unused),
    ("CBORServingAndStorage", false, Alpha, false, Unused),
    ("CPUManagerPolicyAlphaOptions", false, Alpha, false, Read),
    ("CPUManagerPolicyBetaOptions", true, Beta, false, Unused),
    ("CPUManagerPolicyOptions", true, Ga, true, Unused),
    ("CRDObservedGenerationTracking", true, Beta, false, Unused),
    ("CRDValidationRatcheting", true, Ga, false, Unused),
    ("CRIListStreaming", false, Alpha, false, Unused),
    ("CSIServiceAccountTokenSecrets", true, Ga, true, Unused),
    ("CSIVolumeHealth", false, Alpha, false, Read),
    ("ChangeContainerStatusOnKubeletRestart", false, Deprecated, false, Unused),
    ("ClearingNominatedNodeNameAfterBinding", true, Beta, false, Unused),
    ("ClientsAllowCARotation", true, Beta, false, Unused),
    ("ClientsAllowCBOR", false, Beta, false, Unused),
    ("ClientsAllowTLSCacheGC", true, Beta, false, Unused),
    ("ClientsPreferCBOR", false, Beta, false, Unused),
    ("CloudControllerManagerWatchBasedRoutesReconciliation", false, Alpha, false, Unused),
    ("CloudControllerManagerWebhook", false, Alpha, false, Unused),
    ("ClusterTrustBundle", false, Beta, false, Unused),
    ("ClusterTrustBundleProjection", false, Beta, false, Read),
    ("ComponentFlagz", true, Beta, false, Read),
    ("ComponentStatusz", true, Beta, false, Read),
    ("ConcurrentWatchObjectDecode", false, Beta, false, Unused),
    ("ConsistentListFromCache", true, Ga, true, Unused),
    ("ConstrainedImpersonation", true, Beta, false, Unused),
    ("ContainerCheckpoint", true, Beta, false, Read),
    ("ContainerRestartRules", true, Beta, false, Read),
    ("ContainerStopSignals", false, Alpha, false, Read),
    ("ContextualLogging", true, Beta, false, Unused),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", false, Alpha, false, Unused),
    ("CoordinatedLeaderElection", false, Beta, false, Unused),
    ("CrossNamespaceVolumeDataSource", false, Alpha, false, Unused),
    ("CustomCPUCFSQuotaPeriod", true, Ga, false, Read),
    ("CustomResourceFieldSelectors", true, Ga, false, Unused),
    ("DRAAdminAccess", true, Ga, true, Unused),
    ("DRAConsumableCapacity", true, Beta, false, Unused),
    ("DRADeviceBindingConditions", true, Beta, false, Unused),
    ("DRADeviceTaintRules", false, Beta, false, Unused),
    ("DRADeviceTaints", true, Beta, false, Unused),
    ("DRAExtendedResource", true, Beta, false, Unused),
    ("DRAListTypeAttributes", false, Alpha, false, Unused),
    ("DRANodeAllocatableResources", false, Alpha, false, Unused),
    ("DRAPartitionableDevices", true, Beta, false, Unused),
    ("DRAPrioritizedList", true, Ga, false, Unused),
    ("DRAResourceClaimDeviceStatus", true, Beta, false, Unused),
    ("DRAResourceClaimGranularStatusAuthorization", true, Beta, false, Unused),
    ("DRAResourcePoolStatus", false, Alpha, false, Unused),
    ("DRASchedulerFilterTimeout", true, Beta, false, Unused),
    ("DRAWorkloadResourceClaims", false, Alpha, false, Unused),
    ("DeclarativeValidation", true, Ga, true, Unused),
    ("DeclarativeValidationBeta", true, Beta, false, Unused),
    ("DeclarativeValidationTakeover", false, Deprecated, false, Unused),
    ("DeploymentReplicaSetTerminatingReplicas", true, Beta, false, Unused),
    ("DetectCacheInconsistency", true, Beta, false, Unused),
    ("DisableAllocatorDualWrite", true, Ga, true, Unused),
    ("DisableCPUQuotaWithExclusiveCPUs", true, Deprecated, false, Read),
    ("DisableNodeKubeProxyVersion", true, Deprecated, true, Unused),
    ("DynamicResourceAllocation", true, Ga, true, Unused),
    ("EnvFiles", true, Beta, false, Unused),
    ("EventedPLEG", false, Alpha, false, Unused),
    ("ExecProbeTimeout", true, Ga, true, Unused),
    ("ExtendWebSocketsToKubelet", true, Beta, false, Read),
    ("ExternalServiceAccountTokenSigner", true, Ga, true, Unused),
    ("GangScheduling", false, Alpha, false, Unused),
    ("GenericWorkload", false, Alpha, false, Unused),
    ("GitRepoVolumeDriver", false, Deprecated, true, Unused),
    ("GracefulNodeShutdown", true, Beta, false, Read),
    ("GracefulNodeShutdownBasedOnPodPriority", true, Beta, false, Read),
    ("HPAConfigurableTolerance", true, Beta, false, Unused),
    ("HPAScaleToZero", false, Alpha, false, Unused),
    ("HostnameOverride", true, Beta, false, Unused),
    ("ImageMaximumGCAge", true, Ga, true, Unused),
    ("ImageVolume", true, Ga, true, Unused),
    ("ImageVolumeWithDigest", false, Alpha, false, Unused),
    ("InOrderInformers", true, Beta, true, Unused),
    ("InOrderInformersBatchProcess", true, Beta, false, Unused),
    ("InPlacePodLevelResourcesVerticalScaling", true, Beta, false, Read),
    ("InPlacePodVerticalScaling", true, Ga, true, Unused),
    ("InPlacePodVerticalScalingExclusiveCPUs", false, Alpha, false, Read),
    ("InPlacePodVerticalScalingExclusiveMemory", false, Alpha, false, Read),
    ("InPlacePodVerticalScalingInitContainers", true, Beta, false, Read),
    ("InformerResourceVersion", true, Beta, false, Unused),
    ("JobBackoffLimitPerIndex", true, Ga, true, Unused),
    ("JobManagedBy", true, Ga, true, Unused),
    ("JobPodReplacementPolicy", true, Ga, true, Unused),
    ("JobSuccessPolicy", true, Ga, true, Unused),
    ("KMSv1", false, Deprecated, false, Unused),
    ("KubeletCgroupDriverFromCRI", true, Ga, true, Unused),
    ("KubeletCrashLoopBackOffMax", true, Beta, false, Read),
    ("KubeletEnsureSecretPulledImages", true, Beta, false, Read),
    ("KubeletFineGrainedAuthz", true, Ga, true, Unused),
    ("KubeletInUserNamespace", false, Alpha, false, Unused),
    ("KubeletPSI", true, Ga, true, Unused),
    ("KubeletPodResourcesDynamicResources", true, Ga, true, Unused),
    ("KubeletPodResourcesGet", true, Ga, true, Unused),
    ("KubeletPodResourcesListUseActivePods", true, Deprecated, false, Unused),
    ("KubeletRegistrationGetOnExistsOnly", false, Deprecated, false, Unused),
    ("KubeletSeparateDiskGC", true, Beta, false, Unused),
    ("KubeletServiceAccountTokenForCredentialProviders", true, Beta, false, Unused),
    ("KubeletTracing", true, Ga, true, Unused),
    ("ListFromCacheSnapshot", true, Beta, false, Unused),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", false, Beta, false, Missing(true, "files that are deleted and still open do not count as storage")),
    ("LogarithmicScaleDown", true, Ga, true, Unused),
    ("LoggingAlphaOptions", false, Alpha, false, Read),
    ("LoggingBetaOptions", true, Beta, false, Unused),
    ("ManifestBasedAdmissionControlConfig", false, Alpha, false, Unused),
    ("MatchLabelKeysInPodAffinity", true, Ga, true, Unused),
    ("MatchLabelKeysInPodTopologySpread", true, Beta, false, Unused),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", true, Beta, false, Unused),
    ("MaxUnavailableStatefulSet", false, Beta, false, Unused),
    ("MemoryQoS", false, Alpha, false, Read),
    ("MultiCIDRServiceAllocator", true, Ga, true, Unused),
    ("MutableCSINodeAllocatableCount", true, Ga, true, Unused),
    ("MutablePVNodeAffinity", false, Alpha, false, Unused),
    ("MutablePodResourcesForSuspendedJobs", true, Beta, false, Unused),
    ("MutableSchedulingDirectivesForSuspendedJobs", true, Beta, false, Unused),
    ("MutatingAdmissionPolicy", true, Ga, false, Unused),
    ("NFTablesProxyMode", true, Ga, true, Unused),
    ("NodeDeclaredFeatures", true, Beta, false, Read),
    ("NodeInclusionPolicyInPodTopologySpread", true, Ga, true, Unused),
    ("NodeLogQuery", true, Ga, true, Unused),
    ("NodeSwap", true, Ga, true, Read),
    ("NominatedNodeNameForExpectation", true, Beta, false, Unused),
    ("OpenAPIEnums", true, Beta, false, Unused),
    ("OpportunisticBatching", true, Beta, false, Unused),
    ("OrderedNamespaceDeletion", true, Ga, true, Unused),
    ("PLEGOnDemandRelist", true, Beta, false, Unused),
    ("PersistentVolumeClaimUnusedSinceTime", false, Alpha, false, Unused),
    ("PodAndContainerStatsFromCRI", false, Alpha, false, Unused),
    ("PodCertificateRequest", false, Beta, false, Unused),
    ("PodDeletionCost", true, Beta, false, Unused),
    ("PodLevelResourceManagers", false, Alpha, false, Unused),
    ("PodLevelResources", true, Beta, false, Read),
    ("PodLifecycleSleepAction", true, Ga, true, Unused),
    ("PodLifecycleSleepActionAllowZero", true, Ga, true, Unused),
    ("PodLogsQuerySplitStreams", false, Alpha, false, Read),
    ("PodObservedGenerationTracking", true, Ga, true, Unused),
    ("PodReadyToStartContainersCondition", true, Beta, false, Unused),
    ("PodSchedulingReadiness", true, Ga, true, Unused),
    ("PodTopologyLabelsAdmission", true, Beta, false, Unused),
    ("PodsAPI", false, Alpha, false, Unused),
    ("PortForwardWebsockets", true, Beta, false, Unused),
    ("PreferSameTrafficDistribution", true, Ga, true, Unused),
    ("PreventStaticPodAPIReferences", true, Beta, false, Unused),
    ("ProcMountType", true, Ga, true, Unused),
    ("QOSReserved", false, Alpha, false, Read),
    ("RecoverVolumeExpansionFailure", true, Ga, true, Unused),
    ("RecursiveReadOnlyMounts", true, Ga, true, Unused),
    ("ReduceDefaultCrashLoopBackOffDecay", false, Alpha, false, Unused),
    ("RelaxedDNSSearchValidation", true, Ga, true, Unused),
    ("RelaxedEnvironmentVariableValidation", true, Ga, true, Unused),
    ("RelaxedServiceNameValidation", true, Beta, false, Unused),
    ("ReloadKubeletClientCAFile", true, Beta, false, Read),
    ("ReloadKubeletServerCertificateFile", true, Beta, false, Read),
    ("RemoteRequestHeaderUID", true, Beta, false, Unused),
    ("ResilientWatchCacheInitialization", true, Ga, true, Unused),
    ("ResourceHealthStatus", true, Beta, false, Unused),
    ("ResourceHealthStatusMessage", true, Beta, false, Unused),
    ("RestartAllContainersOnContainerExits", true, Beta, false, Read),
    ("RetryGenerateName", true, Ga, false, Unused),
    ("RotateKubeletServerCertificate", true, Beta, false, Read),
    ("RuntimeClassInImageCriApi", false, Alpha, false, Read),
    ("SELinuxChangePolicy", true, Ga, true, Unused),
    ("SELinuxMount", false, Beta, false, Missing(true, "only claims of one pod are mounted with its SELinux label")),
    ("SELinuxMountReadWriteOncePod", true, Ga, true, Unused),
    ("SchedulerAsyncAPICalls", false, Beta, false, Unused),
    ("SchedulerAsyncPreemption", true, Beta, false, Unused),
    ("SchedulerPopFromBackoffQ", true, Beta, false, Unused),
    ("SchedulerQueueingHints", true, Ga, true, Unused),
    ("SeparateCacheWatchRPC", false, Deprecated, false, Unused),
    ("SeparateTaintEvictionController", true, Ga, true, Unused),
    ("ServiceAccountNodeAudienceRestriction", true, Beta, false, Unused),
    ("ServiceAccountTokenJTI", true, Ga, true, Unused),
    ("ServiceAccountTokenNodeBinding", true, Ga, true, Unused),
    ("ServiceAccountTokenNodeBindingValidation", true, Ga, true, Unused),
    ("ServiceAccountTokenPodNodeInfo", true, Ga, true, Unused),
    ("ServiceCIDRStatusFieldWiping", true, Deprecated, false, Unused),
    ("ShardedListAndWatch", false, Alpha, false, Unused),
    ("SidecarContainers", true, Ga, false, Unused),
    ("SizeBasedListCostEstimate", true, Beta, false, Unused),
    ("StaleControllerConsistencyDaemonSet", true, Beta, false, Unused),
    ("StaleControllerConsistencyJob", true, Beta, false, Unused),
    ("StaleControllerConsistencyReplicaSet", true, Beta, false, Unused),
    ("StaleControllerConsistencyStatefulSet", true, Beta, false, Unused),
    ("StatefulSetSemanticRevisionComparison", true, Beta, false, Unused),
    ("StorageCapacityScoring", false, Alpha, false, Unused),
    ("StorageNamespaceIndex", true, Deprecated, false, Unused),
    ("StorageVersionAPI", false, Alpha, false, Unused),
    ("StorageVersionHash", true, Beta, false, Unused),
    ("StorageVersionMigrator", false, Beta, false, Unused),
    ("StreamingCollectionEncodingToJSON", true, Ga, true, Unused),
    ("StreamingCollectionEncodingToProtobuf", true, Ga, true, Unused),
    ("StrictIPCIDRValidation", true, Beta, false, Unused),
    ("StructuredAuthenticationConfiguration", true, Ga, true, Unused),
    ("StructuredAuthenticationConfigurationEgressSelector", true, Beta, false, Unused),
    ("StructuredAuthenticationConfigurationJWKSMetrics", true, Beta, false, Unused),
    ("SupplementalGroupsPolicy", true, Ga, true, Unused),
    ("SystemdWatchdog", true, Ga, true, Unused),
    ("TaintTolerationComparisonOperators", false, Alpha, false, Read),
    ("TokenRequestServiceAccountUIDValidation", true, Beta, false, Unused),
    ("TopologyAwareWorkloadScheduling", false, Alpha, false, Unused),
    ("TopologyManagerPolicyAlphaOptions", false, Alpha, false, Unused),
    ("TopologyManagerPolicyBetaOptions", true, Beta, false, Unused),
    ("TopologyManagerPolicyOptions", true, Ga, true, Unused),
    ("TranslateStreamCloseWebsocketRequests", true, Beta, false, Unused),
    ("UnauthenticatedHTTP2DOSMitigation", true, Beta, false, Unused),
    ("UnknownVersionInteroperabilityProxy", true, Beta, false, Unused),
    ("UnlockWhileProcessingFIFO", true, Beta, false, Unused),
    ("UserNamespacesHostNetworkSupport", false, Alpha, false, Unused),
    ("UserNamespacesSupport", true, Ga, true, Unused),
    ("VolumeAttributesClass", true, Ga, true, Unused),
    ("VolumeLimitScaling", false, Alpha, false, Unused),
    ("WatchCacheInitializationPostStartHook", true, Beta, false, Unused),
    ("WatchList", true, Beta, false, Unused),
    ("WatchListClient", true, Beta, false, Unused),
    ("WinDSR", true, Ga, true, Unused),
    ("WinOverlay", true, Ga, true, Unused),
    ("WindowsCPUAndMemoryAffinity", false, Alpha, false, Unused),
    ("WindowsGracefulNodeShutdown", true, Beta, false, Unused),
    ("WindowsHostNetwork", false, Deprecated, false, Unused),
    ("WorkloadAwarePreemption", false, Alpha, false, Unused),
    ("WorkloadWithJob", false, Alpha, false, Unused),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_table_is_sorted() {
        assert!(GATES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn gate_metrics_have_the_stage() {
        let (registry, gates) = (Registry::default(), ("MemoryQoS".to_owned(), true));
        FeatureGates::new(&BTreeMap::from([gates])).unwrap().register_metrics(&registry);
        let page = longshore_metrics::parse::parse(&registry.text()).unwrap();
        let name = "kubernetes_feature_enabled";
        assert_eq!(page.families[name].samples.len(), GATES.len());
        for (gate, stage, value) in [
            ("MemoryQoS", "ALPHA", 1.0),
            ("ClusterTrustBundle", "BETA", 0.0),
            ("NodeSwap", "", 1.0),
            ("WindowsHostNetwork", "DEPRECATED", 0.0),
        ] {
            assert_eq!(page.sum(name, &[("name", gate), ("stage", stage)]), Some(value), "{gate}");
        }
    }

    /// The crates that read gates, besides the package of the node.
    const LAYERS: [&str; 9] = [
        "config",
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
        text
    }

    /// Finding 6: a gate that is read is marked so, and one that is marked is read.
    #[test]
    fn gate_effects_match_the_table() {
        let sources = sources();
        for (name, _, _, locked, effect) in GATES {
            let is_named = sources.contains(&format!("\"{name}\""));
            assert_eq!(is_named, *effect == Read, "{name}");
            assert!(!locked || !matches!(effect, Missing(..)), "{name}");
        }
    }

    /// Finding 6: a protection that is asked for and not there is refused, however it is asked for.
    #[test]
    fn gate_of_a_missing_protection_is_rejected() {
        let gates = |name: &str| {
            FeatureGates::new(&BTreeMap::from([(name.to_owned(), true)])).unwrap().unprotected()
        };
        assert_eq!(FeatureGates::default().unprotected(), Vec::<String>::new());
        assert_eq!(gates("AllAlpha"), Vec::<String>::new());
        let (quota, label) = ("LocalStorageCapacityIsolationFSQuotaMonitoring", "SELinuxMount");
        for (asked, named) in
            [(quota, &[quota][..]), (label, &[label]), ("AllBeta", &[quota, label])]
        {
            let found = gates(asked);
            assert_eq!(found.len(), named.len(), "{found:?}");
            for (fault, name) in found.iter().zip(named) {
                let begins = format!("featureGates: {name}=true is not implemented: ");
                assert!(fault.starts_with(&begins), "{fault}");
            }
        }
    }

    #[test]
    fn gate_defaults_and_requests() {
        let gate = |name: &str, value| BTreeMap::from([(name.to_owned(), value)]);
        let default = FeatureGates::default();
        assert!(
            default.enabled("GracefulNodeShutdown")
                && !default.enabled("MemoryQoS")
                && !default.enabled("NoSuch")
        );
        assert!(FeatureGates::new(&gate("MemoryQoS", true)).unwrap().enabled("MemoryQoS"));
        assert!(FeatureGates::new(&gate("AllAlpha", true)).unwrap().enabled("MemoryQoS"));
        assert_eq!(
            FeatureGates::new(&gate("NoSuch", true)).unwrap_err(),
            ["featureGates: unrecognized feature gate: NoSuch"]
        );
        let locked = FeatureGates::new(&gate("NodeSwap", false)).unwrap_err();
        assert!(locked[0].contains("locked to true"), "{locked:?}");
    }
}

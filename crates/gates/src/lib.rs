//! Pure: the feature gates of Kubernetes 1.36 as data: their names, defaults and stages. Every program
//! of Kubernetes accepts all of them, so that one list fits all; which of them have an effect is the
//! program's to say.

mod declared;

use std::collections::BTreeMap;
use std::str::FromStr;

use longshore_metrics::{Kind, Labels, Registry, Text};

pub use declared::{DeclaredFeatures, NODE_DECLARED_FEATURES};

/// Stage of a gate; `AllAlpha` and `AllBeta` refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}
use Stage::{Alpha, Beta, Deprecated, Ga};

/// Name, default, stage, and whether the default is locked.
type Gate = (&'static str, bool, Stage, bool);

/// A gate of which a value asks for a protection that a program does not have: its name, that value,
/// and what is missing.
pub type Missing = (&'static str, bool, &'static str);

/// The effective gates: upstream's defaults, overridden by flags and files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Applies requested gates.
    ///
    /// # Errors
    /// All that are unknown or locked.
    pub fn new(requested: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let errors: Vec<String> = requested
            .iter()
            .filter_map(|(name, &value)| match known(name) {
                None if name == "AllAlpha" || name == "AllBeta" => None,
                None => Some(format!("unrecognized feature gate: {name}")),
                Some((_, default, _, true)) if *default != value => Some(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {default}"
                )),
                Some(_) => None,
            })
            .collect();
        if errors.is_empty() { Ok(Self(requested.clone())) } else { Err(errors) }
    }

    /// Whether the gate is on; unknown gates are off.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        if let Some(&set) = self.0.get(name) {
            return set;
        }
        let Some(&(_, default, stage, locked)) = known(name) else { return false };
        let all = match stage {
            Alpha => self.0.get("AllAlpha"),
            Beta => self.0.get("AllBeta"),
            Ga | Deprecated => None,
        };
        all.copied().filter(|_| !locked).unwrap_or(default)
    }

    /// A message for each gate that asks for one of these protections.
    #[must_use]
    pub fn unprotected(&self, missing: &[Missing]) -> Vec<String> {
        let asked = missing.iter().filter(|(name, value, _)| self.enabled(name) == *value);
        asked
            .map(|(name, value, why)| format!("{name}={value} is not implemented: {why}"))
            .collect()
    }

    /// All gates, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        GATES.iter().map(|gate| gate.0)
    }

    /// The gates that are not as by default.
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let gates = GATES.iter().map(|&(name, default, ..)| (name, default, self.enabled(name)));
        gates.filter(|(_, default, enabled)| default != enabled).map(|(name, _, on)| (name, on))
    }

    /// Registers `kubernetes_feature_enabled`.
    pub fn register_metrics(&self, registry: &Registry) {
        let gates = self.clone();
        registry.collect(move |text| gates.write(text));
    }

    fn write(&self, text: &mut Text) {
        let help =
            "[BETA] This metric records the data about the stage and enablement of a k8s feature.";
        let mut samples = text.family("kubernetes_feature_enabled", help, Kind::Gauge);
        for (name, _, stage, _) in GATES {
            let labels = Labels::new(&[("name", name), ("stage", stage.name())]);
            samples.add(&labels, f64::from(u8::from(self.enabled(name))));
        }
    }
}

impl FromStr for FeatureGates {
    type Err = String;

    /// Reads `NAME=BOOL,…`, as the flag `--feature-gates` has it; the later of two counts.
    fn from_str(text: &str) -> Result<Self, String> {
        let gates = text.split(',').map(str::trim).filter(|gate| !gate.is_empty());
        let requested = gates.map(assignment).collect::<Result<_, _>>()?;
        Self::new(&requested).map_err(|errors| errors.join(", "))
    }
}

/// `NAME=BOOL`, the latter as Go reads it.
fn assignment(text: &str) -> Result<(String, bool), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("missing bool value for {text}"))?;
    let (name, value) = (name.trim(), value.trim());
    match value {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok((name.to_owned(), true)),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok((name.to_owned(), false)),
        other => Err(format!(
            "invalid value of {name}={other}, err: strconv.ParseBool: parsing {other:?}: invalid syntax"
        )),
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
    ("APIResponseCompression", true, Beta, false),
    ("APIServerIdentity", true, Beta, false),
    ("APIServerTracing", true, Ga, true),
    ("APIServingWithRoutine", false, Alpha, false),
    ("AggregatedDiscoveryRemoveBetaType", true, Deprecated, true),
    ("AllowDNSOnlyNodeCSR", false, Deprecated, false),
    ("AllowInsecureKubeletCertificateSigningRequests", false, Deprecated, false),
    ("AllowOverwriteTerminationGracePeriodSeconds", false, Deprecated, true),
    ("AllowParsingUserUIDFromCertAuth", true, Beta, false),
    ("AllowServiceExternalIPs", true, Ga, false),
    ("AllowUnsafeMalformedObjectDeletion", false, Alpha, false),
    ("AnonymousAuthConfigurableEndpoints", true, Ga, true),
    ("AnyVolumeDataSource", true, Ga, true),
    ("AtomicFIFO", true, Beta, false),
    ("AuthorizeNodeWithSelectors", true, Ga, true),
    ("AuthorizePodWebsocketUpgradeCreatePermission", true, Beta, false),
    ("AuthorizeWithSelectors", true, Ga, true),
    ("BtreeWatchCache", true, Ga, true),
    ("CBORServingAndStorage", false, Alpha, false),
    ("CPUManagerPolicyAlphaOptions", false, Alpha, false),
    ("CPUManagerPolicyBetaOptions", true, Beta, false),
    ("CPUManagerPolicyOptions", true, Ga, true),
    ("CRDObservedGenerationTracking", true, Beta, false),
    ("CRDValidationRatcheting", true, Ga, false),
    ("CRIListStreaming", false, Alpha, false),
    ("CSIServiceAccountTokenSecrets", true, Ga, true),
    ("CSIVolumeHealth", false, Alpha, false),
    ("ChangeContainerStatusOnKubeletRestart", false, Deprecated, false),
    ("ClearingNominatedNodeNameAfterBinding", true, Beta, false),
    ("ClientsAllowCARotation", true, Beta, false),
    ("ClientsAllowCBOR", false, Beta, false),
    ("ClientsAllowTLSCacheGC", true, Beta, false),
    ("ClientsPreferCBOR", false, Beta, false),
    ("CloudControllerManagerWatchBasedRoutesReconciliation", false, Alpha, false),
    ("CloudControllerManagerWebhook", false, Alpha, false),
    ("ClusterTrustBundle", false, Beta, false),
    ("ClusterTrustBundleProjection", false, Beta, false),
    ("ComponentFlagz", true, Beta, false),
    ("ComponentStatusz", true, Beta, false),
    ("ConcurrentWatchObjectDecode", false, Beta, false),
    ("ConsistentListFromCache", true, Ga, true),
    ("ConstrainedImpersonation", true, Beta, false),
    ("ContainerCheckpoint", true, Beta, false),
    ("ContainerRestartRules", true, Beta, false),
    ("ContainerStopSignals", false, Alpha, false),
    ("ContextualLogging", true, Beta, false),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", false, Alpha, false),
    ("CoordinatedLeaderElection", false, Beta, false),
    ("CrossNamespaceVolumeDataSource", false, Alpha, false),
    ("CustomCPUCFSQuotaPeriod", true, Ga, false),
    ("CustomResourceFieldSelectors", true, Ga, false),
    ("DRAAdminAccess", true, Ga, true),
    ("DRAConsumableCapacity", true, Beta, false),
    ("DRADeviceBindingConditions", true, Beta, false),
    ("DRADeviceTaintRules", false, Beta, false),
    ("DRADeviceTaints", true, Beta, false),
    ("DRAExtendedResource", true, Beta, false),
    ("DRAListTypeAttributes", false, Alpha, false),
    ("DRANodeAllocatableResources", false, Alpha, false),
    ("DRAPartitionableDevices", true, Beta, false),
    ("DRAPrioritizedList", true, Ga, false),
    ("DRAResourceClaimDeviceStatus", true, Beta, false),
    ("DRAResourceClaimGranularStatusAuthorization", true, Beta, false),
    ("DRAResourcePoolStatus", false, Alpha, false),
    ("DRASchedulerFilterTimeout", true, Beta, false),
    ("DRAWorkloadResourceClaims", false, Alpha, false),
    ("DeclarativeValidation", true, Ga, true),
    ("DeclarativeValidationBeta", true, Beta, false),
    ("DeclarativeValidationTakeover", false, Deprecated, false),
    ("DeploymentReplicaSetTerminatingReplicas", true, Beta, false),
    ("DetectCacheInconsistency", true, Beta, false),
    ("DisableAllocatorDualWrite", true, Ga, true),
    ("DisableCPUQuotaWithExclusiveCPUs", true, Deprecated, false),
    ("DisableNodeKubeProxyVersion", true, Deprecated, true),
    ("DynamicResourceAllocation", true, Ga, true),
    ("EnvFiles", true, Beta, false),
    ("EventedPLEG", false, Alpha, false),
    ("ExecProbeTimeout", true, Ga, true),
    ("ExtendWebSocketsToKubelet", true, Beta, false),
    ("ExternalServiceAccountTokenSigner", true, Ga, true),
    ("GangScheduling", false, Alpha, false),
    ("GenericWorkload", false, Alpha, false),
    ("GitRepoVolumeDriver", false, Deprecated, true),
    ("GracefulNodeShutdown", true, Beta, false),
    ("GracefulNodeShutdownBasedOnPodPriority", true, Beta, false),
    ("HPAConfigurableTolerance", true, Beta, false),
    ("HPAScaleToZero", false, Alpha, false),
    ("HostnameOverride", true, Beta, false),
    ("ImageMaximumGCAge", true, Ga, true),
    ("ImageVolume", true, Ga, true),
    ("ImageVolumeWithDigest", false, Alpha, false),
    ("InOrderInformers", true, Beta, true),
    ("InOrderInformersBatchProcess", true, Beta, false),
    ("InPlacePodLevelResourcesVerticalScaling", true, Beta, false),
    ("InPlacePodVerticalScaling", true, Ga, true),
    ("InPlacePodVerticalScalingExclusiveCPUs", false, Alpha, false),
    ("InPlacePodVerticalScalingExclusiveMemory", false, Alpha, false),
    ("InPlacePodVerticalScalingInitContainers", true, Beta, false),
    ("InformerResourceVersion", true, Beta, false),
    ("JobBackoffLimitPerIndex", true, Ga, true),
    ("JobManagedBy", true, Ga, true),
    ("JobPodReplacementPolicy", true, Ga, true),
    ("JobSuccessPolicy", true, Ga, true),
    ("KMSv1", false, Deprecated, false),
    ("KubeletCgroupDriverFromCRI", true, Ga, true),
    ("KubeletCrashLoopBackOffMax", true, Beta, false),
    ("KubeletEnsureSecretPulledImages", true, Beta, false),
    ("KubeletFineGrainedAuthz", true, Ga, true),
    ("KubeletInUserNamespace", false, Alpha, false),
    ("KubeletPSI", true, Ga, true),
    ("KubeletPodResourcesDynamicResources", true, Ga, true),
    ("KubeletPodResourcesGet", true, Ga, true),
    ("KubeletPodResourcesListUseActivePods", true, Deprecated, false),
    ("KubeletRegistrationGetOnExistsOnly", false, Deprecated, false),
    ("KubeletSeparateDiskGC", true, Beta, false),
    ("KubeletServiceAccountTokenForCredentialProviders", true, Beta, false),
    ("KubeletTracing", true, Ga, true),
    ("ListFromCacheSnapshot", true, Beta, false),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", false, Beta, false),
    ("LogarithmicScaleDown", true, Ga, true),
    ("LoggingAlphaOptions", false, Alpha, false),
    ("LoggingBetaOptions", true, Beta, false),
    ("ManifestBasedAdmissionControlConfig", false, Alpha, false),
    ("MatchLabelKeysInPodAffinity", true, Ga, true),
    ("MatchLabelKeysInPodTopologySpread", true, Beta, false),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", true, Beta, false),
    ("MaxUnavailableStatefulSet", false, Beta, false),
    ("MemoryQoS", false, Alpha, false),
    ("MultiCIDRServiceAllocator", true, Ga, true),
    ("MutableCSINodeAllocatableCount", true, Ga, true),
    ("MutablePVNodeAffinity", false, Alpha, false),
    ("MutablePodResourcesForSuspendedJobs", true, Beta, false),
    ("MutableSchedulingDirectivesForSuspendedJobs", true, Beta, false),
    ("MutatingAdmissionPolicy", true, Ga, false),
    ("NFTablesProxyMode", true, Ga, true),
    ("NodeDeclaredFeatures", true, Beta, false),
    ("NodeInclusionPolicyInPodTopologySpread", true, Ga, true),
    ("NodeLogQuery", true, Ga, true),
    ("NodeSwap", true, Ga, true),
    ("NominatedNodeNameForExpectation", true, Beta, false),
    ("OpenAPIEnums", true, Beta, false),
    ("OpportunisticBatching", true, Beta, false),
    ("OrderedNamespaceDeletion", true, Ga, true),
    ("PLEGOnDemandRelist", true, Beta, false),
    ("PersistentVolumeClaimUnusedSinceTime", false, Alpha, false),
    ("PodAndContainerStatsFromCRI", false, Alpha, false),
    ("PodCertificateRequest", false, Beta, false),
    ("PodDeletionCost", true, Beta, false),
    ("PodLevelResourceManagers", false, Alpha, false),
    ("PodLevelResources", true, Beta, false),
    ("PodLifecycleSleepAction", true, Ga, true),
    ("PodLifecycleSleepActionAllowZero", true, Ga, true),
    ("PodLogsQuerySplitStreams", false, Alpha, false),
    ("PodObservedGenerationTracking", true, Ga, true),
    ("PodReadyToStartContainersCondition", true, Beta, false),
    ("PodSchedulingReadiness", true, Ga, true),
    ("PodTopologyLabelsAdmission", true, Beta, false),
    ("PodsAPI", false, Alpha, false),
    ("PortForwardWebsockets", true, Beta, false),
    ("PreferSameTrafficDistribution", true, Ga, true),
    ("PreventStaticPodAPIReferences", true, Beta, false),
    ("ProcMountType", true, Ga, true),
    ("QOSReserved", false, Alpha, false),
    ("RecoverVolumeExpansionFailure", true, Ga, true),
    ("RecursiveReadOnlyMounts", true, Ga, true),
    ("ReduceDefaultCrashLoopBackOffDecay", false, Alpha, false),
    ("RelaxedDNSSearchValidation", true, Ga, true),
    ("RelaxedEnvironmentVariableValidation", true, Ga, true),
    ("RelaxedServiceNameValidation", true, Beta, false),
    ("ReloadKubeletClientCAFile", true, Beta, false),
    ("ReloadKubeletServerCertificateFile", true, Beta, false),
    ("RemoteRequestHeaderUID", true, Beta, false),
    ("ResilientWatchCacheInitialization", true, Ga, true),
    ("ResourceHealthStatus", true, Beta, false),
    ("ResourceHealthStatusMessage", true, Beta, false),
    ("RestartAllContainersOnContainerExits", true, Beta, false),
    ("RetryGenerateName", true, Ga, false),
    ("RotateKubeletServerCertificate", true, Beta, false),
    ("RuntimeClassInImageCriApi", false, Alpha, false),
    ("SELinuxChangePolicy", true, Ga, true),
    ("SELinuxMount", false, Beta, false),
    ("SELinuxMountReadWriteOncePod", true, Ga, true),
    ("SchedulerAsyncAPICalls", false, Beta, false),
    ("SchedulerAsyncPreemption", true, Beta, false),
    ("SchedulerPopFromBackoffQ", true, Beta, false),
    ("SchedulerQueueingHints", true, Ga, true),
    ("SeparateCacheWatchRPC", false, Deprecated, false),
    ("SeparateTaintEvictionController", true, Ga, true),
    ("ServiceAccountNodeAudienceRestriction", true, Beta, false),
    ("ServiceAccountTokenJTI", true, Ga, true),
    ("ServiceAccountTokenNodeBinding", true, Ga, true),
    ("ServiceAccountTokenNodeBindingValidation", true, Ga, true),
    ("ServiceAccountTokenPodNodeInfo", true, Ga, true),
    ("ServiceCIDRStatusFieldWiping", true, Deprecated, false),
    ("ShardedListAndWatch", false, Alpha, false),
    ("SidecarContainers", true, Ga, false),
    ("SizeBasedListCostEstimate", true, Beta, false),
    ("StaleControllerConsistencyDaemonSet", true, Beta, false),
    ("StaleControllerConsistencyJob", true, Beta, false),
    ("StaleControllerConsistencyReplicaSet", true, Beta, false),
    ("StaleControllerConsistencyStatefulSet", true, Beta, false),
    ("StatefulSetSemanticRevisionComparison", true, Beta, false),
    ("StorageCapacityScoring", false, Alpha, false),
    ("StorageNamespaceIndex", true, Deprecated, false),
    ("StorageVersionAPI", false, Alpha, false),
    ("StorageVersionHash", true, Beta, false),
    ("StorageVersionMigrator", false, Beta, false),
    ("StreamingCollectionEncodingToJSON", true, Ga, true),
    ("StreamingCollectionEncodingToProtobuf", true, Ga, true),
    ("StrictIPCIDRValidation", true, Beta, false),
    ("StructuredAuthenticationConfiguration", true, Ga, true),
    ("StructuredAuthenticationConfigurationEgressSelector", true, Beta, false),
    ("StructuredAuthenticationConfigurationJWKSMetrics", true, Beta, false),
    ("SupplementalGroupsPolicy", true, Ga, true),
    ("SystemdWatchdog", true, Ga, true),
    ("TaintTolerationComparisonOperators", false, Alpha, false),
    ("TokenRequestServiceAccountUIDValidation", true, Beta, false),
    ("TopologyAwareWorkloadScheduling", false, Alpha, false),
    ("TopologyManagerPolicyAlphaOptions", false, Alpha, false),
    ("TopologyManagerPolicyBetaOptions", true, Beta, false),
    ("TopologyManagerPolicyOptions", true, Ga, true),
    ("TranslateStreamCloseWebsocketRequests", true, Beta, false),
    ("UnauthenticatedHTTP2DOSMitigation", true, Beta, false),
    ("UnknownVersionInteroperabilityProxy", true, Beta, false),
    ("UnlockWhileProcessingFIFO", true, Beta, false),
    ("UserNamespacesHostNetworkSupport", false, Alpha, false),
    ("UserNamespacesSupport", true, Ga, true),
    ("VolumeAttributesClass", true, Ga, true),
    ("VolumeLimitScaling", false, Alpha, false),
    ("WatchCacheInitializationPostStartHook", true, Beta, false),
    ("WatchList", true, Beta, false),
    ("WatchListClient", true, Beta, false),
    ("WinDSR", true, Ga, true),
    ("WinOverlay", true, Ga, true),
    ("WindowsCPUAndMemoryAffinity", false, Alpha, false),
    ("WindowsGracefulNodeShutdown", true, Beta, false),
    ("WindowsHostNetwork", false, Deprecated, false),
    ("WorkloadAwarePreemption", false, Alpha, false),
    ("WorkloadWithJob", false, Alpha, false),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(text: &str) -> FeatureGates {
        text.parse().unwrap()
    }

    #[test]
    fn gate_table_is_sorted() {
        assert!(GATES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn gate_metrics_have_the_stage() {
        let registry = Registry::default();
        gates("MemoryQoS=true").register_metrics(&registry);
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

    #[test]
    fn gates_of_a_stage_follow_it_unless_locked() {
        let off = gates("AllBeta=false,ComponentFlagz=true");
        assert!(!off.enabled("ComponentStatusz"));
        assert!(off.enabled("ComponentFlagz"), "its own value counts");
        assert!(off.enabled("InOrderInformers"), "locked");
        assert!(off.enabled("NodeSwap"), "another stage");
        assert!(gates("AllAlpha=true").enabled("MemoryQoS"));
        assert!(!gates("AllAlpha=true").enabled("None"));
        assert_eq!(gates("MemoryQoS=true").changed().collect::<Vec<_>>(), [("MemoryQoS", true)]);
        assert_eq!(gates(" ,NodeSwap=true").changed().count(), 0);
    }

    #[test]
    fn gates_of_the_flag_are_checked() {
        for (text, error) in [
            ("A", "missing bool value for A"),
            ("A=true", "unrecognized feature gate: A"),
            (
                "NodeSwap=false",
                "cannot set feature gate NodeSwap to false, feature is locked to true",
            ),
            (
                "MemoryQoS=on",
                "invalid value of MemoryQoS=on, err: strconv.ParseBool: parsing \"on\": invalid syntax",
            ),
        ] {
            assert_eq!(text.parse::<FeatureGates>().unwrap_err(), error);
        }
    }

    #[test]
    fn gates_that_ask_for_a_protection_are_named() {
        let missing: [Missing; 1] = [("MemoryQoS", true, "no reason")];
        assert_eq!(FeatureGates::default().unprotected(&missing), [""; 0]);
        let found = gates("MemoryQoS=1").unprotected(&missing);
        assert_eq!(found, ["MemoryQoS=true is not implemented: no reason"]);
    }
}

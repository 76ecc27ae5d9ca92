//! The feature gates of Kubernetes 1.36: their names, defaults and stages, as data.
//!
//! Every gate upstream knows is accepted; only a few change what this daemon does.

use std::collections::BTreeMap;

use longshore_metrics::{Kind, Labels, Registry, Text};

/// How far a gate has come; `AllAlpha` and `AllBeta` switch by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}
use Stage::{Alpha, Beta, Deprecated, Ga};

/// The gates in force: upstream's defaults under what flags and files asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Takes the requested gates; the error lists every gate that is unknown or locked.
    pub fn new(requested: &BTreeMap<String, bool>) -> Result<Self, Vec<String>> {
        let errors: Vec<String> = requested
            .iter()
            .filter_map(|(name, &value)| match known(name) {
                None if name == "AllAlpha" || name == "AllBeta" => None,
                None => Some(format!("featureGates: unrecognized feature gate: {name}")),
                Some((_, default, _, true)) if *default != value => Some(format!(
                    "featureGates: cannot set feature gate {name} to {value}, feature is locked to {default}"
                )),
                Some(_) => None,
            })
            .collect();
        if errors.is_empty() { Ok(Self(requested.clone())) } else { Err(errors) }
    }

    /// Whether the gate is on; a name that upstream does not know is off.
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

    /// Has `registry` tell of each gate its stage and whether it is on.
    pub fn tell(&self, registry: &Registry) {
        let gates = self.clone();
        registry.collect(move |text| gates.write(text));
    }

    fn write(&self, text: &mut Text) {
        let help =
            "Whether a feature gate is on, and how far it has come: nothing for what is done.";
        let mut samples = text.family("kubernetes_feature_enabled", help, Kind::Gauge);
        for (name, _, stage, _) in GATES {
            let labels = Labels::new(&[("name", name), ("stage", stage.name())]);
            samples.add(&labels, f64::from(u8::from(self.enabled(name))));
        }
    }
}

impl Stage {
    /// As metrics have it.
    fn name(self) -> &'static str {
        match self {
            Alpha => "ALPHA",
            Beta => "BETA",
            Ga => "",
            Deprecated => "DEPRECATED",
        }
    }
}

fn known(name: &str) -> Option<&'static (&'static str, bool, Stage, bool)> {
    GATES.binary_search_by_key(&name, |gate| gate.0).ok().map(|at| &GATES[at])
}

/// Name, default, stage and whether the default is locked, sorted by name.
#[rustfmt::skip]
static GATES: &[(&str, bool, Stage, bool)] = &[
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(GATES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn each_gate_is_told_with_its_stage() {
        let (registry, gates) = (Registry::default(), ("MemoryQoS".to_owned(), true));
        FeatureGates::new(&BTreeMap::from([gates])).unwrap().tell(&registry);
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
    fn gates_are_defaults_under_requests() {
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

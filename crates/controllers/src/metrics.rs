//! The metrics of controllers, under upstream's names.

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry, Slot};

/// The metrics of all controllers of a registry. Families of a controller that does not run stay empty.
#[derive(Debug)]
pub struct Metrics {
    /// Controllers that run here: 1, by name and program.
    pub(crate) running: Family<Gauge, 2>,
    pub(crate) cronjob_skew: Histogram,
    pub(crate) job: JobMetrics,
    pub(crate) deletion_age_ratio: Histogram,
    pub(crate) nodes: NodeMetrics,
    pub(crate) node_ipam: NodeIpamMetrics,
    pub(crate) slices: SliceMetrics,
    pub(crate) mirroring: MirroringMetrics,
    pub(crate) autoscaler: AutoscalerMetrics,
    pub(crate) garbage_sync_errors: Counter,
    pub(crate) root_ca: PublisherMetrics,
    pub(crate) trust_bundle: PublisherMetrics,
    pub(crate) job_ttl: Histogram,
    pub(crate) ephemeral_creates: Counter,
    pub(crate) ephemeral_failures: Counter,
    pub(crate) volume_operations: OperationMetrics,
    pub(crate) retroactive_classes: Counter,
    pub(crate) retroactive_class_errors: Counter,
    /// By the reason `timeout` or `out-of-service`.
    pub(crate) forced_detaches: Family<Counter, 1>,
    pub(crate) taint_eviction: EvictionMetrics,
    pub(crate) device_taint_eviction: EvictionMetrics,
    /// Pods that the garbage collector of pods deletes, by namespace and reason.
    pub(crate) collected_pods: Family<Counter, 2>,
    pub(crate) collected_pod_errors: Family<Counter, 2>,
    /// By `success` or `failure`, and whether access is for administrators.
    pub(crate) claim_creates: Family<Counter, 2>,
    /// What counts volumes and claims at each scrape.
    pub(crate) volumes: Slot,
    /// What counts attached volumes.
    pub(crate) attachments: Slot,
    /// What counts claims for devices.
    pub(crate) device_claims: Slot,
    /// What lists pods whose SELinux labels do not go together.
    pub(crate) selinux_conflicts: Slot,
}

/// Of the operations of volumes, by plugin and operation.
#[derive(Clone, Debug)]
pub(crate) struct OperationMetrics {
    pub(crate) seconds: Family<Histogram, 2>,
    /// Under two names.
    pub(crate) errors: [Family<Counter, 2>; 2],
}

fn volume_operations(registry: &Registry) -> OperationMetrics {
    let labels = ["plugin_name", "operation_name"];
    let errors = |name| registry.counters(name, "[ALPHA] Total volume operation errors", labels);
    OperationMetrics {
        seconds: registry.histograms(
            "volume_operation_total_seconds",
            "[ALPHA] Storage operation end to end duration in seconds",
            labels,
            Buckets::of(&[
                0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
            ]),
        ),
        errors: [errors("volume_operation_total_errors"), errors("volume_operation_errors_total")],
    }
}

/// Of the job controller.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    /// By completion mode, result and action.
    pub(crate) sync_duration: Family<Histogram, 3>,
    /// By completion mode, result and action.
    pub(crate) syncs: Family<Counter, 3>,
    /// By completion mode, result and reason.
    pub(crate) finished: Family<Counter, 3>,
    /// By completion mode and result.
    pub(crate) pods_finished: Family<Counter, 2>,
    /// By action.
    pub(crate) handled_failures: Family<Counter, 1>,
    /// By `add` and `delete`.
    pub(crate) terminated_with_finalizer: Family<Counter, 1>,
    /// By status and kind of limit.
    pub(crate) finished_indexes: Family<Counter, 2>,
    /// By reason and status.
    pub(crate) pods_created: Family<Counter, 2>,
    /// By the name of the other controller.
    pub(crate) external: Family<Counter, 1>,
}

/// Of the node lifecycle controller. Labels are zones.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    pub(crate) zone_health: Family<Gauge, 1>,
    pub(crate) zone_size: Family<Gauge, 1>,
    pub(crate) unhealthy: Family<Gauge, 1>,
    pub(crate) evictions: Family<Counter, 1>,
    pub(crate) one_update: Histogram,
    pub(crate) all_updates: Histogram,
}

/// Of the node IPAM controller. Labels are ranges.
#[derive(Debug)]
pub(crate) struct NodeIpamMetrics {
    pub(crate) allocations: Family<Counter, 1>,
    pub(crate) releases: Family<Counter, 1>,
    pub(crate) most: Family<Gauge, 1>,
    pub(crate) usage: Family<Gauge, 1>,
}

/// Of the endpoint slice controller.
#[derive(Debug)]
pub(crate) struct SliceMetrics {
    pub(crate) added: Histogram,
    pub(crate) removed: Histogram,
    pub(crate) desired_endpoints: Gauge,
    pub(crate) slices: Gauge,
    pub(crate) desired_slices: Gauge,
    /// By operation.
    pub(crate) changes: Family<Counter, 1>,
    /// By topology and traffic distribution.
    pub(crate) changed: Family<Histogram, 2>,
    /// By result.
    pub(crate) syncs: Family<Counter, 1>,
    /// By traffic distribution.
    pub(crate) distributions: Family<Gauge, 1>,
}

/// Of the endpoint slice mirroring controller.
#[derive(Debug)]
pub(crate) struct MirroringMetrics {
    pub(crate) added: Histogram,
    pub(crate) updated: Histogram,
    pub(crate) removed: Histogram,
    pub(crate) skipped: Histogram,
    pub(crate) duration: Histogram,
    pub(crate) desired_endpoints: Gauge,
    pub(crate) slices: Gauge,
    pub(crate) desired_slices: Gauge,
    /// By operation.
    pub(crate) changes: Family<Counter, 1>,
}

/// Of the horizontal pod autoscaler.
#[derive(Debug)]
pub(crate) struct AutoscalerMetrics {
    /// By action and error.
    pub(crate) reconciliations: Family<Counter, 2>,
    /// By action and error.
    pub(crate) duration: Family<Histogram, 2>,
    /// By action, error and type of metric.
    pub(crate) computations: Family<Counter, 3>,
    /// By action, error and type of metric.
    pub(crate) computation_duration: Family<Histogram, 3>,
    pub(crate) count: Gauge,
    /// By namespace and name.
    pub(crate) desired: Family<Gauge, 2>,
}

/// Of a controller that publishes a CA, by the code of the answer.
#[derive(Debug, Clone)]
pub(crate) struct PublisherMetrics {
    syncs: Family<Counter, 1>,
    duration: Family<Histogram, 1>,
}

impl PublisherMetrics {
    /// A sync ended so after that time.
    pub(crate) fn synced<T>(&self, result: &Result<T, kube::Error>, took: std::time::Duration) {
        let code = match result {
            Ok(_) => "200".to_owned(),
            Err(kube::Error::Api(status)) => status.code.to_string(),
            Err(_) => "500".to_owned(),
        };
        self.syncs.with([&code]).inc();
        self.duration.with([&code]).took(took);
    }
}

/// Of controllers that evict pods for taints.
#[derive(Debug, Clone)]
pub(crate) struct EvictionMetrics {
    pub(crate) deletions: Counter,
    pub(crate) latency: Histogram,
}

/// Buckets from 1 ms, each twice the one before.
fn milliseconds() -> Buckets {
    Buckets::exponential(0.001, 2.0, 15)
}

impl Metrics {
    /// Registers the families; once for a registry.
    pub fn new(registry: &Registry) -> Self {
        let evictions =
            Buckets::of(&[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0]);
        Self {
            running: registry.gauges(
                "running_managed_controllers",
                "[BETA] Indicates where instances of a controller are currently running",
                ["name", "manager"],
            ),
            cronjob_skew: registry.histogram(
                "cronjob_controller_job_creation_skew_duration_seconds",
                "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
                Buckets::exponential(1.0, 2.0, 10),
            ),
            job: JobMetrics::new(registry),
            deletion_age_ratio: registry.histogram(
                "replicaset_controller_sorting_deletion_age_ratio",
                "[ALPHA] The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2. The intent of this metric is to measure the rough efficacy of the LogarithmicScaleDown feature gate's effect on the sorting (and deletion) of pods when a replicaset scales down. This only considers Ready pods when calculating and reporting.",
                Buckets::exponential(0.25, 2.0, 6),
            ),
            nodes: NodeMetrics::new(registry),
            node_ipam: NodeIpamMetrics::new(registry),
            slices: SliceMetrics::new(registry),
            mirroring: MirroringMetrics::new(registry),
            autoscaler: AutoscalerMetrics::new(registry),
            garbage_sync_errors: registry.counter(
                "garbagecollector_controller_resources_sync_error_total",
                "[ALPHA] Number of garbage collector resources sync errors",
            ),
            root_ca: PublisherMetrics {
                syncs: registry.counters(
                    "root_ca_cert_publisher_sync_total",
                    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
                    ["code"],
                ),
                duration: registry.histograms(
                    "root_ca_cert_publisher_sync_duration_seconds",
                    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
                    ["code"],
                    milliseconds(),
                ),
            },
            trust_bundle: PublisherMetrics {
                syncs: registry.counters(
                    "clustertrustbundle_publisher_sync_total",
                    "[ALPHA] Number of syncs that occurred in cluster trust bundle publisher.",
                    ["code"],
                ),
                duration: registry.histograms(
                    "clustertrustbundle_publisher_sync_duration_seconds",
                    "[ALPHA] The time it took to sync a cluster trust bundle.",
                    ["code"],
                    milliseconds(),
                ),
            },
            job_ttl: registry.histogram(
                "ttl_after_finished_controller_job_deletion_duration_seconds",
                "[ALPHA] The time it took to delete the job since it became eligible for deletion",
                Buckets::exponential(0.1, 2.0, 14),
            ),
            ephemeral_creates: registry.counter(
                "ephemeral_volume_controller_create_total",
                "[ALPHA] Number of PersistentVolumeClaim creation requests",
            ),
            ephemeral_failures: registry.counter(
                "ephemeral_volume_controller_create_failures_total",
                "[ALPHA] Number of PersistentVolumeClaim creation requests",
            ),
            volume_operations: volume_operations(registry),
            retroactive_classes: registry.counter(
                "retroactive_storageclass_total",
                "[ALPHA] Total number of retroactive StorageClass assignments to persistent volume claim",
            ),
            retroactive_class_errors: registry.counter(
                "retroactive_storageclass_errors_total",
                "[ALPHA] Total number of failed retroactive StorageClass assignments to persistent volume claim",
            ),
            forced_detaches: registry.counters(
                "attach_detach_controller_attachdetach_controller_forced_detaches",
                "[ALPHA] Number of times the A/D Controller performed a forced detach",
                ["reason"],
            ),
            taint_eviction: EvictionMetrics {
                deletions: registry.counter(
                    "taint_eviction_controller_pod_deletions_total",
                    "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.",
                ),
                latency: registry.histogram(
                    "taint_eviction_controller_pod_deletion_duration_seconds",
                    "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
                    evictions.clone(),
                ),
            },
            device_taint_eviction: EvictionMetrics {
                deletions: registry.counter(
                    "device_taint_eviction_controller_pod_deletions_total",
                    "[ALPHA] Total number of Pods deleted by DeviceTaintEvictionController since its start.",
                ),
                latency: registry.histogram(
                    "device_taint_eviction_controller_pod_deletion_duration_seconds",
                    "[ALPHA] Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
                    evictions,
                ),
            },
            collected_pods: registry.counters(
                "pod_gc_collector_force_delete_pods_total",
                "[ALPHA] Number of pods that are being forcefully deleted since the Pod GC Controller started.",
                ["namespace", "reason"],
            ),
            collected_pod_errors: registry.counters(
                "pod_gc_collector_force_delete_pod_errors_total",
                "[ALPHA] Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.",
                ["namespace", "reason"],
            ),
            claim_creates: registry.counters(
                "resourceclaim_controller_creates_total",
                "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status and admin access",
                ["status", "admin_access"],
            ),
            volumes: registry.slot(),
            attachments: registry.slot(),
            device_claims: registry.slot(),
            selinux_conflicts: registry.slot(),
        }
    }

    /// Those that nobody reads.
    pub fn unregistered() -> Self {
        Self::new(&Registry::default())
    }
}

impl JobMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            sync_duration: registry.histograms(
                "job_controller_job_sync_duration_seconds",
                "[STABLE] The time it took to sync a job",
                ["completion_mode", "result", "action"],
                Buckets::exponential(0.004, 2.0, 15),
            ),
            syncs: registry.counters(
                "job_controller_job_syncs_total",
                "[STABLE] The number of job syncs",
                ["completion_mode", "result", "action"],
            ),
            finished: registry.counters(
                "job_controller_jobs_finished_total",
                "[STABLE] The number of finished jobs",
                ["completion_mode", "result", "reason"],
            ),
            pods_finished: registry.counters(
                "job_controller_job_pods_finished_total",
                "[STABLE] The number of finished Pods that are fully tracked",
                ["completion_mode", "result"],
            ),
            handled_failures: registry.counters(
                "job_controller_pod_failures_handled_by_failure_policy_total",
                "[BETA] The number of failed Pods handled by failure policy with respect to the failure policy action applied based on the matched rule. Possible values of the action label correspond to the possible values for the failure policy rule action, which are: \"FailJob\", \"Ignore\" and \"Count\".",
                ["action"],
            ),
            terminated_with_finalizer: registry.counters(
                "job_controller_terminated_pods_tracking_finalizer_total",
                "[BETA] The number of terminated pods (phase=Failed|Succeeded) that have the finalizer batch.kubernetes.io/job-tracking. The event label can be \"add\" or \"delete\".",
                ["event"],
            ),
            finished_indexes: registry.counters(
                "job_controller_job_finished_indexes_total",
                "[ALPHA] The number of finished indexes. Possible values for the status label are: \"succeeded\", \"failed\". Possible values for the backoffLimit label are: \"perIndex\" and \"global\"",
                ["status", "backoffLimit"],
            ),
            pods_created: registry.counters(
                "job_controller_job_pods_creation_total",
                "[ALPHA] The number of Pods created by the Job controller labelled with a reason for the Pod creation. This metric also distinguishes between Pods created using different PodReplacementPolicy settings. Possible values of the \"reason\" label are: \"new\", \"recreate_terminating_or_failed\", \"recreate_failed\". Possible values of the \"status\" label are: \"succeeded\", \"failed\".",
                ["reason", "status"],
            ),
            external: registry.counters(
                "job_controller_jobs_by_external_controller_total",
                "[ALPHA] The number of Jobs managed by an external controller",
                ["controller_name"],
            ),
        }
    }
}

impl NodeMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            zone_health: registry.gauges(
                "node_collector_zone_health",
                "[ALPHA] Gauge measuring percentage of healthy nodes per zone.",
                ["zone"],
            ),
            zone_size: registry.gauges(
                "node_collector_zone_size",
                "[ALPHA] Gauge measuring number of registered Nodes per zones.",
                ["zone"],
            ),
            unhealthy: registry.gauges(
                "node_collector_unhealthy_nodes_in_zone",
                "[ALPHA] Gauge measuring number of not Ready Nodes per zones.",
                ["zone"],
            ),
            evictions: registry.counters(
                "node_collector_evictions_total",
                "[STABLE] Number of Node evictions that happened since current instance of NodeController started.",
                ["zone"],
            ),
            one_update: registry.histogram(
                "node_collector_update_node_health_duration_seconds",
                "[ALPHA] Duration in seconds for NodeController to update the health of a single node.",
                Buckets::exponential(0.001, 4.0, 8),
            ),
            all_updates: registry.histogram(
                "node_collector_update_all_nodes_health_duration_seconds",
                "[ALPHA] Duration in seconds for NodeController to update the health of all nodes.",
                Buckets::exponential(0.01, 4.0, 8),
            ),
        }
    }
}

impl NodeIpamMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            allocations: registry.counters(
                "node_ipam_controller_cidrset_cidrs_allocations_total",
                "[ALPHA] Counter measuring total number of CIDR allocations.",
                ["clusterCIDR"],
            ),
            releases: registry.counters(
                "node_ipam_controller_cidrset_cidrs_releases_total",
                "[ALPHA] Counter measuring total number of CIDR releases.",
                ["clusterCIDR"],
            ),
            // the name is upstream's to the letter
            most: registry.gauges(
                "node_ipam_controller_cirdset_max_cidrs",
                "[ALPHA] Maximum number of CIDRs that can be allocated.",
                ["clusterCIDR"],
            ),
            usage: registry.gauges(
                "node_ipam_controller_cidrset_usage_cidrs",
                "[ALPHA] Gauge measuring percentage of allocated CIDRs.",
                ["clusterCIDR"],
            ),
        }
    }
}

/// Buckets of numbers of endpoints in a sync.
fn endpoints() -> Buckets {
    Buckets::exponential(2.0, 2.0, 15)
}

impl SliceMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            added: registry.histogram(
                "endpoint_slice_controller_endpoints_added_per_sync",
                "[BETA] Number of endpoints added on each Service sync",
                endpoints(),
            ),
            removed: registry.histogram(
                "endpoint_slice_controller_endpoints_removed_per_sync",
                "[BETA] Number of endpoints removed on each Service sync",
                endpoints(),
            ),
            desired_endpoints: registry.gauge(
                "endpoint_slice_controller_endpoints_desired",
                "[BETA] Number of endpoints desired",
            ),
            slices: registry.gauge(
                "endpoint_slice_controller_num_endpoint_slices",
                "[BETA] Number of EndpointSlices",
            ),
            desired_slices: registry.gauge(
                "endpoint_slice_controller_desired_endpoint_slices",
                "[BETA] Number of EndpointSlices that would exist with perfect endpoint allocation",
            ),
            changes: registry.counters(
                "endpoint_slice_controller_changes",
                "[ALPHA] Number of EndpointSlice changes",
                ["operation"],
            ),
            changed: registry.histograms(
                "endpoint_slice_controller_endpointslices_changed_per_sync",
                "[ALPHA] Number of EndpointSlices changed on each Service sync",
                ["topology", "traffic_distribution"],
                Buckets::usual(),
            ),
            syncs: registry.counters(
                "endpoint_slice_controller_syncs",
                "[ALPHA] Number of EndpointSlice syncs",
                ["result"],
            ),
            distributions: registry.gauges(
                "endpoint_slice_controller_services_count_by_traffic_distribution",
                "[BETA] Number of Services using some specific trafficDistribution",
                ["traffic_distribution"],
            ),
        }
    }
}

impl MirroringMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            added: registry.histogram(
                "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
                "[ALPHA] Number of endpoints added on each Endpoints sync",
                endpoints(),
            ),
            updated: registry.histogram(
                "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
                "[ALPHA] Number of endpoints updated on each Endpoints sync",
                endpoints(),
            ),
            removed: registry.histogram(
                "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
                "[ALPHA] Number of endpoints removed on each Endpoints sync",
                endpoints(),
            ),
            skipped: registry.histogram(
                "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
                "[ALPHA] Number of addresses skipped on each Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset",
                endpoints(),
            ),
            duration: registry.histogram(
                "endpoint_slice_mirroring_controller_endpoints_sync_duration",
                "[ALPHA] Duration of syncEndpoints() in seconds",
                milliseconds(),
            ),
            desired_endpoints: registry.gauge(
                "endpoint_slice_mirroring_controller_endpoints_desired",
                "[ALPHA] Number of endpoints desired",
            ),
            slices: registry.gauge(
                "endpoint_slice_mirroring_controller_num_endpoint_slices",
                "[ALPHA] Number of EndpointSlices",
            ),
            desired_slices: registry.gauge(
                "endpoint_slice_mirroring_controller_desired_endpoint_slices",
                "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation",
            ),
            changes: registry.counters(
                "endpoint_slice_mirroring_controller_changes",
                "[ALPHA] Number of EndpointSlice changes",
                ["operation"],
            ),
        }
    }
}

impl AutoscalerMetrics {
    fn new(registry: &Registry) -> Self {
        Self {
            reconciliations: registry.counters(
                "horizontal_pod_autoscaler_controller_reconciliations_total",
                "[BETA] Number of reconciliations of HPA controller. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
                ["action", "error"],
            ),
            duration: registry.histograms(
                "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
                "[BETA] The time(seconds) that the HPA controller takes to reconcile once. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.",
                ["action", "error"],
                milliseconds(),
            ),
            computations: registry.counters(
                "horizontal_pod_autoscaler_controller_metric_computation_total",
                "[BETA] Number of metric computations. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
                ["action", "error", "metric_type"],
            ),
            computation_duration: registry.histograms(
                "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
                "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
                ["action", "error", "metric_type"],
                milliseconds(),
            ),
            count: registry.gauge(
                "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
                "[ALPHA] Current number of controlled HPA objects.",
            ),
            desired: registry.gauges(
                "horizontal_pod_autoscaler_controller_desired_replicas",
                "[ALPHA] Current desired replica count for HPA objects.",
                ["namespace", "hpa_name"],
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use longshore_informer::{LeaderMetrics, QueueMetrics};
    use longshore_metrics::{Description, Registry, RestClient, Version, register_version};

    use super::Metrics;

    /// Families as lines: level, type, name and labels.
    fn lines(families: &[Description]) -> BTreeSet<String> {
        let line = |family: &Description| {
            let (level, _) = family.help.strip_prefix('[').unwrap().split_once(']').unwrap();
            let mut labels = family.labels.clone();
            labels.sort_unstable();
            format!("{level} {} {} {}", family.kind.as_str(), family.name, labels.join(","))
        };
        families.iter().map(|family| line(family).trim_end().to_owned()).collect()
    }

    /// The file has the families that upstream documents for kube-controller-manager, as far as what they
    /// measure is here; all that are stable or beta are.
    #[test]
    fn metrics_of_controllers_are_those_that_upstream_documents() {
        let registry = Registry::default();
        let version = Version { kubernetes: "v1.36.1", commit: "", platform: "" };
        register_version(&registry, version);
        let _metrics = (
            Metrics::new(&registry),
            QueueMetrics::new(&registry),
            LeaderMetrics::new(&registry),
            RestClient::new(&registry),
        );
        let documented: BTreeSet<String> = include_str!("testdata/metrics.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect();
        let served = lines(&registry.families());
        let missing: Vec<_> = documented.difference(&served).collect();
        let unknown: Vec<_> = served.difference(&documented).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "{missing:#?} {unknown:#?}");
    }
}

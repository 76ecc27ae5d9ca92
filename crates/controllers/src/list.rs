//! The list of controllers, in the order in which they start.

use crate::Controller;

/// An entry: names, and the module's `run`.
macro_rules! controllers {
    ($($name:literal $alias:literal $account:literal $by_default:literal $run:path;)*) => {
        /// All controllers. Each line is one: its name, its older name, its service account, whether it
        /// runs by default, and `async fn run(context: Context)` of its module.
        pub fn all() -> Vec<Controller> {
            vec![$(Controller {
                name: $name,
                alias: $alias,
                account: $account,
                by_default: $by_default,
                run: |context| Box::pin($run(context)),
            },)*]
        }
    };
}

/// The feature gate that a controller needs, of those that can be set.
pub(crate) fn gate(controller: &str) -> Option<&'static str> {
    GATES.iter().find(|(name, _)| *name == controller).map(|(_, gate)| *gate)
}

/// Controllers and the feature gates that they need.
pub(crate) const GATES: [(&str, &str); 3] = [
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", "ClusterTrustBundle"),
    ("device-taint-eviction-controller", "DRADeviceTaints"),
    ("podcertificaterequest-cleaner-controller", "PodCertificateRequest"),
];

/// Upstream's controllers that run nothing here, whether by `*` or by name: their names, older names, and
/// why.
pub(crate) const WITHOUT_WORK: [(&str, &str, &str); 8] = [
    ("service-lb-controller", "service", CLOUD),
    ("node-route-controller", "route", CLOUD),
    ("cloud-node-lifecycle-controller", "cloud-node-lifecycle", CLOUD),
    (
        "validatingadmissionpolicy-status-controller",
        "",
        "the apiserver checks the types of policies",
    ),
    ("podgroup-protection-controller", "", "its API, of the gate GenericWorkload, is not served"),
    (
        "resourcepoolstatusrequest-controller",
        "",
        "its API, of the gate DRAResourcePoolStatus, is not served",
    ),
    (
        "storageversion-garbage-collector-controller",
        "storage-version-gc",
        "its API, of the gate StorageVersionAPI, is not served",
    ),
    (
        "storage-version-migrator-controller",
        "svm",
        "its API, of the gate StorageVersionMigrator, is not served",
    ),
];
const CLOUD: &str = "it is that of a cloud provider";

controllers! {
    "replicationcontroller-controller" "replicationcontroller" "replication-controller" true crate::replicaset::run_replication_controllers;
    "replicaset-controller" "replicaset" "replicaset-controller" true crate::replicaset::run;
    "deployment-controller" "deployment" "deployment-controller" true crate::deployment::run;
    "daemonset-controller" "daemonset" "daemon-set-controller" true crate::daemonset::run;
    "statefulset-controller" "statefulset" "statefulset-controller" true crate::statefulset::run;
    "cronjob-controller" "cronjob" "cronjob-controller" true crate::cronjob::run;
    "job-controller" "job" "job-controller" true crate::job::run;
    "serviceaccount-controller" "serviceaccount" "service-account-controller" true crate::serviceaccounts::default_account::run;
    "serviceaccount-token-controller" "serviceaccount-token" "" true crate::serviceaccounts::tokens::run;
    "root-ca-certificate-publisher-controller" "root-ca-cert-publisher" "root-ca-cert-publisher" true crate::serviceaccounts::root_ca::run;
    "endpointslice-controller" "endpointslice" "endpointslice-controller" true crate::endpointslice::run;
    "endpoints-controller" "endpoint" "endpoint-controller" true crate::endpoints::run;
    "endpointslice-mirroring-controller" "endpointslicemirroring" "endpointslicemirroring-controller" true crate::endpointslicemirroring::run;
    "namespace-controller" "namespace" "namespace-controller" true crate::namespace::run;
    "garbage-collector-controller" "garbagecollector" "generic-garbage-collector" true crate::garbagecollector::run;
    "node-ipam-controller" "nodeipam" "node-controller" true crate::nodeipam::run;
    "node-lifecycle-controller" "nodelifecycle" "node-controller" true crate::nodelifecycle::run;
    "taint-eviction-controller" "taint-eviction-controller" "node-controller" true crate::tainteviction::run;
    "pod-garbage-collector-controller" "podgc" "pod-garbage-collector" true crate::podgc::run;
    "ttl-controller" "ttl" "ttl-controller" true crate::ttl::run;
    "ttl-after-finished-controller" "ttl-after-finished" "ttl-after-finished-controller" true crate::ttlafterfinished::run;
    "resourcequota-controller" "resourcequota" "resourcequota-controller" true crate::resourcequota::run;
    "disruption-controller" "disruption" "disruption-controller" true crate::disruption::run;
    "horizontal-pod-autoscaler-controller" "horizontalpodautoscaling" "horizontal-pod-autoscaler" true crate::podautoscaler::run;
    "certificatesigningrequest-signing-controller" "csrsigning" "certificate-controller" true crate::certificates::signing::run;
    "certificatesigningrequest-approving-controller" "csrapproving" "certificate-controller" true crate::certificates::approving::run;
    "certificatesigningrequest-cleaner-controller" "csrcleaner" "certificate-controller" true crate::csrcleaner::run;
    "podcertificaterequest-cleaner-controller" "podcertificaterequest-cleaner-controller" "podcertificaterequestcleaner" true crate::podcertificatecleaner::run;
    "bootstrap-signer-controller" "bootstrapsigner" "bootstrap-signer" false crate::bootstrap::signer::run;
    "token-cleaner-controller" "tokencleaner" "token-cleaner" false crate::bootstrap::token_cleaner::run;
    "clusterrole-aggregation-controller" "clusterrole-aggregation" "clusterrole-aggregation-controller" true crate::clusterroleaggregation::run;
    "legacy-serviceaccount-token-cleaner-controller" "legacy-service-account-token-cleaner" "legacy-service-account-token-cleaner" true crate::serviceaccounts::legacy_tokens::run;
    "kube-apiserver-serving-clustertrustbundle-publisher-controller" "kube-apiserver-serving-clustertrustbundle-publisher-controller" "kube-apiserver-serving-clustertrustbundle-publisher" true crate::clustertrustbundle::run;
    "persistentvolume-binder-controller" "persistentvolume-binder" "persistent-volume-binder" true crate::volumes::run_binder;
    "persistentvolume-attach-detach-controller" "attachdetach" "attachdetach-controller" true crate::volumes::run_attach_detach;
    "persistentvolume-expander-controller" "persistentvolume-expander" "expand-controller" true crate::volumes::run_expander;
    "persistentvolumeclaim-protection-controller" "pvc-protection" "pvc-protection-controller" true crate::volumes::run_claim_protection;
    "persistentvolume-protection-controller" "pv-protection" "pv-protection-controller" true crate::volumes::run_volume_protection;
    "volumeattributesclass-protection-controller" "volumeattributesclass-protection-controller" "volumeattributesclass-protection-controller" true crate::volumes::run_attributes_protection;
    "ephemeral-volume-controller" "ephemeral-volume" "ephemeral-volume-controller" true crate::volumes::run_ephemeral;
    "selinux-warning-controller" "selinux-warning-controller" "selinux-warning-controller" false crate::volumes::run_selinux_warnings;
    "resourceclaim-controller" "resource-claim-controller" "resource-claim-controller" true crate::resourceclaim::run;
    "device-taint-eviction-controller" "device-taint-eviction-controller" "device-taint-eviction-controller" true crate::devicetainteviction::run;
    "service-cidr-controller" "service-cidr-controller" "service-cidrs-controller" true crate::servicecidrs::run;
    "hostpath-provisioner" "hostpath-provisioner" "persistent-volume-binder" true crate::hostpathprovisioner::run;
}

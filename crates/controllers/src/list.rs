//! The list of controllers, in the order in which they start.

use crate::Controller;

/// An entry: names, and the module's `run`.
macro_rules! controllers {
    ($($name:literal $alias:literal $by_default:literal $run:path;)*) => {
        /// All controllers. Each line is one: its name, its older name, whether it runs by default,
        /// and `async fn run(context: Context)` of its module.
        pub fn all() -> Vec<Controller> {
            vec![$(Controller {
                name: $name,
                alias: $alias,
                by_default: $by_default,
                run: |context| Box::pin($run(context)),
            },)*]
        }
    };
}

controllers! {
    "replicationcontroller-controller" "replicationcontroller" true crate::replicaset::run_replication_controllers;
    "replicaset-controller" "replicaset" true crate::replicaset::run;
    "deployment-controller" "deployment" true crate::deployment::run;
    "daemonset-controller" "daemonset" true crate::daemonset::run;
    "statefulset-controller" "statefulset" true crate::statefulset::run;
    "cronjob-controller" "cronjob" true crate::cronjob::run;
    "job-controller" "job" true crate::job::run;
    "serviceaccount-controller" "serviceaccount" true crate::serviceaccounts::default_account::run;
    "serviceaccount-token-controller" "serviceaccount-token" true crate::serviceaccounts::tokens::run;
    "root-ca-certificate-publisher-controller" "root-ca-cert-publisher" true crate::serviceaccounts::root_ca::run;
    "endpointslice-controller" "endpointslice" true crate::endpointslice::run;
    "endpoints-controller" "endpoint" true crate::endpoints::run;
    "endpointslice-mirroring-controller" "endpointslicemirroring" true crate::endpointslicemirroring::run;
    "namespace-controller" "namespace" true crate::namespace::run;
    "garbage-collector-controller" "garbagecollector" true crate::garbagecollector::run;
    "node-ipam-controller" "nodeipam" true crate::nodeipam::run;
    "node-lifecycle-controller" "nodelifecycle" true crate::nodelifecycle::run;
    "taint-eviction-controller" "taint-eviction-controller" true crate::tainteviction::run;
    "pod-garbage-collector-controller" "podgc" true crate::podgc::run;
    "ttl-controller" "ttl" true crate::ttl::run;
    "ttl-after-finished-controller" "ttl-after-finished" true crate::ttlafterfinished::run;
    "resourcequota-controller" "resourcequota" true crate::resourcequota::run;
    "disruption-controller" "disruption" true crate::disruption::run;
    "horizontal-pod-autoscaler-controller" "horizontalpodautoscaling" true crate::podautoscaler::run;
    "certificatesigningrequest-signing-controller" "csrsigning" true crate::certificates::signing::run;
    "certificatesigningrequest-approving-controller" "csrapproving" true crate::certificates::approving::run;
    "certificatesigningrequest-cleaner-controller" "csrcleaner" true crate::csrcleaner::run;
    "bootstrap-signer-controller" "bootstrapsigner" false crate::bootstrap::signer::run;
    "token-cleaner-controller" "tokencleaner" false crate::bootstrap::token_cleaner::run;
    "clusterrole-aggregation-controller" "clusterrole-aggregation" true crate::clusterroleaggregation::run;
    "legacy-serviceaccount-token-cleaner-controller" "legacy-service-account-token-cleaner" true crate::serviceaccounts::legacy_tokens::run;
    "kube-apiserver-serving-clustertrustbundle-publisher-controller" "kube-apiserver-serving-clustertrustbundle-publisher-controller" true crate::clustertrustbundle::run;
    "persistentvolume-binder-controller" "persistentvolume-binder" true crate::volumes::run_binder;
    "persistentvolume-attach-detach-controller" "attachdetach" true crate::volumes::run_attach_detach;
    "persistentvolume-expander-controller" "persistentvolume-expander" true crate::volumes::run_expander;
    "persistentvolumeclaim-protection-controller" "pvc-protection" true crate::volumes::run_claim_protection;
    "persistentvolume-protection-controller" "pv-protection" true crate::volumes::run_volume_protection;
    "volumeattributesclass-protection-controller" "volumeattributesclass-protection-controller" true crate::volumes::run_attributes_protection;
    "ephemeral-volume-controller" "ephemeral-volume" true crate::volumes::run_ephemeral;
    "resourceclaim-controller" "resourceclaim-controller" true crate::resourceclaim::run;
    "device-taint-eviction-controller" "device-taint-eviction-controller" true crate::devicetainteviction::run;
    "service-cidr-controller" "service-cidr-controller" true crate::servicecidrs::run;
    "hostpath-provisioner" "hostpath-provisioner" true crate::hostpathprovisioner::run;
}

//! Pods and settings for the tests of this crate.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use longshore_metrics::Registry;
use longshore_resources::cgroups::{Cgroups, Driver, Policy};
use longshore_resources::swap::Swap;
use serde_json::{Value, json};

use super::{Ids, Pulls, Settings, Verification};

/// A pod `p` in namespace `ns` with UID `uid`, with these fields in its spec.
pub(super) fn pod(spec: Value) -> Pod {
    let mut whole = json!({"containers": []});
    spec.as_object().unwrap().iter().for_each(|(key, value)| whole[key] = value.clone());
    let metadata = json!({"name": "p", "namespace": "ns", "uid": "uid"});
    serde_json::from_value(json!({"metadata": metadata, "spec": whole})).unwrap()
}

/// Plain settings of a node with its files in that directory.
pub(super) fn settings(dir: &Path) -> Settings {
    Settings {
        root_dir: dir.to_owned(),
        pod_logs_dir: dir.join("logs"),
        cluster_dns: Vec::new(),
        cluster_domain: "cluster.local".to_owned(),
        resolv_conf: None,
        node_name: "n".to_owned(),
        host_ips: ["192.0.2.1"].into(),
        seccomp_default: false,
        cpu_cfs_quota_period: None,
        memory_capacity: 1 << 30,
        allocatable: [].into(),
        pulls: Pulls { parallel: 1, rate: None, verification: Verification::Off },
        stop_signals: false,
        oom_kills_group: false,
        user_ids: Ids::of_node(65536, 1).unwrap(),
        swap: Swap::default(),
        memory_qos: None,
        // Without QoS cgroups, the setup does not wait for anything.
        cgroups: futures::executor::block_on(Cgroups::setup(
            Driver::Cgroupfs,
            "/",
            policy(),
            &Registry::default(),
        ))
        .unwrap(),
    }
}

fn policy() -> Policy {
    Policy {
        per_qos: false,
        cfs_quota_period: None,
        pod_pids: None,
        protection: None,
        memory_reserve: None,
        exclusive_cpus: false,
    }
}

//! Validation of CPU, memory and topology manager settings, independent of the machine.

use longshore_topology::{TopologyOptions, cpu};

use super::{FeatureGates, GoDuration, KubeletConfiguration};

/// The errors, each with its field.
pub(super) fn faults(s: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let mut faults = Vec::new();
    let options = &s.cpu_manager_policy_options;
    match s.cpu_manager_policy.as_str() {
        "static" => match cpu::Options::parse(options, |gate| gates.enabled(gate)) {
            Ok(options) if options.align_by_socket && single_node(s) => faults.push(
                "cpuManagerPolicyOptions: align-by-socket is incompatible with the \
                 topologyManagerPolicy single-numa-node"
                    .to_owned(),
            ),
            Ok(_) => {}
            Err(error) => faults.push(format!("cpuManagerPolicyOptions: {error}")),
        },
        "none" if options.is_empty() => {}
        "none" => faults.push("cpuManagerPolicyOptions: the policy none has no options".to_owned()),
        other => faults.push(format!("cpuManagerPolicy: {other:?} must be one of none, static")),
    }
    if !matches!(s.memory_manager_policy.as_str(), "None" | "Static") {
        let policy = &s.memory_manager_policy;
        faults.push(format!("memoryManagerPolicy: {policy:?} must be one of None, Static"));
    }
    if s.topology_manager_policy != "none"
        && let Err(error) = TopologyOptions::parse(&s.topology_manager_policy_options)
    {
        faults.push(format!("topologyManagerPolicyOptions: {error}"));
    }
    if s.cpu_manager_reconcile_period <= GoDuration::ZERO {
        let period = s.cpu_manager_reconcile_period;
        faults.push(format!("cpuManagerReconcilePeriod: {period} must be greater than zero"));
    }
    faults
}

fn single_node(s: &KubeletConfiguration) -> bool {
    s.topology_manager_policy == "single-numa-node"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_manager_errors_name_the_field() {
        type Change = fn(&mut KubeletConfiguration);
        let option = |s: &mut KubeletConfiguration, name: &str| {
            s.cpu_manager_policy_options.insert(name.to_owned(), "true".to_owned());
        };
        let found = |change: &dyn Fn(&mut KubeletConfiguration)| {
            let mut settings = KubeletConfiguration::default();
            change(&mut settings);
            faults(&settings, &FeatureGates::default()).join("; ")
        };
        assert_eq!(found(&|_| ()), "");
        let plain: [(Change, &str); 4] = [
            (|s| s.cpu_manager_policy = "Static".to_owned(), "cpuManagerPolicy: \"Static\""),
            (|s| s.memory_manager_policy = "static".to_owned(), "memoryManagerPolicy: \"static\""),
            (
                |s| {
                    s.topology_manager_policy = "restricted".to_owned();
                    let (name, value) = ("max-allowable-numa-nodes", "4");
                    s.topology_manager_policy_options.insert(name.to_owned(), value.to_owned());
                },
                "topologyManagerPolicyOptions: option \"max-allowable-numa-nodes\" must not be less",
            ),
            (
                |s| s.cpu_manager_reconcile_period = GoDuration::secs(-1),
                "cpuManagerReconcilePeriod: -1s must be greater",
            ),
        ];
        for (change, expected) in plain {
            let found = found(&change);
            assert!(found.starts_with(expected), "{found}");
        }
        let with = |policy: &'static str, name: &'static str| {
            found(&move |s| {
                s.cpu_manager_policy = policy.to_owned();
                option(s, name);
            })
        };
        assert_eq!(with("static", "full-pcpus-only"), "");
        assert!(with("none", "full-pcpus-only").starts_with("cpuManagerPolicyOptions: the policy"));
        assert!(with("static", "align-by-socket").contains("CPUManagerPolicyAlphaOptions"));
        assert!(with("static", "quick").starts_with("cpuManagerPolicyOptions: unknown option"));
    }
}

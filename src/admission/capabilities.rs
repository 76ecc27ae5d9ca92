//! What this node supports, determined once at the start.

use std::path::Path;

use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_gates::{DeclaredFeatures, NODE_DECLARED_FEATURES};
use longshore_machine::Machine;
use longshore_pod::admission::{Error, NodeCapabilities, Sysctls};

const APP_ARMOR: &str = "/sys/kernel/security/apparmor";
const APP_ARMOR_ENABLED: &str = "/sys/module/apparmor/parameters/enabled";

/// What the node supports. Features that the runtime does not report are not supported.
pub async fn capabilities(config: &Config, runtime: &Runtime) -> Result<NodeCapabilities, Error> {
    let features = runtime.status(false).await.ok().and_then(|status| status.features);
    let (groups_policy, host_network_in_user_namespace) = features.map_or((false, false), |own| {
        (own.supplemental_groups_policy, own.user_namespaces_host_network)
    });
    let declares = config.gates.enabled(NODE_DECLARED_FEATURES);
    Ok(NodeCapabilities {
        sysctls: Sysctls::new(
            &config.kubelet.allowed_unsafe_sysctls,
            kernel(&Machine::read().kernel),
        )?,
        app_armor: has_app_armor(),
        supplemental_groups_policy: groups_policy,
        pod_level_resources: config.gates.enabled("PodLevelResources"),
        toleration_comparisons: config.gates.enabled("TaintTolerationComparisonOperators"),
        declared_features: declares
            .then(|| DeclaredFeatures::of_node(&config.gates, host_network_in_user_namespace)),
    })
}

fn has_app_armor() -> bool {
    let enabled = std::fs::read_to_string(APP_ARMOR_ENABLED).unwrap_or_default();
    Path::new(APP_ARMOR).exists() && enabled.starts_with('Y')
}

/// The major and minor version in a kernel's release.
fn kernel(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_is_parsed() {
        for (release, expected) in [
            ("6.18.5", (6, 18)),
            ("5.15.0-1051-aws", (5, 15)),
            ("6.1-rc3+", (6, 1)),
            ("4", (4, 0)),
            ("", (0, 0)),
        ] {
            assert_eq!(kernel(release), expected, "{release}");
        }
    }
}

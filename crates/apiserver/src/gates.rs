//! Feature gates: crate `gates` has them; which of them the apiserver reads is said here.

use longshore_gates::{FeatureGates, Missing, NODE_DECLARED_FEATURES};

/// stdout or stderr of a container may be requested alone.
pub(crate) const SPLIT_LOG_STREAMS: &str = "PodLogsQuerySplitStreams";

/// Pods have certificates: PodCertificateRequests can be served.
pub(crate) const POD_CERTIFICATES: &str = "PodCertificateRequest";

/// The controller that publishes trust bundles has a role. The bundles are always served.
const TRUST_BUNDLES: &str = "ClusterTrustBundle";

/// Those that are read.
const READ: [&str; 4] =
    [NODE_DECLARED_FEATURES, POD_CERTIFICATES, SPLIT_LOG_STREAMS, TRUST_BUNDLES];

const MISSING: [Missing; 2] = [
    (
        "AllowServiceExternalIPs",
        false,
        "it is a gate of the node's; the apiserver refuses external addresses of services with \
         --enable-admission-plugins=DenyServiceExternalIPs",
    ),
    (
        "ManifestBasedAdmissionControlConfig",
        true,
        "policies and webhooks are read from the API alone",
    ),
];

/// The value of `--feature-gates`.
pub(crate) fn parse(text: &str) -> Result<FeatureGates, String> {
    let gates: FeatureGates = text.parse()?;
    match gates.unprotected(&MISSING) {
        missing if missing.is_empty() => Ok(gates),
        missing => Err(missing.join(", ")),
    }
}

/// Warns of gates that are set to what is not in force.
pub(crate) fn warn(gates: &FeatureGates) {
    for (name, value) in gates.changed().filter(|(name, _)| !READ.contains(name)) {
        tracing::warn!("--feature-gates: {name}={value} has no effect");
    }
}

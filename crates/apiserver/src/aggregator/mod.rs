//! Aggregation of other API servers.

use crate::pki::Identity;

/// How other servers are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregationConfig {
    /// Call webhooks and aggregated servers by endpoints of their services only, never by the service's
    /// own address.
    pub endpoints_only: bool,
    /// The client certificate by which aggregated servers know this one; without it, none is shown.
    pub proxy_client: Option<Identity>,
}

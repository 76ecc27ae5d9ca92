//! Flags of calls to services: webhooks and aggregated servers.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::AggregationConfig;
use crate::pki::Identity;

/// Flags of calls to services.
#[derive(Debug, Args)]
#[command(next_help_heading = "Aggregation")]
pub struct AggregationArgs {
    /// Call webhooks and aggregated servers by endpoints of their services only
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_aggregator_routing: bool,
    /// The client certificate by which aggregated servers know this one
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

impl AggregationArgs {
    pub(super) fn config(&self) -> AggregationConfig {
        let files = self.proxy_client_cert_file.clone().zip(self.proxy_client_key_file.clone());
        AggregationConfig {
            endpoints_only: self.enable_aggregator_routing,
            proxy_client: files.map(|(certificate, key)| Identity { certificate, key }),
        }
    }
}

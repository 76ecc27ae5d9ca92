//! How long all rules take as text alone, without kernel and apiserver: a phase of pure work.
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use longshore_proxy::Family;
use longshore_proxy::config::{KubeProxyConfiguration, Machine};
use longshore_proxy::model::{Node, Tracker};
use longshore_proxy::render::{Existing, Full};
use serde_json::json;

use super::world::{addresses, slice};
use crate::statistics::median;

/// Times that all is rendered.
const ROUNDS: usize = 5;

/// Seconds to render so many services with so many endpoints each, the median.
pub(super) fn seconds(services: usize, endpoints: usize) -> Result<f64> {
    let mut tracker = tracker(services, endpoints)?;
    tracker.take_changes();
    let settings = KubeProxyConfiguration::default().settings(Family::V4, &Machine::default());
    let nothing = Existing::read([]);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let bytes: usize =
            Full::new(tracker.state(), &settings, &nothing).map(|text| text.len()).sum();
        rounds.push(began.elapsed().as_secs_f64());
        ensure!(bytes > services * endpoints, "only {bytes} bytes of rules");
    }
    Ok(median(rounds))
}

fn tracker(services: usize, endpoints: usize) -> Result<Tracker> {
    let node = Node { name: "bench".to_owned(), zone: None };
    let mut tracker = Tracker::new(Family::V4, node, Timestamp::now());
    for number in 0..services {
        let name = format!("service-{number}");
        let ip = Ipv4Addr::from_bits(0x0a60_0000 + u32::try_from(number)?);
        let service = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
                "ipFamilies": ["IPv4"], "ports": [{"name": "p", "port": 80, "protocol": "TCP"}]},
        });
        tracker.apply_service(&serde_json::from_value(service)?);
        let mut slice = slice(&name, &addresses(number, endpoints));
        slice["metadata"]["namespace"] = "default".into();
        tracker.apply_slice(&serde_json::from_value(slice).context("a slice")?);
    }
    Ok(tracker)
}

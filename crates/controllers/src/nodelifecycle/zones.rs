//! PURE: how quickly nodes of a zone are tainted, by how many of it are unhealthy.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// The zone of a node, with its region.
pub(super) fn zone_of(node: &Node) -> String {
    let label = |label: &str| {
        node.metadata.labels.as_ref().and_then(|labels| labels.get(label)).map(String::as_str)
    };
    format!("{}:\u{0}:{}", label(REGION).unwrap_or_default(), label(ZONE).unwrap_or_default())
}

/// Whether the node does not count for its zone.
pub(super) fn is_excluded(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
}

/// How a zone is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZoneState {
    Normal,
    /// Many of its nodes are unhealthy.
    Partial,
    /// All of its nodes are unhealthy.
    Full,
}

/// The limits that decide on a zone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Nodes in a second.
    pub(super) rate: f64,
    /// Nodes in a second, in a large zone with many unhealthy ones.
    pub(super) secondary_rate: f64,
    /// The part of unhealthy nodes that are many.
    pub(super) threshold: f64,
    /// A zone with more nodes is large.
    pub(super) large: usize,
}

/// Nodes of a zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Zone {
    pub(super) ready: usize,
    pub(super) unhealthy: usize,
}

impl Zone {
    pub(super) fn state(self, limits: Limits) -> ZoneState {
        let size = self.ready + self.unhealthy;
        if self.ready == 0 && self.unhealthy > 0 {
            ZoneState::Full
        } else if self.unhealthy > 2 && self.unhealthy as f64 / size as f64 >= limits.threshold {
            ZoneState::Partial
        } else {
            ZoneState::Normal
        }
    }
}

/// How many nodes may be tainted in a second, by zone; `None`: all zones are down, which is rather the
/// fault of this side of the network, so no node is.
pub(super) fn rates(
    zones: &BTreeMap<String, Zone>,
    limits: Limits,
) -> Option<BTreeMap<String, f64>> {
    if !zones.is_empty() && zones.values().all(|zone| zone.state(limits) == ZoneState::Full) {
        return None;
    }
    let rate = |zone: &Zone| match zone.state(limits) {
        ZoneState::Normal | ZoneState::Full => limits.rate,
        ZoneState::Partial if zone.ready + zone.unhealthy > limits.large => limits.secondary_rate,
        ZoneState::Partial => 0.0,
    };
    Some(zones.iter().map(|(name, zone)| (name.clone(), rate(zone))).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Limits, Zone, rates};

    #[test]
    fn node_eviction_rate_depends_on_the_zone() {
        let limits = Limits { rate: 0.1, secondary_rate: 0.01, threshold: 0.55, large: 50 };
        let rate = |ready, unhealthy| {
            // another zone is healthy
            let zones = BTreeMap::from([
                ("a".to_owned(), Zone { ready, unhealthy }),
                ("b".to_owned(), Zone { ready: 1, unhealthy: 0 }),
            ]);
            rates(&zones, limits).unwrap()["a"]
        };
        for (ready, unhealthy, expected) in [
            (10, 0, 0.1),
            (1, 2, 0.1),
            (9, 10, 0.1),
            (2, 3, 0.0),
            (20, 30, 0.0),
            (20, 31, 0.01),
            (0, 3, 0.1),
            (0, 100, 0.1),
        ] {
            assert_eq!(rate(ready, unhealthy), expected, "{ready} ready, {unhealthy} unhealthy");
        }
        let down = Zone { ready: 0, unhealthy: 1 };
        let all = BTreeMap::from([("a".to_owned(), down), ("b".to_owned(), down)]);
        assert_eq!(rates(&all, limits), None);
        assert_eq!(rates(&BTreeMap::new(), limits), Some(BTreeMap::new()));
    }
}

//! PURE: when a node was last heard of, and what its conditions say after it was not for too long.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// The conditions that a kubelet reports.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What is known of a node's heartbeats. Its clock does not matter: that something changed does.
#[derive(Debug, Clone)]
pub(super) struct Health {
    uid: Option<String>,
    heartbeat: Option<Timestamp>,
    renewed: Option<Timestamp>,
    /// When the last change was seen.
    pub(super) seen: Instant,
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready")
}

impl Health {
    /// A node that is seen for the first time.
    pub(super) fn new(node: &Node, lease: Option<&Lease>, now: Instant) -> Self {
        Self {
            uid: node.metadata.uid.clone(),
            heartbeat: heartbeat(node),
            renewed: renewed(lease),
            seen: now,
        }
    }

    /// The UID of the node.
    pub(super) fn uid(&self) -> Option<String> {
        self.uid.clone()
    }

    /// Compares the node with what was seen last.
    pub(super) fn observe(&mut self, node: &Node, lease: Option<&Lease>, now: Instant) {
        if self.uid != node.metadata.uid {
            *self = Self::new(node, lease, now);
            return;
        }
        let (heartbeat, renewed) = (heartbeat(node), renewed(lease));
        if heartbeat != self.heartbeat || renewed > self.renewed {
            self.seen = now;
        }
        self.heartbeat = heartbeat;
        self.renewed = renewed.max(self.renewed);
    }

    /// Whether nothing was heard of the node for too long.
    pub(super) fn is_lost(
        &self,
        node: &Node,
        now: Instant,
        grace: Duration,
        startup: Duration,
    ) -> bool {
        let grace = if ready(node).is_some() { grace } else { startup };
        now.saturating_duration_since(self.seen) > grace
    }
}

fn heartbeat(node: &Node) -> Option<Timestamp> {
    let ready = ready(node)?;
    // What this controller wrote is no sign of the node.
    ready.last_heartbeat_time.as_ref().map(|time| time.0)
}

fn renewed(lease: Option<&Lease>) -> Option<Timestamp> {
    lease?.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

/// The conditions of a node that nothing was heard of; `None`: they say so already.
pub(super) fn lost_conditions(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let before = node.status.as_ref().and_then(|status| status.conditions.clone());
    let mut conditions = before.unwrap_or_default();
    let mut is_changed = false;
    for type_ in CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            None => {
                is_changed = true;
                conditions.push(NodeCondition {
                    type_: type_.to_owned(),
                    status: "Unknown".into(),
                    reason: Some("NodeStatusNeverUpdated".into()),
                    message: Some("Kubelet never posted node status.".into()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
            }
            Some(condition) if condition.status != "Unknown" => {
                is_changed = true;
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(Time(now));
            }
            Some(_) => {}
        }
    }
    is_changed.then_some(conditions)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;
    use tokio::time::Instant;

    use super::{Health, lost_conditions};

    fn node(heartbeat: Option<&str>) -> Node {
        let conditions = match heartbeat {
            Some(time) => json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]),
            None => json!([]),
        };
        serde_json::from_value(json!({"metadata": {"name": "n", "uid": "u"},
            "status": {"conditions": conditions}}))
        .unwrap()
    }

    fn lease(renewed: &str) -> Lease {
        serde_json::from_value(json!({"spec": {"renewTime": renewed}})).unwrap()
    }

    #[test]
    fn node_is_lost_when_neither_status_nor_lease_change() {
        let (grace, startup) = (Duration::from_secs(50), Duration::from_secs(60));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let silent = node(Some("2026-01-01T00:00:00Z"));
        let mut health = Health::new(&silent, None, start);
        health.observe(&silent, None, at(40));
        assert!(!health.is_lost(&silent, at(50), grace, startup));
        assert!(health.is_lost(&silent, at(51), grace, startup));
        // a renewed lease is enough, and so is a heartbeat
        health.observe(&silent, Some(&lease("2026-01-01T00:00:30.000000Z")), at(51));
        assert!(!health.is_lost(&silent, at(100), grace, startup));
        health.observe(&silent, Some(&lease("2026-01-01T00:00:30.000000Z")), at(100));
        assert!(health.is_lost(&silent, at(102), grace, startup));
        health.observe(&node(Some("2026-01-01T00:01:00Z")), None, at(102));
        assert!(!health.is_lost(&silent, at(150), grace, startup));
        // one that never reported has longer
        let new = node(None);
        let health = Health::new(&new, None, start);
        assert!(!health.is_lost(&new, at(60), grace, startup));
        assert!(health.is_lost(&new, at(61), grace, startup));
    }

    #[test]
    fn node_conditions_become_unknown() {
        let now = Timestamp::UNIX_EPOCH;
        let lost = lost_conditions(&node(Some("2026-01-01T00:00:00Z")), now).unwrap();
        let reasons: Vec<_> = lost
            .iter()
            .map(|condition| {
                assert_eq!(condition.status, "Unknown");
                (condition.type_.as_str(), condition.reason.as_deref().unwrap())
            })
            .collect();
        assert_eq!(
            reasons,
            [
                ("Ready", "NodeStatusUnknown"),
                ("MemoryPressure", "NodeStatusNeverUpdated"),
                ("DiskPressure", "NodeStatusNeverUpdated"),
                ("PIDPressure", "NodeStatusNeverUpdated"),
            ]
        );
        let mut again = node(None);
        again.status.as_mut().unwrap().conditions = Some(lost);
        assert_eq!(lost_conditions(&again, now), None);
    }
}

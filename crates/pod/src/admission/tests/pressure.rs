use serde_json::json;

use super::super::*;
use super::{decide_on, made_static, node_with, pod, with_priority, with_requests};

#[test]
fn admission_under_node_pressure() {
    let pressure = |memory, disk, pid| NodePressure { memory, disk, pid };
    let best_effort = pod(json!({}));
    let burstable = with_requests(json!({"memory": "1Mi"}));
    let tolerating = pod(json!({"tolerations": [
        {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
    ]}));
    let critical = with_priority(pod(json!({})), 2_000_000_000);
    let manifest = made_static(pod(json!({})));
    let node = node_with(json!({}), json!([]));
    for (pressure, pod, names) in [
        (pressure(false, false, false), &best_effort, None),
        (pressure(true, false, false), &best_effort, Some("MemoryPressure")),
        (pressure(true, false, false), &burstable, None),
        (pressure(true, false, false), &tolerating, None),
        (pressure(true, false, false), &critical, None),
        (pressure(false, true, false), &burstable, Some("DiskPressure")),
        (pressure(false, true, false), &tolerating, Some("DiskPressure")),
        (pressure(false, false, true), &burstable, Some("PIDPressure")),
        (pressure(true, true, true), &burstable, Some("MemoryPressure DiskPressure PIDPressure")),
        (pressure(true, true, true), &critical, None),
        (pressure(true, true, true), &manifest, None),
    ] {
        let reported = match decide_on(pod, &node, &Ledger::default(), pressure) {
            Decision::Admit { .. } => None,
            Decision::Reject { verdict, .. } => Some((verdict.reason, verdict.message)),
        };
        let expected = names
            .map(|names| ("Evicted".to_owned(), format!("The node had condition: [{names}]. ")));
        assert_eq!(reported, expected, "{pressure:?} {:?}", pod.spec);
    }
}

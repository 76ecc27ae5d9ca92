//! PURE: taints of nodes by their conditions, and which tolerations match them.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

pub(crate) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(crate) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The taints by condition and its status.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// The status of a condition of the node.
pub(crate) fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some(found.status.as_str())
}

fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
}

fn taint(key: &str, effect: &str, added: Option<Timestamp>) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: effect.to_owned(),
        time_added: added.map(Time),
        value: None,
    }
}

/// The taints with those of effect `NoSchedule` that the conditions ask for; `None`: they are there.
pub(crate) fn no_schedule(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let by_condition = BY_CONDITION
        .iter()
        .filter(|(type_, status, _)| condition(node, type_) == Some(status))
        .map(|(_, _, key)| *key);
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let wanted: Vec<&str> = by_condition.chain(is_cordoned.then_some(UNSCHEDULABLE)).collect();
    let is_own = |taint: &&Taint| {
        taint.effect == "NoSchedule"
            && (taint.key == UNSCHEDULABLE
                || BY_CONDITION.iter().any(|(_, _, key)| *key == taint.key))
    };
    let own: Vec<&Taint> = taints(node).iter().filter(is_own).collect();
    let is_same =
        own.len() == wanted.len() && own.iter().all(|taint| wanted.contains(&taint.key.as_str()));
    if is_same {
        return None;
    }
    let mut new: Vec<Taint> = taints(node)
        .iter()
        .filter(|taint| !is_own(taint) || wanted.contains(&taint.key.as_str()))
        .cloned()
        .collect();
    for key in wanted {
        if !own.iter().any(|taint| taint.key == key) {
            new.push(taint(key, "NoSchedule", Some(now)));
        }
    }
    Some(new)
}

/// Which of the two taints of effect `NoExecute` the node has.
pub(crate) fn no_execute_of(node: &Node) -> Option<&'static str> {
    [NOT_READY, UNREACHABLE].into_iter().find(|key| {
        taints(node).iter().any(|taint| taint.key == *key && taint.effect == "NoExecute")
    })
}

/// The taints with this one of effect `NoExecute`, or none of the two; `None`: that is so already.
pub(crate) fn no_execute(node: &Node, wanted: Option<&str>, now: Timestamp) -> Option<Vec<Taint>> {
    let is_own = |taint: &Taint| {
        taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE)
    };
    let is_wanted = |taint: &Taint| Some(taint.key.as_str()) == wanted;
    let before = taints(node);
    let mut new: Vec<Taint> =
        before.iter().filter(|taint| !is_own(taint) || is_wanted(taint)).cloned().collect();
    let is_there = new.iter().any(is_own);
    match wanted {
        Some(key) if !is_there => new.push(taint(key, "NoExecute", Some(now))),
        _ if new.len() == before.len() => return None,
        _ => {}
    }
    Some(new)
}

/// The taints of effect `NoExecute`.
pub(crate) fn evicting(node: &Node) -> Vec<&Taint> {
    taints(node).iter().filter(|taint| taint.effect == "NoExecute").collect()
}

/// Whether the node has a taint of that key.
pub(crate) fn has_taint(node: &Node, key: &str) -> bool {
    taints(node).iter().any(|taint| taint.key == key)
}

/// Whether the toleration matches the taint.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_unset = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let is_effect =
        is_unset(&toleration.effect) || toleration.effect.as_ref() == Some(&taint.effect);
    let is_key = is_unset(&toleration.key) || toleration.key.as_ref() == Some(&taint.key);
    if !is_effect || !is_key {
        return false;
    }
    let value = |value: &Option<String>| value.clone().unwrap_or_default();
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => value(&toleration.value) == value(&taint.value),
        Some(operator @ ("Lt" | "Gt")) => {
            let number = |text: &Option<String>| value(text).parse::<i64>().ok();
            let (Some(own), Some(of_taint)) = (number(&toleration.value), number(&taint.value))
            else {
                return false;
            };
            if operator == "Lt" { of_taint < own } else { of_taint > own }
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Taint};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::{NOT_READY, UNREACHABLE, no_execute, no_schedule, tolerates};

    fn node(conditions: Value, taints: Value, unschedulable: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "spec": {"taints": taints, "unschedulable": unschedulable},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn keys(taints: Option<Vec<Taint>>) -> Option<Vec<String>> {
        taints.map(|taints| taints.into_iter().map(|taint| taint.key).collect())
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn node_taints_follow_conditions() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let unknown = json!([{"type": "Ready", "status": "Unknown"},
            {"type": "DiskPressure", "status": "True"}]);
        let other = json!({"key": "mine", "effect": "NoSchedule"});
        let lost = json!({"key": UNREACHABLE, "effect": "NoSchedule"});
        let no_execute = json!({"key": UNREACHABLE, "effect": "NoExecute"});
        assert_eq!(no_schedule(&node(ready.clone(), json!([]), false), NOW), None);
        assert_eq!(
            keys(no_schedule(&node(unknown.clone(), json!([other, no_execute]), false), NOW)),
            Some(vec![
                "mine".into(),
                UNREACHABLE.into(),
                UNREACHABLE.into(),
                "node.kubernetes.io/disk-pressure".into()
            ])
        );
        assert_eq!(
            keys(no_schedule(&node(ready.clone(), json!([other, lost]), false), NOW)),
            Some(vec!["mine".into()])
        );
        assert_eq!(
            keys(no_schedule(&node(ready.clone(), json!([]), true), NOW)),
            Some(vec!["node.kubernetes.io/unschedulable".into()])
        );
        // a node that has said nothing yet
        assert_eq!(no_schedule(&node(json!([]), json!([]), false), NOW), None);
    }

    #[test]
    fn node_no_execute_taints_exclude_each_other() {
        let with = |key: &str| node(json!([]), json!([{"key": key, "effect": "NoExecute"}]), false);
        let bare = node(json!([]), json!([]), false);
        assert_eq!(keys(no_execute(&bare, Some(NOT_READY), NOW)), Some(vec![NOT_READY.into()]));
        assert_eq!(no_execute(&with(NOT_READY), Some(NOT_READY), NOW), None);
        assert_eq!(
            keys(no_execute(&with(UNREACHABLE), Some(NOT_READY), NOW)),
            Some(vec![NOT_READY.into()])
        );
        assert_eq!(keys(no_execute(&with(UNREACHABLE), None, NOW)), Some(vec![]));
        assert_eq!(no_execute(&with("mine"), None, NOW), None);
    }

    #[test]
    fn taint_tolerations_match_by_key_value_and_effect() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "k", "value": "5", "effect": "NoExecute"}))
                .unwrap();
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "k", "value": "5"}), true),
            (json!({"key": "k", "value": "6"}), false),
            (json!({"key": "k", "value": "6", "operator": "Lt"}), true),
            (json!({"key": "k", "value": "4", "operator": "Gt"}), true),
            (json!({"key": "k", "value": "x", "operator": "Gt"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "odd"}), false),
        ] {
            let parsed = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&parsed, &taint), expected, "{toleration}");
        }
    }
}

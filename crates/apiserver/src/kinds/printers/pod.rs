//! The row of a pod. Its STATUS is a summary of phase, conditions
//! and every container.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age::since;
use super::or;
use crate::schema::value::{by_name, items, text};

/// Ready containers, status and restarts, gathered over a pod's containers.
struct Summary {
    reason: String,
    ready: usize,
    restarts: i64,
    /// When a container last ended before it was restarted.
    last_restart: Option<Timestamp>,
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let sidecars = items(&spec["initContainers"]).iter().filter(|c| is_sidecar(c)).count();
    let total = items(&spec["containers"]).len() + sidecars;
    let summary = summarize(pod);
    let restarts = match summary.last_restart {
        Some(time) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, since(&time.to_string().into(), now))
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        text(&pod["metadata"]["name"]).into(),
        format!("{}/{total}", summary.ready).into(),
        summary.reason.into(),
        restarts.into(),
        since(&pod["metadata"]["creationTimestamp"], now).into(),
        or(text(&status["podIPs"][0]["ip"]), "<none>"),
        or(text(&spec["nodeName"]), "<none>"),
        or(text(&status["nominatedNodeName"]), "<none>"),
        gates(pod).into(),
    ]
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn has_condition(status: &Value, kind: &str) -> bool {
    items(&status["conditions"]).iter().any(|c| c["type"] == kind && c["status"] == "True")
}

fn gates(pod: &Value) -> String {
    let gates = items(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open =
        gates.iter().filter(|g| has_condition(&pod["status"], text(&g["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}

fn summarize(pod: &Value) -> Summary {
    let status = &pod["status"];
    let phase = text(&status["phase"]);
    let mut summary =
        Summary { reason: phase.to_owned(), ready: 0, restarts: 0, last_restart: None };
    if !text(&status["reason"]).is_empty() {
        summary.reason = text(&status["reason"]).to_owned();
    }
    let gated = |c: &Value| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated";
    if items(&status["conditions"]).iter().any(gated) {
        summary.reason = "SchedulingGated".to_owned();
    }
    let sidecars = init_containers(pod, &mut summary);
    if let Some(sidecars) = sidecars {
        // once init is over, its restarts no longer count
        (summary.restarts, summary.last_restart) = sidecars;
        containers(status, &mut summary);
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        if status["reason"] == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

type Restarts = (i64, Option<Timestamp>);

/// The status of the init containers; the restarts of the sidecars among them when init is over.
fn init_containers(pod: &Value, summary: &mut Summary) -> Option<Restarts> {
    let specs = items(&pod["spec"]["initContainers"]);
    let by_name = by_name(&pod["spec"]["initContainers"]);
    let mut sidecars = (0, None);
    let mut initializing = false;
    for (i, container) in items(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
        let spec = by_name.get(text(&container["name"]));
        let sidecar = spec.is_some_and(|spec| is_sidecar(spec));
        let count = container["restartCount"].as_i64().unwrap_or(0);
        let ended = last_end(container);
        summary.restarts = summary.restarts.saturating_add(count);
        summary.last_restart = summary.last_restart.max(ended);
        if sidecar {
            sidecars = (count.saturating_add(sidecars.0), sidecars.1.max(ended));
        }
        let state = &container["state"];
        let terminated = &state["terminated"];
        if !terminated.is_null() && terminated["exitCode"].as_i64().unwrap_or(0) == 0 {
            continue;
        }
        if sidecar && container["started"] == true {
            summary.ready += usize::from(container["ready"] == true);
            continue;
        }
        let waiting = text(&state["waiting"]["reason"]);
        summary.reason = if !terminated.is_null() {
            format!("Init:{}", why_ended(terminated))
        } else if !matches!(waiting, "" | "PodInitializing") {
            format!("Init:{waiting}")
        } else {
            format!("Init:{i}/{}", specs.len())
        };
        initializing = true;
        break;
    }
    (!initializing || has_condition(&pod["status"], "Initialized")).then_some(sidecars)
}

fn containers(status: &Value, summary: &mut Summary) {
    let mut running = false;
    let mut error = None;
    for container in items(&status["containerStatuses"]).iter().rev() {
        let count = container["restartCount"].as_i64().unwrap_or(0);
        summary.restarts = summary.restarts.saturating_add(count);
        summary.last_restart = summary.last_restart.max(last_end(container));
        let state = &container["state"];
        let waiting = text(&state["waiting"]["reason"]);
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if !state["terminated"].is_null() {
            summary.reason = why_ended(&state["terminated"]);
            if state["terminated"]["exitCode"].as_i64().unwrap_or(0) != 0 {
                error = Some(summary.reason.clone());
            }
        } else if container["ready"] == true && !state["running"].is_null() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        summary.reason = match error {
            _ if running && has_condition(status, "Ready") => "Running".to_owned(),
            Some(error) => error,
            None if running => "NotReady".to_owned(),
            None => return,
        };
    }
}

fn last_end(container: &Value) -> Option<Timestamp> {
    text(&container["lastState"]["terminated"]["finishedAt"]).parse().ok()
}

fn why_ended(terminated: &Value) -> String {
    match (text(&terminated["reason"]), terminated["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// The condition of a row whose pod has ended.
pub(super) fn conditions(pod: &Value) -> Option<Value> {
    let phase = text(&pod["status"]["phase"]);
    let ended = matches!(phase, "Succeeded" | "Failed");
    ended.then(|| json!([{"type": "Completed", "status": "True", "reason": phase}]))
}

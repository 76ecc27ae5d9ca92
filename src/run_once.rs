//! `--runonce`: starts the pods of the manifests, waits until they are ready or terminated, reports, and
//! exits. There is no apiserver, no server and no node object; containers go on running.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use longshore_base::output;
use longshore_pod::spec;
use longshore_podstate::desired::Desired;
use longshore_podstate::sources::{ReportInvalid, Source};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::status::StatusWriter;

/// Timeout for reading the manifests.
const MANIFESTS: Duration = Duration::from_secs(60);
/// Timeout of the pods: ten attempts with exponential backoff from a second, as upstream's.
const PODS: Duration = Duration::from_secs((1 << 10) - 1);
/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Failed pods or manifests, by name with the reason.
    #[error("{} failed: {}", .0.len(), listed(.0))]
    Failed(BTreeMap<String, String>),
    /// It was stopped early.
    #[error("stopped before all pods had started")]
    Stopped,
}

fn listed(failures: &BTreeMap<String, String>) -> String {
    let failures = failures.iter().map(|(name, reason)| format!("{name}: {reason}"));
    failures.collect::<Vec<_>>().join("; ")
}

/// Errors of manifests, by their location.
#[derive(Clone, Default)]
pub struct ManifestErrors(Arc<Mutex<BTreeMap<String, String>>>);

impl ManifestErrors {
    /// Records errors and passes them on to `report`.
    pub fn record(&self, report: ReportInvalid) -> ReportInvalid {
        let own = self.clone();
        Arc::new(move |invalid| {
            report(invalid);
            let mut known = own.0.lock();
            known.insert(format!("manifest {}", invalid.location), invalid.reason.to_owned());
        })
    }

    /// Whether there is an error for this location.
    fn contains(&self, location: &str) -> bool {
        self.all().contains_key(&format!("manifest {location}"))
    }

    fn all(&self) -> BTreeMap<String, String> {
        self.0.lock().clone()
    }
}

/// Waits until each pod of the manifests is ready or has terminated, and reports each.
pub async fn wait(
    url: &str,
    desired: &Desired,
    status: &StatusWriter,
    manifest_errors: &ManifestErrors,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let waited = async {
        let begun = Instant::now();
        let mut reported = BTreeSet::new();
        // A URL without valid pods only has an error.
        while desired.awaits(Source::File)
            || desired.awaits(Source::Http) && !manifest_errors.contains(url)
        {
            if begun.elapsed() > MANIFESTS {
                let reason = format!("manifests could not be read within {MANIFESTS:?}");
                return BTreeMap::from([("source".to_owned(), reason)]);
            }
            sleep(POLL_INTERVAL).await;
        }
        let begun = Instant::now();
        loop {
            let mut failures = manifest_errors.all();
            let mut waiting = false;
            for pod in desired.pods() {
                let name = format!("pod {}/{}", spec::namespace(&pod), spec::name(&pod));
                let progress = progress_of(&status.latest(spec::uid(&pod)).unwrap_or_default());
                let report = match progress {
                    Progress::Done(how) => how.to_owned(),
                    Progress::Failed(reason) => {
                        failures.insert(name.clone(), reason.clone());
                        format!("failed: {reason}")
                    }
                    Progress::Waiting(reason) if begun.elapsed() > PODS => {
                        let reason = format!("not ready within {PODS:?}: {reason}");
                        failures.insert(name.clone(), reason.clone());
                        format!("failed: {reason}")
                    }
                    Progress::Waiting(_) => {
                        waiting = true;
                        continue;
                    }
                };
                if reported.insert(name.clone()) {
                    // A failure to print is not a failure of the run.
                    let _ = output::print(format_args!("{name}: {report}\n"));
                }
            }
            if !waiting {
                return failures;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    let failures = tokio::select! {
        failures = waited => failures,
        () = stop.cancelled() => return Err(Error::Stopped),
    };
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Error::Failed(failures)),
    }
}

/// Progress of a pod.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done(&'static str),
    Failed(String),
    Waiting(String),
}

fn progress_of(status: &PodStatus) -> Progress {
    let ready =
        status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    match status.phase.as_deref().unwrap_or_default() {
        "Running" if ready => Progress::Done("running and ready"),
        "Succeeded" => Progress::Done("succeeded"),
        "Failed" => Progress::Failed(reason(status)),
        _ => Progress::Waiting(reason(status)),
    }
}

/// The reason of the pod, or of its first container that is not ready.
fn reason(status: &PodStatus) -> String {
    let own: Vec<&str> =
        [&status.reason, &status.message].into_iter().flatten().map(String::as_str).collect();
    if !own.is_empty() {
        return own.join(": ");
    }
    let init = status.init_container_statuses.iter().flatten();
    let all = init.chain(status.container_statuses.iter().flatten());
    all.filter(|container| !container.ready)
        .find_map(|container| {
            container_reason(container).map(|why| format!("container {}: {why}", container.name))
        })
        .unwrap_or_else(|| "not ready".to_owned())
}

fn container_reason(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let parts = [&waiting.reason, &waiting.message];
        let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        return Some(parts.join(": "));
    }
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    Some(format!("exit code {}", ended.exit_code))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn run_once_pod_is_done_when_ready_or_terminated() {
        let waiting = |text: &str| Progress::Waiting(text.to_owned());
        for (status, expected) in [
            (json!({}), waiting("not ready")),
            (json!({"phase": "Running"}), waiting("not ready")),
            (
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
                Progress::Done("running and ready"),
            ),
            (json!({"phase": "Succeeded"}), Progress::Done("succeeded")),
            (
                json!({"phase": "Failed", "reason": "NodeAffinity", "message": "no"}),
                Progress::Failed("NodeAffinity: no".to_owned()),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": [
                    {"name": "a", "ready": true, "image": "", "imageID": "", "restartCount": 0},
                    {"name": "b", "ready": false, "image": "", "imageID": "", "restartCount": 0,
                     "state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}},
                ]}),
                waiting("container b: ErrImagePull: gone"),
            ),
            (
                json!({"phase": "Failed", "containerStatuses": [
                    {"name": "c", "ready": false, "image": "", "imageID": "", "restartCount": 0,
                     "state": {"terminated": {"exitCode": 3}}},
                ]}),
                Progress::Failed("container c: exit code 3".to_owned()),
            ),
        ] {
            let parsed = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(progress_of(&parsed), expected, "{status}");
        }
    }
}

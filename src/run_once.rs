//! `--runonce`: start what the manifests name, wait until it runs or has ended, report, and go. There
//! is no apiserver, no server and no node object in it; containers go on running after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use longshore_base::output;
use longshore_pod::spec;
use longshore_podstate::desired::Desired;
use longshore_podstate::sources::{Complain, Source};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::status::StatusWriter;

/// How long the sources may take to tell what they have.
const MANIFESTS: Duration = Duration::from_secs(60);
/// How long the pods may take: ten tries with a pause of a second that doubles, as it ever was.
const PODS: Duration = Duration::from_secs((1 << 10) - 1);
/// How often it is looked whether something has changed.
const LOOK: Duration = Duration::from_millis(100);

/// Why a run was no success.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Pods, or manifests that give none, by name with what is wrong.
    #[error("{} failed: {}", .0.len(), listed(.0))]
    Failed(BTreeMap<String, String>),
    /// It was told to stop before it knew.
    #[error("stopped before all pods had started")]
    Stopped,
}

fn listed(failures: &BTreeMap<String, String>) -> String {
    let failures = failures.iter().map(|(name, reason)| format!("{name}: {reason}"));
    failures.collect::<Vec<_>>().join("; ")
}

/// What is wrong with manifests, by where they are.
#[derive(Clone, Default)]
pub struct Complaints(Arc<Mutex<BTreeMap<String, String>>>);

impl Complaints {
    /// Pass complaints on and note them.
    pub fn note(&self, complain: Complain) -> Complain {
        let own = self.clone();
        Arc::new(move |place, reason| {
            complain(place, reason);
            let mut known = own.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(format!("manifest {place}"), reason.to_owned());
        })
    }

    /// Whether one of them is about this place.
    fn about(&self, place: &str) -> bool {
        self.all().contains_key(&format!("manifest {place}"))
    }

    fn all(&self) -> BTreeMap<String, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Wait until each pod that directory and URL name runs and is ready, or has ended, and report on
/// each.
pub async fn wait(
    url: &str,
    desired: &Desired,
    status: &StatusWriter,
    complaints: &Complaints,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let waited = async {
        let begun = Instant::now();
        let mut told = BTreeSet::new();
        // A URL that names no pods only complains.
        while desired.awaits(Source::File) || desired.awaits(Source::Http) && !complaints.about(url)
        {
            if begun.elapsed() > MANIFESTS {
                let reason = format!("manifests could not be read within {MANIFESTS:?}");
                return BTreeMap::from([("source".to_owned(), reason)]);
            }
            sleep(LOOK).await;
        }
        let begun = Instant::now();
        loop {
            let mut failures = complaints.all();
            let mut waiting = false;
            for pod in desired.pods() {
                let name = format!("pod {}/{}", spec::namespace(&pod), spec::name(&pod));
                let verdict = judge(&status.latest(spec::uid(&pod)).unwrap_or_default());
                let report = match verdict {
                    Verdict::Done(how) => how.to_owned(),
                    Verdict::Failed(reason) => {
                        failures.insert(name.clone(), reason.clone());
                        format!("failed: {reason}")
                    }
                    Verdict::Waiting(reason) if begun.elapsed() > PODS => {
                        let reason = format!("not ready within {PODS:?}: {reason}");
                        failures.insert(name.clone(), reason.clone());
                        format!("failed: {reason}")
                    }
                    Verdict::Waiting(_) => {
                        waiting = true;
                        continue;
                    }
                };
                if told.insert(name.clone()) {
                    // It is in the result, too; the pods matter more.
                    let _ = output::print(format_args!("{name}: {report}\n"));
                }
            }
            if !waiting {
                return failures;
            }
            sleep(LOOK).await;
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

/// How far a pod is.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(&'static str),
    Failed(String),
    Waiting(String),
}

fn judge(status: &PodStatus) -> Verdict {
    let ready =
        status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    match status.phase.as_deref().unwrap_or_default() {
        "Running" if ready => Verdict::Done("running and ready"),
        "Succeeded" => Verdict::Done("succeeded"),
        "Failed" => Verdict::Failed(reason(status)),
        _ => Verdict::Waiting(reason(status)),
    }
}

/// What the pod says of itself, or the first of its containers that is not ready.
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
    #![allow(clippy::expect_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_done_when_it_is_ready_or_has_ended() {
        let waiting = |text: &str| Verdict::Waiting(text.to_owned());
        for (status, expected) in [
            (json!({}), waiting("not ready")),
            (json!({"phase": "Running"}), waiting("not ready")),
            (
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
                Verdict::Done("running and ready"),
            ),
            (json!({"phase": "Succeeded"}), Verdict::Done("succeeded")),
            (
                json!({"phase": "Failed", "reason": "NodeAffinity", "message": "no"}),
                Verdict::Failed("NodeAffinity: no".to_owned()),
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
                Verdict::Failed("container c: exit code 3".to_owned()),
            ),
        ] {
            let parsed = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(judge(&parsed), expected, "{status}");
        }
    }
}

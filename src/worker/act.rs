//! Carrying out a plan: the only place where a pod that should run changes anything.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::observed::{self, ObservedPod};
use longshore_pod::plan::{Plan, SandboxStep, usable_sandbox};
use longshore_pod::spec;
use tracing::debug;

use super::Tools;
use crate::runtime::{Error, StartError, describe};
use crate::volumes::PodMounts;

/// Instances of one container that are kept: the newest, and the one before for its log.
const KEPT_RUNS: usize = 2;
/// What is left of a sandbox that died has nobody to say goodbye to.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// What came of a plan.
#[derive(Default)]
pub(super) struct Acted {
    /// Containers that were started.
    pub(super) started: Vec<String>,
    /// Containers that were not, and why.
    pub(super) not_started: Vec<(String, StartError)>,
    /// What stopped the plan as a whole: reason and message of its event.
    pub(super) failed: Option<(&'static str, String)>,
    /// The pod's volumes, once they are mounted.
    pub(super) mounts: Option<Arc<PodMounts>>,
}

/// Carry out a plan. May be dropped at any point: the next plan starts from what is seen then.
pub(super) async fn act(
    tools: Arc<Tools>,
    pod: Arc<Pod>,
    observed: Arc<ObservedPod>,
    plan: Plan,
    mounts: Option<Arc<PodMounts>>,
) -> Acted {
    let mut acted = Acted { mounts, ..Acted::default() };
    if let Err(failed) = steps(&tools, &pod, &observed, plan, &mut acted).await {
        debug!(pod = describe(&pod), reason = failed.0, error = failed.1, "step failed");
        acted.failed = Some(failed);
    }
    acted
}

async fn steps(
    tools: &Tools,
    pod: &Pod,
    observed: &ObservedPod,
    plan: Plan,
    acted: &mut Acted,
) -> Result<(), (&'static str, String)> {
    let killing = |error: Error| ("FailedKillPod", format!("error killing pod: {error}"));
    match plan.sandbox {
        SandboxStep::Keep => {}
        SandboxStep::Stop => {
            return super::end::stop_all(tools, pod, observed, super::end::grace(pod))
                .await
                .map_err(killing);
        }
        SandboxStep::Create { attempt } => {
            if !observed.is_gone() {
                tools.announcer.pod(
                    pod,
                    false,
                    "SandboxChanged",
                    "Pod sandbox changed, it will be killed and re-created.",
                );
                super::end::stop_all(tools, pod, observed, LEFTOVER_GRACE)
                    .await
                    .map_err(killing)?;
            }
            let failed = |error: Error| {
                ("FailedCreatePodSandBox", format!("Failed to create pod sandbox: {error}"))
            };
            tools.runtime.prepare(pod).await.map_err(failed)?;
            mount(tools, pod, acted).await?;
            tools.runtime.create_sandbox(pod, attempt).await.map_err(failed)?;
            return Ok(());
        }
    }
    for kill in plan.kill {
        let Some(run) = observed.containers.iter().find(|run| run.id == kill.id) else { continue };
        if let Some((kind, _)) = spec::container(pod, &kill.name) {
            tools.announcer.container(pod, kind, &kill.name, false, "Killing", &kill.message);
        }
        let grace = super::end::grace(pod);
        let stopped =
            tools.runtime.stop_container(spec::uid(pod), &run.id, &run.sandbox_id, grace).await;
        stopped.map_err(killing)?;
    }
    let Some(sandbox) = usable_sandbox(pod, observed).filter(|_| !plan.start.is_empty()) else {
        return Ok(());
    };
    let mounts = mount(tools, pod, acted).await?;
    for start in &plan.start {
        let Some((_, container)) = spec::container(pod, &start.name) else { continue };
        match tools.runtime.start_container(pod, sandbox, start, &container, &mounts).await {
            Ok(()) => {
                acted.started.push(start.name.clone());
                remove_old_runs(tools, pod, observed, &start.name).await;
            }
            Err(error) => acted.not_started.push((start.name.clone(), error)),
        }
    }
    remove_old_sandboxes(tools, pod).await;
    Ok(())
}

/// The pod's volumes, mounted now if they are not.
async fn mount(
    tools: &Tools,
    pod: &Pod,
    acted: &mut Acted,
) -> Result<Arc<PodMounts>, (&'static str, String)> {
    if let Some(mounts) = &acted.mounts {
        return Ok(mounts.clone());
    }
    let mounted =
        tools.volumes.mount(pod).await.map_err(|error| ("FailedMount", error.to_string()))?;
    let mounted = Arc::new(mounted);
    acted.mounts = Some(mounted.clone());
    Ok(mounted)
}

/// Of the sandboxes before the newest, keep those with a run that is kept.
async fn remove_old_sandboxes(tools: &Tools, pod: &Pod) {
    let observed = tools.observer.subscribe(spec::uid(pod)).borrow().clone();
    for old in observed.sandboxes.iter().skip(1) {
        if observed.containers.iter().any(|run| run.sandbox_id == old.id) {
            continue;
        }
        if let Err(error) = tools.runtime.remove_sandbox(spec::uid(pod), &old.id).await {
            debug!(pod = describe(pod), id = old.id, %error, "old sandbox not removed");
        }
    }
}

/// Of the runs of a container before the one that was just started, keep the newest alone.
async fn remove_old_runs(tools: &Tools, pod: &Pod, observed: &ObservedPod, name: &str) {
    let ended = |run: &&observed::Container| run.name == name && run.finished_at().is_some();
    for run in observed.containers.iter().filter(ended).skip(KEPT_RUNS - 1) {
        if let Err(error) = tools.runtime.remove_container(pod, &run.name, &run.id).await {
            debug!(pod = describe(pod), name, id = run.id, %error, "old run not removed");
        }
    }
}

//! Deletes jobs some time after they finished.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use longshore_base::time;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers, split_key};

use crate::Context;
use crate::writes::{unless_replaced, unless_stopped};
use longshore_metrics::Histogram;

/// PURE: how long the finished job stays from now on; `None`: it stays.
fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let left = due(job)?.saturating_sub(now.as_millisecond());
    Some(Duration::from_millis(u64::try_from(left).unwrap_or_default()).min(time::FOREVER))
}

/// PURE: when the finished job goes, in milliseconds since 1970; `None`: it stays.
fn due(job: &Job) -> Option<i64> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let finished = conditions.iter().find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })?;
    let finished = finished.last_transition_time.as_ref()?.0;
    Some(finished.as_millisecond().saturating_add(i64::from(ttl).saturating_mul(1000)))
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("ttl_jobs_to_delete", &context.queues);
    let jobs = context.informers.get::<Job>();
    jobs.subscribe({
        let queue = queue.clone();
        move |event: &Event<Job>| {
            if let Event::Added(job) | Event::Updated { new: job, .. } = event
                && left(job, Timestamp::now()).is_some()
            {
                queue.add(key_of(&**job));
            }
        }
    });
    if !unless_stopped(&context, jobs.synced()).await {
        return;
    }
    let workers = context.settings.cluster.ttl_after_finished_workers;
    let name = "ttl-after-finished-controller";
    run_workers(name, &queue, workers, &context.stop, |key| {
        sync(context.client.clone(), &jobs, queue.clone(), &context.metrics.job_ttl, key)
    })
    .await;
}

async fn sync(
    client: Client,
    jobs: &Informer<Job>,
    queue: WorkQueue<String>,
    latency: &Histogram,
    key: String,
) -> Result<(), kube::Error> {
    let Some(known) = jobs.store().get(&key) else { return Ok(()) };
    let Some(wait) = left(&known, Timestamp::now()) else { return Ok(()) };
    if !wait.is_zero() {
        queue.add_after(key, wait);
        return Ok(());
    }
    let (namespace, name) = split_key(&key);
    let api: Api<Job> = Api::namespaced(client, namespace);
    // The time may have been changed meanwhile.
    let Some(latest) = api.get_opt(name).await? else { return Ok(()) };
    match left(&latest, Timestamp::now()) {
        None => Ok(()),
        Some(wait) if !wait.is_zero() => {
            queue.add_after(key, wait);
            Ok(())
        }
        Some(_) => {
            let params = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Foreground),
                preconditions: Some(Preconditions {
                    uid: latest.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            unless_replaced(api.delete(name, &params).await)?;
            if let Some(due) = due(&latest) {
                let late = Timestamp::now().as_millisecond().saturating_sub(due);
                latency.observe(late as f64 / 1000.0);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::left;

    #[test]
    fn ttl_after_finished_counts_from_the_finish() {
        let job = |ttl: Value, type_: &str, status: &str| {
            serde_json::from_value(json!({
                "metadata": {"name": "j"},
                "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
                "status": {"conditions": [{"type": type_, "status": status,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap()
        };
        let now = "2026-01-01T00:00:04Z".parse().unwrap();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (job, expected) in [
            (job(json!(10), "Complete", "True"), seconds(6)),
            (job(json!(10), "Failed", "True"), seconds(6)),
            (job(json!(3), "Failed", "True"), seconds(0)),
            (job(json!(0), "Complete", "True"), seconds(0)),
            (job(json!(10), "Complete", "False"), None),
            (job(json!(10), "Suspended", "True"), None),
            (job(Value::Null, "Complete", "True"), None),
        ] {
            assert_eq!(left(&job, now), expected);
        }
    }
}

//! The pods that a Job creates.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use super::FINALIZER;
use super::indexes::INDEX;
use super::policy::{Failure, failure_of};
use crate::workload::{name_of, new_pod};

/// The variable with the index in containers of indexed Jobs.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// How often pods of the index have failed.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// How often pods of the index have failed in ways that do not count.
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The longest prefix of a generated name.
const MAX_PREFIX: usize = 58;

/// A pod of a Job, of that index, in place of the failed one.
pub(super) fn new(job: &Job, index: Option<usize>, replaces: Option<&Arc<Pod>>) -> Option<Pod> {
    let spec = job.spec.as_ref()?;
    let mut pod = new_pod(job, &spec.template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let Some(index) = index else { return Some(pod) };
    let text = index.to_string();
    let name = name_of(job);
    let longest = name.floor_char_boundary(MAX_PREFIX.saturating_sub(text.len() + 2));
    let prefix = name.get(..longest).unwrap_or(name);
    pod.metadata.generate_name = Some(format!("{prefix}-{text}-"));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), text.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), text);
    if spec.backoff_limit_per_index.is_some() {
        let (mut failures, mut ignored) = (0, 0);
        if let Some(failed) = replaces {
            (failures, ignored) = (index_failures(failed), ignored_failures(failed));
            match failure_of(failed, job) {
                Failure::Ignore => ignored += 1,
                _ => failures += 1,
            }
        }
        annotations.insert(FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{name}-{index}"));
        let inits = spec.init_containers.iter_mut().flatten();
        inits.chain(&mut spec.containers).for_each(add_variable);
    }
    Some(pod)
}

fn add_variable(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector {
        field_path: format!("metadata.labels['{INDEX}']"),
        ..ObjectFieldSelector::default()
    };
    variables.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
}

fn number(pod: &Pod, annotation: &str) -> usize {
    let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
    let number: Option<u32> = text.and_then(|text| text.parse().ok());
    number.and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
}

/// How often pods of this pod's index had failed before it.
pub(super) fn index_failures(pod: &Pod) -> usize {
    number(pod, FAILURES)
}

/// How often they had failed in ways that do not count.
pub(super) fn ignored_failures(pod: &Pod) -> usize {
    number(pod, IGNORED_FAILURES)
}

//! The status of a pod during an in-place resize.

use k8s_openapi::api::core::v1::{PodCondition, ResourceRequirements};

use super::*;
use crate::observed::Enforced;
use crate::resources::List;

fn sized(cpu: &str, memory: &str) -> Pod {
    let amounts = json!({"cpu": cpu, "memory": memory});
    pod(json!({"containers": [
        {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}},
    ]}))
}

fn in_force(pod: &Pod) -> PodResources {
    PodResources::in_force(pod.spec.as_ref().unwrap(), Gates::default())
}

fn status_with(
    pod: &Pod,
    run: Container,
    previous: &PodStatus,
    context: &Context<'_>,
) -> PodStatus {
    status(pod, &seen(vec![run]), previous, context, at(100))
}

fn resources(status: &PodStatus) -> (ResourceRequirements, String) {
    let container = &status.container_statuses.as_ref().unwrap()[0];
    let allocated = container.allocated_resources.as_ref().unwrap();
    let resources = container.resources.clone().unwrap();
    (resources, format!("{} {}", allocated["cpu"].0, allocated["memory"].0))
}

fn show(of: &ResourceRequirements) -> String {
    let show = |list: Option<&List>| {
        let list = list.unwrap();
        format!("{} {}", list["cpu"].0, list["memory"].0)
    };
    format!("{} / {}", show(of.requests.as_ref()), show(of.limits.as_ref()))
}

#[test]
fn status_reports_actuated_and_allocated_resources() {
    let (before, after) = (sized("100m", "64Mi"), sized("200m", "128Mi"));
    let actuated = in_force(&before);
    let enforced = |cpu_request, cpu_limit, memory_limit| {
        Some(Enforced { cpu_request, cpu_limit, memory_limit })
    };
    let mib = |count: i64| Some(count << 20);
    for (enforced, expected) in [
        (None, "100m 64Mi / 100m 64Mi"),
        (enforced(Some(100), Some(100), mib(64)), "100m 64Mi / 100m 64Mi"),
        // During the actuation: the runtime is ahead of the checkpoint.
        (enforced(Some(200), Some(200), mib(64)), "200m 64Mi / 200m 64Mi"),
        (enforced(Some(150), Some(2500), mib(1 << 10)), "150m 64Mi / 2500m 1Gi"),
    ] {
        let run = Container { resources: enforced, ..run("c", 0, running()) };
        let context = Context { actuated: &actuated, ..Context::default() };
        let reported = status_with(&after, run, &PodStatus::default(), &context);
        let (resources, allocated) = resources(&reported);
        assert_eq!((show(&resources).as_str(), allocated.as_str()), (expected, "200m 128Mi"));
    }
    // A container that does not run has its allocated resources.
    let context = Context { actuated: &actuated, ..Context::default() };
    let reported = status_with(&after, run("c", 0, exited(0)), &PodStatus::default(), &context);
    assert_eq!(show(&resources(&reported).0), "200m 128Mi / 200m 128Mi");
}

#[test]
fn status_reports_requested_resources_below_kernel_precision() {
    let pod = sized("1m", "64Mi");
    let actuated = in_force(&pod);
    let enforced =
        Enforced { cpu_request: Some(2), cpu_limit: Some(10), memory_limit: Some(64 << 20) };
    let run = Container { resources: Some(enforced), ..run("c", 0, running()) };
    let context = Context { actuated: &actuated, ..Context::default() };
    let reported = status_with(&pod, run, &PodStatus::default(), &context);
    assert_eq!(show(&resources(&reported).0), "1m 64Mi / 1m 64Mi");
}

#[test]
fn status_keeps_resources_that_the_runtime_does_not_report() {
    let (before, after) = (sized("100m", "64Mi"), sized("200m", "128Mi"));
    let actuated = in_force(&after);
    let silent = Container { resources: Some(Enforced::default()), ..run("c", 0, running()) };
    let none = PodResources::default();
    let context = Context { actuated: &none, runtime: "r", ..Context::default() };
    let previous = status_with(&before, run("c", 0, running()), &PodStatus::default(), &context);
    assert_eq!(show(&resources(&previous).0), "100m 64Mi / 100m 64Mi");
    let context = Context { actuated: &actuated, runtime: "r", ..Context::default() };
    let reported = status_with(&after, silent.clone(), &previous, &context);
    assert_eq!(show(&resources(&reported).0), "100m 128Mi / 100m 64Mi");
    // The last status of another run does not count.
    let other = Container { id: "other".to_owned(), ..silent };
    let reported = status_with(&after, other, &previous, &context);
    assert_eq!(show(&resources(&reported).0), "200m 128Mi / 200m 128Mi");
}

fn resize_condition(status: &PodStatus, type_: &str) -> Option<PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_).cloned()
}

#[test]
fn resize_conditions_are_reported_until_it_is_done() {
    let pod = sized("100m", "64Mi");
    let pending =
        Pending { infeasible: false, message: "insufficient cpu".to_owned(), generation: Some(4) };
    let infeasible = Pending { infeasible: true, ..pending.clone() };
    let begun = InProgress { generation: Some(3), error: None };
    let failed = InProgress { error: Some("it failed".to_owned()), ..begun.clone() };
    let status_of = |previous: &PodStatus, pending, resizing, seconds| {
        let context = Context { pending, resizing, ..Context::default() };
        status(&pod, &seen(vec![run("c", 0, running())]), previous, &context, at(seconds))
    };
    let say = |status: &PodStatus, type_| {
        let condition = resize_condition(status, type_)?;
        assert_eq!(condition.status, "True");
        let times = [condition.last_transition_time, condition.last_probe_time];
        let [since, probed] = times.map(|time| time.unwrap().0.as_second() - at(0).as_second());
        let (reason, message) = (condition.reason, condition.message);
        Some((reason, message, condition.observed_generation.unwrap(), since, probed))
    };
    let some = |text: &str| Some(text.to_owned());

    let first = status_of(&PodStatus::default(), Some(&pending), Some(&begun), 10);
    assert_eq!(
        say(&first, "PodResizePending"),
        Some((some("Deferred"), some("insufficient cpu"), 4, 10, 10))
    );
    assert_eq!(say(&first, "PodResizeInProgress"), Some((None, None, 3, 10, 10)));
    assert_eq!(status_of(&first, Some(&pending), Some(&begun), 20), first, "nothing has changed");
    let second = status_of(&first, Some(&infeasible), Some(&failed), 30);
    assert_eq!(
        say(&second, "PodResizePending"),
        Some((some("Infeasible"), some("insufficient cpu"), 4, 30, 30))
    );
    assert_eq!(
        say(&second, "PodResizeInProgress"),
        Some((some("Error"), some("it failed"), 3, 30, 30))
    );
    let other = InProgress { error: Some("another".to_owned()), ..begun.clone() };
    let third = status_of(&second, None, Some(&other), 40);
    assert_eq!(
        say(&third, "PodResizeInProgress"),
        Some((some("Error"), some("another"), 3, 30, 40)),
        "the transition time is that of the reason"
    );
    assert_eq!(resize_condition(&third, "PodResizePending"), None);
    let done = status_of(&third, None, None, 50);
    assert_eq!(resize_condition(&done, "PodResizeInProgress"), None);

    let context = Context { pending: Some(&pending), resizing: Some(&begun), ..Context::default() };
    let never = super::pod(json!({"restartPolicy": "Never", "containers": [{"name": "c"}]}));
    let ended = status(&never, &seen(vec![run("c", 0, exited(0))]), &first, &context, at(60));
    assert_eq!(phase(&ended), "Succeeded");
    for type_ in ["PodResizePending", "PodResizeInProgress"] {
        assert_eq!(resize_condition(&ended, type_), None, "{type_} of a pod that has ended");
    }
}

#[test]
fn status_resources_of_the_pod_change_when_the_resize_is_done() {
    let (before, after) = (sized("100m", "64Mi"), sized("200m", "128Mi"));
    let status_of = |pod: &Pod, previous: &PodStatus, resizing| {
        let context = Context { resizing, ..Context::default() };
        let reported = status_with(pod, run("c", 0, running()), previous, &context);
        let allocated = reported.allocated_resources.as_ref().unwrap()["cpu"].0.clone();
        (show(reported.resources.as_ref().unwrap()), allocated, reported)
    };
    let (_, _, first) = status_of(&before, &PodStatus::default(), None);
    let begun = InProgress { generation: None, error: None };
    let (resources, allocated, second) = status_of(&after, &first, Some(&begun));
    assert_eq!((resources.as_str(), allocated.as_str()), ("100m 64Mi / 100m 64Mi", "200m"));
    assert_eq!(status_of(&after, &second, None).0, "200m 128Mi / 200m 128Mi");
}

//! In-place resize of running containers.

use serde_json::Value;

use super::*;

fn with(names: &[&str], cpu: &str, memory: &str) -> Pod {
    let mut pod = pod("Never", names);
    let pod_spec = pod.spec.as_mut().unwrap();
    for container in pod_spec.init_containers.iter_mut().flatten().chain(&mut pod_spec.containers) {
        let amounts = json!({"requests": {"cpu": cpu}, "limits": {"memory": memory}});
        container.resources = Some(serde_json::from_value(amounts).unwrap());
    }
    pod
}

fn policy(pod: &mut Pod, policies: Value) {
    let pod_spec = pod.spec.as_mut().unwrap();
    for container in pod_spec.init_containers.iter_mut().flatten().chain(&mut pod_spec.containers) {
        container.resize_policy = serde_json::from_value(policies.clone()).unwrap();
    }
}

fn plan_of(pod: &Pod, before: &Pod, seen: &ObservedPod, gates: Gates) -> Plan {
    let actuated = PodResources::in_force(before.spec.as_ref().unwrap(), gates);
    let backoff = no_delays();
    let inputs = inputs(<&ProbeResults>::default(), &backoff, at(20));
    plan(pod, seen, Inputs { actuated: &actuated, gates, ..inputs })
}

fn all_run(names: &[&str]) -> ObservedPod {
    let plain = names.iter().map(|name| name.rsplit(':').next().unwrap());
    observed(vec![sandbox(0, true)], plain.map(|name| run(name, 0, 0, running())).collect())
}

fn resized(plan: &Plan) -> Vec<&str> {
    plan.resize.iter().map(|resize| resize.name.as_str()).collect()
}

#[test]
fn resize_plan_changes_resources_in_place() {
    let names = ["a", "b"];
    let before = with(&names, "100m", "64Mi");
    let seen = all_run(&names);
    let same = plan_of(&with(&names, "0.1", "65536Ki"), &before, &seen, Gates::default());
    assert!(same.is_idle(), "{same:?}");
    let plan = plan_of(&with(&names, "200m", "64Mi"), &before, &seen, Gates::default());
    assert_eq!(short(&plan), ["resize a", "resize b"]);
    let first = &plan.resize[0];
    assert_eq!((first.id.as_str(), first.from.cpu_request, first.to.cpu_request), ("a0", 100, 200));
}

#[test]
fn resize_plan_decreases_before_increases() {
    let names = ["a", "b"];
    let before = with(&names, "100m", "64Mi");
    let mut pod = with(&names, "200m", "64Mi");
    let less = with(&names, "50m", "64Mi");
    let container = &less.spec.as_ref().unwrap().containers[1];
    pod.spec.as_mut().unwrap().containers[1] = container.clone();
    assert_eq!(resized(&plan_of(&pod, &before, &all_run(&names), Gates::default())), ["b", "a"]);
}

#[test]
fn resize_policy_restarts_the_container() {
    let restart =
        |resource| json!([{"resourceName": resource, "restartPolicy": "RestartContainer"}]);
    let before = with(&["c"], "100m", "64Mi");
    for (cpu, memory, policies, restarts) in [
        ("200m", "64Mi", restart("cpu"), true),
        ("200m", "64Mi", restart("memory"), false),
        ("100m", "128Mi", restart("memory"), true),
        ("100m", "32Mi", restart("memory"), true),
        ("200m", "128Mi", restart("memory"), true),
        ("200m", "128Mi", json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]), false),
    ] {
        let mut pod = with(&["c"], cpu, memory);
        policy(&mut pod, policies.clone());
        let plan = plan_of(&pod, &before, &all_run(&["c"]), Gates::default());
        let expected = if restarts { vec!["kill c", "start c 1"] } else { vec!["resize c"] };
        assert_eq!(short(&plan), expected, "{cpu} {memory} {policies}");
        if restarts {
            assert_eq!(plan.kill[0].message, "Container c resize requires restart");
        }
    }
}

#[test]
fn resize_of_sidecars_and_init_containers() {
    let names = ["sidecar:s", "init:i", "c"];
    let before = with(&names, "100m", "64Mi");
    let mut pod = with(&names, "200m", "64Mi");
    let started = observed(
        vec![sandbox(0, true)],
        vec![run("i", 0, 0, running()), run("s", 0, 0, running())],
    );
    let plan = plan_of(&pod, &before, &started, Gates::default());
    assert_eq!(short(&plan), ["resize s", "resize i"]);
    let without = Gates { resize_init_containers: false, ..Gates::default() };
    assert_eq!(resized(&plan_of(&pod, &before, &started, without)), ["s"]);
    // An init container is not restarted, for it would do its work twice.
    policy(&mut pod, json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]));
    let plan = plan_of(&pod, &before, &started, Gates::default());
    assert_eq!(short(&plan), ["kill s", "start s 1", "resize i"]);
}

#[test]
fn resize_applies_to_healthy_running_containers_only() {
    let before = with(&["c"], "100m", "64Mi");
    let pod = with(&["c"], "200m", "64Mi");
    for state in [State::Created, exited(1), State::Unknown] {
        let seen = observed(vec![sandbox(0, true)], vec![run("c", 0, 0, state.clone())]);
        assert_eq!(plan_of(&pod, &before, &seen, Gates::default()).resize, [], "{state:?}");
    }
    let mut changed = run("c", 0, 0, running());
    changed.hash = Some(1);
    let seen = observed(vec![sandbox(0, true)], vec![changed]);
    let plan = plan_of(&pod, &before, &seen, Gates::default());
    assert_eq!(short(&plan), ["kill c", "start c 1"]);
    // Containers without actuated resources are left alone.
    let backoff = no_delays();
    assert!(planned(&pod, &all_run(&["c"]), &backoff, at(20)).is_idle());
}

proptest! {
    /// A resize is planned if and only if something is stale, and nothing else is planned.
    #[test]
    fn resize_plan_covers_exactly_what_is_stale(
        before in (1u32..4, 1u32..4), after in (1u32..4, 1u32..4), runs in any::<[bool; 2]>(),
    ) {
        let names = ["a", "b"];
        let of = |(cpu, memory): (u32, u32)| with(&names, &cpu.to_string(), &format!("{memory}Gi"));
        let (before, after) = (of(before), of(after));
        let state = |runs| if runs { running() } else { exited(0) };
        let containers =
            names.iter().zip(runs).map(|(name, runs)| run(name, 0, 0, state(runs))).collect();
        let seen = observed(vec![sandbox(0, true)], containers);
        let gates = Gates::default();
        let plan = plan_of(&after, &before, &seen, gates);
        let actuated = PodResources::in_force(before.spec.as_ref().unwrap(), gates);
        let mut stale = crate::resize::stale(&after, &seen, &actuated, gates);
        let mut planned = resized(&plan);
        stale.sort_unstable();
        planned.sort_unstable();
        prop_assert_eq!(planned, stale);
        for resize in &plan.resize {
            let container = after.spec.as_ref().unwrap().containers.iter().find(|c| c.name == resize.name);
            let resources = container.unwrap().resources.as_ref().unwrap();
            prop_assert_eq!(resize.to, crate::resize::Amounts::of(resources));
        }
        let done = plan_of(&after, &after, &seen, gates);
        prop_assert!(done.resize.is_empty());
    }
}

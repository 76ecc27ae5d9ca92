//! Failed probes, and sidecars that others wait for.

use super::*;
use crate::probes::{ProbeKind, ProbeResult};
use ProbeKind::{Liveness, Startup};
use ProbeResult::{Failure, Success, Unknown};

/// A pod with the containers `a` and `b`; `a` (a sidecar if so named) has all probes.
fn probed(policy: &str, sidecar: bool) -> Pod {
    let probe = json!({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 7});
    let mut a = json!({
        "name": "a", "image": "i",
        "startupProbe": {"tcpSocket": {"port": 1}}, "livenessProbe": probe, "readinessProbe": probe,
    });
    let b = json!({"name": "b", "image": "i"});
    let (init, regular) = match sidecar {
        true => {
            a["restartPolicy"] = json!("Always");
            (json!([a]), json!([b]))
        }
        false => (json!([]), json!([a, b])),
    };
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "restartPolicy": policy, "terminationGracePeriodSeconds": 30,
            "initContainers": init, "containers": regular,
        },
    }))
    .unwrap()
}

fn found(results: &[(ProbeKind, ProbeResult)]) -> ProbeResults {
    let mut probes = ProbeResults::default();
    for (kind, result) in results {
        probes.set("a0", *kind, *result);
    }
    probes
}

fn plan_with(pod: &Pod, seen: &ObservedPod, probes: &ProbeResults) -> Plan {
    plan(pod, seen, inputs(probes, &no_delays(), at(20)))
}

fn both_run() -> ObservedPod {
    let runs = vec![run("a", 0, 0, running()), run("b", 0, 0, running())];
    observed(vec![sandbox(0, true)], runs)
}

#[test]
fn probe_failure_restarts_by_restart_policy() {
    let live = [(Startup, Success), (Liveness, Failure)];
    let start = [(Startup, Failure)];
    for (policy, results, expected, message, grace) in [
        (
            "Always",
            &live[..],
            vec!["kill a", "start a 1"],
            "liveness probe, will be restarted",
            Some(7),
        ),
        (
            "OnFailure",
            &live[..],
            vec!["kill a", "start a 1"],
            "liveness probe, will be restarted",
            Some(7),
        ),
        ("Never", &live[..], vec!["kill a"], "liveness probe", Some(7)),
        (
            "Always",
            &start[..],
            vec!["kill a", "start a 1"],
            "startup probe, will be restarted",
            None,
        ),
        ("Never", &start[..], vec!["kill a"], "startup probe", None),
    ] {
        let plan = plan_with(&probed(policy, false), &both_run(), &found(results));
        assert_eq!(short(&plan), expected, "{policy}");
        assert_eq!(plan.kill[0].message, format!("Container a failed {message}"));
        assert_eq!(plan.kill[0].grace, grace.map(Duration::from_secs));
    }
}

#[test]
fn probe_failure_ends_the_pod_if_nothing_is_left_to_run() {
    let pod = probed("Never", false);
    let runs = vec![run("a", 0, 0, running()), run("b", 0, 0, exited(0))];
    let seen = observed(vec![sandbox(0, true)], runs);
    assert_eq!(short(&plan_with(&pod, &seen, &found(&[(Liveness, Failure)]))), ["stop"]);
}

#[test]
fn probe_failure_follows_the_container_restart_policy() {
    for (pods, own, expected) in [
        ("Always", "Never", vec!["kill a"]),
        ("Never", "OnFailure", vec!["kill a", "start a 1"]),
        ("Never", "Always", vec!["kill a", "start a 1"]),
    ] {
        let mut pod = probed(pods, false);
        pod.spec.as_mut().unwrap().containers[0].restart_policy = Some(own.to_owned());
        let plan = plan_with(&pod, &both_run(), &found(&[(Liveness, Failure)]));
        assert_eq!(short(&plan), expected, "{pods} {own}");
    }
}

#[test]
fn probe_results_other_than_failure_kill_nothing() {
    for result in [
        (ProbeKind::Readiness, Failure),
        (Liveness, Unknown),
        (Liveness, Success),
        (Startup, Unknown),
    ] {
        let plan = plan_with(&probed("Always", false), &both_run(), &found(&[result]));
        assert!(plan.is_idle(), "{result:?}");
    }
}

#[test]
fn probe_results_without_a_probe_are_ignored() {
    let plain = pod("Always", &["a", "b"]);
    assert!(plan_with(&plain, &both_run(), &found(&[(Liveness, Failure)])).is_idle());
}

#[test]
fn plan_waits_for_startup_probes_of_sidecars() {
    let pod = probed("Never", true);
    let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, 0, running())]);
    for (results, expected) in [
        (&[][..], vec![]),
        (&[(Startup, Unknown)][..], vec![]),
        (&[(Startup, Failure)][..], vec!["kill a", "start a 1"]),
        (&[(Startup, Success)][..], vec!["start b new"]),
        // Liveness does not matter for that.
        (&[(Startup, Success), (Liveness, Unknown)][..], vec!["start b new"]),
        (
            &[(Startup, Success), (Liveness, Failure)][..],
            vec!["kill a", "start a 1", "start b new"],
        ),
    ] {
        let plan = plan_with(&pod, &seen, &found(results));
        assert_eq!(short(&plan), expected, "{results:?}");
    }
}

#[test]
fn plan_waits_for_post_start_hooks_of_sidecars() {
    let pod = pod("Always", &["sidecar:a", "b"]);
    let seen = observed(vec![sandbox(0, true)], vec![run("a", 0, 0, running())]);
    let starting = HashSet::from(["a".to_owned()]);
    let backoff = no_delays();
    let waits =
        Inputs { starting: &starting, ..inputs(<&ProbeResults>::default(), &backoff, at(20)) };
    assert!(plan(&pod, &seen, waits).is_idle());
    assert_eq!(steps(&pod, &seen), ["start b new"]);
}

#[test]
fn probe_failure_of_a_sidecar_restarts_it_alone() {
    let pod = probed("Never", true);
    for (results, message) in [
        (&[(Startup, Success), (Liveness, Failure)][..], "Init container a failed liveness probe"),
        (&[(Startup, Failure)][..], "Init container a failed startup probe"),
    ] {
        let plan = plan_with(&pod, &both_run(), &found(results));
        assert_eq!(short(&plan), ["kill a", "start a 1"]);
        assert_eq!(plan.kill[0].message, message);
    }
    let mut changed = both_run();
    changed.containers[0].hash = Some(1);
    let plan = plan_with(&pod, &changed, &found(&[(Startup, Success)]));
    assert_eq!(plan.kill[0].message, "Init container a definition changed");
}

#[test]
fn plan_backs_off_replaced_containers() {
    let pod = probed("Always", false);
    let key = backoff_key(&pod.spec.as_ref().unwrap().containers[0]);
    let mut backoff = no_delays();
    backoff.next(&key, at(0), at(0));
    let mut seen = both_run();
    seen.containers[0].id = "a1".to_owned();
    seen.containers.push(run("a", 0, 0, exited(1)));
    let mut probes = ProbeResults::default();
    probes.set("a1", Liveness, Failure);
    let early = plan(&pod, &seen, inputs(&probes, &backoff, at(15)));
    assert_eq!(short(&early), ["kill a", "wait a"]);
    let late = plan(&pod, &seen, inputs(&probes, &backoff, at(20)));
    assert_eq!(late.start[0].last_end, Some(at(10)));
}

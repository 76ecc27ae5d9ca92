//! Phases in every combination.

use k8s_openapi::api::core::v1::ContainerStatus;

use super::*;

/// A container's status in short form: `r` runs, `n` runs and is not started, `0` and `1` exited
/// with that code, `w` waits for its first run, `a0` and `a1` wait for a restart, `u` has no state,
/// `-` has no status.
fn shown(name: &str, what: &str) -> Option<ContainerStatus> {
    let end = |code: &str| json!({"terminated": {"exitCode": code.parse::<i32>().unwrap()}});
    let (state, last) = match what {
        "-" => return None,
        "r" | "n" => (json!({"running": {}}), json!({})),
        "w" => (json!({"waiting": {}}), json!({})),
        "u" => (json!({}), json!({})),
        "all" => {
            let last =
                json!({"terminated": {"exitCode": 137, "reason": "RestartingAllContainers"}});
            (json!({"waiting": {}}), last)
        }
        what => match what.strip_prefix('a') {
            Some(code) => (json!({"waiting": {}}), end(code)),
            None => (end(what), json!({})),
        },
    };
    let status = json!({
        "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": state, "lastState": last, "started": what == "r",
    });
    Some(serde_json::from_value(status).unwrap())
}

/// The phase of a pod with those container statuses: `i=`, `j=` are init containers, `s=`, `t=`
/// sidecars, and all others regular ones.
fn phase_of(policy: &str, shows: &str, terminal: bool, initialized: bool) -> &'static str {
    let (mut init, mut regular, mut statuses) = (vec![], vec![], vec![]);
    for (name, what) in shows.split(' ').map(|part| part.split_once('=').unwrap()) {
        let container = json!({"name": name, "image": "b"});
        match name {
            "i" | "j" => init.push(container),
            "s" | "t" => init.push(json!({"name": name, "image": "b", "restartPolicy": "Always"})),
            _ => regular.push(container),
        }
        statuses.extend(shown(name, what));
    }
    let pod = pod(json!({"restartPolicy": policy, "initContainers": init, "containers": regular}));
    let by_name = statuses.iter().map(|status| (status.name.as_str(), status)).collect();
    let runs = if initialized { vec![run("a", 0, State::Created)] } else { vec![] };
    let context = Context { terminal, ..Context::default() };
    super::super::phase::phase(&pod, pod.spec.as_ref().unwrap(), &seen(runs), &by_name, &context)
}

fn check(cases: &[(&str, &str, &str)]) {
    for (policy, shows, expected) in cases {
        assert_eq!(phase_of(policy, shows, false, false), *expected, "{policy}: {shows}");
    }
}

#[test]
fn phase_of_regular_containers() {
    check(&[
        ("Always", "a=- b=-", "Pending"),
        ("Always", "a=w b=w", "Pending"),
        ("Always", "a=r b=r", "Running"),
        ("Always", "a=0 b=1", "Running"),
        ("Always", "a=r b=1", "Running"),
        ("Always", "a=r b=-", "Pending"),
        ("Always", "a=r b=u", "Pending"),
        ("Always", "a=r b=w", "Pending"),
        ("Always", "a=r b=a1", "Running"),
        ("Always", "a=a0 b=a1", "Running"),
        ("OnFailure", "a=r b=0", "Running"),
        ("OnFailure", "a=0 b=0", "Succeeded"),
        ("OnFailure", "a=0 b=1", "Running"),
        ("OnFailure", "a=0 b=a1", "Running"),
        ("OnFailure", "a=0 b=w", "Pending"),
        ("Never", "a=r b=1", "Running"),
        ("Never", "a=0 b=0", "Succeeded"),
        ("Never", "a=0 b=1", "Failed"),
        ("Never", "a=1 b=-", "Pending"),
        ("Never", "a=1 b=r", "Running"),
    ]);
}

#[test]
fn phase_of_init_containers() {
    check(&[
        ("Always", "i=- a=-", "Pending"),
        ("Always", "i=r a=w", "Pending"),
        ("Always", "i=0 a=-", "Pending"),
        ("Always", "i=0 a=w", "Pending"),
        ("Always", "i=1 a=w", "Pending"),
        ("Always", "i=a1 a=w", "Pending"),
        ("Always", "i=w a=r", "Pending"),
        ("Always", "i=0 a=r", "Running"),
        ("Never", "i=1 a=w", "Failed"),
        ("Never", "i=a1 a=w", "Failed"),
        ("OnFailure", "i=1 a=w", "Pending"),
        ("Never", "i=0 j=1 a=w", "Failed"),
        ("Never", "i=0 j=r a=w", "Pending"),
        ("Never", "i=0 a=0", "Succeeded"),
        ("Never", "i=all a=all", "Running"),
    ]);
}

#[test]
fn phase_of_sidecars() {
    check(&[
        ("Always", "s=- a=-", "Pending"),
        ("Always", "s=r a=-", "Pending"),
        ("Always", "s=n a=r", "Pending"),
        ("Always", "s=r a=r", "Running"),
        ("Always", "s=1 a=r", "Running"),
        ("Always", "s=a1 a=r", "Running"),
        ("Always", "s=w a=r", "Pending"),
        ("Always", "s=u a=r", "Pending"),
        // A sidecar that exits is restarted, and holds the pod until it is stopped for good.
        ("Never", "s=r a=0", "Running"),
        ("Never", "s=1 a=0", "Succeeded"),
        ("Never", "s=0 a=1", "Failed"),
        ("Never", "s=a1 a=0", "Succeeded"),
        ("Never", "s=r t=n a=w", "Pending"),
        ("Never", "s=1 i=r a=w", "Pending"),
    ]);
    for (shows, expected) in
        [("s=n a=r", "Running"), ("s=w a=r", "Pending"), ("s=n a=1", "Running")]
    {
        assert_eq!(phase_of("Always", shows, false, true), expected, "initialized: {shows}");
    }
}

#[test]
fn phase_of_terminated_pods() {
    for (policy, shows, expected) in [
        ("Always", "a=0 b=0", "Succeeded"),
        ("Always", "a=0 b=1", "Failed"),
        ("OnFailure", "a=0 b=1", "Failed"),
        // It was to be restarted, so it has not succeeded.
        ("Always", "a=0 b=a0", "Failed"),
        ("Never", "s=1 a=0", "Succeeded"),
    ] {
        assert_eq!(phase_of(policy, shows, true, true), expected, "{policy}: {shows}");
    }
}

#[test]
fn phase_of_static_pods_is_final_only_by_restart_policy() {
    let mut pod = one_container("Always");
    pod.metadata.annotations =
        Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    let context = Context { terminal: true, ..Context::default() };
    let observed = seen(vec![run("c", 0, exited(0))]);
    let ended = status(&pod, &observed, &PodStatus::default(), &context, at(1));
    assert_eq!(phase(&ended), "Running");
}

#[test]
fn phase_follows_restart_rules() {
    let mut pod = one_container("Never");
    let rules = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.restart_policy = Some("Never".to_owned());
    container.restart_policy_rules = serde_json::from_value(rules).unwrap();
    for (code, expected) in [(42, "Running"), (1, "Failed"), (0, "Succeeded")] {
        let reported =
            status_of(&pod, &seen(vec![run("c", 0, exited(code))]), &PodStatus::default(), &[]);
        assert_eq!(phase(&reported), expected, "{code}");
    }
}

//! What keeps a pod in its place, on a real runtime: users, namespaces, sysctls, runtime classes;
//! and what a container says of itself at its end.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Cluster, FOREVER, container, script};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A pod that runs once, with these fields in its spec and in its container.
fn once(text: &str, spec: Value, fields: Value) -> Value {
    let mut whole = script(text);
    whole["restartPolicy"] = json!("Never");
    let add = |to: &mut Value, from: Value| {
        from.as_object().unwrap().iter().for_each(|(key, value)| to[key] = value.clone());
    };
    add(&mut whole, spec);
    add(&mut whole["containers"][0], fields);
    whole
}

/// Exit code and last words of the container `c`, once it has ended.
async fn end(cluster: &Cluster, name: &str) -> (i32, String) {
    let ended = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let ended = statuses.iter().find(|status| status.name == "c")?.state.as_ref()?;
        ended.terminated.clone()
    };
    let pod = cluster
        .until(name, "ended", |pod| match ended(pod) {
            Some(_) => Ok(()),
            None => Err(format!("{:?}", pod.status)),
        })
        .await;
    let ended = ended(&pod).unwrap();
    (ended.exit_code, ended.message.unwrap_or_default())
}

/// Reason and message of the container's wait.
fn waiting(pod: &Pod) -> Option<(String, String)> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waiting = statuses.first()?.state.as_ref()?.waiting.clone()?;
    Some((waiting.reason?, waiting.message.unwrap_or_default()))
}

#[tokio::test]
async fn a_pod_is_kept_in_its_place() {
    let cluster = Cluster::start_with(json!({"clusterDomain": "cluster.local"})).await;
    let tell = |what: &str| format!("({what}) > /dev/termination-log");
    let strict = json!({
        "runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    });
    let neighbour = json!([
        container(
            "c",
            &tell(
                "until grep -qs 'sleep 4242' /proc/[0-9]*/cmdline; do sleep 0.1; done; echo -n seen"
            )
        ),
        container("n", "exec -a 'sleep 4242' sleep 4242 || exec sleep 4242"),
    ]);
    let own = json!({"nameservers": ["192.0.2.53"], "searches": ["a.example"], "options": [{"name": "ndots", "value": "1"}]});
    let pods = [
        (
            "sysctl",
            once(
                &tell("cat /proc/sys/kernel/shm_rmid_forced"),
                json!({"securityContext": {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}}),
                json!({}),
            ),
            (0, "1\n"),
        ),
        (
            "strict",
            once(
                &tell("id -u; id -g; touch /x 2>&1; grep -E 'CapEff|NoNewPrivs' /proc/self/status"),
                json!({}),
                json!({"securityContext": strict}),
            ),
            (
                0,
                "1000\n1001\ntouch: /x: Read-only file system\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n",
            ),
        ),
        (
            "groups",
            once(
                &tell("id -G"),
                json!({"securityContext": {"runAsUser": 1000, "runAsGroup": 1, "fsGroup": 7, "supplementalGroups": [8]}}),
                json!({}),
            ),
            (0, "1 7 8\n"),
        ),
        (
            "logs",
            once(
                "echo why it failed; exit 3",
                json!({}),
                json!({"securityContext": strict, "terminationMessagePolicy": "FallbackToLogsOnError"}),
            ),
            (3, "why it failed\n"),
        ),
        (
            "no-logs",
            once(
                "echo all is well",
                json!({}),
                json!({"terminationMessagePolicy": "FallbackToLogsOnError"}),
            ),
            (0, ""),
        ),
        (
            "path",
            once(
                "echo -n elsewhere > /tmp/words",
                json!({}),
                json!({"terminationMessagePath": "/tmp/words"}),
            ),
            (0, "elsewhere"),
        ),
        (
            "names",
            once(
                &tell("hostname; tail -n 2 /etc/hosts"),
                json!({
                    "hostname": "web", "subdomain": "sub", "setHostnameAsFQDN": true,
                    "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["x.example", "y.example"]}],
                }),
                json!({}),
            ),
            (
                0,
                "web.sub.default.svc.cluster.local\n# Entries added by HostAliases.\n192.0.2.9\tx.example\ty.example\n",
            ),
        ),
        (
            "resolver",
            once(
                &tell("cat /etc/resolv.conf"),
                json!({"dnsPolicy": "None", "dnsConfig": own}),
                json!({}),
            ),
            (0, "search a.example\nnameserver 192.0.2.53\noptions ndots:1\n"),
        ),
        (
            "shared",
            once("", json!({"shareProcessNamespace": true, "containers": neighbour}), json!({})),
            (0, "seen"),
        ),
    ];
    for (name, spec, _) in &pods {
        cluster.create(name, spec.clone()).await;
    }
    for (name, _, (code, words)) in pods {
        assert_eq!(end(&cluster, name).await, (code, words.to_owned()), "{name}");
    }
    cluster.delete("shared").await;
    cluster.until_gone("shared").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn what_cannot_be_is_told_and_tried_again() {
    let cluster = Cluster::start().await;
    let non_root = json!({"securityContext": {"runAsNonRoot": true}});
    cluster.create("root", once(FOREVER, non_root, json!({}))).await;
    let is_refused = |pod: &Pod| {
        let (reason, message) = waiting(pod).ok_or("not waiting")?;
        let expected =
            "container has runAsNonRoot and image will run as root (pod: \"root_default(";
        match reason == "CreateContainerConfigError" && message.starts_with(expected) {
            true => Ok(()),
            false => Err(format!("{reason}: {message}")),
        }
    };
    let pod = cluster.until("root", "refused", is_refused).await;
    assert_eq!(common::phase(&pod), "Pending");
    cluster.until_event("Failed", "Error: container has runAsNonRoot and image will").await;

    // The runtime of this host is from before user namespaces.
    cluster.create("users", once("true", json!({"hostUsers": false}), json!({}))).await;
    let no_users = "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    cluster.until_event("FailedCreatePodSandBox", no_users).await;

    let mut missing = once("true", json!({}), json!({}));
    missing["containers"][0]["command"] = json!(["/no/such/program"]);
    cluster.create("program", missing).await;
    let event = cluster.until_event("Failed", "/no/such/program").await;
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{c}"));
    let (code, _) = end(&cluster, "program").await;
    assert_eq!(code, 128);

    let mut misspelt = once("true", json!({}), json!({}));
    misspelt["containers"][0]["image"] = json!("Not/An/Image");
    cluster.create("misspelt", misspelt).await;
    let pod = cluster
        .until("misspelt", "waits", |pod| waiting(pod).map(drop).ok_or("not yet".to_owned()))
        .await;
    assert_eq!(waiting(&pod).unwrap().0, "InvalidImageName");
    let text = "Failed to apply default image tag \"Not/An/Image\": couldn't parse image name \"Not/An/Image\": invalid reference format";
    cluster.until_event("InspectFailed", text).await;

    let mut absent = once("true", json!({}), json!({}));
    absent["containers"][0]["image"] = json!("longshore.local/absent:1");
    cluster.create("absent", absent).await;
    let text =
        "Container image \"longshore.local/absent:1\" is not present with pull policy of Never";
    cluster.until_event("ErrImageNeverPull", text).await;
}

#[tokio::test]
async fn a_runtime_class_that_is_missing_is_waited_for() {
    let cluster = Cluster::start().await;
    let classes: Api<RuntimeClass> = Api::all(cluster.client.clone());
    let create = async |name: &str, handler: &str| {
        let class = json!({"metadata": {"name": name}, "handler": handler});
        let class: RuntimeClass = serde_json::from_value(class).unwrap();
        classes.create(&PostParams::default(), &class).await.expect("it is taken");
    };
    let of_class = |class: &str| once(FOREVER, json!({"runtimeClassName": class}), json!({}));

    // The class goes between the pod's creation and its binding.
    create("late", "runc").await;
    let pod = json!({"metadata": {"name": "early"}, "spec": of_class("late")});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    cluster.pods().create(&PostParams::default(), &pod).await.expect("it is taken");
    classes.delete("late", &DeleteParams::default()).await.expect("it is there");
    let target = json!({"kind": "Node", "name": cluster.host.name()});
    let binding = json!({"metadata": {"name": "early"}, "target": target});
    let bound: Result<Value, _> = cluster
        .pods()
        .create_subresource("binding", "early", &PostParams::default(), &binding)
        .await;
    bound.expect("it is bound");
    let missing = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"late\" not found";
    cluster.until_event("FailedCreatePodSandBox", missing).await;
    create("late", "runc").await;
    cluster.until_ready("early").await;

    create("unknown", "no-such-handler").await;
    cluster.create("odd", of_class("unknown")).await;
    cluster.until_event("FailedCreatePodSandBox", "no-such-handler").await;
    for name in ["early", "odd"] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn an_ephemeral_container_looks_into_its_target() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["containers"][0]["name"] = json!("app");
    cluster.create("watched", spec).await;
    cluster.until_ready("watched").await;
    let mut look = container("look", "tr '\\0' ' ' < /proc/1/cmdline > /dev/termination-log");
    look["targetContainerName"] = json!("app");
    look["terminationMessagePath"] = json!("/dev/termination-log");
    let patch = json!({"spec": {"ephemeralContainers": [look]}});
    let pods = cluster.pods();
    pods.patch_subresource(
        "ephemeralcontainers",
        "watched",
        &PatchParams::default(),
        &Patch::Strategic(patch),
    )
    .await
    .expect("it is taken");
    let words = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.ephemeral_container_statuses.as_ref()?;
        statuses.first()?.state.as_ref()?.terminated.as_ref()?.message.clone()
    };
    let told = |pod: &Pod| words(pod).map(drop).ok_or_else(|| format!("{:?}", pod.status));
    let pod = cluster.until("watched", "looked into", told).await;
    let words = words(&pod).unwrap();
    assert!(words.starts_with("sh -c trap"), "the first process is the target's: {words}");
    cluster.delete("watched").await;
    cluster.until_gone("watched").await;
    cluster.host.assert_clean();
}

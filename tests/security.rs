//! Security contexts on a real runtime: users, namespaces, sysctls, runtime classes; and termination
//! messages.

use crate::common;

use std::fs::File;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::path::PathBuf;

use common::{Cluster, FOREVER, TIMEOUT, container, run_of, script};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use longshore_testkit::{Host, Image, wait_until};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

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

/// Exit code and termination message of the container `c`.
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
async fn security_context_is_applied() {
    let cluster = Cluster::start_with(json!({"clusterDomain": "cluster.local"})).await;
    let report = |what: &str| format!("({what}) > /dev/termination-log");
    let strict = json!({
        "runAsUser": 1000, "runAsGroup": 1001, "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    });
    let neighbour = json!([
        container(
            "c",
            &report(
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
                &report("cat /proc/sys/kernel/shm_rmid_forced"),
                json!({"securityContext": {"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]}}),
                json!({}),
            ),
            (0, "1\n"),
        ),
        (
            "strict",
            once(
                &report(
                    "id -u; id -g; touch /x 2>&1; grep -E 'CapEff|NoNewPrivs' /proc/self/status",
                ),
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
                &report("id -G"),
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
                "echo -n elsewhere > /tmp/message",
                json!({}),
                json!({"terminationMessagePath": "/tmp/message"}),
            ),
            (0, "elsewhere"),
        ),
        (
            "names",
            once(
                &report("hostname; tail -n 2 /etc/hosts"),
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
                &report("cat /etc/resolv.conf"),
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
    for (name, _, (code, message)) in pods {
        assert_eq!(end(&cluster, name).await, (code, message.to_owned()), "{name}");
    }
    cluster.delete("shared").await;
    cluster.until_gone("shared").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn security_context_errors_are_reported_and_retried() {
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

    // Finding 6: a pod does not run without the devices that it asks for. There is no such claim.
    let claims = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]});
    cluster.create("devices", once("true", claims, json!({}))).await;
    let no_devices = "Failed to prepare dynamic resources: prepare dynamic resources: fetch ResourceClaim mine: ";
    cluster.until_event("FailedPrepareDynamicResources", no_devices).await;
    assert_eq!(common::phase(&cluster.pod("devices").await), "Pending");

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
    let is_invalid = |pod: &Pod| match waiting(pod) {
        Some((reason, _)) if reason == "InvalidImageName" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    cluster.until("misspelt", "refused", is_invalid).await;
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
async fn runtime_class_missing_is_waited_for() {
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
async fn ephemeral_container_shares_the_target_process_namespace() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["containers"][0]["name"] = json!("app");
    cluster.create("watched", spec).await;
    cluster.until_ready("watched").await;
    let mut debugger =
        container("debugger", "tr '\\0' ' ' < /proc/1/cmdline > /dev/termination-log");
    debugger["targetContainerName"] = json!("app");
    debugger["terminationMessagePath"] = json!("/dev/termination-log");
    let patch = json!({"spec": {"ephemeralContainers": [debugger]}});
    let pods = cluster.pods();
    pods.patch_subresource(
        "ephemeralcontainers",
        "watched",
        &PatchParams::default(),
        &Patch::Strategic(patch),
    )
    .await
    .expect("it is taken");
    let message = |pod: &Pod| {
        let statuses = pod.status.as_ref()?.ephemeral_container_statuses.as_ref()?;
        statuses.first()?.state.as_ref()?.terminated.as_ref()?.message.clone()
    };
    let looked = |pod: &Pod| message(pod).map(drop).ok_or_else(|| format!("{:?}", pod.status));
    let pod = cluster.until("watched", "looked into", looked).await;
    let message = message(&pod).unwrap();
    assert!(message.starts_with("sh -c trap"), "the first process is the target's: {message}");
    cluster.delete("watched").await;
    cluster.until_gone("watched").await;
    cluster.host.assert_clean();
}

/// An image of that name which names this user, on the host before the node starts.
fn import_with_user(host: &Host, name: &str, user: &str) -> String {
    let image = format!("longshore.local/{name}:1");
    let built = Image::busybox_builder(&image).unwrap().user(user).build().unwrap();
    host.import(&built).unwrap();
    image
}

/// Runs an image that is on the host already, and logs who it runs as.
fn runs_as(image: &str, context: Value) -> Value {
    let mut spec = script(&format!("id -u; {FOREVER}"));
    spec["securityContext"] = context;
    spec["containers"][0]["image"] = json!(image);
    spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    spec
}

/// Until the container `c` runs for the time after its first `restarts`.
async fn until_restarted(cluster: &Cluster, name: &str, restarts: i32) {
    cluster
        .until(name, &format!("restarted {restarts} times"), |pod| match run_of(pod).0 {
            count if count >= restarts => Ok(()),
            count => Err(format!("{count} restarts")),
        })
        .await;
    cluster.until_ready(name).await;
}

/// CVE-2019-11245: a container whose image names a user ran as root when it was restarted, or when
/// its image was on the node already.
#[tokio::test(flavor = "multi_thread")]
async fn image_user_is_applied_after_restarts() {
    let host = Host::start().expect("a host");
    let number = import_with_user(&host, "by-number", "1234:5678");
    let name = import_with_user(&host, "by-name", "nobody");
    let root = import_with_user(&host, "by-root", "0");
    let mut cluster = Cluster::on(host, json!({})).await;
    let non_root = json!({"runAsNonRoot": true});
    let pods = [
        ("number", &number, json!({}), "1234"),
        ("name", &name, json!({}), "65534"),
        ("non-root", &number, non_root.clone(), "1234"),
        ("chosen", &root, json!({"runAsUser": 7, "runAsNonRoot": true}), "7"),
    ];
    let kubectl = cluster.apiserver.kubectl();
    for (pod, image, context, _) in &pods {
        cluster.create(pod, runs_as(image, context.clone())).await;
    }
    // A pod that must not be root never becomes it, however often it is tried.
    for (pod, image, why) in [
        ("refused", &root, "container has runAsNonRoot and image will run as root"),
        ("unknown", &name, "image has non-numeric user (nobody), cannot verify user is non-root"),
    ] {
        cluster.create(pod, runs_as(image, non_root.clone())).await;
        cluster
            .until(pod, "refused", |pod| match waiting(pod) {
                Some((reason, message))
                    if reason == "CreateContainerConfigError" && message.contains(why) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            })
            .await;
    }
    for restarts in 0..3 {
        if restarts == 2 {
            let Cluster { node, host, .. } = &mut cluster;
            node.restart(host).expect("the daemon starts again");
        }
        for (pod, _, _, user) in &pods {
            until_restarted(&cluster, pod, restarts).await;
            assert_eq!(kubectl.run(["logs", pod]).unwrap().trim(), *user, "{pod} {restarts}");
            let process = kubectl.run(["exec", pod, "--", "stat", "-c", "%u", "/proc/1"]).unwrap();
            assert_eq!(process.trim(), *user, "{pod} {restarts}");
            // The command may be gone with its container before it is heard of.
            let _ = kubectl.run(["exec", pod, "--", "kill", "1"]);
        }
    }
    for pod in ["refused", "unknown"] {
        assert_eq!(run_of(&cluster.pod(pod).await).1, "", "{pod} has no container");
    }
    for (pod, ..) in &pods {
        cluster.delete(pod).await;
        cluster.until_gone(pod).await;
    }
}

/// A prefix that nobody has announced but a pod.
const ROGUE: &str = "2001:db8:bad:";

/// The network namespace of the only pod on a host.
fn network_of_pod(host: &Host) -> PathBuf {
    let [_, state] = host.containerd_dirs();
    let entries = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let plugins = entries(state.to_owned());
    let found: Vec<_> = plugins.flat_map(|plugin| entries(plugin.path().join("netns"))).collect();
    let [one] = &found[..] else { panic!("{found:?}") };
    one.path()
}

/// Has the pod say to all of its link that it is a router, for that prefix and for everything.
fn announce(host: &Host) {
    let netns = File::open(network_of_pod(host)).unwrap();
    let announce = move || {
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
        let eth0 = if_nametoindex("eth0").unwrap();
        socket.set_multicast_if_v6(eth0).unwrap();
        socket.set_multicast_hops_v6(255).unwrap();
        // Router advertisement: hop limit 64, lifetime 1800 s; the kernel writes the checksum.
        let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        // Prefix information: /64, on the link, for addresses, for an hour.
        message.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
        message.extend(Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0).octets());
        let all_nodes = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, eth0);
        socket.send_to(&message, &all_nodes.into())
    };
    std::thread::spawn(announce).join().unwrap().expect("it is sent");
}

/// CVE-2020-10749: a pod that announces itself as an IPv6 router took the host's traffic. What keeps
/// the host from listening is the CNI plugin's setting of the bridge, which the node leaves alone.
#[tokio::test(flavor = "multi_thread")]
async fn pod_cannot_become_the_router_of_its_host() {
    let cluster = Cluster::start().await;
    cluster.create("rogue", script(FOREVER)).await;
    cluster.until_ready("rogue").await;
    let sh = |line: &str| cluster.host.run("sh", ["-c", line]).unwrap();
    let taken = || {
        let seen = sh("ip -6 route show; ip -6 addr show");
        let lines = seen.lines().filter(|line| line.contains(ROGUE) || line.contains("proto ra"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let bridge = "/proc/sys/net/ipv6/conf/cni0";
    assert_eq!(sh(&format!("cat {bridge}/accept_ra")).trim(), "0", "the bridge plugin sees to it");
    for _ in 0..3 {
        announce(&cluster.host);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!(taken(), Vec::<String>::new());
    }
    // A host that listens would have taken it.
    sh(&format!("echo 2 >{bridge}/accept_ra"));
    wait_until(TIMEOUT, "the announcement is taken", async || {
        announce(&cluster.host);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        if taken().is_empty() { Err("nothing") } else { Ok(()) }
    })
    .await
    .unwrap();
    cluster.delete("rogue").await;
    cluster.until_gone("rogue").await;
}

//! The daemon is killed before and after each CRI call of the start, restart and termination of a pod,
//! and restarted: nothing is started twice, restart counts are right, and nothing is left over.
//!
//! One kill covers many points: each has a pod of its own, held there by the proxy.

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use common::{Cluster, FOREVER, TIMEOUT, container, uid};
use futures::future::join_all;
use longshore_cri::v1::{ContainerFilter, PodSandboxFilter};
use longshore_cri::{Options, Runtime};
use longshore_testkit::fakecri::{Calls, Fault, FaultProxy};
use longshore_testkit::{Host, Image, Registry, wait_until};
use serde_json::{Value, json};

const CONTAINERS: [&str; 3] = ["init", "side", "main"];

/// A call of a pod's life: its method and the container that it is about, if it is about one.
type Point = (&'static str, &'static str);

/// Each once before the runtime hears of it, and once after it was done.
fn both(points: &[Point]) -> impl Iterator<Item = (Point, Fault)> {
    points.iter().flat_map(|point| [(*point, Fault::Hang), (*point, Fault::HangReply)])
}

struct Bench {
    cluster: Cluster,
    proxy: FaultProxy,
    runtime: Runtime,
    marks: PathBuf,
    /// How often each container of a pod is to have been started.
    expected: BTreeMap<String, [usize; 3]>,
}

impl Bench {
    async fn start(host: Host) -> Self {
        let marks = host.dir().join("marks");
        fs::create_dir(&marks).unwrap();
        let runtime = Runtime::new(Options::new(host.socket().display().to_string())).unwrap();
        let config = json!({
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "featureGates": {"KubeletCrashLoopBackOffMax": true},
            "serializeImagePulls": false,
            // The image that is pulled is the one that is there, by another name.
            "imagePullCredentialsVerificationPolicy": "NeverVerify",
        });
        let (cluster, proxy) = Cluster::behind_proxy(host, config).await;
        Self { cluster, proxy, runtime, marks, expected: BTreeMap::new() }
    }

    /// A pod with an init container, a sidecar and a regular one, which leave a mark each when they
    /// start, and with volumes.
    fn spec(&self, pod: &str) -> Value {
        let part = |name: &str, then: &str| {
            let mut part = container(name, &format!("echo x >>/marks/{pod}-{name}; {then}"));
            part["volumeMounts"] = json!([
                {"name": "marks", "mountPath": "/marks"},
                {"name": "work", "mountPath": "/work"},
            ]);
            part
        };
        let mut side = part("side", FOREVER);
        side["restartPolicy"] = json!("Always");
        json!({
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "initContainers": [part("init", "exit 0"), side],
            "containers": [part("main", FOREVER)],
            "volumes": [
                {"name": "marks", "hostPath": {"path": self.marks}},
                {"name": "work", "emptyDir": {"medium": "Memory"}},
            ],
        })
    }

    fn marks(&self, pod: &str) -> [usize; 3] {
        CONTAINERS.map(|name| {
            let file = self.marks.join(format!("{pod}-{name}"));
            fs::read_to_string(file).unwrap_or_default().lines().count()
        })
    }

    fn hold(&self, pod: &str, (method, container): Point, fault: Fault) {
        self.proxy.inject(Calls::of(method).about(pod).in_container(container), fault);
    }

    /// Kill the daemon once all calls that are to be held are, and start it again.
    async fn kill_when_held(&mut self) {
        wait_until(TIMEOUT, "all calls are held", async || match self.proxy.unmet() {
            unmet if unmet.is_empty() => Ok(()),
            unmet => Err(format!("{unmet:?}")),
        })
        .await
        .unwrap();
        self.cluster.node.daemon().kill().unwrap();
        // What was held goes with the connection, not on to the runtime.
        let methods = ["RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer"];
        wait_until(TIMEOUT, "the proxy lets go", async || {
            let pending: usize = methods.iter().map(|method| self.proxy.pending(method)).sum();
            if pending == 0 { Ok(()) } else { Err(pending) }
        })
        .await
        .unwrap();
        self.proxy.release_all();
        self.cluster.node.restart(&self.cluster.host).unwrap();
    }

    /// End the main container of as many pods as there are points to hold its next run at; gives
    /// these pods.
    async fn kill_containers(&mut self, names: &[String], points: &[Point]) -> Vec<String> {
        let mut victims = Vec::new();
        for (name, (point, fault)) in names.iter().zip(both(points)) {
            self.hold(name, point, fault);
            let pod = self.cluster.pod(name).await;
            let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
            let id = status.container_id.unwrap();
            let id = id.trim_start_matches("containerd://");
            let kill = ["tasks", "kill", "--signal", "SIGKILL", id];
            self.cluster.host.ctr(kill).expect("a container is killed");
            self.expected.get_mut(name).unwrap()[2] += 1;
            victims.push(name.clone());
        }
        victims
    }

    /// Links to the logs of this host's containers.
    fn log_links(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir("/var/log/containers").unwrap().flatten();
        let links = entries.map(|entry| entry.path());
        let dir = self.cluster.host.dir();
        links
            .filter(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(&dir)))
            .collect()
    }

    /// Until each pod is Running and Ready, with that many restarts of its main container, and in
    /// the runtime just as it should be.
    async fn until_right(&self, names: &[String], restarts: i32) {
        let wrong = join_all(names.iter().map(async |name| {
            let right = wait_until(TIMEOUT, name, async || self.check(name, restarts).await);
            right.await.err().map(|error| error.to_string())
        }));
        let wrong: Vec<String> = wrong.await.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    async fn check(&self, name: &str, restarts: i32) -> Result<(), String> {
        let pod = self.cluster.pod(name).await;
        let status = pod.status.clone().unwrap_or_default();
        let statuses = [status.init_container_statuses, status.container_statuses];
        let statuses = statuses.into_iter().flatten().flatten();
        let reported: Vec<_> = statuses.map(|s| (s.name, s.restart_count, s.ready)).collect();
        let expected = [("init", 0), ("side", 0), ("main", restarts)];
        let expected = expected.map(|(name, count)| (name.to_owned(), count, true));
        if reported != expected || common::condition(&pod, "Ready") != "True" {
            return Err(format!("{reported:?}, Ready: {}", common::condition(&pod, "Ready")));
        }
        let labels = BTreeMap::from([("io.kubernetes.pod.uid".to_owned(), uid(&pod))]);
        let sandboxes =
            PodSandboxFilter { label_selector: labels.clone(), ..PodSandboxFilter::default() };
        let containers = ContainerFilter { label_selector: labels, ..ContainerFilter::default() };
        let sandboxes = self.runtime.list_pod_sandboxes(Some(sandboxes)).await;
        let containers = self.runtime.list_containers(Some(containers)).await;
        let sandboxes = sandboxes.map_err(|error| error.to_string())?.len();
        let containers = containers.map_err(|error| error.to_string())?.len();
        // The run before the last is kept, for its log.
        let expected = (1, 3 + usize::from(restarts > 0), self.expected[name]);
        match (sandboxes, containers, self.marks(name)) {
            seen if seen == expected => Ok(()),
            seen => Err(format!("sandboxes, containers, starts: {seen:?}, not {expected:?}")),
        }
    }
}

#[tokio::test]
async fn kill_at_any_cri_call_leaves_nothing_behind() {
    let host = Host::start().expect("a host");
    let registry = Registry::start(&host, 5000).expect("a registry");
    host.allow_plain_http(registry.address()).unwrap();
    let image = registry.push(&Image::busybox().unwrap(), "tools/busybox:1").await.expect("a push");
    let mut bench = Bench::start(host).await;

    // start
    let mut points = vec![("RunPodSandbox", ""), ("PodSandboxStatus", ""), ("PullImage", "")];
    for name in CONTAINERS {
        points.extend(["CreateContainer", "StartContainer", "ContainerStatus"].map(|m| (m, name)));
    }
    let mut names = Vec::new();
    for (index, (point, fault)) in both(&points).enumerate() {
        let name = format!("pod-{index}");
        bench.hold(&name, point, fault);
        let mut spec = bench.spec(&name);
        if point.0 == "PullImage" {
            spec["containers"][0]["image"] = json!(image);
            spec["containers"][0]["imagePullPolicy"] = json!("Always");
        }
        bench.cluster.create(&name, spec).await;
        bench.expected.insert(name.clone(), [1, 1, 1]);
        names.push(name);
    }
    bench.kill_when_held().await;
    bench.until_right(&names, 0).await;
    let uids: Vec<String> =
        join_all(names.iter().map(async |name| uid(&bench.cluster.pod(name).await))).await;

    // restart, and once more, for the run before the last is kept
    let points = ["CreateContainer", "StartContainer", "ContainerStatus"].map(|m| (m, "main"));
    let victims = bench.kill_containers(&names, &points).await;
    bench.kill_when_held().await;
    bench.until_right(&victims, 1).await;
    let victims = bench.kill_containers(&victims, &[("RemoveContainer", "main")]).await;
    bench.kill_when_held().await;
    bench.until_right(&victims, 2).await;

    // end
    let mut points =
        vec![("StopPodSandbox", ""), ("PodSandboxStatus", ""), ("RemovePodSandbox", "")];
    points.extend(["side", "main"].map(|name| ("StopContainer", name)));
    points.extend(CONTAINERS.map(|name| ("RemoveContainer", name)));
    for (name, (point, fault)) in names.iter().zip(both(&points)) {
        bench.hold(name, point, fault);
    }
    join_all(names.iter().map(|name| bench.cluster.delete(name))).await;
    bench.kill_when_held().await;
    join_all(names.iter().map(|name| bench.cluster.until_gone(name))).await;
    join_all(uids.iter().map(|uid| bench.cluster.until_removed(uid))).await;
    for (name, expected) in &bench.expected {
        assert_eq!(bench.marks(name), *expected, "{name}");
    }
    assert_eq!(bench.log_links(), Vec::<PathBuf>::new());
    drop(bench.proxy);
    bench.cluster.host.assert_clean();
}

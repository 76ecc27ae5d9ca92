//! Cgroups of pods, as the kernel has them: on cgroup v1 and v2, with the driver of
//! `LONGSHORE_CGROUP_DRIVER` (default cgroupfs).

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, container, script, uid};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::Api;
use longshore_testkit::{Host, program, wait_until};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn systemd() -> bool {
    std::env::var("LONGSHORE_CGROUP_DRIVER").is_ok_and(|driver| driver == "systemd")
}

fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A cgroup of a host's pods.
struct Group(Vec<String>);

impl Group {
    fn of(host: &Host, parts: &[&str]) -> Self {
        let name = host.name();
        let parts = [&[name.as_str(), "kubepods"], parts].concat();
        let mut group = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            match systemd() {
                false => group.push((*part).to_owned()),
                true => {
                    let above: Vec<_> = parts[..=at].iter().map(|p| p.replace('-', "_")).collect();
                    group.push(format!("{}.slice", above.join("-")));
                }
            }
        }
        Self(group)
    }

    fn of_pod(host: &Host, level: &[&str], pod: &Pod) -> Self {
        Self::of(host, &[level, &[&format!("pod{}", uid(pod))]].concat())
    }

    fn dir(&self, controller: &str) -> PathBuf {
        let root = match unified() {
            true => PathBuf::from("/sys/fs/cgroup"),
            false => Path::new("/sys/fs/cgroup").join(controller),
        };
        root.join(self.0.iter().collect::<PathBuf>())
    }

    /// The content of a file, by its name on v1 and on v2.
    fn read(&self, controller: &str, v1: &str, v2: &str) -> String {
        let file = self.dir(controller).join(if unified() { v2 } else { v1 });
        let text = fs::read_to_string(&file);
        text.unwrap_or_else(|error| panic!("{}: {error}", file.display())).trim().to_owned()
    }

    fn shares(&self) -> String {
        self.read("cpu", "cpu.shares", "cpu.weight")
    }

    fn quota(&self) -> String {
        match unified() {
            true => self.read("cpu", "", "cpu.max").split(' ').next().unwrap().to_owned(),
            false => match self.read("cpu", "cpu.cfs_quota_us", "").as_str() {
                "-1" => "max".to_owned(),
                quota => quota.to_owned(),
            },
        }
    }

    /// Bytes; `None` for no limit.
    fn memory(&self) -> Option<u64> {
        let text = self.read("memory", "memory.limit_in_bytes", "memory.max");
        text.parse().ok().filter(|bytes| *bytes < 1 << 60)
    }

    fn pids(&self) -> String {
        self.read("pids", "pids.max", "pids.max")
    }
}

/// As cgroup v2 has it where that is.
fn shares(milli_cpu: u64) -> String {
    let shares = (milli_cpu * 1024 / 1000).max(2);
    if unified() { (1 + (shares - 2) * 9999 / 262_142).to_string() } else { shares.to_string() }
}

fn pod(requests: Value, limits: Value) -> Value {
    let mut spec = script(FOREVER);
    spec["containers"][0]["resources"] = json!({"requests": requests, "limits": limits});
    spec
}

async fn until_shares(group: &Group, milli_cpu: u64) {
    wait_until(TIMEOUT, "the shares of a level", async || match group.shares() {
        found if found == shares(milli_cpu) => Ok(()),
        found => Err(format!("{found} and not {}", shares(milli_cpu))),
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn cgroup_levels_have_the_resources_of_their_pods() {
    let mut cluster = Cluster::start_with(json!({
        "podPidsLimit": 60,
        "kubeReserved": {"cpu": "100m", "memory": "256Mi"},
        "systemReserved": {"cpu": "100m", "memory": "128Mi", "pid": "1000"},
    }))
    .await;
    let exact = json!({"cpu": "250m", "memory": "64Mi"});
    let guaranteed = cluster.create("guaranteed", pod(exact.clone(), exact)).await;
    let requests = json!({"cpu": "100m", "memory": "16Mi"});
    let first = cluster.create("first", pod(requests.clone(), json!({"memory": "32Mi"}))).await;
    let second = cluster.create("second", pod(json!({"cpu": "200m"}), json!({"cpu": "1"}))).await;
    let best_effort = cluster.create("best-effort", pod(json!({}), json!({}))).await;
    for name in ["guaranteed", "first", "second", "best-effort"] {
        cluster.until_ready(name).await;
    }
    let host = &cluster.host;
    let level = |name| Group::of(host, &[name]);

    // All pods together have what is not held back.
    cluster.until_event("NodeAllocatableEnforced", "across pods").await;
    let all = Group::of(host, &[]);
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let status = nodes.get(&host.name()).await.unwrap().status.unwrap();
    let capacity = |name: &str| {
        let text = status.capacity.as_ref().unwrap()[name].0.clone();
        longshore_pod::qos::milli(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(text))
            .and_then(|milli| u64::try_from(milli).ok())
            .unwrap()
    };
    let memory = capacity("memory") / 1000 - 384 * MIB;
    assert_eq!(all.memory(), Some(memory / 4096 * 4096));
    assert_eq!(all.shares(), shares(capacity("cpu") - 200));
    let most = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let most = most.map(|file| fs::read_to_string(file).unwrap().trim().parse::<u64>().unwrap());
    assert_eq!(all.pids(), (most.iter().min().unwrap() - 1000).to_string());

    // A pod has what its containers do.
    let of = |level: &[&str], pod: &Pod| Group::of_pod(host, level, pod);
    let (burstable, least) = (level("burstable"), level("besteffort"));
    for (group, milli, quota, memory) in [
        (of(&[], &guaranteed), 250, "25000", Some(64 * MIB)),
        (of(&["burstable"], &first), 100, "max", Some(32 * MIB)),
        (of(&["burstable"], &second), 200, "100000", None),
        (of(&["besteffort"], &best_effort), 0, "max", None),
    ] {
        let found = (group.shares(), group.quota(), group.memory(), group.pids());
        let expected = (shares(milli), quota.to_owned(), memory, "60".to_owned());
        assert_eq!(found, expected, "{:?}", group.0);
    }
    assert_eq!(least.shares(), shares(0));

    // No container swaps.
    let inside = of(&[], &guaranteed).dir("memory");
    let containers = fs::read_dir(&inside).unwrap().flatten().filter(|e| e.path().is_dir());
    let swap: Vec<String> = containers
        .filter_map(|entry| {
            let file = if unified() { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
            fs::read_to_string(entry.path().join(file)).ok()
        })
        .map(|text| text.trim().to_owned())
        .collect();
    let expected = if unified() { "0".to_owned() } else { (64 * MIB).to_string() };
    assert!(swap.contains(&expected), "{swap:?}");

    // A level follows its pods, those that an earlier daemon started among them.
    assert_eq!(burstable.shares(), shares(300));
    cluster.node.restart(&cluster.host).unwrap();
    cluster.create("third", pod(requests, json!({}))).await;
    cluster.until_ready("third").await;
    until_shares(&burstable, 400).await;
    for (name, left) in [("first", 300), ("second", 100), ("third", 0)] {
        cluster.delete(name).await;
        cluster.until_gone(name).await;
        until_shares(&burstable, left).await;
    }
    cluster.until_removed(&uid(&first)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cgroup_pids_limit_stops_a_fork_bomb() {
    let cluster = Cluster::start_with(json!({"podPidsLimit": 30})).await;
    cluster.create("web", script(FOREVER)).await;
    let mut bomb = script("i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done; wait");
    bomb["restartPolicy"] = json!("Never");
    bomb["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    cluster.create("bomb", bomb).await;
    let bombed = cluster
        .until("bomb", "ends, as it cannot fork", |pod| {
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref());
            let status = statuses.and_then(|statuses| statuses.first());
            let state = status.and_then(|status| status.state.as_ref());
            let ended = state.and_then(|state| state.terminated.as_ref());
            let ended = ended.ok_or_else(|| format!("{state:?}"))?;
            let message = ended.message.as_deref().unwrap_or_default();
            match ended.exit_code != 0 && message.contains("fork") {
                true => Ok(()),
                false => Err(format!("{ended:?}")),
            }
        })
        .await;
    cluster.until_ready("web").await;
    cluster.delete("bomb").await;
    cluster.until_gone("bomb").await;
    cluster.until_removed(&uid(&bombed)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cgroup_creation_failure_is_reported() {
    let unified = if unified() { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/unified" };
    let cluster = Cluster::start().await;
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    let group = Group::of(&cluster.host, &["besteffort"]);
    let level = Path::new(unified).join(group.0.iter().collect::<PathBuf>());
    let bound = level.join("cgroup.max.descendants");
    if !bound.exists() {
        eprintln!("no tree of cgroup v2 on this machine: nothing to bound");
        return;
    }
    fs::write(&bound, "0").unwrap();
    let stuck = cluster.create("stuck", pod(json!({}), json!({}))).await;
    cluster.create("web", pod(json!({"cpu": "10m"}), json!({}))).await;
    let name = Group::of_pod(&cluster.host, &["besteffort"], &stuck).0.pop().unwrap();
    cluster.until_event("FailedCreatePodContainer", &name).await;
    cluster.until_ready("web").await;
    fs::write(&bound, "max").unwrap();
    cluster.until_ready("stuck").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cgroup_system_reserved_is_enforced() {
    if systemd() {
        eprintln!("the machine's own slices are left alone");
        return;
    }
    let host = Host::start().unwrap();
    let cgroup = format!("/{}/reserved", host.name());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    for root in mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (root, kind) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup").then(|| PathBuf::from(root))
    }) {
        fs::create_dir(root.join(cgroup.trim_start_matches('/'))).unwrap();
    }
    let config = json!({
        "systemReserved": {"cpu": "100m", "memory": "128Mi", "pid": "500"},
        "systemReservedCgroup": cgroup,
        "enforceNodeAllocatable": ["pods", "system-reserved"],
    });
    let cluster = Cluster::on(host, config).await;
    cluster.until_event("NodeAllocatableEnforced", "system reserved cgroup").await;
    let group = Group(cgroup.split('/').skip(1).map(str::to_owned).collect());
    let found = (group.shares(), group.memory(), group.pids());
    assert_eq!(found, (shares(100), Some(128 * MIB), "500".to_owned()));
    cluster.host.assert_clean();
}

/// What the daemon says when it does not start with this configuration.
fn refusal(host: &Host, config: &Value) -> String {
    let mut whole = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupRoot": host.cgroup_root(),
        "containerRuntimeEndpoint": format!("unix://{}", host.socket().display()),
        "failCgroupV1": false,
        "failSwapOn": false,
    });
    for (field, value) in config.as_object().unwrap() {
        whole[field] = value.clone();
    }
    let file = host.dir().join("config.yaml");
    fs::write(&file, whole.to_string()).unwrap();
    let output = host
        .command(program("longshore").unwrap())
        .arg("kubelet")
        .arg(format!("--config={}", file.display()))
        .arg(format!("--root-dir={}", host.dir().join("root").display()))
        .args(["--hostname-override=n1", "--node-ip=127.0.0.1"])
        .output()
        .unwrap();
    assert!(!output.status.success(), "{config} was taken");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn cgroup_invalid_config_is_rejected_by_field() {
    let host = Host::bare().unwrap();
    let kube_reserved = json!(["pods", "kube-reserved"]);
    let mut cases = vec![
        (json!({"kubeReserved": {"memory": "1Pi"}}), "kubeReserved"),
        (json!({"systemReserved": {"pid": "1G"}}), "systemReserved"),
        (json!({"evictionHard": {"memory.available": "1Pi"}}), "evictionHard"),
        (json!({"cgroupRoot": "/nobody-has-made-this"}), "cgroupRoot: cgroup"),
        (json!({"cgroupRoot": "/a/../b"}), "cgroupRoot"),
        (
            json!({"enforceNodeAllocatable": kube_reserved, "kubeReservedCgroup": "/nobody-made-this"}),
            "kubeReservedCgroup: cgroup",
        ),
        (json!({"enforceNodeAllocatable": kube_reserved}), "kubeReservedCgroup: must be set"),
        (json!({"enforceNodeAllocatable": ["pots"]}), "enforceNodeAllocatable: \"pots\""),
        (json!({"cgroupsPerQOS": false}), "cgroupsPerQOS: must be true"),
        (json!({"reservedSystemCPUs": "0-8000"}), "reservedSystemCPUs"),
        (json!({"qosReserved": {"memory": "150%"}}), "qosReserved[memory]"),
    ];
    if !unified() {
        cases.push((json!({"failCgroupV1": true}), "failCgroupV1"));
        let limited = json!({"swapBehavior": "LimitedSwap"});
        cases.push((json!({"memorySwap": limited}), "memorySwap.swapBehavior"));
    }
    if !Path::new("/run/systemd/system").exists() {
        cases.push((json!({"cgroupDriver": "systemd"}), "cgroupDriver: systemd cannot be reached"));
    }
    for (config, field) in cases {
        let text = refusal(&host, &config);
        assert!(text.contains(field), "{field} is not in {text}");
    }
    host.assert_clean();
}

#[tokio::test]
async fn cgroup_driver_must_match_the_runtime() {
    let host = Host::start().unwrap();
    let version = host.ctr(["version"]).unwrap();
    if version.contains("v2.") || version.contains(" 2.") {
        eprintln!("this runtime reports its driver, and the config has no say");
        return;
    }
    let (other, ours) = if systemd() { ("cgroupfs", "systemd") } else { ("systemd", "cgroupfs") };
    let mut cluster = Cluster::on(host, json!({"cgroupDriver": other})).await;
    let status = cluster.node.daemon().wait(Duration::from_secs(60)).unwrap();
    assert!(!status.success());
    let log = cluster.node.daemon().log();
    let expected = format!("cgroupDriver: {other} is set, but the container runtime uses {ours}");
    assert!(log.contains(&expected) && log.contains("SystemdCgroup"), "{log}");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cgroup_container_limits_are_within_their_pods() {
    let cluster = Cluster::start().await;
    // What a container may not have is not the fault of its neighbour.
    let mut spec = script("exec tail /dev/zero");
    spec["restartPolicy"] = json!("Never");
    spec["containers"] = json!([container("hog", "exec tail /dev/zero"), container("c", FOREVER)]);
    let exact = json!({"cpu": "100m", "memory": "24Mi"});
    for container in spec["containers"].as_array_mut().unwrap() {
        container["resources"] = json!({"limits": exact, "requests": exact});
    }
    cluster.create("pod", spec).await;
    cluster
        .until("pod", "the hog is killed, and nobody else", |pod| {
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone());
            let of = |name: &str| {
                let mut statuses = statuses.iter().flatten();
                statuses.find(|status| status.name == name)?.state.clone()
            };
            let reason = of("hog").and_then(|s| s.terminated).and_then(|ended| ended.reason);
            let runs = of("c").is_some_and(|state| state.running.is_some());
            match (reason.as_deref(), runs) {
                (Some("OOMKilled"), true) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    cluster.host.assert_clean();
}

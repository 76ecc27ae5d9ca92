//! Exclusive CPUs and NUMA-local memory of containers. On machines with two CPUs or more: all but the
//! last are reserved, so that one container can have it.

use crate::common;

use std::path::Path;
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, phase, run_of, script, uid};
use k8s_openapi::api::core::v1::Pod;
use longshore_testkit::{Host, NodeOptions, wait_until};
use serde_json::{Value, json};

/// The last CPU, and the list of those before it.
fn cpus() -> (u32, String) {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last = online.trim().rsplit(['-', ',']).next().unwrap().parse::<u32>().unwrap();
    assert!(last > 0, "these tests need two CPUs, numbered from 0: {online}");
    assert_eq!(online.trim(), format!("0-{last}"));
    (last, if last == 1 { "0".to_owned() } else { format!("0-{}", last - 1) })
}

fn config() -> Value {
    json!({
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "1s",
        "reservedSystemCPUs": cpus().1,
        "memoryManagerPolicy": "Static",
        "kubeReserved": {"memory": "100Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
        "topologyManagerPolicy": "restricted",
    })
}

/// A pod that asks for one CPU and 32 MiB of its own.
fn guaranteed() -> Value {
    let mut spec = script(FOREVER);
    let amounts = json!({"cpu": "1", "memory": "32Mi"});
    spec["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    spec
}

fn state(root: &Path, file: &str) -> Value {
    let text = std::fs::read_to_string(root.join(file)).expect(file);
    serde_json::from_str(&text).expect(file)
}

/// A file of /proc about the first process of the container `c`.
fn proc(host: &Host, pod: &Pod, file: &str) -> Result<String, String> {
    let (_, id) = run_of(pod);
    let id = id.trim_start_matches("containerd://");
    let tasks = host.ctr(["tasks", "ls"]).map_err(|error| error.to_string())?;
    let task = tasks.lines().find(|line| line.starts_with(id)).ok_or(tasks.clone())?;
    let pid = task.split_whitespace().nth(1).ok_or(task)?;
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| error.to_string())
}

/// The CPU quotas of the container `c` and of its pod.
fn quotas(host: &Host, pod: &Pod) -> [String; 2] {
    let groups = proc(host, pod, "cgroup").unwrap();
    let find = |controller: &str| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|own| own == controller).then_some(path)
        })
    };
    let (group, file) = match find("cpu") {
        Some(path) => (format!("/sys/fs/cgroup/cpu{path}"), "cpu.cfs_quota_us"),
        None => (format!("/sys/fs/cgroup{}", find("").unwrap()), "cpu.max"),
    };
    [Path::new(&group), Path::new(&group).parent().unwrap()].map(|group| {
        let quota = std::fs::read_to_string(group.join(file)).expect("a quota");
        quota.split_whitespace().next().unwrap().replace("max", "-1")
    })
}

/// The CPUs that the kernel lets the container `c` run on.
fn allowed(host: &Host, pod: &Pod) -> Result<String, String> {
    let status = proc(host, pod, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.map(|list| list.trim().to_owned()).ok_or(status)
}

async fn until_allowed(cluster: &Cluster, pod: &Pod, expected: &str) {
    wait_until(TIMEOUT, &format!("CPUs {expected}"), async || match allowed(&cluster.host, pod) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(found),
        Err(error) => Err(error),
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn cpu_manager_assigns_exclusive_cpus() {
    let (last, others) = cpus();
    let (last, all) = (last.to_string(), format!("0-{last}"));
    let mut cluster = Cluster::start_with(config()).await;
    let root = cluster.node.root_dir();
    cluster.create("shared", script(FOREVER)).await;
    let shared = cluster.until_ready("shared").await;
    until_allowed(&cluster, &shared, &all).await;

    cluster.create("own", guaranteed()).await;
    let own = cluster.until_ready("own").await;
    assert_eq!(allowed(&cluster.host, &own), Ok(last.clone()), "from its start on");
    assert_eq!(quotas(&cluster.host, &own), ["-1", "-1"], "nobody else is on its CPU");
    until_allowed(&cluster, &shared, &others).await;
    let cpu_state = state(&root, "cpu_manager_state");
    assert_eq!(cpu_state["policyName"], "static");
    assert_eq!(cpu_state["defaultCpuSet"], others);
    assert_eq!(cpu_state["entries"], json!({uid(&own): {"c": last}}));
    let memory_state = state(&root, "memory_manager_state");
    let block = json!({"numaAffinity": [0], "type": "memory", "size": 32 << 20});
    assert_eq!(memory_state["entries"], json!({uid(&own): {"c": [block]}}));
    let memory = &memory_state["machineState"]["0"]["memoryMap"]["memory"];
    assert_eq!(
        (&memory["systemReserved"], &memory["reserved"]),
        (&json!(100 << 20), &json!(32 << 20))
    );

    // There is no other.
    cluster.create("late", guaranteed()).await;
    let late = cluster.until("late", "refused", |pod| match phase(pod) {
        "Failed" => Ok(()),
        other => Err(other.to_owned()),
    });
    let status = late.await.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("TopologyAffinityError"), "{status:?}");
    let message = status.message.unwrap();
    assert!(message.contains("Resources cannot be allocated with Topology locality"), "{message}");

    // A daemon that comes after this one keeps it, and assigns the CPU to no other pod.
    cluster.node.restart(&cluster.host).expect("started again");
    cluster.create("next", script(FOREVER)).await;
    let next = cluster.until_ready("next").await;
    until_allowed(&cluster, &next, &others).await;
    let kept = cluster.pod("own").await;
    assert_eq!((run_of(&kept), allowed(&cluster.host, &kept)), (run_of(&own), Ok(last)));
    assert_eq!(state(&root, "cpu_manager_state"), cpu_state);
    assert_eq!(state(&root, "memory_manager_state"), memory_state);

    // Its end gives everything back.
    cluster.delete("own").await;
    cluster.until_gone("own").await;
    until_allowed(&cluster, &shared, &all).await;
    until_allowed(&cluster, &next, &all).await;
    let cpu_state = state(&root, "cpu_manager_state");
    assert_eq!((&cpu_state["defaultCpuSet"], &cpu_state["entries"]), (&json!(all), &Value::Null));
    assert_eq!(state(&root, "memory_manager_state")["entries"], Value::Null);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cpu_manager_rejection_without_a_topology_policy() {
    let (last, _) = cpus();
    let mut with = config();
    with["topologyManagerPolicy"] = json!("none");
    with["memoryManagerPolicy"] = json!("None");
    with["reservedMemory"] = Value::Null;
    let mut cluster = Cluster::start_with(with).await;
    cluster.create("own", guaranteed()).await;
    let own = cluster.until_ready("own").await;
    cluster.create("late", guaranteed()).await;
    let late = cluster
        .until("late", "refused", |pod| match phase(pod) {
            "Failed" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    let status = late.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"), "{status:?}");
    let message = status.message.unwrap();
    let expected = "Allocate failed due to not enough cpus available to satisfy request: \
                    requested=1, available=0, which is unexpected";
    assert!(message.contains(expected), "{message}");

    // Its end while no daemon runs is noticed by the next one.
    let (_, id) = run_of(&own);
    cluster.node.daemon().kill().expect("killed");
    let id = id.trim_start_matches("containerd://");
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", id]).expect("killed");
    cluster.delete("own").await;
    cluster.node.restart(&cluster.host).expect("started again");
    cluster.until_gone("own").await;
    cluster.create("again", guaranteed()).await;
    let again = cluster.until_ready("again").await;
    assert_eq!(allowed(&cluster.host, &again), Ok(last.to_string()));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn cpu_manager_rejects_state_of_another_policy() {
    let host = Host::start().expect("a host");
    let refused = |with: &Value| {
        let config = with.as_object().cloned().unwrap();
        let options = NodeOptions { config, ..NodeOptions::default() };
        let mut node = longshore_testkit::Node::standalone(&host, options).expect("a node");
        let status = node.daemon().wait(Duration::from_secs(30)).expect("it ends");
        assert!(!status.success());
        node.daemon().log()
    };
    let with = |field: &str, value: Value| {
        let mut config = config();
        config[field] = value;
        config
    };
    for (config, expected) in [
        (with("reservedSystemCPUs", json!("")), "cpuManagerPolicy: the static policy requires"),
        (with("reservedSystemCPUs", json!("4000")), "reservedSystemCPUs: \"4000\" is not a subset"),
        (with("kubeReserved", json!({"memory": "1Gi"})), "reservedMemory: the total amount"),
        (with("cpuManagerPolicyOptions", json!({"quick": "true"})), "cpuManagerPolicyOptions: "),
        (with("memoryManagerPolicy", json!("static")), "memoryManagerPolicy: "),
    ] {
        let log = refused(&config);
        assert!(log.contains(expected), "{expected}: {log}");
    }
    let file = host.dir().join("node/root/cpu_manager_state");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    std::fs::write(&file, none).unwrap();
    let log = refused(&config());
    let expected = "configured policy \"static\" differs from state checkpoint policy \"none\", \
                    please drain this node and delete the CPU manager checkpoint file";
    assert!(log.replace('\\', "").contains(expected), "{log}");
    host.assert_clean();
}

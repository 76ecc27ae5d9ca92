//! Resource usage of node and pods, on a real containerd: the same values in `/stats/summary`,
//! `/metrics/resource`, `/metrics/cadvisor` and the cAdvisor API, and close to what the pods use.

use crate::common;

use std::fs;
use std::net::Ipv4Addr;

use common::{FOREVER, TIMEOUT, container};
use longshore_metrics::parse::{Page, parse};
use longshore_testkit::{Host, Node, NodeOptions, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MI: u64 = 1 << 20;
const READ_ONLY: u16 = 10255;
const CADVISOR: u16 = 4194;

async fn page(node: Ipv4Addr, port: u16, path: &str) -> Result<String, String> {
    let request = async {
        let mut connection = tokio::net::TcpStream::connect((node, port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = request.await.map_err(|error: std::io::Error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| answer.clone())?;
    match head.starts_with("HTTP/1.0 200") {
        true => Ok(body.to_owned()),
        false => Err(answer),
    }
}

async fn metrics(node: Ipv4Addr, path: &str) -> Result<Page, String> {
    let text = page(node, READ_ONLY, path).await?;
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(names.is_sorted(), "the families of {path} are in order");
    parse(&text).map_err(|error| format!("{path}: {error}"))
}

async fn document(node: Ipv4Addr, port: u16, path: &str) -> Result<Value, String> {
    let text = page(node, port, path).await?;
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error}: {text}"))
}

fn within(what: &str, found: &Value, low: u64, high: u64) -> Result<u64, String> {
    let number = found.as_u64().ok_or_else(|| format!("{what}: {found}"))?;
    match (low..=high).contains(&number) {
        true => Ok(number),
        false => Err(format!("{what}: {number} is not from {low} to {high}")),
    }
}

fn pod_of<'a>(summary: &'a Value, name: &str) -> Result<&'a Value, String> {
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    let found = pods.find(|pod| pod["podRef"]["name"] == name);
    found.ok_or_else(|| format!("no pod {name} in {}", summary["pods"]))
}

/// A pod that takes memory, writes to its root, a volume, another one in memory and its log, sends
/// packets, and then takes all the CPU that it may.
fn busy(node: Ipv4Addr) -> Value {
    let script = format!(
        "dd if=/dev/zero bs=48M count=1 2>/dev/null | sleep 3600 & \
         dd if=/dev/zero of=/x bs=1M count=20 2>/dev/null; \
         dd if=/dev/zero of=/v/x bs=1M count=12 2>/dev/null; \
         dd if=/dev/zero of=/m/x bs=1M count=4 2>/dev/null; \
         yes 0123456789abcdef | head -c 1000000; \
         ping -c 30 -i 0.1 -s 1000 {node} >/dev/null; \
         trap 'exit 0' TERM; while :; do :; done"
    );
    let mut busy = container("burn", &script);
    let amounts = json!({"cpu": "200m", "memory": "256Mi"});
    busy["resources"] = json!({"limits": amounts, "requests": {"cpu": "50m", "memory": "64Mi"}});
    busy["volumeMounts"] =
        json!([{"name": "v", "mountPath": "/v"}, {"name": "m", "mountPath": "/m"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [busy],
            "volumes": [
                {"name": "v", "emptyDir": {}},
                {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            ],
        },
    })
}

fn idle() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "idle"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container("c", FOREVER)]},
    })
}

/// The summary of the busy pod, or what of it is wrong.
fn check_busy(pod: &Value) -> Result<(), String> {
    let container = &pod["containers"][0];
    if container["name"] != "burn" {
        return Err(pod.to_string());
    }
    let memory = &container["memory"];
    within("working set", &memory["workingSetBytes"], 48 * MI, 140 * MI)?;
    within("rss", &memory["rssBytes"], 48 * MI, 100 * MI)?;
    within("usage", &memory["usageBytes"], 52 * MI, 256 * MI)?;
    let left = memory["availableBytes"].as_u64().unwrap_or(0);
    let used = memory["workingSetBytes"].as_u64().unwrap_or(0);
    within("available", &json!(left + used), 256 * MI, 256 * MI)?;
    within("cpu a second", &container["cpu"]["usageNanoCores"], 10_000_000, 300_000_000)?;
    within("cpu in all", &container["cpu"]["usageCoreNanoSeconds"], 100_000_000, u64::MAX)?;
    within("root", &container["rootfs"]["usedBytes"], 20 * MI, 24 * MI)?;
    within("logs", &container["logs"]["usedBytes"], 1_000_000, 4_000_000)?;
    let volume = |name: &str| {
        let mut volumes = pod["volume"].as_array().into_iter().flatten();
        volumes.find(|volume| volume["name"] == name).ok_or_else(|| format!("no volume {name}"))
    };
    within("volume", &volume("v")?["usedBytes"], 12 * MI, 13 * MI)?;
    within("volume in memory", &volume("m")?["usedBytes"], 4 * MI, 5 * MI)?;
    within("its capacity", &volume("m")?["capacityBytes"], 16 * MI, 16 * MI)?;
    let stored = within("stored", &pod["ephemeral-storage"]["usedBytes"], 33 * MI, 42 * MI)?;
    let free = pod["ephemeral-storage"]["availableBytes"].as_u64().unwrap_or(0);
    if free + stored == 0 || pod["network"]["name"] != "eth0" {
        return Err(pod.to_string());
    }
    within("received", &pod["network"]["rxBytes"], 30_000, 1_000_000)?;
    within("sent", &pod["network"]["txBytes"], 30_000, 1_000_000)?;
    within("processes", &pod["process_stats"]["process_count"], 3, 12)?;
    let of_pod = pod["memory"]["workingSetBytes"].as_u64().unwrap_or(0);
    match of_pod >= used {
        true => Ok(()),
        false => Err(format!("the pod uses {of_pod}, its container {used}")),
    }
}

fn check_node(summary: &Value, node: &str) {
    let node_stats = &summary["node"];
    assert_eq!(node_stats["nodeName"], node);
    let total = longshore_testkit::total_memory().unwrap();
    let memory = &node_stats["memory"];
    let used = within("node's memory", &memory["workingSetBytes"], 50 * MI, total).unwrap();
    assert_eq!(memory["availableBytes"].as_u64().unwrap(), total - used);
    within("node's CPU", &node_stats["cpu"]["usageCoreNanoSeconds"], 1_000_000_000, u64::MAX)
        .unwrap();
    for fs in [
        &node_stats["fs"],
        &node_stats["runtime"]["imageFs"],
        &node_stats["runtime"]["containerFs"],
    ] {
        within("capacity", &fs["capacityBytes"], 100 * MI, u64::MAX).unwrap();
        within("available", &fs["availableBytes"], 1, u64::MAX).unwrap();
        within("inodes", &fs["inodes"], 1, u64::MAX).unwrap();
    }
    within(
        "pids",
        &node_stats["rlimit"]["curproc"],
        2,
        node_stats["rlimit"]["maxpid"].as_u64().unwrap(),
    )
    .unwrap();
    let system: Vec<&str> = node_stats["systemContainers"].as_array().into_iter().flatten().fold(
        Vec::new(),
        |mut names, container| {
            names.push(container["name"].as_str().unwrap());
            names
        },
    );
    assert!(system.contains(&"pods"), "{system:?}");
    assert!(node_stats["startTime"].as_str().unwrap() > "2000", "{node_stats}");
}

/// As metrics-server does: CPU time from two scrapes by their own timestamps.
async fn check_resources(node: Ipv4Addr, pod: &str) {
    let labels = [("container", "burn"), ("pod", pod), ("namespace", "default")];
    let sampled_at = |page: &Page| {
        let mut of_pod = page.samples("container_cpu_usage_seconds_total", &labels);
        of_pod.next().and_then(|sample| sample.at).unwrap()
    };
    let first = metrics(node, "/metrics/resource").await.unwrap();
    // Who asks soon after another gets the same.
    let second = wait_until(TIMEOUT, "another reading", async || {
        let page = metrics(node, "/metrics/resource").await?;
        let passed = sampled_at(&page) - sampled_at(&first);
        if passed > 1_000 { Ok(page) } else { Err(format!("{passed} ms later")) }
    })
    .await
    .unwrap();
    let sample = |page: &Page, name: &str, labels: &[(&str, &str)]| {
        let mut found: Vec<_> = page.families[name].samples.clone();
        found.retain(|sample| sample.has(labels));
        assert_eq!(found.len(), 1, "{name} {labels:?}");
        found.remove(0)
    };
    let rate = |name: &str, labels: &[(&str, &str)]| {
        let (before, after) = (sample(&first, name, labels), sample(&second, name, labels));
        let seconds = (after.at.unwrap() - before.at.unwrap()) as f64 / 1000.0;
        (after.value - before.value) / seconds
    };
    let cores = rate("container_cpu_usage_seconds_total", &labels);
    assert!((0.01..0.3).contains(&cores), "{cores} of 0.2 cores");
    let of_pod = rate("pod_cpu_usage_seconds_total", &labels[1..]);
    assert!((cores * 0.5..0.4).contains(&of_pod), "{of_pod} and {cores}");
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    let of_node = rate("node_cpu_usage_seconds_total", &[]);
    assert!((0.0..cpus * 1.5).contains(&of_node), "{of_node} of {cpus}");
    let used = sample(&second, "container_memory_working_set_bytes", &labels).value;
    assert!((48e6..150e6).contains(&used), "{used}");
    assert_eq!(second.sum("scrape_error", &[]), Some(0.0));
    let started = sample(&second, "container_start_time_seconds", &labels);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.as_secs_f64() - started.value < 600.0, "{started:?}");
}

async fn check_cadvisor(node: Ipv4Addr, pod: &str) {
    let page = metrics(node, "/metrics/cadvisor").await.unwrap();
    let of = [("container", "burn"), ("pod", pod), ("namespace", "default")];
    let one = |name: &str, labels: &[(&str, &str)]| {
        let mut found: Vec<_> = page.families[name].samples.clone();
        found.retain(|sample| sample.has(labels));
        assert_eq!(found.len(), 1, "{name} {labels:?}");
        found.remove(0)
    };
    let usage = one("container_memory_working_set_bytes", &of);
    assert!((48e6..150e6).contains(&usage.value), "{usage:?}");
    assert!(
        usage.labels["id"].ends_with(&usage.labels["name"])
            || usage.labels["id"].ends_with(".scope")
    );
    assert_eq!(usage.labels["image"], longshore_testkit::BUSYBOX);
    let cpu = one("container_cpu_usage_seconds_total", &of);
    assert!(cpu.value > 0.1 && cpu.labels["cpu"] == "total", "{cpu:?}");
    assert_eq!(one("container_spec_cpu_quota", &of).value, 20_000.0);
    assert_eq!(one("container_spec_memory_limit_bytes", &of).value, (256 * MI) as f64);
    assert!(one("container_cpu_cfs_throttled_periods_total", &of).value > 0.0);
    assert!(one("container_processes", &of).value >= 2.0);
    assert!(one("container_file_descriptors", &of).value >= 3.0);
    assert!(one("container_threads", &of).value >= 2.0);
    assert!(one("container_ulimits_soft", &of).value > 0.0);
    let network = [("pod", pod), ("interface", "eth0"), ("container", "")];
    let received = one("container_network_receive_bytes_total", &network);
    assert!(received.value >= 30_000.0 && !received.labels["image"].is_empty(), "{received:?}");
    assert!(one("container_network_transmit_packets_total", &network).value >= 30.0);
    let of_pod = [("pod", pod), ("container", ""), ("image", "")];
    assert!(one("container_memory_working_set_bytes", &of_pod).value >= usage.value * 0.5);
    let machine = one("container_memory_usage_bytes", &[("id", "/")]);
    assert!(machine.value > usage.value && machine.labels["pod"].is_empty(), "{machine:?}");
    let level = page.families["container_cpu_usage_seconds_total"].samples.iter();
    let mut level = level.filter(|sample| sample.labels["pod"].is_empty());
    assert!(level.any(|sample| sample.labels["id"].contains("burstable")));
    let total = longshore_testkit::total_memory().unwrap() as f64;
    assert_eq!(page.sum("machine_memory_bytes", &[]), Some(total));
    assert_eq!(page.sum("container_scrape_error", &[]), Some(0.0));
    assert_eq!(page.sum("cadvisor_version_info", &[]), Some(1.0));
    assert!(
        page.families["container_fs_limit_bytes"].samples.iter().all(|s| s.labels["id"] == "/")
    );
}

async fn check_interface(node: Ipv4Addr, pod: &str) {
    let get = async |path: &str| document(node, CADVISOR, path).await.unwrap();
    let machine = get("/api/v1.3/machine").await;
    assert!(machine["num_cores"].as_u64().unwrap() >= 1, "{machine}");
    assert_eq!(machine["memory_capacity"], longshore_testkit::total_memory().unwrap());
    let root = get("/api/v1.3/containers/").await;
    assert_eq!(root["name"], "/");
    let all = get("/api/v1.2/docker").await;
    let mut all = all.as_object().unwrap().values();
    let is_it = |info: &&Value| {
        let labels = &info["spec"]["labels"];
        labels["io.kubernetes.pod.name"] == pod && labels["io.kubernetes.container.name"] == "burn"
    };
    let info = all.find(is_it).unwrap();
    within("memory", &info["stats"][0]["memory"]["working_set"], 48 * MI, 140 * MI).unwrap();
    let path = info["name"].as_str().unwrap();
    let same = get(&format!("/api/v1.0/containers{path}")).await;
    assert_eq!((&same["name"], &same["spec"]["labels"]), (&info["name"], &info["spec"]["labels"]));
    let parent = path.rsplit_once('/').unwrap().0;
    let below = get(&format!("/api/v1.1/subcontainers{parent}")).await;
    let names = below.as_array().unwrap().iter().map(|info| info["name"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert!(names.contains(&path) && names.contains(&parent) && names.len() == 3, "{names:?}");
    for path in ["/api/v1.3/containers/nothing", "/api/v9/machine", "/api/v1.3/nothing"] {
        let refused = page(node, CADVISOR, path).await.unwrap_err();
        assert!(refused.starts_with("HTTP/1.0 404"), "{refused}");
    }
}

/// A pod that does nothing is sent packets, which the kernel throws away without asking it.
async fn check_packets(node: Ipv4Addr, name: &str) {
    const BYTES: usize = 1000;
    let received = async || {
        let summary = document(node, READ_ONLY, "/stats/summary").await?;
        let received = pod_of(&summary, name)?["network"]["rxBytes"].as_u64();
        received.ok_or_else(|| summary.to_string())
    };
    let before = received().await.unwrap();
    let pods = document(node, READ_ONLY, "/pods").await.unwrap();
    let mut pods = pods["items"].as_array().into_iter().flatten();
    let pod = pods.find(|pod| pod["metadata"]["name"] == name).unwrap();
    let address = (pod["status"]["podIP"].as_str().unwrap(), 9);
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    for _ in 0..5 {
        socket.send_to(&[0; BYTES], address).unwrap();
    }
    wait_until(TIMEOUT, "packets to an idle pod are counted", async || match received().await? {
        now if now >= before + 5 * BYTES as u64 => Ok(()),
        now => Err(format!("{now} bytes, {before} before")),
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn stats_of_running_pods() {
    let host = Host::start().unwrap();
    let config = json!({"readOnlyPort": READ_ONLY, "volumeStatsAggPeriod": "1s"});
    let options = NodeOptions {
        config: config.as_object().cloned().unwrap(),
        args: vec![format!("--cadvisor-port={CADVISOR}")],
        ..NodeOptions::default()
    };
    let node = Node::standalone(&host, options).unwrap();
    let ip = host.node_ip();
    let file = node.manifests().join("busy.json");
    fs::write(&file, busy(ip).to_string()).unwrap();
    fs::write(node.manifests().join("idle.json"), idle().to_string()).unwrap();
    let [busy, idle] = ["busy", "idle"].map(|name| format!("{name}-{}", host.name()));

    let summary = wait_until(TIMEOUT, "the summary shows what pods use", async || {
        let summary = document(ip, READ_ONLY, "/stats/summary").await?;
        check_busy(pod_of(&summary, &busy)?)?;
        // The runtime counts its images now and then.
        let images = &summary["node"]["runtime"]["imageFs"];
        within("images", &images["usedBytes"], 1000, u64::MAX)?;
        Ok::<_, String>(summary)
    })
    .await
    .unwrap();
    check_node(&summary, &host.name());
    let calm = &pod_of(&summary, &idle).unwrap()["containers"][0];
    within("idle memory", &calm["memory"]["workingSetBytes"], 1, 20 * MI).unwrap();
    within("idle CPU", &calm["cpu"]["usageNanoCores"], 0, 50_000_000).unwrap();
    let brief = document(ip, READ_ONLY, "/stats/summary?only_cpu_and_memory=true").await.unwrap();
    let pod = pod_of(&brief, &busy).unwrap();
    assert!(pod.get("network").is_none() && pod.get("volume").is_none(), "{pod}");
    within("memory", &pod["containers"][0]["memory"]["workingSetBytes"], 48 * MI, 140 * MI)
        .unwrap();
    assert!(brief["node"].get("fs").is_none() && brief["node"]["memory"].is_object());
    check_resources(ip, &busy).await;
    check_cadvisor(ip, &busy).await;
    check_interface(ip, &busy).await;

    check_packets(ip, &idle).await;

    fs::remove_file(&file).unwrap();
    wait_until(TIMEOUT, "a deleted pod has no stats", async || {
        let summary = document(ip, READ_ONLY, "/stats/summary").await?;
        pod_of(&summary, &idle)?;
        if pod_of(&summary, &busy).is_ok() {
            return Err("it is in the summary".to_owned());
        }
        for path in ["/metrics/resource", "/metrics/cadvisor"] {
            let text = page(ip, READ_ONLY, path).await?;
            assert!(text.contains(&idle), "{path}");
            if text.contains(&busy) {
                return Err(format!("it is on {path}"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn stats_cadvisor_endpoint_is_off_by_default() {
    let host = Host::start().unwrap();
    let config = json!({"readOnlyPort": READ_ONLY}).as_object().cloned().unwrap();
    let node = Node::standalone(&host, NodeOptions { config, ..NodeOptions::default() }).unwrap();
    let ip = host.node_ip();
    wait_until(TIMEOUT, "the node answers", async || page(ip, READ_ONLY, "/healthz").await)
        .await
        .unwrap();
    let refused = tokio::net::TcpStream::connect((ip, CADVISOR)).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let answer = metrics(ip, "/metrics/cadvisor").await.unwrap();
    assert!(answer.sum("container_cpu_usage_seconds_total", &[("id", "/")]).unwrap() > 0.0);
    drop(node);
    host.assert_clean();
}

/// The runtime reports pods. What it cannot report is read from cgroups in the summary, and missing in the
/// metrics.
#[tokio::test]
async fn stats_of_pods_from_the_runtime() {
    let host = Host::start().unwrap();
    let config = json!({
        "readOnlyPort": READ_ONLY, "featureGates": {"PodAndContainerStatsFromCRI": true},
    });
    let options =
        NodeOptions { config: config.as_object().cloned().unwrap(), ..NodeOptions::default() };
    let node = Node::standalone(&host, options).unwrap();
    let ip = host.node_ip();
    fs::write(node.manifests().join("idle.json"), idle().to_string()).unwrap();
    let name = format!("idle-{}", host.name());
    wait_until(TIMEOUT, "the pod is in the summary", async || {
        let summary = document(ip, READ_ONLY, "/stats/summary").await?;
        let pod = pod_of(&summary, &name)?;
        let container = &pod["containers"][0];
        within("cpu", &container["cpu"]["usageCoreNanoSeconds"], 1, u64::MAX)?;
        within("memory", &container["memory"]["workingSetBytes"], 1, 100 * MI)?;
        within("memory of the pod", &pod["memory"]["workingSetBytes"], 1, 100 * MI)?;
        within("root", &container["rootfs"]["usedBytes"], 1, MI)?;
        within("processes", &pod["process_stats"]["process_count"], 1, 12)?;
        if pod["network"]["name"] == "eth0" { Ok(()) } else { Err(pod.to_string()) }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    let resources = metrics(ip, "/metrics/resource").await.unwrap();
    let labels = [("container", "c"), ("namespace", "default"), ("pod", name.as_str())];
    assert!(resources.sum("container_cpu_usage_seconds_total", &labels).unwrap() > 0.0);
    let provider = [("provider", "cri")];
    // Its families are not in order.
    let own = parse(&page(ip, READ_ONLY, "/metrics").await.unwrap()).unwrap();
    assert_eq!(own.sum("kubelet_metrics_provider", &provider), Some(1.0));
    let of_runtime = metrics(ip, "/metrics/cadvisor").await.unwrap();
    assert!(of_runtime.sum("machine_cpu_cores", &[]).unwrap() > 0.0);
    assert!(!of_runtime.families.contains_key("container_scrape_error"), "not those of cgroups");
    drop(node);
    host.assert_clean();
}

//! The node as shipped: installed on a machine, started by its systemd unit, with systemd slices on
//! cgroup v2. `make vm-test` makes such a machine and installs it (`scripts/vm/payload.sh`).

use crate::common;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{FOREVER, TIMEOUT, container, get_json, get_text, manifest};
use longshore_testkit::{Image, wait_until};
use serde_json::{Value, json};

const UNIT: &str = "longshore.service";
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const CGROUPS: &str = "/sys/fs/cgroup";
/// `podPidsLimit` of the machine's configuration.
const PIDS: u32 = 64;

/// Runs a program to its end; it must succeed.
fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said} {complaint}");
    said
}

fn property(unit: &str, name: &str) -> String {
    run("systemctl", &["show", "--value", "--property", name, unit])
}

fn journal() -> String {
    run("journalctl", &["--no-pager", "--output=cat", "--unit", UNIT])
}

fn ctr(args: &[&str]) -> String {
    run("ctr", &[&["-n", "k8s.io"], args].concat())
}

/// What containers have running: id, process and state, a line each.
fn tasks() -> Vec<String> {
    let mut tasks: Vec<String> = ctr(&["tasks", "ls"]).lines().skip(1).map(str::to_owned).collect();
    tasks.sort();
    tasks
}

/// A file of a cgroup.
fn read(group: &Path, file: &str) -> String {
    let path = group.join(file);
    fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim()
        .to_owned()
}

/// Starts the service, which systemd takes for started when the node says so.
fn start_node() {
    for image in [Image::pause().unwrap(), Image::busybox().unwrap()] {
        let known = ctr(&["images", "ls", "-q"]);
        if !known.lines().any(|reference| reference == image.reference()) {
            let file = tempfile::NamedTempFile::new().unwrap();
            image.write(file.path()).unwrap();
            ctr(&["images", "import", file.path().to_str().unwrap()]);
        }
    }
    run("systemctl", &["start", UNIT]);
}

/// A pod that runs by its manifest.
struct StaticPod {
    name: String,
    file: PathBuf,
}

impl StaticPod {
    fn create(name: &str, restart: &str, container: Value) -> Self {
        Self::write(name, &manifest(name, restart, json!([container])))
    }

    fn write(name: &str, manifest: &str) -> Self {
        let file = Path::new(MANIFESTS).join(format!("{name}.yaml"));
        fs::write(&file, manifest).unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        Self { name: format!("{name}-{}", host.trim()), file }
    }

    /// The pod as the node shows it, once `check` is content.
    async fn until(&self, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        wait_until(TIMEOUT, &format!("pod {}: {what}", self.name), async || {
            let pods = get_json(Ipv4Addr::LOCALHOST, "/pods").await?;
            let mut all = pods["items"].as_array().into_iter().flatten();
            let found = all.find(|pod| pod["metadata"]["name"] == self.name);
            let pod = found.ok_or_else(|| format!("not among {pods}"))?;
            if check(pod) { Ok(pod.clone()) } else { Err(pod["status"].to_string()) }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", journal()))
    }

    async fn until_ready(&self) -> Value {
        self.until("ready", |pod| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
        })
        .await
    }

    /// Takes the manifest away, and waits until no container of the pod is left.
    async fn remove(self) {
        let name = self.name.clone();
        drop(self);
        let filter = format!("labels.\"io.kubernetes.pod.name\"=={name}");
        wait_until(TIMEOUT, &format!("no container of {name}"), async || {
            match ctr(&["containers", "ls", "-q", &filter]) {
                none if none.is_empty() => Ok(()),
                some => Err(some),
            }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", journal()));
    }
}

impl Drop for StaticPod {
    /// A test that failed leaves nothing that another would trip over.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn with_resources(text: &str, resources: Value) -> Value {
    let mut container = container("c", text);
    container["resources"] = resources;
    container
}

/// The pod's slice, by the level of its quality of service.
fn slice(pod: &Value, level: &str) -> String {
    let uid = pod["metadata"]["uid"].as_str().unwrap().replace('-', "_");
    format!("kubepods{level}-pod{uid}.slice")
}

/// The container's id, and how often it was started again.
fn run_of(pod: &Value) -> (String, i64) {
    let status = &pod["status"]["containerStatuses"][0];
    let id = status["containerID"].as_str().unwrap().trim_start_matches("containerd://");
    (id.to_owned(), status["restartCount"].as_i64().unwrap())
}

/// Where systemd has a unit's cgroup.
fn group(unit: &str) -> PathBuf {
    let group = property(unit, "ControlGroup");
    assert!(!group.is_empty(), "{unit} has no cgroup");
    Path::new(CGROUPS).join(group.trim_start_matches('/'))
}

#[tokio::test]
#[ignore = "takes the machine for its own: `make vm-test` runs it"]
async fn systemd_unit_starts_the_node() {
    // Without the manual pages that it names: the machine has no `man`.
    run("systemd-analyze", &["--man=no", "verify", &format!("/etc/systemd/system/{UNIT}")]);
    start_node();
    assert_eq!(property(UNIT, "ActiveState"), "active");
    let pid = property(UNIT, "MainPID");
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "-999");
    let pod = StaticPod::create("hello", "Never", container("c", "echo hello; sleep 1; exit 3"));
    let ended = pod.until("failed", |pod| pod["status"]["phase"] == "Failed").await;
    let end = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&end["exitCode"], &end["reason"]), (&json!(3), &json!("Error")), "{end}");
    let uid = ended["metadata"]["uid"].as_str().unwrap();
    let log = format!("/var/log/pods/default_{}_{uid}/c/0.log", pod.name);
    assert!(fs::read_to_string(&log).unwrap().contains("stdout F hello"), "{log}");
    pod.remove().await;
}

#[tokio::test]
#[ignore = "takes the machine for its own: `make vm-test` runs it"]
async fn cgroup_systemd_driver_makes_slices_and_scopes() {
    start_node();
    let resources = json!({
        "requests": {"cpu": "250m", "memory": "32Mi"},
        "limits": {"cpu": "500m", "memory": "64Mi"},
    });
    let burstable = StaticPod::create("burstable", "Always", with_resources(FOREVER, resources));
    let best_effort = StaticPod::create("besteffort", "Always", container("c", FOREVER));
    let same = json!({"limits": {"cpu": "100m", "memory": "32Mi"}});
    let guaranteed = StaticPod::create("guaranteed", "Always", with_resources(FOREVER, same));
    let table = [
        (&burstable, "-burstable", "kubepods.slice/kubepods-burstable.slice"),
        (&best_effort, "-besteffort", "kubepods.slice/kubepods-besteffort.slice"),
        (&guaranteed, "", "kubepods.slice"),
    ];
    for (pod, level, parent) in table {
        let shown = pod.until_ready().await;
        let slice = slice(&shown, level);
        assert_eq!(property(&slice, "ActiveState"), "active", "{slice}");
        assert_eq!(group(&slice), Path::new(CGROUPS).join(parent).join(&slice));
        assert_eq!(read(&group(&slice), "pids.max"), PIDS.to_string(), "{slice}");
        let (id, _) = run_of(&shown);
        let scope = group(&format!("cri-containerd-{id}.scope"));
        assert_eq!(scope.parent(), Some(group(&slice).as_path()));
        // One process over the limit takes the whole container with it.
        assert_eq!(read(&scope, "memory.oom.group"), "1");
    }
    let shown = burstable.until_ready().await;
    let pod = group(&slice(&shown, "-burstable"));
    let container = group(&format!("cri-containerd-{}.scope", run_of(&shown).0));
    for group in [&pod, &container] {
        assert_eq!(read(group, "cpu.max"), "50000 100000");
        assert_eq!(read(group, "memory.max"), (64 << 20).to_string());
    }
    assert_eq!(read(&pod, "cpu.weight"), "10");
    // The runtime has its own conversion: runc changed it in 1.3.
    let weight = read(&container, "cpu.weight");
    assert!(["10", "35"].contains(&weight.as_str()), "{weight}");

    let slices =
        [slice(&shown, "-burstable"), slice(&best_effort.until_ready().await, "-besteffort")];
    for pod in [burstable, best_effort, guaranteed] {
        pod.remove().await;
    }
    for slice in slices {
        wait_until(TIMEOUT, &format!("{slice} is gone"), async || {
            match property(&slice, "ActiveState").as_str() {
                "inactive" => Ok(()),
                state => Err(state.to_owned()),
            }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", journal()));
    }
}

#[tokio::test]
#[ignore = "takes the machine for its own: `make vm-test` runs it"]
async fn cgroup_pids_limit_stops_a_fork_bomb_on_systemd() {
    start_node();
    // What it made goes on when the shell gives up; were there no limit, the machine would live.
    let bomb = "(i=0; while [ $i -lt 300 ]; do i=$((i+1)); sleep 1000 & done) 2>/dev/null
        exec tail -f /dev/null";
    let bomb = StaticPod::create("bomb", "Always", container("c", bomb));
    let shown = bomb.until_ready().await;
    let group = group(&slice(&shown, "-besteffort"));
    wait_until(TIMEOUT, "the bomb meets its limit", async || {
        let events = read(&group, "pids.events");
        let refused =
            events.lines().find_map(|line| line.strip_prefix("max ")?.parse::<u64>().ok());
        if refused > Some(0) { Ok(()) } else { Err(events) }
    })
    .await
    .unwrap();
    let processes: u32 = read(&group, "pids.current").parse().unwrap();
    assert!(processes <= PIDS, "{processes}");
    let other = StaticPod::create("other", "Always", container("c", FOREVER));
    other.until_ready().await;
    other.remove().await;
    bomb.remove().await;
}

#[tokio::test]
#[ignore = "takes the machine for its own: `make vm-test` runs it"]
async fn systemd_service_stop_keeps_containers() {
    start_node();
    let pod = StaticPod::create("web", "Always", container("c", FOREVER));
    let before = run_of(&pod.until_ready().await);
    let running = tasks();
    let main = property(UNIT, "MainPID");
    let same = async |what: &str| {
        assert_eq!(run_of(&pod.until_ready().await), before, "{what}");
        assert_eq!(tasks(), running, "{what}");
    };
    run("systemctl", &["restart", UNIT]);
    assert_ne!(property(UNIT, "MainPID"), main);
    same("restarted").await;

    run("systemctl", &["stop", UNIT]);
    assert_eq!(property(UNIT, "Result"), "success", "{}", journal());
    assert_eq!(tasks(), running, "stopped");
    run("systemctl", &["start", UNIT]);
    same("started again").await;

    // A node that is killed, and one that hangs, are started again by systemd.
    let drop_in = Path::new("/run/systemd/system").join(format!("{UNIT}.d"));
    fs::create_dir_all(&drop_in).unwrap();
    fs::write(drop_in.join("quick.conf"), "[Service]\nWatchdogSec=6\nRestartSec=1\n").unwrap();
    run("systemctl", &["daemon-reload"]);
    run("systemctl", &["restart", UNIT]);
    for (signal, watched) in [("SIGKILL", false), ("SIGSTOP", true)] {
        let restarts = property(UNIT, "NRestarts").parse::<u32>().unwrap();
        if watched {
            // Longer than the watchdog waits for a sign of life.
            tokio::time::sleep(std::time::Duration::from_secs(8)).await;
            assert_eq!(property(UNIT, "NRestarts"), restarts.to_string(), "{}", journal());
        }
        run("systemctl", &["kill", "--kill-whom=main", "--signal", signal, UNIT]);
        wait_until(TIMEOUT, &format!("a restart after {signal}"), async || {
            let state = [property(UNIT, "NRestarts"), property(UNIT, "ActiveState")];
            let again = state[0].parse() == Ok(restarts + 1) && state[1] == "active";
            if again { Ok(()) } else { Err(format!("{state:?}")) }
        })
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", journal()));
        same(signal).await;
    }
    fs::remove_dir_all(&drop_in).unwrap();
    run("systemctl", &["daemon-reload"]);
    run("systemctl", &["restart", UNIT]);
    pod.remove().await;
}

/// Sends a signal as if it were logind's.
fn announce_shutdown(destination: Option<&str>) {
    let mut args = vec!["emit"];
    let destination = destination.map(|name| format!("--destination={name}"));
    args.extend(destination.as_deref());
    args.extend(["/org/freedesktop/login1", "org.freedesktop.login1.Manager"]);
    run("busctl", &[&args[..], &["PrepareForShutdown", "b", "true"]].concat());
}

/// The metric's value.
async fn metric(name: &str) -> f64 {
    let text = get_text(Ipv4Addr::LOCALHOST, "/metrics").await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// The lock that delays a shutdown.
fn has_lock() -> bool {
    run("systemd-inhibit", &["--list", "--no-legend"])
        .lines()
        .any(|line| line.contains("kubelet") && line.contains("shutdown") && line.contains("delay"))
}

#[tokio::test]
#[ignore = "takes the machine for its own: `make vm-test` runs it"]
async fn node_shutdown_by_logind_ends_pods_in_order() {
    const CONFIG: &str = "/var/lib/kubelet/config.yaml";
    const POWEROFF: &str = "/etc/systemd/system/poweroff.target";
    let config = fs::read_to_string(CONFIG).unwrap();
    let periods = "shutdownGracePeriod: 60s\nshutdownGracePeriodCriticalPods: 30s\n";
    fs::write(CONFIG, format!("{config}{periods}")).unwrap();
    // The machine survives: the target does nothing, and then logind takes the announcement back.
    fs::write(POWEROFF, "[Unit]\nDescription=No power-off\nDefaultDependencies=no\n").unwrap();
    run("systemctl", &["daemon-reload"]);
    start_node();
    run("systemctl", &["restart", UNIT]);
    wait_until(TIMEOUT, "a lock", async || if has_lock() { Ok(()) } else { Err(journal()) })
        .await
        .unwrap();
    let delay = ["org.freedesktop.login1.Manager", "InhibitDelayMaxUSec"];
    let path = ["org.freedesktop.login1", "/org/freedesktop/login1"];
    let delay = run("busctl", &[&["get-property"], &path[..], &delay].concat());
    assert_eq!(delay, "t 60000000", "logind waits for as long as the pods may take");

    let trace = tempfile::tempdir().unwrap();
    let traced = |name: &str, seconds: u32| {
        let script = format!(
            "trap 'sleep {seconds}; cat /proc/uptime >/trace/{name}; exit 0' TERM; \
             while :; do sleep 0.2; done"
        );
        let mut container = container("c", &script);
        container["volumeMounts"] = json!([{"name": "trace", "mountPath": "/trace"}]);
        container
    };
    let create = |name: &str, class: &str, container: Value| {
        let mut object: Value =
            serde_json::from_str(&manifest(name, "Always", json!([container]))).unwrap();
        object["spec"]["terminationGracePeriodSeconds"] = 25.into();
        object["spec"]["volumes"] = json!([{"name": "trace", "hostPath": {"path": trace.path()}}]);
        if !class.is_empty() {
            object["spec"]["priorityClassName"] = class.into();
            object["spec"]["priority"] = 2_000_001_000.into();
        }
        StaticPod::write(name, &object.to_string())
    };
    let usual = create("usual", "", traced("usual", 2));
    let critical = create("critical", "system-node-critical", traced("critical", 0));
    let before = run_of(&usual.until_ready().await);
    critical.until_ready().await;

    // Everybody may send signals on the bus: the node knows logind's.
    announce_shutdown(None);
    for name in run("busctl", &["list", "--no-legend", "--unique"]).lines() {
        if name.contains("longshore") {
            announce_shutdown(name.split_whitespace().next());
        }
    }
    wait_until(TIMEOUT, "the signals are seen", async || {
        match journal().matches("not from logind is ignored").count() {
            2.. => Ok(()),
            _ => Err(journal()),
        }
    })
    .await
    .unwrap();
    assert_eq!(metric("kubelet_graceful_shutdown_start_time_seconds").await, 0.0);
    assert_eq!(run_of(&usual.until_ready().await), before);

    let args =
        ["call", path[0], path[1], "org.freedesktop.login1.Manager", "PowerOff", "b", "false"];
    run("busctl", &args);
    for pod in [&usual, &critical] {
        let ended = pod.until("failed", |pod| pod["status"]["phase"] == "Failed").await;
        let status = &ended["status"];
        assert_eq!(status["reason"], "Terminated", "{status}");
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(status["message"], message, "{status}");
    }
    wait_until(TIMEOUT, "the end of the shutdown", async || {
        match metric("kubelet_graceful_shutdown_end_time_seconds").await {
            0.0 => Err(journal()),
            _ => Ok(()),
        }
    })
    .await
    .unwrap();
    let ended_at = |name: &str| {
        let text = fs::read_to_string(trace.path().join(name)).unwrap();
        text.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    assert!(ended_at("usual") < ended_at("critical"), "critical pods end last");
    let start = metric("kubelet_graceful_shutdown_start_time_seconds").await;
    assert!(start > 0.0, "{start}");

    // The node takes pods again under a new lock.
    wait_until(TIMEOUT, "a new lock", async || {
        let cancelled = journal().contains("detected shutdown cancellation");
        if cancelled && has_lock() { Ok(()) } else { Err(journal()) }
    })
    .await
    .unwrap();
    let after = StaticPod::create("after", "Always", container("c", FOREVER));
    after.until_ready().await;
    for pod in [usual, critical, after] {
        pod.remove().await;
    }
    fs::remove_file(POWEROFF).unwrap();
    run("systemctl", &["daemon-reload"]);
    fs::write(CONFIG, config).unwrap();
    run("systemctl", &["restart", UNIT]);
}

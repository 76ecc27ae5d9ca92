//! Pods and containers from the container runtime, with their use of CPU and memory, and logs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use longshore_cri::v1::{
    Container, ContainerState, ContainerStats, ExecRequest, PodSandbox, PodSandboxState,
};
use longshore_cri::{Error, Options, Runtime};

use crate::shell::COMMAND;
use crate::snapshot::{ContainerSample, PodSample};

const TIMEOUT: Duration = Duration::from_secs(5);
/// What a kubelet writes on sandboxes and containers; others, of the runtime's other users, are not the node's.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// How much of a log is shown.
const LOG_LINES: u64 = 1000;
const LOG_BYTES: usize = 1 << 20;

/// CPU time of a container at some time, both in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct CpuTime {
    at: i64,
    used: u64,
}

/// A container runtime.
pub(crate) struct Containers {
    runtime: Runtime,
    cpu: HashMap<String, CpuTime>,
}

impl Containers {
    pub(crate) fn new(endpoint: &str) -> Result<Self, String> {
        let mut options = Options::new(endpoint);
        options.request_timeout = TIMEOUT;
        let runtime = Runtime::new(options).map_err(|error| error.to_string())?;
        Ok(Self::of(runtime))
    }

    pub(crate) fn of(runtime: Runtime) -> Self {
        Self { runtime, cpu: HashMap::new() }
    }

    /// The pods that the runtime has, by namespace and name.
    pub(crate) async fn query(&mut self) -> Result<Vec<PodSample>, String> {
        let parts = tokio::try_join!(
            self.runtime.list_pod_sandboxes(None),
            self.runtime.list_containers(None),
            self.runtime.list_container_stats(None)
        );
        let (sandboxes, containers, stats) = parts.map_err(|error: Error| error.to_string())?;
        let now = Timestamp::now();
        let usage = usage(&stats, &mut self.cpu);
        Ok(pods(&sandboxes, &containers, &usage, now))
    }

    /// The URL at which a shell in a container is served, once.
    pub(crate) async fn shell(&self, id: &str) -> Result<String, String> {
        let request = ExecRequest {
            container_id: id.to_owned(),
            cmd: COMMAND.map(str::to_owned).into(),
            tty: true,
            stdin: true,
            stdout: true,
            stderr: false,
        };
        self.runtime.exec(request).await.map_err(|error| error.to_string())
    }

    /// The end of a container's log.
    pub(crate) async fn log(&self, id: &str) -> Result<Vec<String>, String> {
        let status = self.runtime.container_status(id).await.map_err(|error| error.to_string())?;
        if status.log_path.is_empty() {
            return Err("the runtime keeps no log of it".to_owned());
        }
        let path = status.log_path;
        let read = tokio::task::spawn_blocking(move || {
            longshore_logs::tail(path.as_ref(), LOG_LINES, LOG_BYTES)
                .map_err(|error| format!("{path}: {error}"))
        });
        let bytes = read.await.map_err(|error| error.to_string())??;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }
}

/// Thousandths of a core and bytes.
type Usage = (Option<u64>, Option<u64>);

/// What each container uses. CPU is that since the last call: `last` is replaced.
fn usage(stats: &[ContainerStats], last: &mut HashMap<String, CpuTime>) -> HashMap<String, Usage> {
    let mut now = HashMap::new();
    let mut usage = HashMap::new();
    for one in stats {
        let Some(attributes) = &one.attributes else { continue };
        let memory = one.memory.as_ref().and_then(|memory| memory.working_set_bytes.as_ref());
        let memory = memory.map(|bytes| bytes.value);
        let cpu = one.cpu.as_ref().and_then(|cpu| {
            let used = cpu.usage_core_nano_seconds.as_ref()?.value;
            Some(CpuTime { at: cpu.timestamp, used })
        });
        // The runtime's own rate, where it has one, is of some seconds ago: it serves until there are two of ours.
        let reported = one.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores.as_ref());
        let reported = reported.map(|nanos| nanos.value / 1_000_000);
        let before = last.get(&attributes.id);
        let since = cpu.zip(before).and_then(|(cpu, before)| millicores(*before, cpu));
        usage.insert(attributes.id.clone(), (since.or(reported), memory));
        if let Some(cpu) = cpu {
            now.insert(attributes.id.clone(), cpu);
        }
    }
    *last = now;
    usage
}

/// Nothing where no time has passed, or where a counter went back.
fn millicores(before: CpuTime, now: CpuTime) -> Option<u64> {
    let time = u64::try_from(now.at.checked_sub(before.at)?).ok().filter(|time| *time > 0)?;
    let used = now.used.checked_sub(before.used)?;
    used.saturating_mul(1000).checked_div(time)
}

/// Sandboxes and containers as pods. Of several sandboxes of a pod, and of several containers of one name, the last
/// counts.
fn pods(
    sandboxes: &[PodSandbox],
    containers: &[Container],
    usage: &HashMap<String, Usage>,
    now: Timestamp,
) -> Vec<PodSample> {
    let mut last: BTreeMap<String, &PodSandbox> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(name) = pod_name(&sandbox.labels) else { continue };
        let known = last.entry(name).or_insert(sandbox);
        if sandbox.created_at > known.created_at {
            *known = sandbox;
        }
    }
    let pod = |(name, sandbox): (String, &PodSandbox)| {
        let own = containers.iter().filter(|container| container.pod_sandbox_id == sandbox.id);
        let containers = samples(own, usage);
        let is_ready = sandbox.state() == PodSandboxState::SandboxReady;
        let created = Timestamp::from_nanosecond(sandbox.created_at.into()).unwrap_or(now);
        PodSample {
            name,
            status: if is_ready { "Running" } else { "Stopped" }.to_owned(),
            ready: None,
            expected: containers.len(),
            restarts: containers.iter().fold(0, |sum, one| one.restarts.saturating_add(sum)),
            ip: None,
            port: None,
            age: now.duration_since(created).as_secs().max(0),
            containers,
        }
    };
    last.into_iter().map(pod).collect()
}

fn pod_name(labels: &BTreeMap<String, String>) -> Option<String> {
    Some(format!("{}/{}", labels.get(POD_NAMESPACE)?, labels.get(POD_NAME)?))
}

fn samples<'a>(
    containers: impl Iterator<Item = &'a Container>,
    usage: &HashMap<String, Usage>,
) -> Vec<ContainerSample> {
    let mut last: BTreeMap<&str, &Container> = BTreeMap::new();
    for container in containers {
        let Some(name) = container.labels.get(CONTAINER_NAME) else { continue };
        let known = last.entry(name).or_insert(container);
        if container.created_at > known.created_at {
            *known = container;
        }
    }
    let sample = |(name, container): (&str, &Container)| {
        let is_running = container.state() == ContainerState::ContainerRunning;
        let used = usage.get(&container.id).filter(|_| is_running);
        let (millicores, memory) = used.copied().unwrap_or_default();
        ContainerSample {
            name: name.to_owned(),
            id: container.id.clone(),
            state: match container.state() {
                ContainerState::ContainerCreated => "Created",
                ContainerState::ContainerRunning => "Running",
                ContainerState::ContainerExited => "Exited",
                ContainerState::ContainerUnknown => "Unknown",
            },
            restarts: container.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
            millicores,
            memory,
        }
    };
    last.into_iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{
        ContainerAttributes, ContainerMetadata, CpuUsage, MemoryUsage, UInt64Value,
    };

    use super::*;

    fn labels(name: &str, container: &str) -> BTreeMap<String, String> {
        [(POD_NAMESPACE, "n"), (POD_NAME, name), (CONTAINER_NAME, container)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    fn sandbox(id: &str, pod: &str, created_at: i64) -> PodSandbox {
        PodSandbox { id: id.into(), labels: labels(pod, ""), created_at, ..PodSandbox::default() }
    }

    fn container(id: &str, sandbox: &str, name: &str, attempt: u32) -> Container {
        Container {
            id: id.into(),
            pod_sandbox_id: sandbox.into(),
            labels: labels("p", name),
            created_at: attempt.into(),
            state: ContainerState::ContainerRunning.into(),
            metadata: Some(ContainerMetadata { name: name.into(), attempt }),
            ..Container::default()
        }
    }

    fn stats(id: &str, at: i64, used: u64) -> ContainerStats {
        let value = |value| Some(UInt64Value { value });
        ContainerStats {
            attributes: Some(ContainerAttributes {
                id: id.into(),
                ..ContainerAttributes::default()
            }),
            cpu: Some(CpuUsage {
                timestamp: at,
                usage_core_nano_seconds: value(used),
                ..CpuUsage::default()
            }),
            memory: Some(MemoryUsage { working_set_bytes: value(7), ..MemoryUsage::default() }),
            ..ContainerStats::default()
        }
    }

    #[test]
    fn node_view_pods_of_the_runtime_have_their_last_containers() {
        let sandboxes = [
            sandbox("old", "p", 1),
            sandbox("new", "p", 2),
            PodSandbox { id: "of somebody else".into(), ..PodSandbox::default() },
        ];
        let containers = [
            container("gone", "old", "a", 0),
            container("a1", "new", "a", 1),
            container("a3", "new", "a", 3),
            container("b0", "new", "b", 0),
        ];
        let usage = HashMap::from([("a3".to_owned(), (Some(5), Some(6)))]);
        let now = Timestamp::from_second(100).unwrap();
        let found = pods(&sandboxes, &containers, &usage, now);
        assert_eq!(found.len(), 1, "{found:?}");
        let pod = &found[0];
        assert_eq!((pod.name.as_str(), pod.restarts, pod.age), ("n/p", 3, 99));
        let ids: Vec<&str> = pod.containers.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["a3", "b0"]);
        assert_eq!((pod.millicores(), pod.memory()), (Some(5), Some(6)));
        assert_eq!(pods(&[sandbox("x", "p", i64::MIN)], &[], &usage, now).len(), 1);
    }

    #[test]
    fn node_view_cpu_is_that_between_two_snapshots() {
        let mut last = HashMap::new();
        assert_eq!(usage(&[stats("a", 0, 0)], &mut last)["a"], (None, Some(7)));
        let second = 1_000_000_000;
        assert_eq!(usage(&[stats("a", second, 250_000_000)], &mut last)["a"], (Some(250), Some(7)));
        // the same time, a counter that went back, and times that no clock shows
        assert_eq!(usage(&[stats("a", second, 250_000_000)], &mut last)["a"].0, None);
        assert_eq!(usage(&[stats("a", 2 * second, 0)], &mut last)["a"].0, None);
        assert_eq!(usage(&[stats("a", i64::MIN, u64::MAX)], &mut last)["a"].0, None);
        assert_eq!(usage(&[stats("a", i64::MAX, 0)], &mut last)["a"].0, None);
        assert!(usage(&[ContainerStats::default()], &mut last).is_empty() && last.is_empty());
    }
}

//! What containers and sandboxes use, as the engine measures it. The network of a pod is not the engine's: it is
//! read in the namespace of the sandbox.

use bollard::models::{ContainerStatsResponse, ContainerSummary};
use bollard::query_parameters::{InspectContainerOptionsBuilder, StatsOptionsBuilder};
use futures::{StreamExt, TryStreamExt, stream};
use longshore_cri::v1::{
    Container, ContainerAttributes, ContainerStats, ContainerStatsFilter, CpuUsage,
    FilesystemIdentifier, FilesystemUsage, LinuxPodSandboxStats, MemoryUsage,
    NetworkInterfaceUsage, NetworkUsage, PodSandbox, PodSandboxAttributes, PodSandboxFilter,
    PodSandboxStats, PodSandboxStatsFilter, ProcessUsage, UInt64Value,
};

use crate::error::docker_status;
use crate::image_names::ImageNames;
use crate::labels::Kind;
use crate::runtime::DockerRuntime;
use crate::{Error, Result, container, timestamp};

/// Containers that the engine is asked about at a time.
const AT_ONCE: usize = 8;
/// A pod's own interface.
const INTERFACE: &str = "eth0";
/// No table of interfaces is larger.
const MAX_TABLE: usize = 1 << 20;

impl DockerRuntime {
    /// What a container uses.
    ///
    /// # Errors
    /// NotFound, and of the engine.
    pub(crate) async fn container_stats(&self, id: &str) -> Result<ContainerStats> {
        let known = self.inspect(id, Kind::Container).await?;
        let id = known.id.as_deref().unwrap_or(id);
        let not_found = || Error::NotFound { kind: "container", id: id.to_owned() };
        let status =
            container::status::status(&known, ImageNames::default()).ok_or_else(not_found)?;
        let container = Container {
            id: status.id,
            metadata: status.metadata,
            labels: status.labels,
            annotations: status.annotations,
            ..Container::default()
        };
        self.stats_of(container).await?.ok_or_else(not_found)
    }

    /// What the running containers that match a filter use.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn list_container_stats(
        &self,
        filter: Option<&ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>> {
        let selector = filter.map(|filter| &filter.label_selector).into_iter().flatten();
        let labels: Vec<_> = selector.map(|(key, value)| format!("{key}={value}")).collect();
        let listed = self.list(Kind::Container, &labels).await?;
        let running = listed.into_iter().filter(is_running).filter_map(container::status::item);
        let matching: Vec<_> = running
            .filter(|container| {
                filter.is_none_or(|filter| {
                    container.id.starts_with(&filter.id)
                        && container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
                })
            })
            .collect();
        stream::iter(matching)
            .map(|container| self.stats_of(container))
            .buffer_unordered(AT_ONCE)
            .try_filter_map(async |stats| Ok(stats))
            .try_collect()
            .await
    }

    /// `None` when it has gone meanwhile.
    async fn stats_of(&self, container: Container) -> Result<Option<ContainerStats>> {
        let Some(measured) = self.measure(&container.id).await? else { return Ok(None) };
        let info = self.info().await?;
        let now = timestamp::now();
        let size = self.layer_size(&container.id).await?;
        let writable_layer = size.map(|bytes| FilesystemUsage {
            timestamp: now,
            fs_id: Some(FilesystemIdentifier { mountpoint: info.root_dir.clone() }),
            used_bytes: some(bytes),
            inodes_used: None,
        });
        Ok(Some(ContainerStats {
            attributes: Some(ContainerAttributes {
                id: container.id,
                metadata: container.metadata,
                labels: container.labels,
                annotations: container.annotations,
            }),
            cpu: Some(cpu(&measured, now)),
            memory: Some(memory(&measured, info.memory, now)),
            writable_layer,
            ..ContainerStats::default()
        }))
    }

    /// One measurement; `None` when the container has gone.
    async fn measure(&self, id: &str) -> Result<Option<ContainerStatsResponse>> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let mut stats = std::pin::pin!(self.engine.stats(id, Some(options)));
        match stats.next().await {
            Some(Ok(stats)) => Ok(Some(stats)),
            Some(Err(error)) if docker_status(&error) == Some(404) => Ok(None),
            Some(Err(error)) => Err(Error::docker(format!("statistics of container {id}"), error)),
            None => Ok(None),
        }
    }

    async fn layer_size(&self, id: &str) -> Result<Option<u64>> {
        if let Some(bytes) = self.sizes.get(id) {
            return Ok(Some(bytes));
        }
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let container = match self.engine.inspect_container(id, Some(options)).await {
            Ok(container) => container,
            Err(error) if docker_status(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(Error::docker(format!("size of container {id}"), error)),
        };
        let bytes = container.size_rw.and_then(|bytes| u64::try_from(bytes).ok());
        if let Some(bytes) = bytes {
            self.sizes.insert(id, bytes);
        }
        Ok(bytes)
    }

    /// What a sandbox and its containers use.
    ///
    /// # Errors
    /// NotFound, and of the engine.
    pub(crate) async fn sandbox_stats(&self, id: &str) -> Result<PodSandboxStats> {
        let (status, known) = self.sandbox_status(id).await?;
        let filter = ContainerStatsFilter {
            pod_sandbox_id: status.id.clone(),
            ..ContainerStatsFilter::default()
        };
        let containers = self.list_container_stats(Some(&filter)).await?;
        let own = self.measure(&status.id).await?.unwrap_or_default();
        let now = timestamp::now();
        let (info, mut processes) = (self.info().await?, processes(&own));
        for container in &containers {
            let id = container.attributes.as_ref().map(|attributes| attributes.id.as_str());
            let measured = self.measure(id.unwrap_or_default()).await?.unwrap_or_default();
            processes = processes.saturating_add(self::processes(&measured));
        }
        let pid = known.state.and_then(|state| state.pid).filter(|pid| *pid > 0);
        let network = match pid {
            Some(pid) => network(pid, now).await,
            None => None,
        };
        let linux = LinuxPodSandboxStats {
            cpu: Some(total_cpu(cpu(&own, now), &containers)),
            memory: Some(total_memory(memory(&own, info.memory, now), &containers)),
            network,
            process: Some(ProcessUsage { timestamp: now, process_count: some(processes) }),
            containers,
            io: None,
        };
        Ok(PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                id: status.id,
                metadata: status.metadata,
                labels: status.labels,
                annotations: status.annotations,
            }),
            linux: Some(linux),
            windows: None,
        })
    }

    /// What the ready sandboxes that match a filter use.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn list_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>> {
        let filter = filter.unwrap_or_default();
        let filter =
            PodSandboxFilter { id: filter.id, label_selector: filter.label_selector, state: None };
        let listed = self.list_sandboxes(Some(&filter)).await?;
        let ready = listed.into_iter().filter(|sandbox: &PodSandbox| sandbox.state == 0);
        let stats =
            stream::iter(ready.map(async |sandbox| match self.sandbox_stats(&sandbox.id).await {
                Err(error) if error.is_not_found() => Ok(None),
                result => result.map(Some),
            }));
        stats.buffer_unordered(AT_ONCE).try_filter_map(async |stats| Ok(stats)).try_collect().await
    }
}

fn is_running(container: &ContainerSummary) -> bool {
    container.state == Some(bollard::models::ContainerSummaryStateEnum::RUNNING)
}

#[allow(clippy::unnecessary_wraps, reason = "the form of the messages' fields")]
fn some(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn value(number: Option<&UInt64Value>) -> u64 {
    number.map_or(0, |number| number.value)
}

fn processes(stats: &ContainerStatsResponse) -> u64 {
    stats.pids_stats.as_ref().and_then(|pids| pids.current).unwrap_or(0)
}

fn cpu(stats: &ContainerStatsResponse, timestamp: i64) -> CpuUsage {
    let usage = stats.cpu_stats.as_ref().and_then(|cpu| cpu.cpu_usage.as_ref());
    CpuUsage {
        timestamp,
        usage_core_nano_seconds: some(usage.and_then(|usage| usage.total_usage).unwrap_or(0)),
        ..CpuUsage::default()
    }
}

/// The names are those of cgroup v1, then of v2.
fn memory(stats: &ContainerStatsResponse, machine: u64, timestamp: i64) -> MemoryUsage {
    let memory = stats.memory_stats.clone().unwrap_or_default();
    let details = memory.stats.unwrap_or_default();
    let detail =
        |names: [&str; 2]| names.iter().find_map(|name| details.get(*name)).copied().unwrap_or(0);
    let usage = memory.usage.unwrap_or(0);
    let working_set = usage.saturating_sub(detail(["total_inactive_file", "inactive_file"]));
    // Without a limit of its own the engine tells the machine's memory, or more.
    let limit = memory.limit.filter(|limit| *limit != 0 && *limit < machine);
    MemoryUsage {
        timestamp,
        working_set_bytes: some(working_set),
        available_bytes: limit.and_then(|limit| some(limit.saturating_sub(working_set))),
        usage_bytes: some(usage),
        rss_bytes: some(detail(["total_rss", "anon"])),
        page_faults: some(detail(["total_pgfault", "pgfault"])),
        major_page_faults: some(detail(["total_pgmajfault", "pgmajfault"])),
        psi: None,
    }
}

fn total_cpu(mut total: CpuUsage, containers: &[ContainerStats]) -> CpuUsage {
    let used = containers.iter().filter_map(|c| c.cpu.as_ref()?.usage_core_nano_seconds.as_ref());
    let own = value(total.usage_core_nano_seconds.as_ref());
    total.usage_core_nano_seconds = some(used.fold(own, |sum, one| sum.saturating_add(one.value)));
    total
}

fn total_memory(own: MemoryUsage, containers: &[ContainerStats]) -> MemoryUsage {
    let sum = |field: fn(&MemoryUsage) -> Option<&UInt64Value>| {
        let all = containers.iter().filter_map(|container| container.memory.as_ref()).chain([&own]);
        some(all.fold(0_u64, |sum, memory| sum.saturating_add(value(field(memory)))))
    };
    MemoryUsage {
        timestamp: own.timestamp,
        working_set_bytes: sum(|memory| memory.working_set_bytes.as_ref()),
        usage_bytes: sum(|memory| memory.usage_bytes.as_ref()),
        rss_bytes: sum(|memory| memory.rss_bytes.as_ref()),
        page_faults: sum(|memory| memory.page_faults.as_ref()),
        major_page_faults: sum(|memory| memory.major_page_faults.as_ref()),
        available_bytes: None,
        psi: None,
    }
}

/// The interfaces in the namespace of a process; `None` when it has gone.
async fn network(pid: i64, timestamp: i64) -> Option<NetworkUsage> {
    let mut table = tokio::fs::read_to_string(format!("/proc/{pid}/net/dev")).await.ok()?;
    table.truncate(table.floor_char_boundary(MAX_TABLE));
    let (own, interfaces) = interfaces(&table).partition(|interface| interface.name == INTERFACE);
    let own: Vec<NetworkInterfaceUsage> = own;
    Some(NetworkUsage { timestamp, default_interface: own.into_iter().next(), interfaces })
}

/// Lines of `/proc/net/dev`, without the loopback's: name, received bytes, packets, errors, …, sent bytes at
/// the ninth place.
fn interfaces(table: &str) -> impl Iterator<Item = NetworkInterfaceUsage> {
    table.lines().skip(2).filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
        let number = |at: usize| numbers.get(at).and_then(|number| some(*number));
        let name = name.trim().to_owned();
        (name != "lo").then(|| NetworkInterfaceUsage {
            name,
            rx_bytes: number(0),
            rx_errors: number(2),
            tx_bytes: number(8),
            tx_errors: number(10),
        })
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerCpuStats, ContainerCpuUsage, ContainerMemoryStats};

    use super::*;

    fn measured(details: &[(&str, u64)]) -> ContainerStatsResponse {
        ContainerStatsResponse {
            cpu_stats: Some(ContainerCpuStats {
                cpu_usage: Some(ContainerCpuUsage {
                    total_usage: Some(70),
                    ..ContainerCpuUsage::default()
                }),
                ..ContainerCpuStats::default()
            }),
            memory_stats: Some(ContainerMemoryStats {
                usage: Some(1000),
                limit: Some(5000),
                stats: Some(details.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()),
                ..ContainerMemoryStats::default()
            }),
            ..ContainerStatsResponse::default()
        }
    }

    #[test]
    fn memory_is_read_of_both_versions_of_cgroups() {
        for details in [
            [("total_inactive_file", 300), ("total_rss", 40)],
            [("inactive_file", 300), ("anon", 40)],
        ] {
            let memory = memory(&measured(&details), 10_000, 1);
            assert_eq!(value(memory.working_set_bytes.as_ref()), 700);
            assert_eq!(value(memory.available_bytes.as_ref()), 4300);
            assert_eq!(value(memory.rss_bytes.as_ref()), 40);
        }
        let unlimited = memory(&measured(&[]), 5000, 1);
        assert_eq!(unlimited.available_bytes, None);
        assert_eq!(memory(&ContainerStatsResponse::default(), 0, 1).usage_bytes, some(0));
    }

    #[test]
    fn a_pod_uses_what_its_containers_do() {
        let one = ContainerStats {
            cpu: Some(cpu(&measured(&[]), 1)),
            memory: Some(memory(&measured(&[]), 0, 1)),
            ..ContainerStats::default()
        };
        let total = total_cpu(cpu(&measured(&[]), 1), &[one.clone(), one.clone()]);
        assert_eq!(value(total.usage_core_nano_seconds.as_ref()), 210);
        let total = total_memory(memory(&measured(&[]), 0, 1), &[one]);
        assert_eq!(value(total.usage_bytes.as_ref()), 2000);
    }

    #[test]
    fn interfaces_are_read() {
        let table = "Inter-|\n face |\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 1 2 0 0 0 0 0 30 3 4 0 0 0 0 0\nbroken\nx: y\n";
        let found: Vec<_> = interfaces(table).collect();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].name.as_str(), value(found[0].rx_errors.as_ref())), ("eth0", 2));
        assert_eq!(
            (value(found[0].tx_bytes.as_ref()), value(found[0].tx_errors.as_ref())),
            (30, 4)
        );
        assert_eq!(found[1].tx_bytes, None);
    }
}

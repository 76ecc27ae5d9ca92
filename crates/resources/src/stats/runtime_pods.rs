//! Stats of pods as the runtime reports them, for the server (gate PodAndContainerStatsFromCRI).
//!
//! The runtime may report any sandbox and container: what the node does not observe is left out, as is
//! what another one of the same name has replaced.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use longshore_cri::v1::{
    ContainerStats, FilesystemUsage, LinuxPodSandboxStats, PodSandboxStats, UInt64Value,
};
use longshore_pod::observed::{ObservedPod, Sandbox, State};
use longshore_pod::usage::Space;
use tracing::{debug, warn};

use super::cached::Error;
use super::rates::Rates;
use super::{Layers, Stats};

/// A pod.
#[derive(Clone, Debug)]
pub struct RuntimePod {
    /// The pod as it is observed.
    pub pod: Arc<ObservedPod>,
    /// Creation time of its sandbox.
    pub created_at: Timestamp,
    /// Stats of the pod as a whole; the list of containers is empty.
    pub stats: LinuxPodSandboxStats,
    /// Its running containers, the newest of each name.
    pub containers: Vec<RuntimeContainer>,
}

/// A container.
#[derive(Clone, Debug)]
pub struct RuntimeContainer {
    /// Its ID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its creation time.
    pub created_at: Timestamp,
    /// Its stats. A CPU rate that the runtime does not report is that since the previous list.
    pub stats: ContainerStats,
}

/// The time of a sample of the runtime, in nanoseconds since 1970; without one, 1970.
#[must_use]
pub fn runtime_time(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or_default()
}

impl Stats {
    /// The pods as the runtime reports them, from a list of at most that age; `None` if the runtime has
    /// no such list.
    ///
    /// # Errors
    /// The call failed otherwise.
    pub async fn runtime_pods(
        &self,
        max_age: Duration,
    ) -> Result<Arc<Option<Vec<RuntimePod>>>, Error> {
        let shared = self.shared.clone();
        let read = || async move {
            match shared.runtime.list_pod_sandbox_stats(None).await {
                Ok(listed) => {
                    let mut pods = join(&shared.observer.all(), listed);
                    set_rates(&shared.runtime_rates, &mut pods);
                    Ok(Some(pods))
                }
                Err(error) if error.is_unimplemented() => {
                    if shared.runtime_pods.last().is_none() {
                        warn!("the runtime has no ListPodSandboxStats: cgroups are read instead");
                    }
                    debug!(%error, "failed to list stats of sandboxes");
                    Ok(None)
                }
                Err(error) => Err(Error::of(error)),
            }
        };
        self.shared.runtime_pods.get(max_age, read).await
    }
}

impl RuntimePod {
    /// The writable layers of all containers of these pods.
    pub fn layers(pods: &[Self]) -> Layers {
        let containers = || pods.iter().flat_map(|pod| &pod.containers);
        let layer = |container: &RuntimeContainer| {
            let layer = container.stats.writable_layer.as_ref()?;
            Some((container.id.clone(), space(layer)))
        };
        let layers = containers().filter_map(|container| container.stats.writable_layer.as_ref());
        let at = layers.map(|layer| layer.timestamp).max().unwrap_or_default();
        Layers { at: runtime_time(at), used: containers().filter_map(layer).collect() }
    }
}

/// The used space of a layer.
fn space(layer: &FilesystemUsage) -> Space {
    let value = |value: Option<UInt64Value>| value.map_or(0, |value| value.value);
    Space { bytes: value(layer.used_bytes), inodes: value(layer.inodes_used) }
}

/// The sandbox that stands for each pod name: the newest that is ready, or the newest.
fn sandboxes(observed: &[Arc<ObservedPod>]) -> HashMap<&str, (&Arc<ObservedPod>, &Sandbox)> {
    let mut by_name = HashMap::<(&str, &str), (&Arc<ObservedPod>, &Sandbox)>::new();
    for pod in observed {
        for sandbox in &pod.sandboxes {
            let better = |other: &Sandbox| {
                (sandbox.ready, sandbox.created_at) > (other.ready, other.created_at)
            };
            by_name
                .entry((&pod.namespace, &pod.name))
                .and_modify(|known| {
                    if better(known.1) {
                        *known = (pod, sandbox);
                    }
                })
                .or_insert((pod, sandbox));
        }
    }
    by_name.into_values().map(|known| (known.1.id.as_str(), known)).collect()
}

/// The reported stats of what is observed, by namespace and name.
fn join(observed: &[Arc<ObservedPod>], listed: Vec<PodSandboxStats>) -> Vec<RuntimePod> {
    let mut sandboxes = sandboxes(observed);
    let mut pods = Vec::with_capacity(sandboxes.len());
    for reported in listed {
        let Some(attributes) = &reported.attributes else { continue };
        // once for each, however often it is listed
        let Some((pod, sandbox)) = sandboxes.remove(attributes.id.as_str()) else { continue };
        let mut stats = reported.linux.unwrap_or_default();
        let containers = containers(pod, std::mem::take(&mut stats.containers));
        let (pod, created_at) = (pod.clone(), sandbox.created_at);
        pods.push(RuntimePod { pod, created_at, stats, containers });
    }
    pods.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    pods
}

/// The reported stats of a pod's running containers, by name.
fn containers(pod: &ObservedPod, listed: Vec<ContainerStats>) -> Vec<RuntimeContainer> {
    let id = |stats: &ContainerStats| stats.attributes.as_ref().map(|known| known.id.clone());
    let mut listed: HashMap<String, ContainerStats> =
        listed.into_iter().filter_map(|stats| Some((id(&stats)?, stats))).collect();
    let mut names = HashSet::new();
    let running = pod.containers.iter().filter(|one| matches!(one.state, State::Running { .. }));
    let newest = running.filter(|one| names.insert(one.name.as_str()));
    let mut found: Vec<_> = newest
        .filter_map(|one| {
            Some(RuntimeContainer {
                stats: listed.remove(&one.id)?,
                id: one.id.clone(),
                name: one.name.clone(),
                created_at: one.created_at,
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Sets the rates that the runtime does not report.
fn set_rates(rates: &Rates, pods: &mut [RuntimePod]) {
    let mut found = Vec::new();
    for container in pods.iter().flat_map(|pod| &pod.containers) {
        if let Some(cpu) = &container.stats.cpu
            && let Some(used) = cpu.usage_core_nano_seconds
        {
            found.push((container.id.clone(), runtime_time(cpu.timestamp), used.value, None));
        }
    }
    rates.update(found.iter_mut().map(|(id, at, used, rate)| (id.as_str(), *at, *used, rate)));
    let rates: HashMap<_, _> = found.into_iter().map(|(id, _, _, rate)| (id, rate)).collect();
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        let rate = rates.get(&container.id).copied().flatten();
        if let Some(cpu) = &mut container.stats.cpu
            && cpu.usage_nano_cores.is_none()
        {
            cpu.usage_nano_cores = rate.map(|value| UInt64Value { value });
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_cri::v1::{ContainerAttributes, CpuUsage, PodSandboxAttributes};
    use longshore_pod::observed::Container;

    use super::*;
    use crate::stats::fixture;

    const SECOND: i64 = 1_000_000_000;

    fn sandbox(id: &str, ready: bool, made: i64) -> Sandbox {
        Sandbox { id: id.to_owned(), ready, created_at: runtime_time(made), ..Sandbox::default() }
    }

    fn pod(name: &str, sandboxes: Vec<Sandbox>, containers: Vec<Container>) -> Arc<ObservedPod> {
        Arc::new(ObservedPod {
            uid: format!("{name}-{}", sandboxes[0].id),
            name: name.to_owned(),
            namespace: "ns".to_owned(),
            sandboxes,
            containers,
            partial: false,
        })
    }

    fn cpu(at: i64, used: u64) -> Option<CpuUsage> {
        let usage_core_nano_seconds = Some(UInt64Value { value: used });
        Some(CpuUsage { timestamp: at, usage_core_nano_seconds, ..CpuUsage::default() })
    }

    fn container(id: &str, at: i64, used: u64) -> ContainerStats {
        let attributes = Some(ContainerAttributes { id: id.to_owned(), ..Default::default() });
        ContainerStats { attributes, cpu: cpu(at, used), ..ContainerStats::default() }
    }

    fn report(sandbox: &str, containers: Vec<ContainerStats>) -> PodSandboxStats {
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes { id: sandbox.to_owned(), ..Default::default() }),
            linux: Some(LinuxPodSandboxStats { containers, ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn runtime_stats_are_of_observed_pods_only() {
        let mut exited = fixture::container("c0", "c", 1);
        exited.state = State::Created;
        let containers = vec![fixture::container("c1", "c", 2), exited];
        let observed = [
            pod("a", vec![sandbox("a1", true, 9), sandbox("a0", false, 1)], containers),
            pod("b", vec![sandbox("b-old", true, 1)], vec![]),
            pod("b", vec![sandbox("b-new", false, 2)], vec![]),
            pod("c", vec![sandbox("c-old", false, 1)], vec![]),
            pod("c", vec![sandbox("c-new", false, 2)], vec![]),
            pod("d", vec![sandbox("not-reported", true, 1)], vec![]),
        ];
        let listed = vec![
            report("b-new", vec![]),
            report("b-old", vec![]),
            report("c-old", vec![]),
            report("c-new", vec![]),
            report("a1", vec![container("c0", 0, 1), container("c1", 0, 2), container("x", 0, 3)]),
            report("a1", vec![]),
            report("a0", vec![]),
            report("unknown", vec![]),
            PodSandboxStats::default(),
        ];
        let pods = join(&observed, listed);
        let found: Vec<_> = pods
            .iter()
            .map(|pod| (pod.pod.name.as_str(), pod.pod.sandboxes[0].id.as_str()))
            .collect();
        assert_eq!(found, [("a", "a1"), ("b", "b-old"), ("c", "c-new")]);
        let ids: Vec<_> = pods[0].containers.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["c1"], "neither ended ones nor those of others");
        assert_eq!(pods[0].created_at, runtime_time(9));
    }

    #[test]
    fn runtime_stats_get_the_rates_that_the_runtime_omits() {
        let observed =
            [pod("a", vec![sandbox("a", true, 1)], vec![fixture::container("c", "c", 1)])];
        let rates = Rates::default();
        let rate = |stats| {
            let mut pods = join(&observed, vec![report("a", vec![stats])]);
            set_rates(&rates, &mut pods);
            let cpu = pods[0].containers[0].stats.cpu;
            cpu.and_then(|cpu| cpu.usage_nano_cores).map(|rate| rate.value)
        };
        assert_eq!(rate(container("c", 0, 0)), None, "there is no rate of one sample");
        assert_eq!(rate(container("c", 2 * SECOND, SECOND as u64)), Some(500_000_000));
        let mut own = container("c", 4 * SECOND, SECOND as u64);
        own.cpu.as_mut().unwrap().usage_nano_cores = Some(UInt64Value { value: 7 });
        assert_eq!(rate(own), Some(7), "the runtime's own");
        let none = ContainerStats { cpu: None, ..container("c", 0, 0) };
        assert_eq!(rate(none), None);
    }

    #[test]
    fn runtime_stats_have_writable_layers() {
        let observed =
            [pod("a", vec![sandbox("a", true, 1)], vec![fixture::container("c", "c", 1)])];
        let mut stats = container("c", 0, 0);
        let used_bytes = Some(UInt64Value { value: 3 });
        stats.writable_layer =
            Some(FilesystemUsage { timestamp: SECOND, used_bytes, ..Default::default() });
        let pods = join(&observed, vec![report("a", vec![stats])]);
        let layers = RuntimePod::layers(&pods);
        assert_eq!(layers.used, [("c".to_owned(), Space { bytes: 3, inodes: 0 })].into());
        assert_eq!(layers.at, runtime_time(SECOND));
        assert_eq!(RuntimePod::layers(&[]).used, HashMap::new());
    }
}

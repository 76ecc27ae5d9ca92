//! Probe results of a pod's containers. Written by the daemon's `probes` module; plan and status
//! read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

/// The kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Disables the others until it succeeds.
    Startup,
    /// Whether the container may receive traffic.
    Readiness,
    /// Whether the container works; it is restarted if not.
    Liveness,
}

impl ProbeKind {
    /// Its name in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }
}

/// The result of a probe, with its thresholds applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProbeResult {
    /// No result yet.
    #[default]
    Unknown,
    /// The probe succeeds.
    Success,
    /// The probe fails.
    Failure,
}

/// The results for one run of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ContainerResults {
    startup: ProbeResult,
    readiness: ProbeResult,
    liveness: ProbeResult,
}

/// The probe results of one pod, by container id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults(BTreeMap<String, ContainerResults>);

impl Default for &ProbeResults {
    fn default() -> Self {
        static NONE: ProbeResults = ProbeResults(BTreeMap::new());
        &NONE
    }
}

impl ProbeResults {
    /// Set the result of a probe, and return whether it has changed.
    pub fn set(&mut self, id: &str, kind: ProbeKind, result: ProbeResult) -> bool {
        let results = self.0.entry(id.to_owned()).or_default();
        let slot = match kind {
            ProbeKind::Startup => &mut results.startup,
            ProbeKind::Readiness => &mut results.readiness,
            ProbeKind::Liveness => &mut results.liveness,
        };
        std::mem::replace(slot, result) != result
    }

    /// The result of a probe.
    pub fn get(&self, id: &str, kind: ProbeKind) -> ProbeResult {
        let results = self.0.get(id).copied().unwrap_or_default();
        match kind {
            ProbeKind::Startup => results.startup,
            ProbeKind::Readiness => results.readiness,
            ProbeKind::Liveness => results.liveness,
        }
    }

    /// Remove the runs for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// Whether that run of the container is started: its startup probe, if it has one, succeeded.
    pub fn is_started(&self, container: &Container, id: &str) -> bool {
        container.startup_probe.is_none()
            || self.get(id, ProbeKind::Startup) == ProbeResult::Success
    }

    /// The failed startup or liveness probe because of which that run has to be killed, if any.
    pub fn failing(&self, container: &Container, id: &str) -> Option<ProbeKind> {
        let probes = [
            (ProbeKind::Liveness, container.liveness_probe.is_some()),
            (ProbeKind::Startup, container.startup_probe.is_some()),
        ];
        probes
            .into_iter()
            .find(|(kind, is_defined)| *is_defined && self.get(id, *kind) == ProbeResult::Failure)
            .map(|(kind, _)| kind)
    }
}

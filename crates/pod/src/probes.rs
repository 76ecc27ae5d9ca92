//! What the probes of a pod's containers have found. Owned by the daemon's `probes` room; plan and
//! status read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;

/// Which probe of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Holds back the others until the container is up.
    Startup,
    /// Whether the container may be sent work.
    Readiness,
    /// Whether the container still works; one that does not is restarted.
    Liveness,
}

impl ProbeKind {
    /// Its name as events and metrics give it.
    pub fn as_str(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }
}

/// What a probe has found, its thresholds counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finding {
    /// Nothing yet.
    #[default]
    Unknown,
    /// All is well.
    Success,
    /// It is not.
    Failure,
}

/// What is known of one run of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probed {
    startup: Finding,
    readiness: Finding,
    liveness: Finding,
}

/// What the probes of one pod have found, by the runtime's id of the container that was probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResults(BTreeMap<String, Probed>);

impl Default for &ProbeResults {
    fn default() -> Self {
        static NONE: ProbeResults = ProbeResults(BTreeMap::new());
        &NONE
    }
}

impl ProbeResults {
    /// Note what a probe has found. Tells whether that is news.
    pub fn set(&mut self, id: &str, kind: ProbeKind, finding: Finding) -> bool {
        let probed = self.0.entry(id.to_owned()).or_default();
        let slot = match kind {
            ProbeKind::Startup => &mut probed.startup,
            ProbeKind::Readiness => &mut probed.readiness,
            ProbeKind::Liveness => &mut probed.liveness,
        };
        std::mem::replace(slot, finding) != finding
    }

    /// What a probe has found.
    pub fn get(&self, id: &str, kind: ProbeKind) -> Finding {
        let probed = self.0.get(id).copied().unwrap_or_default();
        match kind {
            ProbeKind::Startup => probed.startup,
            ProbeKind::Readiness => probed.readiness,
            ProbeKind::Liveness => probed.liveness,
        }
    }

    /// Forget the runs for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// Whether that run of the container is up: its startup probe, if it has one, has succeeded.
    pub fn is_started(&self, container: &Container, id: &str) -> bool {
        container.startup_probe.is_none() || self.get(id, ProbeKind::Startup) == Finding::Success
    }

    /// The probe that asks for that run of the container to be ended, if one does.
    pub fn failing(&self, container: &Container, id: &str) -> Option<ProbeKind> {
        let asked = [
            (ProbeKind::Liveness, container.liveness_probe.is_some()),
            (ProbeKind::Startup, container.startup_probe.is_some()),
        ];
        asked
            .into_iter()
            .find(|(kind, is_there)| *is_there && self.get(id, *kind) == Finding::Failure)
            .map(|(kind, _)| kind)
    }
}

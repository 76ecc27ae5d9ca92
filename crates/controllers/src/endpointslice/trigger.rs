//! The time of the first change that a write of endpoints is for, from which their programming latency
//! is measured.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::jiff::Timestamp;

/// What the last write of each service was for.
#[derive(Debug, Default)]
pub(crate) struct TriggerTimes {
    services: HashMap<(String, String), Known>,
}

#[derive(Debug, Default)]
struct Known {
    created: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

/// When the pod's readiness last changed.
fn trigger(pod: &Pod) -> Option<Timestamp> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

impl TriggerTimes {
    /// The earliest time of what is new since the last call for the service.
    pub(crate) fn observe(
        &mut self,
        service: &Service,
        pods: &[impl AsRef<Pod>],
    ) -> Option<Timestamp> {
        let key = (
            service.metadata.namespace.clone().unwrap_or_default(),
            service.metadata.name.clone().unwrap_or_default(),
        );
        let before = self.services.remove(&key);
        let mut now = Known {
            created: service.metadata.creation_timestamp.as_ref().map(|time| time.0),
            pods: BTreeMap::new(),
        };
        let mut earliest: Option<Timestamp> = None;
        let mut consider = |time: Timestamp| {
            earliest = Some(earliest.map_or(time, |earliest| earliest.min(time)));
        };
        for pod in pods.iter().map(AsRef::as_ref) {
            let (Some(name), Some(time)) = (&pod.metadata.name, trigger(pod)) else { continue };
            let last = before.as_ref().and_then(|before| before.pods.get(name));
            // The first sight of a service that has been there is no change of its pods.
            if before.is_some() && last.is_none_or(|last| *last < time) {
                consider(time);
            }
            now.pods.insert(name.clone(), time);
        }
        if let Some(created) = now.created
            && before.as_ref().and_then(|before| before.created) != Some(created)
        {
            consider(created);
        }
        self.services.insert(key, now);
        earliest
    }

    /// Forgets a service that is gone.
    pub(crate) fn forget(&mut self, namespace: &str, name: &str) {
        self.services.remove(&(namespace.to_owned(), name.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Service};
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::TriggerTimes;

    fn service(created: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "web", "creationTimestamp": created},
        }))
        .unwrap()
    }

    fn pod(name: &str, ready: &str) -> Box<Pod> {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": ready},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn endpointslice_trigger_time_is_that_of_the_earliest_change() {
        let at = |text: &str| -> Option<Timestamp> { Some(text.parse().unwrap()) };
        let mut times = TriggerTimes::default();
        let web = service("2026-01-01T00:00:00Z");
        let old = pod("a", "2026-01-01T00:00:05Z");
        assert_eq!(times.observe(&web, std::slice::from_ref(&old)), at("2026-01-01T00:00:00Z"));
        assert_eq!(times.observe(&web, std::slice::from_ref(&old)), None);
        let new = [old, pod("b", "2026-01-01T00:01:00Z"), pod("c", "2026-01-01T00:00:50Z")];
        assert_eq!(times.observe(&web, &new), at("2026-01-01T00:00:50Z"));
        times.forget("ns", "web");
        assert_eq!(times.observe(&web, &new), at("2026-01-01T00:00:00Z"));
    }
}

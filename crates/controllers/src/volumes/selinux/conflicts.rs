//! PURE: which pods cannot use a volume on the same node, since it is to be mounted with other SELinux
//! labels or labelled in another way.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use longshore_informer::split_key;

/// How a pod wants a volume to be labelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labelling {
    /// User, role, type and level with colons between; empty: none.
    pub(super) label: String,
    /// `MountOption` or `Recursive`.
    pub(super) policy: String,
}

/// That two pods do not go together, as reported for the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Conflict {
    /// `SELinuxLabel` or `SELinuxChangePolicy`.
    pub(super) property: &'static str,
    /// The keys of the pods, and what each has.
    pub(super) pod: String,
    pub(super) value: String,
    pub(super) other_pod: String,
    pub(super) other_value: String,
}

impl Conflict {
    pub(super) fn reason(&self) -> &'static str {
        match self.property {
            "SELinuxLabel" => "SELinuxLabelConflict",
            _ => "SELinuxChangePolicyConflict",
        }
    }

    /// In upstream's words. The name of a pod of another namespace is not disclosed.
    pub(super) fn message(&self) -> String {
        let Self { property, value, other_value, .. } = self;
        let end = "If both pods land on the same node, only one of them may access the volume.";
        let ((namespace, _), (other, name)) = (split_key(&self.pod), split_key(&self.other_pod));
        match namespace == other {
            true => format!(
                "{property} \"{value}\" conflicts with pod {name} that uses the same volume as this \
                 pod with {property} \"{other_value}\". {end}"
            ),
            false => format!(
                "{property}\"{value}\" conflicts with another pod that uses the same volume as this \
                 pod with a different {property}. {end}"
            ),
        }
    }
}

/// Whether a volume cannot have both labels. What a label leaves open is for the node to say, but for the
/// level, which has no default.
fn is_conflict(one: &str, other: &str) -> bool {
    let parts = |label: &str| -> [String; 4] {
        let mut parts = label.splitn(4, ':').map(str::to_owned);
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    };
    let (one, other) = (parts(one), parts(other));
    let is_other = |at: usize| one.get(at) != other.get(at);
    let is_open =
        |at: usize| [&one, &other].iter().any(|it| it.get(at).is_none_or(String::is_empty));
    is_other(3) || (0..3).any(|at| is_other(at) && !is_open(at))
}

#[derive(Debug, Default)]
struct Volume {
    driver: Option<String>,
    pods: BTreeMap<String, Labelling>,
    conflicts: Vec<Conflict>,
}

/// The volumes that pods use, by their unique names.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    volumes: HashMap<String, Volume>,
    by_pod: HashMap<String, BTreeSet<String>>,
}

impl Volumes {
    /// Notes that the pod uses the volume; returns the new conflicts.
    pub(super) fn add(
        &mut self,
        volume: &str,
        driver: Option<&str>,
        pod: &str,
        labelling: Labelling,
    ) -> Vec<Conflict> {
        self.by_pod.entry(pod.to_owned()).or_default().insert(volume.to_owned());
        let known = self.volumes.entry(volume.to_owned()).or_default();
        known.driver = driver.map(str::to_owned);
        if known.pods.get(pod) == Some(&labelling) {
            return Vec::new();
        }
        known.pods.insert(pod.to_owned(), labelling.clone());
        let mut conflicts = Vec::new();
        for (other_pod, other) in &known.pods {
            let mut conflict = |property, value: &str, other_value: &str| {
                let (mine, theirs) = ((pod, value), (other_pod.as_str(), other_value));
                for ((pod, value), (other_pod, other_value)) in [(mine, theirs), (theirs, mine)] {
                    conflicts.push(Conflict {
                        property,
                        pod: pod.to_owned(),
                        value: value.to_owned(),
                        other_pod: other_pod.to_owned(),
                        other_value: other_value.to_owned(),
                    });
                }
            };
            if other.policy != labelling.policy {
                conflict("SELinuxChangePolicy", &labelling.policy, &other.policy);
            }
            if is_conflict(&other.label, &labelling.label) {
                conflict("SELinuxLabel", &labelling.label, &other.label);
            }
        }
        known.conflicts.retain(|conflict| conflict.pod != pod && conflict.other_pod != pod);
        known.conflicts.extend_from_slice(&conflicts);
        conflicts
    }

    /// Forgets a pod that is gone or has ended.
    pub(super) fn remove_pod(&mut self, pod: &str) {
        for name in self.by_pod.remove(pod).unwrap_or_default() {
            let Some(volume) = self.volumes.get_mut(&name) else { continue };
            volume.pods.remove(pod);
            volume.conflicts.retain(|conflict| conflict.pod != pod && conflict.other_pod != pod);
            if volume.pods.is_empty() {
                self.volumes.remove(&name);
            }
        }
    }

    /// The keys of the pods that use volumes of a driver.
    pub(super) fn pods_of(&self, driver: &str) -> BTreeSet<String> {
        let volumes = self.volumes.values();
        let own = volumes.filter(|volume| volume.driver.as_deref() == Some(driver));
        own.flat_map(|volume| volume.pods.keys().cloned()).collect()
    }

    /// All conflicts, each once.
    pub(super) fn conflicts(&self) -> BTreeSet<Conflict> {
        self.volumes.values().flat_map(|volume| volume.conflicts.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelling(label: &str, policy: &str) -> Labelling {
        Labelling { label: label.to_owned(), policy: policy.to_owned() }
    }

    #[test]
    fn selinux_labels_conflict_in_what_both_say() {
        let full = "system_u:system_r:container_t:s0:c1,c2";
        for (one, other, expected) in [
            (full, full, false),
            (full, ":::s0:c1,c2", false),
            (full, ":::s0:c98,c99", true),
            (full, "user_u:::s0:c1,c2", true),
            (":::s0:c1,c2", "", true),
            ("", "", false),
            ("", ":::", false),
            ("system_u:::", "", false),
        ] {
            assert_eq!(is_conflict(one, other), expected, "{one} {other}");
            assert_eq!(is_conflict(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn selinux_conflicts_are_reported_to_both_pods_once() {
        let mut volumes = Volumes::default();
        let mut add = |pod: &str, label: &str, policy: &str| {
            volumes.add("v", Some("d"), pod, labelling(label, policy))
        };
        assert!(add("ns/a", ":::s0:c1", "MountOption").is_empty());
        assert!(add("ns/b", ":::s0:c1", "MountOption").is_empty());
        let conflicts = add("ns/b", ":::s0:c2", "MountOption");
        let reported: Vec<_> = conflicts.iter().map(|it| (it.pod.as_str(), it.message())).collect();
        let end = "If both pods land on the same node, only one of them may access the volume.";
        let message = |own: &str, pod: &str, other: &str| {
            format!(
                "SELinuxLabel \":::s0:{own}\" conflicts with pod {pod} that uses the same volume as \
                 this pod with SELinuxLabel \":::s0:{other}\". {end}"
            )
        };
        assert_eq!(
            reported,
            [("ns/b", message("c2", "a", "c1")), ("ns/a", message("c1", "b", "c2"))]
        );
        assert!(add("ns/b", ":::s0:c2", "MountOption").is_empty(), "nothing is new");
        let other = add("other/c", ":::s0:c1", "Recursive");
        let policy = &other[0];
        assert_eq!(policy.reason(), "SELinuxChangePolicyConflict");
        assert_eq!(
            policy.message(),
            format!(
                "SELinuxChangePolicy\"Recursive\" conflicts with another pod that uses the same \
                 volume as this pod with a different SELinuxChangePolicy. {end}"
            )
        );
        assert_eq!(volumes.conflicts().len(), 8);
        assert_eq!(volumes.pods_of("d").len(), 3);
        volumes.remove_pod("ns/b");
        volumes.remove_pod("other/c");
        assert!(volumes.conflicts().is_empty());
        volumes.remove_pod("ns/a");
        assert!(volumes.volumes.is_empty() && volumes.by_pod.is_empty());
    }
}

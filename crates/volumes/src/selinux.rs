//! The SELinux label that a volume is mounted with, so that its files need not be relabelled
//! recursively. Only ReadWriteOncePod volumes are; for others it is counted what would happen if they were.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, SecurityContext, VolumeMount};
use longshore_metrics::{Family, Gauge, Registry};
use longshore_pod::spec;
use parking_lot::Mutex;

use crate::error::{Error, csi as error};

const ENFORCE: &str = "/sys/fs/selinux/enforce";
const CONFIG: &str = "/etc/selinux/config";
const ONE_POD: &str = "ReadWriteOncePod";

/// Whether ReadWriteOncePod is the only access mode.
fn is_for_one_pod(access_modes: &[String]) -> bool {
    access_modes == [ONE_POD]
}

/// The access mode in metrics: of several the least restrictive one.
fn mode_name(access_modes: &[String]) -> &'static str {
    let names = [
        ("ReadWriteMany", "RWX"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteOnce", "RWO"),
        (ONE_POD, "RWOP"),
    ];
    let named = names.into_iter().find(|(mode, _)| access_modes.iter().any(|own| own == mode));
    named.map_or("", |(_, name)| name)
}

/// The machine's label of containers' files; `None` without SELinux.
pub(crate) fn machine_label() -> Option<String> {
    Path::new(ENFORCE).exists().then(default_label)?
}

/// The options of the containers that use a volume by one of its names in the pod, their own or the pod's.
fn options<'a>(pod: &'a Pod, names: &[&str]) -> Vec<&'a SELinuxOptions> {
    let Some(pod_spec) = &pod.spec else { return Vec::new() };
    let of_pod =
        pod_spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let used = |mounts: &Option<Vec<VolumeMount>>| {
        mounts.iter().flatten().any(|mount| names.contains(&mount.name.as_str()))
    };
    let own = |context: &'a Option<SecurityContext>| {
        context.as_ref().and_then(|context| context.se_linux_options.as_ref()).or(of_pod)
    };
    let lasting = spec::containers(pod_spec).map(|(_, c)| (&c.volume_mounts, &c.security_context));
    let ephemeral = spec::ephemeral_containers(pod_spec)
        .iter()
        .map(|c| (&c.volume_mounts, &c.security_context));
    let all = lasting.chain(ephemeral).filter(|(mounts, _)| used(mounts));
    all.filter_map(|(_, context)| own(context)).collect()
}

/// Whether the pod asks for recursive relabelling.
fn is_recursive(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|pod_spec| pod_spec.security_context.as_ref());
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    policy == Some("Recursive")
}

/// The policy's label of containers' files.
fn default_label() -> Option<String> {
    let config = fs::read_to_string(CONFIG).ok()?;
    let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))?;
    let path = format!("/etc/selinux/{}/contexts/lxc_contexts", policy.trim());
    let contexts = fs::read_to_string(path).ok()?;
    let file = contexts.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "file").then(|| value.trim().trim_matches('"').to_owned())
    })?;
    Some(file)
}

/// A label `user:role:type:level`, with the requested user and level instead of the policy's. The
/// requested role and type are those of processes.
pub(crate) fn file_label(options: &SELinuxOptions, default: &str) -> Option<String> {
    let level = options.level.as_deref().filter(|level| !level.is_empty())?;
    let mut parts = default.splitn(4, ':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    let user = options.user.as_deref().filter(|user| !user.is_empty()).unwrap_or(user);
    Some(format!("{user}:{role}:{kind}:{level}"))
}

/// The volumes of drivers that support labels, and what was counted of them. Upstream's other two families,
/// of labels that cannot be computed, have no samples there either.
#[derive(Debug)]
pub(crate) struct LabelledVolumes {
    known: Mutex<AllKnown>,
    pod_errors: Family<Gauge, 1>,
    pod_warnings: Family<Gauge, 1>,
    volume_errors: Family<Gauge, 2>,
    volume_warnings: Family<Gauge, 2>,
    admitted: Family<Gauge, 2>,
}

#[derive(Debug, Default)]
struct AllKnown {
    /// By the unique name of the volume.
    volumes: HashMap<String, Known>,
    /// The mismatches that were counted, by volume and UID of the pod.
    counted: HashSet<(String, String)>,
}

/// What pods want of one volume.
#[derive(Debug)]
struct Known {
    /// Of the first pod.
    label: Option<String>,
    /// UIDs.
    pods: HashSet<String>,
}

/// A volume as a pod uses it.
pub(crate) struct Use<'a> {
    pub(crate) pod: &'a Pod,
    /// The PersistentVolume's name.
    pub(crate) volume: &'a str,
    /// Its names in the pod.
    pub(crate) names: &'a [&'a str],
    /// The unique name of the volume.
    pub(crate) device: &'a str,
    pub(crate) driver: &'a str,
    pub(crate) access_modes: &'a [String],
}

impl LabelledVolumes {
    pub(crate) fn new(registry: &Registry) -> Self {
        let by_mode = |name: &'static str, help| registry.gauges(name, help, ["access_mode"]);
        let by_plugin = |name: &'static str, help| {
            registry.gauges(name, help, ["volume_plugin", "access_mode"])
        };
        Self {
            known: Mutex::default(),
            pod_errors: by_mode(
                "volume_manager_selinux_pod_context_mismatch_errors_total",
                "[ALPHA] Pods whose containers use a volume with different SELinux labels. They cannot start.",
            ),
            pod_warnings: by_mode(
                "volume_manager_selinux_pod_context_mismatch_warnings_total",
                "[ALPHA] The same for volumes that are not mounted with a label.",
            ),
            volume_errors: by_plugin(
                "volume_manager_selinux_volume_context_mismatch_errors_total",
                "[ALPHA] Pods that use a volume which another pod uses with another SELinux label. They \
                 cannot start.",
            ),
            volume_warnings: by_plugin(
                "volume_manager_selinux_volume_context_mismatch_warnings_total",
                "[ALPHA] The same for volumes that are not mounted with a label.",
            ),
            admitted: by_plugin(
                "volume_manager_selinux_volumes_admitted_total",
                "[ALPHA] Volumes whose SELinux label was fine.",
            ),
        }
    }

    /// The label that a volume is to be mounted with. `default`: the machine's label of files.
    pub(crate) fn label(
        &self,
        wanted: &Use<'_>,
        default: Option<&str>,
    ) -> Result<Option<String>, Error> {
        let Some(default) = default else { return Ok(None) };
        let mode = mode_name(wanted.access_modes);
        let is_mounted_so = is_for_one_pod(wanted.access_modes);
        let labels: BTreeSet<Option<String>> = options(wanted.pod, wanted.names)
            .into_iter()
            .map(|options| file_label(options, default))
            .collect();
        if labels.len() > 1 {
            if self.counts(wanted) {
                let family = if is_mounted_so { &self.pod_errors } else { &self.pod_warnings };
                family.with([mode]).add(1.0);
            }
            if is_mounted_so {
                let labels = labels.into_iter().map(Option::unwrap_or_default);
                let labels = labels.collect::<Vec<_>>().join(",");
                return Err(error::Error::Labels(labels).into());
            }
        }
        let label = match labels.len() {
            1 => labels.into_iter().flatten().next().filter(|_| !is_recursive(wanted.pod)),
            _ => None,
        };
        self.note(wanted, label.as_ref(), mode, is_mounted_so)?;
        Ok(label.filter(|_| is_mounted_so))
    }

    /// Whether a mismatch is to be counted: once for a pod and a volume.
    fn counts(&self, wanted: &Use<'_>) -> bool {
        let key = (wanted.device.to_owned(), spec::uid(wanted.pod).to_owned());
        self.known.lock().counted.insert(key)
    }

    fn note(
        &self,
        wanted: &Use<'_>,
        label: Option<&String>,
        mode: &str,
        is_mounted_so: bool,
    ) -> Result<(), Error> {
        let plugin = format!("kubernetes.io/csi/{}", wanted.driver);
        let uid = spec::uid(wanted.pod);
        let mut all = self.known.lock();
        let AllKnown { volumes, counted } = &mut *all;
        let Some(known) = volumes.get_mut(wanted.device) else {
            if label.is_some() {
                self.admitted.with([&plugin, mode]).add(1.0);
            }
            let pods = HashSet::from([uid.to_owned()]);
            volumes.insert(wanted.device.to_owned(), Known { label: label.cloned(), pods });
            return Ok(());
        };
        if !known.pods.contains(uid) && known.label.as_ref() != label {
            if counted.insert((wanted.device.to_owned(), uid.to_owned())) {
                let family =
                    if is_mounted_so { &self.volume_errors } else { &self.volume_warnings };
                family.with([&plugin, mode]).add(1.0);
            }
            if is_mounted_so {
                return Err(error::Error::OtherLabel {
                    volume: wanted.volume.to_owned(),
                    known: known.label.clone().unwrap_or_default(),
                    wanted: label.cloned().unwrap_or_default(),
                }
                .into());
            }
        }
        known.pods.insert(uid.to_owned());
        Ok(())
    }

    /// A pod uses no volume any more.
    pub(crate) fn forget(&self, uid: &str) {
        let mut all = self.known.lock();
        all.counted.retain(|(_, pod)| pod != uid);
        all.volumes.retain(|_, known| {
            known.pods.remove(uid);
            !known.pods.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DEFAULT: &str = "system_u:object_r:container_file_t:s0";
    const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

    /// A pod whose containers use the volume at these levels, the others with the pod's.
    fn pod(uid: &str, of_pod: Option<&str>, levels: &[&str], policy: Option<&str>) -> Pod {
        let context = |level: &str| json!({"seLinuxOptions": {"level": level}});
        let container = |(index, level): (usize, &&str)| {
            let context = if level.is_empty() { json!(null) } else { context(level) };
            json!({
                "name": format!("c{index}"), "securityContext": context,
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            })
        };
        let mut containers: Vec<Value> = levels.iter().enumerate().map(container).collect();
        // One that does not use it.
        containers.push(json!({"name": "other", "securityContext": context("s0:c8,c9")}));
        let options = of_pod.map(|level| json!({"level": level}));
        serde_json::from_value(json!({
            "metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {
                "containers": containers,
                "securityContext": {"seLinuxOptions": options, "seLinuxChangePolicy": policy},
            },
        }))
        .unwrap()
    }

    struct World {
        volumes: LabelledVolumes,
        registry: Registry,
    }

    impl World {
        fn new() -> Self {
            let registry = Registry::default();
            Self { volumes: LabelledVolumes::new(&registry), registry }
        }

        fn label(&self, pod: &Pod, modes: &[&str]) -> Result<Option<String>, String> {
            let access_modes: Vec<String> = modes.iter().map(|mode| (*mode).to_owned()).collect();
            let wanted = Use {
                pod,
                volume: "pv",
                names: &["v"],
                device: "kubernetes.io/csi/d^h",
                driver: "d",
                access_modes: &access_modes,
            };
            self.volumes.label(&wanted, Some(DEFAULT)).map_err(|error| error.to_string())
        }

        /// The samples that are not zero, without the common part of their names.
        fn counts(&self) -> Vec<String> {
            let text = self.registry.text();
            let samples =
                text.lines().filter_map(|line| line.strip_prefix("volume_manager_selinux_"));
            samples.map(str::to_owned).collect()
        }
    }

    #[test]
    fn labels_are_of_the_containers_that_use_the_volume() {
        let one = &["ReadWriteOncePod"][..];
        let label = Some(LABEL.to_owned());
        for (of_pod, levels, policy, modes, expected) in [
            (Some("s0:c1,c2"), &[""][..], None, one, label.clone()),
            (None, &["s0:c1,c2", "s0:c1,c2"], Some("MountOption"), one, label.clone()),
            (Some("s0:c3"), &["s0:c1,c2"], None, one, label.clone()),
            (Some("s0:c1,c2"), &[""], Some("Recursive"), one, None),
            (Some("s0:c1,c2"), &[""], None, &["ReadWriteOnce"], None),
            (Some("s0:c1,c2"), &[""], None, &["ReadWriteOnce", "ReadWriteOncePod"], None),
            (None, &[""], None, one, None),
        ] {
            let pod = pod("u", of_pod, levels, policy);
            assert_eq!(
                World::new().label(&pod, modes),
                Ok(expected),
                "{of_pod:?} {levels:?} {modes:?}"
            );
        }
        let world = World::new();
        let pod = pod("u", Some("s0:c1,c2"), &[""], None);
        let modes = [ONE_POD.to_owned()];
        let wanted = Use {
            pod: &pod,
            volume: "pv",
            names: &["v"],
            device: "x",
            driver: "d",
            access_modes: &modes,
        };
        assert_eq!(world.volumes.label(&wanted, None).unwrap(), None, "without SELinux");
        assert_eq!(world.counts(), Vec::<String>::new());
    }

    #[test]
    fn label_mismatches_are_errors_where_labels_are_mounted_and_counted_elsewhere() {
        let world = World::new();
        let torn = pod("u", None, &["s0:c1,c2", "s0:c3"], None);
        let error = world.label(&torn, &["ReadWriteOncePod"]).unwrap_err();
        assert!(error.contains("multiple SELinux labels found: "), "{error}");
        assert!(world.label(&torn, &["ReadWriteOncePod"]).is_err());
        world.volumes.forget("u");
        assert_eq!(world.label(&torn, &["ReadWriteMany"]), Ok(None));
        assert_eq!(world.label(&torn, &["ReadWriteMany"]), Ok(None));
        assert_eq!(
            world.counts(),
            [
                "pod_context_mismatch_errors_total{access_mode=\"RWOP\"} 1",
                "pod_context_mismatch_warnings_total{access_mode=\"RWX\"} 1",
            ]
        );

        let world = World::new();
        let (one, same, other) = (
            pod("1", Some("s0:c1,c2"), &[""], None),
            pod("2", Some("s0:c1,c2"), &[""], None),
            pod("3", Some("s0:c3"), &[""], None),
        );
        for pod in [&one, &one, &same, &other, &other] {
            assert_eq!(world.label(pod, &["ReadWriteOnce"]), Ok(None));
        }
        let plugin = "volume_plugin=\"kubernetes.io/csi/d\"";
        let warnings =
            format!("volume_context_mismatch_warnings_total{{access_mode=\"RWO\",{plugin}}} 1");
        let admitted = format!("volumes_admitted_total{{access_mode=\"RWO\",{plugin}}} 1");
        let counts = world.counts();
        assert_eq!(counts.len(), 2, "{counts:?}");
        let sorted = |line: &str| {
            let mut parts: Vec<_> = line.split(['{', ',', '}']).map(str::to_owned).collect();
            parts.sort();
            parts
        };
        assert_eq!(sorted(&counts[0]), sorted(&warnings));
        assert_eq!(sorted(&counts[1]), sorted(&admitted));

        let world = World::new();
        assert_eq!(world.label(&one, &["ReadWriteOncePod"]), Ok(Some(LABEL.to_owned())));
        let error = world.label(&other, &["ReadWriteOncePod"]).unwrap_err();
        assert!(error.contains("conflicting SELinux labels of volume pv: "), "{error}");
        world.volumes.forget("1");
        assert!(world.label(&other, &["ReadWriteOncePod"]).is_ok(), "nobody else uses it");
    }
}

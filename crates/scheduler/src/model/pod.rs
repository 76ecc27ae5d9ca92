//! A pod as the scheduler needs it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Pod as ApiPod, PodAffinityTerm, PodSpec, Toleration as ApiToleration,
    TopologySpreadConstraint, Volume as ApiVolume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_gates::DeclaredFeatures;
use longshore_pod::features;

use super::{
    Atom, ClaimKey, ContainerRequests, Labels, NodeSelector, NodeTerm, PodResourceClaim,
    Requirement, Resources, Selector, Taint, TaintEffect, devices, extended, resources,
};

/// The UID of a pod.
pub type Uid = Arc<str>;

/// A pod. Immutable: an update makes another.
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Its UID.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: Atom,
    /// Its name.
    pub name: Box<str>,
    /// Its labels.
    pub labels: Labels,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// When it was created, in seconds of Unix time.
    pub created: i64,
    /// When it started on its node, in seconds of Unix time.
    pub started: Option<i64>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it is being deleted because a scheduler preempted it.
    pub is_preempted: bool,
    /// The scheduler responsible for it.
    pub scheduler: Atom,
    /// The node that it is bound to.
    pub node: Option<Atom>,
    /// The node that preemption makes room on.
    pub nominated_node: Option<Atom>,
    /// Its priority.
    pub priority: i32,
    /// Whether it may preempt others.
    pub may_preempt: bool,
    /// Scheduling gates that hold it back.
    pub gates: Box<[Box<str>]>,
    /// Requests.
    pub requests: Resources,
    /// Requests for scores: containers without any count with defaults. Only CPU and memory are set.
    pub score_requests: Resources,
    /// Ports of the node that it takes.
    pub host_ports: Box<[HostPort]>,
    /// Labels that its node must have.
    pub node_selector: Box<[Requirement]>,
    /// Node affinity that must be met.
    pub required_nodes: Option<NodeSelector>,
    /// Node affinity that is preferred, with weights.
    pub preferred_nodes: Box<[(i64, NodeTerm)]>,
    /// Affinity to pods.
    pub affinity: PodAffinity,
    /// Anti-affinity to pods.
    pub anti_affinity: PodAffinity,
    /// Taints that it tolerates.
    pub tolerations: Box<[Toleration]>,
    /// How it spreads over topologies.
    pub spread: Box<[SpreadConstraint]>,
    /// Its volumes that matter to scheduling.
    pub volumes: Box<[Volume]>,
    /// Images of its containers, normalised.
    pub images: Box<[Atom]>,
    /// Number of containers and init containers.
    pub containers: usize,
    /// Its controller.
    pub owner: Option<Owner>,
    /// Claims for devices.
    pub resource_claims: Box<[PodResourceClaim]>,
    /// Requests of its containers for extended resources; none if there are none.
    pub extended: Box<[ContainerRequests]>,
    /// Features that its node must declare.
    pub needed_features: DeclaredFeatures,
    /// The condition `PodScheduled`: reason and message, if it is false.
    pub unscheduled: Option<Box<(String, String)>>,
    /// A selector that cannot be parsed, which fails scheduling.
    pub error: Option<Box<str>>,
}

/// The controller of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: Atom,
    /// Its name.
    pub name: Atom,
    /// Its UID.
    pub uid: Atom,
}

/// A port of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// The address; `0.0.0.0` is all.
    pub ip: Atom,
    /// TCP, UDP or SCTP.
    pub protocol: Atom,
    /// The port.
    pub port: i32,
}

impl HostPort {
    /// Whether both cannot be taken.
    pub fn conflicts(&self, other: &Self) -> bool {
        let is_any = |ip: &str| ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || is_any(&self.ip) || is_any(&other.ip))
    }
}

/// The operator of a toleration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Exists,
    Lt,
    Gt,
}

/// A toleration of taints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    key: Option<Atom>,
    operator: Option<Operator>,
    value: Atom,
    /// `None`: all effects.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    fn new(api: &ApiToleration) -> Self {
        let non_empty =
            |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Atom::new);
        Self {
            key: non_empty(&api.key),
            operator: match api.operator.as_deref().unwrap_or_default() {
                "" | "Equal" => Some(Operator::Equal),
                "Exists" => Some(Operator::Exists),
                "Lt" => Some(Operator::Lt),
                "Gt" => Some(Operator::Gt),
                _ => None,
            },
            value: Atom::new(api.value.as_deref().unwrap_or_default()),
            effect: api.effect.as_deref().filter(|effect| !effect.is_empty()).map(TaintEffect::new),
        }
    }

    /// Whether it tolerates the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect)
            || self.key.as_ref().is_some_and(|key| *key != taint.key)
        {
            return false;
        }
        let compared = || Some((taint.value.parse::<i64>().ok()?, self.value.parse::<i64>().ok()?));
        match self.operator {
            Some(Operator::Equal) => self.value == taint.value,
            Some(Operator::Exists) => true,
            Some(Operator::Lt) => compared().is_some_and(|(taint, own)| taint < own),
            Some(Operator::Gt) => compared().is_some_and(|(taint, own)| taint > own),
            None => false,
        }
    }
}

/// Terms of affinity or anti-affinity to pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodAffinity {
    /// Terms that must be met.
    pub required: Box<[AffinityTerm]>,
    /// Terms that are preferred.
    pub preferred: Box<[WeightedTerm]>,
}

/// A term of affinity to pods.
#[derive(Debug, Clone, PartialEq)]
pub struct AffinityTerm {
    namespaces: Box<[Atom]>,
    namespace_selector: Selector,
    selector: Selector,
    /// The label of nodes whose value is the topology.
    pub topology_key: Atom,
}

/// A term with its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedTerm {
    /// From 1 to 100.
    pub weight: i64,
    /// The term.
    pub term: AffinityTerm,
}

impl AffinityTerm {
    /// `None` if a selector is invalid.
    fn new(api: &PodAffinityTerm, namespace: &Atom, labels: &Labels) -> Option<Self> {
        let mut selector = Selector::new(api.label_selector.as_ref())?;
        for key in api.match_label_keys.iter().flatten() {
            let key = Atom::from(key);
            if let Some(value) = labels.get(&key) {
                selector.and(Requirement::In(key, [value.clone()].into()));
            }
        }
        for key in api.mismatch_label_keys.iter().flatten() {
            let key = Atom::from(key);
            if let Some(value) = labels.get(&key) {
                selector.and(Requirement::NotIn(key, [value.clone()].into()));
            }
        }
        let named: Box<[Atom]> = api.namespaces.iter().flatten().map(Atom::from).collect();
        let is_own = named.is_empty() && api.namespace_selector.is_none();
        Some(Self {
            namespaces: if is_own { [namespace.clone()].into() } else { named },
            namespace_selector: Selector::new(api.namespace_selector.as_ref())?,
            selector,
            topology_key: Atom::new(&api.topology_key),
        })
    }

    /// Whether it selects a pod, whose namespace has these labels.
    pub fn matches(&self, pod: &Pod, namespace: &Labels) -> bool {
        (self.namespaces.contains(&pod.namespace) || self.namespace_selector.matches(namespace))
            && self.selector.matches(&pod.labels)
    }

    /// Whether it selects a pod, if its namespace is selected.
    pub fn may_match(&self, pod: &Pod) -> bool {
        (self.namespaces.contains(&pod.namespace) || self.namespace_selector != Selector::Nothing)
            && self.selector.matches(&pod.labels)
    }
}

/// A constraint on the spread over topologies.
#[derive(Debug, Clone, PartialEq)]
pub struct SpreadConstraint {
    /// The most that the numbers of pods may differ.
    pub max_skew: i64,
    /// The label of nodes whose value is the topology.
    pub topology_key: Atom,
    /// The pods that count.
    pub selector: Selector,
    /// Whether it must be met, rather than preferred.
    pub is_hard: bool,
    /// With fewer topologies the least number of pods counts as none.
    pub min_domains: usize,
    /// Whether nodes that node affinity excludes are left out.
    pub honors_affinity: bool,
    /// Whether nodes with taints that are not tolerated are left out.
    pub honors_taints: bool,
}

impl SpreadConstraint {
    /// From the API's; `None` if the selector is invalid.
    pub fn new(api: &TopologySpreadConstraint, labels: &Labels) -> Option<Self> {
        let mut selector = Selector::new(api.label_selector.as_ref())?;
        for key in api.match_label_keys.iter().flatten() {
            let key = Atom::from(key);
            if let Some(value) = labels.get(&key) {
                selector.and(Requirement::In(key, [value.clone()].into()));
            }
        }
        Some(Self {
            max_skew: i64::from(api.max_skew),
            topology_key: Atom::new(&api.topology_key),
            selector,
            is_hard: api.when_unsatisfiable == "DoNotSchedule",
            min_domains: usize::try_from(api.min_domains.unwrap_or(1)).unwrap_or(1),
            honors_affinity: api.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: api.node_taints_policy.as_deref() == Some("Honor"),
        })
    }
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name in the pod.
    pub name: Box<str>,
    /// What it is.
    pub source: VolumeSource,
}

/// What a volume is. Kinds that do not matter to scheduling are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// A claim.
    Claim {
        /// Its name; empty if the pod says none.
        name: ClaimKey,
        /// Whether it is made for this pod.
        is_ephemeral: bool,
    },
    /// A disk of Google's: its name, and whether it is mounted read-only.
    GcePd(Atom, bool),
    /// A disk of Amazon's: its ID.
    Ebs(Atom),
    /// A target of iSCSI: its name and number, and whether it is mounted read-only.
    Iscsi(Atom, i32, bool),
    /// An image of Ceph's: monitors, pool and image, and whether it is mounted read-only.
    Rbd(Box<[Atom]>, Atom, Atom, bool),
    /// A driver's inline volume.
    Csi(Atom),
}

impl VolumeSource {
    /// Whether both cannot be on one node.
    pub fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::GcePd(name, read_only), Self::GcePd(other, other_read_only)) => {
                name == other && !(*read_only && *other_read_only)
            }
            (Self::Ebs(id), Self::Ebs(other)) => id == other,
            (Self::Iscsi(name, lun, read_only), Self::Iscsi(other, other_lun, other_read_only)) => {
                name == other && lun == other_lun && !(*read_only && *other_read_only)
            }
            (
                Self::Rbd(monitors, pool, image, read_only),
                Self::Rbd(others, other_pool, other_image, other_read_only),
            ) => {
                monitors.iter().any(|monitor| others.contains(monitor))
                    && pool == other_pool
                    && image == other_image
                    && !(*read_only && *other_read_only)
            }
            _ => false,
        }
    }

    /// The claim, if it is one.
    pub fn claim(&self) -> Option<&ClaimKey> {
        match self {
            Self::Claim { name, .. } => Some(name),
            _ => None,
        }
    }
}

impl Pod {
    /// From the API's object. `None` without a UID, or when it has ended: it takes no resources.
    pub fn new(api: &ApiPod) -> Option<Self> {
        let meta = &api.metadata;
        let spec = api.spec.as_ref()?;
        let status = api.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let namespace = Atom::new(meta.namespace.as_deref().unwrap_or_default());
        let labels = Labels::new(meta.labels.as_ref());
        let condition = |type_: &str| {
            let all = status.and_then(|status| status.conditions.as_ref());
            all.into_iter().flatten().find(|one| one.type_ == type_)
        };
        let is_deleting = meta.deletion_timestamp.is_some();
        let non_empty =
            |text: Option<&String>| text.filter(|text| !text.is_empty()).map(Atom::from);
        let (requests, with_defaults) = resources::of_pod(api);
        let mut error = None;
        let affinity = terms(spec.affinity.as_ref(), &namespace, &labels, &mut error);
        Some(Self {
            uid: meta.uid.as_deref()?.into(),
            name: meta.name.as_deref().unwrap_or_default().into(),
            generation: meta.generation,
            created: seconds(meta),
            started: status
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0.as_second()),
            is_deleting,
            is_preempted: is_deleting
                && condition("DisruptionTarget").is_some_and(|one| {
                    one.status == "True" && one.reason.as_deref() == Some("PreemptionByScheduler")
                }),
            scheduler: Atom::new(spec.scheduler_name.as_deref().unwrap_or("default-scheduler")),
            node: non_empty(spec.node_name.as_ref()),
            nominated_node: non_empty(
                status.and_then(|status| status.nominated_node_name.as_ref()),
            ),
            priority: spec.priority.unwrap_or(0),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            gates: spec
                .scheduling_gates
                .iter()
                .flatten()
                .map(|gate| gate.name.as_str().into())
                .collect(),
            requests,
            score_requests: Resources {
                milli_cpu: with_defaults.milli_cpu,
                memory: with_defaults.memory,
                ..Resources::default()
            },
            host_ports: host_ports(spec),
            node_selector: spec
                .node_selector
                .iter()
                .flatten()
                .map(|(key, value)| Requirement::In(key.into(), [value.into()].into()))
                .collect(),
            required_nodes: node_affinity(spec)
                .and_then(|own| own.required_during_scheduling_ignored_during_execution.as_ref())
                .map(NodeSelector::new),
            preferred_nodes: node_affinity(spec)
                .and_then(|own| own.preferred_during_scheduling_ignored_during_execution.as_ref())
                .into_iter()
                .flatten()
                .map(|term| (i64::from(term.weight), NodeTerm::new(&term.preference)))
                .collect(),
            affinity: affinity.0,
            anti_affinity: affinity.1,
            tolerations: spec.tolerations.iter().flatten().map(Toleration::new).collect(),
            spread: spread(spec, &labels, &mut error),
            volumes: volumes(api, spec, &namespace),
            images: images(spec),
            extended: extended::of_pod(spec),
            needed_features: features::needed(spec),
            containers: spec
                .containers
                .len()
                .saturating_add(spec.init_containers.as_ref().map_or(0, Vec::len)),
            owner: owner(meta),
            resource_claims: devices::of_pod(api, &namespace),
            unscheduled: condition("PodScheduled").filter(|one| one.status == "False").map(|one| {
                Box::new((
                    one.reason.clone().unwrap_or_default(),
                    one.message.clone().unwrap_or_default(),
                ))
            }),
            error,
            namespace,
            labels,
        })
    }

    /// Whether its selector and node affinity accept a node.
    pub fn selects_node(&self, name: &Atom, labels: &Labels) -> bool {
        self.node_selector.iter().all(|requirement| requirement.matches(labels))
            && self.required_nodes.as_ref().is_none_or(|nodes| nodes.matches(name, labels))
    }

    /// The first taint that keeps it from a node and that it does not tolerate.
    pub fn untolerated<'a>(&self, taints: &'a [Taint]) -> Option<&'a Taint> {
        taints.iter().find(|taint| taint.effect.repels() && !self.tolerates(taint))
    }

    /// Whether it tolerates a taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    /// Whether it has any affinity or anti-affinity to pods.
    pub fn has_affinity(&self) -> bool {
        let any = |own: &PodAffinity| !own.required.is_empty() || !own.preferred.is_empty();
        any(&self.affinity) || any(&self.anti_affinity)
    }

    /// Keys of its claims.
    pub fn claims(&self) -> impl Iterator<Item = &ClaimKey> {
        self.volumes.iter().filter_map(|volume| volume.source.claim())
    }

    /// The same pod on a node.
    pub fn on(&self, node: &Atom) -> Self {
        Self { node: Some(node.clone()), ..self.clone() }
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn seconds(meta: &ObjectMeta) -> i64 {
    meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

fn owner(meta: &ObjectMeta) -> Option<Owner> {
    let owner =
        meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some(Owner {
        kind: Atom::new(&owner.kind),
        name: Atom::new(&owner.name),
        uid: Atom::new(&owner.uid),
    })
}

fn node_affinity(spec: &PodSpec) -> Option<&k8s_openapi::api::core::v1::NodeAffinity> {
    spec.affinity.as_ref()?.node_affinity.as_ref()
}

fn terms(
    api: Option<&Affinity>,
    namespace: &Atom,
    labels: &Labels,
    error: &mut Option<Box<str>>,
) -> (PodAffinity, PodAffinity) {
    let mut parse = |api: &PodAffinityTerm| {
        let term = AffinityTerm::new(api, namespace, labels);
        if term.is_none() {
            *error = Some("a label selector of an affinity term is invalid".into());
        }
        term
    };
    let mut of =
        |required: Option<&Vec<PodAffinityTerm>>,
         preferred: Option<&Vec<k8s_openapi::api::core::v1::WeightedPodAffinityTerm>>| {
            PodAffinity {
                required: required.into_iter().flatten().filter_map(&mut parse).collect(),
                preferred: preferred
                    .into_iter()
                    .flatten()
                    .filter_map(|one| {
                        let term = parse(&one.pod_affinity_term)?;
                        Some(WeightedTerm { weight: i64::from(one.weight), term })
                    })
                    .collect(),
            }
        };
    let affinity = api.and_then(|api| api.pod_affinity.as_ref());
    let anti = api.and_then(|api| api.pod_anti_affinity.as_ref());
    (
        of(
            affinity
                .and_then(|own| own.required_during_scheduling_ignored_during_execution.as_ref()),
            affinity
                .and_then(|own| own.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
        of(
            anti.and_then(|own| own.required_during_scheduling_ignored_during_execution.as_ref()),
            anti.and_then(|own| own.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
    )
}

fn spread(
    spec: &PodSpec,
    labels: &Labels,
    error: &mut Option<Box<str>>,
) -> Box<[SpreadConstraint]> {
    let mut all = Vec::new();
    for api in spec.topology_spread_constraints.iter().flatten() {
        match SpreadConstraint::new(api, labels) {
            Some(constraint) => all.push(constraint),
            None => {
                *error = Some("a label selector of a topology spread constraint is invalid".into());
            }
        }
    }
    all.into()
}

fn host_ports(spec: &PodSpec) -> Box<[HostPort]> {
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let non_empty = |text: &Option<String>, default: &str| {
                Atom::new(text.as_deref().filter(|text| !text.is_empty()).unwrap_or(default))
            };
            Some(HostPort {
                ip: non_empty(&port.host_ip, "0.0.0.0"),
                protocol: non_empty(&port.protocol, "TCP"),
                port: number,
            })
        })
        .collect()
}

fn images(spec: &PodSpec) -> Box<[Atom]> {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.filter_map(|container| container.image.as_deref()).map(normalized).collect()
}

/// An image's name with its tag.
pub(super) fn normalized(image: &str) -> Atom {
    let has_tag = image.rfind(':') > image.rfind('/');
    if has_tag { Atom::new(image) } else { Atom::new(&format!("{image}:latest")) }
}

fn volumes(api: &ApiPod, spec: &PodSpec, namespace: &Atom) -> Box<[Volume]> {
    let pod = api.metadata.name.as_deref().unwrap_or_default();
    let all = spec.volumes.iter().flatten();
    all.filter_map(|volume| {
        let source = source(volume, pod, namespace)?;
        Some(Volume { name: volume.name.as_str().into(), source })
    })
    .collect()
}

fn source(volume: &ApiVolume, pod: &str, namespace: &Atom) -> Option<VolumeSource> {
    let claim = |name: &str, is_ephemeral| VolumeSource::Claim {
        name: ClaimKey { namespace: namespace.clone(), name: Atom::new(name) },
        is_ephemeral,
    };
    if let Some(own) = &volume.persistent_volume_claim {
        return Some(claim(&own.claim_name, false));
    }
    if volume.ephemeral.is_some() {
        return Some(claim(&format!("{pod}-{}", volume.name), true));
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        return Some(VolumeSource::GcePd(
            Atom::new(&disk.pd_name),
            disk.read_only.unwrap_or_default(),
        ));
    }
    if let Some(disk) = &volume.aws_elastic_block_store {
        return Some(VolumeSource::Ebs(Atom::new(&disk.volume_id)));
    }
    if let Some(target) = &volume.iscsi {
        return Some(VolumeSource::Iscsi(
            Atom::new(&target.iqn),
            target.lun,
            target.read_only.unwrap_or_default(),
        ));
    }
    if let Some(image) = &volume.rbd {
        return Some(VolumeSource::Rbd(
            image.monitors.iter().map(Atom::from).collect(),
            Atom::new(image.pool.as_deref().unwrap_or("rbd")),
            Atom::new(&image.image),
            image.read_only.unwrap_or_default(),
        ));
    }
    volume.csi.as_ref().map(|csi| VolumeSource::Csi(Atom::new(&csi.driver)))
}

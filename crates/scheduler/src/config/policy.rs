//! The classic policies: predicates and priorities by name, in files or as providers.

use serde::Deserialize;
use serde_json::{Value, json};

use super::profiles::{PluginConfig, PluginRef, PluginSet, PluginsConfig, ProfileConfig};
use super::{ConfigError, Configuration, ExtenderConfig, invalid};

/// A policy: what filters, and what scores with which weight.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default, rename = "apiVersion")]
    _api_version: String,
    /// Without the list, those of the default provider.
    predicates: Option<Vec<Named>>,
    priorities: Option<Vec<Named>>,
    #[serde(default)]
    extenders: Vec<ExtenderConfig>,
    #[serde(default)]
    hard_pod_affinity_symmetric_weight: Option<i64>,
    #[serde(default, rename = "alwaysCheckAllPredicates")]
    _always_check_all: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    name: String,
    #[serde(default)]
    weight: i64,
    #[serde(default)]
    argument: Value,
}

/// Plugins that every policy has.
const MANDATORY: [(&str, Point); 6] = [
    ("SchedulingGates", Point::PreEnqueue),
    ("PrioritySort", Point::QueueSort),
    ("NodeUnschedulable", Point::Filter),
    ("TaintToleration", Point::Filter),
    ("DefaultPreemption", Point::PostFilter),
    ("DefaultBinder", Point::Bind),
];

#[derive(Clone, Copy)]
enum Point {
    PreEnqueue,
    QueueSort,
    Filter,
    PostFilter,
    Bind,
}

/// Predicates of the providers.
const PREDICATES: [&str; 9] = [
    "GeneralPredicates",
    "NoDiskConflict",
    "NoVolumeZoneConflict",
    "MaxEBSVolumeCount",
    "MaxGCEPDVolumeCount",
    "MaxCSIVolumeCountPred",
    "CheckVolumeBinding",
    "MatchInterPodAffinity",
    "EvenPodsSpread",
];

/// The plugins of a predicate.
fn filters(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "PodFitsHostPorts" | "PodFitsPorts" => &["NodePorts"],
        "PodFitsResources" => &["NodeResourcesFit"],
        "HostName" => &["NodeName"],
        "MatchNodeSelector" => &["NodeAffinity"],
        "GeneralPredicates" => &["NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"],
        "NoDiskConflict" => &["VolumeRestrictions"],
        "NoVolumeZoneConflict" => &["VolumeZone"],
        "MaxEBSVolumeCount"
        | "MaxGCEPDVolumeCount"
        | "MaxAzureDiskVolumeCount"
        | "MaxCinderVolumeCount"
        | "MaxCSIVolumeCountPred" => &["NodeVolumeLimits"],
        "CheckVolumeBinding" => &["VolumeBinding"],
        "MatchInterPodAffinity" => &["InterPodAffinity"],
        "EvenPodsSpread" => &["PodTopologySpread"],
        "CheckNodeUnschedulable" => &["NodeUnschedulable"],
        "PodToleratesNodeTaints"
        | "PodToleratesNodeNoExecuteTaints"
        | "CheckNodeMemoryPressure"
        | "CheckNodeDiskPressure"
        | "CheckNodePIDPressure"
        | "CheckNodeCondition" => &["TaintToleration"],
        _ => return None,
    })
}

/// The plugin of a priority.
fn score(name: &str) -> Option<&'static str> {
    Some(match name {
        "LeastRequestedPriority" => "NodeResourcesLeastAllocated",
        "MostRequestedPriority" => "NodeResourcesMostAllocated",
        "RequestedToCapacityRatioPriority" => "RequestedToCapacityRatio",
        "BalancedResourceAllocation" => "NodeResourcesBalancedAllocation",
        "SelectorSpreadPriority" => "SelectorSpread",
        "ServiceSpreadingPriority" => "ServiceSpreading",
        "NodeAffinityPriority" => "NodeAffinity",
        "TaintTolerationPriority" => "TaintToleration",
        "InterPodAffinityPriority" => "InterPodAffinity",
        "EvenPodsSpreadPriority" => "PodTopologySpread",
        "ImageLocalityPriority" => "ImageLocality",
        "NodePreferAvoidPodsPriority" => "NodePreferAvoidPods",
        "EqualPriority" => "EqualPriority",
        _ => return None,
    })
}

fn named(name: &str, weight: i64) -> Named {
    Named { name: name.to_owned(), weight, argument: Value::Null }
}

/// Priorities of a provider, which differ in one.
fn priorities(by_resources: &str) -> Vec<Named> {
    let all = [
        ("SelectorSpreadPriority", 1),
        ("InterPodAffinityPriority", 1),
        (by_resources, 1),
        ("BalancedResourceAllocation", 1),
        ("NodePreferAvoidPodsPriority", 10_000),
        ("NodeAffinityPriority", 1),
        ("TaintTolerationPriority", 1),
        ("ImageLocalityPriority", 1),
        ("EvenPodsSpreadPriority", 2),
    ];
    all.map(|(name, weight)| named(name, weight)).into()
}

/// The configuration of an algorithm provider by name: `DefaultProvider` or
/// `ClusterAutoscalerProvider`.
///
/// # Errors
/// There is none of that name.
pub fn provider(name: &str) -> Result<Configuration, ConfigError> {
    let by_resources = match name {
        "DefaultProvider" => "LeastRequestedPriority",
        "ClusterAutoscalerProvider" => "MostRequestedPriority",
        _ => return Err(invalid("algorithm-provider", format!("{name:?} is not known"))),
    };
    Policy {
        _kind: String::new(),
        _api_version: String::new(),
        predicates: None,
        priorities: Some(priorities(by_resources)),
        extenders: Vec::new(),
        hard_pod_affinity_symmetric_weight: None,
        _always_check_all: false,
    }
    .configuration()
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// A field is not known.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::of(super::tree(text)?)
    }

    pub(super) fn of(tree: Value) -> Result<Self, ConfigError> {
        serde_json::from_value(tree).map_err(|error| ConfigError::Parse(error.to_string()))
    }

    /// The same as a configuration of one profile.
    ///
    /// # Errors
    /// A predicate or priority is not known.
    pub fn configuration(self) -> Result<Configuration, ConfigError> {
        let mut plugins = PluginsConfig {
            multi_point: PluginSet { enabled: Vec::new(), disabled: vec![PluginRef::new("*", 0)] },
            ..PluginsConfig::default()
        };
        for (name, point) in MANDATORY {
            let set = match point {
                Point::PreEnqueue => &mut plugins.pre_enqueue,
                Point::QueueSort => &mut plugins.queue_sort,
                Point::Filter => &mut plugins.filter,
                Point::PostFilter => &mut plugins.post_filter,
                Point::Bind => &mut plugins.bind,
            };
            set.enabled.push(PluginRef::new(name, 0));
        }
        let predicates = self
            .predicates
            .unwrap_or_else(|| PREDICATES.iter().map(|name| named(name, 0)).collect());
        for predicate in predicates {
            let own = filters(&predicate.name).ok_or_else(|| {
                invalid("predicates", format!("{:?} is not known", predicate.name))
            })?;
            for name in own {
                add(&mut plugins.filter, name, 0);
                if *name == "VolumeBinding" {
                    add(&mut plugins.reserve, name, 0);
                    add(&mut plugins.pre_bind, name, 0);
                }
            }
        }
        let mut plugin_config = Vec::new();
        if let Some(weight) = self.hard_pod_affinity_symmetric_weight {
            plugin_config.push(PluginConfig {
                name: "InterPodAffinity".to_owned(),
                args: json!({"hardPodAffinityWeight": weight}),
            });
        }
        let all = self.priorities.unwrap_or_else(|| priorities("LeastRequestedPriority"));
        for priority in all {
            let ratio = &priority.argument["requestedToCapacityRatioArguments"];
            let name = match (score(&priority.name), ratio.is_object()) {
                (_, true) => "RequestedToCapacityRatio",
                (Some(name), false) => name,
                (None, false) => {
                    return Err(invalid("priorities", format!("{:?} is not known", priority.name)));
                }
            };
            if ratio.is_object() {
                plugin_config.push(PluginConfig { name: name.to_owned(), args: ratio.clone() });
            }
            if priority.weight < 0 {
                return Err(invalid("priorities", "weight must be positive"));
            }
            add(&mut plugins.score, name, priority.weight);
        }
        let profile = ProfileConfig { plugins, plugin_config, ..ProfileConfig::default() };
        let own = Configuration {
            profiles: vec![profile],
            extenders: self.extenders,
            ..Configuration::default()
        };
        own.validate()?;
        Ok(own)
    }
}

/// Adds a plugin once.
fn add(set: &mut PluginSet, name: &str, weight: i64) {
    if !set.enabled.iter().any(|own| own.name == name) {
        set.enabled.push(PluginRef::new(name, weight));
    }
}

//! The plugins, and the registry that has them by name.

mod basic;
mod classic;
mod dynamic;
mod images;
mod inter_pod;
mod node_affinity;
pub(crate) mod preemption;
mod resources;
mod spread;
mod taints;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_gates::{FeatureGates, NODE_DECLARED_FEATURES};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::framework::Plugin;

/// Why a plugin cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin}: {reason}")]
pub struct PluginError {
    plugin: &'static str,
    reason: String,
}

type Factory = fn(&Value) -> Result<Arc<dyn Plugin>, PluginError>;

/// Plugins by name.
#[derive(Debug, Clone)]
pub struct Registry(BTreeMap<&'static str, Factory>);

impl Default for Registry {
    /// All plugins of this crate, with the default feature gates.
    fn default() -> Self {
        let all: [(&'static str, Factory); 26] = [
            ("SchedulingGates", |_| Ok(Arc::new(basic::SchedulingGates))),
            ("PrioritySort", |_| Ok(Arc::new(basic::PrioritySort))),
            ("DefaultBinder", |_| Ok(Arc::new(basic::DefaultBinder))),
            ("NodeUnschedulable", |_| Ok(Arc::new(basic::NodeUnschedulable::default()))),
            ("NodeName", |_| Ok(Arc::new(basic::NodeName))),
            ("NodePorts", |_| Ok(Arc::new(basic::NodePorts))),
            ("DynamicResources", |args| Ok(Arc::new(dynamic::DynamicResources::new(args)?))),
            (NODE_DECLARED_FEATURES, |_| {
                Ok(Arc::new(basic::NodeDeclaredFeatures { is_enabled: true }))
            }),
            ("TaintToleration", |_| Ok(Arc::new(taints::TaintToleration))),
            ("NodeAffinity", |args| Ok(Arc::new(node_affinity::NodeAffinity::new(args)?))),
            ("NodeResourcesFit", |args| Ok(Arc::new(resources::Fit::new(args)?))),
            ("NodeResourcesBalancedAllocation", |args| {
                Ok(Arc::new(resources::BalancedAllocation::new(args)?))
            }),
            ("NodeResourcesLeastAllocated", |args| {
                Ok(Arc::new(resources::Allocation::least(args)?))
            }),
            ("NodeResourcesMostAllocated", |args| Ok(Arc::new(resources::Allocation::most(args)?))),
            ("RequestedToCapacityRatio", |args| Ok(Arc::new(resources::Allocation::ratio(args)?))),
            ("ImageLocality", |_| Ok(Arc::new(images::ImageLocality))),
            ("InterPodAffinity", |args| Ok(Arc::new(inter_pod::InterPodAffinity::new(args)?))),
            ("PodTopologySpread", |args| Ok(Arc::new(spread::PodTopologySpread::new(args)?))),
            ("VolumeBinding", |args| Ok(Arc::new(volumes::VolumeBinding::new(args)?))),
            ("VolumeZone", |_| Ok(Arc::new(volumes::VolumeZone::default()))),
            ("VolumeRestrictions", |_| Ok(Arc::new(volumes::VolumeRestrictions))),
            ("NodeVolumeLimits", |_| Ok(Arc::new(volumes::NodeVolumeLimits))),
            ("DefaultPreemption", |args| Ok(Arc::new(preemption::DefaultPreemption::new(args)?))),
            ("SelectorSpread", |_| Ok(Arc::new(classic::SelectorSpread::default()))),
            ("ServiceSpreading", |_| Ok(Arc::new(classic::SelectorSpread::services()))),
            ("NodePreferAvoidPods", |_| Ok(Arc::new(classic::NodePreferAvoidPods))),
        ];
        let mut own = Self(all.into_iter().collect());
        own.register("EqualPriority", |_| Ok(Arc::new(classic::EqualPriority)));
        own
    }
}

impl Registry {
    /// All plugins of this crate, as these feature gates have them.
    pub fn new(gates: &FeatureGates) -> Self {
        let mut own = Self::default();
        if !gates.enabled(NODE_DECLARED_FEATURES) {
            own.register(NODE_DECLARED_FEATURES, |_| {
                Ok(Arc::new(basic::NodeDeclaredFeatures { is_enabled: false }))
            });
        }
        own
    }

    /// Registers an algorithm by its name, or replaces one.
    pub fn register(&mut self, name: &'static str, factory: Factory) {
        self.0.insert(name, factory);
    }

    /// Whether there is one of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Makes a plugin; `None` if there is none of that name. Arguments that are null are the defaults.
    pub fn make(&self, name: &str, args: &Value) -> Option<Result<Arc<dyn Plugin>, PluginError>> {
        self.0.get(name).map(|factory| factory(args))
    }
}

/// Reads the arguments of a plugin; the defaults if they are null.
fn arguments<T: DeserializeOwned + Default>(
    plugin: &'static str,
    args: &Value,
) -> Result<T, PluginError> {
    if args.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(args.clone())
        .map_err(|error| PluginError { plugin, reason: error.to_string() })
}

/// The error of an argument.
fn invalid(plugin: &'static str, reason: impl Into<String>) -> PluginError {
    PluginError { plugin, reason: reason.into() }
}

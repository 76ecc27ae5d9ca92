//! Profiles: the default plugins, what the configuration adds and takes away, at all points or at one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ConfigError, DEFAULT_SCHEDULER, invalid};
use crate::framework::{Plugin, Points, Profile};
use crate::model::Atom;
use crate::plugins::Registry;

/// Plugins of every profile, with weights.
const DEFAULTS: [(&str, i64); 20] = [
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeUnschedulable", 0),
    ("NodeName", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("NodeVolumeLimits", 0),
    ("VolumeBinding", 0),
    ("VolumeZone", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
];

/// A profile.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct ProfileConfig {
    pub(super) scheduler_name: Option<String>,
    pub(super) percentage_of_nodes_to_score: Option<i32>,
    pub(super) plugins: PluginsConfig,
    pub(super) plugin_config: Vec<PluginConfig>,
}

/// Plugins at each point.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct PluginsConfig {
    pub(super) pre_enqueue: PluginSet,
    pub(super) queue_sort: PluginSet,
    pub(super) pre_filter: PluginSet,
    pub(super) filter: PluginSet,
    pub(super) post_filter: PluginSet,
    pub(super) pre_score: PluginSet,
    pub(super) score: PluginSet,
    pub(super) reserve: PluginSet,
    pub(super) permit: PluginSet,
    pub(super) pre_bind: PluginSet,
    pub(super) bind: PluginSet,
    pub(super) post_bind: PluginSet,
    pub(super) multi_point: PluginSet,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct PluginSet {
    pub(super) enabled: Vec<PluginRef>,
    pub(super) disabled: Vec<PluginRef>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct PluginRef {
    pub(super) name: String,
    pub(super) weight: i64,
}

impl PluginRef {
    pub(super) fn new(name: &str, weight: i64) -> Self {
        Self { name: name.to_owned(), weight }
    }
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|own| own.name == name || own.name == "*")
    }

    fn get(&self, name: &str) -> Option<&PluginRef> {
        self.enabled.iter().find(|own| own.name == name)
    }
}

/// Arguments of a plugin.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct PluginConfig {
    pub(super) name: String,
    pub(super) args: Value,
}

impl ProfileConfig {
    /// Arguments of a plugin; null if there are none.
    pub(super) fn args(&self, name: &str) -> Value {
        let own = self.plugin_config.iter().find(|own| own.name == name);
        own.map_or(Value::Null, |own| own.args.clone())
    }
}

/// Plugins of all points: the defaults with what the configuration makes of them.
fn multi_point(own: &PluginSet) -> Vec<PluginRef> {
    let defaults = DEFAULTS.iter().map(|(name, weight)| PluginRef::new(name, *weight));
    let mut all: Vec<PluginRef> = defaults
        .filter(|default| !own.disables(&default.name))
        .map(|default| own.get(&default.name).cloned().unwrap_or(default))
        .collect();
    let more = own.enabled.iter().filter(|more| !all.iter().any(|one| one.name == more.name));
    let more: Vec<_> = more.cloned().collect();
    all.extend(more);
    all
}

/// Profiles from their configurations.
pub(super) fn build(
    configs: &[ProfileConfig],
    percentage: Option<i32>,
    ignored: &[&str],
    registry: &Registry,
) -> Result<Vec<Profile>, ConfigError> {
    let default = [ProfileConfig::default()];
    let configs = if configs.is_empty() { &default } else { configs };
    let mut profiles: Vec<Profile> = Vec::new();
    for (index, config) in configs.iter().enumerate() {
        let field = format!("profiles[{index}].schedulerName");
        let name = match (&config.scheduler_name, configs.len()) {
            (Some(name), _) if !name.is_empty() => name.as_str(),
            (None, 1) => DEFAULT_SCHEDULER,
            _ => return Err(invalid(field, "Required value")),
        };
        let name = Atom::new(name);
        if profiles.iter().any(|other| other.name == name) {
            return Err(invalid(field, format!("Duplicate value: \"{name}\"")));
        }
        let percentage = config.percentage_of_nodes_to_score.or(percentage).unwrap_or(0);
        profiles.push(profile(name, config, percentage, ignored, registry)?);
    }
    Ok(profiles)
}

fn profile(
    name: Atom,
    config: &ProfileConfig,
    percentage: i32,
    ignored: &[&str],
    registry: &Registry,
) -> Result<Profile, ConfigError> {
    let plugins = &config.plugins;
    let multi = multi_point(&plugins.multi_point);
    let mut made: BTreeMap<String, Arc<dyn Plugin>> = BTreeMap::new();
    let points: [(&PluginSet, Points); 12] = [
        (&plugins.pre_enqueue, Points::PRE_ENQUEUE),
        (&plugins.queue_sort, Points::QUEUE_SORT),
        (&plugins.pre_filter, Points::PRE_FILTER),
        (&plugins.filter, Points::FILTER),
        (&plugins.post_filter, Points::POST_FILTER),
        (&plugins.pre_score, Points::PRE_SCORE),
        (&plugins.score, Points::SCORE),
        (&plugins.reserve, Points::RESERVE),
        (&plugins.permit, Points::PERMIT),
        (&plugins.pre_bind, Points::PRE_BIND),
        (&plugins.bind, Points::BIND),
        (&plugins.post_bind, Points::POST_BIND),
    ];
    let named = points.iter().flat_map(|(set, _)| &set.enabled).chain(&multi);
    for own in named {
        if made.contains_key(&own.name) {
            continue;
        }
        let mut args = config.args(&own.name);
        if own.name == "NodeResourcesFit" && !ignored.is_empty() {
            ignore(&mut args, ignored);
        }
        let plugin = registry.make(&own.name, &args).ok_or_else(|| {
            invalid("plugins", format!("plugin \"{}\" does not exist", own.name))
        })??;
        made.insert(own.name.clone(), plugin);
    }
    for own in &config.plugin_config {
        if !registry.has(&own.name) {
            return Err(invalid("pluginConfig", format!("\"{}\" does not exist", own.name)));
        }
    }

    let mut lists: Vec<Vec<(Arc<dyn Plugin>, i64)>> = Vec::new();
    for (set, point) in points {
        let mut list = Vec::new();
        for own in
            at_point(set, &multi, |name| made.get(name).is_some_and(|own| own.points().has(point)))
        {
            let Some(plugin) = made.get(&own.name) else { continue };
            if !plugin.points().has(point) {
                return Err(invalid(
                    "plugins",
                    format!("plugin \"{}\" does not extend this point", own.name),
                ));
            }
            if own.weight < 0 {
                return Err(invalid("plugins.score", "weight must not be negative"));
            }
            list.push((plugin.clone(), if own.weight == 0 { 1 } else { own.weight }));
        }
        lists.push(list);
    }
    let without_weights = |index: usize| -> Vec<Arc<dyn Plugin>> {
        lists.get(index).into_iter().flatten().map(|(plugin, _)| plugin.clone()).collect()
    };
    let (sorts, binds) = (without_weights(1), without_weights(10));
    if sorts.len() != 1 {
        return Err(invalid("plugins.queueSort", "exactly one queue sort plugin must be enabled"));
    }
    if binds.is_empty() {
        return Err(invalid("plugins.bind", "at least one bind plugin is needed"));
    }
    Ok(Profile {
        name,
        pre_enqueue: without_weights(0),
        filters: without_weights(3),
        post_filters: without_weights(4),
        scores: lists.get(6).cloned().unwrap_or_default(),
        reserve: without_weights(7),
        permit: without_weights(8),
        percentage,
    })
}

/// Plugins at one point: those named for it that are for all points too, then those for all points
/// that take part in it, then the others named for it.
fn at_point<'a>(
    set: &'a PluginSet,
    multi: &'a [PluginRef],
    takes_part: impl Fn(&str) -> bool,
) -> Vec<&'a PluginRef> {
    let is_multi = |own: &&PluginRef| multi.iter().any(|other| other.name == own.name);
    let (overriding, others): (Vec<_>, Vec<_>) = set.enabled.iter().partition(|own| is_multi(own));
    let regular = multi.iter().filter(|own| {
        takes_part(&own.name) && !set.disables(&own.name) && set.get(&own.name).is_none()
    });
    overriding.into_iter().chain(regular).chain(others).collect()
}

/// Leaves out resources that an extender manages.
fn ignore(args: &mut Value, ignored: &[&str]) {
    if args.is_null() {
        *args = json!({});
    }
    let mut all: Vec<Value> = args["ignoredResources"].as_array().cloned().unwrap_or_default();
    all.extend(ignored.iter().map(|name| json!(name)));
    args["ignoredResources"] = Value::Array(all);
}

use serde_json::json;

use super::*;
use crate::plugins::Registry;

fn profiles(text: &str) -> Result<Vec<Profile>, ConfigError> {
    Configuration::parse(text)?.profiles(&Registry::default())
}

fn scores(profile: &Profile) -> Vec<(&'static str, i64)> {
    profile.scores.iter().map(|(plugin, weight)| (plugin.name(), *weight)).collect()
}

fn filters(profile: &Profile) -> Vec<&'static str> {
    profile.filters.iter().map(|plugin| plugin.name()).collect()
}

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

#[test]
fn config_default_profile_has_upstreams_plugins_and_weights() {
    let all = default_profiles(&Registry::default()).unwrap();
    let [profile] = &*all else { panic!("{all:?}") };
    assert_eq!(profile.name.as_str(), "default-scheduler");
    assert_eq!(
        scores(profile),
        [
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("NodeResourcesFit", 1),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("DynamicResources", 2),
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
        ]
    );
    assert!(filters(profile).starts_with(&["NodeUnschedulable", "NodeName", "TaintToleration"]));
    assert_eq!(profile.post_filters.len(), 2);
}

#[test]
fn config_profiles_enable_and_disable_plugins() {
    let text = format!(
        "{HEAD}percentageOfNodesToScore: 40
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  percentageOfNodesToScore: 100
  plugins:
    score:
      disabled: [{{name: '*'}}]
      enabled: [{{name: NodeResourcesFit, weight: 7}}]
    multiPoint:
      disabled: [{{name: VolumeZone}}]
      enabled: [{{name: ImageLocality, weight: 5}}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      scoringStrategy: {{type: MostAllocated, resources: [{{name: cpu, weight: 3}}]}}
"
    );
    let all = profiles(&text).unwrap();
    let [first, second] = &*all else { panic!("{all:?}") };
    assert_eq!((first.percentage, second.percentage), (40, 100));
    assert_eq!(scores(second), [("NodeResourcesFit", 7)]);
    assert!(filters(first).contains(&"VolumeZone"));
    assert!(!filters(second).contains(&"VolumeZone"));
}

#[test]
fn config_rejects_what_is_not_valid() {
    for (more, expected) in [
        ("parallelism: 0", "parallelism"),
        ("percentageOfNodesToScore: 101", "percentageOfNodesToScore"),
        ("podInitialBackoffSeconds: 0", "podInitialBackoffSeconds"),
        ("podMaxBackoffSeconds: 0", "podMaxBackoffSeconds"),
        ("unknown: 1", "unknown field `unknown`"),
        ("leaderElection: {resourceLock: endpoints}", "resourceLock"),
        ("profiles: [{schedulerName: a}, {schedulerName: a}]", "Duplicate value"),
        ("profiles: [{}, {}]", "Required value"),
        ("profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]", "does not exist"),
        ("profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]", "queueSort"),
        ("profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]", "bind"),
        ("extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]", "weight"),
        ("extenders: [{bindVerb: b}, {bindVerb: b}]", "only one extender can implement bind"),
        (
            "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
            "hardPodAffinityWeight",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: X}}}]}]",
            "Unsupported value",
        ),
    ] {
        let error = profiles(&format!("{HEAD}{more}\n")).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
    assert!(profiles("apiVersion: v9\nkind: KubeSchedulerConfiguration").is_err());
    assert!(profiles("{").is_err());
}

#[test]
fn policy_files_and_providers_load() {
    let policy = json!({
        "kind": "Policy", "apiVersion": "v1",
        "predicates": [{"name": "PodFitsHostPorts"}, {"name": "PodFitsResources"}, {"name": "NoDiskConflict"},
            {"name": "MatchNodeSelector"}, {"name": "HostName"}, {"name": "CheckVolumeBinding"}],
        "priorities": [{"name": "LeastRequestedPriority", "weight": 1},
            {"name": "BalancedResourceAllocation", "weight": 1},
            {"name": "ServiceSpreadingPriority", "weight": 2}, {"name": "EqualPriority", "weight": 1}],
        "hardPodAffinitySymmetricWeight": 10,
    });
    let all = profiles(&policy.to_string()).unwrap();
    let [profile] = &*all else { panic!("{all:?}") };
    assert_eq!(
        scores(profile),
        [
            ("NodeResourcesLeastAllocated", 1),
            ("NodeResourcesBalancedAllocation", 1),
            ("ServiceSpreading", 2),
            ("EqualPriority", 1),
        ]
    );
    assert_eq!(
        filters(profile),
        [
            "NodeUnschedulable",
            "TaintToleration",
            "NodePorts",
            "NodeResourcesFit",
            "VolumeRestrictions",
            "NodeAffinity",
            "NodeName",
            "VolumeBinding",
        ]
    );
    for (name, expected) in [
        ("DefaultProvider", "NodeResourcesLeastAllocated"),
        ("ClusterAutoscalerProvider", "NodeResourcesMostAllocated"),
    ] {
        let all = provider(name).unwrap().profiles(&Registry::default()).unwrap();
        let [profile] = &*all else { panic!("{all:?}") };
        assert!(scores(profile).contains(&(expected, 1)), "{name}");
        assert!(scores(profile).contains(&("NodePreferAvoidPods", 10_000)), "{name}");
    }
    assert!(provider("Nope").is_err());
    let unknown = json!({"kind": "Policy", "predicates": [{"name": "Nope"}]});
    assert!(profiles(&unknown.to_string()).is_err());
}

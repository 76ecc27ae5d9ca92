//! Pure: the features that a node declares in `status.declaredFeatures`, by which the control plane
//! keeps from it what it cannot do.

use std::fmt;

use crate::FeatureGates;

/// The gate of declared features. Without it nodes declare none, and none are needed.
pub const NODE_DECLARED_FEATURES: &str = "NodeDeclaredFeatures";

/// All of 1.36, by the names of the gates that enable them, sorted. The bits of a set are in this order.
const NAMES: [&str; 5] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
];
const RESIZE_POD: u8 = 1 << 1;
const RESIZE_INIT_CONTAINERS: u8 = 1 << 2;
const RESTART_ALL_CONTAINERS: u8 = 1 << 3;
const HOST_NETWORK_IN_USER_NAMESPACE: u8 = 1 << 4;

/// A set of features that nodes declare. Displayed as names, separated by commas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeclaredFeatures(u8);

impl DeclaredFeatures {
    /// Those of a node with these gates. `host_network_in_user_namespace`: its runtime can run a pod in the
    /// host's network and in a user namespace.
    #[must_use]
    pub fn of_node(gates: &FeatureGates, host_network_in_user_namespace: bool) -> Self {
        if !gates.enabled(NODE_DECLARED_FEATURES) {
            return Self::default();
        }
        let enabled = Self::from_names(NAMES.into_iter().filter(|name| gates.enabled(name)));
        let unable =
            if host_network_in_user_namespace { 0 } else { HOST_NETWORK_IN_USER_NAMESPACE };
        enabled.without(Self(unable))
    }

    /// Those of these names; unknown ones are left out.
    #[must_use]
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let positions = names.into_iter().filter_map(|name| NAMES.binary_search(&name).ok());
        Self(positions.fold(0, |bits, position| bits | 1 << position))
    }

    /// What a node needs for a pod. `restarts_all`: a restart rule of a container restarts all of them.
    #[must_use]
    pub fn for_pod(restarts_all: bool, host_network_in_user_namespace: bool) -> Self {
        Self::of([
            (restarts_all, RESTART_ALL_CONTAINERS),
            (host_network_in_user_namespace, HOST_NETWORK_IN_USER_NAMESPACE),
        ])
    }

    /// What a node needs for a resize: of resources of the pod, and of an init container that is no sidecar.
    #[must_use]
    pub fn for_resize(of_pod: bool, of_init_container: bool) -> Self {
        Self::of([(of_pod, RESIZE_POD), (of_init_container, RESIZE_INIT_CONTAINERS)])
    }

    fn of(needs: [(bool, u8); 2]) -> Self {
        Self(
            needs
                .into_iter()
                .filter(|(is_needed, _)| *is_needed)
                .fold(0, |all, (_, bit)| all | bit),
        )
    }

    /// Whether it is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The names, sorted.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = NAMES.into_iter().enumerate();
        all.filter(move |(position, _)| self.0 >> position & 1 == 1).map(|(_, name)| name)
    }
}

impl fmt::Display for DeclaredFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: &str = "ExtendWebSocketsToKubelet, InPlacePodLevelResourcesVerticalScaling, \
         InPlacePodVerticalScalingInitContainers, RestartAllContainersOnContainerExits";

    #[test]
    fn declared_features_follow_gates_and_runtime() {
        let host_network = "UserNamespacesHostNetworkSupport";
        let with_host_network = format!("{DEFAULTS}, {host_network}");
        for (gates, host_network_in_user_namespace, expected) in [
            ("", true, DEFAULTS),
            ("UserNamespacesHostNetworkSupport=true", false, DEFAULTS),
            ("UserNamespacesHostNetworkSupport=true", true, with_host_network.as_str()),
            (
                "InPlacePodLevelResourcesVerticalScaling=false,ExtendWebSocketsToKubelet=false",
                false,
                "InPlacePodVerticalScalingInitContainers, RestartAllContainersOnContainerExits",
            ),
            ("NodeDeclaredFeatures=false", true, ""),
        ] {
            let gates = gates.parse().unwrap();
            let declared = DeclaredFeatures::of_node(&gates, host_network_in_user_namespace);
            assert_eq!(declared.to_string(), expected, "{gates:?}");
        }
    }

    #[test]
    fn declared_features_are_sets_of_known_names() {
        assert!(NAMES.windows(2).all(|pair| pair[0] < pair[1]));
        for name in NAMES {
            assert!(FeatureGates::names().any(|gate| gate == name), "{name}");
            assert_eq!(DeclaredFeatures::from_names([name]).to_string(), name);
        }
        assert!(DeclaredFeatures::from_names(["Other", "", "guaranteed/CPU"]).is_empty());
        let all = DeclaredFeatures::from_names(NAMES.into_iter().rev());
        assert_eq!(all.names().collect::<Vec<_>>(), NAMES);
        assert!(all.without(all).is_empty());
    }

    #[test]
    fn declared_features_that_are_needed_have_their_names() {
        let (pod, resize) = (DeclaredFeatures::for_pod, DeclaredFeatures::for_resize);
        for (needed, names) in [
            (pod(false, false), ""),
            (pod(true, false), "RestartAllContainersOnContainerExits"),
            (pod(false, true), "UserNamespacesHostNetworkSupport"),
            (resize(false, false), ""),
            (resize(true, false), "InPlacePodLevelResourcesVerticalScaling"),
            (resize(false, true), "InPlacePodVerticalScalingInitContainers"),
        ] {
            assert_eq!(needed.to_string(), names);
        }
    }
}

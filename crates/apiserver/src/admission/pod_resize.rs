//! The plugins NodeDeclaredFeatureValidator and PodResizeValidator: a pod that is bound is resized only if
//! its node is able to do that. Other updates change nothing that these plugins look at.

use longshore_gates::{DeclaredFeatures, FeatureGates, NODE_DECLARED_FEATURES};
use serde_json::Value;

use crate::api_types::Resource;
use crate::kinds::core;
use crate::object;
use crate::registry::Registry;
use crate::schema::quantity::Quantity;
use crate::schema::resources::{Amounts, pod_requests};
use crate::schema::value::{items, same, text};
use crate::status::{Cause, MODIFIED, StatusError};

/// Why a node cannot do what an update needs: the message, and the cause if there is one.
type Refusal = (String, Option<&'static str>);

/// What is known of the node of a pod before the pod is resized.
pub(crate) struct PodNode {
    /// Empty for a pod that is not bound.
    name: String,
    /// The object, if it exists.
    node: Option<Value>,
    /// Whether the gate of declared features is on.
    checks_features: bool,
}

impl PodNode {
    /// Reads it for a resize; `None` for any other update.
    pub(crate) async fn read(
        registry: &Registry,
        gates: &FeatureGates,
        resource: &Resource,
        subresource: &str,
        (namespace, name): (&str, &str),
    ) -> Result<Option<Self>, StatusError> {
        if resource.kind != "Pod" || subresource != "resize" {
            return Ok(None);
        }
        let Some(pod) = registry.find(resource, namespace, name).await? else { return Ok(None) };
        let name = text(&pod["spec"]["nodeName"]).to_owned();
        let node = match name.as_str() {
            "" => None,
            name => registry.find(core("nodes")?, "", name).await?,
        };
        Ok(Some(Self { name, node, checks_features: gates.enabled(NODE_DECLARED_FEATURES) }))
    }

    /// Refuses a resize that the node cannot do.
    pub(crate) fn admit(
        &self,
        pods: &Resource,
        new: &Value,
        old: &Value,
    ) -> Result<(), StatusError> {
        if new["metadata"]["generation"] == old["metadata"]["generation"] {
            return Ok(());
        }
        let name = object::name(new);
        if text(&new["spec"]["nodeName"]) != self.name {
            // It was bound in the meantime.
            return Err(StatusError::conflict(pods, name, MODIFIED));
        }
        let Some((why, cause)) = self.refusal(new, old) else { return Ok(()) };
        let mut error = StatusError::forbidden(pods, name, &why);
        if let (Some(reason), Some(details)) = (cause, &mut error.details) {
            details.causes.push(Cause { reason, message: String::new(), field: String::new() });
        }
        Err(error)
    }

    fn refusal(&self, new: &Value, old: &Value) -> Option<Refusal> {
        let name = &self.name;
        if name.is_empty() {
            return None;
        }
        let Some(node) = &self.node else {
            return Some((format!("node {name:?} not found"), None));
        };
        let features = self.checks_features.then(|| lacking_features(new, old, node)).flatten();
        features.or_else(|| foreign_platform(name, node)).or_else(|| lacking_room(new, node))
    }
}

fn lacking_features(new: &Value, old: &Value, node: &Value) -> Option<Refusal> {
    let declared = items(&node["status"]["declaredFeatures"]).iter().map(text);
    let missing = needed(new, old).without(DeclaredFeatures::from_names(declared));
    let why = || {
        let name = object::name(node);
        format!("pod update requires features {missing} which are not available on node {name:?}")
    };
    (!missing.is_empty()).then(|| (why(), None))
}

/// Features that a node needs to follow the update.
fn needed(new: &Value, old: &Value) -> DeclaredFeatures {
    let (new, old) = (&new["spec"], &old["spec"]);
    let inits = items(&old["initContainers"]).iter().zip(items(&new["initContainers"]));
    let mut inits = inits.filter(|(old, _)| old["restartPolicy"] != "Always");
    DeclaredFeatures::for_resize(
        !same(&old["resources"], &new["resources"]),
        inits.any(|(old, new)| !same(&old["resources"], &new["resources"])),
    )
}

fn foreign_platform(name: &str, node: &Value) -> Option<Refusal> {
    let os = node["metadata"]["labels"]["kubernetes.io/os"].as_str().filter(|os| *os != "linux")?;
    let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
    Some((why, Some("UnsupportedPlatform")))
}

fn lacking_room(pod: &Value, node: &Value) -> Option<Refusal> {
    let mut requests = pod_requests(pod);
    requests.add(&Amounts::of(&pod["spec"]["overhead"]));
    let allocatable = Amounts::of(&node["status"]["allocatable"]);
    // CPU in millicores, memory in bytes.
    let units = |resource: &str, amount: Quantity| match resource {
        "cpu" => amount.round_up_to_milli().milli(),
        _ => amount.round_up_to_milli().milli().saturating_add(999) / 1000,
    };
    let lacking: Vec<String> = ["cpu", "memory"]
        .into_iter()
        .filter_map(|resource| {
            let none = || Quantity::whole(0);
            let requested = requests.get(resource).unwrap_or_else(none);
            let allocatable = allocatable.get(resource).unwrap_or_else(none);
            (requested.amount() > allocatable.amount()).then(|| {
                let requested = units(resource, requested);
                let allocatable = units(resource, allocatable);
                format!("{resource}, requested: {requested}, allocatable: {allocatable}")
            })
        })
        .collect();
    let why = || {
        let lacking = lacking.join("; ");
        format!("node didn't have enough allocatable resources: {lacking}")
    };
    (!lacking.is_empty()).then(|| (why(), Some("NodeCapacity")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(features: Value) -> Value {
        json!({
            "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux"}},
            "status": {
                "allocatable": {"cpu": "2", "memory": "1Gi"},
                "declaredFeatures": features,
            },
        })
    }

    fn pod(generation: i64, spec: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": "p", "generation": generation},
            "spec": {"nodeName": "n1"},
        });
        json_patch::merge(&mut pod["spec"], &spec);
        pod
    }

    fn cpu(amount: &str) -> Value {
        json!({"requests": {"cpu": amount}})
    }

    fn container(field: &str, amount: &str) -> Value {
        json!({field: [{"name": "c", "resources": cpu(amount)}]})
    }

    fn admit(node: Option<Value>, checks_features: bool, old: &Value, new: &Value) -> String {
        let pods = crate::kinds::core("pods").unwrap();
        let own = PodNode { name: "n1".into(), node, checks_features };
        let verdict = own.admit(pods, new, old);
        verdict.err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn pod_resize_needs_features_of_its_node() {
        let [of_pod, of_init] =
            ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"];
        let sidecar = |amount: &str| {
            json!({"initContainers": [
                {"name": "c", "restartPolicy": "Always", "resources": cpu(amount)},
            ]})
        };
        let both = |amount: &str| {
            json!({
                "resources": cpu(amount),
                "initContainers": [{"name": "c", "resources": cpu(amount)}],
            })
        };
        let refused = |features: &str| {
            format!(
                "pods \"p\" is forbidden: pod update requires features {features} which are not \
                 available on node \"n1\""
            )
        };
        let whole = |amount: &str| json!({"resources": cpu(amount)});
        for (declared, old, new, expected) in [
            (json!([]), container("containers", "1"), container("containers", "2"), String::new()),
            (json!([]), whole("1"), whole("2"), refused(of_pod)),
            (Value::Null, json!({}), whole("1"), refused(of_pod)),
            (json!([of_pod]), whole("1"), whole("2"), String::new()),
            (
                json!([of_pod]),
                container("initContainers", "1"),
                container("initContainers", "2"),
                refused(of_init),
            ),
            (json!([]), sidecar("1"), sidecar("2"), String::new()),
            (json!([]), both("1"), both("2"), refused(&format!("{of_pod}, {of_init}"))),
            (json!([of_pod, of_init]), both("1"), both("2"), String::new()),
        ] {
            let (old, new) = (pod(1, old), pod(2, new));
            let message = admit(Some(node(declared.clone())), true, &old, &new);
            assert_eq!(message, expected, "{declared} {new}");
            assert_eq!(admit(Some(node(declared)), false, &old, &new), "", "the gate is off");
        }
        let (old, mut new) = (pod(1, whole("1")), pod(1, whole("2")));
        assert_eq!(admit(Some(node(json!([]))), true, &old, &new), "", "the same generation");
        new["metadata"]["generation"] = 2.into();
        let message = admit(None, true, &old, &new);
        assert_eq!(message, "pods \"p\" is forbidden: node \"n1\" not found");
        new["spec"]["nodeName"] = "n2".into();
        assert!(admit(None, true, &old, &new).contains("the object has been modified"));
    }

    #[test]
    fn pod_resize_needs_room_on_a_node_of_linux() {
        let pods = crate::kinds::core("pods").unwrap();
        let refusal = |node: Value, spec: Value| {
            let own = PodNode { name: "n1".into(), node: Some(node), checks_features: true };
            let error = own.admit(pods, &pod(2, spec), &pod(1, json!({}))).unwrap_err();
            let details = error.details.unwrap();
            (
                error.message,
                details.causes.into_iter().map(|cause| cause.reason).collect::<Vec<_>>(),
            )
        };
        let mut other = node(json!([]));
        other["metadata"]["labels"]["kubernetes.io/os"] = "windows".into();
        let (message, causes) = refusal(other, container("containers", "1"));
        let platform = "pods \"p\" is forbidden: pod resize is only supported on linux nodes, node \
             \"n1\" is \"windows\"";
        assert_eq!((message.as_str(), causes), (platform, vec!["UnsupportedPlatform"]));

        let mut large = container("containers", "1900m");
        large["overhead"] = json!({"cpu": "101m", "memory": "1Gi"});
        large["containers"][0]["resources"]["requests"]["memory"] = "1".into();
        let (message, causes) = refusal(node(json!([])), large);
        let room = "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, \
             requested: 2001, allocatable: 2000; memory, requested: 1073741825, allocatable: 1073741824";
        assert_eq!((message.as_str(), causes), (room, vec!["NodeCapacity"]));
        let fits = (pod(1, json!({})), pod(2, container("containers", "2")));
        assert_eq!(admit(Some(node(json!([]))), true, &fits.0, &fits.1), "");
    }
}

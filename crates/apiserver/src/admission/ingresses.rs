//! The class of ingresses that name none: the plugin DefaultIngressClass.

use serde_json::Value;

use super::storage::newest;
use crate::api_types::Resource;
use crate::kinds::known;
use crate::object;
use crate::registry::Registry;
use crate::status::StatusError;

const KIND: &str = "Ingress";
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";
/// The class, of long ago.
const ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Gives a new ingress the default class.
pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    ingress: &mut Value,
) -> Result<(), StatusError> {
    if resource.kind != KIND
        || !ingress["spec"]["ingressClassName"].is_null()
        || ingress["metadata"]["annotations"][ANNOTATION].is_string()
    {
        return Ok(());
    }
    let classes = registry.list_all(known("networking.k8s.io", "ingressclasses")?, "").await?;
    if let Some(class) = default_class(&classes) {
        object::child_mut(ingress, "spec").insert("ingressClassName".into(), class.into());
    }
    Ok(())
}

fn default_class(classes: &[Value]) -> Option<&str> {
    newest(classes.iter().filter(|class| class["metadata"]["annotations"][IS_DEFAULT] == "true"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ingress_class_by_default_is_the_newest() {
        let class = |name: &str, time: &str, default: &str| {
            json!({"metadata": {
                "name": name,
                "creationTimestamp": time,
                "annotations": {IS_DEFAULT: default},
            }})
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        assert_eq!(default_class(&[class("a", new, "false")]), None);
        let classes = [class("a", old, "true"), class("c", new, "true"), class("b", new, "true")];
        assert_eq!(default_class(&classes), Some("b"));
    }
}

//! What Go calls the types of fields where that is another name than that of the field's kind of value, for
//! messages in upstream's words. It is looked up when there is something to say, and so read each time.

use crate::Type;

const DATA: &str = include_str!("../data/go-types.tsv");
const NONE: &str = "-";
/// Names of maps, lists and structs.
const OTHERS: [&str; 5] = [
    "v1.CustomResourceSubresourceStatus",
    "v1.JSONSchemaDefinitions",
    "v1.JSONSchemaDependencies",
    "v1.ResourceList",
    "v1.ValidationRules",
];

/// A field as Go knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoField {
    /// The embedded structs that the field is in, with dots between them.
    pub embedded: Option<&'static str>,
    /// Its type, such as `v1.Protocol` or `[]v1.IPFamily`; `None`: that of its values, as it is.
    pub go_type: Option<&'static str>,
}

/// A field that Go has another name for than its name and values say.
#[must_use]
pub fn go_field(ty: &Type, field: &str) -> Option<GoField> {
    DATA.lines().find_map(|line| {
        let mut parts = line.split('\t');
        let is_it = parts.next() == Some(ty.name) && parts.next() == Some(field);
        let mut next = || parts.next().filter(|part| *part != NONE);
        is_it.then(|| GoField { embedded: next(), go_type: next() })
    })
}

/// Whether this is the name of a kind of text, such as `v1.Protocol`.
#[must_use]
pub fn is_named_text(go_type: &str) -> bool {
    !OTHERS.contains(&go_type)
        && DATA.lines().any(|line| line.rsplit('\t').next() == Some(go_type))
        && go_type.starts_with(|first: char| first.is_ascii_lowercase())
        && !go_type.starts_with("map[")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;

    #[test]
    fn go_fields_are_fields_of_types() {
        for line in DATA.lines() {
            let parts: Vec<&str> = line.split('\t').collect();
            let [ty, field, embedded, go_type] = parts[..] else { panic!("{line}") };
            let ty = types().named(ty).unwrap_or_else(|| panic!("{line}"));
            assert!(ty.field(field).is_some() && (embedded != NONE || go_type != NONE), "{line}");
        }
        let of = |ty: &str, field: &str| go_field(types().named(ty).unwrap(), field);
        let port = GoField { embedded: None, go_type: Some("v1.Protocol") };
        assert_eq!(of("io.k8s.api.core.v1.ServicePort", "protocol"), Some(port));
        let csi = GoField { embedded: Some("VolumeSource"), go_type: None };
        assert_eq!(of("io.k8s.api.core.v1.Volume", "csi"), Some(csi));
        assert_eq!(of("io.k8s.api.core.v1.Volume", "name"), None);
        assert!(is_named_text("v1.PodPhase") && is_named_text("types.UID"));
        for other in ["v1.PodSpec", "v1.ResourceList", "string", "[]v1.IPFamily", "-", ""] {
            assert!(!is_named_text(other), "{other}");
        }
    }
}

//! Which families of addresses a service has, and which of its addresses are the client's wish. Rules and
//! texts are those of upstream's `registry/core/service/storage` (`alloc.go`, `storage.go`).

use serde_json::{Map, Value, json};

use crate::cidr::{FAMILIES, family_of};
use crate::kinds::service_addresses;
use crate::object;
use crate::schema::service::needs_address;
use crate::schema::value::{is_zero, items, same, text};
use crate::schema::{Causes, Path};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

/// Settles `clusterIP` and `clusterIPs` where a client gave only one of them, or on an update none. What
/// does not fit together stays for the rules of the object to refuse.
pub(super) fn normalize(service: &mut Value, old: Option<&Value>) {
    let keeps = old.is_some_and(needs_address) && needs_address(service);
    let spec = object::child_mut(service, "spec");
    let is_absent = |spec: &Map<String, Value>, field: &str| spec.get(field).is_none_or(is_zero);
    let Some(old) = old.map(|old| &old["spec"]) else {
        if is_absent(spec, "clusterIPs")
            && let Some(one) = spec.get("clusterIP").filter(|one| !is_zero(one)).cloned()
        {
            spec.insert("clusterIPs".into(), json!([one]));
        }
        return;
    };
    if keeps {
        for field in ["clusterIP", "clusterIPs"] {
            if is_absent(spec, field) && !is_zero(&old[field]) {
                spec.insert(field.into(), old[field].clone());
            }
        }
    }
    let one = spec.get("clusterIP").cloned().unwrap_or_default();
    let has_same_list = same(spec.get("clusterIPs").unwrap_or(&Value::Null), &old["clusterIPs"]);
    match (same(&one, &old["clusterIP"]), is_zero(&one)) {
        // The single field is the newer one where only that was changed.
        (false, true) if has_same_list => drop(spec.remove("clusterIPs")),
        (false, false) if has_same_list => drop(spec.insert("clusterIPs".into(), json!([one]))),
        _ => {}
    }
}

/// Whether an update leaves a service as it is that prefers to have both families. Such a service neither
/// gains nor loses an address because the cluster has changed.
pub(super) fn is_kept_preference(service: &Value, old: &Value) -> bool {
    let (new, old) = (&service["spec"], &old["spec"]);
    let prefers = |spec: &Value| spec["ipFamilyPolicy"] == PREFER;
    needs_address(service)
        && new["type"] == old["type"]
        && prefers(new)
        && (prefers(old) || old["ipFamilyPolicy"].is_null())
        && same(&new["clusterIPs"], &old["clusterIPs"])
        && same(&new["ipFamilies"], &old["ipFamilies"])
}

/// Completes `ipFamilyPolicy` and `ipFamilies`. `configured`: the families of the cluster, the default
/// one first.
pub(super) fn complete(
    configured: &[&'static str],
    service: &mut Value,
    old: Option<&Value>,
) -> Result<(), Causes> {
    if !needs_address(service) || old.is_some_and(|old| is_kept_preference(service, old)) {
        return Ok(());
    }
    let old_spec = old.map(|old| &old["spec"]);
    let spec = &service["spec"];
    let is_for_any = spec["clusterIP"] == "None" && is_zero(&spec["selector"]);
    if spec["ipFamilyPolicy"].is_null() {
        let before = old_spec.map(|old| &old["ipFamilyPolicy"]).filter(|policy| !policy.is_null());
        let policy = match before {
            Some(before) => before.clone(),
            // Its endpoints may be of any family.
            None if is_for_any => REQUIRE.into(),
            None => SINGLE.into(),
        };
        object::child_mut(service, "spec").insert("ipFamilyPolicy".into(), policy);
    }
    let mut causes = Causes::default();
    service_addresses(service, &mut causes);
    if !causes.0.is_empty() {
        return Err(causes);
    }
    let (root, spec) = (Path::root("spec"), &service["spec"]);
    let (policy, policy_path) = (text(&spec["ipFamilyPolicy"]), root.child("ipFamilyPolicy"));
    let is_single = policy == SINGLE;
    let mut addresses = items(&spec["clusterIPs"]).to_vec();
    let mut families: Vec<&'static str> =
        items(&spec["ipFamilies"]).iter().filter_map(known).collect();

    if let Some(old) = old_spec {
        let is_less = |field: &str| {
            let count = items(&spec[field]).len();
            count > 0 && count < items(&old[field]).len()
        };
        if is_single {
            // To ask for one family only is clear enough, where nothing else is changed.
            if same(&spec["clusterIPs"], &old["clusterIPs"]) {
                addresses.truncate(1);
            }
            if same(&spec["ipFamilies"], &old["ipFamilies"]) {
                families.truncate(1);
            }
        } else {
            for (field, what) in
                [("clusterIPs", "secondary cluster IP"), ("ipFamilies", "secondary IP family")]
            {
                if is_less(field) {
                    let why = format!("must be 'SingleStack' to release the {what}");
                    causes.invalid(&policy_path, policy, why);
                }
            }
        }
    }
    if is_single {
        for (count, what) in [(addresses.len(), "cluster IPs"), (families.len(), "IP families")] {
            if count == 2 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                causes.invalid(&policy_path, policy, why);
            }
        }
    }
    for (i, address) in addresses.iter().enumerate().skip(families.len()) {
        let Ok(address) = text(address).parse() else { break };
        let family = family_of(address);
        match configured.contains(&family) {
            true => families.push(family),
            false => {
                let why = format!("{family} is not configured on this cluster");
                causes.invalid(&root.child("clusterIPs").index(i), &addresses, why);
            }
        }
    }
    if !causes.0.is_empty() {
        return Err(causes);
    }

    // Endpoints of any family need none that the cluster has for services.
    if !is_for_any {
        if policy == REQUIRE && configured.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            causes.invalid(&policy_path, policy, why);
        }
        for (i, family) in families.iter().enumerate() {
            if !configured.contains(family) {
                let path = root.child("ipFamilies");
                causes.invalid(&path.index(i), family, "not configured on this cluster");
            }
        }
        if !causes.0.is_empty() {
            return Err(causes);
        }
    }
    if families.is_empty() {
        families.extend(configured.first());
    }
    if let ([family], false) = (families.as_slice(), is_single)
        && (is_for_any || configured.len() == 2)
    {
        families.extend(FAMILIES.iter().find(|other| *other != family));
    }
    let spec = object::child_mut(service, "spec");
    spec.insert("ipFamilies".into(), json!(families));
    if !addresses.is_empty() {
        spec.insert("clusterIPs".into(), addresses.into());
    }
    Ok(())
}

fn known(family: &Value) -> Option<&'static str> {
    FAMILIES.iter().copied().find(|known| family == *known)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const V4: &[&str] = &["IPv4"];
    const BOTH: &[&str] = &["IPv4", "IPv6"];
    const SIX_FIRST: &[&str] = &["IPv6", "IPv4"];

    fn service(mut spec: Value) -> Value {
        let spec_map = spec.as_object_mut().unwrap();
        spec_map.entry("type").or_insert("ClusterIP".into());
        json!({"metadata": {"name": "s"}, "spec": spec})
    }

    /// Policy and families, or the causes.
    fn completed(configured: &[&'static str], spec: Value, old: Option<Value>) -> String {
        let (mut service, old) = (service(spec), old.map(service));
        normalize(&mut service, old.as_ref());
        match complete(configured, &mut service, old.as_ref()) {
            Ok(()) => {
                let spec = &service["spec"];
                let families: Vec<&str> = items(&spec["ipFamilies"]).iter().map(text).collect();
                format!("{} {}", text(&spec["ipFamilyPolicy"]), families.join(","))
            }
            Err(causes) => {
                let all =
                    causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message));
                all.collect::<Vec<_>>().join("\n")
            }
        }
    }

    #[test]
    fn service_families_of_new_services() {
        let none = || json!({"clusterIP": "None"});
        let with = |mut spec: Value, policy: &str| {
            spec["ipFamilyPolicy"] = policy.into();
            spec
        };
        let selector = json!({"clusterIP": "None", "selector": {"a": "b"}});
        let six = json!({"ipFamilies": ["IPv6"]});
        for (configured, spec, expected) in [
            (V4, json!({}), "SingleStack IPv4"),
            (SIX_FIRST, json!({}), "SingleStack IPv6"),
            (V4, with(json!({}), PREFER), "PreferDualStack IPv4"),
            (BOTH, with(json!({}), PREFER), "PreferDualStack IPv4,IPv6"),
            (SIX_FIRST, with(json!({}), REQUIRE), "RequireDualStack IPv6,IPv4"),
            (BOTH, with(six.clone(), REQUIRE), "RequireDualStack IPv6,IPv4"),
            (BOTH, six.clone(), "SingleStack IPv6"),
            (BOTH, json!({"clusterIP": "fd00::9"}), "SingleStack IPv6"),
            (
                V4,
                json!({"clusterIP": "fd00::9"}),
                "spec.clusterIPs[0]: Invalid value: [\"fd00::9\"]: IPv6 is not configured on this cluster",
            ),
            (
                V4,
                six,
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (
                V4,
                with(json!({}), REQUIRE),
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ),
            (
                BOTH,
                json!({"ipFamilies": ["IPv4", "IPv6"]}),
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            ),
            (
                BOTH,
                json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"]}),
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified",
            ),
            (
                BOTH,
                with(
                    json!({"clusterIP": "fd00::9", "clusterIPs": ["fd00::9", "10.0.0.9"]}),
                    PREFER,
                ),
                "PreferDualStack IPv6,IPv4",
            ),
            // headless, without and with a selector
            (V4, none(), "RequireDualStack IPv4,IPv6"),
            (SIX_FIRST, none(), "RequireDualStack IPv6,IPv4"),
            (V4, with(none(), SINGLE), "SingleStack IPv4"),
            (
                V4,
                json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}),
                "RequireDualStack IPv6,IPv4",
            ),
            (V4, selector.clone(), "SingleStack IPv4"),
            (V4, with(selector.clone(), PREFER), "PreferDualStack IPv4"),
            (BOTH, with(selector.clone(), PREFER), "PreferDualStack IPv4,IPv6"),
            (
                V4,
                with(selector, REQUIRE),
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ),
            // the rules of the fields
            (
                BOTH,
                json!({"ipFamilies": ["IPv4", "IPv4"]}),
                "spec.ipFamilies[1]: Duplicate value: \"IPv4\"",
            ),
            (
                BOTH,
                with(json!({}), "Both"),
                "spec.ipFamilyPolicy: Unsupported value: \"Both\": supported values: \"PreferDualStack\", \"RequireDualStack\", \"SingleStack\"",
            ),
            (
                BOTH,
                json!({"clusterIP": "10.0.0.9", "ipFamilies": ["IPv6"]}),
                "spec.clusterIPs[0]: Invalid value: \"10.0.0.9\": expected an IPv6 value as indicated by `ipFamilies[0]`",
            ),
            (
                BOTH,
                with(
                    json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "10.0.0.8"]}),
                    PREFER,
                ),
                "spec.clusterIPs: Invalid value: [\"10.0.0.9\",\"10.0.0.8\"]: may specify no more than one IP for each IP family",
            ),
            (
                BOTH,
                json!({"clusterIPs": ["10.0.0.9"]}),
                "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: must be empty when `clusterIP` is not specified",
            ),
            (BOTH, json!({"type": "ExternalName"}), " "),
        ] {
            assert_eq!(completed(configured, spec.clone(), None), expected, "{spec}");
        }
    }

    #[test]
    fn service_families_of_updates() {
        let one = |policy: &str| {
            json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": policy})
        };
        let two = |policy: &str| {
            json!({"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00::9"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": policy})
        };
        let release = |what: &str| {
            format!(
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary {what}"
            )
        };
        for (configured, spec, old, expected) in [
            // a client that names nothing changes nothing
            (BOTH, json!({}), two(REQUIRE), "RequireDualStack IPv4,IPv6".to_owned()),
            (BOTH, json!({"clusterIP": "10.0.0.9"}), two(REQUIRE), "RequireDualStack IPv4,IPv6".into()),
            (BOTH, json!({}), one(SINGLE), "SingleStack IPv4".into()),
            // upgrades
            (BOTH, one(REQUIRE), one(SINGLE), "RequireDualStack IPv4,IPv6".into()),
            (BOTH, one(PREFER), one(SINGLE), "PreferDualStack IPv4,IPv6".into()),
            (V4, one(PREFER), one(SINGLE), "PreferDualStack IPv4".into()),
            (V4, one(REQUIRE), one(SINGLE), "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services".into()),
            // the cluster has a second family, or one less
            (BOTH, one(PREFER), one(PREFER), "PreferDualStack IPv4".into()),
            (V4, two(PREFER), two(PREFER), "PreferDualStack IPv4,IPv6".into()),
            // downgrades
            (BOTH, two(SINGLE), two(REQUIRE), "SingleStack IPv4".into()),
            (BOTH, one(SINGLE), two(REQUIRE), "SingleStack IPv4".into()),
            (BOTH, one(REQUIRE), two(REQUIRE), format!("{}\n{}", release("cluster IP"), release("IP family"))),
            (BOTH, json!({"type": "ExternalName"}), one(SINGLE), " ".into()),
            (BOTH, json!({}), json!({"type": "ExternalName"}), "SingleStack IPv4".into()),
            // headless services may change their families
            (BOTH, json!({"ipFamilies": ["IPv6"], "selector": {"a": "b"}}),
                json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
                    "ipFamilyPolicy": SINGLE, "selector": {"a": "b"}}), "SingleStack IPv6".into()),
        ] {
            assert_eq!(completed(configured, spec.clone(), Some(old)), expected, "{spec}");
        }
    }

    #[test]
    fn service_cluster_ips_follow_the_field_that_was_changed() {
        let old = || json!({"type": "ClusterIP", "clusterIP": "a", "clusterIPs": ["a", "b"]});
        let named = || json!({"type": "ExternalName"});
        for (new, old, one, list) in [
            (json!({"clusterIP": "a"}), None, json!("a"), json!(["a"])),
            (json!({"clusterIPs": ["a"]}), None, json!(null), json!(["a"])),
            (json!({}), Some(old()), json!("a"), json!(["a", "b"])),
            (json!({"clusterIP": "a"}), Some(old()), json!("a"), json!(["a", "b"])),
            (
                json!({"clusterIP": "c", "clusterIPs": ["a", "b"]}),
                Some(old()),
                json!("c"),
                json!(["c"]),
            ),
            (json!({"clusterIP": "c", "clusterIPs": ["d"]}), Some(old()), json!("c"), json!(["d"])),
            (
                json!({"type": "ExternalName", "clusterIPs": ["a", "b"]}),
                Some(old()),
                json!(null),
                json!(null),
            ),
            (json!({"clusterIP": "c"}), Some(named()), json!("c"), json!(["c"])),
        ] {
            let mut given = service(new.clone());
            normalize(&mut given, old.as_ref().map(|old| json!({"spec": old})).as_ref());
            let spec = &given["spec"];
            assert_eq!((&spec["clusterIP"], &spec["clusterIPs"]), (&one, &list), "{new}");
        }
    }
}

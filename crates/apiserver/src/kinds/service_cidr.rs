//! ServiceCIDR and IPAddress. Each address of a service has its IPAddress (`tasks::addresses`); the
//! configured ranges are the ServiceCIDR `kubernetes`, and services get addresses of others too
//! (`admission::services`).

use std::net::IpAddr;

use serde_json::{Value, json};

use super::printers::{AGE, NAME, Printer, age, name, string};
use super::{Kind, Strategy, prepare, validate as rules};
use crate::api_types::{Resource, grouped, status_of};
use crate::schema::names;
use crate::schema::value::{is_zero, items, text};
use crate::schema::{Causes, Path};

static CIDRS: Printer = Printer::new(&[NAME, string("CIDRs"), AGE], |cidr, now| {
    let list: Vec<&str> = items(&cidr["spec"]["cidrs"]).iter().map(text).collect();
    vec![name(cidr), list.join(",").into(), age(cidr, now)]
});

static ADDRESSES: Printer = Printer::new(&[NAME, string("ParentRef")], |address, _| {
    let parent = &address["spec"]["parentRef"];
    let resource = match text(&parent["group"]) {
        "" => text(&parent["resource"]).to_lowercase(),
        group => format!("{}.{group}", text(&parent["resource"])).to_lowercase(),
    };
    let parts = [&resource, text(&parent["namespace"]), text(&parent["name"])];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    let shown = parts.collect::<Vec<_>>().join("/");
    let shown = if parent.is_null() { "<none>".to_owned() } else { shown };
    vec![name(address), shown.into()]
});

pub(super) static IP_ADDRESS: Kind = Kind {
    resource: Resource {
        short_names: &["ip"],
        namespaced: false,
        fields: Some(&[
            ("spec.parentRef.resource", "spec.parentRef.resource"),
            ("spec.parentRef.namespace", "spec.parentRef.namespace"),
            ("spec.parentRef.name", "spec.parentRef.name"),
        ]),
        counts_generation: true,
        ..grouped("networking.k8s.io", "ipaddresses", "ipaddress", "IPAddress")
    },
    strategy: Strategy {
        name: address_name,
        validate: address,
        printer: &ADDRESSES,
        ..Strategy::PLAIN
    },
};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("networking.k8s.io", "ServiceCIDR")],
        counts_generation: true,
        ..grouped("networking.k8s.io", "servicecidrs", "servicecidr", "ServiceCIDR")
    },
    strategy: Strategy {
        prepare_create: |cidr| drop(cidr.insert("status".into(), json!({}))),
        prepare_status: prepare::keep_all_metadata,
        validate,
        printer: &CIDRS,
        reset_by_status: &["metadata", "spec"],
        ..Strategy::PLAIN
    },
};

/// The name is an address in its canonical form.
fn address_name(name: &str) -> Vec<String> {
    match name.parse::<IpAddr>() {
        Ok(address) if address.to_string() == name => Vec::new(),
        Ok(address) => vec![format!("must be in canonical form ({:?})", address.to_string())],
        Err(_) => {
            vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
        }
    }
}

fn address(address: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let (parent, path) = (&address["spec"]["parentRef"], path.child("parentRef"));
    if let Some(old) = old {
        return rules::immutable(&path, parent, &old["spec"]["parentRef"], causes);
    }
    if parent.is_null() {
        return causes.required(&path, "");
    }
    match text(&parent["group"]) {
        "" => {}
        group => causes.each(&path.child("group"), group, names::dns_subdomain(group)),
    }
    for field in ["resource", "name"] {
        match text(&parent[field]) {
            "" => causes.required(&path.child(field), ""),
            given => causes.each(&path.child(field), given, names::path_segment(given)),
        }
    }
    let namespace = text(&parent["namespace"]);
    if !namespace.is_empty() {
        causes.each(&path.child("namespace"), namespace, names::path_segment(namespace));
    }
}

fn validate(cidr: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let (list, path) = (items(&cidr["spec"]["cidrs"]), path.child("cidrs"));
    let Some(old) = old else {
        return ranges(&path, &cidr["spec"], causes);
    };
    const IMMUTABLE: &str = "field is immutable";
    let had = items(&old["spec"]["cidrs"]);
    match (had, list) {
        ([first], [own, _]) => {
            if first != own {
                causes.invalid(&path.index(0), own, IMMUTABLE);
            }
            ranges(&path, &cidr["spec"], causes);
        }
        (had, list) if had.len() == list.len() => {
            for (i, (had, own)) in had.iter().zip(list).enumerate() {
                if had != own {
                    causes.invalid(&path.index(i), own, IMMUTABLE);
                }
            }
        }
        (_, list) => causes.invalid(&path, list, IMMUTABLE),
    }
}

fn ranges(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let list = items(&spec["cidrs"]);
    if is_zero(&spec["cidrs"]) {
        return causes.required(path, "at least one CIDR required");
    }
    if list.len() > 2 {
        // upstream repeats the spec as Go names its fields
        let given = json!({"CIDRs": list});
        return causes.invalid(path, &given, "may only hold up to 2 values");
    }
    let mut families = Vec::new();
    for (i, range) in list.iter().map(text).enumerate() {
        match canonical(range) {
            Ok(is_v4) => families.push(is_v4),
            Err(detail) => causes.invalid(&path.index(i), range, detail),
        }
    }
    if let [first, second] = families.as_slice()
        && first == second
    {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        causes.invalid(path, list, detail);
    }
}

/// Whether a range is of IPv4, if it is one, written as Go writes it and without bits behind its length.
fn canonical(range: &str) -> Result<bool, String> {
    let invalid = || "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned();
    let (address, length) = range.split_once('/').ok_or_else(invalid)?;
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    let length: u32 = length.parse().map_err(|_| invalid())?;
    let (number, bits) = match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    if length > bits {
        return Err(invalid());
    }
    let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
    let first = match address {
        IpAddr::V4(_) => {
            IpAddr::from(u32::try_from((number & mask) >> 96).unwrap_or(0).to_be_bytes())
        }
        IpAddr::V6(_) => IpAddr::from((number & mask).to_be_bytes()),
    };
    if first != address {
        return Err("must not have bits set beyond the prefix length".to_owned());
    }
    let wanted = format!("{first}/{length}");
    match wanted == range {
        true => Ok(address.is_ipv4()),
        false => Err(format!("must be in canonical form ({wanted:?})")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(cidrs: Value, old: Option<Value>) -> String {
        let object = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
        let mut causes = Causes::default();
        validate(&object(cidrs), old.map(object).as_ref(), &mut causes);
        let lines = causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn service_cidrs_are_one_range_of_each_family() {
        for (cidrs, expected) in [
            (json!(["10.0.0.0/8"]), ""),
            (json!(["10.0.0.0/8", "fd00::/64"]), ""),
            (json!(["0.0.0.0/0"]), ""),
            (json!([]), "spec.cidrs: Required value: at least one CIDR required"),
            (json!(["10.0.0.0/8", "11.0.0.0/8"]), "no more than one IP for each IP family"),
            (json!(["10.0.0.1/8"]), "must not have bits set beyond the prefix length"),
            (json!(["10.0.0.0/08"]), "must be in canonical form (\"10.0.0.0/8\")"),
            (json!(["10.0.0.0/33"]), "must be a valid CIDR value"),
            (json!(["text"]), "spec.cidrs[0]: Invalid value: \"text\""),
            (json!(["10.0.0.0/8", "fd00::/64", "fd01::/64"]), "may only hold up to 2 values"),
        ] {
            let found = found(cidrs.clone(), None);
            assert!(found.contains(expected), "{cidrs}: {found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{cidrs}: {found}");
        }
        let one = || Some(json!(["10.0.0.0/8"]));
        assert_eq!(found(json!(["10.0.0.0/8", "fd00::/64"]), one()), "");
        assert!(found(json!(["11.0.0.0/8"]), one()).contains("field is immutable"));
        assert!(found(json!(["11.0.0.0/8", "fd00::/64"]), one()).contains("field is immutable"));
    }

    #[test]
    fn ip_addresses_are_named_by_their_address() {
        for (name, is_good) in [
            ("10.0.0.1", true),
            ("fe80::42:1dff:fe84:f9e2", true),
            ("010.0.0.1", false),
            ("FE80::1", false),
            ("fe80:0::1", false),
            ("name", false),
        ] {
            assert_eq!(address_name(name).is_empty(), is_good, "{name}");
        }
        let mut causes = Causes::default();
        let parent = json!({"resource": "services", "name": "a/b"});
        address(&json!({"spec": {"parentRef": parent}}), None, &mut causes);
        assert_eq!(causes.0.len(), 1);
    }
}

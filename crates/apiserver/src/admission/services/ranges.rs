//! Where the addresses of services come from: the configured ranges, and those of ServiceCIDRs.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use serde_json::Value;

use crate::cache::Index;
use crate::cidr::{Cidr, family_of};
use crate::object;
use crate::schema::value::{items, text};

/// The label of the IPAddress objects that are made for services.
pub(crate) const MANAGED_BY: (&str, &str) =
    ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
/// Their label that names the family.
pub(super) const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// Whether an IPAddress is made for a service. Others are reservations that users made.
pub(crate) fn is_managed(address: &Value) -> bool {
    address["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1
}

/// The ranges of all ServiceCIDRs, by their names.
#[derive(Default)]
pub(super) struct Ranges(BTreeMap<Box<str>, Entry>);

struct Entry {
    ranges: Vec<Cidr>,
    /// It is ready, and not being deleted.
    is_usable: bool,
}

impl Index for Ranges {
    fn put(&mut self, object: &Value) {
        let ranges = items(&object["spec"]["cidrs"]).iter().map(text);
        let entry = Entry {
            ranges: ranges.filter_map(Cidr::of_object).collect(),
            is_usable: is_ready(object) && !object::is_deleting(object),
        };
        self.0.insert(object::name(object).into(), entry);
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.remove(name);
    }
}

impl Ranges {
    /// Whether an address is of any of them.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.values().flat_map(|entry| &entry.ranges).any(|range| range.contains(address))
    }

    /// The ranges that addresses of a family are given from, in that order: the configured one, unless
    /// the ServiceCIDRs that have it are out of use, and then all others.
    pub(super) fn usable(&self, family: &str, configured: impl Iterator<Item = Cidr>) -> Vec<Cidr> {
        let is_out = |range: &Cidr| {
            let mut entries =
                self.0.values().filter(|entry| entry.ranges.contains(range)).peekable();
            entries.peek().is_some() && entries.all(|entry| !entry.is_usable)
        };
        let mut usable: Vec<Cidr> = configured.filter(|range| !is_out(range)).collect();
        for range in self.0.values().filter(|entry| entry.is_usable).flat_map(|entry| &entry.ranges)
        {
            if !usable.contains(range) {
                usable.push(*range);
            }
        }
        usable.retain(|range| range.family() == family);
        usable
    }
}

/// One without a condition is ready: there may be no controller.
fn is_ready(object: &Value) -> bool {
    let mut conditions = items(&object["status"]["conditions"]).iter();
    conditions.find(|one| one["type"] == "Ready").is_none_or(|ready| ready["status"] == "True")
}

/// What an IPAddress object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Namespace and name of the service; `None`: it is of something else.
    pub(crate) service: Option<(Box<str>, Box<str>)>,
    /// It has the labels that this server gives it.
    pub(crate) has_labels: bool,
}

impl Holder {
    pub(crate) fn of(object: &Value) -> Holder {
        let parent = &object["spec"]["parentRef"];
        let is_service = text(&parent["group"]).is_empty() && parent["resource"] == "services";
        let family = object::name(object).parse().map(family_of).unwrap_or_default();
        let has_family = object["metadata"]["labels"][FAMILY] == family;
        Holder {
            service: is_service
                .then(|| (text(&parent["namespace"]).into(), text(&parent["name"]).into())),
            has_labels: has_family && is_managed(object),
        }
    }

    /// Whether it is for the service of this name.
    pub(crate) fn is_for(&self, namespace: &str, name: &str) -> bool {
        let own = self.service.as_ref();
        own.is_some_and(|(own_namespace, own)| **own_namespace == *namespace && **own == *name)
    }
}

/// All addresses that are taken, by services and by objects of users.
#[derive(Default)]
pub(crate) struct Addresses(HashMap<IpAddr, Holder>);

impl Index for Addresses {
    fn put(&mut self, object: &Value) {
        if let Ok(address) = object::name(object).parse() {
            self.0.insert(address, Holder::of(object));
        }
    }

    fn remove(&mut self, _: &str, name: &str) {
        if let Ok(address) = name.parse() {
            self.0.remove(&address);
        }
    }
}

impl Addresses {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains_key(&address)
    }

    pub(super) fn get(&self, address: IpAddr) -> Option<&Holder> {
        self.0.get(&address)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cidr::ServiceRanges;

    #[test]
    fn service_ranges_are_of_the_flag_and_of_usable_objects() {
        let configured: ServiceRanges = "10.0.0.0/24,fd00::/112".parse().unwrap();
        let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        let object = |name: &str, cidrs: &[&str], status: Value| json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}, "status": status});
        let mut ranges = Ranges::default();
        let shown = |ranges: &Ranges| {
            let of = |family| ranges.usable(family, configured.iter());
            let all = of("IPv4").into_iter().chain(of("IPv6"));
            all.map(|range| range.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(&ranges), "10.0.0.0/24 fd00::/112");
        let both = ["10.0.0.0/24", "fd00::/112"];
        let mut own = object("kubernetes", &both, ready("True"));
        ranges.put(&own);
        ranges.put(&object("more", &["10.1.0.0/16", "fd01::/64", "10.0.0.0/24"], json!({})));
        assert_eq!(shown(&ranges), "10.0.0.0/24 10.1.0.0/16 fd00::/112 fd01::/64");
        // What one ServiceCIDR leaves, another one may still have.
        own["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        ranges.put(&own);
        assert_eq!(shown(&ranges), "10.0.0.0/24 10.1.0.0/16 fd01::/64");
        ranges.put(&object("more", &["10.1.0.0/16"], ready("False")));
        assert_eq!(shown(&ranges), "");
        ranges.remove("", "more");
        ranges.remove("", "kubernetes");
        assert_eq!(shown(&ranges), "10.0.0.0/24 fd00::/112");
    }

    #[test]
    fn service_addresses_are_taken_by_their_objects() {
        let mut addresses = Addresses::default();
        let mut object = json!({"metadata": {"name": "10.0.0.9"}});
        let address = "10.0.0.9".parse().unwrap();
        addresses.put(&object);
        let holder = addresses.get(address).unwrap();
        assert!(holder.service.is_none() && !holder.has_labels);
        object["metadata"]["labels"] = json!({MANAGED_BY.0: MANAGED_BY.1, FAMILY: "IPv4"});
        object["spec"]["parentRef"] =
            json!({"resource": "services", "namespace": "a", "name": "b"});
        addresses.put(&object);
        let holder = addresses.get(address).unwrap();
        assert!(holder.is_for("a", "b") && !holder.is_for("a", "c") && holder.has_labels);
        object["metadata"]["labels"][FAMILY] = "IPv6".into();
        object["spec"]["parentRef"]["group"] = "other".into();
        addresses.put(&object);
        let holder = addresses.get(address).unwrap();
        assert!(!holder.is_for("a", "b") && !holder.has_labels);
        addresses.remove("", "10.0.0.9");
        assert!(!addresses.contains(address));
    }
}

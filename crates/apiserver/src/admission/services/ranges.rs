//! Where the addresses of services come from: the configured ranges, and those of ServiceCIDRs.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use serde_json::Value;

use crate::cache::Index;
use crate::cidr::Cidr;
use crate::object;
use crate::schema::value::{items, text};

/// The label of the IPAddress objects that follow services.
pub(crate) const MANAGED_BY: (&str, &str) =
    ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// Whether an IPAddress follows a service. Others are reservations that users made.
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

/// The addresses that users have reserved by IPAddress objects of their own.
#[derive(Default)]
pub(super) struct ReservedAddresses(HashSet<IpAddr>);

impl Index for ReservedAddresses {
    fn put(&mut self, object: &Value) {
        let Ok(address) = object::name(object).parse() else { return };
        match is_managed(object) {
            true => self.0.remove(&address),
            false => self.0.insert(address),
        };
    }

    fn remove(&mut self, _: &str, name: &str) {
        if let Ok(address) = name.parse() {
            self.0.remove(&address);
        }
    }
}

impl ReservedAddresses {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
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
    fn service_addresses_are_reserved_by_objects_of_users() {
        let mut reserved = ReservedAddresses::default();
        let mut object = json!({"metadata": {"name": "10.0.0.9"}});
        let address = "10.0.0.9".parse().unwrap();
        reserved.put(&object);
        assert!(reserved.contains(address));
        object["metadata"]["labels"] = json!({MANAGED_BY.0: MANAGED_BY.1});
        reserved.put(&object);
        assert!(!reserved.contains(address));
        reserved.put(&json!({"metadata": {"name": "10.0.0.9"}}));
        reserved.remove("", "10.0.0.9");
        assert!(!reserved.contains(address));
    }
}

//! PURE: the claims that are prepared or to be prepared, and the pods that use them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::api::v1;
use crate::error::Error;
use crate::names::is_for;

/// Namespace and name of a claim.
pub(crate) type Key = (String, String);

/// A device that a driver has prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) share_id: Option<String>,
    /// The requests that it is for; none: all.
    pub(crate) requests: Vec<String>,
    pub(crate) cdi: Vec<String>,
}

/// A claim that is used on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The UIDs of the pods that use it.
    pub(crate) pods: BTreeSet<String>,
    /// The drivers of its allocation, and the devices that they have prepared.
    pub(crate) drivers: BTreeMap<String, Vec<Device>>,
    /// Whether all drivers have prepared it since the daemon has started.
    pub(crate) is_prepared: bool,
}

impl Claim {
    /// A claim as it is allocated.
    pub(crate) fn allocated(claim: &ResourceClaim) -> Result<Self, Error> {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let Some(allocation) = allocation else { return Err(Error::NotAllocated(name)) };
        let results = allocation.devices.iter().flat_map(|own| own.results.iter().flatten());
        Ok(Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            name,
            drivers: results.map(|result| (result.driver.clone(), Vec::new())).collect(),
            ..Self::default()
        })
    }

    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    /// The claim in a call to a driver.
    fn asked(&self) -> v1::Claim {
        let (namespace, uid, name) = (self.namespace.clone(), self.uid.clone(), self.name.clone());
        v1::Claim { namespace, uid, name }
    }

    /// The CDI devices of a request, or of all if it is empty.
    pub(crate) fn cdi_devices<'a>(&'a self, request: &'a str) -> impl Iterator<Item = &'a String> {
        let devices = self.drivers.values().flatten();
        devices.filter(move |own| is_for(&own.requests, request)).flat_map(|own| &own.cdi)
    }
}

/// The claims of a call to each driver.
pub(crate) type Batches = BTreeMap<String, Vec<v1::Claim>>;

/// The claims that are used on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims(BTreeMap<Key, Claim>);

impl Claims {
    pub(crate) fn new(claims: impl IntoIterator<Item = Claim>) -> Self {
        Self(claims.into_iter().map(|claim| (claim.key(), claim)).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.0.values()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.0.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The claims that a pod uses.
    pub(crate) fn of_pod(&self, uid: &str) -> BTreeSet<Key> {
        let used = self.0.iter().filter(|(_, claim)| claim.pods.contains(uid));
        used.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a pod uses any.
    pub(crate) fn is_used_by(&self, uid: &str) -> bool {
        self.0.values().any(|claim| claim.pods.contains(uid))
    }

    /// The UIDs of all pods that use claims.
    pub(crate) fn pods(&self) -> BTreeSet<String> {
        self.0.values().flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    /// Notes that a pod uses these claims. Returns what is to be prepared; after an error nothing is noted.
    pub(crate) fn reserve(&mut self, pod: &str, claims: &[Claim]) -> Result<Batches, Error> {
        for claim in claims {
            let known = self.0.get(&claim.key()).filter(|known| known.uid != claim.uid);
            if let Some(Claim { uid, .. }) = known {
                return Err(Error::OldClaim { claim: claim.name.clone(), uid: uid.clone() });
            }
        }
        let mut batches = Batches::new();
        for claim in claims {
            let known = self.0.entry(claim.key()).or_insert_with(|| claim.clone());
            known.pods.insert(pod.to_owned());
            if known.is_prepared {
                continue;
            }
            for driver in claim.drivers.keys() {
                known.drivers.entry(driver.clone()).or_default();
                batches.entry(driver.clone()).or_default().push(known.asked());
            }
        }
        Ok(batches)
    }

    /// A driver has prepared these devices, by the UID of their claim. Those of an earlier call are replaced.
    pub(crate) fn set_devices(
        &mut self,
        driver: &str,
        mut prepared: BTreeMap<String, Vec<Device>>,
    ) {
        for claim in self.0.values_mut() {
            if let Some(devices) = prepared.remove(&claim.uid) {
                claim.drivers.insert(driver.to_owned(), devices);
            }
        }
    }

    /// All drivers have prepared these claims.
    pub(crate) fn set_prepared(&mut self, keys: &BTreeSet<Key>) {
        for claim in self.0.iter_mut().filter_map(|(key, own)| keys.contains(key).then_some(own)) {
            claim.is_prepared = true;
        }
    }

    /// A pod does not use its claims any more. Those that no other pod uses are to be unprepared, and stay
    /// until [`Self::remove`].
    pub(crate) fn release(&mut self, pod: &str) -> Batches {
        let mut batches = Batches::new();
        for claim in self.0.values_mut().filter(|claim| claim.pods.contains(pod)) {
            if claim.pods.len() > 1 {
                claim.pods.remove(pod);
                continue;
            }
            // Whoever else uses it later has it prepared again.
            claim.is_prepared = false;
            for driver in claim.drivers.keys() {
                batches.entry(driver.clone()).or_default().push(claim.asked());
            }
        }
        batches
    }

    /// The claims that only this pod has used are unprepared.
    pub(crate) fn remove(&mut self, pod: &str) {
        self.0.retain(|_, claim| !(claim.pods.len() == 1 && claim.pods.contains(pod)));
    }

    /// The number of prepared claims by driver, and of all.
    pub(crate) fn in_use(&self) -> (BTreeMap<&str, usize>, usize) {
        let (mut by_driver, mut all) = (BTreeMap::<&str, usize>::new(), 0usize);
        for claim in self.0.values().filter(|claim| claim.is_prepared) {
            all += 1;
            for driver in claim.drivers.keys() {
                *by_driver.entry(driver).or_default() += 1;
            }
        }
        (by_driver, all)
    }
}

//! What is taken in the store for one write of a service, and given back.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::ranges::{FAMILY, Holder, MANAGED_BY};
use super::{Allocation, ServiceAllocator, ports};
use crate::admission::creation::begin_own_life;
use crate::api_types::Resource;
use crate::cidr::family_of;
use crate::kinds::known;
use crate::object;
use crate::registry::{Registry, Write};
use crate::status::StatusError;

/// How often a write is planned anew because others take what was chosen for it.
const MAX_ATTEMPTS: usize = 256;

/// The service that holds something.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    namespace: Box<str>,
    name: Box<str>,
}

impl Owner {
    fn of(service: &Value) -> Owner {
        Owner { namespace: object::namespace(service).into(), name: object::name(service).into() }
    }
}

/// What was taken for a write that was given up before the store had it.
#[derive(Debug)]
pub(super) struct Abandoned {
    owner: Owner,
    allocation: Allocation,
}

/// One write of a service, with what was taken for it. What is dropped before the store may have the object is
/// given back later; after that it is for the repair of addresses and ports to find.
pub(crate) struct Reservation<'a> {
    allocator: &'a ServiceAllocator,
    owner: Owner,
    /// What the service held before.
    before: Allocation,
    taken: Allocation,
    /// Nothing is really taken.
    pub(super) is_dry_run: bool,
    is_begun: bool,
}

impl Reservation<'_> {
    /// From here on the store may have the new object, whatever happens to this write.
    pub(crate) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// The end of the write: the service that is stored now, `None` when there is none any more, or the
    /// error. What is no longer held is given back.
    pub(crate) async fn end(
        mut self,
        registry: &Registry,
        written: Result<Option<&Value>, &StatusError>,
    ) {
        match written {
            Ok(now) => {
                let mut allocation = std::mem::take(&mut self.before);
                allocation.add(std::mem::take(&mut self.taken));
                let kept = now.map(Allocation::of).unwrap_or_default();
                self.free(registry, allocation.without(&kept)).await;
            }
            // A store that failed may have written all the same.
            Err(error) if error.code >= 500 && self.is_begun => drop(self),
            Err(_) => self.cancel(registry).await,
        }
    }

    /// The store refused the write, or it was not tried: nothing has changed.
    pub(crate) async fn cancel(mut self, registry: &Registry) {
        let taken = std::mem::take(&mut self.taken);
        self.free(registry, taken).await;
    }

    async fn free(mut self, registry: &Registry, allocation: Allocation) {
        if !self.is_dry_run {
            // Until that is done it is looked after should this be dropped.
            self.before = Allocation::default();
            self.taken = allocation;
            self.is_begun = false;
            let freed = self.allocator.free(registry, &self.owner, &self.taken).await;
            if let Err(error) = freed {
                tracing::warn!(%error, name = &*self.owner.name, "cannot release what a service had, it is tried again");
                return;
            }
        }
        self.taken = Allocation::default();
        self.before = Allocation::default();
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let allocation = std::mem::take(&mut self.taken);
        // Nothing says whose a port is, or for which life of a service an address: by the time that the end
        // of a write is known both may be another's.
        if !self.is_dry_run && !self.is_begun && !allocation.is_empty() {
            let owner = self.owner.clone();
            self.allocator.abandoned.lock().push(Abandoned { owner, allocation });
        }
    }
}

fn addresses() -> Result<&'static Resource, StatusError> {
    known("networking.k8s.io", "ipaddresses")
}

/// The IPAddress object of an address that a service has.
pub(crate) fn address_of(address: IpAddr, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "labels": {FAMILY: family_of(address), MANAGED_BY.0: MANAGED_BY.1},
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    })
}

impl ServiceAllocator {
    pub(super) fn reservation(
        &self,
        service: &Value,
        old: Option<&Value>,
        is_dry_run: bool,
    ) -> Reservation<'_> {
        Reservation {
            allocator: self,
            // Of an update the stored object says which service it is.
            owner: Owner::of(old.unwrap_or(service)),
            before: old.map(Allocation::of).unwrap_or_default(),
            taken: Allocation::default(),
            is_dry_run,
            is_begun: false,
        }
    }

    /// Fills in what a new service (`old` is `None`) or a changed one lacks, and takes it. With
    /// `is_dry_run` it is only checked whether it is free.
    pub(crate) async fn reserve(
        &self,
        registry: &Registry,
        resource: &Resource,
        service: &mut Value,
        old: Option<&Value>,
        is_dry_run: bool,
    ) -> Result<Reservation<'_>, StatusError> {
        let given = service.clone();
        let mut lost = Allocation::default();
        // What is only tried takes nothing, so that nothing else says what others have.
        let mut is_fresh = is_dry_run;
        if is_dry_run {
            self.refresh(registry).await?;
        }
        for _ in 0..MAX_ATTEMPTS {
            let (planned, meets_taken) = self.plan(resource, service, old, &lost);
            let planned = match planned {
                Ok(planned) => planned,
                // What is known may be of the past.
                Err(_) if meets_taken && !is_fresh => {
                    self.refresh(registry).await?;
                    is_fresh = true;
                    lost = Allocation::default();
                    *service = given.clone();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut reservation = self.reservation(service, old, is_dry_run);
            if is_dry_run || planned.is_empty() {
                return Ok(reservation);
            }
            let claimed = self.claim(registry, &mut reservation, planned).await;
            match claimed {
                Ok(None) => return Ok(reservation),
                Ok(Some(others)) => {
                    reservation.cancel(registry).await;
                    lost.add(others);
                    *service = given.clone();
                }
                Err(error) => {
                    reservation.cancel(registry).await;
                    return Err(error);
                }
            }
        }
        Err(StatusError::internal("others take all that is chosen for the service"))
    }

    /// Takes what is planned. Returns what somebody else has taken.
    async fn claim(
        &self,
        registry: &Registry,
        reservation: &mut Reservation<'_>,
        planned: Allocation,
    ) -> Result<Option<Allocation>, StatusError> {
        for address in planned.addresses {
            // Known before it is so: the response may be lost.
            reservation.taken.addresses.insert(address);
            let owner = &reservation.owner;
            let mut object = address_of(address, &owner.namespace, &owner.name);
            begin_own_life(addresses()?, &mut object)?;
            match registry.create(addresses()?, object, None).await {
                Ok(_) => {}
                Err(error) if error.reason == "AlreadyExists" => {
                    reservation.taken.addresses.remove(&address);
                    let addresses = HashSet::from([address]);
                    return Ok(Some(Allocation { addresses, ..Allocation::default() }));
                }
                Err(error) => return Err(error),
            }
        }
        if planned.ports.is_empty() {
            return Ok(None);
        }
        let _turn = self.ports_turn.lock().await;
        let known = self.ports.lock().clone();
        let taken = ports::change(registry, self.node_ports, known.if_stored(), |ports| {
            let others: HashSet<u16> =
                planned.ports.iter().copied().filter(|port| !ports.insert(*port)).collect();
            if others.is_empty() { Ok(()) } else { Err(others) }
        });
        // Whether a write that fails took them is not known: then they are lost until they are repaired.
        let (seen, taken) = taken.await?;
        self.note_ports(seen);
        match taken {
            Ok(()) => {
                reservation.taken.ports = planned.ports;
                Ok(None)
            }
            Err(ports) => Ok(Some(Allocation { ports, ..Allocation::default() })),
        }
    }

    /// Gives back what a service had.
    async fn free(
        &self,
        registry: &Registry,
        owner: &Owner,
        allocation: &Allocation,
    ) -> Result<(), StatusError> {
        for address in &allocation.addresses {
            let name = address.to_string();
            let removed = registry.write(addresses()?, ("", &name), None, false, |object| {
                // Another service may have it by now.
                let holder = Holder::of(object);
                let is_own = holder.is_for(&owner.namespace, &owner.name) && holder.has_labels;
                Ok(match is_own && !object::has_finalizers(object) {
                    true => Write::Delete,
                    false => Write::Keep,
                })
            });
            match removed.await {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        if allocation.ports.is_empty() {
            return Ok(());
        }
        let _turn = self.ports_turn.lock().await;
        let known = self.ports.lock().clone();
        let freed = ports::change(registry, self.node_ports, known.if_stored(), |ports| {
            allocation.ports.iter().for_each(|port| ports.remove(*port));
            Ok::<(), ()>(())
        });
        let (seen, _) = freed.await?;
        self.note_ports(seen);
        Ok(())
    }

    /// Takes the address of a service that only the cluster itself makes: an object for it that is there
    /// already is its own.
    pub(crate) async fn admit_own(
        &self,
        registry: &Registry,
        resource: &Resource,
        service: &mut Value,
    ) -> Result<(), StatusError> {
        self.complete_families(resource, service, None)?;
        let owner = Owner::of(service);
        for address in Allocation::of(service).addresses {
            let mut object = address_of(address, &owner.namespace, &owner.name);
            begin_own_life(addresses()?, &mut object)?;
            match registry.create(addresses()?, object, None).await {
                Err(error) if error.reason == "AlreadyExists" => {}
                made => {
                    made?;
                    continue;
                }
            }
            let taken = registry.find(addresses()?, "", &address.to_string()).await?;
            if !taken.is_some_and(|it| Holder::of(&it).is_for(&owner.namespace, &owner.name)) {
                return Err(StatusError::internal(format!(
                    "failed to allocate IP {address}: provided IP is already allocated"
                )));
            }
        }
        Ok(())
    }

    /// Gives back what was taken for writes that were given up.
    pub(crate) async fn release_abandoned(&self, registry: &Registry) -> Result<(), StatusError> {
        let mut abandoned = std::mem::take(&mut *self.abandoned.lock()).into_iter();
        while let Some(write) = abandoned.next() {
            if let Err(error) = self.free(registry, &write.owner, &write.allocation).await {
                let mut left = self.abandoned.lock();
                left.push(write);
                left.extend(abandoned);
                return Err(error);
            }
        }
        Ok(())
    }
}

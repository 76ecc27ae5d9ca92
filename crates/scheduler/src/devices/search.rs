//! The search for devices.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceSelector};

use super::constraint::Constraint;
use super::pool::{Pool, PoolState};
use super::request::{Request, requests};
use super::selector::selects;
use super::{AllocationError, Allocator, MAX_RESULTS, capacity, result};
use crate::model::{Device, Node, ResourceClaim, ResourceSlice};

/// A device with where it is from.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) device: &'a Device,
    pub(super) slice: &'a ResourceSlice,
    pool: usize,
}

/// A device that is chosen for a request.
pub(super) struct Choice<'a> {
    pub(super) candidate: Candidate<'a>,
    pub(super) request: usize,
    pub(super) alternative: usize,
    /// What the request takes of it, if the device can be shared.
    pub(super) share: Option<BTreeMap<String, i128>>,
}

/// A claim with its requests.
pub(super) struct Plan<'a> {
    pub(super) claim: &'a ResourceClaim,
    /// The alternatives of each request.
    pub(super) requests: Vec<Vec<Request<'a>>>,
    constraints: Vec<Constraint<'a>>,
    /// The alternative of each request that is chosen.
    pub(super) selected: Vec<usize>,
    pub(super) choices: Vec<Choice<'a>>,
}

impl<'a> Plan<'a> {
    /// An alternative of a request.
    fn request(&self, at: Place) -> Option<&Request<'a>> {
        self.requests.get(at.request)?.get(at.alternative)
    }
}

/// An alternative of a request of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// Why the search stops, or goes back further than by one choice.
enum Stop {
    /// The claim would get more devices than it can have.
    TooMany,
    Failed(AllocationError),
}

impl From<AllocationError> for Stop {
    fn from(error: AllocationError) -> Self {
        Self::Failed(error)
    }
}

pub(super) struct Search<'a> {
    node: &'a Node,
    pools: &'a [Pool<'a>],
    allocator: &'a Allocator<'a>,
    /// Devices that can be allocated, in the order in which they are tried.
    candidates: Vec<Candidate<'a>>,
    plans: Vec<Plan<'a>>,
    /// All devices that a request for all is for.
    all: HashMap<Place, Vec<usize>>,
    /// Whether a candidate is what an alternative asks for.
    selectable: HashMap<(Place, usize), bool>,
    steps: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        node: &'a Node,
        pools: &'a [Pool<'a>],
        allocator: &'a Allocator<'a>,
        claims: &[&'a ResourceClaim],
    ) -> Result<Self, AllocationError> {
        let mut candidates = Vec::new();
        for (index, pool) in pools.iter().enumerate() {
            if pool.state != PoolState::Usable {
                continue;
            }
            for slice in &pool.slices {
                let devices = slice.devices.iter();
                candidates.extend(devices.map(|device| Candidate { device, slice, pool: index }));
            }
        }
        let mut own = Self {
            node,
            pools,
            allocator,
            candidates,
            plans: Vec::new(),
            all: HashMap::new(),
            selectable: HashMap::new(),
            steps: 0,
        };
        for claim in claims {
            own.plan(claim)?;
        }
        Ok(own)
    }

    fn plan(&mut self, claim: &'a ResourceClaim) -> Result<(), AllocationError> {
        let mut constraints = Vec::new();
        for (index, api) in claim.devices.constraints.iter().flatten().enumerate() {
            constraints.push(Constraint::new(api).ok_or_else(|| {
                let key = &claim.key;
                AllocationError::Claim(format!(
                    "claim {key}, constraint #{index}: empty constraint (unsupported constraint type?)"
                ))
            })?);
        }
        let requests = requests(claim, self.allocator.classes)?;
        let selected = vec![0; requests.len()];
        let sizes: Vec<usize> = requests.iter().map(Vec::len).collect();
        self.plans.push(Plan { claim, requests, constraints, selected, choices: Vec::new() });
        let index = self.plans.len().saturating_sub(1);
        let mut least = 0usize;
        for (request, size) in sizes.into_iter().enumerate() {
            let mut fewest = usize::MAX;
            for alternative in 0..size {
                let place = Place { claim: index, request, alternative };
                fewest = fewest.min(self.count(place)?);
            }
            least = least.saturating_add(fewest);
        }
        if least > MAX_RESULTS {
            let key = &claim.key;
            return Err(AllocationError::Claim(format!(
                "claim {key}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}"
            )));
        }
        Ok(())
    }

    /// How many devices an alternative needs. Finds them, if it asks for all.
    fn count(&mut self, place: Place) -> Result<usize, AllocationError> {
        if let Some(all) = self.all.get(&place) {
            return Ok(all.len());
        }
        let Some((plan, request)) =
            self.plans.get(place.claim).and_then(|plan| Some((plan, plan.request(place)?)))
        else {
            return Ok(0);
        };
        if let Some(count) = request.count {
            return Ok(count);
        }
        for pool in self.pools {
            let state = match pool.state {
                PoolState::Usable => continue,
                PoolState::Incomplete => "being updated",
                PoolState::Invalid => "invalid",
            };
            let (key, name) = (&plan.claim.key, request.name.short());
            return Err(AllocationError::Claim(format!(
                "claim {key}, request {name}: asks for all devices, but resource pool {}/{} is currently {state}",
                pool.driver, pool.name
            )));
        }
        let mut all = Vec::new();
        for index in 0..self.candidates.len() {
            if self.is_selectable(place, index)? && self.has_capacity(place, index) {
                all.push(index);
            }
        }
        let count = all.len();
        self.all.insert(place, all);
        Ok(count)
    }

    pub(super) fn run(mut self) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        match self.claim(0) {
            Ok(true) => {}
            Ok(false) | Err(Stop::TooMany) => {
                // An invalid pool may be the reason.
                if self.pools.iter().any(|pool| pool.state == PoolState::Invalid) {
                    let reason = "invalid resource pools were encountered";
                    return Err(AllocationError::OnNode(reason.to_owned()));
                }
                return Ok(None);
            }
            Err(Stop::Failed(error)) => return Err(error),
        }
        self.plans
            .iter()
            .map(|plan| result::of(plan, self.node))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Allocates a claim and all behind it.
    fn claim(&mut self, claim: usize) -> Result<bool, Stop> {
        if claim >= self.plans.len() {
            return Ok(true);
        }
        self.request(claim, 0)
    }

    /// Allocates a request of a claim and all behind it.
    fn request(&mut self, claim: usize, request: usize) -> Result<bool, Stop> {
        let Some(plan) = self.plans.get(claim) else { return Ok(true) };
        let Some(alternatives) = plan.requests.get(request) else {
            // Other alternatives of this claim do not make the next one smaller.
            return match self.claim(claim.saturating_add(1)) {
                Err(Stop::TooMany) => Ok(false),
                other => other,
            };
        };
        let mut are_all_too_many = true;
        for alternative in 0..alternatives.len() {
            match self.device(Place { claim, request, alternative }, 0, 0) {
                Ok(true) => {
                    let plan = self.plans.get_mut(claim);
                    if let Some(own) = plan.and_then(|plan| plan.selected.get_mut(request)) {
                        *own = alternative;
                    }
                    return Ok(true);
                }
                Ok(false) => are_all_too_many = false,
                Err(Stop::TooMany) => {}
                Err(stop) => return Err(stop),
            }
        }
        if are_all_too_many { Err(Stop::TooMany) } else { Ok(false) }
    }

    /// Allocates a device of a request and all behind it. Devices of one request are tried in one order
    /// only: `start` is the first candidate.
    fn device(&mut self, place: Place, number: usize, start: usize) -> Result<bool, Stop> {
        self.steps = self.steps.saturating_add(1);
        if self.steps > self.allocator.max_steps {
            return Err(AllocationError::TooLong.into());
        }
        let count = self.count(place)?;
        let all = self.all.get(&place);
        if all.is_some_and(Vec::is_empty) {
            return Ok(false);
        }
        if number >= count {
            return self.request(place.claim, place.request.saturating_add(1));
        }
        let chosen = self.plans.get(place.claim).map_or(0, |plan| plan.choices.len());
        if chosen.saturating_add(count).saturating_sub(number) > MAX_RESULTS {
            return Err(Stop::TooMany);
        }
        let next = number.saturating_add(1);
        if let Some(all) = all {
            let Some(index) = all.get(number).copied() else { return Ok(false) };
            if !self.choose(place, index, true)? {
                return Ok(false);
            }
            return self.go_on(place, next, 0);
        }
        for index in start..self.candidates.len() {
            if !self.is_selectable(place, index)? || !self.choose(place, index, false)? {
                continue;
            }
            if self.go_on(place, next, index.saturating_add(1))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes on after a choice, which is dropped if that fails.
    fn go_on(&mut self, place: Place, next: usize, start: usize) -> Result<bool, Stop> {
        let done = self.device(place, next, start);
        if !matches!(done, Ok(true))
            && let Some(plan) = self.plans.get_mut(place.claim)
        {
            plan.choices.pop();
        }
        done
    }

    /// Whether a candidate is what an alternative asks for, whoever uses it.
    fn is_selectable(&mut self, place: Place, index: usize) -> Result<bool, AllocationError> {
        if let Some(known) = self.selectable.get(&(place, index)) {
            return Ok(*known);
        }
        let is_selectable = self.check_selectors(place, index)?;
        self.selectable.insert((place, index), is_selectable);
        Ok(is_selectable)
    }

    fn check_selectors(&self, place: Place, index: usize) -> Result<bool, AllocationError> {
        let Some(candidate) = self.candidates.get(index) else { return Ok(false) };
        let Some(plan) = self.plans.get(place.claim) else { return Ok(false) };
        let Some(request) = plan.request(place) else { return Ok(false) };
        let device = candidate.device;
        if device.nodes.as_ref().is_some_and(|nodes| !nodes.have(self.node)) {
            return Ok(false);
        }
        let of_class = || format!("class {}", request.class.name);
        let of_claim = || format!("claim {}", plan.claim.key);
        Ok(all_select(&request.class.selectors, device, of_class)?
            && all_select(request.selectors, device, of_claim)?)
    }

    /// Whether a device that can be shared has enough left for a request.
    fn has_capacity(&self, place: Place, index: usize) -> bool {
        let Some(candidate) = self.candidates.get(index) else { return false };
        let request = self.plans.get(place.claim).and_then(|plan| plan.request(place));
        request.is_some_and(|request| self.share(request, candidate.device).is_some())
    }

    /// What a request takes of a device, `None` inside if the device is not shared; `None`: the device
    /// does not have it.
    fn share(
        &self,
        request: &Request<'_>,
        device: &Device,
    ) -> Option<Option<BTreeMap<String, i128>>> {
        let consumption = capacity::consumption(device, request.capacity)?;
        if device.api.allow_multiple_allocations != Some(true) {
            return Some(None);
        }
        let is_left = consumption.iter().all(|(name, more)| {
            let capacity = device.api.capacity.as_ref().and_then(|own| own.get(name));
            let own = self.choices().filter(|choice| choice.candidate.device.id == device.id);
            let taken = own
                .filter_map(|choice| choice.share.as_ref()?.get(name))
                .fold(self.allocator.used.consumed(&device.id, name), |sum, own| {
                    sum.saturating_add(*own)
                });
            capacity
                .is_some_and(|own| taken.saturating_add(*more) <= crate::model::amount(&own.value))
        });
        is_left.then_some(Some(consumption))
    }

    fn choices(&self) -> impl Iterator<Item = &Choice<'a>> {
        self.plans.iter().flat_map(|plan| &plan.choices)
    }

    /// Chooses a candidate that is selectable; false: it is in use, tainted, or against a constraint.
    /// `is_needed`: the request is for all devices, and so for this one.
    fn choose(
        &mut self,
        place: Place,
        index: usize,
        is_needed: bool,
    ) -> Result<bool, AllocationError> {
        let Some(candidate) = self.candidates.get(index).copied() else { return Ok(false) };
        let Some(plan) = self.plans.get(place.claim) else { return Ok(false) };
        let Some(request) = plan.request(place) else { return Ok(false) };
        let device = candidate.device;
        let is_device = |choice: &&Choice<'_>| choice.candidate.device.id == device.id;
        let can_be_shared = device.api.allow_multiple_allocations == Some(true);
        let is_taken = if request.has_admin_access {
            !can_be_shared && plan.choices.iter().any(|choice| is_device(&choice))
        } else {
            self.allocator.used.has(&device.id)
                || self.choices().filter(is_device).any(|choice| choice.share.is_none())
        };
        if is_taken || request.is_repelled_by(device) {
            return Ok(false);
        }
        let Some(share) = self.share(request, device) else { return Ok(false) };
        if !self.has_counters(candidate) {
            return Ok(false);
        }
        for constraint in plan.constraints.iter().filter(|own| own.concerns(request.name)) {
            let chosen = plan.choices.iter().filter(|choice| {
                let of = plan.requests.get(choice.request);
                let request = of.and_then(|all| all.get(choice.alternative));
                request.is_some_and(|request| constraint.concerns(request.name))
            });
            if constraint.accepts(device, chosen.map(|choice| choice.candidate.device)) {
                continue;
            }
            if is_needed {
                let (key, name, id) = (&plan.claim.key, request.name.short(), &device.id);
                return Err(AllocationError::Claim(format!(
                    "claim {key}, request {name}: cannot add device {id} because a claim constraint would not be satisfied"
                )));
            }
            return Ok(false);
        }
        let Place { request, alternative, .. } = place;
        let choice = Choice { candidate, request, alternative, share };
        if let Some(plan) = self.plans.get_mut(place.claim) {
            plan.choices.push(choice);
        }
        Ok(true)
    }

    /// Whether the counters of the pool have what a device consumes.
    fn has_counters(&self, candidate: Candidate<'_>) -> bool {
        let device = candidate.device;
        let Some(consumed) = &device.api.consumes_counters else { return true };
        let Some(pool) = self.pools.get(candidate.pool) else { return false };
        let used = self.allocator.used;
        let is_chosen =
            |other: &Device| self.choices().any(|choice| choice.candidate.device.id == other.id);
        if is_chosen(device) || used.has_any(&device.id) {
            // Shares of a device and admin access consume nothing more.
            return true;
        }
        let taken: Vec<&&Device> = pool
            .consumers
            .iter()
            .filter(|other| used.has_any(&other.id) || is_chosen(other))
            .collect();
        consumed.iter().all(|own| {
            let set = pool.counters.iter().find(|(name, _)| name.as_str() == own.counter_set);
            own.counters.iter().all(|(name, counter)| {
                let more = crate::model::amount(&counter.value);
                let sum = taken
                    .iter()
                    .flat_map(|other| other.api.consumes_counters.iter().flatten())
                    .filter(|other| other.counter_set == own.counter_set)
                    .filter_map(|other| other.counters.get(name))
                    .fold(more, |sum, other| {
                        sum.saturating_add(crate::model::amount(&other.value))
                    });
                set.and_then(|(_, counters)| counters.get(name)).is_some_and(|left| sum <= *left)
            })
        })
    }
}

fn all_select(
    selectors: &[DeviceSelector],
    device: &Device,
    whose: impl Fn() -> String,
) -> Result<bool, AllocationError> {
    for (index, selector) in selectors.iter().enumerate() {
        let Some(cel) = &selector.cel else {
            return Err(AllocationError::Claim(format!(
                "{}: selector #{index}: CEL expression empty (unsupported selector type?)",
                whose()
            )));
        };
        match selects(&cel.expression, device) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                let text = format!("{}: selector #{index}: {error}", whose());
                return Err(AllocationError::Claim(text));
            }
        }
    }
    Ok(true)
}

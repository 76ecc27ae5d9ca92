//! Extended resources that devices may serve: which containers of a pod request them, and which class of
//! devices has one.

use std::collections::HashMap;

use super::{Atom, DeviceClass, Resources};
use k8s_openapi::api::core::v1::{Container, PodSpec};

/// The beginning of the name under which each class is an extended resource.
const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Whether devices may serve a resource.
pub fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    name.starts_with(CLASS_PREFIX) || !(is_native || name.starts_with("requests."))
}

/// The extended resources that a container requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequests {
    /// Its name.
    pub name: Box<str>,
    /// Whether it ends before those behind it start.
    pub is_short_lived: bool,
    /// Name, amount, and place among all requests of the container by their names.
    pub resources: Box<[(Atom, i64, usize)]>,
}

impl ContainerRequests {
    fn new(api: &Container, is_init: bool) -> Self {
        let requests = api.resources.as_ref().and_then(|own| own.requests.as_ref());
        // They are ordered by their names.
        let all = requests.into_iter().flatten().enumerate();
        let resources = all.filter(|(_, (name, _))| is_extended(name)).filter_map(
            |(index, (name, quantity))| {
                let name = Atom::from(name);
                let list = [(name.to_string(), quantity.clone())].into();
                let amount = Resources::new(Some(&list)).scalar(&name);
                (amount > 0).then_some((name, amount, index))
            },
        );
        Self {
            name: api.name.as_str().into(),
            is_short_lived: is_init && api.restart_policy.as_deref() != Some("Always"),
            resources: resources.collect(),
        }
    }

    /// Amount and place of a resource, if it is requested.
    pub fn of(&self, resource: &Atom) -> Option<(i64, usize)> {
        let found = self.resources.iter().find(|(name, ..)| name == resource);
        found.map(|(_, amount, index)| (*amount, *index))
    }
}

/// The requests of all containers, init containers first; none if no extended resource is requested.
pub(super) fn of_pod(spec: &PodSpec) -> Box<[ContainerRequests]> {
    let inits = spec.init_containers.iter().flatten().map(|own| ContainerRequests::new(own, true));
    let others = spec.containers.iter().map(|own| ContainerRequests::new(own, false));
    let all: Box<[_]> = inits.chain(others).collect();
    if all.iter().all(|own| own.resources.is_empty()) { Box::default() } else { all }
}

/// The class that serves an extended resource: the one of that name, or the newest that names it.
pub fn class_of<'a>(
    classes: &'a HashMap<Atom, DeviceClass>,
    resource: &Atom,
) -> Option<&'a DeviceClass> {
    if let Some(class) = resource.strip_prefix(CLASS_PREFIX) {
        return classes.get(&Atom::new(class));
    }
    let of_name = classes.values().filter(|own| own.extended.as_ref() == Some(resource));
    of_name.max_by(|left, right| {
        let by_name = right.name.as_str().cmp(left.name.as_str());
        left.created.cmp(&right.created).then(by_name)
    })
}

//! Events: stored once, as core/v1 objects, and served in two groups.

use super::{Kind, Strategy, events, printers, validate};
use crate::api_types::{Fields, Resource, core, grouped};
use crate::schema::names;

const CORE_FIELDS: Fields = &[
    ("involvedObject.kind", "involvedObject.kind"),
    ("involvedObject.namespace", "involvedObject.namespace"),
    ("involvedObject.name", "involvedObject.name"),
    ("involvedObject.uid", "involvedObject.uid"),
    ("involvedObject.apiVersion", "involvedObject.apiVersion"),
    ("involvedObject.resourceVersion", "involvedObject.resourceVersion"),
    ("involvedObject.fieldPath", "involvedObject.fieldPath"),
    ("reason", "reason"),
    ("reportingComponent", "reportingComponent"),
    ("source", "source"),
    ("type", "type"),
];
const FIELDS: Fields = &[
    ("regarding.kind", "regarding.kind"),
    ("regarding.namespace", "regarding.namespace"),
    ("regarding.name", "regarding.name"),
    ("regarding.uid", "regarding.uid"),
    ("regarding.apiVersion", "regarding.apiVersion"),
    ("regarding.resourceVersion", "regarding.resourceVersion"),
    ("regarding.fieldPath", "regarding.fieldPath"),
    ("reason", "reason"),
    ("reportingController", "reportingController"),
    ("type", "type"),
];

pub(super) static CORE: Kind = Kind {
    resource: Resource {
        short_names: &["ev"],
        fields: Some(CORE_FIELDS),
        ..core("events", "event", "Event", "events")
    },
    strategy: Strategy {
        validate: |event, old, causes| validate::plain::event(event, old, false, causes),
        name: names::path_segment,
        printer: &printers::EVENTS,
        created_on_update: true,
        expires: true,
        ..Strategy::PLAIN
    },
};

pub(super) static EVENTS: Kind = Kind {
    resource: Resource {
        short_names: &["ev"],
        fields: Some(FIELDS),
        ..grouped("events.k8s.io", "events", "event", "Event")
    },
    strategy: Strategy {
        validate: |event, old, causes| {
            let old = old.map(|old| events::to_storage(old.clone()));
            validate::plain::event(&events::to_storage(event.clone()), old.as_ref(), true, causes);
        },
        printer: &printers::EVENTS,
        to_storage: events::to_storage,
        from_storage: Some(events::from_storage),
        created_on_update: true,
        expires: true,
        ..Strategy::PLAIN
    },
};

//! What a daemon counts and measures, and how Prometheus reads it.
//!
//! A part of the daemon asks a [`Registry`] for its families once, keeps the handles, and updates
//! them where the fact happens; an update is an atomic operation, and a look-up for those with
//! labels. What something else knows already is not copied: a closure given to
//! [`Registry::collect`] writes it when somebody scrapes. [`Registry::text`] is the page.
//!
//! It is own code because the two libraries there are do not fit: `prometheus-client` writes
//! OpenMetrics alone, which gives every counter the suffix `_total`, and Kubernetes has counters
//! without; `prometheus` keeps series by a hash of their labels that may collide, makes objects of
//! all series before it writes them, which is too much for a container's figures, and has had few
//! hands of late.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod family;
#[cfg(any(test, feature = "parse"))]
pub mod parse;
mod process;
mod registry;
mod standard;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod text;
mod value;

pub use family::Family;
pub use process::{watch_process, watch_start};
pub use registry::Registry;
pub use standard::{Healthchecks, RestClient, Version, tell_version};
pub use text::{CONTENT_TYPE, Kind, Labels, Moment, Samples, Text};
pub use value::{Buckets, Counter, Gauge, Histogram, Metric};

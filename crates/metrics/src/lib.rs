//! Metrics in the Prometheus text format.
//!
//! A component registers its families with a [`Registry`] once, keeps the handles, and updates them; an
//! update is an atomic operation, with a look-up for labels. Values that are known elsewhere are written
//! at each scrape by a closure given to [`Registry::collect`]. [`Registry::text`] is the page.
//!
//! The existing libraries do not fit: `prometheus-client` writes only OpenMetrics, which gives every
//! counter the suffix `_total`, and Kubernetes has counters without; `prometheus` identifies series by a
//! hash of their labels that may collide, and builds objects of all series for each page, which is
//! too expensive for container metrics.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod family;
#[cfg(any(test, feature = "parse"))]
pub mod parse;
mod process;
mod registry;
mod standard;
#[cfg(test)]
mod tests;
mod text;
mod value;

pub use family::{Description, Family};
pub use process::{register_process_metrics, register_start_time};
pub use registry::{Registry, Slot};
pub use standard::{ClientCertificates, Healthchecks, RestClient, Version, register_version};
pub use text::{CONTENT_TYPE, Kind, Labels, SampleTime, Samples, Text};
pub use value::{Buckets, Counter, Gauge, Histogram, Metric};

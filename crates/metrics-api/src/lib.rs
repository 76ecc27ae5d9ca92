//! `metrics.k8s.io/v1beta1` for clusters without metrics-server, so that `kubectl top` and the
//! horizontal pod autoscaler work: what nodes and containers use, from the nodes' `/metrics/resource`.
//!
//! Flow: [`Scraper`] reads the page of each node ([`page`]) into [`Samples`], which keep the last two
//! of each node and container → [`router`] answers with the objects of metrics-server ([`objects`]).
//! All but the two seams ([`Source`], [`Directory`]) is pure.
//!
//! Current limitations: no watch and no table form of the answers, as upstream's.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod directory;
pub mod objects;
pub mod page;
mod routes;
mod samples;
mod scrape;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;

pub use self::directory::{ApiDirectory, Directory, DirectoryError, Identity, Selection};
pub use self::routes::router;
pub use self::samples::{Samples, Shared, Usage};
pub use self::scrape::{ProxySource, ScrapeError, Scraper, Source};

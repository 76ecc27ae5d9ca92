//! CRI v1 over a Docker Engine: [`Service`] is the runtime service, [`images::Images`] the image service.
//!
//! Names, labels and checkpoint files are cri-dockerd's, so that either takes over the other's containers.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod engine;
mod error;
pub mod images;
mod service;
mod settings;

pub use engine::{Engine, connect};
pub use error::{Error, Result};
pub use service::Service;
pub use settings::Settings;

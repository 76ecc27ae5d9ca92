//! CRI v1 over a Docker Engine: [`Service`] is the runtime service, [`images::Images`] the image service,
//! [`run`] serves both at a socket, [`Backend`] is both for a node in the same process.
//!
//! Names, labels and checkpoint files are cri-dockerd's, so that either takes over the other's containers.
//! Containers without these labels are somebody else's: they are neither listed nor touched.
//!
//! Current limitations: user namespaces of pods, strict supplemental groups and checkpoints of containers are
//! refused, for the engine has none; the image of sandboxes is pulled without credentials.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod backend;
mod checkpoint;
mod container;
mod created;
mod creations;
mod daemon;
mod engine;
mod error;
mod event_cache;
mod event_sender;
mod events;
mod exec;
mod hijack;
mod image_names;
pub mod images;
mod info;
mod labels;
mod layer_sizes;
mod listen;
mod logs;
mod mounts;
mod names;
mod network;
mod resources;
mod runtime;
mod sandbox;
mod security;
mod service;
mod sessions;
mod settings;
mod stats;
mod timestamp;
mod transport;

pub use backend::Backend;
pub use daemon::run;
pub use engine::{Engine, connect};
pub use error::{Error, Result};
pub use listen::Listen;
pub use service::Service;
pub use settings::Settings;

/// Whether this is an identifier of the engine's, or the beginning of one: nothing else may become part of a
/// path.
fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// # Errors
/// When this is no identifier, and so none that exists.
fn check_id(id: &str) -> Result<()> {
    match id {
        "" => Err(Error::Invalid("the ID is empty".to_owned())),
        id if is_id(id) => Ok(()),
        id => Err(Error::NotFound { kind: "container", id: id.to_owned() }),
    }
}

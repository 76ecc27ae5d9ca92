//! A machine as part of a cluster: `longshore up`, `join`, `token`, `down`, `reset`, `check`,
//! `status` and `top`.
//!
//! The commands are a program of their own, `longshore-host`, which `longshore` starts in its place: so
//! the node has none of their code. They start the other programs and write their files; nothing of a
//! cluster runs in them but the routes between nodes ([`network`]).
//!
//! Flow of `up`: [`args`] → [`settings`] (what is kept of them) → [`setup`] writes files → [`services`]
//! (command lines) → [`supervisor`] or [`units`] starts them → [`objects`] of the cluster. `join` is the
//! same with [`discovery`] before it. [`reset`] and [`check`] gather facts, decide in pure functions, and
//! act or print. [`status`] shows what runs, by the crate `node-view`.
//!
//! Current limitations: one control plane a cluster; IPv4 alone. Certificates of the control plane last a
//! year, and are renewed when it starts, those of kubeconfigs by `up`.

pub mod args;
pub mod check;
pub mod discovery;
pub mod down;
mod error;
mod files;
mod lock;
pub mod network;
pub mod objects;
mod paths;
mod preflight;
pub mod reset;
mod runtime;
pub mod services;
pub mod settings;
pub mod setup;
pub mod start;
pub mod status;
pub mod supervisor;
pub mod tokens;
pub mod units;

pub use error::{Error, Result};
pub use paths::Paths;

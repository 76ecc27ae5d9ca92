//! The controllers of the cluster, as kube-controller-manager has them: loops that bring what is there
//! closer to what the API's objects ask for.
//!
//! Each controller is a module of one shape: handlers of informers add keys to a queue; workers take
//! a key and sync its object; what is to be done is decided by pure functions. [`all`] is the list.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod context;
mod list;

pub use self::context::{Context, Controller, Settings};
pub use self::list::all;

//! What every part of Longshore needs and nothing of Kubernetes: arithmetic on times that cannot
//! overflow ([`time`]), trees of directories of any depth
//! ([`trees`]), output that cannot fail ([`output`]), panics that end one
//! piece of work ([`panics`]), and what a caller may hold of
//! a server ([`connections`], [`budget`]).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod budget;
pub mod connections;
pub mod output;
pub mod panics;
pub mod time;
pub mod trees;

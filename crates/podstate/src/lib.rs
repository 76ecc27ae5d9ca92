//! Desired and observed state of pods: the sources of pods ([`sources`]), the pods that should run
//! ([`desired`]), and the state of the runtime ([`observe`]).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod desired;
pub mod observe;
pub mod sources;

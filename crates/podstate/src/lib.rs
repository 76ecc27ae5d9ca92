//! What pods should run on the node and what does run: where desired pods come from ([`sources`]),
//! what should run ([`desired`]), and what is observed of the runtime ([`observe`]).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod desired;
pub mod observe;
pub mod sources;

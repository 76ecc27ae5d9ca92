//! Rules as text for `iptables-restore --noflush`, from services and their endpoints. Pure.
//!
//! There is one form of a rule: as `iptables-save` prints it. So what the kernel has is compared
//! with what it should have as text, and a restart on an unchanged rule set writes nothing. Chains
//! have upstream's names, and rules its order and comments.
//!
//! [`Full`] changes any rule set ([`Existing`], read from `iptables-save`) to what a state requires,
//! in transactions of bounded size: chains of endpoints and services first, and those that jump to
//! them last, which is the switch. [`partial`] does the same for what changed since the last time.
//! Chains that nothing leads to any more are removed by themselves, afterwards ([`Stale`]): a chain
//! that foreign rules refer to must not make a sync fail.

mod batch;
mod cleanup;
mod existing;
mod fixed;
mod full;
mod names;
mod partial;
mod rule;
mod service;
mod settings;
mod stale;

pub use cleanup::cleanup;
pub use existing::{Existing, Table};
pub use fixed::{CANARY_CHAIN, JUMPS, Jump};
pub use full::{Full, Totals};
pub use names::ChainName;
pub use partial::{Partial, partial};
pub use settings::{Accounting, LocalDetector, NodePorts, Settings};
pub use stale::Stale;

#[cfg(test)]
mod tests;

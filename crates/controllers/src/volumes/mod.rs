//! The controllers of volumes: binder, attach/detach, expander, protection, ephemeral volumes and warnings
//! about SELinux labels.
//!
//! What they decide is in pure functions of the informers' stores (`binder::claim`, `binder::volume`,
//! `attachdetach::plan` …); a decision is always one step from the current state, and nothing is
//! polled. Writes replace the version that was decided about, so that a stale cache decides nothing.

mod attachdetach;
mod attributes_protection;
mod binder;
mod claim_protection;
mod ephemeral;
mod event;
mod expander;
mod metrics;
mod objects;
mod selinux;
#[cfg(test)]
mod tests;
mod volume_protection;
mod writes;

pub(crate) use self::attachdetach::run as run_attach_detach;
pub(crate) use self::attributes_protection::run as run_attributes_protection;
pub(crate) use self::binder::run as run_binder;
pub(crate) use self::claim_protection::run as run_claim_protection;
pub(crate) use self::ephemeral::run as run_ephemeral;
pub(crate) use self::expander::run as run_expander;
pub(crate) use self::objects::{attributes_of_claim, claim_class};
pub(crate) use self::selinux::run as run_selinux_warnings;
pub(crate) use self::volume_protection::run as run_volume_protection;

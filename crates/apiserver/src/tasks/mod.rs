//! What the apiserver does of its own accord: what a cluster starts with, and forgetting old revisions.

pub(crate) mod addresses;
pub(crate) mod apiservices;
pub(crate) mod bootstrap;
pub(crate) mod compaction;
pub(crate) mod definitions;
pub(crate) mod policies;
pub(crate) mod roles;

//! What the apiserver does of its own accord: what a cluster starts with, the end of namespaces,
//! and forgetting old revisions.

pub(crate) mod addresses;
pub(crate) mod aggregation;
pub(crate) mod bootstrap;
pub(crate) mod compaction;
pub(crate) mod namespaces;
pub(crate) mod roles;

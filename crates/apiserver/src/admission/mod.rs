//! What is decided about an object beyond its own rules: whether its namespace takes it, what a
//! node may write, and what the cluster fills in (priorities, tolerations, service addresses, classes
//! of storage).
//! Called by `operations` before each write.

pub(crate) mod certificates;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod node_restriction;
pub(crate) mod nodes;
pub(crate) mod plugins;
pub(crate) mod pod_security;
pub(crate) mod pods;
pub(crate) mod quota;
mod resources;
pub(crate) mod service_account;
pub(crate) mod services;
pub(crate) mod storage;
#[cfg(test)]
mod tests;

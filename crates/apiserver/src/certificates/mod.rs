//! The task that approves nodes' certificate signing requests by themselves and signs approved ones
//! with the cluster's CA.

mod task;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

pub(crate) use self::task::{Settings, run};

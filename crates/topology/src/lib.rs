//! The CPU, memory and topology managers: exclusive CPUs and NUMA-local memory of containers. No I/O:
//! the machine is plain data, and the state is the text of a checkpoint.
//!
//! Current limitations: checkpoints from before Kubernetes 1.18 are rejected.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod allocator;
pub mod checkpoint;
mod combinations;
pub mod cpu;
mod cpuset;
mod hints;
mod machine;
mod mask;
pub mod memory;
mod options;
mod request;

pub use allocator::{Allocator, DeviceProvider, DeviceRefusal, NoDevices, Refusal, Topology};
pub use checkpoint::StateError;
pub use cpu::OptionError;
pub use cpuset::{CpuSet, CpuSetError};
pub use hints::{Hint, Hints, Policy as TopologyPolicy};
pub use machine::{CpuInfo, Cpus, Machine, Node};
pub use mask::NumaMask;
pub use options::Options as TopologyOptions;
pub use request::{Amounts, ContainerRequest, EmptyPool, Kind, OwnRequest, PodRequest};

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod pod_level_tests;
#[cfg(test)]
mod tests;

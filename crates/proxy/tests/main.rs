//! kube-proxy's rules against the kernel.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod apply;
mod common;
mod conntrack;
mod proxier;
mod userspace;

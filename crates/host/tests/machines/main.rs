//! Longshore as a service of real machines: virtual ones with systemd and cgroup v2, on which Debian's packages are
//! installed. `make vm-machines` runs these tests; each says on stderr how long its steps took.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod cluster;
mod machine;
mod service;
mod swap;
mod upstream;

//! The service over a real Docker Engine, on a host of its own. Where there is no engine the tests say so.

#![allow(clippy::expect_used, reason = "tests")]

mod common;
mod containers;
mod critest;
mod faults;
mod images;
mod logs;
mod sandboxes;
mod streams;
mod units;

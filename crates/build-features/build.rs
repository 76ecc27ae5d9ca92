//! Cargo heeds build dependencies where there is a build script.

fn main() {}

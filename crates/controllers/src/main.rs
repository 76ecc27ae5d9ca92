//! The program `longshore-controllers`.

fn main() {}

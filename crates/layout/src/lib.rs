//! For build scripts: the order of functions in programs.
//!
//! An idle program executes one function in twenty. The kernel maps sixteen pages where one is used, so that functions
//! that are spread over all of the code have most of it mapped. The linker puts those that are executed next to each
//! other, as the script `idle.ld` says, which `make layout` writes. Functions that it does not name are in any order: a
//! script that is old costs memory and nothing else.

use std::env;

/// Orders the functions of the programs of the package whose build script calls this, when they are optimised: without
/// optimisation there are many more, and linking would take longer.
pub fn order_functions() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/idle.ld");
    println!("cargo::rerun-if-changed={script}");
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-T{script}");
    }
}

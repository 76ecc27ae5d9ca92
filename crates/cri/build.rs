//! Compiles `proto/cri` into `OUT_DIR`, with no `protoc` on the machine.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = Path::new("../../proto/cri");
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|e| e == "proto") {
            files.push(name);
        }
    }
    files.sort();
    tonic_prost_build::configure()
        // the map type of the Kubernetes API types: labels pass without conversion
        .btree_map(".")
        // an exec's output can be megabytes: keep it in the buffer it came in
        .bytes(".runtime.v1.ExecSyncResponse")
        // registry credentials must not reach a log by `{:?}`
        .skip_debug([".runtime.v1.AuthConfig"])
        // a method that a server leaves out answers Unimplemented
        .generate_default_stubs(true)
        .compile_fds(protox::compile(files, [dir])?)?;
    Ok(())
}

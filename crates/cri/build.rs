//! Compiles `proto/cri` into `OUT_DIR`, without `protoc`.

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
        // the map type of the Kubernetes API types: labels need no conversion
        .btree_map(".")
        // the output of an exec can be megabytes: it is not copied
        .bytes(".runtime.v1.ExecSyncResponse")
        // registry credentials must not be logged with `{:?}`
        .skip_debug([".runtime.v1.AuthConfig"])
        // methods that a server does not implement return Unimplemented
        .generate_default_stubs(true)
        .compile_fds(protox::compile(files, [dir])?)?;
    Ok(())
}

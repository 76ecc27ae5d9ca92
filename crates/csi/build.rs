//! Compiles `proto/csi` into `OUT_DIR`, with no `protoc` on the machine.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = "../../proto/csi";
    println!("cargo::rerun-if-changed={dir}");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "proto") {
            files.push(name);
        }
    }
    files.sort();
    tonic_prost_build::configure()
        // the map type of the Kubernetes API types: attributes pass without conversion
        .btree_map(".")
        // secrets must not reach a log by `{:?}`
        .skip_debug([
            ".csi.v1.NodeStageVolumeRequest",
            ".csi.v1.NodePublishVolumeRequest",
            ".csi.v1.NodeExpandVolumeRequest",
        ])
        // a method that a driver leaves out answers Unimplemented
        .generate_default_stubs(true)
        .compile_fds(protox::compile(files, [dir])?)?;
    Ok(())
}

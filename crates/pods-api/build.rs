//! Compiles `proto/pods` into `OUT_DIR`, with no `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = "../../proto/pods";
    println!("cargo::rerun-if-changed={dir}");
    tonic_prost_build::configure().compile_fds(protox::compile(["v1alpha1.proto"], [dir])?)?;
    Ok(())
}

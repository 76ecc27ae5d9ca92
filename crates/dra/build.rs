//! Compiles `proto/dra` into `OUT_DIR`, with no `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = "../../proto/dra";
    println!("cargo::rerun-if-changed={dir}");
    let files = ["v1.proto", "v1beta1.proto", "health.proto"];
    tonic_prost_build::configure()
        // in the order of names, so that errors do not depend on a hash
        .btree_map(".")
        // a method that a driver leaves out answers Unimplemented
        .generate_default_stubs(true)
        .compile_fds(protox::compile(files, [dir])?)?;
    Ok(())
}

//! Compiles `proto/plugins` into `OUT_DIR`, with no `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = "../../proto/plugins";
    println!("cargo::rerun-if-changed={dir}");
    tonic_prost_build::configure()
        // a method that a plugin leaves out answers Unimplemented
        .generate_default_stubs(true)
        .compile_fds(protox::compile(["registration.proto"], [dir])?)?;
    Ok(())
}

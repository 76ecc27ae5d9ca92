//! Compiles `proto/deviceplugin` and `proto/podresources` into `OUT_DIR`, with no `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One at a time: the messages of different APIs have the same names.
    for (dir, files) in [
        ("../../proto/deviceplugin", &["v1beta1.proto"][..]),
        ("../../proto/podresources", &["v1.proto", "v1alpha1.proto"][..]),
    ] {
        println!("cargo::rerun-if-changed={dir}");
        tonic_prost_build::configure()
            // checkpoints are the same bytes for the same content
            .btree_map(".")
            // a method that a plugin leaves out answers Unimplemented
            .generate_default_stubs(true)
            .compile_fds(protox::compile(files, [dir])?)?;
    }
    Ok(())
}

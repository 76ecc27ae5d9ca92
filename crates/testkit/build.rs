//! Compiles `pause/pause.rs` into a static program without a library, to be put into an image.
use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=pause/pause.rs");
    let var = |name| env::var(name).map_err(|e| io::Error::other(format!("{name}: {e}")));
    let pause = PathBuf::from(var("OUT_DIR")?).join("pause");
    let target = var("TARGET")?;
    // Those that Rust has for musl are not for a program without a library.
    let own_start_files = target.ends_with("-musl").then_some("-Clink-self-contained=no");
    let status = Command::new(var("RUSTC")?)
        .args(["--edition=2024", "--crate-name=pause", "--target", &target])
        .args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-Crelocation-model=static"])
        .args(["-Ctarget-feature=+crt-static", "-Clink-args=-nostartfiles -nostdlib -static"])
        .args(own_start_files)
        // One segment, no page between sections: the file is as small as its code.
        .args(["-Clink-arg=-Wl,-N,--build-id=none,-z,norelro", "pause/pause.rs", "-o"])
        .arg(&pause)
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("rustc of pause/pause.rs: {status}")));
    }
    Ok(())
}

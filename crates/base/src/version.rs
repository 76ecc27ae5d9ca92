//! Versions and names by which Kubernetes knows this program.

/// The release of Kubernetes that this program is part of.
pub const KUBERNETES_VERSION: &str = "v1.36.1";

/// This machine's architecture by the name that Go gives it.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

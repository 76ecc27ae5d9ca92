//! The hash that shows whether a running container still matches its spec.
//!
//! The value is stored in the container's annotations, so it must be upstream's to the bit: a
//! different one would restart every container when a node changes from one kubelet to the other.

use std::fmt::Write;

use k8s_openapi::api::core::v1::Container;
use longshore_godump::Fnv32a;

/// 32-bit FNV-1a over the printed form of the JSON of name and image, as upstream computes it.
pub fn container_hash(container: &Container) -> u64 {
    let fields = serde_json::json!({
        "image": container.image.as_deref().unwrap_or_default(),
        "name": container.name,
    });
    // Upstream hashes the printed byte slice, its type in front, and not the bytes themselves.
    let mut hasher = Fnv32a::default();
    hasher.update(b"([]uint8)[");
    for (index, byte) in fields.to_string().bytes().enumerate() {
        let separator = if index == 0 { "" } else { " " };
        // Writing to a hasher cannot fail.
        let _ = write!(hasher, "{separator}{byte}");
    }
    hasher.update(b"]");
    u64::from(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values computed by upstream's own function.
    #[test]
    fn container_hash_equals_upstream() {
        for (name, image, expected) in [
            ("web", "registry.k8s.io/pause:3.10", 0x4f3b_3ba7),
            ("a", "busybox", 0x5264_866e),
            ("x", "a@sha256:abc", 0xe15e_550b),
        ] {
            let container = Container {
                name: name.to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            };
            assert_eq!(container_hash(&container), expected, "{name} {image}");
        }
    }
}

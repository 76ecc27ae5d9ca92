//! Settings of this process, and where it runs.

use tracing::warn;

/// Sets the `oom_score_adj` of the process, from -1000 (never killed) to 1000. Failures are logged.
pub fn set_oom_score(score: i32) {
    let path = "/proc/self/oom_score_adj";
    if let Err(error) = std::fs::write(path, score.to_string()) {
        // Lowering it needs CAP_SYS_RESOURCE.
        warn!(path, score, %error, "the OOM score is not set: memory pressure may end the node itself");
    }
}

/// Whether the process runs in a user namespace that is not the machine's own, as of a user without
/// privileges (rootless).
pub fn is_in_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_some_users(&map))
}

/// Whether a map of user IDs is not that of all users to themselves. An empty one is of a kernel without user
/// namespaces.
fn maps_some_users(map: &str) -> bool {
    const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
    !map.trim().is_empty() && !map.split_whitespace().eq(ALL_USERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespace_is_known_by_its_map() {
        for (map, expected) in [
            ("         0          0 4294967295\n", false),
            ("", false),
            ("         0       1000          1\n", true),
            ("0 1000 1\n1 100000 65536\n", true),
            ("0 100000 4294967295\n", true),
        ] {
            assert_eq!(maps_some_users(map), expected, "{map:?}");
        }
    }
}

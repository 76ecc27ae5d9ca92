//! Settings of this process.

use tracing::warn;

/// Sets the `oom_score_adj` of the process, from -1000 (never killed) to 1000. Failures are logged.
pub fn set_oom_score(score: i32) {
    let path = "/proc/self/oom_score_adj";
    if let Err(error) = std::fs::write(path, score.to_string()) {
        // Lowering it needs CAP_SYS_RESOURCE.
        warn!(path, score, %error, "the OOM score is not set: memory pressure may end the node itself");
    }
}

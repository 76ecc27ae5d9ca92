//! Limits of this process.

use tracing::warn;

/// Sets the process's `oom_score_adj`, from -1000 (never killed) to 1000. What fails is logged.
pub fn set_oom_score(score: i32) {
    let path = "/proc/self/oom_score_adj";
    if let Err(error) = std::fs::write(path, score.to_string()) {
        // Lowering it takes CAP_SYS_RESOURCE, which not every machine gives.
        warn!(path, score, %error, "the OOM score is not set: memory pressure may end the node itself");
    }
}

//! Logs on standard error. The verbosity can be changed at run time.

use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;

use crate::output::Stderr;

/// Changes the filter of the process; set once it logs.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// Starts logging with that verbosity (`-v`); `RUST_LOG` takes precedence.
pub fn start(verbosity: u32) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| filter(verbosity));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(|| Stderr)
        // it would say so by `eprintln!`, which panics
        .log_internal_errors(false)
        .with_ansi(false)
        .with_env_filter(filter)
        .with_filter_reloading();
    let handle = subscriber.reload_handle();
    subscriber.init();
    let _ = CHANGE.set(Box::new(move |filter| handle.reload(filter).is_ok()));
}

/// Changes the verbosity; returns whether logging was started.
pub fn set_verbosity(verbosity: u32) -> bool {
    CHANGE.get().is_some_and(|change| change(filter(verbosity)))
}

/// Upstream's levels in three steps. Libraries stay at `info`: below that they log whole requests with
/// secrets.
fn filter(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match verbosity {
        0..=2 => "info",
        3..=5 => "info,longshore=debug",
        _ => "info,longshore=trace",
    })
}

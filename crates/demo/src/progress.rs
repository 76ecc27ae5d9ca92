//! Says what is going on: on a terminal a spinner per step, elsewhere plain lines.
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Where progress goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { terminal: io::stdout().is_terminal() }
    }

    /// Whether a person can look at a moving picture.
    pub(crate) fn is_terminal(self) -> bool {
        self.terminal
    }

    /// A plain line.
    pub(crate) fn line(self, text: &str) {
        // A reader that has gone must not keep us from taking everything down.
        let _ = writeln!(io::stdout(), "{text}");
    }

    /// Does `work`, which may block its thread, and says how it goes. An error gets the step's
    /// name.
    pub(crate) async fn step<T>(
        self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let outcome = if self.terminal {
            let spinner = tokio::spawn(spin(what.to_owned(), start));
            let outcome = work.await;
            spinner.abort();
            let _ = spinner.await;
            let mark = if outcome.is_ok() { "\x1b[32m✓" } else { "\x1b[31m✗" };
            redraw(mark, what, start);
            self.line("");
            outcome
        } else {
            self.line(&format!("{what} ..."));
            let outcome = work.await;
            let how = if outcome.is_ok() { "done in" } else { "FAILED after" };
            self.line(&format!("{what}: {how} {}", seconds(start)));
            outcome
        };
        outcome.with_context(|| what.to_owned())
    }
}

async fn spin(what: String, start: Instant) {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for frame in FRAMES.iter().cycle() {
        tick.tick().await;
        redraw(&format!("\x1b[36m{frame}"), &what, start);
    }
}

fn redraw(mark: &str, what: &str, start: Instant) {
    let mut out = io::stdout();
    let _ = write!(out, "\r{mark}\x1b[0m {what} \x1b[2m{}\x1b[0m\x1b[K", seconds(start));
    let _ = out.flush();
}

fn seconds(start: Instant) -> String {
    format!("{:.1} s", start.elapsed().as_secs_f64())
}

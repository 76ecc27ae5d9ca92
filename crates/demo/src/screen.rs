//! The live view: redraws the panel on a terminal, or prints what changed elsewhere, until the
//! stop signal or the end of a daemon.
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::inspect::{Inspector, Snapshot};
use crate::progress::Progress;
use crate::stack::Stack;
use crate::view;

const EVERY: Duration = Duration::from_secs(1);

/// Shows node and pods until `stop`.
///
/// # Errors
/// When a daemon ended by itself.
pub(crate) async fn show(
    stack: &mut Stack,
    progress: Progress,
    client: &Client,
    stop: &CancellationToken,
) -> Result<()> {
    let mut inspector = Inspector::new(client, &stack.host()?.name());
    let mut output = Output::new(progress, stack.kubeconfig()?);
    let mut resized = signal(SignalKind::window_change())?;
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = resized.recv() => output.redraw(),
            _ = tick.tick() => {
                let daemons = stack.daemons()?;
                let sampled = stop.run_until_cancelled(inspector.sample(&daemons)).await;
                let Some(snapshot) = sampled else { return Ok(()) };
                output.show(snapshot.clone());
            }
        }
    }
}

/// Output of snapshots.
enum Output {
    Terminal { _screen: Screen, kubeconfig: PathBuf, last: Snapshot },
    Lines { progress: Progress, kubeconfig: PathBuf, seen: HashSet<String> },
}

impl Output {
    fn new(progress: Progress, kubeconfig: PathBuf) -> Self {
        if progress.is_terminal() {
            Self::Terminal { _screen: Screen::enter(), kubeconfig, last: Snapshot::default() }
        } else {
            Self::Lines { progress, kubeconfig, seen: HashSet::new() }
        }
    }

    fn show(&mut self, snapshot: Snapshot) {
        match self {
            Self::Terminal { last, .. } => {
                *last = snapshot;
                self.redraw();
            }
            Self::Lines { progress, kubeconfig, seen } => {
                let mut now = HashSet::new();
                let lines =
                    view::plain(&snapshot).into_iter().chain(view::commands(&snapshot, kubeconfig));
                for line in lines {
                    if !seen.contains(&line) && !now.contains(&line) {
                        progress.line(&line);
                    }
                    now.insert(line);
                }
                // Only the last snapshot's: a state that comes back is news again.
                *seen = now;
            }
        }
    }

    fn redraw(&self) {
        let Self::Terminal { kubeconfig, last, .. } = self else { return };
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let (width, height) = match size {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        };
        let (width, height) = (usize::from(width), usize::from(height));
        let lines = view::panel(last, kubeconfig, width, height);
        // One write of the whole picture, each line cleared behind its end: nothing flickers.
        let mut frame = String::from("\x1b[H");
        let end = lines.len().saturating_sub(1);
        for (row, line) in lines.iter().enumerate() {
            let _ = write!(
                frame,
                "{}\x1b[K{}",
                line.render(width),
                if row < end { "\r\n" } else { "" }
            );
        }
        frame.push_str("\x1b[J");
        put(&frame);
    }
}

/// The terminal's second screen without a cursor; both are given back on drop and on a panic.
struct Screen;

impl Screen {
    fn enter() -> Self {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        put("\x1b[?1049h\x1b[?25l");
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn leave() {
    put("\x1b[?25h\x1b[?1049l");
}

fn put(text: &str) {
    let mut out = io::stdout();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

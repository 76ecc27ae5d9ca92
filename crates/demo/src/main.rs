//! `make run`: Longshore on this machine, in a network namespace with a containerd or a Docker Engine of its own,
//! with a demo application and a live view. Takes down everything when it ends.
//!
//! Flow: `stack` brings up → `check` starts the application → `screen` shows node, pods and processes, by the crate
//! `node-view`.

#![allow(clippy::arithmetic_side_effects, reason = "a tool of tests, on numbers of its own")]
mod check;
mod progress;
mod screen;
mod stack;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use longshore_testkit::sweep_abandoned;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use progress::Progress;
use stack::{Interrupted, Runtime, Stack};

/// Runs a Longshore cluster of one node with a demo application, in a network namespace of its own.
#[derive(Debug, Parser)]
struct Args {
    /// Check the demo application from its start to its end, take everything down, exit 0 or 1.
    #[arg(long, conflicts_with = "sweep")]
    once: bool,
    /// What runs containers.
    #[arg(long, value_enum, default_value_t)]
    runtime: Runtime,
    /// Only remove what killed runs and tests left on this machine.
    #[arg(long)]
    sweep: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let progress = Progress::new();
    let outcome = if args.sweep { sweep(progress) } else { run(progress, args.once, args.runtime) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress.line(&format!("longshore-demo: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn sweep(progress: Progress) -> Result<()> {
    let swept = sweep_abandoned()?;
    if swept.is_empty() {
        progress.line("nothing was left on this machine");
    }
    for name in swept {
        progress.line(&format!("removed what was left of {name}"));
    }
    Ok(())
}

fn run(progress: Progress, once: bool, runtime: Runtime) -> Result<()> {
    // The demo's own flow blocks the main thread; the worker keeps spinner and client alive.
    let tokio =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    tokio.block_on(async {
        let stop = stop_on_signals()?;
        let mut stack = Stack::new(runtime);
        let outcome = demo(&mut stack, progress, &stop, once).await;
        let outcome = outcome.or_else(|e| if e.is::<Interrupted>() { Ok(()) } else { Err(e) });
        if outcome.is_err() {
            for (name, tail) in stack.log_tails(12) {
                progress.line(&format!("--- {name}, the end:\n{tail}"));
            }
        }
        // Both are reported; the first is the cause.
        match (outcome, stack.take_down(progress).await) {
            (Err(error), Err(down)) => {
                progress.line(&format!("{down:#}"));
                Err(error)
            }
            (outcome, down) => outcome.and(down),
        }
    })
}

async fn demo(
    stack: &mut Stack,
    progress: Progress,
    stop: &CancellationToken,
    once: bool,
) -> Result<()> {
    let client = stack.bring_up(progress, stop).await?;
    let started = check::start_application(progress, &client);
    stop.run_until_cancelled(started).await.ok_or(Interrupted)??;
    if once {
        let checks = async {
            check::check_logs(progress, &client).await?;
            check::check_service(progress, &client).await?;
            check::delete_application(progress, &client, stack).await
        };
        stop.run_until_cancelled(checks).await.ok_or(Interrupted)??;
        stack.daemons()?;
        return Ok(());
    }
    screen::show(stack, progress, &client, stop).await
}

fn stop_on_signals() -> Result<CancellationToken> {
    let stop = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut signals, stop) = (signal(kind)?, stop.clone());
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(stop)
}

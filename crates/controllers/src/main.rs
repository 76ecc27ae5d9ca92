//! The program `longshore-controllers`, also as `kube-controller-manager`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use longshore_base::output;
use longshore_base::{logging, memory, panics};
use longshore_controllers::{Flags, program};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The subcommand that does what the program does without one.
const SUBCOMMAND: &str = "kube-controller-manager";

fn main() -> ExitCode {
    panics::install();
    memory::configure_allocator();
    match run(Flags::parse_from(arguments(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(format_args!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}

/// The arguments without the subcommand.
fn arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = arguments.collect();
    if arguments.get(1).is_some_and(|first| first == SUBCOMMAND) {
        arguments.remove(1);
    }
    arguments
}

fn run(flags: Flags) -> anyhow::Result<()> {
    logging::start(flags.v);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(async {
            let stop = CancellationToken::new();
            let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
            let stopper = stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                stopper.cancel();
            });
            tokio::spawn(memory::trim_periodically());
            Ok(program::run(flags, stop).await?)
        })
}

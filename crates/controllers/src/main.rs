//! The program `longshore-controllers`: controllers and scheduler in one process. By the name
//! `kube-controller-manager` or `kube-scheduler`, of a link or as the first argument, it is that
//! program, with upstream's flags.

use std::ffi::OsString;
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use longshore_base::output;
use longshore_base::version::KUBERNETES_VERSION;
use longshore_base::{logging, memory, panics};
use longshore_controllers::program::{self, Role};
use longshore_controllers::{Flags, ProgramError};
use longshore_scheduler::program::{Options, Parsed};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The programs that upstream has.
const KUBE_CONTROLLER_MANAGER: &str = "kube-controller-manager";
const KUBE_SCHEDULER: &str = "kube-scheduler";
const HELP: &str = "\
The scheduler of a cluster, with the flags of upstream's kube-scheduler.

Usage: kube-scheduler [--config=FILE] [--kubeconfig=FILE] [--master=URL] [--leader-elect=BOOL]
    [--bind-address=IP] [--secure-port=PORT] [--tls-cert-file=FILE --tls-private-key-file=FILE]
    [--policy-config-file=FILE | --algorithm-provider=NAME] [-v=LEVEL]
";

fn main() -> ExitCode {
    panics::install();
    memory::configure_allocator();
    let (name, arguments) = program_of(std::env::args_os().collect());
    let done = match name {
        Some(KUBE_SCHEDULER) => kube_scheduler(&arguments),
        Some(_) => controllers(arguments, Role::Controllers),
        None => controllers(arguments, Role::ControllersAndScheduler),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(format_args!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}

/// The upstream program that a command line names, if it does, and its arguments from the program's
/// name on.
fn program_of(mut arguments: Vec<OsString>) -> (Option<&'static str>, Vec<OsString>) {
    let known = |name: Option<&str>| {
        [KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER].into_iter().find(|known| Some(*known) == name)
    };
    if let Some(name) = known(arguments.get(1).and_then(|first| first.to_str())) {
        arguments.remove(1);
        return (Some(name), arguments);
    }
    let link = arguments.first().and_then(|path| Path::new(path).file_name()?.to_str());
    (known(link), arguments)
}

fn controllers(arguments: Vec<OsString>, role: Role) -> anyhow::Result<()> {
    let flags = Flags::read(arguments);
    if role == Role::Controllers && flags.has_scheduler_config() {
        let kind = clap::error::ErrorKind::UnknownArgument;
        Flags::command().error(kind, "unknown flag: --scheduler-config").exit();
    }
    start(&flags.logging()?, |stop| program::run(flags, role, stop))
}

fn kube_scheduler(arguments: &[OsString]) -> anyhow::Result<()> {
    let arguments = arguments.iter().skip(1).map(|one| one.to_string_lossy().into_owned());
    match Options::parse(arguments)? {
        Parsed::Help => output::print(HELP)?,
        Parsed::Version => output::print(format_args!("Kubernetes {KUBERNETES_VERSION}\n"))?,
        Parsed::Run(options) => {
            return start(&options.logging()?, |stop| program::run_kube_scheduler(*options, stop));
        }
    }
    Ok(())
}

/// Runs until SIGTERM or SIGINT.
fn start<F: Future<Output = Result<(), ProgramError>>>(
    settings: &logging::Settings,
    work: impl FnOnce(CancellationToken) -> F,
) -> anyhow::Result<()> {
    logging::start(settings);
    let result = tokio::runtime::Builder::new_multi_thread()
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
            Ok(work(stop).await?)
        });
    logging::flush();
    result
}

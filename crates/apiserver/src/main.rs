//! The binary: parse, start, serve, drain.

use std::process::ExitCode;

use anyhow::Context;
use longshore_apiserver::args::{Cli, Command, KubeconfigArgs, ServeArgs};
use longshore_apiserver::pki::Pki;
use longshore_apiserver::{Server, kubeconfig, store_tools};
use longshore_base::{logging, memory, output, panics, systemd};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    panics::install();
    memory::configure_allocator();
    match run(&Cli::read()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(format_args!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Some(Command::Kubeconfig(args)) => print_kubeconfig(args),
        Some(Command::Snapshot(command)) => {
            let done = runtime()?.block_on(store_tools::snapshot(command))?;
            output::print(&done).context("cannot write to standard output")
        }
        Some(Command::Migrate(args)) => {
            let done = runtime()?.block_on(store_tools::migrate(args))?;
            output::print(&done).context("cannot write to standard output")
        }
        None => runtime()?.block_on(serve(&cli.serve)),
    }
}

/// A thin server: two threads carry it, and idle ones only cost memory.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("start the runtime")
}

async fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    logging::start(&args.logging()?);
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    longshore_apiserver::use_proxies_of_environment().map_err(anyhow::Error::msg)?;
    let server = Server::start(args.config().await?).await?;
    tracing::info!(
        address = %server.address(),
        kubeconfig = %server.admin_kubeconfig().display(),
        "serving"
    );
    systemd::notify_ready();
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
            _ = interrupt.recv() => tracing::info!("SIGINT: draining"),
        }
        stopper.cancel();
    });
    tokio::spawn(memory::trim_periodically());
    server.run(stop).await;
    tracing::info!("stopped");
    logging::flush();
    Ok(())
}

fn print_kubeconfig(args: &KubeconfigArgs) -> anyhow::Result<()> {
    let pki = Pki::open(&args.cert_dir)?;
    let kubeconfig = kubeconfig(&pki, &args.server, &args.user, args.group())?;
    match &args.output {
        Some(path) => kubeconfig.write(path)?,
        None => output::print(kubeconfig.as_str()).context("cannot write the kubeconfig")?,
    }
    Ok(())
}

//! The binary: parse, listen, answer.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use longshore_base::{logging, memory, output, panics, systemd};
use longshore_client::{ConfigSource, Limits};
use longshore_dns::args::Args;
use longshore_dns::{Config, Server};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long the apiserver may take to begin an answer.
const TIMEOUT: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    panics::install();
    memory::configure_allocator();
    let args = Args::parse();
    logging::start(&logging::Settings::of_verbosity(args.verbosity));
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(format_args!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> anyhow::Result<()> {
    let server = Server::bind(&Config::from(args))?;
    let config_source = match &args.kubeconfig {
        Some(path) => ConfigSource::Kubeconfig(path.clone()),
        None => ConfigSource::Pod,
    };
    let limits = Limits { component: "longshore-dns", qps: 0, burst: 0, timeout: TIMEOUT };
    let client =
        longshore_client::connect(&config_source.into(), limits, server.client_metrics()).await?;
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt()).context("signals")?);
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM"),
            _ = interrupt.recv() => tracing::info!("SIGINT"),
        }
        stopper.cancel();
    });
    tokio::spawn(memory::trim_periodically());
    systemd::notify_ready();
    server.run(client, stop).await;
    Ok(())
}

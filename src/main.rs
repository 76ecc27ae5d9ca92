//! Longshore, a Kubernetes node.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use longshore::{docker, node};
use longshore_base::{logging, memory, output, panics};
use longshore_config::{self as config, Command, Config, CriDockerConfig};
use longshore_cri_docker as cri_docker;
use longshore_kube_proxy as proxy;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long the node may take to stop.
const STOP: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    panics::install();
    memory::configure_allocator();
    match config::from_args(std::env::args()) {
        Ok(Command::Print(text)) => {
            report(output::print(format_args!("{text}\n")).context("cannot write"))
        }
        Ok(Command::Write { path, text }) => report(
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display())),
        ),
        Ok(Command::Kubelet(config)) => {
            let logging = config.logging.clone();
            report(run(&logging, |stop| node_with(*config, stop)))
        }
        Ok(Command::Proxy(config, task)) => {
            let logging = config.logging.clone();
            report(run(&logging, async move |stop| Ok(proxy::run(*config, task, stop).await?)))
        }
        Ok(Command::CriDocker(config)) => {
            let logging = config.logging.clone();
            report(run(&logging, async move |stop| cri_docker_with(*config, stop).await))
        }
        Ok(Command::Host(arguments)) => report(Err(become_host_program(&arguments))),
        Err(error) => report(Err(error.into())),
    }
}

/// Runs the program of the host's commands in place of this one. Returns only when that fails.
fn become_host_program(arguments: &[String]) -> anyhow::Error {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name(config::HOST_PROGRAM);
    let program = if beside.is_file() { beside } else { PathBuf::from(config::HOST_PROGRAM) };
    let error = std::process::Command::new(&program).args(arguments).exec();
    anyhow::Error::new(error).context(format!("cannot run {}", program.display()))
}

async fn node_with(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(node::run(config, stop).await?)
}

async fn cri_docker_with(config: CriDockerConfig, stop: CancellationToken) -> anyhow::Result<()> {
    let listen = cri_docker::Listen::inherited_or(config.listen.clone())?;
    Ok(cri_docker::run(docker::daemon_settings(config), listen, stop).await?)
}

fn run(
    settings: &logging::Settings,
    work: impl AsyncFnOnce(CancellationToken) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    logging::start(settings);
    // Two threads are enough for a node, and each costs memory.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        cancel_on_signal(stop.clone())?;
        tokio::spawn(memory::trim_periodically());
        tokio::select! {
            result = work(stop.clone()) => result,
            () = overdue(stop) => anyhow::bail!("the node did not stop within {STOP:?}"),
        }
    });
    // A thread that hangs in a call to a file system must not keep the process.
    runtime.shutdown_background();
    logging::flush();
    result
}

/// Ends when the node did not stop in time, for example because of a hanging call to the runtime.
async fn overdue(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP).await;
}

fn cancel_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}

fn report(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::report(format_args!("longshore: {}", error_chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The text of an error with its causes, without repetitions.
fn error_chain(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|text, cause| match text.ends_with(&cause) {
            true => text,
            false => format!("{text}: {cause}"),
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_causes_are_printed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read x: {source}")]
        struct Read {
            source: std::fmt::Error,
        }
        let cause = std::fmt::Error.to_string();
        let error = anyhow::Error::new(Read { source: std::fmt::Error });
        assert_eq!(error_chain(&error), format!("cannot read x: {cause}"));
        assert_eq!(error_chain(&error.context("start")), format!("start: cannot read x: {cause}"));
    }
}

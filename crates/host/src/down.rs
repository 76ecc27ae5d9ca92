//! `down`: stops what `up` and `join` have started. Pods go on running, as they do when a kubelet stops.

use std::time::Duration;

use longshore_base::output;

use crate::args::DownArgs;
use crate::lock::Lock;
use crate::runtime::Folders;
use crate::settings::Settings;
use crate::{Error, Paths, Result, runtime, units};

/// The label by which containers are known as a node's.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";

/// How long the programs may take to stop: those in the foreground get 25 seconds each, at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const RUNTIME: Duration = Duration::from_secs(60);

/// Stops the services of this machine. Stopping what does not run is no error.
///
/// # Errors
/// Nothing was set up here, or something does not stop.
pub async fn down(paths: &Paths, args: &DownArgs) -> Result<()> {
    let settings = Settings::load(paths)?.ok_or_else(|| {
        Error::refused(format!("{} has no cluster and no node of one", paths.root().display()))
    })?;
    let (lock, was_running) = stop(paths)?;
    let done = match args.pods {
        true => stop_pods(&settings, paths).await,
        false => Ok(0),
    };
    drop(lock);
    let stopped = done?;
    let services = if was_running { "stopped" } else { "nothing ran" };
    let pods = if args.pods { format!("; {stopped} pods stopped") } else { String::new() };
    output::print(format_args!("{services}{pods}\n"))
        .map_err(|error| Error::refused(format!("cannot write to standard output: {error}")))
}

/// Stops the services, in the foreground of another process or as units. Returns whether any ran.
pub(crate) fn stop(paths: &Paths) -> Result<(Lock, bool)> {
    let (lock, was_foreground) = Lock::take_over(paths, PATIENCE)?;
    let units = if paths.is_machine() { units::stop()? } else { Vec::new() };
    Ok((lock, was_foreground || !units.is_empty()))
}

/// Stops all pods of the runtime. Returns how many.
async fn stop_pods(settings: &Settings, paths: &Paths) -> Result<usize> {
    let failed = |error: longshore_cri::Error| runtime::failed(&settings.runtime, error);
    let folders = Folders::of(paths, Some(settings));
    let runtime = runtime::connect(&settings.runtime, &folders, RUNTIME).await?;
    let sandboxes = runtime.list_pod_sandboxes(None).await.map_err(failed)?;
    let of_node = sandboxes.iter().filter(|sandbox| sandbox.labels.contains_key(POD_UID));
    let mut count = 0_usize;
    for sandbox in of_node {
        runtime.stop_pod_sandbox(&sandbox.id).await.map_err(failed)?;
        count += 1;
    }
    Ok(count)
}

//! `longshore status` and `longshore top`: what runs on this node, whoever has set it up. Everything that can be
//! asked is: the apiserver by the credentials that are there, the container runtime, the node's health port, /proc.
//! What gives no answer is named, and the rest is shown.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use longshore_node_view::{Foot, Inspector, processes_of_node, show, text};
use tokio_util::sync::CancellationToken;

use crate::args::{Output, StatusArgs, ViewArgs};
use crate::runtime::Folders;
use crate::settings::{Machine, RUNTIMES, Settings};
use crate::{Error, Paths, Result, runtime, start};

/// How long one request to the runtime may take.
const RUNTIME: Duration = Duration::from_secs(5);
/// The use of CPU is that of this time.
const INTERVAL: Duration = Duration::from_secs(1);
const HINT: &str =
    "q: quit   ↑ ↓: select   l: log   s: shell   P M R N: order by CPU, memory, restarts, name";

/// What runs, as text or as JSON.
///
/// # Errors
/// The answer cannot be written as JSON.
pub async fn status(paths: &Paths, args: &StatusArgs) -> Result<String> {
    let mut inspector = inspector(paths, &args.view).await;
    inspector.sample(&processes_of_node()).await;
    tokio::time::sleep(INTERVAL).await;
    let snapshot = inspector.sample(&processes_of_node()).await;
    match args.output {
        Output::Table => Ok(text(snapshot)),
        Output::Json => serde_json::to_string_pretty(snapshot)
            .map(|text| format!("{text}\n"))
            .map_err(|error| Error::refused(format!("cannot write the status: {error}"))),
    }
}

/// Shows it until `stop`, or until a person leaves.
///
/// # Errors
/// There is no terminal.
pub async fn top(paths: &Paths, args: &ViewArgs, stop: &CancellationToken) -> Result<()> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(Error::refused("this is no terminal: longshore status prints the same once"));
    }
    let mut inspector = inspector(paths, args).await;
    let foot = |_: &_| Foot { commands: Vec::new(), hint: HINT.to_owned() };
    let shown =
        show::<std::io::Error>(&mut inspector, || Ok(processes_of_node()), foot, stop).await;
    shown.map_err(|error| Error::refused(format!("cannot write to the terminal: {error}")))
}

/// Asks whatever the flags name, or what is found on this machine.
async fn inspector(paths: &Paths, args: &ViewArgs) -> Inspector {
    // A file that cannot be read is no reason to show nothing.
    let settings = Settings::load(paths).ok().flatten();
    let node = match (&args.node_name, &settings) {
        (Some(name), _) => name.clone(),
        (None, Some(settings)) => settings.node_name.clone(),
        (None, None) => Machine::read().host_name.to_lowercase(),
    };
    let mut inspector = Inspector::new(&node);
    if args.healthz_port != 0 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.healthz_port));
        inspector = inspector.with_health(address);
    }
    inspector = with_cluster(inspector, paths, args).await;
    with_runtime(inspector, paths, args, settings.as_ref())
}

async fn with_cluster(inspector: Inspector, paths: &Paths, args: &ViewArgs) -> Inspector {
    let known = [paths.admin(), paths.kubelet()].into_iter().find(|path| path.exists());
    let Some(kubeconfig) = args.kubeconfig.clone().or(known) else {
        return inspector.without("the apiserver: there is no kubeconfig; --kubeconfig names one");
    };
    match start::client(&kubeconfig).await {
        Ok(client) => inspector.with_cluster(&client),
        Err(error) => inspector.without(format!("the apiserver: {error}")),
    }
}

fn with_runtime(
    inspector: Inspector,
    paths: &Paths,
    args: &ViewArgs,
    settings: Option<&Settings>,
) -> Inspector {
    let known = || {
        let known = RUNTIMES.iter().find(|socket| paths.is_machine() && Path::new(socket).exists());
        known.map(|socket| format!("unix://{socket}"))
    };
    let endpoint = args.container_runtime_endpoint.clone();
    let endpoint = endpoint.or_else(|| settings.map(|own| own.runtime.clone())).or_else(known);
    let Some(endpoint) = endpoint else {
        return inspector.without(
            "the container runtime: there is no socket; --container-runtime-endpoint names one",
        );
    };
    match runtime::reader(&endpoint, &Folders::of(paths, settings), RUNTIME) {
        Ok(client) => inspector.with_shared_runtime(client),
        Err(error) => inspector.without(error.to_string()),
    }
}

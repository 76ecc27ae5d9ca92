//! The live view on a terminal, or what changed as lines elsewhere, until the stop signal, the key that leaves, or
//! the end of a daemon.
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use kube::Client;
use longshore_node_view::{Foot, Inspector, Snapshot, changes, show as show_on_terminal};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::progress::Progress;
use crate::stack::Stack;

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
    let host = stack.host()?;
    let runtime = format!("unix://{}", host.socket().display());
    let mut inspector =
        Inspector::new(&host.name()).with_whole_cluster(client).with_runtime(&runtime);
    let kubeconfig = stack.kubeconfig()?;
    if progress.is_terminal() {
        let hint =
            "↑ ↓: select   l: log   s: shell   P M R N: order   q or Ctrl-C takes everything down";
        let foot = |snapshot: &Snapshot| Foot {
            commands: commands(snapshot, &kubeconfig),
            hint: hint.to_owned(),
        };
        return show_on_terminal(&mut inspector, || stack.daemons(), foot, stop).await;
    }
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = HashSet::new();
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let daemons = stack.daemons()?;
        let sampled = stop.run_until_cancelled(inspector.sample(&daemons)).await;
        let Some(snapshot) = sampled else { break };
        print_changes(progress, snapshot, &kubeconfig, &mut seen);
    }
    Ok(())
}

/// What was not in the last snapshot: a state that comes back is news again.
fn print_changes(
    progress: Progress,
    snapshot: &Snapshot,
    kubeconfig: &Path,
    seen: &mut HashSet<String>,
) {
    let mut now = HashSet::new();
    for line in changes(snapshot).into_iter().chain(commands(snapshot, kubeconfig)) {
        if !seen.contains(&line) && !now.contains(&line) {
            progress.line(&line);
        }
        now.insert(line);
    }
    *seen = now;
}

/// What a person can type.
fn commands(snapshot: &Snapshot, kubeconfig: &Path) -> Vec<String> {
    let kubectl = format!("kubectl --kubeconfig={} get pods -A", kubeconfig.display());
    let served = snapshot.pods.iter().find_map(|pod| Some((pod.ip.as_ref()?, pod.port?)));
    let curl = served.map(|(ip, port)| format!("curl http://{ip}:{port}/"));
    std::iter::once(kubectl).chain(curl).collect()
}

#[cfg(test)]
mod tests {
    use longshore_node_view::PodSample;

    use super::*;

    #[test]
    fn demo_says_how_to_reach_what_runs() {
        let pod =
            PodSample { ip: Some("198.19.1.2".into()), port: Some(8080), ..PodSample::default() };
        let snapshot = Snapshot { pods: vec![PodSample::default(), pod], ..Snapshot::default() };
        assert_eq!(
            commands(&snapshot, Path::new("/k")),
            ["kubectl --kubeconfig=/k get pods -A", "curl http://198.19.1.2:8080/"]
        );
    }
}

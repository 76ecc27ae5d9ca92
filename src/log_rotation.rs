//! Log rotation of running containers.

use futures::future::BoxFuture;
use longshore_cri::Runtime;
use longshore_logs::rotation;
use longshore_logs::rotation::{Containers, Policy, Subject};
use longshore_podstate::observe::Observer;

/// Rotates the logs of all containers that run, from the first complete relist on. Never ends.
pub(crate) async fn run(cri: Runtime, observer: Observer, policy: Policy) {
    let mut relisted = observer.relisted();
    if relisted.wait_for(Option::is_some).await.is_err() {
        return;
    }
    rotation::run(Observed { cri, observer }, policy).await;
}

struct Observed {
    cri: Runtime,
    observer: Observer,
}

impl Containers for Observed {
    fn running(&self) -> Vec<Subject> {
        let pods = self.observer.all();
        let containers = pods.iter().flat_map(|pod| &pod.containers);
        let running = containers.filter(|run| run.is_running() && !run.log_path.is_empty());
        running
            .map(|run| Subject { id: run.id.clone(), log: run.log_path.clone().into() })
            .collect()
    }

    fn reopen<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { self.cri.reopen_container_log(id).await.map_err(|e| e.to_string()) })
    }
}

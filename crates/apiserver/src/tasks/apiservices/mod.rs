//! APIServices: those of what this server serves itself, and the conditions of others.

mod availability;
mod local;

use tokio_util::sync::CancellationToken;

use crate::operations::Api;
use crate::status::StatusError;

/// Makes the APIServices of this server, and reads all.
pub(crate) async fn start(api: &Api) -> Result<(), StatusError> {
    local::start(api).await?;
    api.aggregator.load(&api.registry).await
}

/// Keeps them until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    let keeping = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = availability::run(api) => {}
            () = local::run(api) => {}
        }
    };
    tokio::join!(api.aggregator.run(&api.registry, &stop), keeping);
}

//! Both services at a socket.

use longshore_cri::serve;
use longshore_grpc::socket;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::{Backend, Error, Listen, Result, Settings};

/// Serves CRI at a Unix socket until `stop`. The engine need not run yet.
///
/// # Errors
/// When the endpoint of the engine is not one, and when the streaming address cannot be listened at.
pub async fn run(settings: Settings, listen: Listen, stop: CancellationToken) -> Result<()> {
    let backend = Backend::new(settings).await?;
    let (service, images) = backend.services();
    let serve = |listener| serve(listener, service.clone(), images.clone());
    match listen {
        Listen::Path(path) => tokio::select! {
            () = backend.run(stop) => {}
            () = socket::keep(path, serve) => {}
        },
        Listen::Inherited(listener) => {
            let listener = UnixListener::from_std(listener);
            let listener = listener.map_err(|error| Error::Inherited(error.to_string()))?;
            let _server = serve(listener);
            backend.run(stop).await;
        }
    }
    Ok(())
}

//! Both services and the streaming server, on their sockets.

use std::path::PathBuf;
use std::sync::Arc;

use longshore_cri::serve;
use longshore_grpc::socket;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::images::Images;
use crate::{Error, Result, Service, Settings, connect};

/// Serves CRI at a Unix socket until `stop`. The engine need not run yet.
///
/// # Errors
/// When the endpoint of the engine is not one, and when the streaming address cannot be listened at.
pub async fn run(settings: Settings, listen: PathBuf, stop: CancellationToken) -> Result<()> {
    let settings = Arc::new(settings);
    let engine = connect(&settings.docker_endpoint, settings.request_timeout)?;
    if let Err(error) = engine.negotiate().await {
        tracing::warn!("{error}; it is waited for");
    }
    let address = settings.streaming_address;
    let unavailable = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(unavailable)?;
    let address = listener.local_addr().map_err(unavailable)?;
    let service = Service::new(engine.clone(), Arc::clone(&settings));
    let (service, streaming) = service.with_streaming(address);
    let images = Images::new(engine, settings);
    let sessions = tokio::spawn(streaming.serve(listener, stop.clone()));
    tokio::select! {
        () = service.run(stop.clone()) => {}
        () = socket::keep(listen, |listener| serve(listener, service.clone(), images.clone())) => {}
    }
    let _ = sessions.await;
    Ok(())
}

//! Both services over an engine with the streaming server: what serves them, at a socket or in a node's own
//! process, keeps them going by [`Backend::run`].

use std::fmt;
use std::sync::Arc;

use longshore_cri_streaming as streaming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::images::Images;
use crate::{Error, Result, Service, Settings, connect};

/// CRI over an engine.
pub struct Backend {
    service: Service,
    images: Images,
    streaming: Arc<streaming::Server>,
    listener: TcpListener,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Backend").field(&self.service).finish()
    }
}

impl Backend {
    /// The services over an engine, which need not run yet. Its socket has to be there.
    ///
    /// # Errors
    /// When the endpoint of the engine is not one or has no socket, and when the streaming address cannot be listened at.
    pub async fn new(settings: Settings) -> Result<Self> {
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
        Ok(Self { service, images: Images::new(engine, settings), streaming, listener })
    }

    /// The runtime service and the image service.
    #[must_use]
    pub fn services(&self) -> (Service, Images) {
        (self.service.clone(), self.images.clone())
    }

    /// Follows the engine and serves exec, attach and port-forward, until `stop`. Containers go on running.
    pub async fn run(self, stop: CancellationToken) {
        let sessions = self.streaming.serve(self.listener, stop.clone());
        tokio::join!(self.service.run(stop), sessions);
    }
}

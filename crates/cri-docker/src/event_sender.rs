//! Events of containers for any number of callers.

use futures::{Stream, StreamExt};
use longshore_cri::v1::ContainerEventResponse;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

/// Events that wait for a slow caller. One that misses some sees the rest at its next relist.
const WAITING: usize = 1024;

/// What callers receive.
#[derive(Debug)]
pub(crate) struct EventSender(broadcast::Sender<ContainerEventResponse>);

impl Default for EventSender {
    fn default() -> Self {
        Self(broadcast::Sender::new(WAITING))
    }
}

impl EventSender {
    /// The events from now on.
    pub(crate) fn subscribe(&self) -> impl Stream<Item = ContainerEventResponse> + Send + use<> {
        BroadcastStream::new(self.0.subscribe()).filter_map(|event| async { event.ok() })
    }

    pub(crate) fn has_receivers(&self) -> bool {
        self.0.receiver_count() > 0
    }

    pub(crate) fn send(&self, event: ContainerEventResponse) {
        // Nobody may be left to receive it.
        let _ = self.0.send(event);
    }
}

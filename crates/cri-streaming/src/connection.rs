//! What connections of both protocols have in common: frames that wait to be sent, and the end.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use longshore_streams::Activity;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Frames that wait to be sent.
const QUEUED: usize = 4;

/// What is sent to a client.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// Data of a stream, or a channel.
    Data {
        stream: u32,
        bytes: Bytes,
        /// Whether it is the stream's last.
        last: bool,
    },
    /// A control frame of SPDY.
    Frame(Bytes),
    /// There is no more.
    End,
}

/// Frames for a client; it is bounded.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::Sender<Outgoing>);

impl Queue {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Outgoing>) {
        let (sender, receiver) = mpsc::channel(QUEUED);
        (Self(sender), receiver)
    }

    pub(crate) fn sender(&self) -> mpsc::Sender<Outgoing> {
        self.0.clone()
    }

    /// Waits until there is space. A client that is gone is noticed by the reader.
    pub(crate) async fn send(&self, frame: Outgoing) {
        let _ = self.0.send(frame).await;
    }

    /// Sends the last data of a stream, unless it is closed already.
    pub(crate) async fn finish(&self, stream: u32, bytes: Bytes, closed: &CancellationToken) {
        if !closed.is_cancelled() {
            closed.cancel();
            self.send(Outgoing::Data { stream, bytes, last: true }).await;
        }
    }

    /// Sends a control frame, or drops it if there is no space.
    pub(crate) fn try_send(&self, frame: Bytes) {
        let _ = self.0.try_send(Outgoing::Frame(frame));
    }
}

/// When a connection ends that neither the client nor the session has ended.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    /// How long it may be idle.
    pub(crate) idle: Duration,
    /// The server stops.
    pub(crate) stop: CancellationToken,
}

impl Conditions {
    /// Runs the parts of a connection until the first ends; `true` when that is the session, after
    /// whose end there is more to write.
    pub(crate) async fn hold(
        &self,
        activity: &Activity,
        read: impl Future<Output = ()>,
        write: impl Future<Output = ()>,
        session: impl Future<Output = ()>,
    ) -> bool {
        let (read, write, session) = (pin!(read), pin!(write), pin!(session));
        tokio::select! {
            biased;
            () = session => return true,
            () = read => debug!("the client has closed the session"),
            () = write => debug!("the client has gone"),
            () = activity.idle_for(self.idle) => debug!("session was idle for {:?}", self.idle),
            () = self.stop.cancelled() => debug!("session ends with the server"),
        }
        false
    }
}

//! A watch: one gRPC stream per watch, driven by its consumer. HTTP/2 flow control holds a server
//! back that is faster than the consumer.

use std::collections::VecDeque;

use etcd_client::{EventType, WatchClient, WatchOptions, WatchResponse, WatchStream};
use futures::stream::BoxStream;

use super::call::{Failure, call, method};
use super::{key_value, prefix_range, revision_of};
use crate::pull::Pull;
use crate::{Error, Event, Result, Revision, WatchItem};

/// Begins a watch of keys with `prefix`, after a revision (0: from now on), and awaits etcd's
/// consent. Yields the stream and the newest revision when it began. That the start is compacted
/// is only found out by reading on.
pub(super) async fn begin(
    mut client: WatchClient,
    prefix: &str,
    after: Revision,
) -> Result<(WatchStream, Revision), Failure> {
    let (first, end) = prefix_range(prefix);
    let mut options = WatchOptions::new().with_range(end).with_prev_key().with_progress_notify();
    if after != 0 {
        options = options.with_start_revision(after.saturating_add(1));
    }
    let opening = async {
        let mut stream = client.watch(first, Some(options)).await?;
        let consent = stream.message().await?;
        Ok((stream, consent))
    };
    let (stream, consent) = call(method::WATCH, opening).await?;
    let consent = consent.ok_or_else(ended)?;
    refused(&consent, after)?;
    Ok((stream, revision_of(consent.header())))
}

/// The oldest revision that can be read after a compaction: etcd returns it to watches from before.
pub(super) async fn oldest(client: WatchClient) -> Result<Revision, Failure> {
    let (mut stream, _) = begin(client, "", 1).await?;
    let refusal = call(method::WATCH, stream.message()).await?;
    Ok(refusal.map_or(0, |refusal| refusal.compact_revision()))
}

struct Watch {
    stream: WatchStream,
    after: Revision,
    ready: VecDeque<Result<WatchItem>>,
}

/// The items of a watch. One that starts "now" first yields the current revision.
pub(super) fn items(
    stream: WatchStream,
    after: Revision,
    newest: Revision,
) -> BoxStream<'static, Result<WatchItem>> {
    let mut ready = VecDeque::new();
    if after == 0 {
        ready.push_back(Ok(WatchItem::Progress(newest)));
    }
    let watch = Watch { stream, after: if after == 0 { newest } else { after }, ready };
    watch.into_stream()
}

impl Pull for Watch {
    async fn pull(&mut self) -> Result<WatchItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return item;
            }
            let response = self.stream.message().await;
            let response =
                response.map_err(|error| Error::Backend(format!("etcd watch: {error}")))?;
            self.take(&response.ok_or_else(ended)?)?;
        }
    }
}

impl Watch {
    fn take(&mut self, response: &WatchResponse) -> Result<()> {
        refused(response, self.after)?;
        let revision = revision_of(response.header());
        if response.events().is_empty() && !response.created() {
            self.after = self.after.max(revision);
            self.ready.push_back(Ok(WatchItem::Progress(revision)));
        }
        for event in response.events() {
            let event = self.event(event, revision);
            if let Ok(event) = &event {
                self.after = event.revision();
            }
            self.ready.push_back(event.map(WatchItem::Event));
        }
        Ok(())
    }

    fn event(&self, event: &etcd_client::Event, newest: Revision) -> Result<Event> {
        let current = event
            .kv()
            .ok_or_else(|| Error::Backend("etcd watch: an event without a key".to_owned()))?;
        let revision = current.mod_revision();
        let previous = event.prev_kv().cloned().map(key_value).transpose()?;
        // the version before has been compacted away under the watch: a half event would mislead
        let gone = || Error::Compacted { requested: self.after, oldest: newest };
        match event.event_type() {
            EventType::Delete => {
                Ok(Event::Delete { previous: previous.ok_or_else(gone)?, revision })
            }
            EventType::Put if previous.is_none() && current.create_revision() != revision => {
                Err(gone())
            }
            EventType::Put => Ok(Event::Put { current: key_value(current.clone())?, previous }),
        }
    }
}

/// The error of a response that ends the watch.
fn refused(response: &WatchResponse, after: Revision) -> Result<()> {
    match (response.canceled(), response.compact_revision()) {
        (false, _) => Ok(()),
        (true, 0) => Err(Error::Backend(format!(
            "etcd watch: ended by the server: {}",
            response.cancel_reason()
        ))),
        (true, oldest) => Err(Error::Compacted { requested: after, oldest }),
    }
}

fn ended() -> Error {
    Error::Backend("etcd watch: the stream has ended".to_owned())
}

//! Reading the body of a request: with limits of size, rate and the sender's memory.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::HeaderMap;
use hyper::body::Body;
use hyper::header::CONTENT_TYPE;
use longshore_base::budget::{Holder, MinRate, Share};
use longshore_base::fair_queue::Permit;
use longshore_serving::BoxError;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::limits::{Limits, too_many};
use super::respond::Result;
use crate::api_types::{Gvk, Resource};
use crate::kinds;
use crate::offload::{self, LARGE};
use crate::schema::{self, FieldValidation};
use crate::status::StatusError;

const MAX_BODY: usize = 3 << 20;
/// How much of a body that is too large is read and discarded, so that its sender reads the response.
const MAX_DISCARDED: usize = 4 * MAX_BODY;
/// The memory of a body before any of it is received.
const WAITING: u64 = 1 << 10;
/// How much of the body of a rejected request is read, in bytes and time.
const MAX_DRAINED: usize = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_millis(500);
/// The minimum rate of a body: that of the slowest lines, 32 kbit/s.
const RATE: MinRate = MinRate {
    grace: Duration::from_secs(10),
    bytes_per_second: 4 << 10,
    longest: Duration::from_secs(55),
};

/// A body, and its share of the memory for bodies, until it is dropped.
pub(super) struct BodyText {
    pub(super) bytes: Bytes,
    pub(super) content_type: Option<String>,
    _share: Share,
    /// The slot of a large body.
    _permit: Option<Permit>,
}

impl BodyText {
    /// Waits for a slot if the body is large.
    pub(super) async fn with_permit(self, limits: &Limits, holder: &Holder) -> BodyText {
        if self.bytes.len() < LARGE {
            return self;
        }
        BodyText { _permit: Some(limits.large_work_permit(holder).await), ..self }
    }

    /// Decodes an object of a resource or of one of its subresources, with warnings for the client.
    pub(super) fn read_of(
        &self,
        resource: &Resource,
        gvk: Gvk,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>)> {
        offload::run(self.bytes.len(), || {
            kinds::read_body(resource, gvk, &self.bytes, self.content_type.as_deref(), validation)
        })
    }

    /// Decodes an object of this kind, with warnings for the client.
    pub(super) fn read(
        &self,
        gvk: Gvk,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>)> {
        offload::run(self.bytes.len(), || {
            schema::read(gvk, &self.bytes, self.content_type.as_deref(), validation)
        })
    }
}

impl Limits {
    /// Reads a body. 408 when it comes too slowly, 413 when it is too large, 429 when its sender has
    /// too many bytes in flight.
    pub(super) async fn read<B>(
        &self,
        holder: &Holder,
        headers: &HeaderMap,
        mut body: B,
    ) -> Result<BodyText>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError> + std::fmt::Display,
    {
        let started = Instant::now();
        let Some(mut share) = self.bodies.take(holder, WAITING) else {
            drain(body).await;
            return Err(too_many());
        };
        let mut text = BytesMut::new();
        let mut received = 0;
        let mut refusal =
            (body.size_hint().lower() > MAX_BODY as u64).then(|| too_large_body(MAX_BODY));
        loop {
            let frame =
                match timeout_at(RATE.deadline(started, received as u64), body.frame()).await {
                    Err(_) => return Err(refusal.unwrap_or_else(too_slow)),
                    Ok(None) => break,
                    Ok(Some(frame)) => frame.map_err(|error| {
                        StatusError::bad_request(format!("the body could not be read: {error}"))
                    })?,
                };
            let data = frame.into_data().unwrap_or_default();
            received += data.len();
            if refusal.is_none() && received > MAX_BODY {
                refusal = Some(too_large_body(MAX_BODY));
            } else if refusal.is_none() && !share.grow(data.len() as u64) {
                refusal = Some(too_many());
            }
            match refusal {
                None => text.extend_from_slice(&data),
                Some(_) if received > MAX_DISCARDED => break,
                Some(_) => {
                    text = BytesMut::new();
                    share.shrink(share.amount().saturating_sub(WAITING));
                }
            }
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.map(str::to_owned);
        Ok(BodyText { bytes: text.freeze(), content_type, _share: share, _permit: None })
    }
}

fn too_large_body(limit: usize) -> StatusError {
    StatusError::too_large(format!("limit is {limit}"))
}

/// 408. A client may try again, with a faster line.
fn too_slow() -> StatusError {
    StatusError {
        code: 408,
        reason: "Timeout",
        message: "the body of the request came too slowly".to_owned(),
        details: None,
        continue_token: Box::default(),
    }
}

/// Reads the rest of a rejected body, if it is small and comes soon: an HTTP/2 stream with a response
/// before its end is reset, and some clients lose the response then.
pub(super) async fn drain<B>(body: B)
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let _ = timeout(DRAIN_TIME, std::pin::pin!(Limited::new(body, MAX_DRAINED)).collect()).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use longshore_base::budget::Priority;
    use tokio::time::sleep;

    use super::*;
    use crate::RequestLimits;

    type Part = (u64, usize);

    /// A body whose parts come so many milliseconds after each other, and are so many bytes long.
    fn body(parts: Vec<Part>) -> impl Body<Data = Bytes, Error = std::io::Error> + Unpin {
        let frames = stream::iter(parts).then(|(after, length)| async move {
            sleep(Duration::from_millis(after)).await;
            Ok(Frame::data(Bytes::from(vec![b' '; length])))
        });
        StreamBody::new(Box::pin(frames))
    }

    fn user(name: &str) -> Holder {
        Holder::new(name, Priority::Ordinary)
    }

    async fn read(limits: &Limits, user: &Holder, parts: Vec<Part>) -> Result<BodyText> {
        limits.read(user, &HeaderMap::new(), body(parts)).await
    }

    // Finding 3
    #[tokio::test(start_paused = true)]
    async fn request_body_minimum_rate() {
        let limits = Limits::new(RequestLimits::default());
        for (parts, code, seconds) in [
            (vec![(0, 100)], 200, 0),
            (vec![(9_000, 100)], 200, 9),
            (vec![(60_000, 1)], 408, 10),
            (vec![(1_000, 1); 3600], 408, 10),
            (vec![(1_000, 5 << 10); 40], 200, 40),
            (vec![(1_000, 5 << 10); 3600], 408, 55),
            (vec![(10, 1 << 20); 4], 413, 0),
            (vec![(10, 1 << 20); 4000], 413, 0),
            // what is too large still has to come at the rate
            (vec![(0, 4 << 20), (3_600_000, 1)], 413, 55),
        ] {
            let started = Instant::now();
            let code_found = match read(&limits, &user("a"), parts.clone()).await {
                Ok(text) => {
                    assert_eq!(text.bytes.len(), parts.iter().map(|part| part.1).sum::<usize>());
                    200
                }
                Err(error) => error.code,
            };
            let took = started.elapsed().as_secs();
            assert_eq!((code_found, took), (code, seconds), "{:?} {}", parts[0], parts.len());
        }
        assert!(limits.bodies.take(&user("a"), 6 << 20).is_some(), "all of it was given back");
    }

    // Finding 3
    #[tokio::test(start_paused = true)]
    async fn request_body_memory_is_counted_as_received() {
        let limits = Limits::new(RequestLimits::default());
        let slow = user("slow");
        let waiting = (0..100).map(|_| read(&limits, &slow, vec![(8_000, 1)]));
        let waiting = futures::future::join_all(waiting);
        let large = async {
            sleep(Duration::from_secs(1)).await;
            read(&limits, &user("quick"), vec![(0, 3 << 20)]).await.map(|text| text.bytes.len())
        };
        let (waiting, large) = tokio::join!(waiting, large);
        assert!(waiting.iter().all(Result::is_ok));
        assert_eq!(large.unwrap(), 3 << 20);
    }

    // Finding 3
    #[tokio::test(start_paused = true)]
    async fn request_body_limit_is_per_user() {
        let limits = Limits::new(RequestLimits::default());
        let mut held = Vec::new();
        let refused = loop {
            match read(&limits, &user("greedy"), vec![(0, 1 << 20)]).await {
                Ok(text) => held.push(text),
                Err(error) => break error,
            }
        };
        assert_eq!((refused.code, held.len()), (429, 6), "half of 12 MiB");
        assert!(refused.details.is_some_and(|details| details.retry_after_seconds > 0));
        held.push(read(&limits, &user("other"), vec![(0, 1 << 20)]).await.unwrap());
        let crowd = (0..100).map(|i| user(&format!("u{i}")));
        for user in crowd {
            held.extend(read(&limits, &user, vec![(0, 1 << 20)]).await.ok());
        }
        let node = Holder::new("system:node:n1", Priority::System);
        assert!(read(&limits, &node, vec![(0, 1 << 20)]).await.is_ok());
    }
}

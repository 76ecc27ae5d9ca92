//! Reading the body of a request: within a size, at a least rate, and within what its sender may
//! hold.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use hyper::header::CONTENT_TYPE;
use hyper::HeaderMap;
use longshore_base::budget::{Holder, LeastRate, Share};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::limits::{Limits, too_many};
use super::respond::Result;
use crate::facts::Gvk;
use crate::schema::{self, FieldValidation};
use crate::status::StatusError;
use crate::work;

const MAX_BODY: usize = 3 << 20;
/// How much of a body that is too large is read, and forgotten, so that its sender gets to read the answer.
const MAX_DISCARDED: usize = 4 * MAX_BODY;
/// What a body counts for before any of it is there: what it takes to wait for it.
const WAITING: u64 = 1 << 10;
/// What is read of the body of a request that is refused, in bytes and time.
const MOST_DRAINED: usize = 64 << 10;
const DRAIN_TIME: Duration = Duration::from_millis(500);
/// A body comes at once but for the slowest of lines, which still have 32 kbit/s.
const RATE: LeastRate = LeastRate {
    grace: Duration::from_secs(10),
    bytes_per_second: 4 << 10,
    longest: Duration::from_secs(55),
};

/// A body, and its share of what all bodies may hold, until it is dropped.
pub(super) struct BodyText {
    pub(super) bytes: Bytes,
    pub(super) content_type: Option<String>,
    _share: Share,
    /// A large body has its turn at being worked on.
    _turn: Option<OwnedSemaphorePermit>,
}

impl BodyText {
    /// The object of this kind that the body is, and warnings for the client.
    pub(super) fn read(
        &self,
        gvk: Gvk,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>)> {
        work::run(self.bytes.len(), || {
            schema::read(gvk, &self.bytes, self.content_type.as_deref(), validation)
        })
    }
}

impl Limits {
    /// Reads a body. 408 when it comes too slowly, 413 when it is too large, 429 when its sender has
    /// too much under way.
    pub(super) async fn read<B>(
        &self,
        holder: &Holder,
        headers: &HeaderMap,
        mut body: B,
    ) -> Result<BodyText>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let mut share = self.bodies.take(holder, WAITING).ok_or_else(too_many)?;
        let mut text = BytesMut::new();
        let mut received = 0;
        let mut refusal =
            (body.size_hint().lower() > MAX_BODY as u64).then(|| too_large_body(MAX_BODY));
        loop {
            let frame = match timeout_at(RATE.deadline(started, received as u64), body.frame()).await
            {
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
        let turn = self.turn(holder, text.len()).await;
        Ok(BodyText {
            bytes: text.freeze(),
            content_type: content_type.map(str::to_owned),
            _share: share,
            _turn: turn,
        })
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
    }
}

/// Reads what somebody who is refused still sends, if it is little and comes soon: a stream that is
/// answered before it has ended is reset, and there are clients that lose the answer then.
pub(super) async fn drain<B>(body: B)
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let _ = timeout(DRAIN_TIME, std::pin::pin!(Limited::new(body, MOST_DRAINED)).collect()).await;
}

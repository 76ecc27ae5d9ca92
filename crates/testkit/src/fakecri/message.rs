//! gRPC message framing: a flag and the length precede each message. No compression.
use std::future::ready;

use http_body_util::{BodyExt, Either, Full};
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use prost::Message;

use super::Answer;

/// Length of the frame header.
const HEAD: usize = 5;

/// The message of a body.
pub(super) fn decode<M: Message + Default>(body: &[u8]) -> Option<M> {
    M::decode(body.get(HEAD..)?).ok()
}

/// A body with one message.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    // Lengths that do not fit do not occur in CRI.
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], &message].concat().into()
}

/// A complete response.
pub(super) fn whole(message: Bytes) -> Answer {
    let trailers = HeaderMap::from_iter([(
        HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let body = Full::new(message).with_trailers(ready(Some(Ok(trailers))));
    let mut answer = Response::new(Either::Right(body.boxed_unsync()));
    let kind = HeaderValue::from_static("application/grpc");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

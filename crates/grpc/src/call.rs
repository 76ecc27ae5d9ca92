//! Deadlines of calls, applied on both sides.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::Failure;
use crate::failure::DEADLINE_MESSAGE;

/// A deadline that is long enough, and that both gRPC and tokio can represent.
const MAX_DEADLINE: Duration = Duration::from_secs(366 * 24 * 3600);

/// Creates a request. The deadline is sent along, so that the peer can cancel the work.
pub fn request<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.min(MAX_DEADLINE));
    }
    request
}

/// Waits for the response to a call, for that long at most; `None`: without a timeout.
///
/// # Errors
/// When the call fails.
pub fn await_response<T>(
    deadline: Option<Duration>,
    sent: impl Future<Output = Result<Response<T>, Status>>,
) -> impl Future<Output = Result<T, Failure>> {
    // The future of a call in tonic is large, and would be part of every future that makes a call.
    let sent = Box::pin(sent);
    async move {
        let response = match deadline {
            None => sent.await,
            // The peer may hang without accepting a connection.
            Some(deadline) => match timeout(deadline.min(MAX_DEADLINE), sent).await {
                Ok(response) => response,
                Err(_) => return Err(Failure::Deadline(DEADLINE_MESSAGE.to_owned())),
            },
        };
        response.map(Response::into_inner).map_err(|status| Failure::of(&status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_future_is_small() {
        let large = async {
            let message = [1u8; 64 << 10];
            std::future::ready(()).await;
            Ok::<_, Status>(Response::new(message[0]))
        };
        assert!(size_of_val(&large) >= 64 << 10);
        let response = await_response(Some(Duration::from_secs(1)), large);
        assert!(size_of_val(&response) < 1024, "{} bytes", size_of_val(&response));
    }
}

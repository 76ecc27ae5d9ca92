//! What all calls have in common: the deadline, kept on both sides.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::Failure;
use crate::failure::NO_ANSWER;

/// A deadline beyond any use, yet one that both gRPC and tokio can count.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Puts a message in its envelope. The deadline goes along, so that the peer stops working on what
/// nobody waits for.
pub fn request<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.min(LONGEST));
    }
    request
}

/// Waits for the answer to a call, for that long at most; `None`: as long as it takes.
///
/// # Errors
/// Why there is none.
pub fn answer<T>(
    deadline: Option<Duration>,
    sent: impl Future<Output = Result<Response<T>, Status>>,
) -> impl Future<Output = Result<T, Failure>> {
    // What tonic keeps of a call is large, and would be a part of every future that makes one.
    let sent = Box::pin(sent);
    async move {
        let answer = match deadline {
            None => sent.await,
            // The peer may be too stuck even to accept a connection.
            Some(deadline) => match timeout(deadline.min(LONGEST), sent).await {
                Ok(answer) => answer,
                Err(_) => return Err(Failure::Deadline(NO_ANSWER.to_owned())),
            },
        };
        answer.map(Response::into_inner).map_err(|status| Failure::of(&status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_makes_futures_around_it_no_larger() {
        let large = async {
            let message = [1u8; 64 << 10];
            std::future::ready(()).await;
            Ok::<_, Status>(Response::new(message[0]))
        };
        assert!(size_of_val(&large) >= 64 << 10);
        let answer = answer(Some(Duration::from_secs(1)), large);
        assert!(size_of_val(&answer) < 1024, "{} bytes", size_of_val(&answer));
    }
}

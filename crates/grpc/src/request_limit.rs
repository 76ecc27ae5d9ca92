//! How many requests a local API of the node answers.

use longshore_base::rate::TokenBucket;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

/// Requests a second, and at once, as upstream.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;

/// A limit of 100 requests a second, 10 of them at once, for all clients together.
#[derive(Debug)]
pub struct RequestLimit(Mutex<TokenBucket>);

impl Default for RequestLimit {
    fn default() -> Self {
        Self(Mutex::new(TokenBucket::new(RATE, BURST, Instant::now().into_std())))
    }
}

impl RequestLimit {
    /// Counts a request.
    ///
    /// # Errors
    /// `ResourceExhausted`, in upstream's words, if it is one too many.
    pub fn admit(&self) -> Result<(), Status> {
        match self.0.lock().try_take(Instant::now().into_std()) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }
}

//! A stream of watch items from something that is polled for one item after the other.

use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::{Result, WatchItem};

/// The inside of a watch: it works only while its consumer waits.
pub(crate) trait Pull: Sized + Send + 'static {
    /// The next item. Not called again after an error.
    fn pull(&mut self) -> impl Future<Output = Result<WatchItem>> + Send;

    /// The watch as its consumer sees it.
    fn into_stream(self) -> BoxStream<'static, Result<WatchItem>> {
        stream::unfold(Some(self), |source| async {
            let mut source = source?;
            match source.pull().await {
                Ok(item) => Some((Ok(item), Some(source))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }
}

//! A connection that is part of a request whose answer has switched to it: the request ends with it.

use tokio::io::AsyncRead;
use tokio_util::io::InspectReader;

use super::record::current;

/// The connection, with the record of the request that is being worked on.
pub(crate) fn held<S: AsyncRead>(stream: S) -> InspectReader<S, impl FnMut(&[u8])> {
    let record = current();
    // what is read is of no interest: the closure holds the record
    InspectReader::new(stream, move |_| {
        let _held = &record;
    })
}

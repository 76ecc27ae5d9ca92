//! Passes the SPDY frames of a client to a streaming server.
//!
//! Servers allocate by the counts and lengths in a frame before they have read it, and some read a
//! number of bytes that depends on the kind of the frame, not on its length. Container runtimes
//! with spdystream before 0.5.1 end when a client counts 2^32 settings (CVE-2026-35469). So a
//! control frame is passed on once all of it was received and found consistent, and data in parts.

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use crate::Error;
use crate::spdy::{self, HeaderBlocks, Part, Reader};

/// Copies frames until the client closes.
///
/// # Errors
/// At the first invalid frame, of which nothing is passed on; and when either side fails.
pub(crate) async fn relay<C, S>(client: C, mut server: S) -> Result<(), Error>
where
    C: AsyncRead + Unpin,
    S: AsyncWrite + Unpin,
{
    let mut client = Reader::new(BufReader::new(client));
    let mut headers = HeaderBlocks::default();
    while let Some(part) = client.part().await? {
        match part {
            Part::Data(data) => {
                let head = spdy::data(data.stream, data.bytes.len(), data.last);
                server.write_all_buf(&mut head.as_slice().chain(data.bytes)).await?;
            }
            Part::Control(frame) => {
                spdy::check(&frame, &mut headers)?;
                server.write_all_buf(&mut frame.encoded()).await?;
            }
        }
        server.flush().await?;
    }
    Ok(())
}

//! Passes the SPDY frames of a client to a streaming server.
//!
//! Servers allocate by the counts and lengths in a frame before they have read it, and some read a
//! number of bytes that depends on the kind of the frame, not on its length. Container runtimes
//! with spdystream before 0.5.1 end when a client counts 2^32 settings (CVE-2026-35469). So a
//! control frame is passed on once all of it was received and found consistent, and data in parts.

use std::collections::BTreeSet;
use std::io;

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

use crate::Error;
use crate::spdy::{self, Control, HeaderBlocks, Part, RST_STREAM, Reader, SYN_STREAM};

/// How many streams of a client are known; a session has five.
const MOST_OPEN: usize = 64;
/// The flag of the last frame of a stream.
const FIN: u32 = 1;

/// The streams that a client has opened and not ended.
#[derive(Debug, Default)]
pub(crate) struct OpenStreams(BTreeSet<u32>);

impl OpenStreams {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn note(&mut self, frame: &Control) {
        let Ok(stream) = (&frame.body[..]).try_get_u32() else { return };
        match frame.kind {
            SYN_STREAM if frame.flags & FIN == 0 && self.0.len() < MOST_OPEN => {
                self.0.insert(stream);
            }
            RST_STREAM => {
                self.0.remove(&stream);
            }
            _ => {}
        }
    }

    /// Ends them in the place of a client that is gone: a command that reads its input comes to the end of it.
    ///
    /// # Errors
    /// When the server is gone too.
    pub(crate) async fn end<S: AsyncWrite + Unpin>(self, mut server: S) -> io::Result<()> {
        for stream in self.0 {
            server.write_all(&spdy::data(stream, 0, true)).await?;
        }
        server.flush().await
    }
}

/// Copies frames until the client closes. Notes which of its streams are open.
///
/// # Errors
/// At the first invalid frame, of which nothing is passed on; and when either side fails.
pub(crate) async fn relay<C, S>(
    client: C,
    mut server: S,
    open: &mut OpenStreams,
) -> Result<(), Error>
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
                if data.last {
                    open.0.remove(&data.stream);
                }
            }
            Part::Control(frame) => {
                spdy::check(&frame, &mut headers)?;
                open.note(&frame);
                server.write_all_buf(&mut frame.encoded()).await?;
            }
        }
        server.flush().await?;
    }
    Ok(())
}

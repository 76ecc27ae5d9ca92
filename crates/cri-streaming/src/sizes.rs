//! Sizes of a terminal, which a client sends as JSON objects, one after the other.

use bytes::{Buf, BytesMut};
use serde::Deserialize;
use serde_json::Deserializer;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;

use crate::Input;

/// The most bytes of one size.
const MAX_SIZE: usize = 1 << 10;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TerminalSize {
    /// Its columns.
    #[serde(rename = "Width", alias = "width")]
    pub width: u16,
    /// Its rows.
    #[serde(rename = "Height", alias = "height")]
    pub height: u16,
}

/// The sizes that a client's terminal takes. A size that was not read in time is replaced by the next.
#[derive(Debug)]
pub struct Sizes(watch::Receiver<Option<TerminalSize>>);

impl Sizes {
    /// The sizes, and where they come from.
    pub(crate) fn new() -> (watch::Sender<Option<TerminalSize>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The next size; `None` when there are no more. Cancellation safe.
    pub async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            self.0.changed().await.ok()?;
            if let Some(size) = *self.0.borrow_and_update() {
                return Some(size);
            }
        }
    }
}

/// Reads sizes until the client sends no more, or what is none.
pub(crate) async fn read(mut input: Input, sizes: watch::Sender<Option<TerminalSize>>) {
    let mut buffer = BytesMut::new();
    while buffer.len() < MAX_SIZE && matches!(input.read_buf(&mut buffer).await, Ok(1..)) {
        let mut values = Deserializer::from_slice(&buffer).into_iter::<TerminalSize>();
        let mut last = None;
        let is_valid = loop {
            match values.next() {
                Some(Ok(size)) => last = Some(size),
                Some(Err(error)) => break error.is_eof(),
                None => break true,
            }
        };
        let read = values.byte_offset();
        if last.is_some() {
            sizes.send_replace(last);
        }
        if !is_valid {
            return;
        }
        buffer.advance(read.min(buffer.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipes::input;

    #[tokio::test]
    async fn sizes_are_read_from_parts() {
        let (feed, input) = input();
        let (sender, mut sizes) = Sizes::new();
        tokio::spawn(read(input, sender));
        let size = |width, height| Some(TerminalSize { width, height });
        for (text, expected) in [
            (r#"{"Width":80,"Height":24}"#, size(80, 24)),
            (r#"{"Width":1,"Height":2}{"width":3,"height":4}{"Wid"#, size(3, 4)),
            (r#"th":5,"Height":65535}"#, size(5, 65535)),
            ("\n{}", size(0, 0)),
            (r#"{"Width":65536,"Height":1}"#, None),
        ] {
            feed.send(text.into()).await.unwrap();
            assert_eq!(sizes.next().await, expected, "{text}");
        }
    }

    #[tokio::test]
    async fn what_is_no_size_is_bounded() {
        let (feed, input) = input();
        let (sender, mut sizes) = Sizes::new();
        tokio::spawn(read(input, sender));
        feed.send(r#"{"Width":""#.into()).await.unwrap();
        while feed.send(vec![b'1'; 100].into()).await.is_ok() {}
        assert_eq!(sizes.next().await, None);
        let (feed, input) = crate::pipes::input();
        let (sender, mut sizes) = Sizes::new();
        feed.send(r#"{"Width":"#.into()).await.unwrap();
        drop(feed);
        read(input, sender).await;
        assert_eq!(sizes.next().await, None);
    }
}

//! Logs as files in a directory of the test's, written, rotated and packed as in a node.

mod following;
mod format;
mod reading;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::mpsc;

use super::{Log, Options};

/// A line of CRI's format, written in that second of a certain minute.
pub(super) fn line(second: u64, stream: &str, tag: &str, text: &str) -> String {
    format!("2024-01-01T00:00:{second:02}.5Z {stream} {tag} {text}\n")
}

/// A whole line on standard output.
pub(super) fn plain(text: &str) -> String {
    line(1, "stdout", "F", text)
}

/// Writes what rotation would have put away with that stamp.
pub(super) fn write_rotated(log: &Path, stamp: &str, packed: bool, content: &str) -> PathBuf {
    let end = if packed { ".gz" } else { "" };
    let path = PathBuf::from(format!("{}.{stamp}{end}", log.display()));
    let mut bytes = content.as_bytes().to_vec();
    if packed {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&bytes).unwrap();
        bytes = packer.finish().unwrap();
    }
    fs::write(&path, bytes).unwrap();
    path
}

/// All that comes, to its end.
pub(super) async fn collect(mut pieces: mpsc::Receiver<std::io::Result<Bytes>>) -> String {
    let mut text = Vec::new();
    while let Some(piece) = pieces.recv().await {
        text.extend(piece.unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// What is sent of the log of a container that runs.
pub(super) async fn read(log: &Path, options: &Options) -> String {
    let (output, input) = mpsc::channel(4);
    let log = Log::open(log, options).await.unwrap();
    let sending = tokio::spawn(log.send(std::future::pending(), output));
    let text = collect(input).await;
    sending.await.unwrap();
    text
}

//! Connections that the engine gives up to a process: its streams, raw with a terminal, in frames without.
//! Bollard's own decoder takes bytes 0 to 2 at the beginning of a terminal's output for a frame's head.

use std::io;

use serde_json::Value;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::{Engine, Error, Result};

/// No head of an answer is longer.
const MAX_HEAD: u64 = 64 << 10;
/// Bytes of output that are read at once.
const BUFFER: usize = 16 << 10;
/// The stream of a frame.
const STDERR: u8 = 2;

/// A process's input and output.
#[derive(Debug)]
pub(crate) struct Hijacked {
    pub(crate) output: BufReader<OwnedReadHalf>,
    /// Shut down, it ends the process's input.
    pub(crate) input: OwnedWriteHalf,
}

impl Engine {
    /// Makes a call (`/exec/ID/start`) whose connection is the process's afterwards.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn hijack(&self, call: &str, body: Option<&Value>) -> Result<Hijacked> {
        let failed = |source| Error::Unreachable { socket: self.socket().to_owned(), source };
        let hello = tokio::time::timeout(self.timeout(), self.exchange(call, body)).await;
        let (status, hijacked) = match hello {
            Ok(answer) => answer.map_err(failed)?,
            Err(_) => {
                let action = format!("POST {call}");
                return Err(Error::Deadline { action, seconds: self.timeout().as_secs() });
            }
        };
        match status {
            101 | 200 => Ok(hijacked),
            status_code => {
                let mut text = Vec::new();
                hijacked.output.take(MAX_HEAD).read_to_end(&mut text).await.map_err(failed)?;
                let message = message(&text);
                let source =
                    bollard::errors::Error::DockerResponseServerError { status_code, message };
                Err(Error::docker(format!("POST {call}"), source))
            }
        }
    }

    async fn exchange(&self, call: &str, body: Option<&Value>) -> io::Result<(u16, Hijacked)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "POST /v1.{}{call} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.api(),
            body.len()
        );
        let (output, mut input) = UnixStream::connect(self.socket()).await?.into_split();
        input.write_all(request.as_bytes()).await?;
        let mut output = BufReader::with_capacity(BUFFER, output);
        let status = head(&mut output).await?;
        if !matches!(status, 101 | 200) {
            // The answer is all that follows, then.
            input.shutdown().await?;
        }
        Ok((status, Hijacked { output, input }))
    }
}

/// Reads the head of an answer, and returns its status.
async fn head(output: &mut (impl AsyncBufRead + Unpin)) -> io::Result<u16> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
    let mut output = output.take(MAX_HEAD);
    let mut status = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        output.read_until(b'\n', &mut line).await?;
        let text = std::str::from_utf8(&line).map_err(|_| invalid())?;
        if !text.ends_with('\n') {
            return Err(invalid());
        }
        match status {
            None => {
                let code = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
                status = Some(code.and_then(|code| code.trim().parse().ok()).ok_or_else(invalid)?);
            }
            Some(status) if text.trim().is_empty() => return Ok(status),
            Some(_) => {}
        }
    }
}

/// The engine's words in the body of an error, in chunks or not.
fn message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let json = text.find('{').zip(text.rfind('}')).and_then(|(from, to)| text.get(from..=to));
    let value = json.and_then(|json| serde_json::from_str::<Value>(json).ok());
    let message = value.as_ref().and_then(|value| value.get("message")?.as_str());
    message.map_or_else(|| text.trim().to_owned(), str::to_owned)
}

/// Copies a process's output until it ends. Without a terminal it is in frames, of either stream.
///
/// # Errors
/// Of the connection, and of where the output goes.
pub(crate) async fn copy_output(
    mut from: impl AsyncRead + Unpin,
    tty: bool,
    stdout: &mut (impl AsyncWrite + Unpin),
    stderr: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    if tty {
        tokio::io::copy(&mut from, stdout).await?;
        return stdout.flush().await;
    }
    loop {
        let mut head = [0; 8];
        match from.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        };
        let [stream, _, _, _, length @ ..] = head;
        let mut frame = (&mut from).take(u32::from_be_bytes(length).into());
        if stream == STDERR {
            tokio::io::copy(&mut frame, stderr).await?;
            stderr.flush().await?;
        } else {
            tokio::io::copy(&mut frame, stdout).await?;
            stdout.flush().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[stream, 0, 0, 0], &length[..], text].concat()
    }

    #[tokio::test]
    async fn frames_go_to_their_streams() {
        let long = vec![b'x'; 3 * BUFFER];
        let all = [frame(1, b"out"), frame(2, b"err"), frame(1, b""), frame(1, &long)].concat();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        copy_output(&all[..], false, &mut stdout, &mut stderr).await.unwrap();
        assert_eq!((stdout, stderr), ([b"out", &long[..]].concat(), b"err".to_vec()));
    }

    #[tokio::test]
    async fn terminals_have_no_frames() {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        copy_output(&b"\x01\x00raw"[..], true, &mut stdout, &mut stderr).await.unwrap();
        assert_eq!((stdout, stderr), (b"\x01\x00raw".to_vec(), Vec::new()));
    }

    #[tokio::test]
    async fn heads_are_read_and_nothing_behind_them() {
        let mut answer = &b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n\x01data"[..];
        assert_eq!(head(&mut answer).await.unwrap(), 101);
        assert_eq!(answer, b"\x01data");
        for broken in
            [&b""[..], b"HTTP/1.1 x\r\n\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"\xff\n"]
        {
            assert!(head(&mut &broken[..]).await.is_err(), "{broken:?}");
        }
        let endless = vec![b'x'; 1 << 20];
        assert!(head(&mut &endless[..]).await.is_err());
    }

    #[test]
    fn errors_are_the_engines() {
        assert_eq!(message(br#"{"message":"no such exec"}"#), "no such exec");
        assert_eq!(message(b"1b\r\n{\"message\":\"no such exec\"}\r\n0\r\n"), "no such exec");
        assert_eq!(message(b" plain \n"), "plain");
    }
}

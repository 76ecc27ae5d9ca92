//! One other server: a question goes over UDP from a port of its own with a random ID, and again over
//! TCP when the answer does not fit into a datagram.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query};
use longshore_base::panics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::cache::CacheKey;
use crate::message::{FLAGS, HEADER, IS_RESPONSE, MAX_DATAGRAM, TRUNCATED};
use crate::random::unpredictable;

/// How long one server may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest datagram that is read.
const BUFFER: usize = 4096;

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no answer of {0} in time")]
    Timeout(SocketAddr),
    #[error("{0}: {1}")]
    Io(SocketAddr, io::Error),
    #[error("the answer of {0} cannot be read")]
    Unreadable(SocketAddr),
    #[error("the question cannot be written")]
    Unwritable,
}

/// A question for another server.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) key: CacheKey,
    pub(crate) recursion_desired: bool,
    /// The client has EDNS.
    pub(crate) edns: bool,
}

impl Request {
    fn message(&self, id: u16) -> Message {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.checking_disabled = self.key.checking_disabled;
        message.add_query(Query::query(self.key.name.clone(), self.key.kind));
        if self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(MAX_DATAGRAM).set_dnssec_ok(self.key.dnssec_ok);
            message.set_edns(edns);
        }
        message
    }
}

/// Another server.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Failures since the last answer.
    failures: AtomicU32,
    /// It sends our questions back to us.
    looped: AtomicBool,
}

impl Upstream {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, failures: AtomicU32::new(0), looped: AtomicBool::new(false) }
    }

    /// Whether it answered last time.
    pub(crate) fn is_healthy(&self) -> bool {
        self.failures.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_looped(&self) -> bool {
        self.looped.load(Ordering::Relaxed)
    }

    /// Nothing is sent to it again. Returns whether that is new.
    pub(crate) fn set_looped(&self) -> bool {
        !self.looped.swap(true, Ordering::Relaxed)
    }

    /// Asks it, for at most [`TIMEOUT`]. Returns the answer and its bytes.
    pub(crate) async fn ask(&self, request: &Request) -> Result<(Message, Vec<u8>), Error> {
        let answer = match timeout(TIMEOUT, self.exchange(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout(self.address)),
        };
        match &answer {
            Ok(_) => self.failures.store(0, Ordering::Relaxed),
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }

    async fn exchange(&self, request: &Request) -> Result<(Message, Vec<u8>), Error> {
        // any 16 bits of it
        let id = unpredictable() as u16;
        let query = request.message(id).to_vec().map_err(|_| Error::Unwritable)?;
        let io = |error| Error::Io(self.address, error);
        let bytes = match self.over_udp(&query).await.map_err(io)? {
            Some(bytes) => bytes,
            None => self.over_tcp(&query).await.map_err(io)?,
        };
        let message = read(&bytes, &query).ok_or(Error::Unreadable(self.address))?;
        Ok((message, bytes))
    }

    /// `None`: the answer does not fit.
    async fn over_udp(&self, query: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let any: IpAddr = match self.address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await?;
        // Datagrams of others are dropped by the kernel.
        socket.connect(self.address).await?;
        socket.send(query).await?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = socket.recv(&mut buffer).await?;
            let bytes = buffer.get(..length).unwrap_or_default();
            // Forged ones are not answers: the right one may still come.
            if is_answer(bytes, query) {
                let fits = bytes[FLAGS] & TRUNCATED == 0 && length < BUFFER;
                return Ok(fits.then(|| bytes.to_vec()));
            }
        }
    }

    async fn over_tcp(&self, query: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).await?;
        let length = u16::try_from(query.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], query].concat();
        stream.write_all(&framed).await?;
        let length = stream.read_u16().await?;
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await?;
        Ok(bytes)
    }
}

/// Whether it is an answer to this query: it has its ID and its question.
fn is_answer(bytes: &[u8], query: &[u8]) -> bool {
    let (Some((head, body)), Some((asked, question))) =
        (bytes.split_at_checked(HEADER), query.split_at_checked(HEADER))
    else {
        return false;
    };
    let question = question.get(..question_length(question)).unwrap_or_default();
    head[..2] == asked[..2]
        && head[FLAGS] & IS_RESPONSE != 0
        && head[4..6] == asked[4..6]
        && body.get(..question.len()).is_some_and(|echo| echo.eq_ignore_ascii_case(question))
}

/// The length of the question at the start of these bytes, which we wrote: no name is compressed.
fn question_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(label) = bytes.get(at).filter(|label| **label > 0) {
        at += usize::from(*label) + 1;
    }
    // the end of the name, type and class
    at + 5
}

/// The answer to this query.
fn read(bytes: &[u8], query: &[u8]) -> Option<Message> {
    if !is_answer(bytes, query) {
        return None;
    }
    panics::contain_sync(|| Message::from_vec(bytes).ok()).ok().flatten()
}

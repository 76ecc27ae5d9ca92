//! One other server: a question goes over UDP from a port of its own with a random ID, and again over
//! TCP when the answer does not fit into a datagram.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_server::proto::rr::DNSClass;
use longshore_base::panics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::cache::CacheKey;
use crate::message::MAX_DATAGRAM;
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
        let answer = self.over_udp(&query, id, request).await.map_err(io)?;
        match answer {
            Some((message, bytes)) if !message.metadata.truncation => Ok((message, bytes)),
            _ => {
                let bytes = self.over_tcp(&query).await.map_err(io)?;
                let message = read(&bytes, id, request).ok_or(Error::Unreadable(self.address))?;
                Ok((message, bytes))
            }
        }
    }

    /// `None`: the answer to this question does not fit, or cannot be read.
    async fn over_udp(
        &self,
        query: &[u8],
        id: u16,
        request: &Request,
    ) -> io::Result<Option<(Message, Vec<u8>)>> {
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
            let bytes = &buffer[..length];
            // Forged ones are not answers: the right one may still come.
            if !is_answer(bytes, id) {
                continue;
            }
            if bytes[2] & 0x02 != 0 {
                return Ok(None);
            }
            match read(bytes, id, request) {
                Some(message) => return Ok(Some((message, bytes.to_vec()))),
                None if length == BUFFER => return Ok(None),
                None => {}
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

/// Whether it can be the answer to the one question with this ID.
fn is_answer(bytes: &[u8], id: u16) -> bool {
    match bytes {
        [a, b, flags, _, 0, 1, ..] if bytes.len() >= 12 => {
            [*a, *b] == id.to_be_bytes() && flags & 0x80 != 0
        }
        _ => false,
    }
}

/// The answer to this question.
fn read(bytes: &[u8], id: u16, request: &Request) -> Option<Message> {
    if !is_answer(bytes, id) {
        return None;
    }
    let message = panics::contain_sync(|| Message::from_vec(bytes).ok()).ok().flatten()?;
    let question = message.queries.first()?;
    let is_ours = question.query_type() == request.key.kind
        && question.query_class() == DNSClass::IN
        && *question.name() == request.key.name;
    is_ours.then_some(message)
}

//! Messages: any bytes from a client → a question, or what is sent back at once; records → the bytes
//! of a response that fits. Pure.
//!
//! A response is never longer than the client takes, and over UDP at most [`MAX_DATAGRAM`] bytes: what
//! does not fit is left out, and the client is told to ask again over TCP.

use std::net::SocketAddr;
use std::sync::LazyLock;

use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::{Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::proto::serialize::binary::BinEncoder;
use hickory_server::server::Request;
use hickory_server::zone_handler::MessageResponseBuilder;
use longshore_base::panics;

/// The length of the header.
pub(crate) const HEADER: usize = 12;
/// The longest datagram that is sent: it is not fragmented on any usual path.
pub(crate) const MAX_DATAGRAM: u16 = 1232;
/// The longest datagram of a client without EDNS.
const CLASSIC_DATAGRAM: u16 = 512;
/// The shortest record: its name and that of its data are pointers, or its data is an IPv4 address.
const MIN_RECORD: usize = 14;
/// The OPT record without options.
const OPT: usize = 11;
/// Bytes and bits of the header.
pub(crate) const FLAGS: usize = 2;
pub(crate) const IS_RESPONSE: u8 = 0x80;
pub(crate) const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const ADDITIONAL_COUNT: usize = 10;

/// How a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// What a message of a client is.
pub(crate) enum Received {
    /// No query: nothing is sent back, so that two servers never answer each other for ever.
    Ignored,
    /// It is refused, with these bytes.
    Refused(ResponseCode, Vec<u8>),
    /// A query with one question.
    Query(Box<Query>),
}

/// A query of a client.
pub(crate) struct Query {
    request: Request,
    pub(crate) transport: Transport,
}

impl Query {
    /// The name that is asked for, as the client wrote it.
    pub(crate) fn name(&self) -> &Name {
        self.request.queries.queries().first().map_or(&ROOT, |query| query.original().name())
    }

    /// The type of the records that are asked for.
    pub(crate) fn kind(&self) -> RecordType {
        self.request.queries.queries().first().map_or(RecordType::ZERO, |query| query.query_type())
    }

    fn class(&self) -> DNSClass {
        self.request.queries.queries().first().map_or(DNSClass::NONE, |query| query.query_class())
    }

    /// Whether the client has EDNS, and wants signatures.
    pub(crate) fn edns(&self) -> Option<bool> {
        self.request.edns.as_ref().map(|edns| edns.flags().dnssec_ok)
    }

    /// The header.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.request.metadata
    }

    /// The longest response, in bytes.
    pub(crate) fn max_size(&self) -> u16 {
        match (self.transport, &self.request.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => CLASSIC_DATAGRAM,
            (Transport::Udp, Some(edns)) => {
                edns.max_payload().clamp(CLASSIC_DATAGRAM, MAX_DATAGRAM)
            }
        }
    }

    /// How many records are more than any response holds.
    pub(crate) fn limit(&self) -> usize {
        usize::from(self.max_size()) / MIN_RECORD + 1
    }
}

static ROOT: LazyLock<Name> = LazyLock::new(Name::root);

/// Reads a message.
pub(crate) fn receive(packet: &[u8], source: SocketAddr, transport: Transport) -> Received {
    let Some(header) = packet.first_chunk::<HEADER>() else { return Received::Ignored };
    if header[FLAGS] & IS_RESPONSE != 0 {
        return Received::Ignored;
    }
    let refuse = |code: ResponseCode| Received::Refused(code, refusal(header, code));
    if header[FLAGS] & 0x78 != 0 {
        return refuse(ResponseCode::NotImp);
    }
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // Checked before anything is allocated for them.
    if count(4) != 1 || count(6) > 1 || count(8) > 1 || count(ADDITIONAL_COUNT) > 2 {
        return refuse(ResponseCode::FormErr);
    }
    let protocol = match transport {
        Transport::Udp => Protocol::Udp,
        Transport::Tcp => Protocol::Tcp,
    };
    let read = panics::contain_sync(|| Request::from_bytes(packet.to_vec(), source, protocol));
    let Ok(Ok(request)) = read else { return refuse(ResponseCode::FormErr) };
    let version = request.edns.as_ref().map_or(0, |edns| edns.version());
    let query = Query { request, transport };
    if version > 0 {
        let code = ResponseCode::BADVERS;
        return Received::Refused(code, respond(&query, code, &Sections::default()));
    }
    if query.class() != DNSClass::IN {
        let code = ResponseCode::Refused;
        return Received::Refused(code, respond(&query, code, &Sections::default()));
    }
    Received::Query(Box::new(query))
}

/// The header of a query that is not read further, as a response.
fn refusal(header: &[u8; HEADER], code: ResponseCode) -> Vec<u8> {
    let mut response = vec![0; HEADER];
    response[..2].copy_from_slice(&header[..2]);
    response[FLAGS] = header[FLAGS] & (0x78 | RECURSION_DESIRED) | IS_RESPONSE;
    response[FLAGS + 1] = code.low();
    response
}

/// The records of a response.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    pub(crate) authoritative: bool,
    pub(crate) recursion: bool,
    pub(crate) authentic: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

/// The bytes of a response.
pub(crate) fn respond(query: &Query, code: ResponseCode, sections: &Sections) -> Vec<u8> {
    let written = panics::contain_sync(|| write(query, code, sections)).ok().flatten();
    written.unwrap_or_else(|| {
        // Records that cannot be written, such as those of a strange server.
        write(query, ResponseCode::ServFail, &Sections::default()).unwrap_or_default()
    })
}

fn write(query: &Query, code: ResponseCode, sections: &Sections) -> Option<Vec<u8>> {
    let mut metadata = Metadata::response_from_request(query.metadata());
    metadata.op_code = OpCode::Query;
    metadata.authoritative = sections.authoritative;
    metadata.recursion_available = sections.recursion;
    metadata.authentic_data = sections.authentic;
    metadata.response_code = ResponseCode::from_low(code.low());
    let edns = query.edns();
    // The OPT record has its place in each response.
    let reserved = if edns.is_some() { u16::try_from(OPT).unwrap_or_default() } else { 0 };
    let mut bytes = Vec::with_capacity(256);
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(query.max_size().saturating_sub(reserved));
    let response = MessageResponseBuilder::from_message_request(&query.request).build(
        metadata,
        &sections.answers,
        &sections.authorities,
        [],
        &sections.additionals,
    );
    let info = response.destructive_emit(&mut encoder).ok()?;
    // what was written of a record that did not fit
    encoder.trim();
    let counts = info.counts();
    let answers = usize::from(counts.answers) == sections.answers.len();
    let authorities = usize::from(counts.authorities) == sections.authorities.len();
    if answers && authorities {
        // Additional records are a courtesy: nobody has to come back for them.
        if let Some(flags) = bytes.get_mut(FLAGS) {
            *flags &= !TRUNCATED;
        }
    }
    if let Some(wants_signatures) = edns {
        let size = MAX_DATAGRAM.to_be_bytes();
        let flags = if wants_signatures { 0x80 } else { 0 };
        bytes.extend([0, 0, 41, size[0], size[1], code.high(), 0, flags, 0, 0, 0]);
        let count = counts.additionals.saturating_add(1).to_be_bytes();
        bytes.get_mut(ADDITIONAL_COUNT..HEADER)?.copy_from_slice(&count);
    }
    Some(bytes)
}

//! The kernel's table over netlink.

use std::net::{IpAddr, SocketAddr};

use longshore_netlink::{Attribute, NLM_F_ACK, NLM_F_DUMP, attributes};
use rustix::io::Errno;

use super::{Entry, Error, Tuple};
use crate::Family;
use crate::netlink::{CONNTRACK, Netfilter};

/// `IPCTNL_MSG_CT_GET`
const GET: u16 = CONNTRACK | 1;
/// `IPCTNL_MSG_CT_DELETE`
const DELETE: u16 = CONNTRACK | 2;

/// Attributes of an entry.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Which parts of the original tuple must be as in the question.
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
/// The protocol's number, as a bit of that.
const BY_PROTOCOL: u32 = 1 << 3;

/// Attributes of a tuple.
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
/// Of its addresses: source and destination of IPv4, of IPv6.
const SOURCE_V4: u16 = 1;
const DESTINATION_V4: u16 = 2;
const SOURCE_V6: u16 = 3;
const DESTINATION_V6: u16 = 4;
/// Of its protocol.
const NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// `IPPROTO_UDP`
const UDP: u8 = 17;

/// See the tracked UDP flows of a family.
pub async fn entries(family: Family, mut each: impl FnMut(Entry)) -> Result<(), Error> {
    let by_protocol = Attribute::Bytes(FILTER_ORIGINAL, BY_PROTOCOL.to_ne_bytes().into());
    let udp = Attribute::Nest(PROTOCOL, vec![Attribute::Bytes(NUMBER, vec![UDP])]);
    let request =
        [Attribute::Nest(ORIGINAL, vec![udp]), Attribute::Nest(FILTER, vec![by_protocol])];
    Netfilter::open()
        .map_err(Error::Socket)?
        // Kernels before 5.8 take no notice of the filter: what is not UDP's is no entry.
        .request(family, GET, NLM_F_DUMP, &request, |answer| {
            entry(answer).into_iter().for_each(&mut each)
        })
        .await
        .map_err(Error::List)
}

/// Remove flows; how many of them were still there.
pub async fn delete(entries: &[Entry]) -> Result<usize, Error> {
    let mut deleted = 0;
    if entries.is_empty() {
        return Ok(deleted);
    }
    let mut kernel = Netfilter::open().map_err(Error::Socket)?;
    for entry in entries {
        let family = Family::of(entry.original.source.ip());
        // The tuple names the flow; without one the kernel would remove all.
        let request = [
            Attribute::Nest(ORIGINAL, parts(&entry.original)),
            Attribute::Bytes(ID, entry.id.to_be_bytes().into()),
            Attribute::Bytes(ZONE, entry.zone.to_be_bytes().into()),
        ];
        match kernel.request(family, DELETE, NLM_F_ACK, &request, |_| ()).await {
            Ok(()) => deleted += 1,
            // It ended by itself.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => {}
            Err(source) => return Err(Error::Delete { entry: Box::new(*entry), source }),
        }
    }
    Ok(deleted)
}

fn parts(tuple: &Tuple) -> Vec<Attribute> {
    let address = |v4, v6, address| match address {
        IpAddr::V4(address) => Attribute::Bytes(v4, address.octets().into()),
        IpAddr::V6(address) => Attribute::Bytes(v6, address.octets().into()),
    };
    let port = |kind, port: u16| Attribute::Bytes(kind, port.to_be_bytes().into());
    vec![
        Attribute::Nest(
            ADDRESSES,
            vec![
                address(SOURCE_V4, SOURCE_V6, tuple.source.ip()),
                address(DESTINATION_V4, DESTINATION_V6, tuple.destination.ip()),
            ],
        ),
        Attribute::Nest(
            PROTOCOL,
            vec![
                Attribute::Bytes(NUMBER, vec![UDP]),
                port(SOURCE_PORT, tuple.source.port()),
                port(DESTINATION_PORT, tuple.destination.port()),
            ],
        ),
    ]
}

/// The flow of an answer, if it is a whole one of UDP.
fn entry(answer: &[u8]) -> Option<Entry> {
    let (mut original, mut reply, mut zone, mut id) = (None, None, 0, 0);
    for (kind, value) in attributes(answer) {
        match kind {
            ORIGINAL => original = tuple(value),
            REPLY => reply = tuple(value),
            ID => id = u32::from_be_bytes(value.try_into().ok()?),
            ZONE => zone = u16::from_be_bytes(value.try_into().ok()?),
            _ => {}
        }
    }
    Some(Entry { original: original?, reply: reply?, zone, id })
}

fn tuple(value: &[u8]) -> Option<Tuple> {
    let (mut source, mut destination, mut ports, mut udp) = (None, None, [0; 2], false);
    for (kind, value) in attributes(value).flat_map(|(outer, value)| {
        // Kinds of addresses and of the protocol overlap.
        attributes(value).map(move |(kind, value)| ((outer, kind), value))
    }) {
        match kind {
            (ADDRESSES, SOURCE_V4 | SOURCE_V6) => source = address(value),
            (ADDRESSES, DESTINATION_V4 | DESTINATION_V6) => destination = address(value),
            (PROTOCOL, NUMBER) => udp = value == [UDP],
            (PROTOCOL, SOURCE_PORT) => ports[0] = u16::from_be_bytes(value.try_into().ok()?),
            (PROTOCOL, DESTINATION_PORT) => ports[1] = u16::from_be_bytes(value.try_into().ok()?),
            _ => {}
        }
    }
    udp.then_some(Tuple {
        source: SocketAddr::new(source?, ports[0]),
        destination: SocketAddr::new(destination?, ports[1]),
    })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

//! Netlink requests about network devices.

use std::collections::HashMap;
use std::io;

use longshore_netlink::{
    Attribute, BUFFER, NLM_F_ACK, NLM_F_DUMP, Subheader, attribute, replies, request,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

/// Message types.
const GET_LINK: u16 = 18;
const GET_NSID: u16 = 90;
const GET_STATS: u16 = 94;

/// Attributes: of a device, of a namespace's id, of statistics.
const LINK_NSID: u16 = 37;
const NSID: u16 = 1;
const NSID_OF_PID: u16 = 2;
const STATS_64: u16 = 1;
/// `IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)`.
const FILTER_LINK_64: u32 = 1;

/// Received and sent alternate: packets, bytes, errors, drops.
pub(super) type Counters = [u64; 8];

/// A netlink socket.
pub(super) struct Kernel {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Kernel {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER), sequence: 0 })
    }

    /// The counters of each device, by its index.
    pub(super) fn counters(&mut self) -> io::Result<HashMap<u32, Counters>> {
        let mut found = HashMap::new();
        // struct if_stats_msg
        let mut subheader = [0; 12];
        subheader[8..].copy_from_slice(&FILTER_LINK_64.to_ne_bytes());
        self.request(GET_STATS, NLM_F_DUMP, subheader, &[], |subheader, attributes| {
            if let Some(statistics) = attribute(attributes, STATS_64) {
                let mut counters = Counters::default();
                for (figure, bytes) in counters.iter_mut().zip(statistics.as_chunks().0) {
                    *figure = u64::from_ne_bytes(*bytes);
                }
                found.insert(index(subheader), counters);
            }
        })?;
        Ok(found)
    }

    /// The devices whose peer is in another network namespace, by the ID of that; `None` if
    /// several.
    pub(super) fn cross_namespace_devices(&mut self) -> io::Result<HashMap<i32, Option<u32>>> {
        let mut found = HashMap::new();
        // struct ifinfomsg
        self.request(GET_LINK, NLM_F_DUMP, [0; 16], &[], |subheader, attributes| {
            if let Some(id) = attribute(attributes, LINK_NSID).and_then(number) {
                let index = index(subheader);
                found.entry(id).and_modify(|other| *other = None).or_insert(Some(index));
            }
        })?;
        Ok(found)
    }

    /// The ID of the network namespace of a process; `None` if it has none.
    pub(super) fn namespace(&mut self, pid: u32) -> io::Result<Option<i32>> {
        let mut found = None;
        let pid = Attribute::Bytes(NSID_OF_PID, pid.to_ne_bytes().to_vec());
        // struct rtgenmsg, to a multiple of four
        self.request(GET_NSID, NLM_F_ACK, [0; 4], &[pid], |_, attributes| {
            found = attribute(attributes, NSID).and_then(number);
        })?;
        Ok(found.filter(|id| *id >= 0))
    }

    fn request<const N: usize>(
        &mut self,
        kind: u16,
        flags: u16,
        subheader: Subheader<N>,
        attributes: &[Attribute],
        mut each: impl FnMut(&Subheader<N>, &[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request(kind, flags, self.sequence, subheader, attributes);
        self.socket.send(&bytes, 0)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            if replies(&self.buffer, self.sequence, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// The device index, in either subheader.
fn index<const N: usize>(subheader: &Subheader<N>) -> u32 {
    subheader.get(4..8).and_then(|it| it.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn number(value: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(value.try_into().ok()?))
}

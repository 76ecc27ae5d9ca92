//! What the machine's network devices have carried, all by one question to the kernel. A sandbox's
//! device has its other end among them, as a rule, and what went into the one came out of the other:
//! to read the sandbox's own table costs thirty times as much.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use longshore_netlink::{
    Attribute, BUFFER, NLM_F_ACK, NLM_F_DUMP, Subheader, answers, attribute, question,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::cgroup::Detail;
use super::process::Interface;

/// Types of questions.
const GET_LINK: u16 = 18;
const GET_NSID: u16 = 90;
const GET_STATS: u16 = 94;

/// Attributes: of a device, of a namespace's id, of statistics.
const LINK_NSID: u16 = 37;
const NSID: u16 = 1;
const NSID_OF_PID: u16 = 2;
const STATS_64: u16 = 1;
/// The statistics that are wanted: `IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)`.
const WANTED: u32 = 1;

/// So long, a sandbox that has lost no packets is taken to lose none: its other end does not tell.
const AGE: Duration = Duration::from_secs(60);

/// Received and sent in turns: packets, bytes, errors, drops.
type Carried = [u64; 8];

/// The other end of a sandbox's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has not been found yet.
    Unknown,
    /// There is none on the machine, or there are several.
    Elsewhere,
    /// A device of the machine.
    Here(Here),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Here {
    index: u32,
    /// What it had carried when the sandbox's table was read, or just before.
    carried: Carried,
    /// When that was.
    read: Instant,
    /// Whether the sandbox had lost nothing since its table was read before.
    lossless: bool,
}

/// All devices of the machine.
#[derive(Default)]
pub(super) struct Links {
    /// By their index.
    carried: HashMap<u32, Carried>,
    /// Those whose other end is in another network namespace, by the kernel's id of that; `None`:
    /// several are.
    others: OnceLock<HashMap<i32, Option<u32>>>,
    kernel: Mutex<Option<Kernel>>,
}

impl Links {
    /// In the network namespace of the calling thread. What cannot be found out leaves every end
    /// unknown.
    pub(super) fn at(detail: Detail) -> Self {
        if detail < Detail::Load {
            return Self::default();
        }
        let links = Self::read();
        links.inspect_err(|error| tracing::debug!(%error, "network devices")).unwrap_or_default()
    }

    fn read() -> io::Result<Self> {
        let mut kernel = Kernel::open()?;
        let carried = kernel.carried()?;
        Ok(Self { carried, others: OnceLock::new(), kernel: Mutex::new(Some(kernel)) })
    }

    /// Brings up to date what a sandbox sees, if its other end can tell. If not, its table has to be
    /// read.
    pub(super) fn renew(&self, end: &End, seen: &mut [Interface]) -> bool {
        let (End::Here(here), [seen]) = (end, seen) else { return false };
        let Some(now) = self.carried.get(&here.index) else { return false };
        let still = *now == here.carried;
        if !still && here.lossless && here.read.elapsed() < AGE {
            mirror(now, seen);
            return true;
        }
        still
    }

    /// The other end of what a process has just been found to see, and saw before. At first the proof
    /// is that the two have carried the same; what goes through meanwhile leaves it for the next time.
    pub(super) fn end(&self, end: &End, pid: u32, before: &[Interface], seen: &[Interface]) -> End {
        let [seen] = seen else { return End::Unknown };
        let lossless = matches!(before, [before] if lost(before) == lost(seen));
        let here = |index| {
            let carried = *self.carried.get(&index)?;
            Some(Here { index, carried, read: Instant::now(), lossless })
        };
        let known = match end {
            End::Elsewhere => return End::Elsewhere,
            End::Here(known) => here(known.index),
            End::Unknown => None,
        };
        if let Some(known) = known {
            return End::Here(known);
        }
        match self.other_end(pid).map(|index| index.map(here)) {
            Ok(None) => End::Elsewhere,
            Ok(Some(Some(here))) if is_mirror(&here.carried, seen) => End::Here(here),
            Ok(_) => End::Unknown,
            Err(error) => {
                tracing::trace!(pid, %error, "the other end of a device is not found");
                End::Unknown
            }
        }
    }

    /// The only device of the machine with an end in the network namespace of a process.
    fn other_end(&self, pid: u32) -> io::Result<Option<u32>> {
        // No code panics while it holds the lock.
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = kernel.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let Some(id) = kernel.namespace(pid)? else { return Ok(None) };
        let others = match self.others.get() {
            Some(others) => others,
            None => {
                let others = kernel.others()?;
                self.others.get_or_init(|| others)
            }
        };
        Ok(others.get(&id).copied().flatten())
    }
}

/// What one end has received the other has sent.
fn mirror(carried: &Carried, other: &mut Interface) {
    let Interface { received, sent, .. } = other;
    [sent.packets, received.packets, sent.bytes, received.bytes, ..] = *carried;
}

fn is_mirror(carried: &Carried, other: &Interface) -> bool {
    let mut mirrored = other.clone();
    mirror(carried, &mut mirrored);
    mirrored == *other
}

/// What an end tells of itself alone.
fn lost(end: &Interface) -> [u64; 4] {
    let Interface { received, sent, .. } = end;
    [received.errors, received.dropped, sent.errors, sent.dropped]
}

/// A socket for questions about network devices.
struct Kernel {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER), sequence: 0 })
    }

    fn carried(&mut self) -> io::Result<HashMap<u32, Carried>> {
        let mut found = HashMap::new();
        // struct if_stats_msg
        let mut subheader = [0; 12];
        subheader[8..].copy_from_slice(&WANTED.to_ne_bytes());
        self.ask(GET_STATS, NLM_F_DUMP, subheader, &[], |subheader, attributes| {
            if let Some(statistics) = attribute(attributes, STATS_64) {
                let mut carried = Carried::default();
                for (figure, bytes) in carried.iter_mut().zip(statistics.as_chunks().0) {
                    *figure = u64::from_ne_bytes(*bytes);
                }
                found.insert(index(subheader), carried);
            }
        })?;
        Ok(found)
    }

    fn others(&mut self) -> io::Result<HashMap<i32, Option<u32>>> {
        let mut found = HashMap::new();
        // struct ifinfomsg
        self.ask(GET_LINK, NLM_F_DUMP, [0; 16], &[], |subheader, attributes| {
            if let Some(id) = attribute(attributes, LINK_NSID).and_then(number) {
                let index = index(subheader);
                found.entry(id).and_modify(|other| *other = None).or_insert(Some(index));
            }
        })?;
        Ok(found)
    }

    /// The id by which devices name the network namespace of a process; `None`: none does.
    fn namespace(&mut self, pid: u32) -> io::Result<Option<i32>> {
        let mut found = None;
        let pid = Attribute::Bytes(NSID_OF_PID, pid.to_ne_bytes().to_vec());
        // struct rtgenmsg, to a multiple of four
        self.ask(GET_NSID, NLM_F_ACK, [0; 4], &[pid], |_, attributes| {
            found = attribute(attributes, NSID).and_then(number);
        })?;
        Ok(found.filter(|id| *id >= 0))
    }

    fn ask<const N: usize>(
        &mut self,
        kind: u16,
        flags: u16,
        subheader: Subheader<N>,
        attributes: &[Attribute],
        mut each: impl FnMut(&Subheader<N>, &[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = question(kind, flags, self.sequence, subheader, attributes);
        self.socket.send(&bytes, 0)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            if answers(&self.buffer, self.sequence, &mut each)? {
                return Ok(());
            }
        }
    }
}

/// Of a device, in either subheader.
fn index<const N: usize>(subheader: &Subheader<N>) -> u32 {
    subheader.get(4..8).and_then(|it| it.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn number(value: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(value.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::net::UdpSocket;
    use std::process::{Child, Command};

    use nix::sched::{CloneFlags, unshare};

    use super::super::cgroup::Reader;
    use super::super::process::Proc;
    use super::*;

    fn ip(line: &str) {
        let done = Command::new("ip").args(line.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "ip {line}: {done:?}");
    }

    /// A process in a network namespace of its own.
    struct Sandbox(Child);

    impl Sandbox {
        fn start() -> Self {
            let child = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
            let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
            let (ours, pid) = (namespace("thread-self"), child.id().to_string());
            let mut waits = 0..500;
            while namespace(&pid) == ours && waits.next().is_some() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Self(child)
        }

        fn table(&self) -> Vec<Interface> {
            let proc = Proc::open().unwrap();
            proc.network(Some(self.0.id()), &mut Reader::default())
        }

        /// A device for it, whose other end has this name and this address.
        fn add(&self, name: &str, here: &str, address: &str) {
            let pid = self.0.id();
            ip(&format!("link add {here} type veth peer name {name} netns {pid}"));
            // Else the kernel sends what IPv6 needs whenever it likes.
            ip(&format!("link set {here} up addrgenmode none"));
            ip(&format!("address add {address}/30 dev {here}"));
            let script = format!("ip link set {name} up addrgenmode none");
            let target = pid.to_string();
            let args = ["--target", &target, "--net", "sh", "-c", &script];
            assert!(Command::new("nsenter").args(args).status().unwrap().success());
        }
    }

    impl Drop for Sandbox {
        fn drop(&mut self) {
            let _ = self.0.kill().and_then(|()| self.0.wait());
        }
    }

    struct Known {
        end: End,
        table: Vec<Interface>,
    }

    impl Known {
        fn of(sandbox: &Sandbox) -> Self {
            Self { end: End::Unknown, table: Vec::new() }.read(sandbox)
        }

        fn read(&self, sandbox: &Sandbox) -> Self {
            let (links, table) = (Links::read().unwrap(), sandbox.table());
            let end = links.end(&self.end, sandbox.0.id(), &self.table, &table);
            Self { end, table }
        }

        /// What it sees now, as far as its other end can tell.
        fn renewed(&self, links: &Links) -> Option<Vec<Interface>> {
            let mut table = self.table.clone();
            links.renew(&self.end, &mut table).then_some(table)
        }

        fn here(&self) -> Here {
            let End::Here(here) = self.end else { panic!("{:?} {:?}", self.end, self.table) };
            here
        }
    }

    fn now() -> Links {
        Links::read().unwrap()
    }

    #[test]
    fn what_goes_through_a_sandboxes_device_shows_at_its_other_end() {
        let work = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let (sandbox, other) = (Sandbox::start(), Sandbox::start());
            other.add("eth0", "veth1", "192.0.2.5");
            assert_eq!(Known::of(&sandbox).end, End::Unknown, "it sees nothing yet");
            sandbox.add("eth0", "veth0", "192.0.2.1");
            let first = Known::of(&sandbox);
            assert!(!first.here().lossless, "it was not looked at before");
            assert_eq!(first.renewed(&now()), Some(sandbox.table()));
            assert_eq!(first.renewed(&Links::at(Detail::Usage)), None, "nobody has looked");

            // Nobody has that address, which has to be asked for.
            let send = |to: &str| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"packet", to);
            send("192.0.2.6:9").unwrap();
            assert_eq!(first.renewed(&now()), Some(first.table.clone()), "it went elsewhere");
            send("192.0.2.2:9").unwrap();
            assert_eq!(first.renewed(&now()), None, "who knows whether it loses packets");
            let second = first.read(&sandbox);
            assert!(second.here().lossless);
            assert!(second.table[0].received.packets > first.table[0].received.packets);
            send("192.0.2.2:9").unwrap();
            std::thread::sleep(Duration::from_millis(1100)); // it is asked for three times
            send("192.0.2.2:9").unwrap();
            // The kernel may ask between two looks.
            let told = (0..50).find_map(|_| {
                let (links, table) = (now(), sandbox.table());
                (second.renewed(&links)? == table).then_some((links, table))
            });
            let (links, table) = told.unwrap();
            assert_ne!(table, second.table);
            if let Some(read) = Instant::now().checked_sub(AGE) {
                let old = Here { read, ..second.here() };
                let old = Known { end: End::Here(old), table: second.table.clone() };
                assert_eq!(old.renewed(&links), None, "it may have lost some since");
            }

            let seen = |change: fn(&mut Interface)| {
                let mut table = table.clone();
                change(&mut table[0]);
                links.end(&End::Unknown, sandbox.0.id(), &second.table, &table)
            };
            let unproven = seen(|one| one.received.packets += 1);
            assert_eq!(unproven, End::Unknown, "it may be another's");
            let lossy = seen(|one| one.received.dropped += 1);
            assert!(matches!(lossy, End::Here(here) if !here.lossless), "{lossy:?}");

            sandbox.add("eth1", "veth2", "192.0.2.9");
            let both = second.read(&sandbox);
            assert_eq!((both.end, both.table.len()), (End::Unknown, 2), "it sees two");
            assert_eq!(both.renewed(&now()), None);
            let several = now().end(&End::Unknown, sandbox.0.id(), &[], &table);
            assert_eq!(several, End::Elsewhere);
            ip("link delete veth0");
            assert_eq!(second.renewed(&now()), None, "it is gone");
            let gone = now().end(&End::Unknown, u32::MAX >> 1, &[], &table);
            assert_eq!(gone, End::Unknown, "there is no such process");
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn devices_of_this_machine_are_known() {
        let links = Links::at(Detail::Load);
        assert!(links.carried.contains_key(&1), "lo");
        let here = links.other_end(std::process::id()).unwrap();
        assert_eq!(here, None, "the machine's own processes are at no other end");
    }
}

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

    /// Adds a veth pair; the host end has this name and address.
    fn add(&self, name: &str, host_peer: &str, address: &str) {
        let pid = self.0.id();
        ip(&format!("link add {host_peer} type veth peer name {name} netns {pid}"));
        // Else the kernel sends what IPv6 needs whenever it likes.
        ip(&format!("link set {host_peer} up addrgenmode none"));
        ip(&format!("address add {address}/30 dev {host_peer}"));
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
    peer: Peer,
    table: Vec<Interface>,
}

impl Known {
    fn of(sandbox: &Sandbox) -> Self {
        Self { peer: Peer::Unknown, table: Vec::new() }.read(sandbox)
    }

    fn read(&self, sandbox: &Sandbox) -> Self {
        let (links, table) = (Links::read().unwrap(), sandbox.table());
        let peer = links.peer(&self.peer, sandbox.0.id(), &self.table, &table);
        Self { peer, table }
    }

    /// Its current table, if the peer can provide it.
    fn refreshed(&self, links: &Links) -> Option<Vec<Interface>> {
        let mut table = self.table.clone();
        links.update_from_peer(&self.peer, &mut table).then_some(table)
    }

    fn host_peer(&self) -> HostPeer {
        let Peer::Host(host_peer) = self.peer else { panic!("{:?} {:?}", self.peer, self.table) };
        host_peer
    }
}

fn now() -> Links {
    Links::read().unwrap()
}

#[test]
fn veth_counters_are_read_from_the_host_end_as_root() {
    let work = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let (sandbox, other) = (Sandbox::start(), Sandbox::start());
        other.add("eth0", "veth1", "192.0.2.5");
        assert_eq!(Known::of(&sandbox).peer, Peer::Unknown, "it sees nothing yet");
        sandbox.add("eth0", "veth0", "192.0.2.1");
        let first = Known::of(&sandbox);
        assert!(!first.host_peer().lossless, "it was not looked at before");
        assert_eq!(first.refreshed(&now()), Some(sandbox.table()));
        assert_eq!(first.refreshed(&Links::at(Detail::Usage)), None, "nobody has looked");

        // Nobody has that address, so there are ARP requests.
        let send = |to: &str| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"packet", to);
        send("192.0.2.6:9").unwrap();
        assert_eq!(first.refreshed(&now()), Some(first.table.clone()), "it went elsewhere");
        send("192.0.2.2:9").unwrap();
        assert_eq!(first.refreshed(&now()), None, "who knows whether it loses packets");
        // On a busy machine a packet arrives some time after it was sent.
        let second = (0..100).map(|_| first.read(&sandbox)).find(|second| {
            std::thread::sleep(Duration::from_millis(10));
            second.host_peer().lossless
        });
        let second = second.unwrap();
        assert!(second.table[0].received.packets > first.table[0].received.packets);
        send("192.0.2.2:9").unwrap();
        std::thread::sleep(Duration::from_millis(1100)); // it is asked for three times
        send("192.0.2.2:9").unwrap();
        // The kernel may ask between two looks.
        let consistent = (0..50).find_map(|_| {
            let (links, table) = (now(), sandbox.table());
            (second.refreshed(&links)? == table).then_some((links, table))
        });
        let (links, table) = consistent.unwrap();
        assert_ne!(table, second.table);
        if let Some(read) = Instant::now().checked_sub(MAX_AGE) {
            let old = HostPeer { read, ..second.host_peer() };
            let old = Known { peer: Peer::Host(old), table: second.table.clone() };
            assert_eq!(old.refreshed(&links), None, "it may have lost some since");
        }

        let seen = |change: fn(&mut Interface)| {
            let mut table = table.clone();
            change(&mut table[0]);
            links.peer(&Peer::Unknown, sandbox.0.id(), &second.table, &table)
        };
        let unproven = seen(|one| one.received.packets += 1);
        assert_eq!(unproven, Peer::Unknown, "it may be another's");
        let lossy = seen(|one| one.received.dropped += 1);
        assert!(matches!(lossy, Peer::Host(host_peer) if !host_peer.lossless), "{lossy:?}");

        sandbox.add("eth1", "veth2", "192.0.2.9");
        let both = second.read(&sandbox);
        assert_eq!((both.peer, both.table.len()), (Peer::Unknown, 2), "it sees two");
        assert_eq!(both.refreshed(&now()), None);
        let several = now().peer(&Peer::Unknown, sandbox.0.id(), &[], &table);
        assert_eq!(several, Peer::NotOnHost);
        ip("link delete veth0");
        assert_eq!(second.refreshed(&now()), None, "it is gone");
        let gone = now().peer(&Peer::Unknown, u32::MAX >> 1, &[], &table);
        assert_eq!(gone, Peer::Unknown, "there is no such process");
    };
    std::thread::spawn(work).join().unwrap();
}

#[test]
fn network_devices_of_this_machine() {
    let links = Links::at(Detail::Load);
    assert!(links.counters.contains_key(&1), "lo");
    let host_peer = links.find_peer(std::process::id()).unwrap();
    assert_eq!(host_peer, None, "the machine's own processes are at no other end");
}

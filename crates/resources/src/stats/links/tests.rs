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

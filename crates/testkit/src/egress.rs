//! Egress of a host for `make run`: iptables chains in the network of the machine that forward and
//! masquerade node and pods, and the `ip_forward` setting. [`crate::leftovers`] removes both by the
//! names of the host.
//!
//! Current limitations: IPv4 only; firewalls other than iptables are not considered; the standard
//! tables, once created, stay (empty, and accepting everything).
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use crate::command::{run_split, run_with_input};
use crate::error::{AtPath, Result};
use crate::slot::{BASE, Names};

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// The note, in the directory of a host, that it enabled forwarding; has the identity of the network.
const RECORD: &str = "ip_forward";

/// Opens egress. On failure, nothing of it is left.
pub(crate) fn open(names: Names) -> Result<()> {
    let opened = start_forwarding(names).and_then(|()| restore(&rules(names)));
    opened.inspect_err(|_| close(names))
}

/// Closes egress as far as possible; [`left`] lists what remains.
pub(crate) fn close(names: Names) {
    let removal = removal(&saved(), &chain(names));
    if !removal.is_empty() {
        let _ = restore(&removal);
    }
    let _ = stop_forwarding(names);
}

/// What is left of the egress of a host.
pub(crate) fn left(names: Names) -> Vec<String> {
    let chain = chain(names);
    let rules = saved();
    let rules = rules.lines().filter(|line| mentions(line, &chain));
    let mut left: Vec<String> = rules.map(|line| format!("rule {line}")).collect();
    if record(names).exists() {
        left.push(format!("{IP_FORWARD} = 1"));
    }
    left
}

fn chain(names: Names) -> String {
    format!("LONGSHORE-{}", names.number)
}

/// One transaction per table, so a chain is never without the jump to it.
fn rules(names: Names) -> String {
    let (chain, link) = (chain(names), names.link());
    let sources = format!("{}/30,{}", names.node_ip(), names.pod_cidr());
    format!(
        "*nat
:{chain} - [0:0]
-A {chain} -s {sources} ! -o {link} -j MASQUERADE
-I POSTROUTING -j {chain}
COMMIT
*filter
:{chain} - [0:0]
-A {chain} -i {link} -s {sources} -j ACCEPT
-A {chain} -o {link} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-I FORWARD -j {chain}
COMMIT
"
    )
}

/// The transactions that remove a chain and the jumps to it from the output of `iptables-save`, part of
/// which may have been flushed.
fn removal(saved: &str, chain: &str) -> String {
    let (mut out, mut jumps, mut table, mut found) = (String::new(), String::new(), "", false);
    for line in saved.lines() {
        if line.starts_with('*') {
            (table, found) = (line, false);
            jumps.clear();
        } else if line == "COMMIT" && found {
            out.push_str(&format!("{table}\n{jumps}-F {chain}\n-X {chain}\nCOMMIT\n"));
        } else if let Some(known) = line.strip_prefix(':') {
            found |= known.split(' ').next() == Some(chain);
        } else if let Some(rule) = line.strip_prefix("-A ")
            && mentions(rule, chain)
            && !rule.starts_with(&format!("{chain} "))
        {
            jumps.push_str(&format!("-D {rule}\n"));
        }
    }
    out
}

fn mentions(line: &str, chain: &str) -> bool {
    line.trim_start_matches(':').split(' ').any(|word| word == chain)
}

/// All rules of the machine; empty without iptables.
fn saved() -> String {
    run_split("iptables-save", "").unwrap_or_default()
}

fn restore(rules: &str) -> Result<()> {
    let mut command = Command::new("iptables-restore");
    command.args(["--noflush", "--wait=5"]);
    run_with_input(command, rules).map(drop)
}

/// Enables forwarding and notes that, so that the last host disables it again.
fn start_forwarding(names: Names) -> Result<()> {
    let _lock = lock()?;
    let is_on = forwards()?;
    if !is_on || others_forward(names)? {
        fs::write(record(names), this_network()?).at(record(names))?;
    }
    if is_on { Ok(()) } else { fs::write(IP_FORWARD, "1").at(IP_FORWARD) }
}

fn stop_forwarding(names: Names) -> Result<()> {
    if !record(names).exists() {
        return Ok(());
    }
    let _lock = lock()?;
    // One that was rejected was never enabled.
    let is_ours = is_note(&names.dir(), &this_network()?) && !others_forward(names)?;
    if is_ours && forwards()? {
        fs::write(IP_FORWARD, "0").at(IP_FORWARD)?;
    }
    fs::remove_file(record(names)).at(record(names))
}

fn forwards() -> Result<bool> {
    Ok(fs::read_to_string(IP_FORWARD).at(IP_FORWARD)?.trim() == "1")
}

/// Whether another host has such a note and will disable it.
fn others_forward(names: Names) -> Result<bool> {
    let network = this_network()?;
    let hosts = fs::read_dir(BASE).at(BASE)?.flatten().map(|entry| entry.path());
    Ok(hosts.filter(|dir| *dir != names.dir()).any(|dir| is_note(&dir, &network)))
}

fn record(names: Names) -> PathBuf {
    names.dir().join(RECORD)
}

fn is_note(host_dir: &Path, network: &str) -> bool {
    fs::read_to_string(host_dir.join(RECORD)).is_ok_and(|note| note == network)
}

/// The switch is one per network namespace, and a test may have made one to be its machine.
fn this_network() -> Result<String> {
    let link = Path::new("/proc/self/ns/net");
    Ok(fs::read_link(link).at(link)?.to_string_lossy().into_owned())
}

/// Locked, so that of two concurrent hosts one disables it.
fn lock() -> Result<Flock<File>> {
    let base = File::open(BASE).at(BASE)?;
    Flock::lock(base, FlockArg::LockExclusive).map_err(|(_, e)| e).at(BASE)
}

#[cfg(test)]
mod tests;

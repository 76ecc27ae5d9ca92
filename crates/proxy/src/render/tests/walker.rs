//! Follows a packet through rules, along every way that chance may take.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{Cidr, Protocol};

use super::kernel::Kernel;

/// The first packet of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) protocol: Protocol,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) port: u16,
    /// Where it comes in; none: it is of the node itself.
    pub(super) input: Option<&'a str>,
    /// The addresses of the node.
    pub(super) node: &'a [IpAddr],
    /// The chain of the endpoint that the kernel remembers for the client.
    pub(super) remembered: Option<&'a str>,
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Passes unchanged.
    Passes,
    /// Goes to an endpoint, with the node as its source or with its own.
    Forwarded {
        to: String,
        masqueraded: bool,
    },
    Rejected,
    Dropped,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// Came to the end of the chain, marked or not.
    Returned(bool),
    Dnat(String, bool),
    Reject,
    Drop,
    Accept,
}

/// What may become of a packet.
pub(super) fn walk(kernel: &Kernel, packet: &Packet<'_>) -> BTreeSet<Verdict> {
    let (nat, filter) = match packet.input {
        Some(_) if packet.is_local(packet.to) => ("PREROUTING", "INPUT"),
        Some(_) => ("PREROUTING", "FORWARD"),
        None => ("OUTPUT", "OUTPUT"),
    };
    let ends = chain(kernel, "nat", nat, packet, false);
    let fate = |end| match end {
        End::Dnat(to, marked) => BTreeSet::from([Verdict::Forwarded { to, masqueraded: marked }]),
        // it was not redirected: the filter sees its own destination
        End::Returned(marked) => {
            let ends = chain(kernel, "filter", filter, packet, marked).into_iter();
            ends.map(|end| match end {
                End::Returned(_) | End::Accept => Verdict::Passes,
                End::Reject => Verdict::Rejected,
                End::Drop => Verdict::Dropped,
                End::Dnat(..) => panic!("DNAT in filter"),
            })
            .collect()
        }
        other => panic!("{other:?} in nat"),
    };
    ends.into_iter().flat_map(fate).collect()
}

fn chain(
    kernel: &Kernel,
    table: &str,
    name: &str,
    packet: &Packet<'_>,
    marked: bool,
) -> BTreeSet<End> {
    let mut ends = BTreeSet::new();
    let mut marks = BTreeSet::from([marked]);
    for rule in kernel.chain(table, name) {
        let mut next = BTreeSet::new();
        for marked in marks {
            match packet.matches(rule, marked) {
                Some(false) => {
                    next.insert(marked);
                    continue;
                }
                Some(true) => {}
                // chance: both ways
                None => {
                    next.insert(marked);
                }
            }
            let target = rule.split_once("-j ").map_or("", |(_, target)| target);
            let words: Vec<_> = target.split(' ').collect();
            match words[..] {
                [""] => {
                    next.insert(marked);
                }
                ["RETURN"] => {
                    ends.insert(End::Returned(marked));
                }
                ["DROP"] => {
                    ends.insert(End::Drop);
                }
                ["ACCEPT"] => {
                    ends.insert(End::Accept);
                }
                ["REJECT", "--reject-with", _] => {
                    ends.insert(End::Reject);
                }
                ["DNAT", "--to-destination", to] => {
                    ends.insert(End::Dnat(to.to_owned(), marked));
                }
                ["MARK", "--set-xmark", mark] => {
                    let (value, mask) = mark.split_once('/').unwrap();
                    next.insert(value == mask || !marked);
                }
                [to] => {
                    for end in chain(kernel, table, to, packet, marked) {
                        match end {
                            End::Returned(marked) => next.insert(marked),
                            end => ends.insert(end),
                        };
                    }
                }
                _ => panic!("target {target}"),
            }
        }
        marks = next;
    }
    ends.extend(marks.into_iter().map(End::Returned));
    ends
}

impl Packet<'_> {
    fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.node.contains(&ip)
    }

    /// Whether a rule matches; none when chance decides.
    fn matches(&self, rule: &str, marked: bool) -> Option<bool> {
        // a comment is one word
        let parts: Vec<_> = rule.split('"').collect();
        let rule = match parts[..] {
            [before, _, after] => format!("{before}COMMENT{after}"),
            _ => rule.to_owned(),
        };
        let mut words = rule.split(' ').filter(|word| !word.is_empty());
        let (mut not, mut chance) = (false, false);
        while let Some(word) = words.next() {
            let mut next = || words.next().unwrap();
            let matched = match word {
                "!" => {
                    not = true;
                    continue;
                }
                "-j" => break,
                "-m" | "--comment" | "--mode" | "--mask" | "--set" | "--nfacct-name"
                | "--seconds" => {
                    if word != "--set" {
                        next();
                    }
                    true
                }
                "--reap" | "--rsource" => true,
                "-s" => next().parse::<Cidr>().unwrap().contains(self.from),
                "-d" => next().parse::<Cidr>().unwrap().contains(self.to),
                "-i" => {
                    let name = next();
                    match (self.input, name.strip_suffix('+')) {
                        (None, _) => false,
                        (Some(input), Some(prefix)) => input.starts_with(prefix),
                        (Some(input), None) => input == name,
                    }
                }
                "-p" => next() == self.protocol.as_str(),
                "--dport" => next().parse() == Ok(self.port),
                "--dst-type" => next() == "LOCAL" && self.is_local(self.to),
                "--src-type" => next() == "LOCAL" && self.is_local(self.from),
                "--ctstate" => next().split(',').any(|state| state == "NEW"),
                "--mark" => {
                    next();
                    marked
                }
                "--probability" => {
                    let probability: f64 = next().parse().unwrap();
                    assert!(probability > 0.0 && probability < 1.0);
                    chance = true;
                    true
                }
                "--rcheck" => self.remembered.is_some(),
                "--name" => {
                    let name = next();
                    !rule.contains("--rcheck") || self.remembered == Some(name)
                }
                other => panic!("match {other} in {rule}"),
            };
            if matched == not {
                return Some(false);
            }
            not = false;
        }
        (!chance).then_some(true)
    }
}

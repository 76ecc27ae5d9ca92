//! Rules as text, in the form and order in which `iptables-save` prints them.

use std::fmt::Write as _;

use crate::model::{Cidr, Protocol};

use super::names::ChainName;
use super::settings::LocalDetector;

/// A match that can be turned round.
#[derive(Debug, Clone, Copy)]
pub(super) enum Match<T> {
    Is(T),
    Not(T),
}

impl<T> Match<T> {
    fn write(&self, text: &mut String, flag: &str) -> &T {
        let (not, what) = match self {
            Match::Is(what) => ("", what),
            Match::Not(what) => ("! ", what),
        };
        text.push_str(not);
        text.push_str(flag);
        what
    }
}

/// Where a rule leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    /// Nowhere: it only counts.
    None,
    /// A chain of a service.
    Chain(ChainName),
    /// A fixed chain, or a target with its arguments.
    Fixed(&'a str),
    /// The address of an endpoint.
    Dnat(&'a str),
}

/// A rule; what is not set is not matched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule<'a> {
    pub(super) source: Option<Match<Cidr>>,
    pub(super) destination: Option<Match<Cidr>>,
    /// An interface, with `+` at its end all that begin so.
    pub(super) input: Option<(Match<&'a str>, &'static str)>,
    pub(super) protocol: Option<Protocol>,
    /// The parts of the comment; none of them: no comment.
    pub(super) comment: &'a [&'a str],
    /// Matches in full, in their order, with a blank after each.
    pub(super) matches: &'a str,
    pub(super) port: Option<u16>,
    /// A match by a counter, with a blank after it.
    pub(super) counter: &'static str,
    pub(super) target: Target<'a>,
}

impl Default for Rule<'_> {
    fn default() -> Self {
        Self {
            source: None,
            destination: None,
            input: None,
            protocol: None,
            comment: &[],
            matches: "",
            port: None,
            counter: "",
            target: Target::None,
        }
    }
}

impl<'a> Rule<'a> {
    /// Matches traffic of this node's pods; false without a detector.
    pub(super) fn match_local(&mut self, detector: &'a LocalDetector) -> bool {
        match detector {
            LocalDetector::None => return false,
            LocalDetector::Cidr(range) => self.source = Some(Match::Is(*range)),
            LocalDetector::Bridge(name) => self.input = Some((Match::Is(name), "")),
            LocalDetector::InterfacePrefix(name) => self.input = Some((Match::Is(name), "+")),
        }
        true
    }

    /// Matches all other traffic; false without a detector.
    pub(super) fn match_not_local(&mut self, detector: &'a LocalDetector) -> bool {
        match detector {
            LocalDetector::None => return false,
            LocalDetector::Cidr(range) => self.source = Some(Match::Not(*range)),
            LocalDetector::Bridge(name) => self.input = Some((Match::Not(name), "")),
            LocalDetector::InterfacePrefix(name) => self.input = Some((Match::Not(name), "+")),
        }
        true
    }

    /// Adds the rule to a text, without its chain and without an end of line.
    pub(super) fn write(&self, text: &mut String) {
        for (flag, range) in [("-s ", &self.source), ("-d ", &self.destination)] {
            if let Some(range) = range {
                let range = range.write(text, flag);
                // writing to a String cannot fail
                let _ = write!(text, "{range} ");
            }
        }
        if let Some((name, end)) = &self.input {
            let name = *name.write(text, "-i ");
            text.extend([name, end, " "]);
        }
        if let Some(protocol) = self.protocol {
            text.extend(["-p ", protocol.as_str(), " "]);
        }
        if !self.comment.is_empty() {
            text.push_str("-m comment --comment \"");
            text.extend(self.comment.iter().copied());
            text.push_str("\" ");
        }
        text.push_str(self.matches);
        if let Some(protocol) = self.protocol {
            text.extend(["-m ", protocol.as_str(), " "]);
        }
        if let Some(port) = self.port {
            let _ = write!(text, "--dport {port} ");
        }
        text.push_str(self.counter);
        match self.target {
            Target::None => {
                text.truncate(text.trim_end_matches(' ').len());
            }
            Target::Chain(chain) => {
                text.push_str("-j ");
                chain.write(text);
            }
            Target::Fixed(target) => text.extend(["-j ", target]),
            Target::Dnat(address) => text.extend(["-j DNAT --to-destination ", address]),
        }
    }
}

/// A chain with its rules as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: String,
    /// The lines that append the rules.
    pub(super) lines: String,
    /// How many rules there are.
    pub(super) count: usize,
}

impl Chain {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), lines: String::new(), count: 0 }
    }

    /// A chain with these rules.
    pub(super) fn of(name: &str, rules: &[Rule<'_>]) -> Self {
        let mut chain = Self::new(name);
        rules.iter().for_each(|rule| chain.add(rule));
        chain
    }

    /// Adds a rule.
    pub(super) fn add(&mut self, rule: &Rule<'_>) {
        self.lines.extend(["-A ", &self.name, " "]);
        rule.write(&mut self.lines);
        self.lines.push('\n');
        self.count += 1;
    }

    /// Adds a rule that is text already.
    pub(super) fn add_text(&mut self, rule: &str) {
        self.lines.extend(["-A ", &self.name, " ", rule, "\n"]);
        self.count += 1;
    }

    /// Starts over with another chain.
    pub(super) fn reset(&mut self, name: ChainName) {
        self.name.clear();
        name.write(&mut self.name);
        self.lines.clear();
        self.count = 0;
    }
}

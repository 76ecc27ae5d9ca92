//! One message of a client → what is sent back: at once, or when another server has answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hickory_server::proto::op::{Message, ResponseCode};
use hickory_server::proto::rr::{Name, Record, RecordType};
use tokio::sync::watch;

use crate::cache::CacheKey;
use crate::forward::{Failure, Forwarder, Permit};
use crate::message::{Query, Received, Sections, Transport, receive, respond};
use crate::metrics::{Answered, Metrics, Plugin};
use crate::random::Shuffle;
use crate::upstream::Request;
use crate::zone::{Outcome, Question, Zone};

/// What is to be done with a message.
pub(crate) enum Step {
    /// Nothing.
    Ignore,
    /// These bytes are sent back.
    Reply(Vec<u8>),
    /// Another server is to be asked.
    Wait(Box<Waiting>),
}

/// What all handlers share.
pub(crate) struct Shared {
    pub(crate) forwarder: Forwarder,
    pub(crate) metrics: Arc<Metrics>,
}

/// Answers messages one by one. Each socket has its own, so that nothing is locked.
pub(crate) struct Handler {
    shared: Arc<Shared>,
    published: watch::Receiver<Arc<Zone>>,
    zone: Arc<Zone>,
    random: Shuffle,
}

/// A question to another server.
pub(crate) struct Waiting {
    asked: Asked,
    request: Request,
    aliases: Vec<Record>,
    _permit: Permit,
}

/// A query of a client.
struct Asked {
    query: Box<Query>,
    is_v6: bool,
    began: Instant,
    shared: Arc<Shared>,
}

impl Clone for Handler {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone(), self.published.clone())
    }
}

impl Handler {
    pub(crate) fn new(shared: Arc<Shared>, published: watch::Receiver<Arc<Zone>>) -> Self {
        let zone = published.borrow().clone();
        Self { shared, published, zone, random: Shuffle::new() }
    }

    /// Handles a message.
    pub(crate) fn handle(
        &mut self,
        packet: &[u8],
        source: SocketAddr,
        transport: Transport,
    ) -> Step {
        let began = Instant::now();
        // The one time that something is locked is when there is a new zone.
        if self.published.has_changed().unwrap_or(false) {
            self.zone = self.published.borrow_and_update().clone();
        }
        let is_v6 = !source.ip().to_canonical().is_ipv4();
        match receive(packet, source, transport) {
            Received::Ignored => Step::Ignore,
            Received::Refused(code, bytes) => {
                self.shared.metrics.answered(&Answered {
                    transport,
                    is_v6,
                    kind: RecordType::ZERO,
                    wants_signatures: false,
                    code,
                    plugin: Plugin::None,
                    sizes: (packet.len(), bytes.len()),
                    took: began.elapsed(),
                });
                Step::Reply(bytes)
            }
            Received::Query(query) => {
                let shared = self.shared.clone();
                self.answer(Asked { query, is_v6, began, shared })
            }
        }
    }

    /// Counts a panic in the work on one message.
    pub(crate) fn panicked(&self) {
        self.shared.metrics.panics.inc();
    }

    fn answer(&mut self, asked: Asked) -> Step {
        let query = &asked.query;
        let question = Question { name: query.name(), kind: query.kind(), limit: query.limit() };
        let answer = self.zone.answer(&question, &mut self.random);
        let mut sections = Sections {
            authoritative: true,
            recursion: self.shared.forwarder.is_enabled(),
            answers: answer.records,
            additionals: answer.additionals,
            ..Sections::default()
        };
        let code = match answer.outcome {
            Outcome::Complete => ResponseCode::NoError,
            Outcome::NoData(soa) => {
                sections.authorities.push(*soa);
                ResponseCode::NoError
            }
            Outcome::NameError(soa) => {
                sections.authorities.push(*soa);
                ResponseCode::NXDomain
            }
            Outcome::Refused => ResponseCode::Refused,
            Outcome::NotSynced => ResponseCode::ServFail,
            Outcome::Elsewhere(name) => return self.elsewhere(asked, &name, sections.answers),
        };
        if matches!(code, ResponseCode::Refused | ResponseCode::ServFail) {
            sections = Sections::default();
        }
        Step::Reply(asked.reply(code, &sections, Plugin::Kubernetes))
    }

    fn elsewhere(&mut self, asked: Asked, name: &Name, aliases: Vec<Record>) -> Step {
        let (query, forwarder) = (&asked.query, &self.shared.forwarder);
        let refuse = |asked: Asked| {
            let bytes = asked.reply(ResponseCode::Refused, &Sections::default(), Plugin::Forward);
            Step::Reply(bytes)
        };
        if query.kind() == RecordType::HINFO && forwarder.is_own_probe(name) {
            return refuse(asked);
        }
        let key = CacheKey {
            name: name.to_lowercase(),
            kind: query.kind(),
            dnssec_ok: query.edns() == Some(true),
            checking_disabled: query.metadata().checking_disabled,
        };
        if let Some(message) = forwarder.cached(&key) {
            return Step::Reply(asked.relay(message, aliases, Plugin::Cache));
        }
        // Without aliases the name is of no zone of ours, and nothing can be said about it.
        if !forwarder.is_enabled() && !aliases.is_empty() {
            let sections =
                Sections { authoritative: true, answers: aliases, ..Sections::default() };
            let bytes = asked.reply(ResponseCode::NoError, &sections, Plugin::Kubernetes);
            return Step::Reply(bytes);
        }
        match forwarder.admit().filter(|_| forwarder.is_enabled()) {
            Some(permit) => {
                let request = Request {
                    recursion_desired: query.metadata().recursion_desired || !aliases.is_empty(),
                    edns: query.edns().is_some(),
                    key,
                };
                Step::Wait(Box::new(Waiting { asked, request, aliases, _permit: permit }))
            }
            None => refuse(asked),
        }
    }
}

impl Waiting {
    /// Waits for the other server. The bytes are sent back.
    pub(crate) async fn reply(self) -> Vec<u8> {
        match self.asked.shared.forwarder.ask(&self.request).await {
            Ok(message) => self.asked.relay(message, self.aliases, Plugin::Forward),
            Err(failure) => {
                let code = match failure {
                    Failure::NoServers => ResponseCode::Refused,
                    Failure::Unanswered => ResponseCode::ServFail,
                };
                self.asked.reply(code, &Sections::default(), Plugin::Forward)
            }
        }
    }
}

impl Asked {
    /// The answer of another server, after the aliases that led to it.
    fn relay(self, message: Message, mut aliases: Vec<Record>, plugin: Plugin) -> Vec<u8> {
        let is_ours = !aliases.is_empty();
        aliases.extend(message.answers);
        shuffle_addresses(&mut aliases);
        let sections = Sections {
            authoritative: is_ours,
            recursion: true,
            authentic: message.metadata.authentic_data && !is_ours,
            answers: aliases,
            authorities: message.authorities,
            additionals: message.additionals,
        };
        self.reply(message.metadata.response_code, &sections, plugin)
    }

    fn reply(self, code: ResponseCode, sections: &Sections, plugin: Plugin) -> Vec<u8> {
        let bytes = respond(&self.query, code, sections);
        self.shared.metrics.answered(&Answered {
            transport: self.query.transport,
            is_v6: self.is_v6,
            kind: self.query.kind(),
            wants_signatures: self.query.edns() == Some(true),
            code,
            plugin,
            sizes: (usize::from(self.query.max_size()), bytes.len()),
            took: self.began.elapsed(),
        });
        bytes
    }
}

/// Puts addresses into a random order, each where an address was before.
fn shuffle_addresses(records: &mut [Record]) {
    let is_address =
        |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
    let places: Vec<usize> = (0..records.len()).filter(|at| is_address(&records[*at])).collect();
    let mut random = Shuffle::new();
    for last in (1..places.len()).rev() {
        records.swap(places[last], places[random.below(last + 1)]);
    }
}

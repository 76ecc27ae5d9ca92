//! The cache of other servers' answers, each until it expires; bounded in number and in size.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::proto::op::{Message, ResponseCode};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Answers that are kept, as CoreDNS.
const CAPACITY: usize = 9984;
const PARTS: usize = 16;
/// The longest answer that is kept, in bytes.
const MAX_SIZE: usize = 4096;
/// How long an answer is kept: not as briefly as it may say, and never longer than this.
const MIN_TTL: Duration = Duration::from_secs(5);
const MAX_TTL: Duration = Duration::from_secs(30);
/// How long a failure is.
const FAILURE_TTL: Duration = Duration::from_secs(5);

/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    /// In lower case.
    pub(crate) name: Name,
    pub(crate) kind: RecordType,
    /// With signatures.
    pub(crate) dnssec_ok: bool,
    /// Without validation.
    pub(crate) checking_disabled: bool,
}

#[derive(Debug, Clone)]
struct Entry {
    message: Arc<[u8]>,
    stored: Instant,
    ttl: Duration,
    is_denial: bool,
}

#[derive(Debug, Default)]
struct Part {
    entries: HashMap<CacheKey, Entry>,
    /// The keys, the oldest first.
    order: VecDeque<CacheKey>,
}

/// The cache.
pub(crate) struct Cache {
    parts: [Mutex<Part>; PARTS],
    hasher: RandomState,
    metrics: Arc<Metrics>,
}

impl Cache {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { parts: Default::default(), hasher: RandomState::new(), metrics }
    }

    /// The answer for this key with what is left of its times to live.
    pub(crate) fn get(&self, key: &CacheKey) -> Option<Message> {
        let metrics = &self.metrics.cache;
        metrics.requests.inc();
        let entry = self.part(key).entries.get(key).cloned();
        let now = Instant::now();
        let found = entry.and_then(|entry| {
            let age = now.saturating_duration_since(entry.stored);
            let message = (age < entry.ttl).then(|| Message::from_vec(&entry.message).ok());
            Some((message.flatten()?, age, entry.is_denial))
        });
        let Some((mut message, age, is_denial)) = found else {
            metrics.misses.inc();
            return None;
        };
        metrics.hits[usize::from(is_denial)].inc();
        let age = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        let sections = [&mut message.answers, &mut message.authorities, &mut message.additionals];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(message)
    }

    /// Keeps an answer, if it may be kept.
    pub(crate) fn insert(&self, key: CacheKey, message: &Message, bytes: &[u8]) {
        let Some((ttl, is_denial)) = time_to_live(message) else { return };
        if bytes.len() > MAX_SIZE {
            return;
        }
        let metrics = &self.metrics.cache;
        let entry = Entry { message: bytes.into(), stored: Instant::now(), ttl, is_denial };
        let mut part = self.part(&key);
        match part.entries.insert(key.clone(), entry) {
            Some(old) => metrics.entries[usize::from(old.is_denial)].add(-1.0),
            None => part.order.push_back(key),
        }
        metrics.entries[usize::from(is_denial)].add(1.0);
        while part.order.len() > CAPACITY / PARTS {
            let oldest = part.order.pop_front();
            if let Some(old) = oldest.and_then(|oldest| part.entries.remove(&oldest)) {
                metrics.entries[usize::from(old.is_denial)].add(-1.0);
                metrics.evictions[usize::from(old.is_denial)].inc();
            }
        }
    }

    fn part(&self, key: &CacheKey) -> MutexGuard<'_, Part> {
        let at = self.hasher.hash_one(key) as usize % PARTS;
        self.parts[at].lock()
    }
}

/// How long an answer may be kept, and whether it is a denial; `None`: not at all.
fn time_to_live(message: &Message) -> Option<(Duration, bool)> {
    if message.metadata.truncation {
        return None;
    }
    let answered = !message.answers.is_empty();
    let seconds = match message.metadata.response_code {
        ResponseCode::NoError if answered => {
            message.answers.iter().chain(&message.authorities).map(|record| record.ttl).min()?
        }
        ResponseCode::NoError | ResponseCode::NXDomain => {
            message.authorities.iter().find_map(negative)?
        }
        ResponseCode::ServFail => return Some((FAILURE_TTL, true)),
        _ => return None,
    };
    let is_denial = !answered || message.metadata.response_code == ResponseCode::NXDomain;
    Some((Duration::from_secs(seconds.into()).clamp(MIN_TTL, MAX_TTL), is_denial))
}

/// The negative time to live of a SOA record (RFC 2308).
fn negative(record: &Record) -> Option<u32> {
    match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use hickory_server::proto::op::OpCode;
    use hickory_server::proto::rr::rdata::{A, SOA};

    use super::*;

    fn key(name: &str) -> CacheKey {
        let name = Name::from_ascii(name).unwrap();
        CacheKey { name, kind: RecordType::A, dnssec_ok: false, checking_disabled: false }
    }

    fn answer(ttl: u32) -> Message {
        let mut message = Message::response(1, OpCode::Query);
        let data = RData::A(A(Ipv4Addr::LOCALHOST));
        message.add_answer(Record::from_rdata(Name::root(), ttl, data));
        message
    }

    fn denial(ttl: u32, minimum: u32) -> Message {
        let mut message = Message::error_msg(1, OpCode::Query, ResponseCode::NXDomain);
        let soa = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, minimum);
        message.add_authority(Record::from_rdata(Name::root(), ttl, RData::SOA(soa)));
        message
    }

    #[test]
    fn cache_times_to_live() {
        let seconds = |message: &Message| {
            time_to_live(message).map(|(ttl, is_denial)| (ttl.as_secs(), is_denial))
        };
        let mut truncated = answer(20);
        truncated.metadata.truncation = true;
        let no_soa = Message::error_msg(1, OpCode::Query, ResponseCode::NXDomain);
        let failure = Message::error_msg(1, OpCode::Query, ResponseCode::ServFail);
        let refused = Message::error_msg(1, OpCode::Query, ResponseCode::Refused);
        for (message, expected) in [
            (answer(20), Some((20, false))),
            (answer(0), Some((5, false))),
            (answer(u32::MAX), Some((30, false))),
            (denial(20, 10), Some((10, true))),
            (denial(10, 20), Some((10, true))),
            (truncated, None),
            (no_soa, None),
            (failure, Some((5, true))),
            (refused, None),
        ] {
            assert_eq!(seconds(&message), expected, "{message:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cache_entries_expire() {
        let metrics = Metrics::new(53);
        let cache = Cache::new(metrics.clone());
        let message = answer(20);
        cache.insert(key("a."), &message, &message.to_vec().unwrap());
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(cache.get(&key("a.")).unwrap().answers[0].ttl, 13);
        assert!(cache.get(&key("b.")).is_none());
        tokio::time::advance(Duration::from_secs(13)).await;
        assert!(cache.get(&key("a.")).is_none());
        assert_eq!(metrics.cache.hits[0].get(), 1);
        assert_eq!(metrics.cache.misses.get(), 2);
    }

    #[test]
    fn cache_is_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let metrics = Metrics::new(53);
        let cache = Cache::new(metrics.clone());
        let message = answer(20);
        let bytes = message.to_vec().unwrap();
        for number in 0..2 * CAPACITY {
            cache.insert(key(&format!("{number}.")), &message, &bytes);
        }
        let kept: usize = cache.parts.iter().map(|part| part.lock().entries.len()).sum();
        assert!(kept <= CAPACITY);
        assert!((metrics.cache.entries[0].get() - kept as f64).abs() < 0.5);
        assert_eq!(metrics.cache.evictions[0].get() as usize, 2 * CAPACITY - kept);
        cache.insert(key("long."), &message, &[0; MAX_SIZE + 1]);
        assert!(cache.get(&key("long.")).is_none());
    }
}

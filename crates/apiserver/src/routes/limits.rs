//! Limits per user: requests in flight, bytes of bodies and responses, and concurrent large work.
//! Nodes, administrators and the cluster's own controllers have reserved shares, so that leases and
//! status never wait behind others.
//!
//! With priority and fairness ([`crate::flow_control`]) the limits of requests are wider, as requests wait
//! in its queues: then they bound the memory of those that wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::budget::{Budget, Holder, Priority, Share};
use longshore_base::fair_queue::{FairQueue, Permit};
use longshore_serving::PROFILES;
use parking_lot::Mutex;

use super::request::RequestLine;
use super::respond::{Answer, Result};
use crate::api_types::Resource;
use crate::offload::{self, LARGE};
use crate::response_body::Memory;
use crate::status::StatusError;
use crate::user::User;
use crate::{RequestLimits, user};

/// Requests of the system beyond the common limit; upstream does not limit administrators.
const SYSTEM_REQUESTS: u64 = 4096;
/// Requests of each kind that wait in queues or are answered, with priority and fairness.
const QUEUED: (u64, u64) = (4096, SYSTEM_REQUESTS);
/// Bodies that are being read or worked on, in bytes; a JSON value takes several times as much.
const BODIES: (u64, u64) = (12 << 20, 4 << 20);
/// Answers that are being made or sent, in bytes, without the small ones.
const ANSWERS: (u64, u64) = (256 << 20, 128 << 20);
/// How many requests of one priority are authenticated and authorized at a time: more than there are
/// threads, as some wait for the store.
const ADMISSIONS: usize = 32;
/// How long one of them is kept.
pub(super) const ADMISSION_SLOT: Duration = Duration::from_millis(250);
/// Watches, logs and other requests that last.
const LONG_RUNNING: (u64, u64) = (16 << 10, 16 << 10);

/// Users and groups that keep the cluster running.
const SYSTEM_GROUPS: [&str; 3] = [user::MASTERS, user::NODES, "system:serviceaccounts:kube-system"];
const SYSTEM_USERS: [&str; 2] = ["system:kube-controller-manager", "system:kube-scheduler"];

/// The holder of budgets for a user.
pub(super) fn holder(user: &User) -> Holder {
    let is_system = SYSTEM_GROUPS.iter().any(|group| user.is_in(group))
        || SYSTEM_USERS.contains(&user.name.as_str());
    Holder::new(&user.name, if is_system { Priority::System } else { Priority::Ordinary })
}

/// The budgets.
pub(super) struct Limits {
    pub(super) bodies: Arc<Budget>,
    answers: Arc<Budget>,
    reading: Arc<Budget>,
    mutating: Arc<Budget>,
    long_running: Arc<Budget>,
    /// Slots for authentication and authorization: of ordinary users, and of the system.
    admission: Slots,
    /// Slots for large work, likewise.
    large_work: Slots,
    /// The same for lists of each custom kind that a webhook converts, by its place in the store and its
    /// version: they wait for the webhook, and others do not wait for them.
    converted: Mutex<HashMap<(&'static str, &'static str), Slots>>,
}

impl Limits {
    pub(super) fn new(most: RequestLimits) -> Limits {
        let requests = |limit: u32| match limit {
            _ if most.seats().is_some() => Budget::new(QUEUED.0, QUEUED.1),
            // Zero means no limit, as upstream has it.
            0 => Budget::new(u64::MAX, 0),
            limit => Budget::new(limit.into(), SYSTEM_REQUESTS),
        };
        let budget = |(ordinary, reserved)| Budget::new(ordinary, reserved);
        Limits {
            bodies: budget(BODIES),
            answers: budget(ANSWERS),
            reading: requests(most.reading),
            mutating: requests(most.mutating),
            long_running: budget(LONG_RUNNING),
            admission: [FairQueue::new(ADMISSIONS), FairQueue::new(ADMISSIONS)],
            large_work: slots(),
            converted: Mutex::default(),
        }
    }

    /// Admits a request to those in flight; 429 when there are too many.
    pub(super) fn admit(&self, holder: &Holder, line: &RequestLine) -> Result<Share> {
        let budget = match line.verb {
            _ if is_long_running(line) => &self.long_running,
            "get" | "list" => &self.reading,
            _ => &self.mutating,
        };
        budget.take(holder, 1).ok_or_else(too_many)
    }

    /// How many requests are in flight that do not last, by upstream's names of their kinds.
    pub(super) fn in_flight(&self) -> [(&'static str, u64); 2] {
        [("readOnly", self.reading.taken()), ("mutating", self.mutating.taken())]
    }

    /// Reserves memory for a response, of this many bytes so far.
    pub(super) fn memory(&self, holder: &Holder, bytes: usize) -> Result<Arc<Memory>> {
        self.answers.take(holder, bytes as u64).map(Memory::new).ok_or_else(too_many)
    }

    /// Counts a response that was made without a reservation. A read is rejected when there is too
    /// little memory left; the response to a write is sent.
    pub(super) fn charge(&self, holder: &Holder, verb: &str, answer: Answer) -> Result {
        let length = answer.body().len();
        if length < LARGE || answer.body().memory().is_some() {
            return Ok(answer);
        }
        match self.memory(holder, length) {
            Ok(memory) => Ok(answer.map(|body| body.with_memory(memory))),
            Err(error) if verb == "get" => Err(error),
            Err(_) => Ok(answer),
        }
    }

    /// Waits for a slot for large work: lists of any size, and large bodies.
    pub(super) async fn large_work_permit(&self, holder: &Holder) -> Permit {
        acquire(&self.large_work, holder).await
    }

    /// The same for a list.
    pub(super) async fn list_permit(&self, holder: &Holder, resource: &Resource) -> Permit {
        if !resource.has_webhook() {
            return self.large_work_permit(holder).await;
        }
        let key = (resource.storage, resource.version);
        let queues = self.converted.lock().entry(key).or_insert_with(slots).clone();
        acquire(&queues, holder).await
    }

    /// The slots for large work of the caller's priority.
    pub(super) fn large_work_queue(&self, holder: &Holder) -> Arc<FairQueue> {
        self.large_work[queue_of(holder)].clone()
    }

    /// Waits for a slot for authentication and authorization, by user in rotation.
    pub(super) async fn admission_permit(&self, holder: &Holder) -> Permit {
        acquire(&self.admission, holder).await
    }
}

/// Slots of ordinary users, and of the system.
type Slots = [Arc<FairQueue>; 2];

/// Slots for large work.
fn slots() -> Slots {
    [FairQueue::new(offload::MAX_CONCURRENT), FairQueue::new(offload::MAX_CONCURRENT)]
}

async fn acquire(queues: &Slots, holder: &Holder) -> Permit {
    queues[queue_of(holder)].take(holder).await
}

/// Ordinary users have the first queue, the system has the second.
fn queue_of(holder: &Holder) -> usize {
    match holder.priority() {
        Priority::Ordinary => 0,
        Priority::System => 1,
    }
}

/// Whether a request lasts as long as its client likes; upstream's set of verbs and subresources.
pub(super) fn is_long_running(line: &RequestLine) -> bool {
    let lasting = ["attach", "exec", "log", "portforward", "proxy"];
    let path = line.resource.as_ref();
    line.verb == "watch"
        || line.path.starts_with(PROFILES)
        || path.is_some_and(|path| lasting.contains(&path.subresource.as_str()))
}

/// 429 in upstream's words.
pub(super) fn too_many() -> StatusError {
    StatusError::too_many_requests("Too many requests, please try again later.", 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper::Method;

    use super::*;

    fn line(method: Method, path: &str) -> RequestLine {
        RequestLine::parse(&method, &path.parse().unwrap()).unwrap()
    }

    #[test]
    fn request_limits_reserve_a_share_for_the_system() {
        for (name, group, priority) in [
            ("system:node:n1", "system:nodes", Priority::System),
            ("kubernetes-admin", "system:masters", Priority::System),
            (
                "system:serviceaccount:kube-system:x",
                "system:serviceaccounts:kube-system",
                Priority::System,
            ),
            ("system:kube-scheduler", "", Priority::System),
            ("system:node:n1", "", Priority::Ordinary),
            ("system:serviceaccount:dev:x", "system:serviceaccounts:dev", Priority::Ordinary),
            ("system:anonymous", "system:unauthenticated", Priority::Ordinary),
        ] {
            let user = User { name: name.into(), groups: vec![group.into()], ..User::default() };
            assert_eq!(holder(&user).priority(), priority, "{name} {group}");
        }
    }

    // Finding 3
    #[test]
    fn request_limits_by_kind() {
        let most = |reading, mutating| RequestLimits { reading, mutating, has_flow_control: false };
        let limits = Limits::new(most(2, 2));
        let user = Holder::new("a", Priority::Ordinary);
        let [read, write, watch] = [
            line(Method::GET, "/api/v1/pods"),
            line(Method::POST, "/api/v1/namespaces/a/pods"),
            line(Method::GET, "/api/v1/pods?watch=1"),
        ];
        let held = limits.admit(&user, &read).unwrap();
        assert_eq!(limits.admit(&user, &read).unwrap_err().code, 429);
        let _writes = limits.admit(&user, &write).unwrap();
        let watches: Vec<_> = (0..100).map(|_| limits.admit(&user, &watch).unwrap()).collect();
        drop(held);
        assert!(limits.admit(&user, &read).is_ok() && watches.len() == 100);
        let unlimited = Limits::new(most(0, 0));
        let held: Vec<_> = (0..5000).map(|_| unlimited.admit(&user, &read)).collect();
        assert!(held.iter().all(Result::is_ok));
        // with queues, one user has half of what may wait
        let queued = Limits::new(RequestLimits { has_flow_control: true, ..most(2, 2) });
        let held: Vec<_> = (0..5000).filter_map(|_| queued.admit(&user, &read).ok()).collect();
        assert_eq!(held.len(), 2048);
    }

    #[test]
    fn long_running_requests_are_upstreams() {
        for (method, path, expected) in [
            (Method::GET, "/api/v1/pods?watch=1", true),
            (Method::GET, "/api/v1/namespaces/a/pods/b/log?follow=1", true),
            (Method::POST, "/api/v1/namespaces/a/pods/b/exec", true),
            (Method::GET, "/api/v1/nodes/n1/proxy/logs", true),
            (Method::GET, "/api/v1/namespaces/a/pods/b", false),
            (Method::PATCH, "/api/v1/namespaces/a/pods/b/status", false),
            (Method::GET, "/version", false),
            (Method::GET, "/debug/pprof/profile?seconds=90", true),
        ] {
            assert_eq!(is_long_running(&line(method, path)), expected, "{path}");
        }
    }
}

//! Leases for keys with a ttl, shared: keys that are written within a short while with the same
//! ttl go together, a little after their time, so that a thousand events make one lease.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use etcd_client::LeaseClient;
use tokio::sync::Mutex;

use super::call::{Failure, call, method};

/// Keys under one lease at most: etcd deletes all of them in one transaction.
const KEYS: usize = 1000;

/// A lease lasts longer than its ttl by a twentieth, within these bounds in seconds, and is
/// handed out for so long.
const SLACK: (u64, u64) = (1, 60);

pub(super) struct Leases {
    client: LeaseClient,
    /// By ttl in seconds.
    granted: Mutex<HashMap<u64, Granted>>,
}

struct Granted {
    lease: i64,
    until: Instant,
    keys: usize,
}

impl Leases {
    pub(super) fn new(client: LeaseClient) -> Self {
        Leases { client, granted: Mutex::default() }
    }

    /// A lease that lasts for `ttl` from now, and not much longer.
    pub(super) async fn lease(&self, ttl: Duration) -> Result<i64, Failure> {
        let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
        // held while a lease is granted: concurrent callers share it
        let mut granted = self.granted.lock().await;
        let now = Instant::now();
        if let Some(known) = granted.get_mut(&seconds)
            && known.until > now
            && known.keys < KEYS
        {
            known.keys += 1;
            return Ok(known.lease);
        }
        granted.retain(|_, known| known.until > now);
        let slack = (seconds / 20).clamp(SLACK.0, SLACK.1);
        let lifetime = i64::try_from(seconds.saturating_add(slack)).unwrap_or(i64::MAX);
        let lease =
            call(method::LEASE_GRANT, self.client.clone().grant(lifetime, None)).await?.id();
        granted.insert(
            seconds,
            Granted {
                lease,
                until: now.checked_add(Duration::from_secs(slack)).unwrap_or(now),
                keys: 1,
            },
        );
        Ok(lease)
    }

    /// When a lease runs out, since 1970.
    pub(super) async fn deadline(&self, lease: i64) -> Result<Option<Duration>, Failure> {
        let answer =
            call(method::LEASE_TIME_TO_LIVE, self.client.clone().time_to_live(lease, None)).await?;
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // one that is gone is about to take its keys with it
        let left = Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0).max(1));
        Ok(Some(now.saturating_add(left)))
    }

    /// Hands out this lease no more.
    pub(super) async fn forget(&self, lease: i64) {
        self.granted.lock().await.retain(|_, known| known.lease != lease);
    }
}

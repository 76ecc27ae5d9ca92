//! A call to etcd: never without a deadline, its error sorted by what it means to the store, and with a span
//! in the trace of the request that it is for.

use std::fmt::Display;
use std::time::Duration;

use futures::FutureExt as _;
use longshore_telemetry::{Kind, child};

use crate::Error;

/// The methods that are called.
pub(super) mod method {
    pub(crate) const RANGE: &str = "etcdserverpb.KV/Range";
    pub(crate) const PUT: &str = "etcdserverpb.KV/Put";
    pub(crate) const DELETE_RANGE: &str = "etcdserverpb.KV/DeleteRange";
    pub(crate) const TXN: &str = "etcdserverpb.KV/Txn";
    pub(crate) const COMPACT: &str = "etcdserverpb.KV/Compact";
    pub(crate) const WATCH: &str = "etcdserverpb.Watch/Watch";
    pub(crate) const LEASE_GRANT: &str = "etcdserverpb.Lease/LeaseGrant";
    pub(crate) const LEASE_TIME_TO_LIVE: &str = "etcdserverpb.Lease/LeaseTimeToLive";
}

/// The longest that a call may take. A compaction that cleans up a large history takes longer.
const DEADLINE: Duration = Duration::from_secs(10);
const COMPACTION_DEADLINE: Duration = Duration::from_secs(120);

/// gRPC's number for "out of range", by which etcd means revisions.
const OUT_OF_RANGE: i32 = 11;

/// Why a call failed.
pub(super) enum Failure {
    /// The revision is compacted.
    Compacted,
    /// The revision is yet to come.
    Future,
    /// The lease is not known (any more).
    NoLease,
    /// The error for the store's caller.
    Store(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Store(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let what = match failure {
            Failure::Store(error) => return error,
            Failure::Compacted => "a revision is compacted",
            Failure::Future => "a revision is in the future",
            Failure::NoLease => "a lease is not known",
        };
        Error::Backend(format!("etcd: {what}"))
    }
}

/// Awaits a call's answer, for as long as one may take.
// These are not `async fn`s, each of which would have the call's large future twice.
pub(super) fn call<T>(
    method: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    within(DEADLINE, method, answer)
}

/// The same for a compaction.
pub(super) fn compaction_call<T>(
    method: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    within(COMPACTION_DEADLINE, method, answer)
}

fn within<T>(
    deadline: Duration,
    method: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    let mut span = child(method, Kind::Client);
    tokio::time::timeout(deadline, answer).map(move |answer| {
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => classify(method, &error),
            Err(_) => failed(method, format_args!("no answer within {} s", deadline.as_secs())),
        };
        span.fail("");
        Err(error)
    })
}

fn classify(method: &'static str, error: &etcd_client::Error) -> Failure {
    if let etcd_client::Error::GRpcStatus(status) = error {
        let (code, message) = (status.code() as i32, status.message());
        match () {
            () if code == OUT_OF_RANGE && message.contains("has been compacted") => {
                return Failure::Compacted;
            }
            () if code == OUT_OF_RANGE && message.contains("future revision") => {
                return Failure::Future;
            }
            () if message.contains("requested lease not found") => return Failure::NoLease,
            () => {}
        }
    }
    failed(method, error)
}

fn failed(method: &'static str, why: impl Display) -> Failure {
    let method = method.trim_start_matches("etcdserverpb.");
    Error::Backend(format!("etcd {method}: {why}")).into()
}

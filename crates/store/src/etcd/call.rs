//! A call to etcd: never without a deadline, and its error sorted by what it means to the store.

use std::time::Duration;

use futures::FutureExt as _;

use crate::Error;

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
    name: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    within(DEADLINE, name, answer)
}

/// The same for a compaction.
pub(super) fn compaction_call<T>(
    name: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    within(COMPACTION_DEADLINE, name, answer)
}

fn within<T>(
    deadline: Duration,
    name: &'static str,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, Failure>> {
    tokio::time::timeout(deadline, answer).map(move |answer| match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(classify(name, &error)),
        Err(_) => {
            Err(Error::Backend(format!("etcd {name}: no answer within {} s", deadline.as_secs()))
                .into())
        }
    })
}

fn classify(name: &'static str, error: &etcd_client::Error) -> Failure {
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
    Error::Backend(format!("etcd {name}: {error}")).into()
}

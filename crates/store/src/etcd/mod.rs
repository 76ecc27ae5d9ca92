//! The store in etcd v3.4 or newer. Conditional writes are transactions on `mod_revision`, keys
//! with a ttl share leases ([`leases`]), a watch is one gRPC stream ([`watch`]).
//!
//! Current limitations: no user names. Progress comes as often as the server's
//! `watch-progress-notify-interval` says (10 minutes unless set).

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Client, CompactionOptions, Compare, CompareOp, ConnectOptions, GetOptions,
    Identity, KvClient, PutOptions, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse,
    WatchClient,
};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::backup::Entry;
use crate::{
    Error, Expect, KeyValue, ListOptions, PAGE_BYTES, Page, Result, Revision, Store, WatchItem,
};
use call::{Failure, call, compaction_call, method};
use leases::Leases;

mod call;
mod leases;
mod watch;

/// The connection is probed this often, and given up after so long without an answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// The largest answer that is taken.
const MESSAGE_LIMIT: usize = 1 << 30;

/// How many items of a list are requested before anything is known of their size.
const FIRST_ITEMS: usize = 32;

/// How many times the items that are known a next request asks for at most.
const GROWTH: usize = 4;

/// How many leases are remembered in an export.
const MAX_LEASES: usize = 10_000;

/// A store in an etcd cluster.
pub struct EtcdStore {
    kv: KvClient,
    watch: WatchClient,
    leases: Leases,
}

/// What a connection to etcd with TLS needs, in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// The CA of the members.
    pub authority: Vec<u8>,
    /// The client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdTls {
    fn options(&self) -> TlsOptions {
        let options = TlsOptions::new().ca_certificate(Certificate::from_pem(&self.authority));
        match &self.identity {
            Some((certificate, key)) => options.identity(Identity::from_pem(certificate, key)),
            None => options,
        }
    }
}

impl EtcdStore {
    /// Connects to a cluster by its members' `host:port` (or `http://host:port`) and asks it for
    /// its revision. The error names the endpoints.
    pub async fn connect(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        EtcdStore::connect_with(&endpoints, None).await
    }

    /// The same, with TLS for members by `https://host:port`.
    pub async fn connect_with(endpoints: &[String], tls: Option<&EtcdTls>) -> Result<Self> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(KEEP_ALIVE.1)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let named =
            |error: String| Error::Backend(format!("etcd at {}: {error}", endpoints.join(",")));
        if let Some(tls) = tls {
            options = options.with_tls(tls.options());
        }
        let client = Client::connect(endpoints, Some(options))
            .await
            .map_err(|error| named(error.to_string()))?;
        let store = EtcdStore {
            kv: client.kv_client().max_decoding_message_size(MESSAGE_LIMIT),
            watch: client.watch_client().max_decoding_message_size(MESSAGE_LIMIT),
            leases: Leases::new(client.lease_client()),
        };
        store.revision().await.map_err(|error| named(error.to_string()))?;
        Ok(store)
    }

    /// What is there at a revision below a prefix, from a key on, by keys. Empty: there is nothing more.
    /// `deadlines` keeps when leases run out, for the next page.
    ///
    /// # Errors
    ///
    /// [`Error::Compacted`] for a revision that is not kept any more.
    pub async fn export(
        &self,
        prefix: &str,
        start: &str,
        at: Revision,
        deadlines: &mut HashMap<i64, Option<Duration>>,
    ) -> Result<Vec<Entry>> {
        const ITEMS: i64 = 500;
        let (first, end) = prefix_range(prefix);
        let from = start.as_bytes().to_vec().max(first);
        let options = GetOptions::new().with_range(end).with_limit(ITEMS).with_revision(at);
        let mut answer = match call(method::RANGE, self.kv.clone().get(from, Some(options))).await {
            Ok(answer) => answer,
            Err(failure) => return Err(self.explain(at, failure).await),
        };
        let mut entries = Vec::new();
        for kv in answer.take_kvs() {
            let lease = kv.lease();
            let deadline = match deadlines.get(&lease) {
                _ if lease == 0 => None,
                Some(known) => *known,
                None => {
                    let deadline = self.leases.deadline(lease).await?;
                    // a few leases have all the keys that go
                    if deadlines.len() >= MAX_LEASES {
                        deadlines.clear();
                    }
                    deadlines.insert(lease, deadline);
                    deadline
                }
            };
            let KeyValue { key, value, create_revision, mod_revision, .. } = key_value(kv)?;
            let key = String::from(&*key);
            entries.push(Entry { key, value, create_revision, mod_revision, deadline });
        }
        Ok(entries)
    }

    /// Writes one key until the revision is this one at least, and deletes it: there is no other way.
    ///
    /// # Errors
    ///
    /// A write fails.
    pub async fn raise_revision(&self, key: &str, to: Revision) -> Result<()> {
        const AT_ONCE: i64 = 64;
        const MOST: i64 = 100_000_000;
        loop {
            let missing = to.saturating_sub(self.revision().await?);
            if missing > MOST {
                return Err(Error::Backend(format!(
                    "etcd's revision would have to be raised by {missing}, which takes too long"
                )));
            }
            if missing <= 0 {
                break;
            }
            let writes = (0..missing.min(AT_ONCE.saturating_mul(AT_ONCE))).map(|_| async {
                call(method::PUT, self.kv.clone().put(key, "", None)).await.map(drop)
            });
            let mut writes = futures::stream::iter(writes).buffer_unordered(AT_ONCE as usize);
            while let Some(written) = writes.next().await {
                written?;
            }
        }
        call(method::DELETE_RANGE, self.kv.clone().delete(key, None)).await?;
        Ok(())
    }

    /// Runs `then` if `expect` holds of `key`; otherwise returns the current key.
    async fn transact(
        &self,
        key: &str,
        expect: Expect,
        then: Vec<TxnOp>,
    ) -> Result<(Revision, Vec<TxnOpResponse>), Failure> {
        let conflict = |current| Failure::Store(Error::Conflict { key: key.to_owned(), current });
        let expected = match expect {
            Expect::Absent => 0,
            // to etcd revision 0 is an absent key, but no key has it
            Expect::Revision(revision) if revision <= 0 => {
                return Err(conflict(self.get(key).await?));
            }
            Expect::Revision(revision) => revision,
        };
        let transaction = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, expected)])
            .and_then(then)
            .or_else([TxnOp::get(key, None)]);
        let answer = call(method::TXN, self.kv.clone().txn(transaction)).await?;
        let mut responses = answer.op_responses();
        if answer.succeeded() {
            return Ok((revision_of(answer.header()), responses));
        }
        let current = match responses.pop() {
            Some(TxnOpResponse::Get(mut found)) => {
                found.take_kvs().pop().map(key_value).transpose()?
            }
            _ => None,
        };
        Err(conflict(current))
    }

    async fn put_once(
        &self,
        key: &str,
        value: &Bytes,
        expect: Expect,
        lease: i64,
    ) -> Result<KeyValue, Failure> {
        let put = TxnOp::put(key, &value[..], Some(PutOptions::new().with_lease(lease)));
        // the create revision, without sending the value back
        let look = TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
        let (revision, responses) = self.transact(key, expect, vec![put, look]).await?;
        let create_revision = match responses.last() {
            Some(TxnOpResponse::Get(found)) => {
                found.kvs().first().map_or(revision, |kv| kv.create_revision())
            }
            _ => revision,
        };
        Ok(KeyValue {
            key: key.into(),
            value: value.clone(),
            create_revision,
            mod_revision: revision,
            is_stale: false,
        })
    }

    /// The first keys of a range, whatever their size.
    async fn range(
        &self,
        from: Vec<u8>,
        end: &[u8],
        limit: usize,
        revision: Revision,
    ) -> Result<Page> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let range = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
        let mut answer = match call(method::RANGE, self.kv.clone().get(from, Some(range))).await {
            Ok(answer) => answer,
            Err(failure) => return Err(self.explain(revision, failure).await),
        };
        let revision = if revision == 0 { revision_of(answer.header()) } else { revision };
        let found = u64::try_from(answer.count()).unwrap_or(0);
        let items = answer.take_kvs().into_iter().map(key_value).collect::<Result<Vec<_>>>()?;
        let remaining = found.saturating_sub(items.len() as u64);
        Ok(Page { items, revision, remaining })
    }

    /// Converts etcd's error about a revision into the store's, with the revisions that it leaves out.
    async fn explain(&self, requested: Revision, failure: Failure) -> Error {
        match failure {
            Failure::Compacted => match watch::oldest(self.watch.clone()).await {
                Ok(oldest) => Error::Compacted { requested, oldest },
                Err(failure) => failure.into(),
            },
            Failure::Future => match self.revision().await {
                Ok(newest) => Error::Future { requested, newest },
                Err(error) => error,
            },
            failure => failure.into(),
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        let mut answer = call(method::RANGE, self.kv.clone().get(key, None)).await?;
        answer.take_kvs().pop().map(key_value).transpose()
    }

    async fn list(&self, prefix: &str, options: ListOptions) -> Result<Page> {
        let (first, end) = prefix_range(prefix);
        let from = options.start.map_or(first.clone(), |start| start.into_bytes().max(first));
        let most = if options.limit == 0 { usize::MAX } else { options.limit };
        let mut page = self.range(from, &end, most.min(FIRST_ITEMS), options.revision).await?;
        let mut bytes: usize = page.items.iter().map(|item| item.value.len()).sum();
        loop {
            let so_far = page.items.len();
            let next = following(so_far, bytes).min(most.saturating_sub(so_far));
            let Some(last) = page.items.last().filter(|_| page.remaining > 0 && next > 0) else {
                return Ok(page);
            };
            let from = format!("{}\0", last.key).into_bytes();
            let more = self.range(from, &end, next, page.revision).await?;
            bytes =
                more.items.iter().map(|item| item.value.len()).sum::<usize>().saturating_add(bytes);
            page.remaining = more.remaining;
            page.items.extend(more.items);
        }
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Result<KeyValue> {
        let Some(ttl) = ttl else { return Ok(self.put_once(key, &value, expect, 0).await?) };
        let lease = self.leases.lease(ttl).await?;
        match self.put_once(key, &value, expect, lease).await {
            // it ran out early, or etcd lost it: once more with a fresh one
            Err(Failure::NoLease) => {
                self.leases.forget(lease).await;
                let lease = self.leases.lease(ttl).await?;
                Ok(self.put_once(key, &value, expect, lease).await?)
            }
            written => Ok(written?),
        }
    }

    async fn delete(&self, key: &str, expect: Revision) -> Result<(KeyValue, Revision)> {
        let look = TxnOp::get(key, None);
        let delete = TxnOp::delete(key, None);
        let (revision, responses) =
            self.transact(key, Expect::Revision(expect), vec![look, delete]).await?;
        let deleted = responses.into_iter().find_map(|response| match response {
            TxnOpResponse::Get(mut found) => found.take_kvs().pop(),
            _ => None,
        });
        let deleted = deleted
            .ok_or_else(|| Error::Backend("etcd delete: the answer lacks the key".to_owned()))?;
        Ok((key_value(deleted)?, revision))
    }

    async fn watch(
        &self,
        prefix: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchItem>>> {
        let (stream, newest) = watch::begin(self.watch.clone(), prefix, after).await?;
        // the member may lag behind the cluster
        if after > newest {
            let newest = self.revision().await?;
            if after > newest {
                return Err(Error::Future { requested: after, newest });
            }
        }
        Ok(watch::items(stream, after, newest))
    }

    async fn revision(&self) -> Result<Revision> {
        // linearizable, and there need not be such a key
        let nothing = GetOptions::new().with_count_only();
        let answer = call(method::RANGE, self.kv.clone().get("\0", Some(nothing))).await?;
        Ok(revision_of(answer.header()))
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        let revision = if revision == 0 { self.revision().await? } else { revision };
        let physical = CompactionOptions::new().with_physical();
        match compaction_call(method::COMPACT, self.kv.clone().compact(revision, Some(physical)))
            .await
        {
            Ok(_) => Ok(()),
            Err(failure) => match self.explain(revision, failure).await {
                // it is compacted already
                Error::Compacted { oldest, .. } if oldest == revision => Ok(()),
                error => Err(error),
            },
        }
    }
}

/// How many items to request next for a page that has so many, of so many bytes; 0 when it is full.
/// etcd bounds an answer by a number only, so it follows the size of the items that are known.
fn following(items: usize, bytes: usize) -> usize {
    let left = PAGE_BYTES.saturating_sub(bytes);
    if left == 0 {
        return 0;
    }
    let average = bytes.checked_div(items).unwrap_or(0).max(1);
    (left / average).clamp(1, items.saturating_mul(GROWTH).max(FIRST_ITEMS))
}

/// First key and end of the range of keys that start with `prefix`.
fn prefix_range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // no byte of UTF-8 is 0xff
        Some(last) => *last = last.saturating_add(1),
        None => return (vec![0], vec![0]),
    }
    (prefix.as_bytes().to_vec(), end)
}

fn revision_of(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, ResponseHeader::revision)
}

fn key_value(kv: etcd_client::KeyValue) -> Result<KeyValue> {
    let (create_revision, mod_revision) = (kv.create_revision(), kv.mod_revision());
    let (key, value) = kv.into_key_value();
    let key = String::from_utf8(key)
        .map_err(|error| Error::Backend(format!("etcd: a key is not UTF-8: {error}")))?;
    let (key, value) = (key.into(), value.into());
    Ok(KeyValue { key, value, create_revision, mod_revision, is_stale: false })
}

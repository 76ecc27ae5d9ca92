//! The node ports that are taken: a bitmap in the store, `/registry/ranges/servicenodeports`, in
//! upstream's form. It is changed by conditional writes only, so that any number of servers share it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longshore_store::{Error, Expect, KeyValue, Revision};
use serde_json::{Value, json};

use super::NodePorts;
use crate::registry::{Registry, StorageMediaType, refusal};
use crate::schema::protobuf;
use crate::schema::value::text;
use crate::status::StatusError;

/// Where upstream keeps it.
const KEY: &str = "/registry/ranges/servicenodeports";
const KIND: &str = "RangeAllocation";
/// A change that loses the race this often gives up.
const MAX_ATTEMPTS: usize = 64;
/// The longest bitmap that is read: one bit for each port.
const MAX_BYTES: usize = 8192;

/// A set of ports of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortSet {
    /// The first port of the range.
    first: u16,
    /// A bit for each port, the lowest first.
    bits: Vec<u8>,
}

impl PortSet {
    pub(crate) fn new(range: NodePorts) -> PortSet {
        PortSet { first: range.first, bits: Vec::new() }
    }

    /// From the bytes of a number whose bits are the ports, the highest byte first.
    fn from_number(range: NodePorts, number: &[u8]) -> PortSet {
        let bits = number.iter().rev().take(MAX_BYTES).copied().collect();
        PortSet { first: range.first, bits }
    }

    /// Those bytes, without zeros before them.
    fn to_number(&self) -> Vec<u8> {
        let number = self.bits.iter().rev().copied();
        number.skip_while(|byte| *byte == 0).collect()
    }

    fn place(&self, port: u16) -> Option<(usize, u8)> {
        let offset = port.checked_sub(self.first)?;
        Some((usize::from(offset >> 3), 1 << (offset & 7)))
    }

    pub(crate) fn contains(&self, port: u16) -> bool {
        let bit = self.place(port).and_then(|(at, bit)| Some(self.bits.get(at)? & bit));
        bit.is_some_and(|bit| bit != 0)
    }

    /// Adds a port; `false`: it is there, or none of the range.
    pub(crate) fn insert(&mut self, port: u16) -> bool {
        let Some((at, bit)) = self.place(port) else { return false };
        if self.bits.len() <= at {
            self.bits.resize(at.saturating_add(1), 0);
        }
        let Some(byte) = self.bits.get_mut(at) else { return false };
        let is_new = *byte & bit == 0;
        *byte |= bit;
        is_new
    }

    pub(crate) fn remove(&mut self, port: u16) {
        if let Some((at, bit)) = self.place(port)
            && let Some(byte) = self.bits.get_mut(at)
        {
            *byte &= !bit;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u16> {
        let length = u16::try_from(self.bits.len().saturating_mul(8)).unwrap_or(u16::MAX);
        (0..length)
            .filter_map(|offset| self.first.checked_add(offset))
            .filter(|p| self.contains(*p))
    }
}

/// The bitmap as it was stored at a revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredPorts {
    pub(crate) ports: PortSet,
    /// 0: nothing is stored.
    revision: Revision,
}

impl StoredPorts {
    /// This, if anything is stored.
    pub(super) fn if_stored(self) -> Option<StoredPorts> {
        (self.revision > 0).then_some(self)
    }

    /// What is stored. One that is of another range, or cannot be read, has `Err` with the reason.
    fn read(range: NodePorts, stored: Option<&KeyValue>) -> Result<StoredPorts, Fault> {
        let Some(stored) = stored else { return Ok(StoredPorts::default()) };
        let (of, number) = decode(&stored.value).ok_or(Fault::Unreadable)?;
        let of: NodePorts = of.parse().map_err(|_| Fault::Unreadable)?;
        let read =
            StoredPorts { ports: PortSet::from_number(of, &number), revision: stored.mod_revision };
        if of == range { Ok(read) } else { Err(Fault::OtherRange(read)) }
    }
}

/// What keeps a stored bitmap from being used.
enum Fault {
    Unreadable,
    /// It is of another range: `--service-node-port-range` was changed.
    OtherRange(StoredPorts),
}

/// Reads the bitmap to change it: nothing is given out before it is there.
pub(crate) fn usable(
    range: NodePorts,
    stored: Option<&KeyValue>,
) -> Result<StoredPorts, StatusError> {
    match StoredPorts::read(range, stored) {
        Ok(read) if read.revision > 0 => Ok(read),
        Ok(_) => Err(StatusError::internal(
            "cannot allocate resources of type servicenodeportallocations at this time",
        )),
        Err(Fault::Unreadable) => {
            Err(StatusError::internal("the stored node port allocations cannot be read"))
        }
        Err(Fault::OtherRange(_)) => {
            Err(StatusError::internal("the provided range does not match the current range"))
        }
    }
}

/// Reads the stored bitmap.
pub(crate) async fn read(
    registry: &Registry,
    range: NodePorts,
) -> Result<StoredPorts, StatusError> {
    usable(range, find(registry).await?.as_ref())
}

async fn find(registry: &Registry) -> Result<Option<KeyValue>, StatusError> {
    registry.store().get(KEY).await.map_err(refusal)
}

/// Reads it to repair it: what is of another range counts as far as it is of this one too, and
/// what cannot be read does not.
pub(crate) async fn read_any(
    registry: &Registry,
    range: NodePorts,
) -> Result<StoredPorts, StatusError> {
    let stored = find(registry).await?;
    let revision = stored.as_ref().map_or(0, |stored| stored.mod_revision);
    let ports = match StoredPorts::read(range, stored.as_ref()) {
        Ok(read) if revision > 0 => read.ports,
        Ok(_) => PortSet::new(range),
        Err(Fault::OtherRange(read)) => {
            let mut ports = PortSet::new(range);
            for port in read.ports.iter().filter(|port| range.contains(*port)) {
                ports.insert(port);
            }
            ports
        }
        Err(Fault::Unreadable) => {
            tracing::warn!(
                key = KEY,
                "the stored node port allocations cannot be read, they are made anew"
            );
            PortSet::new(range)
        }
    };
    Ok(StoredPorts { ports, revision })
}

/// Stores a repaired bitmap in place of the one that was read. `false`: it has changed since.
pub(crate) async fn replace(
    registry: &Registry,
    range: NodePorts,
    read: &StoredPorts,
    ports: &PortSet,
) -> Result<bool, StatusError> {
    let value = encode(registry.media_type(), range, ports)?;
    if read.revision > 0 {
        let same = find(registry).await?.filter(|stored| stored.mod_revision == read.revision);
        match same {
            None => return Ok(false),
            Some(stored) if stored.value == value && !stored.is_stale => return Ok(true),
            Some(_) => {}
        }
    }
    put(registry, read.revision, value).await.map(|written| written.is_ok())
}

/// Writes it if it is of this revision still. The inner error is what is stored instead.
async fn put(
    registry: &Registry,
    revision: Revision,
    value: Bytes,
) -> Result<Result<Revision, Option<KeyValue>>, StatusError> {
    let expect = if revision > 0 { Expect::Revision(revision) } else { Expect::Absent };
    match registry.store().put(KEY, value, expect, None).await {
        Ok(stored) => Ok(Ok(stored.mod_revision)),
        Err(Error::Conflict { current, .. }) => Ok(Err(current)),
        Err(error) => Err(refusal(error)),
    }
}

/// Changes the bitmap, on whatever is stored. `change` may be called several times; an error of it is
/// returned with what was stored then.
pub(crate) async fn change<E>(
    registry: &Registry,
    range: NodePorts,
    known: Option<StoredPorts>,
    mut change: impl FnMut(&mut PortSet) -> Result<(), E> + Send,
) -> Result<(StoredPorts, Result<(), E>), StatusError> {
    let (mut current, mut is_fresh) = match known {
        Some(known) => (known, false),
        None => (read(registry, range).await?, true),
    };
    for _ in 0..MAX_ATTEMPTS {
        let mut next = current.ports.clone();
        if let Err(error) = change(&mut next) {
            // What is known may be of the past.
            if is_fresh {
                return Ok((current, Err(error)));
            }
            (current, is_fresh) = (read(registry, range).await?, true);
            continue;
        }
        if next == current.ports && is_fresh {
            return Ok((current, Ok(())));
        }
        let value = encode(registry.media_type(), range, &next)?;
        match put(registry, current.revision, value).await? {
            Ok(revision) => return Ok((StoredPorts { ports: next, revision }, Ok(()))),
            Err(stored) => (current, is_fresh) = (usable(range, stored.as_ref())?, true),
        }
    }
    Err(StatusError::internal("the node port allocations change all the time"))
}

fn encode(
    media_type: StorageMediaType,
    range: NodePorts,
    ports: &PortSet,
) -> Result<Bytes, StatusError> {
    let (range, data) = (range.to_string(), ports.to_number());
    match media_type {
        StorageMediaType::Protobuf => protobuf::encode_range(&range, &data).map(Bytes::from),
        StorageMediaType::Json => longshore_json::write(&json!({
            "kind": KIND,
            "apiVersion": "v1",
            "metadata": {},
            "range": range,
            "data": STANDARD.encode(data),
        }))
        .map(Bytes::from)
        .map_err(|error| error.to_string()),
    }
    .map_err(StatusError::internal)
}

/// The range, and the number whose bits are the ports.
fn decode(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    if protobuf::is_protobuf(bytes) {
        return protobuf::decode_range(bytes).ok();
    }
    let object: Value = longshore_json::read(bytes).ok()?;
    let data = STANDARD.decode(text(&object["data"])).ok()?;
    (object["kind"] == KIND).then(|| (text(&object["range"]).to_owned(), data))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What kube-apiserver 1.36 stores for a service with the node port 30001 and one with 30080.
    const UPSTREAM: &str = "azhzAAoVCgJ2MRIPUmFuZ2VBbGxvY2F0aW9uEisKEAoAEgAaACIAKgAyADgAQgASCzMwMDAwLTMyNzY3GgoBAAAAAAAAAAACGgAiAA==";

    #[test]
    fn node_ports_are_stored_as_upstream_stores_them() {
        let range = NodePorts::default();
        let mut ports = PortSet::new(range);
        assert!(ports.insert(30001) && ports.insert(30072) && !ports.insert(30001));
        let bytes = encode(StorageMediaType::Protobuf, range, &ports).unwrap();
        assert_eq!(STANDARD.encode(&bytes), UPSTREAM);
        for media_type in StorageMediaType::ALL {
            let bytes = encode(media_type, range, &ports).unwrap();
            let (of, number) = decode(&bytes).unwrap();
            assert_eq!(of, "30000-32767");
            let read = PortSet::from_number(range, &number);
            assert_eq!(read.iter().collect::<Vec<_>>(), [30001, 30072]);
        }
        for damaged in
            [&b""[..], b"{}", b"k8s\0\xff", b"{\"kind\":\"RangeAllocation\",\"data\":\"?\"}"]
        {
            assert!(decode(damaged).is_none());
        }
    }

    #[test]
    fn node_port_sets_hold_what_is_of_their_range() {
        let mut ports = PortSet::new("100-110".parse().unwrap());
        assert!(!ports.contains(100) && !ports.insert(99));
        assert!(ports.insert(100) && ports.insert(110) && ports.contains(110));
        ports.remove(110);
        ports.remove(9999);
        assert_eq!(ports.iter().collect::<Vec<_>>(), [100]);
        assert_eq!(ports.to_number(), [1]);
        ports.remove(100);
        assert!(ports.to_number().is_empty());
    }
}

//! Ranges of user and group ids for pods with a user namespace. No two pods share an id, even after
//! restarts and changes of the kubelet: a pod's range is written to its directory, in the Go
//! kubelet's format.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use longshore_base::files::{self, if_present};
use longshore_cri::v1;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The file with a pod's range.
const FILE: &str = "userns";
/// Ranges are multiples of 65536, the ids of a 16-bit system.
const UNIT: u32 = 65536;
/// The user whose subordinate ids are used.
const USER: &str = "kubelet";

/// Why a pod has no range of ids, or the node has none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node's ids cannot be used.
    #[error("ids of user {USER:?}: {0}")]
    Ids(String),
    /// A pod's file is invalid.
    #[error("user namespace: {}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("user namespace: {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// All ranges are in use.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    Full,
}

/// Consecutive ids of the node, divided into ranges of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    first: u32,
    /// Ids per pod.
    length: u32,
    /// Number of ranges.
    ranges: u32,
}

impl Ids {
    /// The subordinate ids of user `kubelet`, or if there is no such user all ids above the node's
    /// own; `per_pod` of them for each of up to `max_pods` pods.
    pub fn of_node(per_pod: u32, max_pods: u32) -> Result<Self, Error> {
        let (first, count) = match subordinate_ids()? {
            Some(ids) => ids,
            None => (per_pod, (1u64 << 32).saturating_sub(per_pod.into())),
        };
        Self::new(first, count, per_pod, max_pods)
    }

    fn new(first: u32, count: u64, length: u32, max_pods: u32) -> Result<Self, Error> {
        let wrong = |what: String| Err(Error::Ids(what));
        if length == 0 || !length.is_multiple_of(UNIT) {
            return wrong(format!("{length} ids a pod are not a multiple of {UNIT}"));
        }
        if !first.is_multiple_of(length) || first < length {
            return wrong(format!(
                "the first one, {first}, is not a positive multiple of {length}"
            ));
        }
        if !count.is_multiple_of(u64::from(length)) {
            return wrong(format!("{count} of them are not a multiple of {length}"));
        }
        let ranges = count.checked_div(length.into()).unwrap_or(0);
        let ranges = u32::try_from(ranges).unwrap_or(u32::MAX);
        match ranges >= max_pods {
            true => Ok(Self { first, length, ranges }),
            false => wrong(format!("{count} of them are not enough for {max_pods} pods")),
        }
    }
}

/// First id and count in the output of `getsubids`, if the node has both user and tool.
fn subordinate_ids() -> Result<Option<(u32, u64)>, Error> {
    let wrong = |what: String| Error::Ids(what);
    let user = nix::unistd::User::from_name(USER).map_err(|errno| wrong(errno.to_string()))?;
    if user.is_none() {
        return Ok(None);
    }
    let getsubids = |flags: &[&str]| match Command::new("getsubids").args(flags).arg(USER).output()
    {
        Ok(output) if output.status.success() => Ok(Some(output.stdout)),
        Ok(output) => Err(wrong(format!("getsubids failed: {}", output.status))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(wrong(format!("getsubids: {error}"))),
    };
    let Some(users) = getsubids(&[])? else { return Ok(None) };
    if Some(&users) != getsubids(&["-g"])?.as_ref() {
        return Err(wrong("users and groups differ".to_owned()));
    }
    let text = String::from_utf8_lossy(&users);
    parse(&text).map(Some).ok_or_else(|| wrong(format!("unexpected output {text:?} of getsubids")))
}

/// `0: kubelet 65536 2147483648` is one range; more than one is not supported.
fn parse(output: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = output.split_whitespace().collect();
    match (output.trim().lines().count(), &fields[..]) {
        (1, [_, _, first, count]) => Some((first.parse().ok()?, count.parse::<u32>().ok()?.into())),
        _ => None,
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    #[serde(rename = "uidMappings")]
    users: Vec<Mapping>,
    #[serde(rename = "gidMappings")]
    groups: Vec<Mapping>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// Allocates ranges to pods.
#[derive(Debug)]
pub(super) struct UserNamespaces {
    ids: Ids,
    pods_dir: PathBuf,
    allocated: Mutex<Allocated>,
}

#[derive(Debug, Default)]
struct Allocated {
    /// Range of a pod, by its UID.
    by: HashMap<Box<str>, u32>,
    /// Where to search for a free range: a released one is reused last.
    next: u32,
}

impl UserNamespaces {
    /// With the recorded ranges of the pods in that directory.
    pub(super) fn new(ids: Ids, pods_dir: PathBuf) -> Self {
        let namespaces = Self { ids, pods_dir, allocated: Mutex::default() };
        for entry in std::fs::read_dir(&namespaces.pods_dir).into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            if let Err(error) = namespaces.recorded(&mut namespaces.allocated(), &uid) {
                warn!(uid, %error, "cannot read the user namespace of a pod");
            }
        }
        namespaces
    }

    /// The user namespace of a pod, whose directory exists; the same one every time.
    pub(super) fn of_pod(&self, uid: &str) -> Result<v1::UserNamespace, Error> {
        let mut allocated = self.allocated();
        let range = match self.recorded(&mut allocated, uid)? {
            Some(range) => range,
            None => {
                let range = self.free(&allocated).ok_or(Error::Full)?;
                self.record(uid, range)?;
                allocated.next = range + 1;
                allocated.by.insert(uid.into(), range);
                range
            }
        };
        let Mapping { host_id, container_id, length } = self.mapping(range);
        let ids = vec![v1::IdMapping { host_id, container_id, length }];
        Ok(v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: ids.clone(), gids: ids })
    }

    /// Release the range of a pod without processes.
    pub(super) fn release(&self, uid: &str) {
        if self.allocated().by.remove(uid).is_some() {
            // The file is removed with the pod's directory if not now.
            let _ = std::fs::remove_file(self.file(uid));
        }
    }

    fn free(&self, allocated: &Allocated) -> Option<u32> {
        let used: std::collections::HashSet<u32> = allocated.by.values().copied().collect();
        (0..self.ids.ranges)
            .map(|step| (allocated.next + step) % self.ids.ranges)
            .find(|range| !used.contains(range))
    }

    fn mapping(&self, range: u32) -> Mapping {
        let Ids { first, length, .. } = self.ids;
        Mapping { host_id: first + range * length, container_id: 0, length }
    }

    /// The range in a pod's file, if it has one; an error if another pod has it.
    fn recorded(&self, allocated: &mut Allocated, uid: &str) -> Result<Option<u32>, Error> {
        let path = self.file(uid);
        let text = match if_present(std::fs::read(&path)) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(source) => return Err(Error::Io { path, source }),
        };
        let wrong = |reason: &str| Error::File { path: path.clone(), reason: reason.to_owned() };
        let mappings: Mappings =
            serde_json::from_slice(&text).map_err(|error| wrong(&error.to_string()))?;
        let mapping = match (&mappings.users[..], &mappings.groups[..]) {
            ([users], [groups]) if users == groups && users.container_id == 0 => *users,
            _ => {
                return Err(wrong(
                    "not a single range that starts with root, for users and groups",
                ));
            }
        };
        let offset = mapping.host_id.checked_sub(self.ids.first);
        let range = offset.filter(|offset| offset.is_multiple_of(self.ids.length));
        let range = range.map(|offset| offset / self.ids.length);
        let range =
            range.filter(|range| *range < self.ids.ranges && mapping.length == self.ids.length);
        let range = range.ok_or_else(|| wrong("the range is not one of this node"))?;
        match allocated.by.iter().find(|(_, known)| **known == range) {
            Some((owner, _)) if **owner != *uid => {
                return Err(wrong("the range is in use by another pod"));
            }
            Some(_) => {}
            None => drop(allocated.by.insert(uid.into(), range)),
        }
        Ok(Some(range))
    }

    /// Written atomically and synced before any process uses it.
    fn record(&self, uid: &str, range: u32) -> Result<(), Error> {
        let mapping = vec![self.mapping(range)];
        let mappings = Mappings { users: mapping.clone(), groups: mapping };
        let path = self.file(uid);
        let text = serde_json::to_vec(&mappings).map_err(io::Error::from);
        let written = text.and_then(|text| files::replace(&path, &text));
        written.map_err(|source| Error::Io { path, source })
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.pods_dir.join(uid).join(FILE)
    }

    fn allocated(&self) -> MutexGuard<'_, Allocated> {
        self.allocated.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn namespaces(dir: &Path, count: u64) -> UserNamespaces {
        UserNamespaces::new(Ids::new(UNIT, count, UNIT, 1).unwrap(), dir.to_owned())
    }

    fn first_id(namespaces: &UserNamespaces, uid: &str) -> Result<u32, String> {
        let namespace = namespaces.of_pod(uid).map_err(|error| error.to_string())?;
        assert_eq!((&namespace.uids, namespace.uids[0].length), (&namespace.gids, UNIT));
        Ok(namespace.uids[0].host_id)
    }

    #[test]
    fn user_namespace_ids_are_kept_and_not_shared() {
        let dir = tempfile::tempdir().unwrap();
        for uid in ["a", "b", "c"] {
            std::fs::create_dir(dir.path().join(uid)).unwrap();
        }
        let before = namespaces(dir.path(), u64::from(UNIT) * 2);
        let (a, b) = (first_id(&before, "a").unwrap(), first_id(&before, "b").unwrap());
        assert_eq!((a, b), (UNIT, 2 * UNIT));
        assert_eq!(
            std::fs::read_to_string(dir.path().join("a/userns")).unwrap(),
            r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#
        );
        assert!(first_id(&before, "c").unwrap_err().contains("empty slot"));

        let after = namespaces(dir.path(), u64::from(UNIT) * 2);
        assert_eq!(first_id(&after, "b").unwrap(), b);
        assert!(first_id(&after, "c").is_err());
        after.release("a");
        assert_eq!(first_id(&after, "c").unwrap(), a);
        assert!(!dir.path().join("a/userns").exists());
    }

    #[test]
    fn user_namespace_ranges_are_reused_last() {
        let dir = tempfile::tempdir().unwrap();
        for uid in ["a", "b"] {
            std::fs::create_dir(dir.path().join(uid)).unwrap();
        }
        let namespaces = namespaces(dir.path(), u64::from(UNIT) * 3);
        let first = first_id(&namespaces, "a").unwrap();
        namespaces.release("a");
        assert_ne!(first_id(&namespaces, "b").unwrap(), first);
    }

    #[test]
    fn user_namespace_file_errors_affect_their_pod_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = |range: &str| format!(r#"{{"uidMappings":[{range}],"gidMappings":[{range}]}}"#);
        let whole = r#"{"hostId":131072,"containerId":0,"length":65536}"#;
        for (uid, text) in [
            ("json", "{".to_owned()),
            ("none", file("")),
            ("root", file(r#"{"hostId":0,"containerId":0,"length":65536}"#)),
            ("odd", file(r#"{"hostId":65537,"containerId":0,"length":65536}"#)),
            ("far", file(r#"{"hostId":655360,"containerId":0,"length":65536}"#)),
            ("long", file(r#"{"hostId":65536,"containerId":0,"length":131072}"#)),
            ("user", file(r#"{"hostId":65536,"containerId":1,"length":65536}"#)),
            ("differs", format!(r#"{{"uidMappings":[{whole}],"gidMappings":[]}}"#)),
        ] {
            std::fs::create_dir(dir.path().join(uid)).unwrap();
            std::fs::write(dir.path().join(uid).join(FILE), text).unwrap();
            let namespaces = namespaces(dir.path(), u64::from(UNIT) * 2);
            assert!(first_id(&namespaces, uid).is_err(), "{uid}");
        }
        for uid in ["one", "two"] {
            std::fs::create_dir(dir.path().join(uid)).unwrap();
            std::fs::write(dir.path().join(uid).join(FILE), file(whole)).unwrap();
        }
        let namespaces = namespaces(dir.path(), u64::from(UNIT) * 2);
        let both = [first_id(&namespaces, "one"), first_id(&namespaces, "two")];
        assert_eq!(both.iter().filter(|id| id.is_ok()).count(), 1, "{both:?}");
    }

    #[test]
    fn user_namespace_ids_must_fit_ranges_and_pods() {
        let whole = (1u64 << 32) - u64::from(UNIT);
        let ids = |first, count, length, pods| Ids::new(first, count, length, pods).is_ok();
        assert!(ids(UNIT, whole, UNIT, 110));
        assert!(!ids(0, whole, UNIT, 110), "the range must not contain root");
        assert!(!ids(UNIT + 1, whole, UNIT, 110));
        assert!(!ids(UNIT, whole - 1, UNIT, 110));
        assert!(!ids(UNIT, whole, 1000, 110));
        assert!(!ids(UNIT, whole, 0, 110));
        assert!(!ids(UNIT, u64::from(UNIT) * 109, UNIT, 110));
        assert_eq!(parse("0: kubelet 65536 2147483648\n"), Some((65536, 2_147_483_648)));
        for wrong in ["", "0: kubelet 65536", "0: kubelet a b", "0: k 1 2\n1: k 3 4"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}

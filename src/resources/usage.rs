//! What a pod uses, from its cgroup.

use std::path::{Path, PathBuf};
use std::{fs, io};

use k8s_openapi::api::core::v1::Pod;

use super::cgroups::{Cgroups, Error};

/// Bytes of memory that the pod uses, caches included.
pub fn memory(cgroups: &Cgroups, pod: &Pod) -> Result<i64, Error> {
    let (tree, file) = match cgroups.is_unified() {
        true => ("/sys/fs/cgroup", "memory.current"),
        false => ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"),
    };
    let group = cgroups.parent_of(pod);
    let path: PathBuf = Path::new(tree).join(group.trim_start_matches('/')).join(file);
    let parse = |text: String| text.trim().parse().map_err(io::Error::other);
    fs::read_to_string(&path).and_then(parse).map_err(|source| Error::Io { path, source })
}

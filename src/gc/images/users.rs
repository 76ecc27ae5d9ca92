//! The largest users of the image file system, for the event `FreeDiskSpaceFailed`.

use std::path::Path;

use longshore_cri::v1;
use longshore_pod::{labels, spec};

use super::plan::handler;
use super::records::{ImageRecords, Key};
use super::{Inventory, Parts};
use crate::gc::{blocking, disk};

/// Users of the file system at `path`, with sizes in bytes. Errors are skipped.
pub(super) async fn find(
    parts: &Parts,
    inventory: &Inventory,
    records: &ImageRecords,
    path: &Path,
) -> Vec<(String, u64)> {
    let Parts { cri, desired, policy, root_dir, pod_logs_dir, .. } = parts;
    let there = |image: &&v1::Image| records.get(&Key::of(image, policy.by_handler)).is_some();
    let mut users: Vec<(String, u64)> = inventory.images.iter().filter(there).map(image).collect();
    let containers = cri.list_container_stats(None).await.unwrap_or_default();
    users.extend(containers.iter().filter_map(writable_layer));

    let (path, logs, pods) = (path.to_owned(), pod_logs_dir.clone(), root_dir.join("pods"));
    let walk = move || {
        // Only what is on the same device.
        let device = disk::device(&path)?;
        Some((disk::taken_by_children(&logs, device), disk::taken_by_children(&pods, device)))
    };
    let (logs, pods) = blocking(walk).await.flatten().unwrap_or_default();
    users.extend(logs.into_iter().map(|(name, size)| (format!("logs {name}"), size)));
    users.extend(pods.into_iter().map(|(uid, size)| match desired.pod(&uid) {
        Some(pod) => {
            (format!("volumes of pod {}/{}", spec::namespace(&pod), spec::name(&pod)), size)
        }
        None => (format!("volumes of pod {uid}"), size),
    }));
    users
}

fn image(image: &v1::Image) -> (String, u64) {
    let name = image.repo_tags.first().or(image.repo_digests.first()).unwrap_or(&image.id);
    let handler = match handler(image) {
        "" => String::new(),
        handler => format!(" of {handler}"),
    };
    (format!("image {name}{handler}"), image.size)
}

fn writable_layer(stats: &v1::ContainerStats) -> Option<(String, u64)> {
    let size = stats.writable_layer.as_ref()?.used_bytes.as_ref()?.value;
    let attributes = stats.attributes.as_ref()?;
    let label = |key: &str| attributes.labels.get(key).map_or("", String::as_str);
    let pod = (label(labels::POD_NAMESPACE), label(labels::POD_NAME));
    let name = match pod {
        ("", _) | (_, "") => format!("container {}", attributes.id),
        (namespace, pod) => {
            format!("container {namespace}/{pod}/{}", label(labels::CONTAINER_NAME))
        }
    };
    Some((name, size))
}

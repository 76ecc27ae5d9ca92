//! How many watches hear of a write.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::classify::Digest;

/// The watches of a resource, all of them, or those of one namespace or one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Watched {
    group: String,
    resource: String,
    namespace: String,
    name: String,
}

/// Counts watches that are open.
#[derive(Debug, Default)]
pub(crate) struct WatchCounts(Mutex<HashMap<Watched, u32>>);

/// A watch that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedWatch {
    counts: Arc<WatchCounts>,
    watched: Watched,
}

impl WatchCounts {
    /// Counts a watch. One of the pods of a node hears of few writes, and is not counted, as upstream.
    pub(super) fn count(
        self: &Arc<Self>,
        digest: &Digest<'_>,
        selects_node: bool,
    ) -> Option<CountedWatch> {
        if digest.verb != "watch" || !digest.is_resource {
            return None;
        }
        if digest.resource == "pods" && selects_node {
            return None;
        }
        let watched = Watched {
            group: digest.group.to_owned(),
            resource: digest.resource.to_owned(),
            namespace: digest.namespace.to_owned(),
            name: digest.name.to_owned(),
        };
        let mut counts = self.0.lock();
        let count = counts.entry(watched.clone()).or_default();
        *count = count.saturating_add(1);
        Some(CountedWatch { counts: self.clone(), watched })
    }

    /// The watches that hear of what a request writes.
    pub(super) fn interested(&self, digest: &Digest<'_>) -> u32 {
        let counts = self.0.lock();
        if counts.is_empty() || !digest.is_resource {
            return 0;
        }
        let mut watched = Watched {
            group: digest.group.to_owned(),
            resource: digest.resource.to_owned(),
            ..Watched::default()
        };
        let mut sum = 0_u32;
        let mut add = |watched: &Watched| {
            sum = sum.saturating_add(counts.get(watched).copied().unwrap_or(0));
        };
        add(&watched);
        if !digest.namespace.is_empty() {
            digest.namespace.clone_into(&mut watched.namespace);
            add(&watched);
        }
        if !digest.name.is_empty() {
            digest.name.clone_into(&mut watched.name);
            add(&watched);
        }
        sum
    }
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.watched) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.watched);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest<'a>(
        verb: &'a str,
        resource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Digest<'a> {
        Digest { verb, is_resource: true, resource, namespace, name, ..Digest::default() }
    }

    #[test]
    fn flow_control_watches_that_hear_of_a_write() {
        let counts = Arc::new(WatchCounts::default());
        let open =
            [("", ""), ("", ""), ("a", ""), ("a", "x"), ("b", "")].map(|(namespace, name)| {
                counts.count(&digest("watch", "secrets", namespace, name), false)
            });
        assert!(counts.count(&digest("list", "secrets", "", ""), false).is_none());
        assert!(counts.count(&digest("watch", "pods", "", ""), true).is_none());
        for (resource, namespace, name, expected) in [
            ("secrets", "a", "x", 4),
            ("secrets", "a", "y", 3),
            ("secrets", "a", "", 3),
            ("secrets", "c", "x", 2),
            ("pods", "a", "x", 0),
        ] {
            let found = counts.interested(&digest("update", resource, namespace, name));
            assert_eq!(found, expected, "{resource} {namespace} {name}");
        }
        drop(open);
        assert!(counts.0.lock().is_empty());
    }
}

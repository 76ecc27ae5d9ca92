//! Pods whose volumes somebody waits to take down. Work on their volumes that has taken long is given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The pods, by UID, with how many wait for each. A cheap handle.
#[derive(Clone, Default)]
pub(crate) struct Ending {
    pods: Arc<watch::Sender<BTreeMap<String, usize>>>,
}

/// Somebody waits, until this is dropped.
pub(crate) struct Waiting {
    ending: Ending,
    uid: String,
}

impl Ending {
    /// From now on somebody waits to take down the volumes of a pod.
    pub(crate) fn begin(&self, uid: &str) -> Waiting {
        self.pods.send_modify(|pods| {
            let count = pods.entry(uid.to_owned()).or_default();
            *count = count.saturating_add(1);
        });
        Waiting { ending: self.clone(), uid: uid.to_owned() }
    }

    /// Ends when somebody waits to take down the volumes of a pod.
    pub(crate) async fn of(&self, uid: &str) {
        let mut pods = self.pods.subscribe();
        // The sender is here.
        let _ = pods.wait_for(|pods| pods.contains_key(uid)).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.ending.pods.send_modify(|pods| {
            let left = pods.get(&self.uid).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => pods.remove(&self.uid),
                left => pods.insert(self.uid.clone(), left),
            };
        });
    }
}

//! Takes volumes of pods down that have more to them than the pod's directory. What there is, the
//! directory tells, so that it does not matter which daemon has set it up.

use std::sync::Arc;

use futures::future::join_all;

use super::devices::Left;
use super::error::{Error, FirstError};
use super::{Inner, blocking, csi, iscsi, layout, local, nfs};

impl Inner {
    /// Attempts all of them, each on its own, and tells the first error.
    pub(super) async fn take_down_persistent(self: &Arc<Self>, uid: &str) -> Result<(), Error> {
        let (root, owned) = (self.root.clone(), uid.to_owned());
        let left = blocking(move || Left::of_pod(&root, &owned)).await?;
        let mut errors = FirstError::default();
        for outcome in join_all(left.iter().map(|left| self.take_one_down(uid, left))).await {
            errors.note(outcome);
        }
        errors.result()?;
        // What it had begun to use, and left nothing of.
        self.devices.forget(uid);
        Ok(())
    }

    async fn take_one_down(self: &Arc<Self>, uid: &str, left: &Left) -> Result<(), Error> {
        match left.plugin.as_str() {
            layout::LOCAL => local::take_down(self, uid, left).await,
            layout::NFS => nfs::take_down(self, uid, left).await,
            layout::ISCSI => iscsi::take_down(self, uid, left).await,
            layout::CSI => csi::take_down(self, uid, left).await,
            // The pod's own, or something that nobody here knows and that is left alone.
            _ => Ok(()),
        }
    }
}

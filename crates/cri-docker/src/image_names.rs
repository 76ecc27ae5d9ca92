//! What images are called, as far as statuses of containers say it.

use bollard::models::ImageInspect;

/// What an image is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageNames {
    /// Its first tag.
    pub(crate) tag: Option<String>,
    /// Its first digest.
    pub(crate) digest: Option<String>,
}

impl From<ImageInspect> for ImageNames {
    fn from(image: ImageInspect) -> Self {
        let first = |names: Option<Vec<String>>| names.and_then(|all| all.into_iter().next());
        Self { tag: first(image.repo_tags), digest: first(image.repo_digests) }
    }
}

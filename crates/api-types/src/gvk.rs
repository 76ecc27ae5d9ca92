//! Names of kinds.

/// Group, version and kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gvk {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, for example `Pod`.
    pub kind: &'static str,
}

impl Gvk {
    /// A kind of the core group, in version `v1`.
    #[must_use]
    pub const fn core(kind: &'static str) -> Self {
        Self { group: "", version: "v1", kind }
    }

    /// A kind of that group, in version `v1`.
    #[must_use]
    pub const fn v1(group: &'static str, kind: &'static str) -> Self {
        Self { group, version: "v1", kind }
    }

    /// `DeleteOptions`, which every group accepts as the body of a DELETE.
    pub const DELETE_OPTIONS: Self = Self::core("DeleteOptions");

    /// The `apiVersion` of such an object: `v1`, or `group/version`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

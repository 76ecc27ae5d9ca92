//! Versions of the interface.

/// `major.minor.patch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u16, u16, u16);

/// The first that has CHECK, and gives DEL the result of ADD.
pub(crate) const WITH_CHECK: Version = Version(0, 4, 0);
/// The first that has STATUS.
pub(crate) const WITH_STATUS: Version = Version(1, 1, 0);
/// What a configuration without a version has.
pub(crate) const OLDEST: &str = "0.1.0";

impl Version {
    /// `None` when the text is no version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

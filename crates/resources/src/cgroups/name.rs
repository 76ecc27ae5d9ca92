//! Cgroup names: a list of parts, converted for each driver.

use std::fmt;

use super::{Driver, Error};

const SLICE: &str = ".slice";

/// The name of a cgroup, as parts from the root; empty for the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Name(Vec<String>);

impl Name {
    /// A path in the file system of cgroups, such as `/a/b`.
    pub(super) fn of_path(path: &str) -> Result<Self, Error> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        parts.try_fold(Self::default(), |name, part| name.child(part))
    }

    /// A system cgroup in the driver's syntax: a path, or a systemd slice.
    pub(super) fn of_machine(driver: Driver, text: &str) -> Result<Self, Error> {
        if driver == Driver::Cgroupfs {
            return Self::of_path(text);
        }
        let unit = text.rsplit('/').next().unwrap_or_default();
        let mut parts = unit.strip_suffix(SLICE).unwrap_or(unit).split('-');
        parts.try_fold(Self::default(), |name, part| name.child(&part.replace('_', "-")))
    }

    /// The child of that name.
    pub(super) fn child(&self, part: &str) -> Result<Self, Error> {
        if matches!(part, "" | "." | "..") || part.contains(['/', '\0']) {
            return Err(Error::Name(part.to_owned()));
        }
        let mut parts = self.0.clone();
        parts.push(part.to_owned());
        Ok(Self(parts))
    }

    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The absolute path of the cgroup.
    pub(super) fn path(&self, driver: Driver) -> String {
        match driver {
            _ if self.is_root() => "/".to_owned(),
            Driver::Cgroupfs => format!("/{}", self.0.join("/")),
            // The path of a slice consists of all prefixes of its name.
            Driver::Systemd => (1..=self.0.len()).map(|n| format!("/{}", self.slice(n))).collect(),
        }
    }

    /// The name of the systemd slice.
    pub(super) fn unit(&self) -> String {
        self.slice(self.0.len())
    }

    /// The name of the parent slice.
    pub(super) fn parent_unit(&self) -> String {
        self.slice(self.0.len().saturating_sub(1))
    }

    /// Parts of a slice's name are separated by dashes, so dashes within parts are replaced.
    fn slice(&self, parts: usize) -> String {
        if parts == 0 {
            return format!("-{SLICE}");
        }
        let parts = self.0.iter().take(parts).map(|part| part.replace('-', "_"));
        format!("{}{SLICE}", parts.collect::<Vec<_>>().join("-"))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_names_by_driver() {
        for (parts, path, slices) in [
            (vec![], "/", "/"),
            (vec!["kubepods"], "/kubepods", "/kubepods.slice"),
            (
                vec!["kubepods", "burstable"],
                "/kubepods/burstable",
                "/kubepods.slice/kubepods-burstable.slice",
            ),
            (
                vec!["kubepods", "burstable", "pod1234-abcd-5678-efgh"],
                "/kubepods/burstable/pod1234-abcd-5678-efgh",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd_5678_efgh.slice",
            ),
            (vec!["a-b", "kubepods"], "/a-b/kubepods", "/a_b.slice/a_b-kubepods.slice"),
        ] {
            let mut names = parts.iter();
            let name = names.try_fold(Name::default(), |name, part| name.child(part)).unwrap();
            assert_eq!(name.path(Driver::Cgroupfs), path);
            assert_eq!(name.path(Driver::Systemd), slices);
            let unit = slices.rsplit('/').next().filter(|unit| !unit.is_empty());
            assert_eq!(name.unit(), unit.unwrap_or("-.slice"));
            assert_eq!(Name::of_path(path).unwrap(), name, "{path}");
        }
        let pod = Name::of_path("/kubepods/burstable/pod1").unwrap();
        assert_eq!(pod.parent_unit(), "kubepods-burstable.slice");
        assert_eq!(Name::of_path("/kubepods").unwrap().parent_unit(), "-.slice");
    }

    #[test]
    fn cgroup_names_of_system_cgroups() {
        for (driver, text, path) in [
            (Driver::Cgroupfs, "/system", "/system"),
            (Driver::Cgroupfs, "system/daemons/", "/system/daemons"),
            (Driver::Systemd, "/system.slice", "/system.slice"),
            (Driver::Systemd, "system", "/system.slice"),
            (Driver::Systemd, "/a.slice/a-b_c.slice", "/a.slice/a-b_c.slice"),
        ] {
            assert_eq!(Name::of_machine(driver, text).unwrap().path(driver), path, "{text}");
        }
    }

    #[test]
    fn cgroup_names_are_confined() {
        for part in ["", ".", "..", "../x", "a/b", "a\0"] {
            assert!(Name::default().child(part).is_err(), "{part:?}");
        }
        assert!(Name::of_path("/a/../b").is_err());
        assert!(Name::of_machine(Driver::Systemd, "a--b.slice").is_err());
    }
}

//! Checks of what a plugin registers with.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, brief};

/// The version of the API.
pub(crate) const VERSION: &str = "v1beta1";
/// The longest prefix of a qualified name: a DNS subdomain.
const LONGEST_PREFIX: usize = 253;
/// The longest name behind the prefix.
const LONGEST_NAME: usize = 63;
/// Quotas put this in front of the name, and it has to be valid together with it.
const QUOTA_PREFIX: &str = "requests.";

/// Whether it is the name of an extended resource, such as `example.com/gpu`.
pub fn is_extended_resource(name: &str) -> bool {
    if name.contains("kubernetes.io/") || name.starts_with(QUOTA_PREFIX) {
        return false;
    }
    let Some((prefix, own)) = name.split_once('/') else { return false };
    is_subdomain(&format!("{QUOTA_PREFIX}{prefix}")) && is_name(own)
}

fn is_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        label.starts_with(is_end)
            && label.ends_with(is_end)
            && label.chars().all(|c| is_end(c) || c == '-')
    };
    text.len() <= LONGEST_PREFIX && text.split('.').all(is_label)
}

fn is_name(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    text.len() <= LONGEST_NAME
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| is_end(c) || matches!(c, '-' | '_' | '.'))
}

/// Checks version and name of a registration.
pub(crate) fn check<'a>(
    versions: impl IntoIterator<Item = &'a str>,
    name: &str,
) -> Result<(), Error> {
    let mut last = "";
    let is_known = versions.into_iter().any(|version| {
        last = version;
        version == VERSION
    });
    if !is_known {
        return Err(Error::Version(brief(last)));
    }
    match is_extended_resource(name) {
        true => Ok(()),
        false => Err(Error::ResourceName(brief(name))),
    }
}

/// The socket of a plugin that names it relative to the folder. It does not lead out of it.
pub(crate) fn socket(folder: &Path, endpoint: &str) -> Result<PathBuf, Error> {
    let invalid = || Error::Endpoint(brief(endpoint));
    let relative = Path::new(endpoint.trim_start_matches('/'));
    let is_inside = relative.components().all(|part| matches!(part, Component::Normal(_)));
    match is_inside && relative.components().next().is_some() && !endpoint.contains('\0') {
        true => Ok(folder.join(relative)),
        false => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_resource_names() {
        let long = format!("example.com/{}", "a".repeat(64));
        let deep = format!("{}/gpu", "a.".repeat(130));
        for (name, expected) in [
            ("example.com/gpu", true),
            ("example.com/Gpu_1.x", true),
            ("test.device/device-plugin-failures-1234", true),
            ("cpu", false),
            ("kubernetes.io/gpu", false),
            ("example.kubernetes.io/gpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/a/b", false),
            ("Example.com/gpu", false),
            ("example.com/", false),
            ("/gpu", false),
            ("example.com/-a", false),
            ("example.com/g\0pu", false),
            ("../gpu", false),
            (&*long, false),
            (&*deep, false),
            ("", false),
        ] {
            assert_eq!(is_extended_resource(name), expected, "{name:?}");
        }
    }

    #[test]
    fn device_registrations_of_other_versions_and_names_are_refused() {
        let error = |versions: &[&'static str], name| {
            check(versions.iter().copied(), name).unwrap_err().to_string()
        };
        assert_eq!(check(["v1alpha", "v1beta1"], "example.com/gpu"), Ok(()));
        let expected = "requested API version \"v1alpha\" is not supported by kubelet. Supported \
                        version is [\"v1beta1\"]";
        assert_eq!(error(&["v1alpha"], "example.com/gpu"), expected);
        assert_eq!(error(&["v1beta1"], "gpu"), "the ResourceName \"gpu\" is invalid");
        let huge = "x".repeat(1 << 20);
        assert!(check(["v1beta1"], &huge).unwrap_err().to_string().len() < 400);
    }

    #[test]
    fn device_sockets_are_below_the_folder() {
        let folder = Path::new("/plugins");
        for endpoint in ["a.sock", "/a.sock", "x/a.sock"] {
            let path = socket(folder, endpoint).unwrap();
            assert!(path.starts_with(folder) && path.ends_with("a.sock"), "{endpoint}");
        }
        for endpoint in ["", "/", "..", "../a.sock", "x/../../a", ".", "a\0b"] {
            assert!(socket(folder, endpoint).is_err(), "{endpoint:?}");
        }
    }
}

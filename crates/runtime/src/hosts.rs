//! A pod's host name, and the `/etc/hosts` that its containers share.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{HostAlias, Pod};
use longshore_base::panics;
use longshore_pod::spec;

use super::{Error, Settings};

const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;
/// The node's own.
const HOSTS: &str = "/etc/hosts";

/// Host name and domain of a pod; the domain is empty without a subdomain.
pub(super) fn hostname_and_domain(
    settings: &Settings,
    pod: &Pod,
) -> Result<(String, String), Error> {
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    if let Some(hostname) = &pod_spec.hostname_override {
        return Ok((truncated(hostname)?, String::new()));
    }
    let hostname = pod_spec.hostname.as_deref().filter(|hostname| !hostname.is_empty());
    let hostname = truncated(hostname.unwrap_or(spec::name(pod)))?;
    let domain = match pod_spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty()) {
        Some(subdomain) => {
            format!("{subdomain}.{}.svc.{}", spec::namespace(pod), settings.cluster_domain)
        }
        None => String::new(),
    };
    Ok((hostname, domain))
}

/// The host name that is set in the kernel.
pub(super) fn kernel_hostname(settings: &Settings, pod: &Pod) -> Result<String, Error> {
    let (hostname, domain) = hostname_and_domain(settings, pod)?;
    let wants_fqdn = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false);
    if !wants_fqdn || domain.is_empty() {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    match fqdn.len() <= FQDN_MAX {
        true => Ok(fqdn),
        false => Err(Error::LongFqdn(fqdn)),
    }
}

fn truncated(hostname: &str) -> Result<String, Error> {
    let cut: String = hostname.chars().take(HOSTNAME_MAX).collect();
    // A host name must not end in a dash or a dot, at which it may have been cut.
    let trimmed = match cut.len() < hostname.len() {
        true => cut.trim_end_matches(['-', '.']),
        false => &cut,
    };
    match trimmed.is_empty() {
        true => Err(Error::Field { field: "hostname", value: hostname.to_owned() }),
        false => Ok(trimmed.to_owned()),
    }
}

/// Write the pod's hosts file, and return its path. For a pod on the host's network, it starts with
/// the node's own file. `None` for a pod that has no address yet.
pub(super) async fn write(
    settings: &Settings,
    pod: &Pod,
    ips: &[String],
) -> Result<Option<PathBuf>, Error> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    let mut text = match spec::host_network(pod) {
        true => {
            let own = panics::try_blocking(|| fs::read_to_string(HOSTS))
                .await
                .map_err(at(Path::new(HOSTS)))?;
            format!("# Kubernetes-managed hosts file (host network).\n{own}")
        }
        false if ips.is_empty() => return Ok(None),
        false => {
            let (hostname, domain) = hostname_and_domain(settings, pod)?;
            managed(&hostname, &domain, ips)
        }
    };
    let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref());
    text.push_str(&entries(aliases.unwrap_or_default()));
    let path = settings.pod_dir(pod).join("etc-hosts");
    let file = path.clone();
    let write = move || {
        fs::write(&file, text)?;
        // All users in the pod can read it, whatever the daemon's umask.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
    };
    panics::try_blocking(write).await.map_err(at(&path))?;
    Ok(Some(path))
}

fn entries(aliases: &[HostAlias]) -> String {
    let mut text = String::new();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\t{names}", alias.ip);
    }
    text
}

fn managed(hostname: &str, domain: &str, ips: &[String]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        let _ = match domain.is_empty() {
            true => writeln!(text, "{ip}\t{hostname}"),
            false => writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture;

    #[test]
    fn host_aliases_have_one_line_each() {
        let alias = |ip: &str, names: &[&str]| HostAlias {
            ip: ip.to_owned(),
            hostnames: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        };
        let text = entries(&[alias("10.0.0.1", &["a", "b"]), alias("::1", &["c"])]);
        assert_eq!(text, "\n# Entries added by HostAliases.\n10.0.0.1\ta\tb\n::1\tc\n");
        assert_eq!(entries(&[]), "");
    }

    #[test]
    fn hostname_and_domain_of_a_pod() {
        let settings = fixture::settings(Path::new("/"));
        let long = "a".repeat(64);
        for (spec, expected) in [
            (json!({}), Ok("p")),
            (json!({"hostname": "web"}), Ok("web")),
            (json!({"hostname": "web", "subdomain": "sub"}), Ok("web")),
            (
                json!({"subdomain": "sub", "setHostnameAsFQDN": true}),
                Ok("p.sub.ns.svc.cluster.local"),
            ),
            (json!({"hostname": "web", "setHostnameAsFQDN": true}), Ok("web")),
            (
                json!({"hostnameOverride": "a.b.example", "hostname": "web", "subdomain": "sub"}),
                Ok("a.b.example"),
            ),
            (
                json!({"hostname": "web", "subdomain": &long[1..], "setHostnameAsFQDN": true}),
                Err("is too long (64 characters is the max, 88 characters requested)"),
            ),
        ] {
            let found = kernel_hostname(&settings, &fixture::pod(spec.clone()));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{spec}"),
                (Err(found), Err(expected)) => {
                    assert!(found.to_string().contains(expected), "{found}");
                }
                (found, _) => panic!("{spec}: {found:?}"),
            }
        }
    }

    #[test]
    fn hostname_is_truncated() {
        let long = format!("{}-tail", "a".repeat(62));
        assert_eq!(truncated(&long).ok(), Some("a".repeat(62)));
        assert!(truncated(&"-".repeat(70)).is_err());
    }

    #[test]
    fn hosts_file_has_hostname_and_fqdn() {
        let text = managed("web", "sub.ns.svc.cluster.local", &["10.0.0.5".to_owned()]);
        assert!(text.ends_with("10.0.0.5\tweb.sub.ns.svc.cluster.local\tweb\n"), "{text}");
    }
}

//! A pod's host name, and the `/etc/hosts` that its containers share.

use std::fmt::Write;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::spec;

use super::{Error, Settings};

const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;

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

/// The name that the kernel is told.
pub(super) fn kernel_hostname(settings: &Settings, pod: &Pod) -> Result<String, Error> {
    let (hostname, domain) = hostname_and_domain(settings, pod)?;
    let wants_fqdn = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false);
    if !wants_fqdn || domain.is_empty() {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    match fqdn.len() <= FQDN_MAX {
        true => Ok(fqdn),
        false => Err(Error::Field { field: "FQDN (64 characters at most)", value: fqdn }),
    }
}

fn truncated(hostname: &str) -> Result<String, Error> {
    let cut: String = hostname.chars().take(HOSTNAME_MAX).collect();
    // A host name must not end in a dash or a dot, which the cut may have laid bare.
    let trimmed = match cut.len() < hostname.len() {
        true => cut.trim_end_matches(['-', '.']),
        false => &cut,
    };
    match trimmed.is_empty() {
        true => Err(Error::Field { field: "hostname", value: hostname.to_owned() }),
        false => Ok(trimmed.to_owned()),
    }
}

/// Write the pod's hosts file, and tell where it is. The node's own file is the base of a pod on
/// the node's network.
pub(super) async fn write(
    settings: &Settings,
    pod: &Pod,
    ips: &[String],
) -> Result<PathBuf, Error> {
    let path = settings.pod_dir(pod).join("etc-hosts");
    let aliases =
        pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    let mut text = match spec::host_network(pod) {
        true => {
            let own = tokio::fs::read_to_string("/etc/hosts").await.unwrap_or_default();
            format!("# Kubernetes-managed hosts file (host network).\n{own}")
        }
        false => {
            let (hostname, domain) = hostname_and_domain(settings, pod)?;
            managed(&hostname, &domain, ips)
        }
    };
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}\t{}",
            alias.ip,
            alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t")
        );
    }
    tokio::fs::write(&path, text)
        .await
        .map_err(|source| Error::Io { path: path.clone(), source })?;
    Ok(path)
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
    use super::*;

    #[test]
    fn long_names_are_cut_without_a_dangling_dash() {
        let long = format!("{}-tail", "a".repeat(62));
        assert_eq!(truncated(&long).ok(), Some("a".repeat(62)));
        assert!(truncated(&"-".repeat(70)).is_err());
    }

    #[test]
    fn the_pod_finds_itself_by_both_names() {
        let text = managed("web", "sub.ns.svc.cluster.local", &["10.0.0.5".to_owned()]);
        assert!(text.ends_with("10.0.0.5\tweb.sub.ns.svc.cluster.local\tweb\n"), "{text}");
    }
}

//! The resolver config of a pod, by its DNS policy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::v1;
use longshore_pod::spec;

use super::{Error, Settings};

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// The cluster's own search paths, which come first.
const CLUSTER_SEARCHES: usize = 3;
/// Limits of one search path, and of the whole line.
const MAX_SEARCH: usize = 253;
const MAX_SEARCH_LINE: usize = 2048;

/// Why the DNS config is not what the pod requests: reason and message of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DnsWarning {
    pub reason: &'static str,
    pub message: String,
    /// The message of an event about the node, if it is to be changed there.
    pub node_message: Option<String>,
}

/// The pod's resolver config, and events about what had to be left out.
pub(super) fn config(
    settings: &Settings,
    pod: &Pod,
) -> Result<(v1::DnsConfig, Vec<DnsWarning>), Error> {
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let mut warnings = Vec::new();
    let wants_cluster = match pod_spec.dns_policy.as_deref() {
        Some("None" | "Default") => false,
        Some("ClusterFirstWithHostNet") => true,
        _ => !spec::host_network(pod),
    };
    let mut config = match pod_spec.dns_policy.as_deref() {
        Some("None") => v1::DnsConfig::default(),
        _ if wants_cluster && !settings.cluster_dns.is_empty() => {
            let mut config = of_host(settings)?;
            config.servers.clone_from(&settings.cluster_dns);
            let domain = &settings.cluster_domain;
            if !domain.is_empty() {
                let namespace = spec::namespace(pod);
                let own =
                    [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
                config.searches = own.into_iter().chain(config.searches).collect();
                dedup(&mut config.searches);
            }
            config.options = vec!["ndots:5".to_owned()];
            config
        }
        _ => {
            if wants_cluster {
                warnings.push(no_cluster_dns(pod));
            }
            let mut config = of_host(settings)?;
            if settings.resolv_conf.is_none() {
                // Without a name server, resolvers use the local machine.
                let local = |ip: &String| if ip.contains(':') { "::1" } else { "127.0.0.1" };
                let host_ips = settings.host_ips.get();
                config.servers = host_ips.iter().map(local).map(str::to_owned).collect();
                if config.servers.is_empty() {
                    config.servers.push("127.0.0.1".to_owned());
                }
                config.searches = vec![".".to_owned()];
            }
            config
        }
    };
    if let Some(own) = &pod_spec.dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        let own = own.options.iter().flatten().map(|option| {
            let name = option.name.clone().unwrap_or_default();
            let value = option.value.as_deref().filter(|value| !value.is_empty());
            value.map_or_else(|| name.clone(), |value| format!("{name}:{value}"))
        });
        config.options = unique(std::mem::take(&mut config.options).into_iter().chain(own));
        dedup(&mut config.servers);
        dedup(&mut config.searches);
    }
    warnings.extend(fit(&mut config));
    Ok((config, warnings))
}

fn no_cluster_dns(pod: &Pod) -> DnsWarning {
    let node_message = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                        \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let message = format!("pod: {:?}. {node_message}", longshore_pod::spec::describe(pod));
    let node_message = Some(node_message.to_owned());
    DnsWarning { reason: "MissingClusterDNS", message, node_message }
}

/// Why the resolver config that pods inherit exceeds the limits of resolvers, if it does.
pub fn exceeded_resolv_conf_limit(settings: &Settings) -> Option<String> {
    let path = settings.resolv_conf.as_deref()?;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return Some(format!("open {}: {error}", path.display())),
    };
    let searches = parse(&text).searches;
    let own = if settings.cluster_domain.is_empty() { 0 } else { CLUSTER_SEARCHES };
    let most = MAX_SEARCHES.saturating_sub(own);
    let file = path.display();
    if searches.len() > most {
        return Some(format!(
            "Resolv.conf file '{file}' contains search line consisting of more than {most} domains!"
        ));
    }
    if searches.iter().any(|search| search.len() > MAX_SEARCH) {
        return Some(format!(
            "Resolv.conf file \"{file}\" contains a search path which length is more than allowed \
             {MAX_SEARCH} chars!"
        ));
    }
    (searches.join(" ").len() > MAX_SEARCH_LINE).then(|| {
        format!(
            "Resolv.conf file '{file}' contains search line which length is more than allowed \
             {MAX_SEARCH_LINE} chars!"
        )
    })
}

fn of_host(settings: &Settings) -> Result<v1::DnsConfig, Error> {
    settings.resolv_conf.as_deref().map_or_else(|| Ok(v1::DnsConfig::default()), read)
}

fn read(path: &Path) -> Result<v1::DnsConfig, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(parse(&text))
}

fn parse(text: &str) -> v1::DnsConfig {
    let mut config = v1::DnsConfig::default();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        match fields.next() {
            Some("nameserver") => config.servers.extend(fields.next().map(str::to_owned)),
            // The last search line wins.
            Some("search") => {
                config.searches = fields
                    .filter(|domain| *domain != ".")
                    .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                    .collect();
            }
            Some("options") => config.options.extend(fields.map(str::to_owned)),
            _ => {}
        }
    }
    config.options = unique(config.options);
    config
}

/// Removes duplicate options: the last value, in the place of the first.
fn unique(options: impl IntoIterator<Item = String>) -> Vec<String> {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    let mut places = HashMap::new();
    let mut unique: Vec<String> = Vec::new();
    for option in options {
        match places.entry(name(&option)) {
            Entry::Occupied(place) => unique[*place.get()] = option,
            Entry::Vacant(place) => {
                place.insert(unique.len());
                unique.push(option);
            }
        }
    }
    unique
}

fn dedup(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// Truncates the config to the limits of resolvers, and reports what was cut.
fn fit(config: &mut v1::DnsConfig) -> Vec<DnsWarning> {
    let warning = |what: &str, kept: &[String]| DnsWarning {
        reason: "DNSConfigForming",
        message: format!("{what} line is: {}", kept.join(" ")),
        node_message: None,
    };
    let mut warnings = Vec::new();
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        let what = "Nameserver limits were exceeded, some nameservers have been omitted, the \
                    applied nameserver";
        warnings.push(warning(what, &config.servers));
    }
    let requested = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|domain| domain.len() <= MAX_SEARCH);
    let mut line = 0;
    let fitting = config.searches.iter().take_while(|domain| {
        line += domain.len() + 1;
        line <= MAX_SEARCH_LINE + 1
    });
    let fitting = fitting.count();
    config.searches.truncate(fitting);
    if config.searches.len() < requested {
        let what = "Search Line limits were exceeded, some search paths have been omitted, the \
                    applied search";
        warnings.push(warning(what, &config.searches));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture;

    #[test]
    fn dns_last_search_line_and_option_win() {
        let config = parse(
            "# a comment\nnameserver 10.0.0.1\nnameserver\nsearch a.\nsearch b.example. . c\noptions ndots:2 rotate\noptions ndots:5\n",
        );
        assert_eq!(config.servers, ["10.0.0.1"]);
        assert_eq!(config.searches, ["b.example", "c"]);
        assert_eq!(config.options, ["ndots:5", "rotate"]);
    }

    fn lines(settings: &Settings, spec: Value) -> (String, Vec<&'static str>) {
        let (config, warnings) = config(settings, &fixture::pod(spec)).unwrap();
        let lines = [config.servers, config.searches, config.options].map(|list| list.join(" "));
        (lines.join(" | "), warnings.into_iter().map(|warning| warning.reason).collect())
    }

    #[test]
    fn dns_policies() {
        let dir = tempfile::tempdir().unwrap();
        let resolv_conf = dir.path().join("resolv.conf");
        std::fs::write(&resolv_conf, "nameserver 9.9.9.9\nsearch lan\noptions rotate\n").unwrap();
        let mut settings = fixture::settings(dir.path());
        settings.resolv_conf = Some(resolv_conf);
        settings.cluster_dns = vec!["10.96.0.10".to_owned()];
        settings.cluster_domain = "cluster.local".to_owned();
        let host = "9.9.9.9 | lan | rotate";
        let searches = "ns.svc.cluster.local svc.cluster.local cluster.local lan";
        let cluster = format!("10.96.0.10 | {searches} | ndots:5");
        let own = json!({"nameservers": ["1.1.1.1"], "searches": ["own", "lan"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
        for (spec, expected) in [
            (json!({}), cluster.as_str()),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), host),
            (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), &cluster),
            (json!({"dnsPolicy": "Default"}), host),
            (
                json!({"dnsPolicy": "Default", "dnsConfig": own}),
                "9.9.9.9 1.1.1.1 | lan own | rotate ndots:2 edns0",
            ),
            (json!({"dnsPolicy": "None", "dnsConfig": own}), "1.1.1.1 | own lan | ndots:2 edns0"),
        ] {
            assert_eq!(lines(&settings, spec.clone()), (expected.to_owned(), vec![]), "{spec}");
        }
        settings.cluster_dns.clear();
        assert_eq!(lines(&settings, json!({})), (host.to_owned(), vec!["MissingClusterDNS"]));
        settings.resolv_conf = None;
        settings.host_ips = ["192.0.2.1", "2001:db8::1"].into();
        let local = ("127.0.0.1 ::1 | . | ".to_owned(), vec![]);
        assert_eq!(lines(&settings, json!({"dnsPolicy": "Default"})), local);
    }

    #[test]
    fn dns_missing_cluster_dns_is_reported_of_pod_and_node() {
        let dir = tempfile::tempdir().unwrap();
        let settings = fixture::settings(dir.path());
        let (_, warnings) = config(&settings, &fixture::pod(json!({}))).unwrap();
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                    \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        assert_eq!(warning.node_message.as_deref(), Some(text));
        assert_eq!(warning.message, format!("pod: \"p_ns(uid)\". {text}"));
    }

    #[test]
    fn dns_limits_of_the_resolver_config_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let mut settings = fixture::settings(dir.path());
        assert_eq!(exceeded_resolv_conf_limit(&settings), None);
        settings.resolv_conf = Some(path.clone());
        let file = path.display();
        let text = format!("open {file}: No such file or directory (os error 2)");
        assert_eq!(exceeded_resolv_conf_limit(&settings), Some(text));
        let mut found = |domain: &str, searches: Vec<String>| {
            settings.cluster_domain = domain.to_owned();
            std::fs::write(&path, format!("search {}\n", searches.join(" "))).unwrap();
            exceeded_resolv_conf_limit(&settings)
        };
        let searches = |count: usize, length: usize| vec!["a".repeat(length); count];
        assert_eq!(found("cluster.local", searches(29, 9)), None);
        let text = format!(
            "Resolv.conf file '{file}' contains search line consisting of more than 29 domains!"
        );
        assert_eq!(found("cluster.local", searches(30, 9)), Some(text));
        assert_eq!(found("", searches(32, 9)), None);
        assert!(found("", searches(33, 9)).unwrap().ends_with("more than 32 domains!"));
        let text = format!(
            "Resolv.conf file \"{file}\" contains a search path which length is more than allowed 253 chars!"
        );
        assert_eq!(found("", searches(1, 254)), Some(text));
        let text = format!(
            "Resolv.conf file '{file}' contains search line which length is more than allowed 2048 chars!"
        );
        assert_eq!(found("", searches(9, 250)), Some(text));
    }

    #[test]
    fn dns_limits_are_applied_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let settings = fixture::settings(dir.path());
        let searches = |count: usize, length: usize| -> Vec<String> {
            (0..count).map(|index| format!("{index:0length$}")).collect()
        };
        let kept = |nameservers: usize, searches: Vec<String>| {
            let nameservers = (0..nameservers).map(|last| format!("1.1.1.{last}"));
            let nameservers: Vec<String> = nameservers.collect();
            let own = json!({"nameservers": nameservers, "searches": searches});
            let spec = json!({"dnsPolicy": "None", "dnsConfig": own});
            let (config, warnings) = config(&settings, &fixture::pod(spec)).unwrap();
            (config.servers.len(), config.searches.len(), warnings)
        };
        assert_eq!(kept(3, searches(32, 63)), (3, 32, vec![]));
        let (servers, _, warnings) = kept(4, vec![]);
        assert_eq!(servers, 3);
        assert_eq!(
            warnings[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.0 1.1.1.1 1.1.1.2"
        );
        for (count, length, expected) in [(33, 10, 32), (9, 253, 8), (2, 254, 0)] {
            let (_, found, warnings) = kept(0, searches(count, length));
            assert_eq!((found, warnings.len()), (expected, 1), "{count} of {length}");
            assert!(warnings[0].message.starts_with("Search Line limits were exceeded, "));
        }
    }
}

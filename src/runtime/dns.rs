//! The resolver config of a pod, by its DNS policy.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use longshore_cri::v1;
use longshore_pod::spec;

use super::{Error, Settings};

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// What the pod's `resolv.conf` is made of.
pub(super) fn config(settings: &Settings, pod: &Pod) -> Result<v1::DnsConfig, Error> {
    let pod_spec = pod.spec.as_ref().ok_or(Error::NoSpec)?;
    let host = || match &settings.resolv_conf {
        Some(path) => read(path),
        None => Ok(v1::DnsConfig::default()),
    };
    let cluster = match pod_spec.dns_policy.as_deref() {
        Some("None") => None,
        Some("Default") => Some(false),
        Some("ClusterFirstWithHostNet") => Some(true),
        _ => Some(!spec::host_network(pod)),
    };
    let mut config = match cluster {
        None => v1::DnsConfig::default(),
        // Without a cluster DNS the policy cannot be kept; the node's resolver is the best there is.
        Some(true) if !settings.cluster_dns.is_empty() => {
            let mut config = host()?;
            config.servers.clone_from(&settings.cluster_dns);
            let domain = &settings.cluster_domain;
            if !domain.is_empty() {
                let namespace = spec::namespace(pod);
                let own =
                    [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
                config.searches = own.into_iter().chain(config.searches).collect();
            }
            config.options = vec!["ndots:5".to_owned()];
            config
        }
        Some(_) => host()?,
    };
    if let Some(own) = &pod_spec.dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            let value = option.value.as_deref().filter(|value| !value.is_empty());
            let text = value.map_or_else(|| name.clone(), |value| format!("{name}:{value}"));
            set_option(&mut config.options, text);
        }
    }
    dedup(&mut config.servers);
    dedup(&mut config.searches);
    fit(&mut config);
    Ok(config)
}

fn read(path: &Path) -> Result<v1::DnsConfig, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(parse(&text))
}

fn parse(text: &str) -> v1::DnsConfig {
    let mut config = v1::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            // The last search line wins.
            Some("search") => {
                config.searches = words
                    .filter(|domain| *domain != ".")
                    .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                    .collect();
            }
            Some("options") => {
                words.for_each(|word| set_option(&mut config.options, word.to_owned()))
            }
            _ => {}
        }
    }
    config
}

fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|known| name(known) == name(&option)) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn dedup(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// Cut to what resolvers read.
fn fit(config: &mut v1::DnsConfig) {
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    let mut length = 0;
    let fitting = config
        .searches
        .iter()
        .take_while(|domain| {
            length += domain.len() + 1;
            length <= MAX_SEARCH_CHARS + 1
        })
        .count();
    config.searches.truncate(fitting);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_search_line_and_the_last_value_of_an_option_win() {
        let config = parse(
            "# a comment\nnameserver 10.0.0.1\nnameserver\nsearch a.\nsearch b.example. . c\noptions ndots:2 rotate\noptions ndots:5\n",
        );
        assert_eq!(config.servers, ["10.0.0.1"]);
        assert_eq!(config.searches, ["b.example", "c"]);
        assert_eq!(config.options, ["ndots:5", "rotate"]);
    }
}

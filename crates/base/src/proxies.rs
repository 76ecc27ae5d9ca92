//! Proxies on the way to servers, as `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name them to Go's programs
//! (`http.ProxyFromEnvironment`).
//!
//! Current limitations: names in other scripts are compared as they are written.

use std::net::IpAddr;

use ipnet::IpNet;

/// What the environment says of proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    /// The URLs of the proxies; empty: there is none.
    http: String,
    https: String,
    /// Servers that are reached without one.
    exceptions: Vec<Exception>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    Net(IpNet),
    /// An address at that port, or at any.
    Address(IpAddr, Option<String>),
    /// The names that end so, with the name itself if it has no dot before it.
    Names {
        suffix: String,
        itself: bool,
        port: Option<String>,
    },
}

impl ProxyEnvironment {
    /// What this process was started with.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    /// What these variables say.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&str; 2]| {
            names.into_iter().filter_map(&variable).find(|value| !value.is_empty())
        };
        // a header of a request could set it for a CGI program
        let http = first(["HTTP_PROXY", "http_proxy"])
            .filter(|_| variable("REQUEST_METHOD").is_none_or(|method| method.is_empty()));
        let exceptions = first(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Self {
            http: url(http),
            https: url(first(["HTTPS_PROXY", "https_proxy"])),
            exceptions: exceptions.split(',').filter_map(Exception::parse).collect(),
        }
    }

    /// The URL of the proxy for servers without TLS; `None`: there is none.
    #[must_use]
    pub fn http(&self) -> Option<&str> {
        Some(self.http.as_str()).filter(|url| !url.is_empty())
    }

    /// The same for servers with TLS.
    #[must_use]
    pub fn https(&self) -> Option<&str> {
        Some(self.https.as_str()).filter(|url| !url.is_empty())
    }

    /// Whether a server is reached through its proxy, if there is one.
    #[must_use]
    pub fn applies_to(&self, host: &str, port: u16) -> bool {
        let host = host.trim_matches(['[', ']']).trim().to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok();
        let is_local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let port = port.to_string();
        !is_local && !self.exceptions.iter().any(|one| one.matches(&host, address, &port))
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text == "*" {
            return Some(Self::All);
        }
        if let Ok(net) = text.parse() {
            return Some(Self::Net(net));
        }
        let (host, port) = match text.rsplit_once(':') {
            _ if text.parse::<IpAddr>().is_ok() => (text.as_str(), None),
            Some((host, port)) => (host.trim_matches(['[', ']']), Some(port.to_owned())),
            None => (text.as_str(), None),
        };
        let port = port.filter(|port| !port.is_empty());
        if let Ok(address) = host.parse() {
            return Some(Self::Address(address, port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        match host.strip_prefix('.') {
            None if host.is_empty() => None,
            None => Some(Self::Names { suffix: format!(".{host}"), itself: true, port }),
            Some(_) => Some(Self::Names { suffix: host.to_owned(), itself: false, port }),
        }
    }

    fn matches(&self, host: &str, address: Option<IpAddr>, port: &str) -> bool {
        let at = |wanted: &Option<String>| wanted.as_deref().is_none_or(|wanted| wanted == port);
        match self {
            Self::All => true,
            Self::Net(net) => address.is_some_and(|address| net.contains(&address)),
            Self::Address(own, wanted) => address == Some(*own) && at(wanted),
            Self::Names { suffix, itself, port: wanted } => {
                let is_itself = *itself && suffix.strip_prefix('.') == Some(host);
                (is_itself || host.ends_with(suffix.as_str())) && at(wanted)
            }
        }
    }
}

/// A proxy without a scheme is one of HTTP.
fn url(proxy: Option<String>) -> String {
    match proxy {
        Some(proxy) if !proxy.contains("://") => format!("http://{proxy}"),
        proxy => proxy.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> ProxyEnvironment {
        ProxyEnvironment::of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn proxies_are_those_of_the_environment() {
        for (variables, http, https) in [
            (&[][..], None, None),
            (&[("HTTPS_PROXY", "https://p:1")], None, Some("https://p:1")),
            (&[("https_proxy", "p:3128"), ("HTTPS_PROXY", "")], None, Some("http://p:3128")),
            (&[("HTTP_PROXY", "socks5://p"), ("http_proxy", "other")], Some("socks5://p"), None),
            (&[("HTTP_PROXY", "http://p"), ("REQUEST_METHOD", "GET")], None, None),
        ] {
            let found = of(variables);
            assert_eq!((found.http(), found.https()), (http, https), "{variables:?}");
        }
    }

    #[test]
    fn proxies_are_not_for_local_servers_and_exceptions() {
        let exceptions = "10.0.0.0/8, 192.0.2.1, 192.0.2.2:443,[2001:db8::1]:6443,2001:db8::2,\
                          example.com,.svc,*.cluster.local,port.example:8443, ,:80";
        let found = of(&[("NO_PROXY", exceptions)]);
        for (host, port, expected) in [
            ("localhost", 443, false),
            ("127.0.0.9", 443, false),
            ("::1", 443, false),
            ("10.9.8.7", 443, false),
            ("11.9.8.7", 443, true),
            ("192.0.2.1", 1, false),
            ("192.0.2.2", 443, false),
            ("192.0.2.2", 444, true),
            ("2001:db8::1", 6443, false),
            ("[2001:db8::1]", 443, true),
            ("2001:db8::2", 443, false),
            ("example.com", 443, false),
            ("a.Example.com", 443, false),
            ("notexample.com", 443, true),
            ("hook.default.svc", 443, false),
            ("svc", 443, true),
            ("a.cluster.local", 443, false),
            ("cluster.local", 443, true),
            ("port.example", 8443, false),
            ("port.example", 443, true),
        ] {
            assert_eq!(found.applies_to(host, port), expected, "{host}:{port}");
        }
        assert!(!of(&[("no_proxy", "a,*")]).applies_to("b", 443));
        assert!(of(&[]).applies_to("b", 443));
    }
}

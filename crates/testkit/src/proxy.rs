//! The HTTP proxy of the machine, from its environment: used by containerd on a host with egress, and
//! by nothing else on a host.
use std::env;
use std::process::Command;

const VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// Removes the proxy from a command's environment.
pub(crate) fn forget(command: &mut Command) {
    for name in VARIABLES {
        command.env_remove(name);
    }
}

/// Restores it.
pub(crate) fn pass(command: &mut Command) {
    command.envs(VARIABLES.iter().filter_map(|name| Some((name, env::var_os(name)?))));
}

/// Variables with a proxy on the loopback of the machine, which hosts cannot reach.
pub(crate) fn unreachable() -> Vec<&'static str> {
    let proxies = VARIABLES.into_iter().filter(|name| !name.eq_ignore_ascii_case("no_proxy"));
    proxies.filter(|name| env::var(name).is_ok_and(|url| is_loopback(&url))).collect()
}

/// For `[scheme://][user@]host[:port][/]`.
fn is_loopback(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    host.starts_with("127.") || host.starts_with("[::1]") || {
        host.split(':').next().is_some_and(|host| host.eq_ignore_ascii_case("localhost"))
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn http_proxy_on_loopback_is_detected() {
        for (url, expected) in [
            ("http://127.0.0.1:3128", true),
            ("http://me:pass@word@Localhost:3128/", true),
            ("localhost", true),
            ("http://[::1]:3128", true),
            ("http://proxy.example:3128", false),
            ("http://127.0.0.1@proxy.example:3128", false),
            ("socks5://192.0.2.1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(url), expected, "{url}");
        }
    }
}

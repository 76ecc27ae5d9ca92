//! What is shown to servers that others name, by their hosts: the kubeconfig of a webhook plugin of admission
//! has a user for each.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::KubeconfigError;
use super::credentials::{Authorization, Content};
use super::kubeconfig;

/// What is shown to a server.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(super) authorization: Authorization,
    pub(super) certificate: Content,
    pub(super) key: Content,
}

impl Shown {
    /// Nothing.
    pub(crate) const NOTHING: Shown = Shown {
        authorization: Authorization::Nothing,
        certificate: Content::Nothing,
        key: Content::Nothing,
    };
}

/// The users of a kubeconfig by their names, which are hosts.
#[derive(Clone, Default)]
pub(crate) struct HostCredentials(Arc<Known>);

#[derive(Default)]
struct Known {
    users: HashMap<String, Shown>,
    /// The user of the current context.
    current: Option<String>,
}

impl fmt::Debug for HostCredentials {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.users.keys()).finish()
    }
}

impl HostCredentials {
    /// Reads a kubeconfig.
    pub(crate) fn load(path: &Path) -> Result<HostCredentials, KubeconfigError> {
        let (users, current) = kubeconfig::users(path)?;
        Ok(HostCredentials(Arc::new(Known { users, current })))
    }

    /// What is shown to that host and port.
    pub(crate) fn of(&self, host: &str, port: u16) -> Shown {
        let Known { users, current } = &*self.0;
        let named = names(host, port).into_iter().find_map(|name| users.get(&name));
        let default = || current.as_ref().and_then(|name| users.get(name));
        named.or_else(default).cloned().unwrap_or(Shown::NOTHING)
    }
}

/// PURE: the names of users for a host, the most specific one first.
fn names(host: &str, port: u16) -> Vec<String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let with_stars = |target: &str| {
        let rest = target.match_indices('.').map(|(at, _)| target.split_at(at).1);
        let stars: Vec<String> = rest.map(|rest| format!("*{rest}")).collect();
        [vec![target.to_owned()], stars].concat()
    };
    let mut names = with_stars(&format!("{host}:{port}"));
    if port == 443 {
        names.extend(with_stars(&host));
    }
    names.push("*".to_owned());
    names
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn remote_hosts_have_users_as_upstream_finds_them() {
        assert_eq!(
            names("s.n.svc", 443),
            ["s.n.svc:443", "*.n.svc:443", "*.svc:443", "s.n.svc", "*.n.svc", "*.svc", "*"]
        );
        assert_eq!(names("h", 8443), ["h:8443", "*"]);
        assert_eq!(names("::1", 1), ["[::1]:1", "*"]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(
            &path,
            "apiVersion: v1\nkind: Config\nusers:\n- {name: s.n.svc, user: {token: exact}}\n\
             - {name: '*.n.svc', user: {token: star}}\n- {name: u, user: {token: current}}\n\
             current-context: c\ncontexts: [{name: c, context: {user: u}}]\n",
        )
        .unwrap();
        let known = HostCredentials::load(&path).unwrap();
        let shown = |host: &str, port| match known.of(host, port).authorization {
            Authorization::Header(value) => value.to_str().unwrap().to_owned(),
            _ => String::new(),
        };
        assert_eq!(shown("s.n.svc", 443), "Bearer exact");
        assert_eq!(shown("t.n.svc", 443), "Bearer star");
        assert_eq!(shown("t.n.svc", 444), "Bearer current");
        assert!(!format!("{known:?}").contains("exact"));
        std::fs::write(&path, "users: [{name: a, user: {client-certificate: none.crt}}]").unwrap();
        let error = HostCredentials::load(&path).unwrap_err().to_string();
        assert!(error.contains("none.crt"), "{error}");
    }
}

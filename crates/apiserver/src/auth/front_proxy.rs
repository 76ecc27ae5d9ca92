//! Front proxies that are trusted to name users in headers (`--requestheader-*`).

use std::path::PathBuf;

use hyper::HeaderMap;
use longshore_serving::FrontProxyHeaders;
use longshore_tls::{ClientCa, Verdict};

use crate::pki;
use crate::user::User;

/// The front proxies that are trusted, and where they name the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontProxyConfig {
    /// The CAs of their certificates (PEM).
    pub ca_file: PathBuf,
    /// Their names, and the headers.
    pub headers: FrontProxyHeaders,
}

/// The front proxies, with the CA that knows them.
pub(super) struct FrontProxies {
    config: FrontProxyConfig,
    authority: ClientCa,
}

impl FrontProxies {
    pub(super) fn load(config: FrontProxyConfig) -> pki::Result<FrontProxies> {
        let authority = ClientCa::load(&config.ca_file, &pki::provider())?;
        Ok(FrontProxies { config, authority })
    }

    /// Removes the headers that name users.
    pub(super) fn clear(&self, headers: &mut HeaderMap) {
        self.config.headers.clear(headers);
    }

    /// The user that a front proxy names in the headers, which are removed then. `None` where the peer is
    /// no front proxy, or names nobody. `verify` verifies the peer's certificate, which costs time: it is
    /// not called for requests without such a header.
    pub(super) fn user(
        &self,
        verify: impl FnOnce(&ClientCa) -> Verdict,
        headers: &mut HeaderMap,
    ) -> Option<User> {
        let known = &self.config.headers;
        if !known.names_somebody(headers) {
            return None;
        }
        let longshore_tls::User { name, uid, groups, extra } =
            known.user(&verify(&self.authority), headers)?;
        Some(User::vouched_for(User { name, uid, groups, extra }))
    }
}

//! Front proxies that are trusted to name users in headers (`--requestheader-*`).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use longshore_serving::FrontProxyHeaders;
use longshore_tls::{ClientCa, Verdict};
use parking_lot::Mutex;

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
    authority: Mutex<Authority>,
}

/// The CA as it was read last.
struct Authority {
    authority: ClientCa,
    text: Vec<u8>,
    read: Instant,
}

/// How often the file of the CA is looked at: one that was replaced knows nobody any longer.
const REREAD: Duration = Duration::from_secs(60);

impl FrontProxies {
    pub(super) fn load(config: FrontProxyConfig) -> pki::Result<FrontProxies> {
        let authority = ClientCa::load(&config.ca_file, &pki::provider())?;
        let text = std::fs::read(&config.ca_file).unwrap_or_default();
        let authority = Authority { authority, text, read: Instant::now() };
        Ok(FrontProxies { config, authority: Mutex::new(authority) })
    }

    /// The CA, read anew when its file has changed. One that cannot be read stays as it was.
    fn authority(&self) -> ClientCa {
        let mut known = self.authority.lock();
        if known.read.elapsed() >= REREAD {
            known.read = Instant::now();
            let file = &self.config.ca_file;
            match std::fs::read(file) {
                Ok(text) if text == known.text => {}
                Ok(text) => match ClientCa::load(file, &pki::provider()) {
                    Ok(authority) => {
                        tracing::info!(?file, "reloaded the CA of front proxies");
                        (known.authority, known.text) = (authority, text);
                    }
                    Err(error) => {
                        tracing::error!(%error, "failed to reload the CA of front proxies")
                    }
                },
                Err(error) => {
                    tracing::error!(?file, %error, "failed to read the CA of front proxies")
                }
            }
        }
        known.authority.clone()
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
            known.user(&verify(&self.authority()), headers)?;
        Some(User::vouched_for(User { name, uid, groups, extra }))
    }
}

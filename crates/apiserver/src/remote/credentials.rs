//! What a server is shown, and how its certificate is verified: as it is when a call is made, since files
//! change and plugins give new credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use longshore_exec_credentials::{Credential, ExecPlugin};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::http_client::{Pool, Tls, tls};

/// How often files are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);
/// Idle connections that are kept of one server.
const MAX_IDLE: usize = 16;

/// What is in a file, or in the configuration itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    Data(Vec<u8>),
    File(PathBuf),
}

impl Content {
    /// What a field `…-data` holds, or else the file that another field names.
    pub(super) fn of(base: &Path, name: &str, file: &str, data: &str) -> Result<Content, String> {
        match (file, data) {
            ("", "") => Ok(Content::Nothing),
            (file, "") => Ok(Content::File(base.join(file))),
            (_, data) => {
                let data = STANDARD.decode(data.trim());
                data.map(Content::Data).map_err(|error| format!("{name}-data: {error}"))
            }
        }
    }

    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        match self {
            Content::Nothing => Ok(None),
            Content::Data(data) => Ok(Some(data.clone())),
            Content::File(path) => std::fs::read(path)
                .map(Some)
                .map_err(|error| format!("{name} {}: {error}", path.display())),
        }
    }

    fn modified(&self) -> Option<SystemTime> {
        match self {
            Content::File(path) => path.metadata().and_then(|file| file.modified()).ok(),
            _ => None,
        }
    }
}

/// How a server knows this one, besides a client certificate.
#[derive(Clone)]
pub(super) enum Authorization {
    Nothing,
    /// A header that does not change.
    Header(HeaderValue),
    /// A token in a file, which is read for each call.
    TokenFile(PathBuf),
    /// What a plugin gives: a token, a client certificate, or both.
    Plugin(Arc<ExecPlugin>),
}

impl Authorization {
    /// The credential of a plugin, if there is one.
    pub(super) async fn credential(&self) -> Result<Option<Arc<Credential>>, String> {
        let Authorization::Plugin(plugin) = self else { return Ok(None) };
        let credential = plugin.credential().await;
        credential.map(Some).map_err(|error| format!("getting credentials: {error}"))
    }

    /// The header of a call.
    pub(super) async fn header(
        &self,
        credential: Option<&Credential>,
    ) -> Result<Option<HeaderValue>, String> {
        match self {
            Authorization::Nothing => Ok(None),
            Authorization::Header(value) => Ok(Some(value.clone())),
            Authorization::TokenFile(path) => {
                let token = tokio::fs::read_to_string(path).await;
                let token = token.map_err(|error| format!("{}: {error}", path.display()))?;
                bearer(token.trim()).map(Some)
            }
            Authorization::Plugin(_) => {
                credential.and_then(|known| known.token.as_deref()).map(bearer).transpose()
            }
        }
    }

    /// The server has refused that credential.
    pub(super) async fn refused(&self, credential: Option<&Arc<Credential>>) {
        if let (Authorization::Plugin(plugin), Some(credential)) = (self, credential) {
            plugin.refused(credential).await;
        }
    }
}

/// The header with a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "the token is not valid in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Where the parts of TLS are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsSource {
    pub(super) authority: Content,
    /// The certificate of the server is not verified.
    pub(super) insecure: bool,
    pub(super) certificate: Content,
    pub(super) key: Content,
}

impl TlsSource {
    fn build(&self, credential: Option<&Credential>) -> Result<Tls, String> {
        let authority = self.authority.read("certificate-authority")?;
        let pair = match credential.and_then(|known| known.certificate.clone()) {
            Some((certificate, key)) => Some((certificate.into_bytes(), key.into_bytes())),
            None => match self.certificate.read("client-certificate")? {
                None => None,
                Some(certificate) => {
                    let key = self.key.read("client-key")?;
                    Some((certificate, key.ok_or("the user has a client certificate and no key")?))
                }
            },
        };
        let identity = pair.map(|(certificate, key)| identity(&certificate, &key)).transpose()?;
        tls::client_with(authority.as_deref(), self.insecure, identity).map(Arc::new)
    }

    fn modified(&self) -> [Option<SystemTime>; 3] {
        [&self.authority, &self.certificate, &self.key].map(Content::modified)
    }
}

fn identity(
    certificate: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("client-certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("client-key: {error}"))?;
    Ok((chain, key))
}

/// Connections with one set of certificates.
pub(crate) struct Connections {
    pub(crate) tls: Tls,
    pub(crate) pool: Pool,
}

impl Connections {
    fn new(tls: Tls) -> Arc<Connections> {
        Arc::new(Connections { tls, pool: Pool::new(MAX_IDLE) })
    }
}

/// The connections with the certificates that are in force.
pub(super) struct CurrentConnections {
    source: TlsSource,
    state: Mutex<State>,
}

struct State {
    connections: Arc<Connections>,
    /// The client certificate of a plugin.
    pair: Option<(String, String)>,
    modified: [Option<SystemTime>; 3],
    checked: Instant,
}

impl CurrentConnections {
    /// Reads the files.
    pub(super) fn new(source: TlsSource) -> Result<CurrentConnections, String> {
        let modified = source.modified();
        let connections = Connections::new(source.build(None)?);
        let state = State { connections, pair: None, modified, checked: Instant::now() };
        Ok(CurrentConnections { source, state: Mutex::new(state) })
    }

    /// Those for a call with this credential. Files that cannot be used leave in force what was.
    pub(super) fn get(&self, credential: Option<&Credential>) -> Result<Arc<Connections>, String> {
        let pair = credential.and_then(|known| known.certificate.as_ref());
        let mut state = self.state.lock();
        let is_same = state.pair.as_ref() == pair;
        if is_same && state.checked.elapsed() < RELOAD_INTERVAL {
            return Ok(Arc::clone(&state.connections));
        }
        state.checked = Instant::now();
        let modified = self.source.modified();
        if is_same && modified == state.modified {
            return Ok(Arc::clone(&state.connections));
        }
        match self.source.build(credential) {
            Ok(tls) => {
                state.connections = Connections::new(tls);
                (state.pair, state.modified) = (pair.cloned(), modified);
            }
            Err(why) if is_same => {
                tracing::warn!(why, "cannot reload certificates, the old ones stay in use");
            }
            Err(why) => return Err(why),
        }
        Ok(Arc::clone(&state.connections))
    }

    /// Makes the next call look at the files.
    #[cfg(test)]
    pub(super) fn expire(&self) {
        let mut state = self.state.lock();
        state.checked = state.checked.checked_sub(RELOAD_INTERVAL).unwrap();
    }
}

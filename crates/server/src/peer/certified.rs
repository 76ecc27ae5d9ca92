//! Authentication by client certificates.
//!
//! It is checked with each request, as a connection may outlive the certificate and the CA; the
//! result is cached until the CA is reloaded.

use std::sync::Arc;

use longshore_tls::{User, Verdict};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::tls::{Clients, Tls};

/// The certificate chain of a client's handshake.
pub(crate) struct Certified {
    tls: Arc<Tls>,
    chain: Vec<CertificateDer<'static>>,
    verified: Mutex<Verified>,
}

/// The result of a verification.
struct Verified {
    /// The generation of the CA: see [`Clients::generation`].
    generation: u64,
    verdict: Verdict,
}

impl Certified {
    pub(crate) fn new(tls: Arc<Tls>, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain: Vec<_> =
            chain.into_iter().flatten().map(|link| link.clone().into_owned()).collect();
        let verified = Verified::new(&tls.clients(), &chain);
        Self { tls, chain, verified: Mutex::new(verified) }
    }

    /// The user of the certificate, if there is one; an error if it is invalid now.
    pub(crate) fn user(&self) -> Result<Option<User>, String> {
        self.user_at(UnixTime::now())
    }

    fn user_at(&self, now: UnixTime) -> Result<Option<User>, String> {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let clients = self.tls.clients();
        let mut verified = self.verified.lock();
        if verified.generation != clients.generation {
            *verified = Verified::new(&clients, &self.chain);
        }
        Ok(verified.verdict.user_at(now)?.cloned())
    }
}

impl Verified {
    fn new(clients: &Clients, chain: &[CertificateDer<'_>]) -> Self {
        let authority = clients.authority.as_ref();
        let verdict = authority.map_or(Verdict::Nothing, |authority| authority.verify(chain));
        Self { generation: clients.generation, verdict }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_tls::CREDENTIAL_ID;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::tests::{ExtendedUse, Pki, config};

    /// Open connections lose access when the CA changes.
    #[test]
    fn client_ca_reload_applies_to_open_connections() {
        let (pki, renewed) = (Pki::new(), Pki::new());
        let chain = |pki: &Pki| {
            pki.issue("jane", "jane", ExtendedUse::ClientAuth);
            vec![CertificateDer::from_pem_file(pki.path("jane.crt")).unwrap()]
        };
        let (old, new) = (chain(&pki), chain(&renewed));
        let tls = Arc::new(Tls::new(&config(&pki, &[]), &[]).unwrap());
        let certified =
            |chain: &[CertificateDer<'_>]| Certified::new(Arc::clone(&tls), Some(chain));
        let (before, unknown) = (certified(&old), certified(&new));
        let jane = before.user().unwrap().unwrap();
        assert!(jane.name == "jane" && jane.extra.contains_key(CREDENTIAL_ID));
        assert!(unknown.user().is_err());
        let ended = before.user_at(UnixTime::since_unix_epoch(Duration::MAX)).unwrap_err();
        assert_eq!(ended, "its certificate has expired");
        assert_eq!(Certified::new(Arc::clone(&tls), None).user(), Ok(None));

        std::fs::copy(renewed.path("ca.crt"), pki.path("ca.crt")).unwrap();
        tls.expire();
        assert!(before.user().is_err());
        assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
        // an invalid CA file keeps the previous CA
        std::fs::write(pki.path("ca.crt"), "nonsense").unwrap();
        tls.expire();
        assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
    }
}

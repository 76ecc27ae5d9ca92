//! Who a client is by the certificate that it has shown.
//!
//! That is asked with each request, as a connection may outlive the certificate and the authority
//! that gave it; the answer is remembered for as long as both are what they were.

use std::sync::{Arc, Mutex, PoisonError};

use longshore_tls::Verdict;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::User;
use crate::tls::{Clients, Tls};

/// What a client has shown in its handshake.
pub(crate) struct Certified {
    tls: Arc<Tls>,
    chain: Vec<CertificateDer<'static>>,
    judged: Mutex<Judged>,
}

/// What a chain was found to prove.
struct Judged {
    /// By which authority: see [`Clients::generation`].
    generation: u64,
    verdict: Verdict,
}

impl Certified {
    pub(crate) fn new(tls: Arc<Tls>, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain: Vec<_> =
            chain.into_iter().flatten().map(|link| link.clone().into_owned()).collect();
        let judged = Judged::by(&tls.clients(), &chain);
        Self { tls, chain, judged: Mutex::new(judged) }
    }

    /// Whose certificate was shown, if one was; why it proves nobody, as of now.
    pub(super) fn user(&self) -> Result<Option<User>, String> {
        self.user_at(UnixTime::now())
    }

    fn user_at(&self, now: UnixTime) -> Result<Option<User>, String> {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let clients = self.tls.clients();
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if judged.generation != clients.generation {
            *judged = Judged::by(&clients, &self.chain);
        }
        Ok(judged.verdict.user_at(now)?.map(User::from))
    }
}

impl Judged {
    fn by(clients: &Clients, chain: &[CertificateDer<'_>]) -> Self {
        let authority = clients.authority.as_ref();
        let verdict = authority.map_or(Verdict::Nothing, |authority| authority.judge(chain));
        Self { generation: clients.generation, verdict }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use longshore_tls::CREDENTIAL_ID;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::tests::{ExtendedUse, Pki, config};

    /// A connection does not keep what its certificate has lost.
    #[test]
    fn a_renewed_authority_holds_for_connections_that_are_open() {
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
        tls.forget();
        assert!(before.user().is_err());
        assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
        // what is no authority leaves the last one in force
        std::fs::write(pki.path("ca.crt"), "nonsense").unwrap();
        tls.forget();
        assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
    }
}

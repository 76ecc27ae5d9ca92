//! Who a client is by the certificate that it has shown.
//!
//! That is asked with each request, as a connection may outlive the certificate and the authority
//! that gave it; the answer is remembered for as long as both are what they were.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};

use super::User;
use crate::server::tls::{Clients, Tls};

/// Which certificate was shown, among what is told of a user.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// What a client has shown in its handshake.
pub(in crate::server) struct Certified {
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

#[derive(Clone)]
enum Verdict {
    /// Nothing was shown, or nobody may show anything.
    Nothing,
    /// A user's certificate, until then (Unix seconds).
    User { user: User, until: u64 },
    /// One that is not to be trusted, and why.
    Untrusted(String),
}

impl Certified {
    pub(in crate::server) fn new(tls: Arc<Tls>, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain: Vec<_> =
            chain.into_iter().flatten().map(|link| link.clone().into_owned()).collect();
        let clients = tls.clients();
        let judged = Judged { generation: clients.generation, verdict: judge(&clients, &chain) };
        Self { tls, chain, judged: Mutex::new(judged) }
    }

    /// Whose certificate was shown, if one was; why it proves nobody, as of now.
    pub(super) fn user(&self) -> Result<Option<User>, String> {
        self.user_at(seconds_now())
    }

    fn user_at(&self, now: u64) -> Result<Option<User>, String> {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let clients = self.tls.clients();
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if judged.generation != clients.generation {
            let verdict = judge(&clients, &self.chain);
            *judged = Judged { generation: clients.generation, verdict };
        }
        match &judged.verdict {
            Verdict::Nothing => Ok(None),
            Verdict::User { user, until } if now <= *until => Ok(Some(user.clone())),
            Verdict::User { .. } => Err("its certificate has expired".to_owned()),
            Verdict::Untrusted(why) => Err(why.clone()),
        }
    }
}

fn judge(clients: &Clients, chain: &[CertificateDer<'_>]) -> Verdict {
    let Some(authority) = &clients.authority else { return Verdict::Nothing };
    match (authority.identify(chain), chain.first()) {
        (Ok(Some(subject)), Some(leaf)) => {
            let digest: String =
                Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
            let mut user = User::authenticated(subject.name, subject.groups);
            user.uid = subject.uid;
            user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")]);
            Verdict::User { user, until: subject.until }
        }
        (Ok(_), _) => Verdict::Nothing,
        (Err(why), _) => Verdict::Untrusted(why),
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::server::tests::{ExtendedUse, Pki, config};

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
        assert!(jane.name == "jane" && jane.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        assert!(unknown.user().is_err());
        let ended = before.user_at(u64::MAX).unwrap_err();
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

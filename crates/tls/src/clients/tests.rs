use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa};
use rcgen::{Issuer, KeyPair};
use rustls::crypto::ring;
use tempfile::TempDir;

use super::*;

/// An authority, its certificate in a file.
struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.path().join("ca.crt"), ca.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(ca, key) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn load(&self) -> ClientCa {
        ClientCa::load(&self.path(), &Arc::new(ring::default_provider())).unwrap()
    }

    /// A certificate for a subject of these attributes.
    fn issue(
        &self,
        subject: &[(DnType, &str)],
        usage: ExtendedKeyUsagePurpose,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![usage];
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &self.issuer).unwrap().der().clone()
    }

    fn client(&self, subject: &[(DnType, &str)]) -> CertificateDer<'static> {
        self.issue(subject, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

const NODE: [(DnType, &str); 2] =
    [(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:n1")];

fn uid() -> DnType {
    DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
}

#[test]
fn client_certificate_must_be_signed_by_the_ca() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.load();
    assert_eq!(ca.verify(&[]), Verdict::Nothing);
    let friend = ours.client(&NODE);
    let digest =
        Sha256::digest(&friend).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let verdict = ca.verify(&[friend]);
    let Verdict::User { user, until } = &verdict else { panic!("{verdict:?}") };
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:node:n1", ""));
    assert_eq!(user.groups, ["system:nodes"]);
    assert_eq!(user.extra[CREDENTIAL_ID], [format!("X509SHA256={digest}")]);
    assert_eq!(verdict.user(), Ok(Some(user)));
    assert_eq!(verdict.user_at(*until), Ok(Some(user)));
    let later = UnixTime::since_unix_epoch(Duration::from_secs(until.as_secs() + 1));
    assert_eq!(verdict.user_at(later), Err("its certificate has expired"));

    let server = ours.issue(&NODE, ExtendedKeyUsagePurpose::ServerAuth);
    for untrusted in [theirs.client(&NODE), server, CertificateDer::from(vec![1, 2, 3])] {
        let verdict = ca.verify(&[untrusted]);
        assert!(matches!(verdict, Verdict::Untrusted(_)) && verdict.user().is_err(), "{verdict:?}");
    }
}

/// Upstream's rule, row by row: an error is a client that is refused, `None` one that is nobody.
#[test]
fn client_certificate_subject_is_the_user() {
    let (cn, group) = (DnType::CommonName, DnType::OrganizationName);
    let authority = Authority::new();
    let ca = authority.load();
    for (subject, expected) in [
        (&[(cn.clone(), "jane")][..], Ok(Some(("jane", "", &[][..])))),
        (&[(group.clone(), "a"), (cn.clone(), "jane")], Ok(Some(("jane", "", &["a"])))),
        (&[(uid(), "42"), (cn.clone(), "jane")], Ok(Some(("jane", "42", &[])))),
        (&[(uid(), ""), (cn.clone(), "jane")], Err(())),
        (&[(group.clone(), "system:masters")], Ok(None)),
        (&[(group, "system:masters"), (cn, "")], Ok(None)),
        (&[], Ok(None)),
    ] {
        let verdict = ca.verify(&[authority.client(subject)]);
        let user = verdict.user().map_err(drop);
        let found = user.map(|user| {
            user.map(|user| {
                let groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
                (user.name.as_str(), user.uid.as_str(), groups)
            })
        });
        let expected =
            expected.map(|user| user.map(|(name, uid, groups)| (name, uid, groups.to_vec())));
        assert_eq!(found, expected, "{subject:?}");
    }
}

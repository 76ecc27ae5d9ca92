use rcgen::{DnType, ExtendedKeyUsagePurpose};
use rustls::crypto::ring;

use super::*;
use crate::testing::Authority;

fn load(authority: &Authority) -> ClientCa {
    ClientCa::load(&authority.path(), &Arc::new(ring::default_provider())).unwrap()
}

/// The certificate of a client with this subject.
fn client(authority: &Authority, subject: &[(DnType, &str)]) -> CertificateDer<'static> {
    authority.issue(subject, ExtendedKeyUsagePurpose::ClientAuth).0
}

const NODE: [(DnType, &str); 2] =
    [(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:n1")];

fn uid() -> DnType {
    DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
}

#[test]
fn client_certificate_must_be_signed_by_the_ca() {
    let (ours, theirs) = (Authority::default(), Authority::default());
    let ca = load(&ours);
    assert_eq!(ca.verify(&[]), Verdict::Nothing);
    let friend = client(&ours, &NODE);
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

    let server = ours.issue(&NODE, ExtendedKeyUsagePurpose::ServerAuth).0;
    for untrusted in [client(&theirs, &NODE), server, CertificateDer::from(vec![1, 2, 3])] {
        let verdict = ca.verify(&[untrusted]);
        assert!(matches!(verdict, Verdict::Untrusted(_)) && verdict.user().is_err(), "{verdict:?}");
    }
}

/// Upstream's rule, row by row: an error is a client that is refused, `None` one that is nobody.
#[test]
fn client_certificate_subject_is_the_user() {
    let (cn, group) = (DnType::CommonName, DnType::OrganizationName);
    let authority = Authority::default();
    let ca = load(&authority);
    for (subject, expected) in [
        (&[(cn.clone(), "jane")][..], Ok(Some(("jane", "", &[][..])))),
        (&[(group.clone(), "a"), (cn.clone(), "jane")], Ok(Some(("jane", "", &["a"])))),
        (&[(uid(), "42"), (cn.clone(), "jane")], Ok(Some(("jane", "42", &[])))),
        (&[(uid(), ""), (cn.clone(), "jane")], Err(())),
        (&[(group.clone(), "system:masters")], Ok(None)),
        (&[(group, "system:masters"), (cn, "")], Ok(None)),
        (&[], Ok(None)),
    ] {
        let verdict = ca.verify(&[client(&authority, subject)]);
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

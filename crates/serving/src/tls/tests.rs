use longshore_tls::testing::Authority;

use super::*;

/// Settings with that client CA.
fn tls(ca: PathBuf) -> Tls {
    let provider = Arc::new(provider(&[], &[]).unwrap());
    let files = ServingCertificate::Files { pairs: vec![], awaits_signing: true, reload: true };
    Tls::new(TlsSettings {
        certificate: files,
        client_ca: Some(ClientCaFile { path: ca, reload: true }),
        provider,
        versions: versions(""),
    })
    .unwrap()
}

/// Open connections lose access when the CA changes.
#[test]
fn client_ca_reload_applies_to_open_connections() {
    let (pki, renewed) = (Authority::default(), Authority::default());
    let [old, new] = [&pki, &renewed].map(|pki| vec![pki.client("jane", "all").0]);
    let tls = Arc::new(tls(pki.path()));
    let certified =
        |chain: &[CertificateDer<'_>]| ClientCertificate::new(Arc::clone(&tls), Some(chain));
    let (before, unknown) = (certified(&old), certified(&new));
    let jane = before.user().unwrap().unwrap();
    assert!(jane.name == "jane" && jane.extra.contains_key(longshore_tls::CREDENTIAL_ID));
    assert!(unknown.user().is_err());
    let ended = before.user_at(UnixTime::since_unix_epoch(Duration::MAX)).unwrap_err();
    assert_eq!(ended, "its certificate has expired");
    assert_eq!(ClientCertificate::new(Arc::clone(&tls), None).user(), Ok(None));

    std::fs::copy(renewed.path(), pki.path()).unwrap();
    tls.expire();
    assert!(before.user().is_err());
    assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
    // an invalid CA file keeps the previous CA
    std::fs::write(pki.path(), "nonsense").unwrap();
    tls.expire();
    assert_eq!(unknown.user().unwrap().unwrap().name, "jane");
}

#[test]
fn tls_key_exchange_curves() {
    let spoken = |curves: &[i32]| {
        let provider = provider(&[], curves).map_err(|error| error.to_string())?;
        let groups = provider.kx_groups.iter().map(|group| u16::from(group.name()));
        Ok::<Vec<u16>, String>(groups.collect())
    };
    assert_eq!(spoken(&[]), Ok(vec![29, 23, 24]));
    assert_eq!(spoken(&[24, 29]), Ok(vec![29, 24]), "in the order of our own");
    assert_eq!(spoken(&[25, 23]), Ok(vec![23]));
    let none = "curve preferences: none of [25] is supported".to_owned();
    assert_eq!(spoken(&[25]), Err(none));
}

#[test]
fn unknown_cipher_suites_are_refused() {
    let names =
        |name: &str| vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned(), name.to_owned()];
    let error = provider(&names("TLS_NONE"), &[]).unwrap_err();
    assert_eq!(error.to_string(), "cipher suite TLS_NONE not supported or doesn't exist");
    // known to Go, but not supported here
    let left = provider(&names("TLS_RSA_WITH_RC4_128_SHA"), &[]).unwrap().cipher_suites;
    assert_eq!(left.iter().filter(|suite| suite.tls13().is_none()).count(), 1);
}

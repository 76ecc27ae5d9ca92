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
        sni: Vec::new(),
        http1_alone: false,
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

/// A pair of files in a directory, self-signed for these names.
fn pair(dir: &Path, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let pem = params.self_signed(&key).unwrap().pem();
    let (certificate, of_key) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    std::fs::write(&certificate, pem).unwrap();
    std::fs::write(&of_key, key.serialize_pem()).unwrap();
    (certificate, of_key)
}

/// What is shown to a client that asks for a name at a local address, and the protocol.
async fn shown(tls: &Tls, name: &'static str, local: Option<IpAddr>) -> (Vec<u8>, Option<Vec<u8>>) {
    let provider = Arc::new(ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(longshore_tls::NoVerifier(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let (near, far) = tokio::io::duplex(1 << 16);
    let accept = tokio_rustls::TlsAcceptor::from(tls.server_config(local)).accept(far);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = connector.connect(rustls::pki_types::ServerName::try_from(name).unwrap(), near);
    let (connected, accepted) = tokio::join!(connect, accept);
    accepted.unwrap();
    let connected = connected.unwrap();
    let session = connected.get_ref().1;
    (session.peer_certificates().unwrap()[0].to_vec(), session.alpn_protocol().map(<[u8]>::to_vec))
}

#[tokio::test]
async fn sni_certificates_are_shown_by_name_and_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let default = pair(dir.path(), "default", &["localhost"]);
    let exact = pair(dir.path(), "exact", &["unused.example"]);
    let wild = pair(dir.path(), "wild", &["*.example", "implicit.org"]);
    let der = |(file, _): &(PathBuf, PathBuf)| certificates(file).unwrap()[0].to_vec();
    let sni = |(certificate, key): &(PathBuf, PathBuf), names: &[&str]| SniCertificate {
        certificate: certificate.clone(),
        key: key.clone(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let tls = Tls::new(TlsSettings {
        certificate: ServingCertificate::Files {
            pairs: vec![default.clone()],
            awaits_signing: false,
            reload: true,
        },
        client_ca: None,
        provider: Arc::new(provider(&[], &[]).unwrap()),
        versions: versions(""),
        sni: vec![sni(&wild, &[]), sni(&exact, &["a.example", "10.0.0.1"])],
        http1_alone: true,
    })
    .unwrap();
    let local = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    for (name, address, expected) in [
        ("a.example", None, &exact),
        ("A.Example", None, &exact),
        ("b.example", None, &wild),
        ("implicit.org", None, &wild),
        ("unused.example", None, &wild),
        ("x.implicit.org", None, &default),
        ("other.org", local("10.0.0.1"), &default),
        // a client that calls an address names no server
        ("10.0.0.1", local("10.0.0.1"), &exact),
        ("10.0.0.1", local("::ffff:10.0.0.1"), &exact),
        ("10.0.0.2", local("10.0.0.2"), &default),
    ] {
        let (certificate, protocol) = shown(&tls, name, address).await;
        assert_eq!(certificate, der(expected), "{name} {address:?}");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
    }
    let before = der(&exact);
    let modified = exact.0.metadata().unwrap().modified().unwrap();
    pair(dir.path(), "exact", &["unused.example"]);
    let later = modified.checked_add(Duration::from_secs(5)).unwrap();
    std::fs::File::open(&exact.0).unwrap().set_modified(later).unwrap();
    tls.expire();
    let (after, _) = shown(&tls, "a.example", None).await;
    assert!(after == der(&exact) && after != before);
}

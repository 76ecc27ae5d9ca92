//! TLS of the kubelet's port: what its configuration says, and the certificate that it makes itself.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use longshore_client::certificates;
use longshore_config::Config;
use longshore_serving::tls::{self, ClientCaFile, ServingCertificate, Tls, TlsSettings};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use tracing::info;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A certificate cannot be made.
    #[error(transparent)]
    Content(#[from] longshore_tls::Error),
    /// Files or settings that cannot be used.
    #[error(transparent)]
    Settings(#[from] tls::TlsError),
}

/// Reads the configured files; creates a self-signed certificate if there are none.
pub(super) fn load(config: &Config, ips: &[IpAddr]) -> Result<Tls, TlsError> {
    let settings = &config.kubelet;
    let named = (!settings.tls_cert_file.is_empty()).then(|| {
        (PathBuf::from(&settings.tls_cert_file), PathBuf::from(&settings.tls_private_key_file))
    });
    let pairs = match (settings.server_tls_bootstrap, named) {
        (true, named) => {
            let signed = certificates::serving_pair_path(&config.cert_dir);
            [(signed.clone(), signed)].into_iter().chain(named).collect()
        }
        (false, Some(named)) => vec![named],
        (false, None) => vec![own_certificate(&config.cert_dir, &config.node_name, ips)?],
    };
    let ca = &settings.authentication.x509.client_ca_file;
    Ok(Tls::new(TlsSettings {
        certificate: ServingCertificate::Files {
            pairs,
            awaits_signing: settings.server_tls_bootstrap,
            reload: settings.server_tls_bootstrap
                || config.gates.enabled("ReloadKubeletServerCertificateFile"),
        },
        client_ca: (!ca.is_empty()).then(|| ClientCaFile {
            path: PathBuf::from(ca),
            reload: config.gates.enabled("ReloadKubeletClientCAFile"),
        }),
        provider: Arc::new(tls::provider(
            &settings.tls_cipher_suites,
            &settings.tls_curve_preferences,
        )?),
        versions: tls::versions(&settings.tls_min_version),
        sni: Vec::new(),
        http1_alone: false,
    })?)
}

/// The self-signed pair in the certificate directory, created if it does not exist.
fn own_certificate(
    directory: &Path,
    node: &str,
    ips: &[IpAddr],
) -> Result<(PathBuf, PathBuf), TlsError> {
    let (certificate, key) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let made = self_signed(node, ips).map_err(|error| longshore_tls::Error {
        path: certificate.clone(),
        reason: error.to_string(),
    })?;
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    std::fs::create_dir_all(directory).map_err(file(directory))?;
    write_private(&key, &made.1).map_err(file(&key))?;
    std::fs::write(&certificate, made.0).map_err(file(&certificate))?;
    info!(certificate = %certificate.display(), "created a self-signed serving certificate");
    Ok((certificate, key))
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

/// A self-signed certificate for the node's name and addresses, valid for one year, and its key.
fn self_signed(node: &str, ips: &[IpAddr]) -> Result<(String, String), rcgen::Error> {
    let names: Vec<String> =
        [node.to_owned()].into_iter().chain(ips.iter().map(ToString::to_string)).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, node);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let after_1970 = |since: Duration| {
        let since = since.try_into().unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1).saturating_add(since)
    };
    // an hour ago, for clock skew
    params.not_before = after_1970(since_1970.saturating_sub(Duration::from_secs(3600)));
    params.not_after = after_1970(since_1970.saturating_add(Duration::from_secs(365 * 24 * 3600)));
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use longshore_config::{Command, from_args};
    use longshore_tls::certificates;
    use rustls::RootCertStore;
    use rustls::crypto::ring;
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// A handshake of a client that trusts only that certificate.
    async fn handshake(tls: &Tls, trusted: &Path) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(trusted).unwrap().remove(0)).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let accept = TlsAcceptor::from(tls.server_config(None)).accept(far);
        let connector = TlsConnector::from(Arc::new(config));
        let connect = connector.connect(ServerName::try_from("n1").unwrap(), near);
        let (connected, accepted) = tokio::join!(connect, accept);
        accepted?;
        connected.map(drop)
    }

    #[tokio::test]
    async fn tls_handshake_needs_a_signed_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let args = [
            "kubelet".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
            "--hostname-override=n1".to_owned(),
            format!("--cert-dir={}", dir.path().display()),
            "--rotate-server-certificates".to_owned(),
        ];
        let Ok(Command::Kubelet(config)) = from_args(args) else { panic!("no config") };
        let tls = load(&config, &[]).unwrap();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "none of its own making");
        let pair = longshore_client::certificates::serving_pair_path(dir.path());
        let (certificate, key) = self_signed("n1", &[]).unwrap();
        let trusted = dir.path().join("trusted.crt");
        std::fs::write(&trusted, &certificate).unwrap();
        assert!(handshake(&tls, &trusted).await.is_err());
        std::fs::write(&pair, format!("{certificate}{key}")).unwrap();
        handshake(&tls, &trusted).await.unwrap();
    }
}

//! One request for a certificate: made from a key and a [`Template`], sent, and waited for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Client, Error as KubeError};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData, SanType};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha512_256};
use tracing::{debug, info};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::pair;
use crate::{Item, object};

/// The subject of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// The user.
    pub(super) name: String,
    /// The user's groups.
    pub(super) groups: BTreeSet<String>,
    /// Names of hosts.
    pub(super) dns: BTreeSet<String>,
    /// Addresses.
    pub(super) ips: BTreeSet<IpAddr>,
}

impl Template {
    /// For the node of that name.
    pub(super) fn node(name: &str) -> Self {
        Self {
            name: format!("{}{name}", super::USER_PREFIX),
            groups: [super::GROUP.to_owned()].into(),
            dns: BTreeSet::new(),
            ips: BTreeSet::new(),
        }
    }
}

/// The signer, which determines the use of the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signer {
    /// Clients of the apiserver that are kubelets.
    Client,
    /// Servers that are kubelets.
    Serving,
}

impl Signer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The usages for a key on an elliptic curve, which cannot encipher.
    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// Why a request gave no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The request cannot be made.
    #[error("cannot make a certificate signing request: {0}")]
    Make(#[from] rcgen::Error),
    /// The apiserver does not take it.
    #[error("cannot create a certificate signing request: {0}")]
    Create(#[source] Box<KubeError>),
    /// The apiserver does not accept the credential.
    #[error(
        "the apiserver does not accept the credential (401): {0}; a bootstrap token expires \
         after a day: make a new one (kubeadm token create)"
    )]
    Unauthorized(String),
    /// The request was denied or failed.
    #[error("certificate signing request {name} was {verdict}: {reason}")]
    Rejected {
        /// The request.
        name: String,
        /// `denied`, or what else.
        verdict: &'static str,
        /// Why.
        reason: String,
    },
    /// The request of that name is not this one, or cannot serve any more.
    #[error("certificate signing request {name} cannot be used: {reason}")]
    Unusable {
        /// The request.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The request was not decided in time.
    #[error("certificate signing request {name} was not approved and signed within {waited:?}")]
    Overdue {
        /// The request.
        name: String,
        /// How long was waited.
        waited: Duration,
    },
}

/// A request that is ready to be sent.
pub(super) struct Request {
    signer: Signer,
    pem: String,
    key: KeyPair,
    /// The same for the same key and template: after a restart the daemon finds its request.
    /// `None`: each is a new one.
    name: Option<String>,
}

impl Request {
    pub(super) fn new(
        signer: Signer,
        template: &Template,
        key: KeyPair,
        find_again: bool,
    ) -> Result<Self, RequestError> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        for group in &template.groups {
            subject.push(DnType::OrganizationName, group.as_str());
        }
        subject.push(DnType::CommonName, template.name.as_str());
        params.distinguished_name = subject;
        for dns in &template.dns {
            params.subject_alt_names.push(SanType::DnsName(dns.as_str().try_into()?));
        }
        params.subject_alt_names.extend(template.ips.iter().copied().map(SanType::IpAddress));
        let pem = params.serialize_request(&key)?.pem()?;
        let name = find_again.then(|| digest_name(&key, template, signer));
        Ok(Self { signer, pem, key, name })
    }

    /// Sends it, or takes up the one of before, and waits until it is signed or refused. The answer
    /// is the certificate as PEM.
    pub(super) async fn wait_for_certificate(
        &self,
        client: Client,
        timeout: Duration,
    ) -> Result<String, RequestError> {
        let api: Api<Item<CertificateSigningRequest>> = Api::all(client);
        let sent = self.send(&api).await?;
        let name = sent.metadata.name.clone().unwrap_or_default();
        let uid = sent.metadata.uid.clone();
        info!(csr = name, signer = self.signer.name(), "waiting for a certificate to be issued");
        let issued = async {
            let mut states = pin!(watch_object(api, &name).default_backoff());
            while let Some(state) = states.next().await {
                match state {
                    Ok(Some(item)) => {
                        match issued_certificate(&item.known(), uid.as_deref(), Timestamp::now())? {
                            Some(certificate) => return Ok(certificate),
                            None => debug!(csr = name, "not issued yet"),
                        }
                    }
                    Ok(None) => return Err(unusable(&name, "it was deleted")),
                    Err(error) => debug!(csr = name, "cannot watch: {error}"),
                }
            }
            Err(unusable(&name, "the watch ended"))
        };
        let overdue = || RequestError::Overdue { name: name.clone(), waited: timeout };
        tokio::time::timeout(timeout, issued).await.unwrap_or_else(|_| Err(overdue()))
    }

    async fn send(
        &self,
        api: &Api<Item<CertificateSigningRequest>>,
    ) -> Result<CertificateSigningRequest, RequestError> {
        let wanted = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: self.name.clone(),
                generate_name: self.name.is_none().then(|| "csr-".to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(self.pem.clone().into_bytes()),
                signer_name: self.signer.name().to_owned(),
                usages: Some(self.signer.usages().map(str::to_owned).into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        match (object(api.create(&PostParams::default(), &wanted.into())).await, &self.name) {
            (Ok(created), _) => Ok(created),
            (Err(KubeError::Api(status)), Some(name)) if status.code == 409 => {
                let found = object(api.get(name)).await;
                let found = found.map_err(|error| RequestError::Create(error.into()))?;
                match public_key_of(&found) == Some(self.key.subject_public_key_info()) {
                    true => {
                        info!(csr = name, "using the existing request");
                        Ok(found)
                    }
                    false => Err(unusable(name, "it was created with another key")),
                }
            }
            (Err(error), _) => Err(not_created(error)),
        }
    }
}

fn not_created(error: KubeError) -> RequestError {
    match error {
        KubeError::Api(status) if status.code == 401 => RequestError::Unauthorized(status.message),
        error => RequestError::Create(error.into()),
    }
}

fn unusable(name: &str, reason: &str) -> RequestError {
    RequestError::Unusable { name: name.to_owned(), reason: reason.to_owned() }
}

/// The result of a request: the certificate, nothing yet, or an error.
pub(super) fn issued_certificate(
    csr: &CertificateSigningRequest,
    uid: Option<&str>,
    now: Timestamp,
) -> Result<Option<String>, RequestError> {
    let name = csr.metadata.name.clone().unwrap_or_default();
    if csr.metadata.uid.as_deref() != uid {
        return Err(unusable(&name, "another one has taken its place"));
    }
    let Some(status) = &csr.status else { return Ok(None) };
    let mut approved = false;
    for condition in status.conditions.iter().flatten() {
        let verdict = match condition.type_.as_str() {
            "Approved" => {
                approved = true;
                continue;
            }
            "Denied" => "denied",
            "Failed" => "not signed",
            _ => continue,
        };
        let said = [&condition.reason, &condition.message].map(|text| text.as_deref());
        let reason = said.into_iter().flatten().collect::<Vec<_>>().join(": ");
        return Err(RequestError::Rejected { name, verdict, reason });
    }
    let Some(certificate) = status.certificate.as_ref().filter(|_| approved) else {
        return Ok(None);
    };
    let leaf = pair::leaf(&certificate.0)
        .map_err(|reason| unusable(&name, &format!("its certificate: {reason}")))?;
    if leaf.is_expired(now) {
        return Err(unusable(&name, &format!("its certificate expired at {}", leaf.until)));
    }
    String::from_utf8(certificate.0.clone())
        .map(Some)
        .map_err(|_| unusable(&name, "its certificate is not UTF-8"))
}

fn public_key_of(csr: &CertificateSigningRequest) -> Option<Vec<u8>> {
    let der = CertificateSigningRequestDer::from_pem_slice(&csr.spec.request.0).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&der).ok()?;
    Some(request.certification_request_info.subject_pki.raw.to_vec())
}

/// Upstream's name: a digest of key, subject and usages, each part ended by a sign that none of
/// them can have.
fn digest_name(key: &KeyPair, template: &Template, signer: Signer) -> String {
    let mut hash = Sha512_256::new();
    let mut write = |part: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update(b"|");
    };
    write(&key.subject_public_key_info());
    write(template.name.as_bytes());
    template.groups.iter().for_each(|group| write(group.as_bytes()));
    signer.usages().iter().for_each(|usage| write(usage.as_bytes()));
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

//! The keys of tokens: what signs, what verifies, and how a verifier learns of it (a JWK).
//!
//! Current limitations: RSA (RS256) and the curves P-256 and P-384; what upstream takes besides
//! (P-521, ML-DSA) is refused by name.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    UnparsedPublicKey, VerificationAlgorithm,
};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::{PemObject, SectionKind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::asn1_rs::{FromDer, Integer, Sequence};
use x509_parser::certificate::X509Certificate;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::pki::{Error, Result};

/// How a kind of key signs.
struct Algorithm {
    /// `alg` of tokens.
    name: &'static str,
    scheme: SignatureScheme,
    verification: &'static dyn VerificationAlgorithm,
    curve: Option<Curve>,
}

struct Curve {
    name: &'static str,
    /// Object identifier of the curve.
    id: &'static str,
    /// Bytes of a coordinate, and of each half of a signature.
    size: usize,
}

static RSA: Algorithm = Algorithm {
    name: "RS256",
    scheme: SignatureScheme::RSA_PKCS1_SHA256,
    verification: &RSA_PKCS1_2048_8192_SHA256,
    curve: None,
};

static ELLIPTIC: [Algorithm; 2] = [
    Algorithm {
        name: "ES256",
        scheme: SignatureScheme::ECDSA_NISTP256_SHA256,
        verification: &ECDSA_P256_SHA256_FIXED,
        curve: Some(Curve { name: "P-256", id: "1.2.840.10045.3.1.7", size: 32 }),
    },
    Algorithm {
        name: "ES384",
        scheme: SignatureScheme::ECDSA_NISTP384_SHA384,
        verification: &ECDSA_P384_SHA384_FIXED,
        curve: Some(Curve { name: "P-384", id: "1.3.132.0.34", size: 48 }),
    },
];

/// A key that verifies tokens.
#[derive(Clone)]
pub(crate) struct PublicKey {
    id: String,
    algorithm: &'static Algorithm,
    /// The key itself, without what says of which kind it is.
    bytes: Vec<u8>,
    jwk: Value,
}

impl PublicKey {
    /// Reads a SubjectPublicKeyInfo in DER.
    fn from_spki(der: &[u8]) -> std::result::Result<PublicKey, String> {
        let unusable = || "is neither an RSA key nor one on the curves P-256 and P-384".to_owned();
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| BASE64.encode(bytes);
        let (algorithm, mut jwk) = match info.parsed().map_err(|error| error.to_string())? {
            Parsed::RSA(key) => {
                let (n, e) = (unsigned(key.modulus), unsigned(key.exponent));
                (&RSA, json!({"kty": "RSA", "n": text(n), "e": text(e)}))
            }
            Parsed::EC(point) => {
                let parameters = info.algorithm.parameters.as_ref();
                let id = parameters.and_then(|parameters| parameters.as_oid().ok());
                let id = id.map(|id| id.to_id_string()).unwrap_or_default();
                let (algorithm, curve) = ELLIPTIC
                    .iter()
                    .filter_map(|algorithm| Some((algorithm, algorithm.curve.as_ref()?)))
                    .find(|(_, curve)| curve.id == id)
                    .ok_or_else(unusable)?;
                // uncompressed: a 4, and the two coordinates
                let (x, y) = match point.data().split_first() {
                    Some((4, xy)) if xy.len() == 2 * curve.size => xy.split_at(curve.size),
                    _ => return Err(unusable()),
                };
                let jwk = json!({"kty": "EC", "crv": curve.name, "x": text(x), "y": text(y)});
                (algorithm, jwk)
            }
            _ => return Err(unusable()),
        };
        // No way back from the name to the key, and the same name at every apiserver.
        let id = text(&Sha256::digest(der));
        jwk["kid"] = id.as_str().into();
        jwk["alg"] = algorithm.name.into();
        jwk["use"] = "sig".into();
        let bytes = info.subject_public_key.data.to_vec();
        Ok(PublicKey { id, algorithm, bytes, jwk })
    }

    /// `kid` of its tokens: the SHA-256 of the key, in base64.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// `alg` of its tokens.
    pub(crate) fn algorithm(&self) -> &'static str {
        self.algorithm.name
    }

    /// The key as a member of a JSON Web Key Set.
    pub(crate) fn jwk(&self) -> &Value {
        &self.jwk
    }

    /// Whether the key's holder has signed the message.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(self.algorithm.verification, &self.bytes);
        key.verify(message, signature).is_ok()
    }
}

/// A key that signs tokens.
pub(crate) struct SigningKey {
    key: Arc<dyn rustls::sign::SigningKey>,
    public: PublicKey,
}

impl SigningKey {
    /// Reads the private key of a PEM file: PKCS #8, or an RSA or EC key in its older form.
    pub(crate) fn load(path: &Path) -> Result<SigningKey> {
        let invalid = |reason| Error::Invalid { path: path.to_owned(), reason };
        let der = PrivateKeyDer::from_pem_slice(&read(path)?)
            .map_err(|error| invalid(format!("is not a private key: {error}")))?;
        SigningKey::from_der(&der).map_err(invalid)
    }

    fn from_der(der: &PrivateKeyDer<'_>) -> std::result::Result<SigningKey, String> {
        let key = any_supported_type(der).map_err(|error| error.to_string())?;
        let public = key.public_key().ok_or("has no public key")?;
        let public = PublicKey::from_spki(public.as_ref())?;
        Ok(SigningKey { key, public })
    }

    /// What verifies its signatures.
    pub(crate) fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a message as tokens want it: numbers of fixed size one after the other, where TLS
    /// would have a structure. `None`: the key does not work.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let algorithm = self.public.algorithm;
        let signature = self.key.choose_scheme(&[algorithm.scheme])?.sign(message).ok()?;
        match &algorithm.curve {
            Some(curve) => fixed(&signature, curve.size),
            None => Some(signature),
        }
    }
}

/// Every public key of a PEM file, and those of its private keys and certificates; at least one.
pub(crate) fn load_public(path: &Path) -> Result<Vec<PublicKey>> {
    let invalid = |reason| Error::Invalid { path: path.to_owned(), reason };
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(&read(path)?) {
        let (kind, der) = section.map_err(|error| invalid(error.to_string()))?;
        let private = match kind {
            SectionKind::PublicKey => {
                keys.push(PublicKey::from_spki(&der).map_err(invalid)?);
                continue;
            }
            SectionKind::Certificate => {
                let (_, certificate) =
                    X509Certificate::from_der(&der).map_err(|error| invalid(error.to_string()))?;
                keys.push(PublicKey::from_spki(certificate.public_key().raw).map_err(invalid)?);
                continue;
            }
            SectionKind::PrivateKey => PrivateKeyDer::Pkcs8(der.into()),
            SectionKind::RsaPrivateKey => PrivateKeyDer::Pkcs1(der.into()),
            SectionKind::EcPrivateKey => PrivateKeyDer::Sec1(der.into()),
            _ => continue,
        };
        keys.push(SigningKey::from_der(&private).map_err(invalid)?.public);
    }
    if keys.is_empty() {
        return Err(invalid("it contains no public key".into()));
    }
    Ok(keys)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

/// A number without the zero that keeps DER from reading it as a negative one.
fn unsigned(number: &[u8]) -> &[u8] {
    number.strip_prefix(&[0]).unwrap_or(number)
}

/// The two numbers of an ECDSA signature in DER, each in `size` bytes.
fn fixed(der: &[u8], size: usize) -> Option<Vec<u8>> {
    let (_, sequence) = Sequence::from_der(der).ok()?;
    let (rest, r) = Integer::from_der(&sequence.content).ok()?;
    let (_, s) = Integer::from_der(rest).ok()?;
    let mut fixed = Vec::with_capacity(2 * size);
    for number in [r.as_ref(), s.as_ref()].map(unsigned) {
        fixed.resize(fixed.len() + size.checked_sub(number.len())?, 0);
        fixed.extend_from_slice(number);
    }
    Some(fixed)
}

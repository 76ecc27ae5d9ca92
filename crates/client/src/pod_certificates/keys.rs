//! Pure but for randomness: key pairs of the types that pods may have, and proofs of their possession.
//!
//! Ring makes and uses all keys but two: it does not know P-521, and signs with RSA keys but makes none.

use std::fmt;

use p521::ecdsa::signature::Signer;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rsa::pkcs8::EncodePrivateKey;
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, Tag, construct_der};

use longshore_tls::pem;

/// The version of PKCS #8, of PKCS #10 and of the CRI of the latter.
const FIRST_VERSION: u8 = 0;
/// The version of an EC private key.
const EC_VERSION: u8 = 1;

const RSA: &[u64] = &[1, 2, 840, 113_549, 1, 1, 1];
const RSA_WITH_SHA256: &[u64] = &[1, 2, 840, 113_549, 1, 1, 11];
const EC: &[u64] = &[1, 2, 840, 10_045, 2, 1];
const P256: &[u64] = &[1, 2, 840, 10_045, 3, 1, 7];
const P384: &[u64] = &[1, 3, 132, 0, 34];
const P521: &[u64] = &[1, 3, 132, 0, 35];
const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10_045, 4, 3, 2];
const ECDSA_WITH_SHA384: &[u64] = &[1, 2, 840, 10_045, 4, 3, 3];
const ECDSA_WITH_SHA512: &[u64] = &[1, 2, 840, 10_045, 4, 3, 4];
const ED25519: &[u64] = &[1, 3, 101, 112];

/// Bytes of the private part of an Ed25519 key.
const SEED: usize = 32;

/// A key and a certificate signing request that it has signed.
pub(super) struct KeyAndProof {
    /// PKCS #8 in PEM.
    pub(super) key: String,
    /// PKCS #10 in DER, without subject and extensions.
    pub(super) request: Vec<u8>,
}

/// Why there is no key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    /// No such type.
    UnknownType(String),
    /// Of a type that is known.
    Make(&'static str),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownType(name) => write!(f, "unknown key type {name:?}"),
            Self::Make(name) => write!(f, "while generating {name} key: no randomness"),
        }
    }
}

/// What an algorithm is identified by.
struct Algorithm {
    id: &'static [u64],
    parameters: Parameters,
}

enum Parameters {
    Absent,
    Null,
    Curve(&'static [u64]),
}

/// Signs a message.
type Sign = Box<dyn Fn(&[u8]) -> Option<Vec<u8>>>;

/// A key pair.
struct Pair {
    /// In DER.
    pkcs8: Vec<u8>,
    algorithm: Algorithm,
    /// The content of the bit string.
    public: Vec<u8>,
    signature: Algorithm,
    signer: Sign,
}

impl KeyAndProof {
    /// Makes a key of a type by its name in the API. One of RSA takes seconds.
    pub(super) fn make(key_type: &str) -> Result<Self, KeyError> {
        let (name, pair) = match key_type {
            "RSA3072" => ("RSA 3072", rsa_pair(3072)),
            "RSA4096" => ("RSA 4096", rsa_pair(4096)),
            "ECDSAP256" => {
                ("ECDSA P256", ec_pair(&ECDSA_P256_SHA256_ASN1_SIGNING, P256, ECDSA_WITH_SHA256))
            }
            "ECDSAP384" => {
                ("ECDSA P384", ec_pair(&ECDSA_P384_SHA384_ASN1_SIGNING, P384, ECDSA_WITH_SHA384))
            }
            "ECDSAP521" => ("ECDSA P521", Some(p521_pair())),
            "ED25519" => ("Ed25519", ed25519_pair()),
            other => return Err(KeyError::UnknownType(other.to_owned())),
        };
        let failed = || KeyError::Make(name);
        let pair = pair.ok_or_else(failed)?;
        let request = pair.proof().ok_or_else(failed)?;
        let mut key = String::new();
        pem::append(&mut key, "PRIVATE KEY", &pair.pkcs8);
        Ok(Self { key, request })
    }
}

impl Pair {
    /// A request that names nobody, signed by the key.
    fn proof(&self) -> Option<Vec<u8>> {
        let information = construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_u8(FIRST_VERSION);
                // the subject
                fields.next().write_sequence(|_| {});
                fields.next().write_sequence(|key| {
                    self.algorithm.write(key.next());
                    write_bits(key.next(), &self.public);
                });
                // the attributes
                fields.next().write_tagged_implicit(Tag::context(0), |attributes| {
                    attributes.write_set(|_| {});
                });
            });
        });
        let signature = (self.signer)(&information)?;
        Some(construct_der(|writer| {
            writer.write_sequence(|fields| {
                fields.next().write_der(&information);
                self.signature.write(fields.next());
                write_bits(fields.next(), &signature);
            });
        }))
    }
}

impl Algorithm {
    fn write(&self, writer: DERWriter<'_>) {
        writer.write_sequence(|fields| {
            fields.next().write_oid(&ObjectIdentifier::from_slice(self.id));
            match self.parameters {
                Parameters::Absent => {}
                Parameters::Null => fields.next().write_null(),
                Parameters::Curve(curve) => {
                    fields.next().write_oid(&ObjectIdentifier::from_slice(curve));
                }
            }
        });
    }
}

fn write_bits(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_bitvec_bytes(bytes, bytes.len().saturating_mul(8));
}

/// PKCS #8 of a key, which it holds as DER.
fn pkcs8(algorithm: &Algorithm, key: &[u8]) -> Vec<u8> {
    construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields.next().write_u8(FIRST_VERSION);
            algorithm.write(fields.next());
            fields.next().write_bytes(key);
        });
    })
}

fn rsa_pair(bits: usize) -> Option<Pair> {
    let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, bits).ok()?;
    let pkcs8 = key.to_pkcs8_der().ok()?.as_bytes().to_vec();
    let pair = RsaKeyPair::from_pkcs8(&pkcs8).ok()?;
    let public = pair.public().as_ref().to_vec();
    let signer = move |message: &[u8]| {
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).ok()?;
        Some(signature)
    };
    Some(Pair {
        pkcs8,
        algorithm: Algorithm { id: RSA, parameters: Parameters::Null },
        public,
        signature: Algorithm { id: RSA_WITH_SHA256, parameters: Parameters::Null },
        signer: Box::new(signer),
    })
}

fn ec_pair(
    algorithm: &'static EcdsaSigningAlgorithm,
    curve: &'static [u64],
    signature: &'static [u64],
) -> Option<Pair> {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).ok()?.as_ref().to_vec();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, &pkcs8, &random).ok()?;
    let public = pair.public_key().as_ref().to_vec();
    let signer = move |message: &[u8]| Some(pair.sign(&random, message).ok()?.as_ref().to_vec());
    Some(Pair {
        pkcs8,
        algorithm: Algorithm { id: EC, parameters: Parameters::Curve(curve) },
        public,
        signature: Algorithm { id: signature, parameters: Parameters::Absent },
        signer: Box::new(signer),
    })
}

fn p521_pair() -> Pair {
    let pair = p521::ecdsa::SigningKey::random(&mut rsa::rand_core::OsRng);
    let public = p521::ecdsa::VerifyingKey::from(&pair).to_encoded_point(false).as_bytes().to_vec();
    let key = construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields.next().write_u8(EC_VERSION);
            fields.next().write_bytes(&pair.to_bytes());
            fields.next().write_tagged(Tag::context(1), |writer| write_bits(writer, &public));
        });
    });
    let algorithm = Algorithm { id: EC, parameters: Parameters::Curve(P521) };
    let signer = move |message: &[u8]| {
        let signature: p521::ecdsa::Signature = pair.try_sign(message).ok()?;
        Some(signature.to_der().as_bytes().to_vec())
    };
    Pair {
        pkcs8: pkcs8(&algorithm, &key),
        algorithm,
        public,
        signature: Algorithm { id: ECDSA_WITH_SHA512, parameters: Parameters::Absent },
        signer: Box::new(signer),
    }
}

/// Its PKCS #8 is of the first version, without the public key: OpenSSL reads no other.
fn ed25519_pair() -> Option<Pair> {
    let mut seed = [0; SEED];
    SystemRandom::new().fill(&mut seed).ok()?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
    let algorithm = || Algorithm { id: ED25519, parameters: Parameters::Absent };
    let key = construct_der(|writer| writer.write_bytes(&seed));
    Some(Pair {
        pkcs8: pkcs8(&algorithm(), &key),
        algorithm: algorithm(),
        public: pair.public_key().as_ref().to_vec(),
        signature: algorithm(),
        signer: Box::new(move |message| Some(pair.sign(message).as_ref().to_vec())),
    })
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::pki_types::pem::PemObject;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer;

    use super::*;

    /// Whether the request is signed by the key that it names.
    fn is_proof(request: &X509CertificationRequest<'_>, key_type: &str) -> bool {
        let information = request.certification_request_info.raw;
        let key = &request.certification_request_info.subject_pki.subject_public_key.data;
        let signature = &request.signature_value.data;
        let algorithm: &dyn ring::signature::VerificationAlgorithm = match key_type {
            "RSA3072" | "RSA4096" => &ring::signature::RSA_PKCS1_2048_8192_SHA256,
            "ECDSAP256" => &ring::signature::ECDSA_P256_SHA256_ASN1,
            "ECDSAP384" => &ring::signature::ECDSA_P384_SHA384_ASN1,
            "ED25519" => &ring::signature::ED25519,
            _ => {
                use p521::ecdsa::signature::Verifier;
                let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(key).unwrap();
                let signature = p521::ecdsa::Signature::from_der(signature).unwrap();
                return key.verify(information, &signature).is_ok();
            }
        };
        let key = ring::signature::UnparsedPublicKey::new(algorithm, key);
        key.verify(information, signature).is_ok()
    }

    #[test]
    fn keys_of_all_types_prove_their_possession() {
        for key_type in ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"] {
            let made = KeyAndProof::make(key_type).unwrap();
            assert!(made.key.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
            let (rest, request) = X509CertificationRequest::from_der(&made.request).unwrap();
            assert!(rest.is_empty(), "{key_type}");
            assert!(is_proof(&request, key_type), "{key_type}");
            let information = &request.certification_request_info;
            assert_eq!(information.subject.iter().count(), 0, "{key_type}");
            assert_eq!(information.attributes().len(), 0, "{key_type}");

            let key = PrivatePkcs8KeyDer::from_pem_slice(made.key.as_bytes()).unwrap();
            let der = key.secret_pkcs8_der();
            let random = SystemRandom::new();
            let is_own =
                |public: &[u8]| *public == *information.subject_pki.subject_public_key.data;
            let ec = |algorithm| EcdsaKeyPair::from_pkcs8(algorithm, der, &random).unwrap();
            let own = match key_type {
                "RSA3072" => is_own(RsaKeyPair::from_pkcs8(der).unwrap().public().as_ref()),
                "RSA4096" => {
                    let pair = RsaKeyPair::from_pkcs8(der).unwrap();
                    pair.public().modulus_len() == 512 && is_own(pair.public().as_ref())
                }
                "ECDSAP256" => is_own(ec(&ECDSA_P256_SHA256_ASN1_SIGNING).public_key().as_ref()),
                "ECDSAP384" => is_own(ec(&ECDSA_P384_SHA384_ASN1_SIGNING).public_key().as_ref()),
                "ED25519" => {
                    let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).unwrap();
                    is_own(pair.public_key().as_ref())
                }
                // No reader of them is at hand.
                _ => der.windows(133).any(is_own),
            };
            assert!(own, "{key_type}");
            assert_ne!(KeyAndProof::make("ED25519").unwrap().key, made.key);
        }
        for unknown in ["", "RSA2048", "ecdsap256"] {
            let error = KeyAndProof::make(unknown).err();
            assert_eq!(error, Some(KeyError::UnknownType(unknown.to_owned())));
        }
    }
}

//! Public keys that pods have, and what they have signed.

use std::str::FromStr;

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{Signature as P521Signature, VerifyingKey as P521Key};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ED25519, UnparsedPublicKey,
    VerificationAlgorithm,
};
use rsa::BigUint;
use sha2::{Digest, Sha256};
use x509_parser::der_parser::asn1_rs::Oid;
use x509_parser::oid_registry::{
    OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey as Parsed;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The sizes of RSA keys, in bits.
const RSA_SIZES: [usize; 2] = [3072, 4096];
/// Exponents of RSA have 32 bits at most, so that a signature is soon checked.
const MAX_EXPONENT: usize = 4;
/// Bytes of a number of P-521.
const P521_LENGTH: usize = 66;
/// X25519, and DSA: keys that can be read, and that no pod may have.
const OTHERS: [&str; 2] = ["1.3.101.110", "1.2.840.10040.4.1"];

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// Of Ed25519.
    Ed25519(Vec<u8>),
    /// Of an elliptic curve.
    Ecdsa(Curve, Vec<u8>),
    /// Of RSA.
    Rsa {
        /// Big endian, without zeros before it.
        modulus: Vec<u8>,
        /// Big endian, without zeros before it.
        exponent: Vec<u8>,
    },
    /// Of another kind.
    Other,
}

/// An elliptic curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Too weak for pods.
    P224,
    /// prime256v1.
    P256,
    /// secp384r1.
    P384,
    /// secp521r1.
    P521,
}

/// Why a pod may not have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// It is on this curve.
    Curve(Curve),
    /// It is of RSA, with so many bits.
    Bits(usize),
    /// It is of another type.
    Type,
}

impl Curve {
    const ALL: [(Curve, &str, &str); 4] = [
        (Curve::P224, "1.3.132.0.33", "P-224"),
        (Curve::P256, "1.2.840.10045.3.1.7", "P-256"),
        (Curve::P384, "1.3.132.0.34", "P-384"),
        (Curve::P521, "1.3.132.0.35", "P-521"),
    ];

    fn of(id: &Oid<'_>) -> Option<Curve> {
        let id = id.to_id_string();
        Self::ALL.iter().find(|(_, known, _)| *known == id).map(|(curve, ..)| *curve)
    }

    /// Its name in messages, such as `P-256`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(curve, ..)| *curve == self).map_or("", |(_, _, name)| name)
    }
}

impl PublicKey {
    /// Reads a SubjectPublicKeyInfo in DER; `None`: it is none, or of an unknown algorithm.
    #[must_use]
    pub fn from_der(der: &[u8]) -> Option<PublicKey> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        PublicKey::of(&info).filter(|_| rest.is_empty())
    }

    pub(crate) fn of(info: &SubjectPublicKeyInfo<'_>) -> Option<PublicKey> {
        let algorithm = &info.algorithm.algorithm;
        let data = &info.subject_public_key.data;
        if *algorithm == OID_SIG_ED25519 {
            return (data.len() == 32).then(|| PublicKey::Ed25519(data.to_vec()));
        }
        if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
            let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?;
            return Some(PublicKey::Ecdsa(Curve::of(&curve)?, data.to_vec()));
        }
        if *algorithm == OID_PKCS1_RSAENCRYPTION {
            let Ok(Parsed::RSA(key)) = info.parsed() else { return None };
            let [modulus, exponent] = [key.modulus, key.exponent].map(significant);
            let is_key = !modulus.is_empty() && (1..=MAX_EXPONENT).contains(&exponent.len());
            return is_key.then_some(PublicKey::Rsa { modulus, exponent });
        }
        let is_other = |id: &&str| Oid::from_str(id).is_ok_and(|id| id == *algorithm);
        OTHERS.iter().any(is_other).then_some(PublicKey::Other)
    }

    /// Why a pod may not have it.
    #[must_use]
    pub fn fault(&self) -> Option<KeyFault> {
        match self {
            PublicKey::Ecdsa(Curve::P224, _) => Some(KeyFault::Curve(Curve::P224)),
            PublicKey::Ed25519(_) | PublicKey::Ecdsa(..) => None,
            PublicKey::Rsa { modulus, .. } => {
                let bits = modulus.len().saturating_mul(8);
                (!RSA_SIZES.contains(&bits)).then_some(KeyFault::Bits(bits))
            }
            PublicKey::Other => Some(KeyFault::Type),
        }
    }

    /// Whether the key has signed the message as `spec.proofOfPossession` wants it: with SHA-256, but for
    /// Ed25519, in DER for elliptic curves, and as RSASSA-PSS with a salt of any length for RSA.
    #[must_use]
    pub fn has_proven(&self, message: &[u8], signature: &[u8]) -> bool {
        let is_of = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()
        };
        if self.fault().is_some() {
            return false;
        }
        match self {
            PublicKey::Ed25519(key) => is_of(&ED25519, key),
            PublicKey::Ecdsa(Curve::P256, point) => is_of(&ECDSA_P256_SHA256_ASN1, point),
            PublicKey::Ecdsa(Curve::P384, point) => is_of(&ECDSA_P384_SHA256_ASN1, point),
            PublicKey::Ecdsa(Curve::P521, point) => {
                is_of_p521(point, &Sha256::digest(message), signature)
            }
            PublicKey::Rsa { modulus, exponent } => is_pss(modulus, exponent, message, signature),
            PublicKey::Ecdsa(Curve::P224, _) | PublicKey::Other => false,
        }
    }
}

/// Without zeros before it.
fn significant(number: &[u8]) -> Vec<u8> {
    number.iter().copied().skip_while(|byte| *byte == 0).collect()
}

/// Whether a key on P-521 has signed the digest, which is no longer than a number of the curve.
pub(crate) fn is_of_p521(point: &[u8], digest: &[u8], signature: &[u8]) -> bool {
    let (Ok(key), Ok(signature)) =
        (P521Key::from_sec1_bytes(point), P521Signature::from_der(signature))
    else {
        return false;
    };
    let Some(zeros) = P521_LENGTH.checked_sub(digest.len()) else { return false };
    let mut padded = vec![0; zeros];
    padded.extend(digest);
    key.verify_prehash(&padded, &signature).is_ok()
}

/// EMSA-PSS-VERIFY of RFC 8017 with SHA-256, for a salt of any length, as Go's signers make it by default: ring
/// takes no other than that of the hash.
fn is_pss(modulus: &[u8], exponent: &[u8], message: &[u8], signature: &[u8]) -> bool {
    const HASH: usize = 32;
    let (n, e) = (BigUint::from_bytes_be(modulus), BigUint::from_bytes_be(exponent));
    let s = BigUint::from_bytes_be(signature);
    if signature.len() != modulus.len() || s >= n {
        return false;
    }
    // The modulus begins with a set bit or with some zeros, and so does a message that has one bit less.
    let bits = n.bits().saturating_sub(1);
    let length = bits.div_ceil(8);
    let encoded = s.modpow(&e, &n).to_bytes_be();
    let Some(zeros) = length.checked_sub(encoded.len()) else { return false };
    let mut encoded = [vec![0; zeros], encoded].concat();
    if encoded.pop() != Some(0xbc) {
        return false;
    }
    let Some(at) = encoded.len().checked_sub(HASH) else { return false };
    let hash = encoded.split_off(at);
    let unused = length.saturating_mul(8).saturating_sub(bits);
    let mask = 0xff_u8.checked_shr(u32::try_from(unused).unwrap_or(u32::MAX)).unwrap_or(0);
    if encoded.first().is_none_or(|first| first & !mask != 0) {
        return false;
    }
    for (byte, mask) in encoded.iter_mut().zip(mgf1(&hash)) {
        *byte ^= mask;
    }
    if let Some(first) = encoded.first_mut() {
        *first &= mask;
    }
    let mut salt = encoded.iter().skip_while(|byte| **byte == 0);
    if salt.next() != Some(&1) {
        return false;
    }
    let mut own = Sha256::new();
    own.update([0; 8]);
    own.update(Sha256::digest(message));
    own.update(salt.copied().collect::<Vec<u8>>());
    own.finalize().as_slice() == hash
}

/// The bytes of MGF1 with SHA-256.
fn mgf1(seed: &[u8]) -> impl Iterator<Item = u8> {
    (0_u32..).flat_map(move |counter| {
        let mut hash = Sha256::new();
        hash.update(seed);
        hash.update(counter.to_be_bytes());
        hash.finalize()
    })
}

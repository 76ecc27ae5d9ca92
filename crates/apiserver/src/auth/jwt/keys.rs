//! The keys of an issuer (a JSON Web Key Set), and signatures by them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use p521::ecdsa::signature::Verifier;
use p521::ecdsa::{Signature as P521Signature, VerifyingKey as P521Key};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;

/// Longer than any token that fits a request's headers.
const MAX_TOKEN: usize = 64 << 10;
/// The most keys that are kept of one issuer.
const MAX_KEYS: usize = 256;

/// How tokens may be signed: with the private key of a pair, and never with a secret or not at all.
pub(crate) const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

/// Why a token is not accepted before its claims are looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("malformed jwt")]
    Malformed,
    #[error("id token signed with unsupported algorithm, expected {expected:?} got {0:?}", expected = .1)]
    Algorithm(String, Vec<String>),
    /// No key that is known has signed it.
    #[error("failed to verify signature: failed to verify id token signature")]
    Signature,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
    /// Extensions that a reader must understand; we know none.
    #[serde(default)]
    crit: Option<Value>,
}

/// A token, read and not verified.
pub(super) struct Token<'a> {
    header: Header,
    message: &'a str,
    signature: Vec<u8>,
    /// The claims.
    payload: Value,
}

impl<'a> Token<'a> {
    /// Reads a token of three parts.
    pub(super) fn read(token: &'a str) -> Result<Token<'a>, Error> {
        if token.len() > MAX_TOKEN {
            return Err(Error::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Error::Malformed)?;
        let (header, payload) = message.split_once('.').ok_or(Error::Malformed)?;
        let object = |text: &str| -> Result<Vec<u8>, Error> {
            let bytes = BASE64.decode(text).map_err(|_| Error::Malformed)?;
            // a list of its values would read as an object too
            match bytes.trim_ascii_start().first() {
                Some(b'{') => Ok(bytes),
                _ => Err(Error::Malformed),
            }
        };
        let header: Header =
            serde_json::from_slice(&object(header)?).map_err(|_| Error::Malformed)?;
        // a further dot is no letter of base64
        let payload = serde_json::from_slice(&object(payload)?).map_err(|_| Error::Malformed)?;
        let signature = BASE64.decode(signature).map_err(|_| Error::Malformed)?;
        if header.crit.is_some() {
            return Err(Error::Malformed);
        }
        Ok(Token { header, message, signature, payload })
    }

    /// Who says to have issued it.
    pub(super) fn untrusted_issuer(&self) -> &str {
        match self.payload["iss"].as_str().unwrap_or_default() {
            "accounts.google.com" => "https://accounts.google.com",
            issuer => issuer,
        }
    }

    /// The claims, which anybody may have written.
    pub(super) fn unverified(&self) -> &Value {
        &self.payload
    }

    /// Whether its algorithm is one of these.
    pub(super) fn check_algorithm(&self, allowed: &[String]) -> Result<(), Error> {
        match allowed.contains(&self.header.alg) {
            true => Ok(()),
            false => Err(Error::Algorithm(self.header.alg.clone(), allowed.to_vec())),
        }
    }

    /// The claims, if one of the keys has signed them.
    pub(super) fn verify(&self, keys: &[Key]) -> Result<&Value, Error> {
        let Header { alg, kid, .. } = &self.header;
        let mut candidates = keys.iter().filter(|key| kid.is_empty() || *kid == key.id);
        match candidates.any(|key| key.verifies(alg, self.message.as_bytes(), &self.signature)) {
            true => Ok(&self.payload),
            false => Err(Error::Signature),
        }
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    id: String,
    /// The only algorithm that it is for, if it says.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(Vec<u8>),
}

#[derive(Deserialize)]
struct Jwk {
    #[serde(default)]
    kty: String,
    #[serde(default)]
    kid: String,
    #[serde(default, rename = "use")]
    usage: String,
    #[serde(default)]
    alg: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

/// The keys of a set that can be used here. Others are passed over: sets have keys of all kinds.
pub(super) fn read_set(text: &[u8]) -> Result<Vec<Key>, String> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set =
        serde_json::from_slice(text).map_err(|error| format!("failed to decode keys: {error}"))?;
    let keys = set.keys.into_iter().filter_map(|key| Key::read(serde_json::from_value(key).ok()?));
    Ok(keys.take(MAX_KEYS).collect())
}

impl Key {
    fn read(jwk: Jwk) -> Option<Key> {
        if !matches!(jwk.usage.as_str(), "" | "sig") {
            return None;
        }
        let decode = |text: &str| BASE64.decode(text.trim_end_matches('=')).ok();
        let point = |size: usize| {
            let (x, y) = (decode(&jwk.x)?, decode(&jwk.y)?);
            let fits = x.len() == size && y.len() == size;
            fits.then(|| [&[4][..], &x, &y].concat())
        };
        let material = match (jwk.kty.as_str(), jwk.crv.as_str()) {
            ("RSA", _) => {
                let number = |text: &str| {
                    let bytes = decode(text)?;
                    let first = bytes.iter().position(|byte| *byte != 0)?;
                    Some(bytes.get(first..)?.to_vec())
                };
                Material::Rsa { modulus: number(&jwk.n)?, exponent: number(&jwk.e)? }
            }
            ("EC", "P-256") => Material::P256(point(32)?),
            ("EC", "P-384") => Material::P384(point(48)?),
            ("EC", "P-521") => Material::P521(point(66)?),
            _ => return None,
        };
        Some(Key { id: jwk.kid, algorithm: Some(jwk.alg).filter(|alg| !alg.is_empty()), material })
    }

    /// Whether the key's holder has signed the message with this algorithm. The kind of the key decides
    /// what an algorithm may be.
    fn verifies(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.as_deref().is_some_and(|own| own != algorithm) {
            return false;
        }
        let elliptic = |point: &[u8], scheme: &'static EcdsaVerificationAlgorithm| {
            UnparsedPublicKey::new(scheme, point).verify(message, signature).is_ok()
        };
        match (&self.material, algorithm) {
            (Material::Rsa { modulus, exponent }, _) => {
                let scheme: &RsaParameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &RSA_PSS_2048_8192_SHA256,
                    "PS384" => &RSA_PSS_2048_8192_SHA384,
                    "PS512" => &RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(scheme, message, signature).is_ok()
            }
            (Material::P256(point), "ES256") => elliptic(point, &ECDSA_P256_SHA256_FIXED),
            (Material::P384(point), "ES384") => elliptic(point, &ECDSA_P384_SHA384_FIXED),
            // ring has not this curve
            (Material::P521(point), "ES512") => {
                let key = P521Key::from_sec1_bytes(point);
                let signature = P521Signature::from_slice(signature);
                key.is_ok_and(|key| signature.is_ok_and(|own| key.verify(message, &own).is_ok()))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
pub(super) mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    /// A key that signs ES256.
    pub(in super::super) struct Signer {
        pair: EcdsaKeyPair,
        pub(in super::super) id: &'static str,
    }

    impl Signer {
        pub(in super::super) fn new(id: &'static str) -> Signer {
            let (scheme, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let document = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(scheme, document.as_ref(), &random).unwrap();
            Signer { pair, id }
        }

        pub(in super::super) fn jwk(&self) -> Value {
            let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
            json!({"kty": "EC", "crv": "P-256", "kid": self.id, "use": "sig", "alg": "ES256",
                "x": BASE64.encode(x), "y": BASE64.encode(y)})
        }

        pub(in super::super) fn sign(&self, claims: &Value) -> String {
            self.sign_with(&json!({"alg": "ES256", "kid": self.id}), claims)
        }

        pub(in super::super) fn sign_with(&self, header: &Value, claims: &Value) -> String {
            let part = |value: &Value| BASE64.encode(value.to_string());
            let message = format!("{}.{}", part(header), part(claims));
            let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
            format!("{message}.{}", BASE64.encode(signature))
        }
    }

    fn keys(jwks: &[Value]) -> Vec<Key> {
        read_set(json!({"keys": jwks}).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn jwt_signatures_are_verified_by_the_key_that_the_token_names() {
        let (own, other) = (Signer::new("a"), Signer::new("a"));
        let claims = json!({"iss": "https://i", "sub": "x"});
        let token = own.sign(&claims);
        let read = Token::read(&token).unwrap();
        assert_eq!(read.untrusted_issuer(), "https://i");
        assert_eq!(read.verify(&keys(&[own.jwk()])).unwrap(), &claims);
        assert_eq!(read.verify(&keys(&[other.jwk()])), Err(Error::Signature));
        assert_eq!(read.verify(&[]), Err(Error::Signature));
        let mut renamed = own.jwk();
        renamed["kid"] = "b".into();
        assert_eq!(read.verify(&keys(&[renamed])), Err(Error::Signature), "of another name");
        let nameless = own.sign_with(&json!({"alg": "ES256"}), &claims);
        let nameless = Token::read(&nameless).unwrap();
        assert!(nameless.verify(&keys(&[other.jwk(), own.jwk()])).is_ok(), "any key");
    }

    #[test]
    fn jwt_algorithms_fit_the_key() {
        let signer = Signer::new("a");
        let all = ALGORITHMS.map(str::to_owned);
        for alg in ["none", "None", "", "HS256", "RS256", "ES384", "PS256", "es256"] {
            let token = signer.sign_with(&json!({"alg": alg, "kid": "a"}), &json!({"sub": "x"}));
            let read = Token::read(&token).unwrap();
            let is_known = all.iter().any(|known| known == alg);
            assert_eq!(read.check_algorithm(&all).is_ok(), is_known, "{alg}");
            assert_eq!(read.verify(&keys(&[signer.jwk()])), Err(Error::Signature), "{alg}");
        }
        // a key with a secret in it verifies nothing
        let secret = json!({"kty": "oct", "k": BASE64.encode("secret"), "kid": "a"});
        assert_eq!(keys(&[secret]), []);
        let unsigned = signer.sign(&json!({"sub": "x"}));
        let (message, _) = unsigned.rsplit_once('.').unwrap();
        let stripped = format!("{message}.");
        assert!(Token::read(&stripped).unwrap().verify(&keys(&[signer.jwk()])).is_err());
    }

    #[test]
    fn jwt_signatures_of_p521() {
        // made with openssl
        let jwk: Value = serde_json::from_str(include_str!("testdata/es512.jwk")).unwrap();
        let token = include_str!("testdata/es512.jwt").trim();
        let read = Token::read(token).unwrap();
        assert_eq!(read.verify(&keys(std::slice::from_ref(&jwk))).unwrap()["sub"], "ann");
        let (message, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64.decode(signature).unwrap();
        let mut changed = signature.clone();
        changed[70] ^= 1;
        for broken in [&changed[..], &signature[..131], &[0; 132], &[]] {
            let token = format!("{message}.{}", BASE64.encode(broken));
            let read = Token::read(&token).unwrap();
            assert_eq!(read.verify(&keys(std::slice::from_ref(&jwk))), Err(Error::Signature));
        }
        for (field, value) in [
            // a point that is not on the curve, and one that is too short
            ("y", json!(BASE64.encode([1; 66]))),
            ("y", json!(BASE64.encode([1; 65]))),
            ("crv", json!("P-384")),
            ("alg", json!("ES256")),
        ] {
            let mut other = jwk.clone();
            other[field] = value;
            assert_eq!(read.verify(&keys(&[other])), Err(Error::Signature), "{field}");
        }
    }

    #[test]
    fn jwt_rsa_signatures() {
        // made with openssl
        let jwk = json!({"kty": "RSA", "e": "AQAB", "n": include_str!("testdata/rs256.n").trim()});
        let [read, pss] = [include_str!("testdata/rs256.jwt"), include_str!("testdata/ps256.jwt")]
            .map(|token| Token::read(token.trim()).unwrap());
        for read in [&read, &pss] {
            let claims = read.verify(&keys(std::slice::from_ref(&jwk))).unwrap();
            assert_eq!(claims["iss"], "joe");
        }
        let mut restricted = jwk.clone();
        restricted["alg"] = "PS256".into();
        assert!(read.verify(&keys(&[restricted])).is_err());
        let mut encrypts = jwk;
        encrypts["use"] = "enc".into();
        assert_eq!(keys(&[encrypts]), []);
    }

    #[test]
    fn jwt_malformed_tokens_are_rejected() {
        let part = |text: &str| BASE64.encode(text);
        let (header, body) = (part(r#"{"alg":"ES256"}"#), part("{}"));
        let crit = part(r#"{"alg":"ES256","crit":["x"]}"#);
        let deep = part(&format!("{{\"a\":{}{}}}", "[".repeat(1000), "]".repeat(1000)));
        for token in [
            "",
            "..",
            "a.b.c",
            &format!("{header}.{body}"),
            &format!("{header}.{body}.AA.AA"),
            &format!("{header}.{}.AA", part("[]")),
            &format!("{}.{body}.AA", part(r#"["ES256"]"#)),
            &format!("{crit}.{body}.AA"),
            &format!("{header}.{deep}.AA"),
            &format!("{header}.{body}.{}", "A".repeat(MAX_TOKEN)),
        ] {
            assert!(Token::read(token).is_err(), "{}", &token[..token.len().min(80)]);
        }
        assert!(Token::read(&format!("{header}.{body}.AA")).is_ok());
        for set in ["", "[]", "{}", "{\"keys\": 1}"] {
            assert!(read_set(set.as_bytes()).is_err(), "{set}");
        }
    }
}

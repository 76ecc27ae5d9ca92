//! The ciphers of encryption at rest, byte by byte as upstream's: what one writes, the other reads.
//!
//! AES-GCM authenticates a value with its key in the store, so that it cannot be moved to another one. AES-CBC
//! and secretbox do not; upstream's neither.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{AesGcm, KeyInit};
use crypto_secretbox::XSalsa20Poly1305;

const BLOCK: usize = 16;
const GCM_NONCE: usize = 12;
const SECRETBOX_NONCE: usize = 24;
const SECRETBOX_TAG: usize = 16;

/// Why a value could not be decrypted or encrypted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("the stored data was shorter than the required size")]
    Short,
    #[error("the stored data is not a multiple of the block size")]
    Blocks,
    #[error("invalid padding on input")]
    Padding,
    #[error("cipher: message authentication failed")]
    Authentication,
    #[error("output array was not large enough for encryption")]
    Secretbox,
    #[error("there are no random numbers: {0}")]
    Random(String),
    #[error("crypto/aes: invalid key size {0}")]
    KeySize(usize),
}

/// A cipher with its key.
#[derive(Clone)]
pub(super) enum Cipher {
    Cbc(AesKey),
    Gcm(GcmKey),
    Secretbox(Box<XSalsa20Poly1305>),
}

/// A key of AES.
#[derive(Clone)]
pub(super) enum AesKey {
    Aes128([u8; 16]),
    Aes192([u8; 24]),
    Aes256([u8; 32]),
}

/// A key of AES-GCM, expanded.
#[derive(Clone)]
pub(super) enum GcmKey {
    Aes128(Box<AesGcm<Aes128, U12>>),
    Aes192(Box<AesGcm<Aes192, U12>>),
    Aes256(Box<AesGcm<Aes256, U12>>),
}

impl AesKey {
    pub(super) fn new(key: &[u8]) -> Result<AesKey, Error> {
        let invalid = |_| Error::KeySize(key.len());
        match key.len() {
            16 => key.try_into().map(AesKey::Aes128).map_err(invalid),
            24 => key.try_into().map(AesKey::Aes192).map_err(invalid),
            _ => key.try_into().map(AesKey::Aes256).map_err(invalid),
        }
    }
}

impl GcmKey {
    pub(super) fn new(key: &[u8]) -> Result<GcmKey, Error> {
        let invalid = |_| Error::KeySize(key.len());
        match key.len() {
            16 => AesGcm::new_from_slice(key).map(|key| GcmKey::Aes128(Box::new(key))),
            24 => AesGcm::new_from_slice(key).map(|key| GcmKey::Aes192(Box::new(key))),
            _ => AesGcm::new_from_slice(key).map(|key| GcmKey::Aes256(Box::new(key))),
        }
        .map_err(invalid)
    }

    /// Nonce, ciphertext and tag to the value.
    pub(super) fn decrypt(&self, stored: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Error> {
        let (nonce, text) = stored.split_at_checked(GCM_NONCE).ok_or(Error::Short)?;
        let payload = Payload { msg: text, aad: authenticated };
        match self {
            GcmKey::Aes128(key) => key.decrypt(nonce.into(), payload),
            GcmKey::Aes192(key) => key.decrypt(nonce.into(), payload),
            GcmKey::Aes256(key) => key.decrypt(nonce.into(), payload),
        }
        .map_err(|_| Error::Authentication)
    }

    /// The reverse, with a random nonce.
    pub(super) fn encrypt(&self, value: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Error> {
        let mut stored = random::<GCM_NONCE>()?.to_vec();
        let nonce = stored.as_slice().into();
        let payload = Payload { msg: value, aad: authenticated };
        let text = match self {
            GcmKey::Aes128(key) => key.encrypt(nonce, payload),
            GcmKey::Aes192(key) => key.encrypt(nonce, payload),
            GcmKey::Aes256(key) => key.encrypt(nonce, payload),
        }
        .map_err(|_| Error::Authentication)?;
        stored.extend(text);
        Ok(stored)
    }
}

impl Cipher {
    /// A cipher of secretbox; its keys have 32 bytes.
    pub(super) fn secretbox(key: &[u8]) -> Result<Cipher, Error> {
        let key = XSalsa20Poly1305::new_from_slice(key).map_err(|_| Error::KeySize(key.len()))?;
        Ok(Cipher::Secretbox(Box::new(key)))
    }

    pub(super) fn decrypt(&self, stored: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Cipher::Cbc(key) => cbc_decrypt(key, stored),
            Cipher::Gcm(key) => key.decrypt(stored, authenticated),
            Cipher::Secretbox(key) => {
                if stored.len() < SECRETBOX_NONCE + SECRETBOX_TAG {
                    return Err(Error::Short);
                }
                let (nonce, text) = stored.split_at(SECRETBOX_NONCE);
                key.decrypt(nonce.into(), text).map_err(|_| Error::Secretbox)
            }
        }
    }

    pub(super) fn encrypt(&self, value: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Cipher::Cbc(key) => cbc_encrypt(key, value),
            Cipher::Gcm(key) => key.encrypt(value, authenticated),
            Cipher::Secretbox(key) => {
                let mut stored = random::<SECRETBOX_NONCE>()?.to_vec();
                let text =
                    key.encrypt(stored.as_slice().into(), value).map_err(|_| Error::Secretbox)?;
                stored.extend(text);
                Ok(stored)
            }
        }
    }
}

/// IV and blocks to the value.
fn cbc_decrypt(key: &AesKey, stored: &[u8]) -> Result<Vec<u8>, Error> {
    let (iv, blocks) = stored.split_at_checked(BLOCK).ok_or(Error::Short)?;
    if blocks.is_empty() || !blocks.len().is_multiple_of(BLOCK) {
        return Err(Error::Blocks);
    }
    let iv = iv.into();
    match key {
        AesKey::Aes128(key) => {
            cbc::Decryptor::<Aes128>::new(key.into(), iv).decrypt_padded_vec_mut::<Pkcs7>(blocks)
        }
        AesKey::Aes192(key) => {
            cbc::Decryptor::<Aes192>::new(key.into(), iv).decrypt_padded_vec_mut::<Pkcs7>(blocks)
        }
        AesKey::Aes256(key) => {
            cbc::Decryptor::<Aes256>::new(key.into(), iv).decrypt_padded_vec_mut::<Pkcs7>(blocks)
        }
    }
    .map_err(|_| Error::Padding)
}

fn cbc_encrypt(key: &AesKey, value: &[u8]) -> Result<Vec<u8>, Error> {
    let mut stored = random::<BLOCK>()?.to_vec();
    let iv = stored.as_slice().into();
    let blocks = match key {
        AesKey::Aes128(key) => {
            cbc::Encryptor::<Aes128>::new(key.into(), iv).encrypt_padded_vec_mut::<Pkcs7>(value)
        }
        AesKey::Aes192(key) => {
            cbc::Encryptor::<Aes192>::new(key.into(), iv).encrypt_padded_vec_mut::<Pkcs7>(value)
        }
        AesKey::Aes256(key) => {
            cbc::Encryptor::<Aes256>::new(key.into(), iv).encrypt_padded_vec_mut::<Pkcs7>(value)
        }
    };
    stored.extend(blocks);
    Ok(stored)
}

/// Random bytes of the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ciphers() -> Vec<Cipher> {
        let key = [7; 32];
        let mut ciphers = vec![Cipher::secretbox(&key).unwrap()];
        for size in [16, 24, 32] {
            ciphers.push(Cipher::Cbc(AesKey::new(&key[..size]).unwrap()));
            ciphers.push(Cipher::Gcm(GcmKey::new(&key[..size]).unwrap()));
        }
        ciphers
    }

    #[test]
    fn encryption_is_reversed_and_authenticates() {
        for cipher in ciphers() {
            for length in [0, 1, 15, 16, 17, 1000] {
                let value = vec![b'v'; length];
                let stored = cipher.encrypt(&value, b"/registry/secrets/a/b").unwrap();
                assert_eq!(cipher.decrypt(&stored, b"/registry/secrets/a/b"), Ok(value.clone()));
                assert_ne!(stored, cipher.encrypt(&value, b"/registry/secrets/a/b").unwrap());
                let moved = cipher.decrypt(&stored, b"/registry/secrets/a/c");
                match &cipher {
                    Cipher::Gcm(_) => assert_eq!(moved, Err(Error::Authentication)),
                    _ => assert_eq!(moved, Ok(value)),
                }
            }
        }
        for size in [0, 15, 17, 33] {
            assert!(AesKey::new(&vec![0; size]).is_err() && GcmKey::new(&vec![0; size]).is_err());
            assert!(Cipher::secretbox(&vec![0; size]).is_err());
        }
    }

    proptest! {
        #[test]
        fn encryption_of_hostile_values_is_an_error(stored: Vec<u8>) {
            for cipher in ciphers() {
                if !matches!(cipher, Cipher::Cbc(_)) {
                    prop_assert!(cipher.decrypt(&stored, b"").is_err());
                } else {
                    // may have a valid padding by chance
                    let _ = cipher.decrypt(&stored, b"");
                }
            }
        }
    }
}

//! Signing of requests. The certificate is put together here and not by `rcgen`, since a
//! subject may have several organizations, which `rcgen` cannot write: it is taken over as it came.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{SignatureAlgorithm, SigningKey};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, DERWriterSeq, Tag};

use super::{Authority, Error, Result};
use crate::csr::Request;

/// For machines whose clocks are a little behind.
const BACKDATE: Duration = Duration::from_secs(300);
/// Certificates for less than this get their whole time, in spite of the earlier beginning.
const SHORT: Duration = Duration::from_secs(8 * 3600);
const SERIAL_BYTES: usize = 16;

/// Algorithms that a CA's key may sign with, and whether their identifier has a NULL beside it.
const ALGORITHMS: [(&SignatureAlgorithm, &[u64], bool); 6] = [
    (&rcgen::PKCS_ECDSA_P256_SHA256, &[1, 2, 840, 10045, 4, 3, 2], false),
    (&rcgen::PKCS_ECDSA_P384_SHA384, &[1, 2, 840, 10045, 4, 3, 3], false),
    (&rcgen::PKCS_RSA_SHA256, &[1, 2, 840, 113_549, 1, 1, 11], true),
    (&rcgen::PKCS_RSA_SHA384, &[1, 2, 840, 113_549, 1, 1, 12], true),
    (&rcgen::PKCS_RSA_SHA512, &[1, 2, 840, 113_549, 1, 1, 13], true),
    (&rcgen::PKCS_ED25519, &[1, 3, 101, 112], false),
];

/// Usages that our signers grant: bits of the key usage, and purposes.
const KEY_USAGES: [(&str, u8); 2] = [("digital signature", 0x80), ("key encipherment", 0x20)];
const PURPOSES: [(&str, u64); 2] = [("server auth", 1), ("client auth", 2)];

impl Authority {
    /// Issues a certificate for a request, in PEM. `usages`: those that the request's
    /// signer has checked.
    pub(crate) fn issue(
        &self,
        wanted: &Request,
        usages: &[&str],
        life: Duration,
    ) -> Result<String> {
        let failed = |source| Error::Make { name: wanted.common_name.clone(), source };
        let (_, ca) = X509Certificate::from_der(self.certificate.der())
            .map_err(|_| failed(rcgen::Error::CouldNotParseCertificate))?;
        let key = self.issuer.key();
        let algorithm =
            ALGORITHMS.iter().find(|(one, ..)| *one == rcgen::PublicKeyData::algorithm(key));
        let (_, oid, has_null) =
            algorithm.ok_or_else(|| failed(rcgen::Error::UnsupportedSignatureAlgorithm))?;
        let identifier = |writer: DERWriter<'_>| algorithm_identifier(writer, oid, *has_null);
        let now = SystemTime::now();
        let (from, until) =
            validity(now, life, u64::try_from(ca.validity().not_after.timestamp()).unwrap_or(0));
        let mut serial = [0; SERIAL_BYTES];
        getrandom::fill(&mut serial).map_err(|_| failed(rcgen::Error::RingUnspecified))?;
        serial[0] &= 0x7f;
        let tbs = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_tagged(Tag::context(0), |writer| writer.write_u8(2));
                writer.next().write_bigint_bytes(&serial, true);
                identifier(writer.next());
                writer.next().write_der(ca.subject().as_raw());
                writer.next().write_sequence(|writer| {
                    writer.next().write_der(&time(from));
                    writer.next().write_der(&time(until));
                });
                writer.next().write_der(&wanted.subject);
                writer.next().write_der(&wanted.public_key);
                writer.next().write_tagged(Tag::context(3), |writer| {
                    writer.write_sequence(|writer| extensions(writer, wanted, usages, &ca));
                });
            });
        });
        let signature = key.sign(&tbs).map_err(failed)?;
        let der = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&tbs);
                identifier(writer.next());
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        Ok(pem(&der))
    }
}

fn algorithm_identifier(writer: DERWriter<'_>, oid: &[u64], has_null: bool) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(oid));
        if has_null {
            writer.next().write_null();
        }
    });
}

/// The validity in seconds; at most that of the CA.
fn validity(now: SystemTime, life: Duration, ca_until: u64) -> (u64, u64) {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let backdate = if life < SHORT { 0 } else { BACKDATE.as_secs() };
    let until = now.saturating_add(life.as_secs()).saturating_sub(backdate);
    (now.saturating_sub(BACKDATE.as_secs()), until.min(ca_until))
}

/// A time in DER: with two digits of the year until 2049, with four from then on.
fn time(seconds: u64) -> Vec<u8> {
    const UTC_TIME: u8 = 23;
    const GENERALIZED_TIME: u8 = 24;
    const YEAR_2050: u64 = 2_524_608_000;
    let time = Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX))
        .unwrap_or(Timestamp::MAX);
    let (tag, text) = match seconds < YEAR_2050 {
        true => (UTC_TIME, time.strftime("%y%m%d%H%M%SZ").to_string()),
        false => (GENERALIZED_TIME, time.strftime("%Y%m%d%H%M%SZ").to_string()),
    };
    [&[tag, text.len() as u8], text.as_bytes()].concat()
}

fn extensions(
    writer: &mut DERWriterSeq<'_>,
    wanted: &Request,
    usages: &[&str],
    ca: &X509Certificate<'_>,
) {
    let bits = KEY_USAGES.iter().filter(|(usage, _)| usages.contains(usage));
    let bits = bits.fold(0u8, |all, (_, bit)| all | bit);
    if bits != 0 {
        extension(writer.next(), &[2, 5, 29, 15], true, |writer| {
            writer.write_bitvec_bytes(&[bits], 8 - bits.trailing_zeros() as usize);
        });
    }
    extension(writer.next(), &[2, 5, 29, 37], false, |writer| {
        writer.write_sequence(|writer| {
            for (_, purpose) in PURPOSES.iter().filter(|(usage, _)| usages.contains(usage)) {
                let oid = [1, 3, 6, 1, 5, 5, 7, 3, *purpose];
                writer.next().write_oid(&ObjectIdentifier::from_slice(&oid));
            }
        });
    });
    // No CA.
    extension(writer.next(), &[2, 5, 29, 19], true, |writer| writer.write_sequence(|_| ()));
    let key_id = ca.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    });
    if let Some(id) = key_id {
        extension(writer.next(), &[2, 5, 29, 35], false, |writer| {
            writer.write_sequence(|writer| context(writer, 0, id));
        });
    }
    let addresses: Vec<Vec<u8>> = wanted
        .addresses
        .iter()
        .map(|address| match address {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        })
        .collect();
    let names: Vec<(u64, &[u8])> = (wanted.dns_names.iter().map(|name| (2, name.as_bytes())))
        .chain(wanted.emails.iter().map(|name| (1, name.as_bytes())))
        .chain(addresses.iter().map(|address| (7, address.as_slice())))
        .chain(wanted.uris.iter().map(|name| (6, name.as_bytes())))
        .collect();
    if !names.is_empty() {
        extension(writer.next(), &[2, 5, 29, 17], false, |writer| {
            writer.write_sequence(|writer| {
                for (tag, name) in names {
                    context(writer, tag, name);
                }
            });
        });
    }
}

/// Bytes under a tag whose meaning the context gives.
fn context(writer: &mut DERWriterSeq<'_>, tag: u64, bytes: &[u8]) {
    writer.next().write_tagged_implicit(Tag::context(tag), |writer| writer.write_bytes(bytes));
}

fn extension(
    writer: DERWriter<'_>,
    oid: &[u64],
    is_critical: bool,
    value: impl FnOnce(DERWriter<'_>),
) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&ObjectIdentifier::from_slice(oid));
        if is_critical {
            writer.next().write_bool(true);
        }
        writer.next().write_bytes(&yasna::construct_der(value));
    });
}

fn pem(der: &[u8]) -> String {
    const LINE: usize = 64;
    let base64 = STANDARD.encode(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

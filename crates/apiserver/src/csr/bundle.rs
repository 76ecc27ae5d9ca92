//! Trust bundles: certificates of authorities, in PEM.

use x509_parser::pem::Pem;

/// The certificates of a bundle in DER, or what is wrong with each that is none of an authority.
pub(crate) fn trust_anchors(pem: &str) -> Result<Vec<Vec<u8>>, Vec<String>> {
    let mut anchors = Vec::new();
    let mut faults = Vec::new();
    for (i, entry) in Pem::iter_from_buffer(pem.as_bytes()).enumerate() {
        match entry.map_err(|error| format!("cannot be read: {error}")).and_then(anchor) {
            Ok(anchor) => anchors.push(anchor),
            Err(fault) => faults.push(format!("entry {i} {fault}")),
        }
    }
    if faults.is_empty() { Ok(anchors) } else { Err(faults) }
}

fn anchor(entry: Pem) -> Result<Vec<u8>, String> {
    if entry.label != "CERTIFICATE" {
        return Err(format!("has bad block type: {}", entry.label));
    }
    let certificate = entry.parse_x509().map_err(|_| "does not parse as X.509".to_owned())?;
    if !certificate.is_ca() {
        return Err("does not have the CA bit set".to_owned());
    }
    Ok(entry.contents)
}

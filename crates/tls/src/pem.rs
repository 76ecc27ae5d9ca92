//! PEM as Go's encoder writes it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Characters in a line.
const LINE: usize = 64;

/// Appends a block with that label.
pub fn append(pem: &mut String, label: &str, der: &[u8]) {
    pem.push_str(&format!("-----BEGIN {label}-----\n"));
    let text = STANDARD.encode(der);
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, left) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = left;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
}

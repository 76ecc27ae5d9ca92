//! Kubeconfig files for kubectl, kube-rs and the kubelet.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{Error, Identity, Pki, Result, files};

/// How to reach the apiserver as one user, with all certificates inside.
pub struct Kubeconfig {
    text: String,
}

impl Kubeconfig {
    /// For one client identity, against `server` such as `https://127.0.0.1:6443`.
    pub fn new(pki: &Pki, server: &str, user: &str, identity: &Identity) -> Result<Self> {
        let (certificate, key) = (read(&identity.certificate)?, read(&identity.key)?);
        let context = format!("{user}@kubernetes");
        // JSON strings are YAML strings, whatever characters a user's name may hold.
        let text = format!(
            "apiVersion: v1\nkind: Config\n\
             clusters:\n- name: kubernetes\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
             users:\n- name: {user}\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n\
             contexts:\n- name: {context}\n  context:\n    cluster: kubernetes\n    user: {user}\n\
             current-context: {context}\npreferences: {{}}\n",
            server = json!(server),
            user = json!(user),
            context = json!(context),
            ca = STANDARD.encode(pki.ca_pem()),
            certificate = STANDARD.encode(certificate),
            key = STANDARD.encode(key),
        );
        Ok(Kubeconfig { text })
    }

    /// The file's content.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Writes the file, readable by its owner alone; a file that already says the same is left as it is.
    pub fn write(&self, path: &Path) -> Result<()> {
        if files::read_optional(path)?.as_deref() == Some(self.text.as_str()) {
            return Ok(());
        }
        files::write_atomically(path, self.text.as_bytes(), 0o600)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

//! What each signer of the cluster takes.

use crate::Request;

/// The group of nodes.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// A signer of the cluster's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    /// Certificates with which users call the apiserver.
    Client,
    /// Certificates with which nodes call the apiserver.
    KubeletClient,
    /// Certificates with which nodes serve their port 10250.
    KubeletServing,
    /// Requests from before signers had names, which the API does not take any more.
    LegacyUnknown,
}

/// Why a signer does not sign, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The groups are not those of nodes.
    #[error("subject organization is not system:nodes")]
    Organization,
    /// The user is no node.
    #[error("subject common name does not begin with system:node:")]
    CommonName,
    /// There is nothing to serve under.
    #[error("DNS or IP subjectAltName is required")]
    NoName,
    /// There are names of that kind.
    #[error("{0} subjectAltNames are not allowed")]
    Name(&'static str),
    /// Usages are missing, or too many.
    #[error("usages did not match {0:?}")]
    Usages([&'static str; 3]),
    /// There is a usage too many.
    #[error("invalid usage for client certificate: {0}")]
    Usage(String),
    /// The usage of clients is missing.
    #[error("missing required usage for client certificate: client auth")]
    NoClientAuth,
}

impl Signer {
    /// The signer of `spec.signerName`; `None`: not one of the cluster's own.
    pub fn of(name: &str) -> Option<Signer> {
        match name {
            "kubernetes.io/kube-apiserver-client" => Some(Signer::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Signer::KubeletClient),
            "kubernetes.io/kubelet-serving" => Some(Signer::KubeletServing),
            "kubernetes.io/legacy-unknown" => Some(Signer::LegacyUnknown),
            _ => None,
        }
    }

    /// Whether it signs this.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(self, request: &Request, usages: &[&str]) -> Result<(), Refusal> {
        match self {
            Signer::LegacyUnknown => Ok(()),
            Signer::Client => client_usages(usages),
            Signer::KubeletClient => {
                node(request, || {
                    let names = [
                        ("DNS", request.dns_names.is_empty()),
                        ("Email", request.emails.is_empty()),
                        ("IP", request.addresses.is_empty()),
                        ("URI", request.uris.is_empty()),
                    ];
                    none_of(&names)
                })?;
                exactly(usages, ["client auth", "digital signature", "key encipherment"])
            }
            Signer::KubeletServing => {
                node(request, || {
                    if request.dns_names.is_empty() && request.addresses.is_empty() {
                        return Err(Refusal::NoName);
                    }
                    none_of(&[
                        ("Email", request.emails.is_empty()),
                        ("URI", request.uris.is_empty()),
                    ])
                })?;
                exactly(usages, ["digital signature", "key encipherment", "server auth"])
            }
        }
    }
}

fn node(request: &Request, names: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
    if request.organizations != [NODES] {
        return Err(Refusal::Organization);
    }
    names()?;
    match request.common_name.strip_prefix(NODE_PREFIX) {
        Some(_) => Ok(()),
        None => Err(Refusal::CommonName),
    }
}

fn none_of(names: &[(&'static str, bool)]) -> Result<(), Refusal> {
    match names.iter().find(|(_, is_absent)| !is_absent) {
        Some((kind, _)) => Err(Refusal::Name(kind)),
        None => Ok(()),
    }
}

/// These, of which keys that encrypt nothing leave out `key encipherment`.
fn exactly(usages: &[&str], wanted: [&'static str; 3]) -> Result<(), Refusal> {
    let is_wanted = |usage: &&str| wanted.contains(usage);
    let has_rest = wanted.iter().filter(|usage| **usage != "key encipherment");
    match usages.iter().all(is_wanted) && { has_rest }.all(|usage| usages.contains(usage)) {
        true => Ok(()),
        false => Err(Refusal::Usages(wanted)),
    }
}

fn client_usages(usages: &[&str]) -> Result<(), Refusal> {
    const OPTIONAL: [&str; 2] = ["digital signature", "key encipherment"];
    let is_foreign = |usage: &&&str| **usage != "client auth" && !OPTIONAL.contains(*usage);
    match usages.iter().find(is_foreign) {
        Some(usage) => Err(Refusal::Usage((*usage).to_owned())),
        None if !usages.contains(&"client auth") => Err(Refusal::NoClientAuth),
        None => Ok(()),
    }
}

//! What signers have answered to the requests of this node, by one watch of all of them.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher::{self, Event};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::watch;

use longshore_tls::pem;

use crate::{Reports, field_selector};

/// Namespace and name of a request.
pub(super) type Key = (String, String);

/// By request; `None` before the first list.
pub(super) type Answers = Option<BTreeMap<Key, Answer>>;

/// What is said of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing yet.
    Pending,
    /// It is not to be granted.
    Refused(Refusal),
    /// Granted.
    Issued(Issued),
}

/// Why there is no certificate and will be none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Denied by the signer, or failed.
    pub(super) denied: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    /// In PEM, without anything else in it.
    pub(super) chain: String,
    pub(super) begin_refresh_at: Timestamp,
    pub(super) not_after: Timestamp,
}

impl Answer {
    /// The first condition that ends a request counts.
    fn of(request: &PodCertificateRequest) -> Self {
        let Some(status) = &request.status else { return Self::Pending };
        for condition in status.conditions.iter().flatten() {
            let refusal = |denied| {
                let (reason, message) = (condition.reason.clone(), condition.message.clone());
                Self::Refused(Refusal { denied, reason, message })
            };
            match condition.type_.as_str() {
                "Denied" => return refusal(true),
                "Failed" => return refusal(false),
                "Issued" => {
                    // The API lets no request exist of which this is not true.
                    let unusable = |reason: &str, message: String| {
                        let reason = reason.to_owned();
                        Self::Refused(Refusal { denied: false, reason, message })
                    };
                    let (Some(chain), Some(begin_refresh_at), Some(not_after)) =
                        (&status.certificate_chain, &status.begin_refresh_at, &status.not_after)
                    else {
                        let message = "issued without certificateChain, beginRefreshAt or notAfter";
                        return unusable("Incomplete", message.to_owned());
                    };
                    return match cleaned(chain) {
                        Ok(chain) => Self::Issued(Issued {
                            chain,
                            begin_refresh_at: begin_refresh_at.0,
                            not_after: not_after.0,
                        }),
                        Err(why) => unusable("Unreadable", format!("certificateChain: {why}")),
                    };
                }
                _ => {}
            }
        }
        Self::Pending
    }
}

/// The certificates of a chain, without what is between them; all of them, or an error.
fn cleaned(chain: &str) -> Result<String, String> {
    let mut pem = String::new();
    for certificate in CertificateDer::pem_slice_iter(chain.as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        pem::append(&mut pem, "CERTIFICATE", &certificate);
    }
    if pem.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(pem) }
}

/// Follows the requests of a node. Never ends.
pub(super) async fn follow(client: Client, node: &str, answers: &watch::Sender<Answers>) {
    let config = watcher::Config::default().fields(&field_selector([("spec.nodeName", node)]));
    let mut events = crate::watch::<PodCertificateRequest>(client, config);
    let mut reports = Reports::default();
    let mut listed = BTreeMap::new();
    let key = |request: &PodCertificateRequest| {
        let metadata = &request.metadata;
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    };
    while let Some(event) = events.next().await {
        let edit = |edit: &dyn Fn(&mut BTreeMap<Key, Answer>)| {
            answers.send_modify(|answers| edit(answers.get_or_insert_default()));
        };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(item)) => match item.read() {
                Ok(request) => {
                    listed.insert(key(&request), Answer::of(&request));
                }
                Err(unreadable) => {
                    reports.log(&unreadable);
                }
            },
            Ok(Event::InitDone) => {
                answers.send_replace(Some(std::mem::take(&mut listed)));
            }
            Ok(Event::Apply(item)) => match item.read() {
                Ok(request) => edit(&|answers| {
                    answers.insert(key(&request), Answer::of(&request));
                }),
                Err(unreadable) => {
                    reports.log(&unreadable);
                }
            },
            Ok(Event::Delete(item)) => {
                let request = item.known();
                edit(&|answers| {
                    answers.remove(&key(&request));
                });
            }
            // The watch begins again by itself.
            Err(error) => tracing::debug!(%error, "cannot follow PodCertificateRequests"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(status: Value) -> Answer {
        let request = json!({
            "spec": {
                "signerName": "example.com/s", "podName": "p", "podUID": "u",
                "serviceAccountName": "a", "serviceAccountUID": "b", "nodeName": "n",
                "nodeUID": "m", "stubPKCS10Request": "",
            },
            "status": status,
        });
        Answer::of(&serde_json::from_value(request).unwrap())
    }

    fn condition(kind: &str, reason: &str) -> Value {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": "why",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn answers_are_read_from_conditions() {
        let refusal = |denied, reason: &str, message: &str| {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            Answer::Refused(Refusal { denied, reason, message })
        };
        let [denied, failed, issued, other] =
            ["Denied", "Failed", "Issued", "Other"].map(|kind| condition(kind, "R"));
        let conditions = |all: &[&Value]| json!({ "conditions": all });
        assert_eq!(answer(json!(null)), Answer::Pending);
        assert_eq!(answer(json!({})), Answer::Pending);
        assert_eq!(answer(conditions(&[&other])), Answer::Pending);
        assert_eq!(answer(conditions(&[&other, &denied])), refusal(true, "R", "why"));
        assert_eq!(answer(conditions(&[&failed, &denied])), refusal(false, "R", "why"));
        let incomplete = "issued without certificateChain, beginRefreshAt or notAfter";
        assert_eq!(answer(conditions(&[&issued])), refusal(false, "Incomplete", incomplete));

        let block = "-----BEGIN CERTIFICATE-----\nAAECAw==\n-----END CERTIFICATE-----\n";
        let granted = |chain: &str| {
            answer(json!({
                "conditions": [issued], "certificateChain": chain,
                "notBefore": "2026-01-01T00:00:00Z", "beginRefreshAt": "2026-01-01T12:00:00Z",
                "notAfter": "2026-01-02T00:00:00Z",
            }))
        };
        let expected = Issued {
            chain: block.repeat(2),
            begin_refresh_at: "2026-01-01T12:00:00Z".parse().unwrap(),
            not_after: "2026-01-02T00:00:00Z".parse().unwrap(),
        };
        let chain = format!("leaf:\n{block}\n# issuer\n{block}rest");
        assert_eq!(granted(&chain), Answer::Issued(expected));
        // Of a chain that cannot be read to its end, the beginning is not enough.
        let broken = format!("{block}-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n");
        for chain in [broken.as_str(), "no certificate", ""] {
            let answer = granted(chain);
            let is_refused = |refusal: &Refusal| refusal.reason == "Unreadable" && !refusal.denied;
            assert!(
                matches!(&answer, Answer::Refused(refusal) if is_refused(refusal)),
                "{answer:?}"
            );
        }
    }
}

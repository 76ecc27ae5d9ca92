//! Trust bundles of the cluster: the certificates that its signers vouch for. All of them are
//! followed by one watch, as upstream does and the node is allowed to, while a pod uses any.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kube::Client;
use kube::core::{Selector, SelectorExt};
use kube::runtime::watcher::{self, Event};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use longshore_tls::pem;

use super::{Error, REQUEST_TIMEOUT};
use crate::Reports;

/// What messages call a bundle.
const NAME: &str = "clustertrustbundle.certificates.k8s.io";

/// The trust bundles, while they are followed.
#[derive(Default)]
pub(super) struct Bundles {
    following: Mutex<Option<Following>>,
}

struct Following {
    pods: usize,
    known: watch::Receiver<Known>,
    _task: AbortOnDropHandle<()>,
}

/// By name; an error before the first list.
type Known = Result<BTreeMap<String, ClusterTrustBundle>, Option<String>>;

impl Bundles {
    /// One more pod uses bundles; `changed` is called when some have changed.
    pub(super) fn retain(&self, client: &Client, changed: impl Fn() + Send + 'static) {
        let mut following = self.following();
        if let Some(following) = following.as_mut() {
            following.pods += 1;
            return;
        }
        let (sender, known) = watch::channel(Err(None));
        let task = tokio::spawn(follow(client.clone(), sender, changed));
        *following = Some(Following { pods: 1, known, _task: AbortOnDropHandle::new(task) });
    }

    /// One pod less uses bundles; the last one ends the watch.
    pub(super) fn release(&self) {
        let mut following = self.following();
        if let Some(known) = following.as_mut() {
            known.pods -= 1;
        }
        *following = following.take().filter(|known| known.pods > 0);
    }

    /// The certificates of a projection, each once, as PEM; none if it is optional.
    pub(super) async fn anchors(
        &self,
        source: &ClusterTrustBundleProjection,
    ) -> Result<Vec<u8>, Error> {
        let failed = |reason: String| Error::Request {
            action: "list cluster trust bundles".to_owned(),
            reason: reason.into(),
        };
        let known = self.following().as_ref().map(|following| following.known.clone());
        let mut known = known.ok_or_else(|| failed("no pod asks for them".to_owned()))?;
        let listed = known.wait_for(|known| !matches!(known, Err(None)));
        match tokio::time::timeout(REQUEST_TIMEOUT, listed).await {
            Ok(Ok(known)) => match &*known {
                Ok(bundles) => select(bundles, source),
                Err(error) => Err(failed(error.clone().unwrap_or_default())),
            },
            _ => Err(failed(format!("no answer within {REQUEST_TIMEOUT:?}"))),
        }
    }

    fn following(&self) -> MutexGuard<'_, Option<Following>> {
        self.following.lock()
    }
}

async fn follow(client: Client, known: watch::Sender<Known>, changed: impl Fn()) {
    let mut reports = Reports::default();
    let mut events = crate::watch::<ClusterTrustBundle>(client, watcher::Config::default());
    let mut listed = BTreeMap::new();
    let name = |bundle: &ClusterTrustBundle| bundle.metadata.name.clone().unwrap_or_default();
    while let Some(event) = events.next().await {
        let edit = |edit: &dyn Fn(&mut BTreeMap<String, ClusterTrustBundle>)| {
            known.send_modify(|known| {
                if let Ok(bundles) = known {
                    edit(bundles);
                }
            });
        };
        match event {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(item)) => {
                match item.read() {
                    Ok(bundle) => {
                        listed.insert(name(&bundle), bundle);
                    }
                    Err(unreadable) => {
                        reports.log(&unreadable);
                    }
                }
                continue;
            }
            Ok(Event::InitDone) => {
                let first = known.send_replace(Ok(std::mem::take(&mut listed)));
                if matches!(first, Err(None)) {
                    continue;
                }
            }
            Ok(Event::Apply(item)) => match item.read() {
                Ok(bundle) => edit(&|bundles| {
                    bundles.insert(name(&bundle), bundle.clone());
                }),
                // What is known of it serves on.
                Err(unreadable) => {
                    reports.log(&unreadable);
                    continue;
                }
            },
            Ok(Event::Delete(item)) => {
                let bundle = item.known();
                edit(&|bundles| {
                    bundles.remove(&name(&bundle));
                });
            }
            Err(error) => {
                // Those that are known serve on.
                known.send_if_modified(|known| {
                    let unknown = known.is_err();
                    if unknown {
                        *known = Err(Some(error.to_string()));
                    }
                    unknown
                });
                continue;
            }
        }
        changed();
    }
}

fn select(
    bundles: &BTreeMap<String, ClusterTrustBundle>,
    source: &ClusterTrustBundleProjection,
) -> Result<Vec<u8>, Error> {
    let optional = source.optional == Some(true);
    if let Some(name) = &source.name {
        return match bundles.get(name) {
            Some(bundle) => Ok(normalized([bundle])),
            None if optional => Ok(Vec::new()),
            None => Err(Error::NotFound { kind: NAME, name: name.clone() }),
        };
    }
    let invalid = |why: String| Error::TrustBundle(why);
    let Some(signer) = &source.signer_name else {
        let why = "ClusterTrustBundle projection requires either name or signerName to be set";
        return Err(invalid(why.to_owned()));
    };
    // No selector selects nothing, and an empty one everything.
    let selector = source.label_selector.clone().map(Selector::try_from).transpose();
    let selector = selector.map_err(|error| invalid(format!("label selector: {error}")))?;
    let is_it = |bundle: &&ClusterTrustBundle| {
        let labels = bundle.metadata.labels.clone().unwrap_or_default();
        bundle.spec.signer_name.as_ref() == Some(signer)
            && selector.as_ref().is_some_and(|selector| selector.matches(&labels))
    };
    let mut selected = bundles.values().filter(is_it).peekable();
    if selected.peek().is_none() && !optional {
        let why = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        return Err(invalid(why.to_owned()));
    }
    Ok(normalized(selected))
}

/// The certificates of bundles, each once, in an order that depends on nothing else.
fn normalized<'a>(bundles: impl IntoIterator<Item = &'a ClusterTrustBundle>) -> Vec<u8> {
    let texts = bundles.into_iter().map(|bundle| bundle.spec.trust_bundle.as_bytes());
    let certificates: BTreeSet<Vec<u8>> = texts
        .flat_map(|text| CertificateDer::pem_slice_iter(text).map_while(Result::ok))
        .map(|certificate| certificate.to_vec())
        .collect();
    let mut pem = String::new();
    for certificate in &certificates {
        pem::append(&mut pem, "CERTIFICATE", certificate);
    }
    pem.into_bytes()
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    use super::*;

    fn pem(content: &[u8]) -> String {
        let text = STANDARD.encode(content);
        format!("about it\n-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    fn bundle(
        name: &str,
        signer: Option<&str>,
        env: &str,
        certificates: &[&[u8]],
    ) -> (String, ClusterTrustBundle) {
        let text: String = certificates.iter().map(|content| pem(content)).collect();
        let bundle = json!({
            "metadata": {"name": name, "labels": {"env": env}},
            "spec": {"signerName": signer, "trustBundle": text},
        });
        (name.to_owned(), serde_json::from_value(bundle).unwrap())
    }

    fn found(source: Value) -> Result<usize, String> {
        let long = [7; 100];
        let bundles = BTreeMap::from([
            bundle("plain", None, "x", &[b"a", b"b", b"a"]),
            bundle("one", Some("s"), "prod", &[b"a", b"c"]),
            bundle("two", Some("s"), "test", &[b"c", &long]),
            bundle("other", Some("t"), "prod", &[b"d"]),
        ]);
        let mut source = source;
        source["path"] = json!("ca.pem");
        let anchors = select(&bundles, &serde_json::from_value(source).unwrap());
        let anchors = anchors.map_err(|error| error.to_string())?;
        assert!(String::from_utf8(anchors.clone()).unwrap().lines().all(|line| line.len() <= 64));
        let read: Vec<_> = CertificateDer::pem_slice_iter(&anchors).map(Result::unwrap).collect();
        Ok(read.len())
    }

    #[test]
    fn trust_bundles_are_selected_and_deduplicated() {
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        for (source, expected) in [
            (json!({"name": "plain"}), Ok(2)),
            (
                json!({"name": "gone"}),
                Err("clustertrustbundle.certificates.k8s.io \"gone\" not found"),
            ),
            (json!({"name": "gone", "optional": true}), Ok(0)),
            (json!({"signerName": "s", "labelSelector": {}}), Ok(3)),
            (json!({"signerName": "s", "labelSelector": {"matchLabels": {"env": "prod"}}}), Ok(2)),
            (json!({"signerName": "s"}), Err(none)),
            (json!({"signerName": "u", "labelSelector": {}}), Err(none)),
            (json!({"signerName": "u", "labelSelector": {}, "optional": true}), Ok(0)),
            (
                json!({}),
                Err("ClusterTrustBundle projection requires either name or signerName to be set"),
            ),
        ] {
            assert_eq!(found(source.clone()), expected.map_err(str::to_owned), "{source}");
        }
    }
}

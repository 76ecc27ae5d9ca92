//! Approves the client certificates of nodes, where the requesting user may have one by RBAC, and with
//! `--approve-kubelet-serving` their serving certificates too, where they name nothing but the node.

use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use longshore_csr::{Request, Signer};
use longshore_informer::{Informer, WorkQueue, run_workers};
use tracing::{debug, info, warn};

use super::node_names::{Reserved, may_have};
use super::{
    APPROVED, DENIED, Error, WORKERS, amend, has_certificate, has_condition, requests, usages,
    wanted, with_condition,
};
use crate::Context;
use crate::writes::{is_not_found, unless_stopped};

const GROUP: &str = "certificates.k8s.io";
const NODE_PREFIX: &str = "system:node:";
/// When a request is looked at again that may be approved later: a role is granted, or the node's
/// addresses are reported.
const AGAIN: Duration = Duration::from_secs(10);
/// By what pods know the apiserver.
const OF_APISERVER: [&str; 2] = ["localhost", "kubernetes"];

struct Approver {
    client: Client,
    /// With the credentials of the program, for what upstream leaves to people: serving certificates.
    program: Client,
    requests: Informer<CertificateSigningRequest>,
    /// Those of serving certificates.
    nodes: Option<Informer<Node>>,
    /// The apiserver's name in the kubeconfig, and the address ranges of services by flags.
    apiserver: Option<String>,
    service_ranges: Vec<IpNet>,
}

/// What is to be done with a request.
enum Decision {
    /// It is approved, for this reason.
    Approve(&'static str),
    /// Not yet: it may be approved later.
    Wait,
    /// It is for somebody else to decide.
    Leave,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> =
        WorkQueue::with_retries("certificate", &context.queues, super::RETRIES);
    let settings = &context.settings.cluster;
    let approver = Approver {
        client: context.client.clone(),
        program: context.informers.client().clone(),
        requests: requests(&context, &queue),
        nodes: settings.approve_kubelet_serving.then(|| context.informers.get::<Node>()),
        apiserver: settings.apiserver_host.clone(),
        service_ranges: settings.service_ranges.clone(),
    };
    let synced = async {
        approver.requests.synced().await;
        if let Some(nodes) = &approver.nodes {
            nodes.synced().await;
        }
    };
    if !unless_stopped(&context, synced).await {
        return;
    }
    let name = "certificatesigningrequest-approving-controller";
    run_workers(name, &queue, WORKERS, &context.stop, |key: String| {
        let (approver, queue) = (&approver, &queue);
        async move {
            if approver.sync(&key).await? {
                queue.add_after(key, AGAIN);
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

impl Approver {
    /// Whether the request is to be looked at again.
    async fn sync(&self, name: &str) -> Result<bool, Error> {
        let Some(request) = self.requests.store().get(name) else { return Ok(false) };
        if has_certificate(&request)
            || has_condition(&request, APPROVED)
            || has_condition(&request, DENIED)
        {
            return Ok(false);
        }
        let Some((signer, wanted)) = wanted(&request) else { return Ok(false) };
        match self.decide(signer, &request, &wanted).await? {
            Decision::Approve(why) => {
                let status = with_condition(&request, APPROVED, "AutoApproved", why);
                // the controller's role does not let it approve what upstream leaves to people
                let client = match signer {
                    Signer::KubeletServing => &self.program,
                    _ => &self.client,
                };
                let api = Api::all(client.clone());
                amend(&api, &request, "approval", status).await?;
                info!(name, user = wanted.common_name, "approved a certificate signing request");
                Ok(false)
            }
            Decision::Wait => {
                debug!(name, "the certificate signing request is not approved yet");
                Ok(true)
            }
            Decision::Leave => Ok(false),
        }
    }

    async fn decide(
        &self,
        signer: Signer,
        request: &CertificateSigningRequest,
        wanted: &Request,
    ) -> Result<Decision, Error> {
        if signer.check(wanted, &usages(request)).is_err() {
            return Ok(Decision::Leave);
        }
        let is_self = request.spec.username.as_deref() == Some(wanted.common_name.as_str());
        match signer {
            Signer::Client | Signer::LegacyUnknown => Ok(Decision::Leave),
            Signer::KubeletClient => {
                let reviews = [
                    (
                        is_self,
                        "selfnodeclient",
                        "Auto approving self kubelet client certificate after SubjectAccessReview.",
                    ),
                    (
                        true,
                        "nodeclient",
                        "Auto approving kubelet client certificate after SubjectAccessReview.",
                    ),
                ];
                for (applies, subresource, why) in reviews {
                    if applies && self.may_create(request, subresource).await? {
                        return Ok(Decision::Approve(why));
                    }
                }
                Ok(Decision::Wait)
            }
            Signer::KubeletServing => {
                let Some(nodes) = self.nodes.as_ref().filter(|_| is_self) else {
                    return Ok(Decision::Leave);
                };
                let name = wanted.common_name.strip_prefix(NODE_PREFIX).unwrap_or_default();
                if !is_node(request) || name.is_empty() {
                    return Ok(Decision::Leave);
                }
                Ok(match self.is_of_node(nodes, name, wanted).await? {
                    true => Decision::Approve("The names are those of the node that asks."),
                    false => Decision::Wait,
                })
            }
        }
    }

    /// Whether the requesting user may create requests of that kind.
    async fn may_create(
        &self,
        request: &CertificateSigningRequest,
        subresource: &str,
    ) -> Result<bool, kube::Error> {
        let spec = &request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: spec.username.clone(),
                uid: spec.uid.clone(),
                groups: spec.groups.clone(),
                extra: spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(GROUP.to_owned()),
                    resource: Some("certificatesigningrequests".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    verb: Some("create".to_owned()),
                    version: Some("*".to_owned()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = api.create(&PostParams::default(), &review).await?.status;
        Ok(status.is_some_and(|status| status.allowed))
    }

    /// Whether all that is wanted is that node's and nobody else's.
    async fn is_of_node(
        &self,
        nodes: &Informer<Node>,
        name: &str,
        wanted: &Request,
    ) -> Result<bool, kube::Error> {
        // As it is now: the node has perhaps just reported its addresses.
        let own: Api<Node> = Api::all(self.program.clone());
        let Some(own) = own.get_opt(name).await? else { return Ok(false) };
        let reserved = self.reserved().await?;
        if reserved.services.is_empty() {
            warn!(
                "no serving certificate is approved: without --service-cluster-ip-range the \
                addresses of services are unknown"
            );
        }
        let all = nodes.store().list();
        let others = all
            .iter()
            .map(|node| &**node)
            .filter(|node| node.metadata.name.as_deref() != Some(name));
        Ok(may_have(&own, others, &reserved, wanted))
    }

    /// What is the cluster's: by flags, and as the API has it.
    async fn reserved(&self) -> Result<Reserved, kube::Error> {
        let label = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let slices: Api<EndpointSlice> = Api::namespaced(self.program.clone(), "default");
        let slices = slices.list(&label).await?.items;
        let addresses = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let addresses =
            addresses.flat_map(|endpoint| endpoint.addresses.iter().map(String::as_str));
        let apiserver = addresses.chain(OF_APISERVER).chain(self.apiserver.as_deref()).collect();
        let mut services = self.service_ranges.clone();
        let ranges: Api<ServiceCIDR> = Api::all(self.program.clone());
        match ranges.list(&ListParams::default()).await {
            Ok(ranges) => {
                let ranges = ranges.items.into_iter().filter_map(|range| range.spec?.cidrs);
                services.extend(ranges.flatten().filter_map(|range| range.parse::<IpNet>().ok()));
            }
            // an apiserver before 1.33
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(Reserved { apiserver, services })
    }
}

/// Whether the requesting user is a node.
fn is_node(request: &CertificateSigningRequest) -> bool {
    request.spec.groups.iter().flatten().any(|group| group == "system:nodes")
}

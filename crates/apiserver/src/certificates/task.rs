//! Approves requests of nodes, signs approved requests, and removes old ones: stand-ins for the
//! three controllers of a full cluster.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use longshore_base::time;
use serde_json::{Value, json};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api_types::Resource;
use crate::authz::{Access, ResourceTarget, Target};
use crate::csr::checks::usages;
use crate::csr::{APPROVED, DENIED, FAILED, Request, Signer};
use crate::kinds::core;
use crate::kinds::lookup;
use crate::object::{self, child_mut};
use crate::operations::{Api, DeleteOptions};
use crate::pki::Pki;
use crate::registry::Change;
use crate::schema::is_dns_subdomain;
use crate::schema::value::{items, text};
use crate::status::StatusError;
use crate::user::User;

const GROUP: &str = "certificates.k8s.io";
/// The resync period: while some requests wait for other objects, such as
/// a node's addresses, and while there are only old ones to forget.
const SWEEP_OPEN: Duration = Duration::from_secs(10);
const SWEEP_IDLE: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(1);
/// How long requests are kept: decided ones, and pending ones.
const KEEP_DECIDED: i64 = 3600;
const KEEP_PENDING: i64 = 24 * 3600;
/// Requests for less get this much, since certificates begin a little in the past.
const MIN_DURATION: Duration = Duration::from_secs(600);

/// What the cluster's administrator chose.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whether nodes' serving certificates are approved when they name nothing but the node.
    pub(crate) approve_serving: bool,
    /// The maximum duration of certificates.
    pub(crate) life: Duration,
    /// Names and addresses of this server, which no node's certificate gets by itself.
    pub(crate) own_names: Vec<String>,
}

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, pki: &Pki, settings: Settings, stop: CancellationToken) {
    let task = Task { api, pki, settings };
    tokio::select! {
        () = stop.cancelled() => {}
        () = async {
            loop {
                if let Err(error) = task.follow().await {
                    tracing::warn!(%error, "cannot reconcile certificate signing requests");
                }
                sleep(RETRY).await;
            }
        } => {}
    }
}

fn resource() -> Result<&'static Resource, StatusError> {
    lookup(GROUP, "v1", "certificatesigningrequests")
        .ok_or_else(|| StatusError::internal("no resource certificatesigningrequests"))
}

struct Task<'a> {
    api: &'a Api,
    pki: &'a Pki,
    settings: Settings,
}

impl Task<'_> {
    /// Ends when the changes break off.
    async fn follow(&self) -> Result<(), StatusError> {
        let registry = &self.api.registry;
        // Subscribed before the lists, so that no change in between is missed.
        let after = registry.store().revision().await.map_err(StatusError::internal)?;
        let mut changes = registry.feeds().subscribe(resource()?, after).await?;
        loop {
            let pause = if self.sweep().await? { SWEEP_OPEN } else { SWEEP_IDLE };
            let mut next = time::after(pause);
            loop {
                let change = tokio::select! {
                    () = sleep_until(next) => break,
                    change = changes.next() => change?,
                };
                let Some(change) = change else { return Ok(()) };
                if self.changed(&change).await {
                    next = next.min(time::after(SWEEP_OPEN));
                }
            }
        }
    }

    /// Whether the request is still open.
    async fn changed(&self, change: &Change) -> bool {
        match change.current.as_ref().and_then(|current| current.value()) {
            Some(request) => self.handle(request).await,
            None => false,
        }
    }

    /// Whether some request is still open.
    async fn sweep(&self) -> Result<bool, StatusError> {
        let now = Timestamp::now();
        let mut is_open = false;
        for request in self.api.list_all(resource()?, "").await? {
            match is_outdated(&request, now) {
                true => self.forget(&request).await?,
                false => is_open |= self.handle(&request).await,
            }
        }
        Ok(is_open)
    }

    async fn forget(&self, request: &Value) -> Result<(), StatusError> {
        let (user, options) = (User::apiserver(), DeleteOptions::default());
        let name = object::name(request);
        match self.api.delete(&user, resource()?, "", name, &options).await {
            Err(error) if error.code != 404 => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the request is still open. One that cannot be handled holds up no other.
    async fn handle(&self, request: &Value) -> bool {
        match self.decide_and_sign(request).await {
            Ok(is_done) => !is_done,
            Err(error) if error.code == 404 => false,
            Err(error) => {
                let name = object::name(request);
                tracing::warn!(%error, name, "cannot handle a certificate signing request");
                true
            }
        }
    }

    /// `false`: it waits for a decision.
    async fn decide_and_sign(&self, request: &Value) -> Result<bool, StatusError> {
        let is_closed = !text(&request["status"]["certificate"]).is_empty()
            || has(request, FAILED)
            || has(request, DENIED);
        let signer = Signer::of(text(&request["spec"]["signerName"]));
        let Some(signer) = signer.filter(|_| !is_closed) else { return Ok(true) };
        let Ok(wanted) = Request::parse(text(&request["spec"]["request"])) else { return Ok(true) };
        if !has(request, APPROVED) {
            let Some(why) = self.reason_to_approve(signer, request, &wanted).await? else {
                return Ok(false);
            };
            self.add_condition(request, APPROVED, "AutoApproved", why).await?;
        }
        self.sign(signer, request, &wanted).await?;
        Ok(true)
    }

    /// Why the request is approved without anybody's word, if it is.
    async fn reason_to_approve(
        &self,
        signer: Signer,
        request: &Value,
        wanted: &Request,
    ) -> Result<Option<&'static str>, StatusError> {
        let spec = &request["spec"];
        if signer.check(wanted, &usages(spec)).is_err() {
            return Ok(None);
        }
        let user = requestor(spec);
        let is_self = user.name == wanted.common_name;
        match signer {
            Signer::Client => Ok(None),
            Signer::KubeletClient => {
                let asks = [
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
                for (applies, subresource, why) in asks {
                    if applies && self.may_create(&user, subresource).await? {
                        return Ok(Some(why));
                    }
                }
                Ok(None)
            }
            Signer::KubeletServing => {
                let approves = self.settings.approve_serving && is_self;
                Ok((approves && self.is_of_node(&user, wanted).await?)
                    .then_some("The names are those of the node that asks."))
            }
        }
    }

    async fn may_create(&self, user: &User, subresource: &str) -> Result<bool, StatusError> {
        let target = ResourceTarget {
            group: GROUP,
            resource: "certificatesigningrequests",
            subresource,
            ..ResourceTarget::default()
        };
        let access = Access { user, verb: "create", target: Target::Resource(target) };
        Ok(self.api.is_allowed(&access).await?.is_ok())
    }

    /// Whether a node asks for names and addresses that its Node object has, and that can be a node's
    /// alone. The node writes that object itself, so it proves nothing about what is somebody else's.
    async fn is_of_node(&self, user: &User, wanted: &Request) -> Result<bool, StatusError> {
        let Some(node) = crate::user::node_name(user).filter(|node| !node.is_empty()) else {
            return Ok(false);
        };
        let nodes = core("nodes")?;
        let Some(own) = self.api.registry.find(nodes, "", node).await? else {
            return Ok(false);
        };
        let range = self.api.services.range();
        let reserved = Names::new(self.settings.own_names.iter().map(String::as_str));
        if !Names::of_node(&own).has_all(wanted)
            || reserved.has_any(wanted)
            || wanted.addresses.iter().any(|ip| range.contains(*ip) || !may_be_a_nodes(*ip))
            || wanted.dns_names.iter().any(|name| !may_name_a_node(name))
        {
            return Ok(false);
        }
        let all = self.api.list_all(nodes, "").await?;
        let others = all.iter().filter(|other| object::name(other) != node);
        Ok(!others.map(Names::of_node).any(|other| other.has_any(wanted)))
    }

    async fn sign(
        &self,
        signer: Signer,
        request: &Value,
        wanted: &Request,
    ) -> Result<(), StatusError> {
        let usages = usages(&request["spec"]);
        if let Err(refusal) = signer.check(wanted, &usages) {
            let why = refusal.to_string();
            return self.add_condition(request, FAILED, "SignerValidationFailure", &why).await;
        }
        let life = life(self.settings.life, request["spec"]["expirationSeconds"].as_u64());
        let authority = match signer {
            Signer::KubeletServing => self.pki.kubelet_serving(),
            Signer::Client | Signer::KubeletClient => self.pki.cluster(),
        };
        let pem = authority.issue(wanted, &usages, life).map_err(StatusError::internal)?;
        let name = object::name(request);
        self.amend(request, |status| {
            status.insert("certificate".into(), STANDARD.encode(&pem).into());
        })
        .await?;
        tracing::info!(name, user = ?wanted.common_name, ?signer, "signed a certificate");
        Ok(())
    }

    async fn add_condition(
        &self,
        request: &Value,
        kind: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), StatusError> {
        let now = object::now().to_string();
        let condition = json!({
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        });
        self.amend(request, |status| {
            let conditions = status.entry("conditions").or_insert_with(|| json!([]));
            if let Some(conditions) = conditions.as_array_mut() {
                conditions.push(condition.clone());
            }
        })
        .await
    }

    /// Changes the request's status, unless it has been decided or signed meanwhile.
    async fn amend(
        &self,
        request: &Value,
        mut change: impl FnMut(&mut serde_json::Map<String, Value>) + Send,
    ) -> Result<(), StatusError> {
        let name = object::name(request);
        let amended = self.api.amend(resource()?, "", name, |current| {
            let is_same = object::uid(current) == object::uid(request);
            let is_open = text(&current["status"]["certificate"]).is_empty()
                && !has(current, DENIED)
                && !has(current, FAILED);
            if is_same && is_open {
                change(child_mut(current, "status"));
            }
            Ok(())
        });
        amended.await.map(drop)
    }
}

/// Names and addresses that belong together, in one spelling each.
struct Names {
    dns: HashSet<String>,
    addresses: HashSet<IpAddr>,
}

impl Names {
    fn new<'a>(names: impl Iterator<Item = &'a str>) -> Names {
        let mut all = Names { dns: HashSet::new(), addresses: HashSet::new() };
        for name in names {
            match name.parse::<IpAddr>() {
                Ok(address) => drop(all.addresses.insert(address.to_canonical())),
                Err(_) => drop(all.dns.insert(normalized_name(name))),
            }
        }
        all
    }

    fn of_node(node: &Value) -> Names {
        let addresses = items(&node["status"]["addresses"]).iter().map(|a| text(&a["address"]));
        Names::new(addresses.chain([object::name(node)]))
    }

    fn has_all(&self, wanted: &Request) -> bool {
        wanted.dns_names.iter().all(|name| self.dns.contains(&normalized_name(name)))
            && wanted.addresses.iter().all(|ip| self.addresses.contains(&ip.to_canonical()))
    }

    fn has_any(&self, wanted: &Request) -> bool {
        wanted.dns_names.iter().any(|name| self.dns.contains(&normalized_name(name)))
            || wanted.addresses.iter().any(|ip| self.addresses.contains(&ip.to_canonical()))
    }
}

fn normalized_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether a name may be that of a node: one host, and no service of the cluster.
pub(super) fn may_name_a_node(name: &str) -> bool {
    let name = normalized_name(name);
    let is_of_services = ["svc", "svc.cluster.local", "cluster.local"]
        .iter()
        .any(|domain| name == *domain || name.ends_with(&format!(".{domain}")));
    let is_of_api = name == "kubernetes" || name.starts_with("kubernetes.default");
    let is_loopback = name == "localhost" || name.ends_with(".localhost");
    is_dns_subdomain(&name) && !is_of_services && !is_of_api && !is_loopback
}

/// Whether an address may be that of one node.
pub(super) fn may_be_a_nodes(address: IpAddr) -> bool {
    let is_link_local = match address.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

fn has(request: &Value, kind: &str) -> bool {
    items(&request["status"]["conditions"]).iter().any(|condition| condition["type"] == kind)
}

/// The requesting user.
fn requestor(spec: &Value) -> User {
    let texts = |list: &Value| items(list).iter().map(|item| text(item).to_owned()).collect();
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: text(&spec["username"]).to_owned(),
        uid: text(&spec["uid"]).to_owned(),
        groups: texts(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
    }
}

/// The duration of the certificate.
pub(super) fn life(longest: Duration, wanted: Option<u64>) -> Duration {
    match wanted.map(Duration::from_secs) {
        None => longest,
        Some(wanted) if wanted > longest => longest,
        Some(wanted) => wanted.max(MIN_DURATION),
    }
}

/// Whether the request can be removed.
pub(super) fn is_outdated(request: &Value, now: Timestamp) -> bool {
    let age = |time: &Value| -> Option<i64> {
        let then = text(time).parse::<Timestamp>().ok()?.as_second();
        Some(now.as_second().saturating_sub(then))
    };
    let decided = items(&request["status"]["conditions"])
        .iter()
        .filter(|condition| matches!(text(&condition["type"]), APPROVED | DENIED | FAILED))
        .filter_map(|condition| age(&condition["lastUpdateTime"]))
        .max();
    match decided {
        Some(age) => age > KEEP_DECIDED,
        None => {
            age(&request["metadata"]["creationTimestamp"]).is_some_and(|age| age > KEEP_PENDING)
        }
    }
}

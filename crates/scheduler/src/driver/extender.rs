//! Extenders: services over HTTP that filter and score nodes, choose victims and bind.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info};

use super::informers::Follower;
use crate::config::ExtenderConfig;
use crate::framework::{Candidate, Code, EXTENDER, MAX_SCORE, Status};
use crate::model::{Atom, Pod};
use crate::scheduler::{Attempt, Scheduler};

/// How long a call may take unless the configuration says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The highest score of an extender.
const MAX_EXTENDER_SCORE: i64 = 10;
/// The largest answer that is read.
const MAX_ANSWER: usize = 32 << 20;

/// Why an extender cannot be used, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    /// Its address or its certificates cannot be used.
    #[error("extender {url}: {reason}")]
    Config {
        /// Its address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// A call failed.
    #[error("failed to {verb} at extender {url}: {reason}")]
    Call {
        /// The verb.
        verb: String,
        /// Its address.
        url: String,
        /// Why.
        reason: String,
    },
}

/// An extender.
#[derive(Clone)]
pub struct Extender {
    config: ExtenderConfig,
    client: Client,
    timeout: Duration,
    resources: HashSet<Atom>,
}

/// Answer of the verb that filters.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct FilterResult {
    nodes: Option<NodeList>,
    node_names: Option<Vec<String>>,
    failed_nodes: BTreeMap<String, String>,
    failed_and_unresolvable_nodes: BTreeMap<String, String>,
    error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeList {
    items: Vec<NamedNode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedNode {
    metadata: Name,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Name {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HostPriority {
    host: String,
    score: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PreemptionResult {
    node_name_to_meta_victims: HashMap<String, MetaVictims>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetaVictims {
    #[serde(rename = "Pods")]
    pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations")]
    violations: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

impl Extender {
    /// An extender as it is configured. Nothing is sent yet.
    ///
    /// # Errors
    /// The address or a certificate cannot be used.
    pub fn new(config: ExtenderConfig) -> Result<Self, ExtenderError> {
        let failed =
            |reason: String| ExtenderError::Config { url: config.url_prefix.clone(), reason };
        let url = config.url_prefix.parse().map_err(|error| failed(format!("{error}")))?;
        let mut http = kube::Config::new(url);
        http.connect_timeout = Some(TIMEOUT);
        if let Some(tls) = &config.tls_config {
            http.accept_invalid_certs = tls.insecure;
            if !tls.ca_file.is_empty() {
                let path = std::path::Path::new(&tls.ca_file);
                let roots =
                    longshore_tls::certificates(path).map_err(|error| failed(error.to_string()))?;
                http.root_cert = Some(roots.iter().map(|one| one.to_vec()).collect());
            }
        } else if config.is_https() {
            http.accept_invalid_certs = true;
        }
        let client = Client::try_from(http).map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            timeout: config.http_timeout.map_or(TIMEOUT, |timeout| timeout.get()),
            resources: config.managed_resources.iter().map(|own| Atom::new(&own.name)).collect(),
            config,
            client,
        })
    }

    /// Whether it is asked about a pod.
    fn is_interested(&self, pod: &Pod) -> bool {
        self.resources.is_empty()
            || pod.requests.scalars.iter().any(|(name, _)| self.resources.contains(name))
    }

    async fn call(&self, verb: &str, body: &Value) -> Result<Value, ExtenderError> {
        let url = self.config.url_prefix.trim_end_matches('/');
        let failed = |reason: String| ExtenderError::Call {
            verb: verb.to_owned(),
            url: url.to_owned(),
            reason,
        };
        let request = hyper::http::Request::post(format!("/{verb}"))
            .header(hyper::http::header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| failed(error.to_string()))?;
        let answer = tokio::time::timeout(self.timeout, self.client.request_text(request)).await;
        let text = match answer {
            Err(_) => return Err(failed("context deadline exceeded".to_owned())),
            Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
        };
        if text.len() > MAX_ANSWER {
            return Err(failed("the answer is too long".to_owned()));
        }
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }
}

/// All extenders, with what they are sent.
#[derive(Clone, Default)]
pub struct Extenders {
    all: Arc<Vec<Extender>>,
    follower: Option<Arc<Follower>>,
}

impl Extenders {
    /// They are sent pods and nodes as the API has them.
    pub fn new(all: Vec<Extender>, follower: Arc<Follower>) -> Self {
        Self { all: Arc::new(all), follower: Some(follower) }
    }

    fn of<'a>(
        &'a self,
        pod: &'a Pod,
        verb: fn(&ExtenderConfig) -> &str,
    ) -> impl Iterator<Item = (&'a Extender, &'a str)> {
        self.all
            .iter()
            .filter(|own| own.is_interested(pod))
            .map(move |own| (own, verb(&own.config)))
            .filter(|(_, verb)| !verb.is_empty())
    }

    fn pod(&self, pod: &Pod) -> Value {
        let object = self.follower.as_ref().and_then(|own| own.pods().get(&pod.key()));
        object.map_or(Value::Null, |object| json!(&*object))
    }

    /// The arguments of verbs about nodes.
    fn arguments(&self, own: &Extender, pod: &Pod, names: &[String]) -> Value {
        if own.config.node_cache_capable {
            return json!({"Pod": self.pod(pod), "Nodes": null, "NodeNames": names});
        }
        let nodes: Vec<Value> = names
            .iter()
            .filter_map(|name| self.follower.as_ref()?.nodes().get(name))
            .map(|node| json!(&*node))
            .collect();
        json!({"Pod": self.pod(pod), "Nodes": {"items": nodes}, "NodeNames": null})
    }

    /// Takes out nodes that extenders reject; the scores of the others, if any scores.
    pub(super) async fn filter(
        &self,
        scheduler: &Scheduler,
        attempt: &mut Attempt,
    ) -> Option<Vec<i64>> {
        if self.all.is_empty() || attempt.fitting.is_empty() {
            return None;
        }
        let pod = attempt.pod().clone();
        let name = |position: &usize| {
            scheduler.nodes().get(*position).map(|info| info.name.to_string()).unwrap_or_default()
        };
        for (own, verb) in self.of(&pod, |config| &config.filter_verb) {
            let names: Vec<String> = attempt.fitting.iter().map(name).collect();
            if names.is_empty() {
                return None;
            }
            let result =
                own.call(verb, &self.arguments(own, &pod, &names)).await.and_then(|answer| {
                    let result: FilterResult =
                        serde_json::from_value(answer).map_err(|error| ExtenderError::Call {
                            verb: verb.to_owned(),
                            url: own.config.url_prefix.clone(),
                            reason: error.to_string(),
                        })?;
                    if result.error.is_empty() {
                        return Ok(result);
                    }
                    Err(ExtenderError::Call {
                        verb: verb.to_owned(),
                        url: own.config.url_prefix.clone(),
                        reason: result.error,
                    })
                });
            match result {
                Ok(result) => apply(attempt, &names, result),
                Err(error) if own.config.ignorable => info!("extender is left out: {error}"),
                Err(error) => {
                    attempt.fail(error.to_string());
                    return None;
                }
            }
        }
        self.scores(&pod, &attempt.fitting.iter().map(name).collect::<Vec<_>>()).await
    }

    async fn scores(&self, pod: &Pod, names: &[String]) -> Option<Vec<i64>> {
        if names.len() < 2 {
            return None;
        }
        let mut sums: Option<Vec<i64>> = None;
        for (own, verb) in self.of(pod, |config| &config.prioritize_verb) {
            let answer = own.call(verb, &self.arguments(own, pod, names)).await;
            let list = answer.map(serde_json::from_value::<Vec<HostPriority>>);
            let list = match list {
                Ok(Ok(list)) => list,
                Ok(Err(error)) => {
                    debug!("no scores of extender: {error}");
                    continue;
                }
                Err(error) => {
                    debug!("no scores of extender: {error}");
                    continue;
                }
            };
            let scores: HashMap<String, i64> =
                list.into_iter().map(|own| (own.host, own.score)).collect();
            let sums = sums.get_or_insert_with(|| vec![0; names.len()]);
            for (sum, name) in sums.iter_mut().zip(names) {
                let score = scores.get(name).copied().unwrap_or(0);
                let scale = MAX_SCORE.checked_div(MAX_EXTENDER_SCORE).unwrap_or(1);
                let scaled = score.saturating_mul(own.config.weight).saturating_mul(scale);
                *sum = sum.saturating_add(scaled);
            }
        }
        sums
    }

    /// Candidates that extenders leave.
    pub(super) async fn preempt(
        &self,
        pod: &Pod,
        mut candidates: Vec<Candidate>,
    ) -> Vec<Candidate> {
        for (own, verb) in self.of(pod, |config| &config.preempt_verb) {
            if candidates.is_empty() {
                break;
            }
            let victims: serde_json::Map<String, Value> = candidates
                .iter()
                .map(|candidate| {
                    let pods: Vec<_> =
                        candidate.victims.iter().map(|pod| json!({"UID": &*pod.uid})).collect();
                    let own = json!({"Pods": pods, "NumPDBViolations": candidate.violations});
                    (candidate.node.to_string(), own)
                })
                .collect();
            let body = json!({"Pod": self.pod(pod), "NodeNameToMetaVictims": victims});
            let answer =
                own.call(verb, &body).await.map(serde_json::from_value::<PreemptionResult>);
            match answer {
                Ok(Ok(result)) => candidates = left(candidates, &result),
                _ if own.config.ignorable => info!("extender is left out: it failed to {verb}"),
                Ok(Err(error)) => {
                    info!("extender failed to {verb}: {error}");
                    return Vec::new();
                }
                Err(error) => {
                    info!("{error}");
                    return Vec::new();
                }
            }
        }
        candidates
    }

    /// Binds a pod, if an extender does; `None`: none does.
    pub(super) async fn bind(&self, pod: &Pod, node: &Atom) -> Option<Result<(), String>> {
        for (own, verb) in self.of(pod, |config| &config.bind_verb) {
            let body = json!({
                "PodName": pod.name, "PodNamespace": &*pod.namespace, "PodUID": &*pod.uid,
                "Node": &**node,
            });
            let result = match own.call(verb, &body).await {
                Err(error) => Err(error.to_string()),
                Ok(answer) => match answer["Error"].as_str() {
                    None | Some("") => Ok(()),
                    Some(error) => Err(error.to_owned()),
                },
            };
            match result {
                Err(error) if own.config.ignorable => info!("extender is left out: {error}"),
                result => return Some(result),
            }
        }
        None
    }
}

/// Leaves those candidates, and of them those victims, that an extender named.
fn left(candidates: Vec<Candidate>, result: &PreemptionResult) -> Vec<Candidate> {
    let named = candidates.into_iter().filter_map(|mut candidate| {
        let own = result.node_name_to_meta_victims.get(candidate.node.as_str())?;
        candidate.victims.retain(|pod| own.pods.iter().any(|named| *named.uid == *pod.uid));
        candidate.violations = own.violations;
        (!candidate.victims.is_empty()).then_some(candidate)
    });
    named.collect()
}

/// Leaves those nodes that an extender accepts.
fn apply(attempt: &mut Attempt, names: &[String], result: FilterResult) {
    let listed =
        result.nodes.map(|list| list.items.into_iter().map(|node| node.metadata.name).collect());
    let accepted: HashSet<String> =
        listed.or(result.node_names.map(|names| names.into_iter().collect())).unwrap_or_default();
    let positions = std::mem::take(&mut attempt.fitting);
    for (position, name) in positions.into_iter().zip(names) {
        if accepted.contains(name) {
            attempt.fitting.push(position);
            continue;
        }
        let (code, reason) = match result.failed_and_unresolvable_nodes.get(name) {
            Some(reason) => (Code::Unresolvable, reason.clone()),
            None => {
                let reason = result.failed_nodes.get(name).cloned().unwrap_or_default();
                (Code::Unschedulable, reason)
            }
        };
        attempt.diagnosis.set(position, Status::new(code, reason).by(EXTENDER));
    }
}

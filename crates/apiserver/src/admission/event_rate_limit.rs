//! The EventRateLimit admission plugin: how many events may be written each second, by the whole server, by
//! namespace, by user, or by who reports what of which object.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::attributes::Attributes;
use crate::schema::value::text;
use crate::status::StatusError;

/// What the limits that nobody has given a size for remember.
const CACHE_SIZE: usize = 4096;
const API_VERSION: &str = "eventratelimit.admission.k8s.io/v1alpha1";

/// What a limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

impl LimitType {
    fn name(self) -> &'static str {
        match self {
            LimitType::Server => "Server",
            LimitType::Namespace => "Namespace",
            LimitType::User => "User",
            LimitType::SourceAndObject => "SourceAndObject",
        }
    }

    /// What requests with the same limit have in common.
    fn key(self, attributes: &Attributes<'_>, event: &Value) -> String {
        match self {
            LimitType::Server => String::new(),
            LimitType::Namespace => attributes.namespace.to_owned(),
            LimitType::User => attributes.user.name.clone(),
            LimitType::SourceAndObject => {
                let (source, object) = (&event["source"], &event["involvedObject"]);
                let fields = ["kind", "namespace", "name", "uid", "apiVersion"];
                let source = ["component", "host"].into_iter().map(|field| text(&source[field]));
                source.chain(fields.into_iter().map(|field| text(&object[field]))).collect()
            }
        }
    }
}

/// A limit, as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Limit {
    #[serde(rename = "type")]
    limit_type: LimitType,
    qps: i32,
    burst: i32,
    #[serde(default)]
    cache_size: i32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    api_version: String,
    kind: String,
    #[serde(default)]
    limits: Vec<Limit>,
}

/// Reads a configuration; the error says what is wrong with it.
pub(super) fn read(configuration: &Value) -> Result<Vec<Limit>, String> {
    let Configuration { api_version, kind, limits } =
        Configuration::deserialize(configuration).map_err(|error| error.to_string())?;
    if api_version != API_VERSION || kind != "Configuration" {
        return Err(format!("{api_version}, {kind} is not a Configuration of {API_VERSION}"));
    }
    if limits.is_empty() {
        return Err("limits: Invalid value: must not be empty".to_owned());
    }
    for (i, limit) in limits.iter().enumerate() {
        let Limit { limit_type, qps, burst, cache_size } = *limit;
        let has_cache = limit_type != LimitType::Server;
        for (field, value, is_wrong, why) in [
            ("burst", burst, burst <= 0, "must be positive"),
            ("qps", qps, qps <= 0, "must be positive"),
            ("cacheSize", cache_size, has_cache && cache_size < 0, "must not be negative"),
        ] {
            if is_wrong {
                return Err(format!("limits[{i}].{field}: Invalid value: {value}: {why}"));
            }
        }
    }
    Ok(limits)
}

/// Tokens of one key: they come at a rate, and no more are kept than the burst.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    since: Instant,
    /// When it was used last, by the count of uses.
    used: usize,
}

/// The buckets of a limit. Of many keys those are forgotten that were not used for the longest time.
#[derive(Debug)]
struct Limiter {
    limit: Limit,
    most: usize,
    buckets: HashMap<String, Bucket>,
    /// Keys by when they were used last.
    by_use: BTreeMap<usize, String>,
    uses: usize,
}

impl Limiter {
    fn new(limit: Limit) -> Limiter {
        let most = match usize::try_from(limit.cache_size).unwrap_or(0) {
            0 => CACHE_SIZE,
            size => size,
        };
        let (buckets, by_use) = Default::default();
        Limiter { limit, most, buckets, by_use, uses: 0 }
    }

    /// Takes a token of a key, if there is one.
    fn accept(&mut self, key: &str, now: Instant) -> bool {
        self.uses = self.uses.wrapping_add(1);
        let burst = f64::from(self.limit.burst);
        let new = Bucket { tokens: burst, since: now, used: self.uses };
        let bucket = self.buckets.entry(key.to_owned()).or_insert(new);
        let seconds = now.saturating_duration_since(bucket.since).as_secs_f64();
        bucket.tokens = (bucket.tokens + seconds * f64::from(self.limit.qps)).min(burst);
        bucket.since = bucket.since.max(now);
        let is_accepted = bucket.tokens >= 1.0;
        if is_accepted {
            bucket.tokens -= 1.0;
        }
        self.by_use.remove(&bucket.used);
        bucket.used = self.uses;
        self.by_use.insert(self.uses, key.to_owned());
        if self.buckets.len() > self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.buckets.remove(&oldest);
        }
        is_accepted
    }
}

/// The limits in force; none when the plugin is off.
#[derive(Debug, Default)]
pub(crate) struct EventLimits(Vec<Mutex<Limiter>>);

impl EventLimits {
    pub(crate) fn new(limits: &[Limit]) -> EventLimits {
        EventLimits(limits.iter().map(|limit| Mutex::new(Limiter::new(*limit))).collect())
    }

    /// Counts a new or changed event; 429 when there are too many. Each limit counts it, also after another
    /// has refused it.
    pub(crate) fn admit(
        &self,
        attributes: &Attributes<'_>,
        event: &Value,
        now: Instant,
    ) -> Result<(), StatusError> {
        let is_event = attributes.kind.group.is_empty() && attributes.kind.kind == "Event";
        if !is_event || attributes.dry_run {
            return Ok(());
        }
        let mut refused = Vec::new();
        for limiter in &self.0 {
            let mut limiter = limiter.lock();
            let limit_type = limiter.limit.limit_type;
            let key = limit_type.key(attributes, event);
            if !limiter.accept(&key, now) {
                let name = limit_type.name();
                refused.push(format!("limit reached on type {name} for key {key}"));
            }
        }
        // the same text twice is said once, as upstream
        refused.dedup();
        match refused.as_slice() {
            [] => Ok(()),
            [only] => Err(StatusError::rate_limited(only)),
            several => Err(StatusError::rate_limited(&format!("[{}]", several.join(", ")))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::attributes::Operation;
    use super::*;
    use crate::kinds::core;
    use crate::user::User;

    fn configuration(limits: &Value) -> Result<Vec<Limit>, String> {
        read(&json!({"apiVersion": API_VERSION, "kind": "Configuration", "limits": limits}))
    }

    #[test]
    fn event_rate_limit_configuration_is_checked() {
        let limit = json!({"type": "User", "qps": 5, "burst": 10, "cacheSize": 7});
        assert_eq!(configuration(&json!([limit])).unwrap().len(), 1);
        for (field, value, why) in [
            ("type", json!("Node"), "unknown variant `Node`"),
            ("qps", json!(0), "limits[0].qps: Invalid value: 0: must be positive"),
            ("burst", json!(-1), "limits[0].burst: Invalid value: -1: must be positive"),
            (
                "cacheSize",
                json!(-1),
                "limits[0].cacheSize: Invalid value: -1: must not be negative",
            ),
            ("qps", json!(1_u64 << 40), "invalid value"),
            ("more", json!(1), "unknown field"),
        ] {
            let mut bad = limit.clone();
            bad[field] = value;
            let error = configuration(&json!([bad])).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
        assert!(configuration(&json!([])).unwrap_err().contains("must not be empty"));
        assert!(read(&json!({"apiVersion": "v1", "kind": "Configuration"})).is_err());
    }

    #[test]
    fn event_rate_limit_by_type() {
        let [events, pods] = ["events", "pods"].map(|plural| core(plural).unwrap());
        let users = ["ann", "bob"].map(|name| User { name: name.into(), ..User::default() });
        let event = |component: &str| {
            json!({"source": {"component": component},
                                             "involvedObject": {"kind": "Pod", "name": "p"}})
        };
        let attributes = |user, resource, namespace, dry_run| {
            Attributes::new(Operation::Create, user, resource, (namespace, "e"), dry_run)
        };
        let now = Instant::now();
        for (limit_type, others, why) in [
            ("Server", [false; 4], "limit reached on type Server for key "),
            ("Namespace", [false, true, false, false], "limit reached on type Namespace for key a"),
            ("User", [false, false, true, false], "limit reached on type User for key ann"),
            (
                "SourceAndObject",
                [false, false, false, true],
                "limit reached on type SourceAndObject for key kubeletPodp",
            ),
        ] {
            let limits =
                configuration(&json!([{"type": limit_type, "qps": 1, "burst": 2}])).unwrap();
            let limits = EventLimits::new(&limits);
            let own = attributes(&users[0], events, "a", false);
            let admit = |attributes: &Attributes<'_>, event: &Value, now| {
                limits.admit(attributes, event, now)
            };
            let kubelet = event("kubelet");
            assert!(admit(&own, &kubelet, now).is_ok() && admit(&own, &kubelet, now).is_ok());
            let error = admit(&own, &kubelet, now).unwrap_err();
            assert_eq!((error.code, error.message), (429, format!("Too many requests: {why}")));
            let other_user = attributes(&users[1], events, "a", false);
            let other_namespace = attributes(&users[0], events, "b", false);
            let cases = [
                (&own, kubelet.clone()),
                (&other_namespace, kubelet.clone()),
                (&other_user, kubelet.clone()),
                (&own, event("scheduler")),
            ];
            for ((attributes, event), is_free) in cases.iter().zip(others) {
                assert_eq!(admit(attributes, event, now).is_ok(), is_free, "{limit_type}");
            }
            // what is no event, and what is not written
            assert!(admit(&attributes(&users[0], pods, "a", false), &json!({}), now).is_ok());
            assert!(admit(&attributes(&users[0], events, "a", true), &kubelet, now).is_ok());
            // after some time there is one more
            let later = now + Duration::from_millis(1100);
            assert!(admit(&own, &kubelet, later).is_ok() && admit(&own, &kubelet, later).is_err());
        }
    }

    #[test]
    fn event_rate_limit_all_reasons_and_few_keys() {
        let limits = json!([{"type": "Server", "qps": 1, "burst": 1},
                            {"type": "User", "qps": 1, "burst": 1, "cacheSize": 2}]);
        let limits = EventLimits::new(&configuration(&limits).unwrap());
        let (events, now) = (core("events").unwrap(), Instant::now());
        let user = User { name: "ann".into(), ..User::default() };
        let attributes = Attributes::new(Operation::Update, &user, events, ("a", "e"), false);
        assert!(limits.admit(&attributes, &json!({}), now).is_ok());
        let error = limits.admit(&attributes, &json!({}), now).unwrap_err();
        let both = "Too many requests: [limit reached on type Server for key , \
                    limit reached on type User for key ann]";
        assert_eq!(error.message, both);
        for i in 0..1000 {
            let user = User { name: format!("u{i}"), ..User::default() };
            let attributes = Attributes::new(Operation::Create, &user, events, ("a", "e"), false);
            assert!(limits.admit(&attributes, &json!({}), now).is_err());
        }
        let users = limits.0[1].lock();
        assert_eq!((users.buckets.len(), users.by_use.len()), (2, 2));
        assert!(users.buckets.contains_key("u999"));
    }
}

//! Health of the server: `/livez`, `/readyz` and `/healthz`, whose checks have upstream's names, and each
//! check at a path of its own, such as `/livez/etcd`.

use std::collections::BTreeSet;
use std::time::Duration;

use hyper::StatusCode;
use tokio::time::timeout;

use super::request::RequestLine;
use super::{Router, respond};

const STORE_TIMEOUT: Duration = Duration::from_secs(2);

const READYZ: &str = "readyz";
/// The store answers, whichever it is.
const STORE: &str = "etcd";
const STORE_READINESS: &str = "etcd-readiness";
const SHUTDOWN: &str = "shutdown";
/// `true`: of `/readyz` alone. The caches are filled before the port is opened.
const CHECKS: [(&str, bool); 6] = [
    ("ping", false),
    ("log", false),
    (STORE, false),
    (STORE_READINESS, true),
    ("informer-sync", true),
    (SHUTDOWN, true),
];

/// A check with what is wrong, or `None` when it was not made.
type Checked = (&'static str, Option<Result<(), String>>);

impl Router {
    /// The page of a path; `None`: it is none of these.
    pub(super) async fn health(&self, path: &str, line: &RequestLine) -> Option<respond::Answer> {
        let mut parts = path.strip_prefix('/')?.splitn(2, '/');
        let page = match parts.next()? {
            "healthz" => "healthz",
            "livez" => "livez",
            READYZ => READYZ,
            _ => return None,
        };
        let single = parts.next();
        let excluded: BTreeSet<&str> = line.query.all("exclude").collect();
        let is_wanted = |check: &str| match single {
            Some(single) => check == single,
            None => !excluded.contains(check),
        };
        let checked = self.checks(page, is_wanted).await;
        for (check, result) in &checked {
            let Some(Err(error)) = result else { continue };
            tracing::error!(check, error, "a health check has failed");
        }
        let Some(_) = single else { return Some(self.report(page, checked, &excluded, line)) };
        Some(match checked.into_iter().find_map(|(_, result)| result)? {
            Ok(()) => respond::text(StatusCode::OK, "ok".into()),
            Err(error) => {
                let text = format!("internal server error: {error}\n");
                respond::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        })
    }

    /// The checks of a page, in order, with the results of those that are wanted.
    async fn checks(&self, page: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Checked> {
        let of_page = CHECKS.iter().filter(|(_, is_readiness)| page == READYZ || !is_readiness);
        let mut checked = Vec::new();
        let mut store = None;
        for (check, _) in of_page {
            let result = match *check {
                check if !is_wanted(check) => None,
                STORE | STORE_READINESS => {
                    if store.is_none() {
                        store = Some(self.check_store().await);
                    }
                    store.clone()
                }
                SHUTDOWN if self.stop.is_cancelled() => {
                    Some(Err("process is shutting down".into()))
                }
                _ => Some(Ok(())),
            };
            checked.push((*check, result));
        }
        if let Some(encryption) = &self.encryption
            && let Some(check) = encryption.health_check()
        {
            // plugins are asked only where the answer is wanted
            let result = if is_wanted(check) { Some(encryption.health().await) } else { None };
            checked.push((check, result));
        }
        checked
    }

    async fn check_store(&self) -> Result<(), String> {
        match timeout(STORE_TIMEOUT, self.api.registry.store().revision()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the store does not answer".to_owned()),
        }
    }

    fn report(
        &self,
        page: &str,
        checked: Vec<Checked>,
        excluded: &BTreeSet<&str>,
        line: &RequestLine,
    ) -> respond::Answer {
        let mut report = String::new();
        let mut is_healthy = true;
        for (check, result) in &checked {
            let verdict = match result {
                None => "[+]{} excluded: ok",
                Some(Ok(())) => "[+]{} ok",
                // the page is public
                Some(Err(_)) => "[-]{} failed: reason withheld",
            };
            report.push_str(&verdict.replace("{}", check));
            report.push('\n');
            if let Some(result) = result {
                self.pages.checked(check, page, result.is_ok());
                is_healthy &= result.is_ok();
            }
        }
        let is_known = |name: &str| checked.iter().any(|(check, _)| *check == name);
        let unknown = excluded.iter().filter(|name| !is_known(name));
        let unknown: Vec<String> = unknown.map(|name| format!("{name:?}")).collect();
        if !unknown.is_empty() {
            report.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                unknown.join(",")
            ));
        }
        match (is_healthy, line.query.has("verbose")) {
            (true, false) => respond::text(StatusCode::OK, "ok".into()),
            (true, true) => respond::text(StatusCode::OK, format!("{report}{page} check passed\n")),
            (false, _) => {
                let text = format!("{report}{page} check failed\n");
                respond::text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

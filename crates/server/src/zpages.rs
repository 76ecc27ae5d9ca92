//! `/statusz` and `/flagz`, as text, or as an object of `config.k8s.io` if requested.
//!
//! Current limitations: of the structured formats only JSON is supported, not YAML or CBOR.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::{Timestamp, Unit};
use longshore_base::version::KUBERNETES_VERSION;
use longshore_config::FeatureGates;
use serde_json::{Value, json};

use super::Refusal;

const HEADER: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
                      formatting compatibility guarantees and is for debugging purposes only.";
/// Replaces the values of secret flags.
const CLASSIFIED: &str = "CLASSIFIED";
/// Flags whose values are secret.
const SECRET_FLAGS: [&str; 1] = ["manifest-url-header"];

/// The pages of one component.
#[derive(Debug, Clone, Copy)]
pub struct Zpages {
    /// The component.
    pub component: &'static str,
    /// Other debugging endpoints.
    pub paths: &'static [&'static str],
}

impl Zpages {
    /// The routes, if enabled by their feature gates.
    pub fn routes(self, gates: &FeatureGates, flags: &BTreeMap<&'static str, String>) -> Router {
        let mut router = Router::new();
        if gates.enabled("ComponentFlagz") {
            let flags = Arc::new(redacted(flags));
            router = router.route("/flagz", get(async move |headers| self.flagz(&flags, &headers)));
        }
        if gates.enabled("ComponentStatusz") {
            let started = Timestamp::now();
            let page = async move |headers| self.statusz(started, &headers);
            router = router.route("/statusz", get(page));
        }
        router
    }
    fn flagz(
        self,
        flags: &BTreeMap<&'static str, String>,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        self.answer("Flagz", headers, json!({"flags": flags}), || {
            flags.iter().fold(String::new(), |mut text, (name, value)| {
                // writing to a String cannot fail
                let _ = writeln!(text, "{name}={value}");
                text
            })
        })
    }

    fn statusz(self, started: Timestamp, headers: &HeaderMap) -> Result<Response, Refusal> {
        let version = KUBERNETES_VERSION.trim_start_matches('v');
        let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        let up = Timestamp::now().as_second().saturating_sub(started.as_second()).max(0);
        let object = json!({
            "startTime": started.round(Unit::Second).unwrap_or(started).to_string(),
            "uptimeSeconds": up,
            "goVersion": "",
            "binaryVersion": version,
            "emulationVersion": minor,
            "paths": self.paths,
        });
        self.answer("Statusz", headers, object, || {
            format!(
                "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {version}\n\
                 Emulation version: {minor}\nPaths: {}\n",
                started.strftime("%a %b %e %H:%M:%S UTC %Y"),
                up / 3600,
                up / 60 % 60,
                up % 60,
                self.paths.join(" "),
            )
        })
    }

    /// The page in the negotiated format.
    fn answer(
        self,
        kind: &str,
        headers: &HeaderMap,
        mut object: Value,
        text: impl FnOnce() -> String,
    ) -> Result<Response, Refusal> {
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        match Format::wanted(accept.unwrap_or_default(), kind) {
            Some(Format::Text) => {
                let page =
                    format!("\n{} {}\n{HEADER}\n{}", self.component, kind.to_lowercase(), text());
                Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response())
            }
            Some(Format::Object(version)) => {
                object["kind"] = json!(kind);
                object["apiVersion"] = json!(format!("config.k8s.io/{version}"));
                object["metadata"] = json!({"name": self.component});
                let content = [(header::CONTENT_TYPE, "application/json")];
                Ok((content, object.to_string()).into_response())
            }
            None => Err(Refusal::line(
                StatusCode::NOT_ACCEPTABLE,
                format!(
                    "only text/plain and application/json;g=config.k8s.io;v=v1beta1;as={kind} are served"
                ),
            )),
        }
    }
}

fn redacted(flags: &BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    let mut flags = flags.clone();
    for name in SECRET_FLAGS {
        flags.entry(name).and_modify(|value| *value = CLASSIFIED.to_owned());
    }
    flags
}

/// A response format.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    Text,
    /// An object of that version.
    Object(&'static str),
}

impl Format {
    /// The first supported format of an `Accept` header, if any.
    fn wanted(accept: &str, kind: &str) -> Option<Self> {
        if accept.trim().is_empty() {
            return Some(Self::Text);
        }
        accept.split(',').find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            match parts.next()? {
                "*/*" | "text/*" | "text/plain" => Some(Self::Text),
                "application/json" => {
                    let mut version = None;
                    let (mut group, mut of_kind) = (false, false);
                    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                        match name {
                            "v" => {
                                version = ["v1alpha1", "v1beta1"].into_iter().find(|v| *v == value)
                            }
                            "g" => group = value == "config.k8s.io",
                            "as" => of_kind = value == kind,
                            _ => {}
                        }
                    }
                    version.filter(|_| group && of_kind).map(Self::Object)
                }
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zpages_content_negotiation() {
        let object = "application/json;g=config.k8s.io;as=Flagz;v=";
        for (accept, expected) in [
            ("", Some(Format::Text)),
            ("*/*", Some(Format::Text)),
            ("text/plain;q=0.9", Some(Format::Text)),
            ("application/json", None),
            ("application/json, */*", Some(Format::Text)),
            (&format!("{object}v1beta1"), Some(Format::Object("v1beta1"))),
            (&format!("{object}v1alpha1,text/plain"), Some(Format::Object("v1alpha1"))),
            (&format!("{object}v2"), None),
            ("application/json;g=config.k8s.io;as=Statusz;v=v1beta1", None),
            ("image/png", None),
        ] {
            assert_eq!(Format::wanted(accept, "Flagz"), expected, "{accept}");
        }
    }

    #[test]
    fn zpages_redact_secret_flags() {
        let flags = BTreeMap::from([
            ("manifest-url-header", "Authorization:planted".to_owned()),
            ("port", "10250".to_owned()),
        ]);
        let redacted = redacted(&flags);
        assert_eq!(redacted["manifest-url-header"], CLASSIFIED);
        assert_eq!(redacted["port"], "10250");
    }
}

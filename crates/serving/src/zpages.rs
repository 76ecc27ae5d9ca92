//! `/statusz` and `/flagz`, as text, or as an object of `config.k8s.io` if requested.
//!
//! Current limitations: of the structured formats only JSON is supported, not YAML or CBOR.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{Timestamp, Unit};
use longshore_base::version::KUBERNETES_VERSION;
use serde_json::{Value, json};

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
                       formatting compatibility guarantees and is for debugging purposes only.";

/// The pages of one component.
#[derive(Debug, Clone, Copy)]
pub struct Zpages {
    /// The component.
    pub component: &'static str,
    /// Other endpoints.
    pub paths: &'static [&'static str],
}

/// A page in the format that was negotiated.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// Of the body.
    pub content_type: &'static str,
    /// The page.
    pub body: String,
}

/// No format of a page of this kind is accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("only text/plain and application/json;g=config.k8s.io;v=v1beta1;as={0} are served")]
pub struct NotAcceptable(&'static str);

impl Zpages {
    /// The flags by name. `accept` is the header, or empty.
    ///
    /// # Errors
    /// Nothing in the header is served.
    pub fn flagz(
        self,
        accept: &str,
        flags: &BTreeMap<impl AsRef<str>, String>,
    ) -> Result<Page, NotAcceptable> {
        let flags = || flags.iter().map(|(name, value)| (name.as_ref(), value));
        let object = || {
            let map = flags().map(|(name, value)| (name.to_owned(), value.clone().into()));
            json!({"flags": Value::Object(map.collect())})
        };
        self.page("Flagz", accept, object, || {
            flags().fold(String::new(), |mut text, (name, value)| {
                // writing to a String cannot fail
                let _ = writeln!(text, "{name}={value}");
                text
            })
        })
    }

    /// Versions, and since when the component runs. `accept` is the header, or empty.
    ///
    /// # Errors
    /// Nothing in the header is served.
    pub fn statusz(self, accept: &str, started: Timestamp) -> Result<Page, NotAcceptable> {
        let version = KUBERNETES_VERSION.trim_start_matches('v');
        let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        let up = Timestamp::now().as_second().saturating_sub(started.as_second()).max(0);
        let object = || {
            json!({
                "startTime": started.round(Unit::Second).unwrap_or(started).to_string(),
                "uptimeSeconds": up,
                "goVersion": "",
                "binaryVersion": version,
                "emulationVersion": minor,
                "paths": self.paths,
            })
        };
        let seconds = u32::try_from(up).unwrap_or(u32::MAX);
        self.page("Statusz", accept, object, || {
            format!(
                "Started: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {version}\n\
                 Emulation version: {minor}\nPaths: {}\n",
                started.strftime("%a %b %e %H:%M:%S UTC %Y"),
                seconds / 3600,
                seconds / 60 % 60,
                seconds % 60,
                self.paths.join(" "),
            )
        })
    }

    fn page(
        self,
        kind: &'static str,
        accept: &str,
        object: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<Page, NotAcceptable> {
        match Format::wanted(accept, kind).ok_or(NotAcceptable(kind))? {
            Format::Text => {
                let head = format!("\n{} {}\n{WARNING}\n\n", self.component, kind.to_lowercase());
                Ok(Page { content_type: "text/plain; charset=utf-8", body: head + &text() })
            }
            Format::Object(version) => {
                let mut object = object();
                object["kind"] = json!(kind);
                object["apiVersion"] = json!(format!("config.k8s.io/{version}"));
                object["metadata"] = json!({"name": self.component});
                Ok(Page { content_type: "application/json", body: object.to_string() })
            }
        }
    }
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
    fn zpages_have_the_format_that_is_accepted() {
        let pages = Zpages { component: "some", paths: &["/a", "/b"] };
        let flags = BTreeMap::from([("port", "6443".to_owned())]);
        let text = pages.flagz("*/*", &flags).unwrap();
        assert_eq!(text.body, format!("\nsome flagz\n{WARNING}\n\nport=6443\n"));
        let started = Timestamp::now();
        let text = pages.statusz("", started).unwrap();
        assert!(text.body.contains("\nUp: 0 hr 00 min 0") && text.body.ends_with("Paths: /a /b\n"));
        let object = "application/json;g=config.k8s.io;v=v1beta1;as=";
        let flagz = pages.flagz(&format!("{object}Flagz"), &flags).unwrap();
        assert_eq!(flagz.content_type, "application/json");
        let flagz: Value = serde_json::from_str(&flagz.body).unwrap();
        let expected = json!({"kind": "Flagz", "apiVersion": "config.k8s.io/v1beta1",
            "metadata": {"name": "some"}, "flags": {"port": "6443"}});
        assert_eq!(flagz, expected);
        let statusz = pages.statusz(&format!("{object}Statusz"), started).unwrap();
        let statusz: Value = serde_json::from_str(&statusz.body).unwrap();
        assert_eq!(statusz["paths"], json!(["/a", "/b"]));
        let refusal = pages.statusz("application/json", started).unwrap_err();
        assert!(refusal.to_string().ends_with("as=Statusz are served"));
    }
}

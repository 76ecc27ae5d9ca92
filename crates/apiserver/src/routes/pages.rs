//! Pages about the server itself for people: `/statusz`, `/flagz`, `/metrics/slis`, and `/logs/`, the files of its
//! machine's log directory.
//!
//! Current limitations: files are sent whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use futures::TryStreamExt;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use jiff::Timestamp;
use longshore_base::panics;
use longshore_metrics::{Healthchecks, Registry};
use longshore_serving::{BoxError, NotAcceptable, Page, Profiles, Zpages};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::respond::{self, Result};
use crate::response_body::Body;
use crate::status::StatusError;

/// The most entries of a directory that are shown.
const MAX_ENTRIES: usize = 10_000;

/// What the pages show.
#[derive(Clone, Debug, Default)]
pub struct PagesConfig {
    /// The flags that are in force, by name.
    pub flags: BTreeMap<String, String>,
    /// The directory behind `/logs/`; `None`: it is not served.
    pub logs: Option<PathBuf>,
    /// Whether `/debug/pprof/` is served.
    pub profiling: bool,
}

/// The pages.
pub(super) struct Pages {
    config: PagesConfig,
    started: Timestamp,
    registry: Registry,
    checks: Healthchecks,
    profiles: Option<Profiles>,
}

impl Pages {
    pub(super) fn new(config: PagesConfig) -> Pages {
        let registry = Registry::default();
        let checks = Healthchecks::new(&registry);
        let profiles = config.profiling.then(Profiles::default);
        Pages { config, started: Timestamp::now(), registry, checks, profiles }
    }

    /// Profiles, if they are served.
    pub(super) fn profiles(&self) -> Option<&Profiles> {
        self.profiles.as_ref()
    }

    /// Whether `/logs/` is served.
    pub(super) fn has_logs(&self) -> bool {
        self.config.logs.is_some()
    }

    /// A health check was made for an endpoint.
    pub(super) fn checked(&self, check: &str, endpoint: &str, passed: bool) {
        self.checks.checked(check, endpoint, passed);
    }

    /// The page of a path; `None`: it is none of these. `listed`: all paths.
    pub(super) async fn page(
        &self,
        path: &str,
        accept: Option<&str>,
        listed: &'static [&'static str],
    ) -> Option<Result> {
        let zpages = Zpages { component: "apiserver", paths: listed };
        let accept = accept.unwrap_or_default();
        match path.trim_end_matches('/') {
            "/metrics/slis" => Some(Ok(respond::metrics(self.registry.text()))),
            "/flagz" => Some(negotiated(zpages.flagz(accept, &self.config.flags))),
            "/statusz" => Some(negotiated(zpages.statusz(accept, self.started))),
            "/logs" => Some(self.log("", path).await),
            other => match other.strip_prefix("/logs/") {
                Some(below) => Some(self.log(below, path).await),
                None => None,
            },
        }
    }

    async fn log(&self, below: &str, path: &str) -> Result {
        let top = self.config.logs.clone().ok_or_else(StatusError::no_such_page)?;
        let relative = relative(below).ok_or_else(StatusError::no_such_page)?;
        let found = panics::blocking(move || find(&top, &relative)).await;
        let found = found.map_err(StatusError::internal)?.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => StatusError::forbidden_path("permission denied"),
            // what leads out of the directory is not there either
            _ => StatusError::no_such_page(),
        })?;
        match found {
            Found::Directory(_) if !path.ends_with('/') => {
                let name = path.rsplit('/').next().unwrap_or_default();
                let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
                // Relative to the path, which ends with the name.
                let to = HeaderValue::try_from(format!("{encoded}/"));
                let mut answer = respond::text(StatusCode::MOVED_PERMANENTLY, String::new());
                answer.headers_mut().insert(header::LOCATION, to.map_err(StatusError::internal)?);
                Ok(answer)
            }
            Found::Directory(entries) => {
                let html = HeaderValue::from_static("text/html; charset=utf-8");
                Ok(respond::raw(StatusCode::OK, html, listing(&entries).into()))
            }
            Found::File(file, length) => {
                let text = HeaderValue::from_static("text/plain; charset=utf-8");
                // a log that grows meanwhile is sent as it was
                let file = tokio::fs::File::from_std(file).take(length);
                let parts = ReaderStream::new(file).map_err(BoxError::from);
                Ok(respond::raw(StatusCode::OK, text, Body::stream(parts)))
            }
        }
    }
}

fn negotiated(page: std::result::Result<Page, NotAcceptable>) -> Result {
    let Page { content_type, body } =
        page.map_err(|_| StatusError::not_acceptable(&["text/plain", "application/json"]))?;
    Ok(respond::raw(StatusCode::OK, HeaderValue::from_static(content_type), body.into()))
}

/// A path below the directory; `None` for one that leads elsewhere.
fn relative(below: &str) -> Option<PathBuf> {
    let path = Path::new(below);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !below.contains('\0')).then(|| path.to_owned())
}

enum Found {
    /// With its length.
    File(File, u64),
    /// Sorted names; those of directories end with a slash.
    Directory(Vec<String>),
}

/// The kernel opens a path beneath the directory, so that no link or race leads out of it.
fn find(top: &Path, relative: &Path) -> io::Result<Found> {
    let top = openat(CWD, top, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&top, relative, flags, Mode::empty(), beneath)?);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(Found::File(file, metadata.len()));
    }
    if !metadata.is_dir() {
        // no pipes or devices
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut names = Vec::new();
    for entry in Dir::read_from(&file)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match name.as_str() {
            "." | ".." => {}
            name if entry.file_type().is_dir() => names.push(format!("{name}/")),
            _ => names.push(name),
        }
    }
    names.sort();
    Ok(Found::Directory(names))
}

fn listing(entries: &[String]) -> String {
    let escaped = |text: &str| {
        let replace = |text: String, (from, to): (char, &str)| text.replace(from, to);
        [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")]
            .into_iter()
            .fold(text.to_owned(), replace)
    };
    let line = |name: &String| {
        let slash = if name.ends_with('/') { "/" } else { "" };
        let encoded = utf8_percent_encode(name.trim_end_matches('/'), NON_ALPHANUMERIC);
        format!("<a href=\"{encoded}{slash}\">{}</a>\n", escaped(name))
    };
    format!("<!doctype html>\n<pre>\n{}</pre>\n", entries.iter().map(line).collect::<String>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn get(pages: &Pages, path: &str) -> (u16, String) {
        match pages.page(path, None, &["/version"]).await {
            None => (0, String::new()),
            Some(Err(error)) => (error.code, error.message),
            Some(Ok(answer)) => {
                let code = answer.status().as_u16();
                let text = answer.into_body().collect().await.map_err(|e| e.to_string());
                (code, String::from_utf8(text.unwrap().to_bytes().to_vec()).unwrap())
            }
        }
    }

    #[tokio::test]
    async fn logs_are_those_of_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("log");
        std::fs::create_dir_all(logs.join("deep")).unwrap();
        std::fs::write(logs.join("a<b"), "text").unwrap();
        std::fs::write(logs.join("deep/c"), "c").unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret", logs.join("out")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), logs.join("absolute")).unwrap();
        std::os::unix::fs::symlink("deep/c", logs.join("inside")).unwrap();
        let pages = Pages::new(PagesConfig { logs: Some(logs), ..PagesConfig::default() });
        for (path, code, text) in [
            ("/logs/a<b", 200, "text"),
            ("/logs/deep/c", 200, "c"),
            ("/logs/inside", 200, "c"),
            ("/logs/deep", 301, ""),
            ("/logs/", 200, "<a href=\"a%3Cb\">a&lt;b</a>"),
            ("/logs/deep/", 200, "<a href=\"c\">c</a>"),
            ("/logs/out", 404, ""),
            ("/logs/absolute", 404, ""),
            ("/logs/../secret", 404, ""),
            ("/logs//etc/passwd", 404, ""),
            ("/logs/absent", 404, ""),
            ("/logs/a\0b", 404, ""),
            ("/other", 0, ""),
        ] {
            let (found, body) = get(&pages, path).await;
            assert_eq!(found, code, "{path}");
            assert!(body.contains(text) && !body.contains("secret"), "{path}: {body}");
        }
        let without = Pages::new(PagesConfig::default());
        assert_eq!(get(&without, "/logs/").await.0, 404);
    }

    #[tokio::test]
    async fn pages_about_the_server() {
        let flags = [("secure-port".to_owned(), "6443".to_owned())].into();
        let pages = Pages::new(PagesConfig { flags, ..PagesConfig::default() });
        pages.checked("ping", "livez", true);
        let (_, flagz) = get(&pages, "/flagz").await;
        assert!(
            flagz.starts_with("\napiserver flagz\nWarning: ")
                && flagz.contains("\nsecure-port=6443\n")
        );
        let (_, statusz) = get(&pages, "/statusz").await;
        assert!(statusz.contains("\nUp: 0 hr 00 min 0") && statusz.contains("Paths: /version"));
        let (_, slis) = get(&pages, "/metrics/slis").await;
        assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1"), "{slis}");
    }
}

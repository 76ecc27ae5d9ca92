//! Serves files and directories of the log directory.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use longshore_base::panics;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

/// Maximum number of absolute links that are followed.
const MAX_LINKS: usize = 8;
/// Maximum number of listed entries.
const MAX_ENTRIES: usize = 10_000;
/// How many bytes are used to detect text files.
const SNIFF: usize = 512;

/// Why a path is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("invalid URL path")]
    Path,
    #[error("404 page not found")]
    Missing,
    #[error("403 Forbidden")]
    Forbidden,
    #[error("invalid range: failed to overlap")]
    Range,
    #[error("500 Internal Server Error: {0}")]
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        match errno {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Self::Missing,
            // outside of the directory, or a loop
            Some(Errno::XDEV | Errno::LOOP | Errno::ACCESS | Errno::PERM) => Self::Forbidden,
            _ => Self::Io(error),
        }
    }
}

/// The log directory; paths are resolved beneath it.
#[derive(Debug, Clone)]
pub(super) struct Root(PathBuf);

/// The path parameters.
enum Found {
    File(File, fs::Metadata),
    /// The sorted entries; directories end with a slash.
    Directory(Vec<String>),
}

impl Root {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Serves a file, or a directory listing; `url` is the path as requested.
    pub(super) async fn serve(
        &self,
        path: &str,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<Response, FileError> {
        let (root, relative) = (self.clone(), relative(path)?);
        let find = panics::blocking(move || root.find(&relative));
        let found = find.await.map_err(|error| FileError::Io(io::Error::other(error)))??;
        match found {
            Found::Directory(entries) => Ok(Html(listing(url, &entries)).into_response()),
            Found::File(file, metadata) => send(file, &metadata, headers),
        }
    }

    /// Opens a regular file by its relative path.
    pub(super) fn open(&self, path: &Path) -> Result<File, FileError> {
        match self.find(path)? {
            Found::File(file, _) => Ok(file),
            Found::Directory(_) => Err(FileError::Missing),
        }
    }

    fn find(&self, path: &Path) -> Result<Found, FileError> {
        let file = File::from(self.open_beneath(path)?);
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Ok(Found::Directory(entries(&file)?));
        }
        // no pipes or devices
        if metadata.is_file() { Ok(Found::File(file, metadata)) } else { Err(FileError::Forbidden) }
    }

    /// Opens a path beneath the directory. Absolute links that point into it, such as those of
    /// `containers/`, are resolved from the top.
    fn open_beneath(&self, path: &Path) -> Result<OwnedFd, FileError> {
        let top =
            openat(CWD, &self.0, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(io::Error::from)?;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut path =
            if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
        for _ in 0..MAX_LINKS {
            match openat2(&top, &path, flags, Mode::empty(), beneath) {
                Err(Errno::XDEV) => {}
                opened => return Ok(opened.map_err(io::Error::from)?),
            }
            let link = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link =
                openat2(&top, &path, link, Mode::empty(), beneath).map_err(io::Error::from)?;
            let target = readlinkat(&link, "", Vec::new()).map_err(|_| FileError::Forbidden)?;
            let target = PathBuf::from(target.to_string_lossy().into_owned());
            path = target.strip_prefix(&self.0).map_err(|_| FileError::Forbidden)?.to_owned();
        }
        Err(FileError::Forbidden)
    }
}

/// Validates the path of a URL.
fn relative(path: &str) -> Result<PathBuf, FileError> {
    let path = Path::new(path.trim_start_matches('/'));
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    let whole: PathBuf = parts.clone().collect();
    let is_good = parts.clone().all(|part| is_plain(&part))
        && !path.as_os_str().as_encoded_bytes().contains(&0);
    if is_good { Ok(whole) } else { Err(FileError::Path) }
}

fn entries(directory: &File) -> Result<Vec<String>, FileError> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory).map_err(io::Error::from)?.take(MAX_ENTRIES) {
        let entry = entry.map_err(io::Error::from)?;
        let name = entry.file_name().to_string_lossy();
        if matches!(&*name, "." | "..") {
            continue;
        }
        let slash = if entry.file_type().is_dir() { "/" } else { "" };
        names.push(format!("{name}{slash}"));
    }
    names.sort();
    Ok(names)
}

/// The HTML listing of a directory. Links also work for URLs without a trailing slash.
fn listing(url: &str, entries: &[String]) -> String {
    let base = match url.rsplit('/').next() {
        None | Some("") => String::new(),
        Some(last) => format!("{}/", escaped(last)),
    };
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"
            .to_owned();
    for entry in entries {
        page.push_str(&format!("<a href=\"{base}{}\">{}</a>\n", encoded(entry), escaped(entry)));
    }
    page + "</pre>\n"
}

fn encoded(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes().fold(String::new(), |text, byte| match is_plain(byte) {
        true => text + &char::from(byte).to_string(),
        false => format!("{text}%{byte:02X}"),
    })
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&#34;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Sends the file with its current length.
fn send(
    mut file: File,
    metadata: &fs::Metadata,
    headers: &HeaderMap,
) -> Result<Response, FileError> {
    let mut start = [0; SNIFF];
    let read = file.read(&mut start)?;
    let kind = match start[..read].contains(&0) || start.starts_with(&[0x1f, 0x8b]) {
        true => "application/octet-stream",
        false => "text/plain; charset=utf-8",
    };
    let whole = metadata.len();
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let (first, count) = match range.map(|range| part(range, whole)) {
        None | Some(Part::All) => (0, whole),
        Some(Part::Some { first, count }) => (first, count),
        Some(Part::None) => return Err(FileError::Range),
    };
    file.seek(SeekFrom::Start(first))?;
    let body = Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(file).take(count)));
    let mut response = (
        [
            (header::CONTENT_TYPE, kind.to_owned()),
            (header::CONTENT_LENGTH, count.to_string()),
            (header::ACCEPT_RANGES, "bytes".to_owned()),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        ],
        body,
    )
        .into_response();
    if count < whole {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let last = first.saturating_add(count).saturating_sub(1);
        if let Ok(value) = format!("bytes {first}-{last}/{whole}").parse() {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
    }
    Ok(response)
}

/// A range of a file.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    All,
    Some {
        first: u64,
        count: u64,
    },
    /// Outside of the file.
    None,
}

/// Parses `bytes=first-last`; several or invalid ranges mean the whole file.
fn part(range: &str, whole: u64) -> Part {
    let Some((first, last)) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Part::All;
    };
    let (first, last) = match (first.trim(), last.trim()) {
        ("", count) => match count.parse::<u64>() {
            Ok(count) => (whole.saturating_sub(count), whole.checked_sub(1).filter(|_| count > 0)),
            Err(_) => return Part::All,
        },
        (first, "") => match first.parse() {
            Ok(first) => (first, whole.checked_sub(1)),
            Err(_) => return Part::All,
        },
        (first, last) => match (first.parse(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => {
                (first, whole.checked_sub(1).map(|end| last.min(end)))
            }
            _ => return Part::All,
        },
    };
    match last {
        Some(last) if first <= last => {
            Part::Some { first, count: last.saturating_sub(first).saturating_add(1) }
        }
        _ => Part::None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn node_logs_file_ranges() {
        let some = |first, count| Part::Some { first, count };
        for (range, expected) in [
            ("bytes=0-3", some(0, 4)),
            ("bytes=6-", some(6, 4)),
            ("bytes=-3", some(7, 3)),
            ("bytes=-30", some(0, 10)),
            ("bytes=8-20", some(8, 2)),
            ("bytes=10-", Part::None),
            ("bytes=-0", Part::None),
            ("bytes=4-2", Part::All),
            ("bytes=0-1,4-5", Part::All),
            ("lines=1-2", Part::All),
        ] {
            assert_eq!(part(range, 10), expected, "{range}");
        }
        assert_eq!(part("bytes=0-", 0), Part::None);
    }

    #[test]
    fn node_logs_directory_listing_is_escaped() {
        let page = listing("/pods", &["<b>\"&'.log".to_owned(), "sub/".to_owned()]);
        assert!(
            page.contains(
                "<a href=\"pods/%3Cb%3E%22%26%27.log\">&lt;b&gt;&#34;&amp;&#39;.log</a>\n"
            )
        );
        assert!(listing("pods/", &["x".to_owned()]).contains("<a href=\"x\">x</a>\n"));
    }

    proptest! {
        #[test]
        fn no_path_leads_out(path in "(\\.\\.|\\.|/|a|secret|link|\\x00){0,9}") {
            let folder = tempfile::tempdir().unwrap();
            let top = folder.path().join("log");
            fs::create_dir_all(top.join("a")).unwrap();
            fs::write(folder.path().join("secret"), "planted").unwrap();
            std::os::unix::fs::symlink(folder.path(), top.join("link")).unwrap();
            if let Ok(path) = relative(&path)
                && let Ok(mut file) = Root::new(top).open(&path)
            {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                prop_assert_ne!(text, "planted");
            }
        }

        #[test]
        fn node_logs_range_is_within_the_file(range in "bytes=[0-9]{0,20}-[0-9]{0,20}|.{0,12}", whole: u64) {
            if let Part::Some { first, count } = part(&range, whole) {
                prop_assert!(count > 0 && first.checked_add(count).is_some_and(|end| end <= whole));
            }
        }
    }
}

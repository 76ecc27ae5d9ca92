//! The pages of `make docs`: the table of contents has each page, and links lead to what is there.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().unwrap()
}

/// The names of the pages of a directory.
fn pages(docs: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".md")).collect()
}

/// The text without blocks of code, in which brackets are no links.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn book_has_each_page_once() {
    let docs = docs();
    let summary = links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap());
    let listed: BTreeSet<String> = summary.iter().cloned().collect();
    assert_eq!(listed.len(), summary.len(), "a page is listed twice: {summary:?}");
    let mut pages = pages(&docs);
    pages.remove("SUMMARY.md");
    assert_eq!(listed, pages);
}

#[test]
fn book_links_lead_to_pages_and_headings() {
    let docs = docs();
    for page in pages(&docs) {
        let text = fs::read_to_string(docs.join(&page)).unwrap();
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { &page } else { file };
            let target = fs::read_to_string(docs.join(file));
            let target = target.unwrap_or_else(|error| panic!("{page}: {link}: {error}"));
            assert!(anchor.is_empty() || anchors(&target).contains(anchor), "{page}: {link}");
        }
    }
}

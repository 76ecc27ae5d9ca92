//! Checks that the tests named in docs/security.md and docs/faults.md exist.

use std::path::Path;

/// The text of every Rust file below a directory, one by one.
fn sources(directory: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

/// The text of every Rust file of the project.
fn all_sources(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for directory in ["src", "tests", "crates"] {
        sources(&root.join(directory), &mut files);
    }
    files
}

/// Each row `| CVE | rule | test |` names a function that there is, in a file that names the CVE.
#[test]
fn security_page_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, tables) = page.split_once("## Known vulnerabilities").unwrap();
    let files = all_sources(root);
    let rows = tables.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [id, _, test] = cells[..] else { return None };
        Some((id, test.strip_prefix('`')?.strip_suffix('`')?))
    });
    let mut count = 0;
    for (id, test) in rows {
        let function = format!("fn {test}(");
        let number = id.strip_prefix("CVE-").unwrap_or(id);
        let is_there = files.iter().any(|text| text.contains(&function) && text.contains(number));
        assert!(is_there, "{id}: no test {test} in a file that names it");
        count += 1;
    }
    assert!(count >= 20, "{count} rows");
}

/// Each vulnerability of the apiserver is named by its tests.
#[test]
fn security_page_apiserver_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, section) = page.split_once("### Apiserver").unwrap();
    let mut files = Vec::new();
    sources(&root.join("crates/apiserver"), &mut files);
    let words = section.split(|c: char| c.is_whitespace() || ",.".contains(c));
    let ids: Vec<&str> = words.filter(|word| word.starts_with("CVE-")).collect();
    assert!(ids.len() >= 20, "{ids:?}");
    for id in ids {
        assert!(files.iter().any(|text| text.contains(id)), "no test names {id}");
    }
}

/// Each row `| what fails | what happens | tests |` names functions that there are.
#[test]
fn faults_page_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let files = all_sources(root);
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let last = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let tests: Vec<&str> = last
        .flat_map(|cell| cell.split(", "))
        .filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'))
        .collect();
    assert!(tests.len() >= 30, "{tests:?}");
    for test in tests {
        let function = format!("fn {test}(");
        assert!(files.iter().any(|text| text.contains(&function)), "there is no test {test}");
    }
}

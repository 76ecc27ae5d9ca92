//! Which top modules of a crate name items of which others, by `use` or by a path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::tokens::{Token, tokens, without_tests};

/// One place where a top module names an item of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// The item's path from the root of the crate.
    pub(crate) path: String,
}

/// All imports between the top modules below a directory `src`, tests apart.
pub(crate) fn imports(src: &Path) -> anyhow::Result<Vec<Import>> {
    let mut paths = Vec::new();
    files(src, &mut paths)?;
    paths.sort();
    let mut sources = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let module = module_of(path.strip_prefix(src)?);
        sources.push((path, module, text));
    }
    let tops: BTreeSet<&str> =
        sources.iter().filter_map(|(_, module, _)| module.first()).map(String::as_str).collect();
    let mut for_tests = BTreeSet::new();
    let mut parsed = Vec::new();
    for (path, module, text) in &sources {
        let all = tokens(text);
        let (kept, modules) = without_tests(&all);
        for name in modules {
            for_tests.insert([module.clone(), vec![name.to_owned()]].concat());
        }
        parsed.push((path, module, kept));
    }
    let is_test =
        |module: &[String]| (1..=module.len()).any(|end| for_tests.contains(&module[..end]));
    let mut found = Vec::new();
    for (file, module, tokens) in parsed {
        let Some(from) = module.first().filter(|_| !is_test(module)) else { continue };
        for (path, line) in named(module, &tokens) {
            let Some(to) = path.first().filter(|to| tops.contains(to.as_str()) && *to != from)
            else {
                continue;
            };
            let (from, to, file) = (from.clone(), to.clone(), file.clone());
            found.push(Import { from, to, file, line, path: path.join("::") });
        }
    }
    Ok(found)
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// The module of a file, by its path below `src`; empty for a root of the crate.
fn module_of(path: &Path) -> Vec<String> {
    let parts = path.with_extension("");
    let mut module: Vec<String> =
        parts.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let last = module.last().map(String::as_str);
    if last == Some("mod") || module.len() == 1 && matches!(last, Some("lib" | "main")) {
        module.pop();
    }
    module
}

/// The paths within the crate that a file names, from the crate's root, with their lines.
fn named(module: &[String], tokens: &[Token<'_>]) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    // the modules of the file itself, each with the depth of braces within it
    let mut inner: Vec<(String, usize)> = Vec::new();
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(token) = tokens.get(at) {
        let here = || -> Vec<String> {
            module.iter().cloned().chain(inner.iter().map(|(name, _)| name.clone())).collect()
        };
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inner.retain(|(_, within)| *within <= depth);
            }
            "mod" if text(tokens, at + 2) == Some("{") => {
                inner.push((tokens[at + 1].text.to_owned(), depth + 1));
            }
            "use" => {
                let mut leaves = Vec::new();
                at = tree(tokens, at + 1, &[], &mut leaves);
                let here = here();
                let absolute = |(path, line)| Some((resolve(&here, path)?, line));
                found.extend(leaves.into_iter().filter_map(absolute));
                continue;
            }
            // not in `pub(in crate::x)`, and not the rest of a path
            "crate" | "super"
                if text(tokens, at + 1) == Some("::")
                    && !matches!(
                        at.checked_sub(1).and_then(|at| text(tokens, at)),
                        Some("::" | "in" | "$")
                    ) =>
            {
                let mut path = vec![token.text];
                while text(tokens, at + 1) == Some("::")
                    && text(tokens, at + 2).is_some_and(is_name)
                {
                    path.push(tokens[at + 2].text);
                    at += 2;
                }
                found.extend(resolve(&here(), path).map(|path| (path, token.line)));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    tokens.get(at).map(|token| token.text)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads the tree of a `use` from `at` on; gives what comes behind it.
fn tree<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &[&'a str],
    leaves: &mut Vec<(Vec<&'a str>, usize)>,
) -> usize {
    let mut path = prefix.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(text) = text(tokens, at) {
        match text {
            "::" => at += 1,
            "{" => {
                at += 1;
                while self::text(tokens, at).is_some_and(|text| text != "}") {
                    at = tree(tokens, at, &path, leaves);
                    if self::text(tokens, at) == Some(",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "as" => at += 2,
            _ if is_name(text) || text == "*" => {
                path.push(text);
                at += 1;
            }
            _ => break,
        }
    }
    leaves.push((path, line));
    // always further, whatever stands there
    if text(tokens, at).is_some_and(|text| !matches!(text, "," | "}")) { at + 1 } else { at }
}

/// A path from the crate's root; `None` for one into another crate or within the module itself.
fn resolve(module: &[String], path: Vec<&str>) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let (base, rest) = match *first {
        "crate" => (&module[..0], rest),
        "super" => {
            let ups = path.iter().take_while(|part| **part == "super").count();
            (&module[..module.len().checked_sub(ups)?], &path[ups..])
        }
        _ => return None,
    };
    Some(base.iter().cloned().chain(rest.iter().map(|part| (*part).to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let imports = imports(dir.path()).unwrap();
        imports.iter().map(|one| format!("{} {}:{}", one.from, one.path, one.line)).collect()
    }

    #[test]
    fn imports_are_found_in_all_their_forms() {
        let a = "use crate::b::{self, C, d::{E as F, *}};\nuse std::x;\nuse self::b::G;
            fn f() { crate::b::g(); super::b::h(); } // crate::b::no
            mod inner { use super::super::b::I; pub(in crate::b) fn j() {} }
            #[cfg(test)] mod tests { use crate::b::K; }";
        let nested = "use super::super::b::L;\nuse super::m;";
        let files = [("lib.rs", "mod a; mod b; use crate::b::N;"), ("b.rs", ""), ("a.rs", a)];
        let expected = [
            "a b::L:1",
            "a b::self:1",
            "a b::C:1",
            "a b::d::E:1",
            "a b::d::*:1",
            "a b::g:4",
            "a b::h:4",
            "a b::I:5",
        ];
        let files = [&files[..], &[("a/nested.rs", nested)]].concat();
        assert_eq!(found(&files), expected);
    }

    #[test]
    fn files_of_tests_are_left_out() {
        let files = [
            ("a/mod.rs", "#[cfg(test)]\nmod tests;"),
            ("a/tests.rs", "use crate::b::X;"),
            ("a/tests/more.rs", "use crate::b::X;"),
            ("b.rs", "use crate::a::X;"),
        ];
        assert_eq!(found(&files), ["b a::X:1"]);
    }
}

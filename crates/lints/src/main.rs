//! Checks of this repository's sources that neither the compiler nor clippy makes: the top modules
//! of each crate import each other in one direction. Between crates, Cargo sees to that.
//!
//! `longshore-lints [DIRECTORY]` reads the packages of a workspace, and fails with the imports that
//! make a cycle. Cycles that are known are in [`ALLOWED`].

mod graph;
mod imports;
mod tokens;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use self::graph::cycles;
use self::imports::{Import, imports};

/// Cycles that are there yet: the crate, its modules, and why. An entry that is not needed any more
/// is an error.
const ALLOWED: &[(&str, &[&str], &str)] = &[];

fn main() -> ExitCode {
    match run() {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            for fault in faults {
                eprintln!("{fault}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("longshore-lints: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<Vec<String>> {
    let root = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let mut faults = Vec::new();
    let mut unused: Vec<_> = ALLOWED.iter().collect();
    for package in packages(&root)? {
        let imports = imports(&root.join(&package).join("src"))?;
        for cycle in cycles(&imports) {
            let of = |entry: &(&str, &[&str], &str)| entry.0 == package && entry.1 == cycle;
            match unused.iter().position(|entry| of(entry)) {
                Some(known) => drop(unused.remove(known)),
                None => faults.push(describe(&package, &cycle, &imports)),
            }
        }
    }
    faults.extend(unused.iter().map(|(package, modules, _)| {
        format!("{package}: there is no such cycle any more: {}", modules.join(", "))
    }));
    Ok(faults)
}

/// The packages of the workspace, as paths from its root: its own, and those of `crates/`.
fn packages(root: &Path) -> anyhow::Result<Vec<String>> {
    let crates = root.join("crates");
    let mut found = vec![".".to_owned()];
    let entries = std::fs::read_dir(&crates).with_context(|| crates.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        if entry.path().join("src").is_dir() {
            found.push(format!("crates/{}", entry.file_name().to_string_lossy()));
        }
    }
    found.sort();
    Ok(found)
}

/// A cycle with the first import from each of its modules to each other one.
fn describe(package: &str, cycle: &[&str], imports: &[Import]) -> String {
    let mut text = format!("{package}: modules import each other: {}", cycle.join(", "));
    for from in cycle {
        for to in cycle {
            let import = imports.iter().find(|import| import.from == *from && import.to == *to);
            if let Some(Import { file, line, path, .. }) = import {
                text.push_str(&format!("\n  {from} → {to}: {}:{line}: {path}", file.display()));
            }
        }
    }
    text
}
